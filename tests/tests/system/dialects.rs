//! The closed loop in every dialect: the reuse that the router predicts for messages, responses and Ollama's chats is
//! what workers reuse, in whole blocks.
//!
//! The worker's and the router's own tests cover one dialect's answers and errors; chats alone are in `predictions`.
//!
//! The conversations change their dialect from turn to turn. Each dialect expresses the same chat, so the prefix is
//! always reused.

use serde_json::{Value, json};
use warmpath_bench::prompts::words;
use warmpath_tests::rig::{BLOCK_SIZE_TOKENS, Reply, Rig};

const N_WORKERS: usize = 3;
const N_SESSIONS: u64 = 8;
const N_TURNS: u64 = 8;

/// Texts of a conversation: system, question, answer, question, ...
struct Session {
    texts: Vec<String>,
}

impl Session {
    fn items(&self) -> Vec<Value> {
        let role = |idx: usize| if idx.is_multiple_of(2) { "user" } else { "assistant" };
        let texts = self.texts[1..].iter().enumerate();
        texts.map(|(idx, text)| json!({"role": role(idx), "content": text})).collect()
    }

    fn chat(&self) -> Vec<Value> {
        let system = json!({"role": "system", "content": self.texts[0]});
        std::iter::once(system).chain(self.items()).collect()
    }

    /// Asks the next question in the turn's dialect; returns the reply and the answer's text.
    async fn ask(&mut self, rig: &Rig, turn: u64) -> anyhow::Result<(Reply, String)> {
        let (path, body, text) = match turn % 4 {
            0 => {
                let system = json!([{"type": "text", "text": self.texts[0], "cache_control": {"type": "ephemeral"}}]);
                let body = json!({"system": system, "messages": self.items(), "max_tokens": 12});
                ("/v1/messages", body, "/content/0/text")
            }
            1 => {
                let body = json!({"instructions": self.texts[0], "input": self.items(), "max_output_tokens": 12});
                ("/v1/responses", body, "/output/0/content/0/text")
            }
            2 => {
                let body = json!({"messages": self.chat(), "max_tokens": 12});
                ("/v1/chat/completions", body, "/choices/0/message/content")
            }
            _ => {
                let options = json!({"num_predict": 12, "temperature": 0});
                let body = json!({"messages": self.chat(), "options": options, "stream": false});
                ("/api/chat", body, "/message/content")
            }
        };
        let mut body = body;
        body["temperature"] = json!(0);
        let reply = rig.post(&format!("{}{path}", rig.router_url()), &body).await?;
        anyhow::ensure!(reply.status == 200, "{path}: {}", reply.text);
        let said = reply.json().pointer(text).and_then(Value::as_str).unwrap_or_default().to_owned();
        Ok((reply, said))
    }
}

#[tokio::test]
async fn a_conversation_that_changes_its_dialect_is_reused_as_predicted() -> anyhow::Result<()> {
    let rig = Rig::start(N_WORKERS, &[]).await?;
    let mut sessions: Vec<_> = (0..N_SESSIONS).map(|id| Session { texts: vec![words(1000 + id, 120)] }).collect();
    let mut wrong = Vec::new();
    let mut n_reused = 0;
    for turn in 0..N_TURNS {
        for (id, session) in (0..).zip(&mut sessions) {
            session.texts.push(words(id * 100 + turn, 20));
            let (reply, said) = session.ask(&rig, turn).await?;
            session.texts.push(said);
            let blocks = |name: &str| reply.header(name).parse::<u64>().map(|tokens| tokens / BLOCK_SIZE_TOKENS);
            let predicted = blocks("x-warmpath-predicted-cached-tokens")?;
            let actual = blocks("x-warmpath-cached-tokens")?;
            if predicted != actual {
                wrong.push((id, turn, predicted, actual));
            }
            n_reused += u64::from(turn > 0 && actual > 100 / BLOCK_SIZE_TOKENS);
        }
    }
    assert_eq!(n_reused, N_SESSIONS * (N_TURNS - 1), "every later turn reuses the previous one");
    assert!(wrong.is_empty(), "session, turn, predicted, actual blocks: {wrong:?}");
    Ok(())
}

#[tokio::test]
async fn an_agent_s_tools_give_the_same_prompt_in_router_and_worker() -> anyhow::Result<()> {
    let rig = Rig::start(N_WORKERS, &[]).await?;
    let schema = json!({"type": "object", "properties": {"path": {"type": "string"}}});
    let function =
        |name: &str| json!({"type": "function", "name": name, "description": words(1, 10), "parameters": schema});
    let namespace = json!({"type": "namespace", "name": "agents", "tools": [function("wait"), function("spawn")]});
    let custom = json!({"type": "custom", "name": "patch", "format": {"type": "grammar", "syntax": "lark", "definition": "start: /x/"}});
    let responses = json!({"instructions": words(2, 80), "max_output_tokens": 4,
        "tools": [function("run"), namespace, custom, {"type": "web_search"}],
        "input": [{"role": "developer", "content": words(3, 40)}, {"role": "user", "content": words(4, 20)}]});
    let own = json!({"name": "read", "input_schema": schema});
    let messages = json!({"system": words(5, 80), "max_tokens": 4,
        "tools": [own, {"type": "bash_20250124", "name": "bash"}, {"type": "web_search_20250305", "name": "web_search"}],
        "messages": [{"role": "user", "content": words(6, 20)}, {"role": "system", "content": words(7, 40)}]});
    let of_chat = json!({"type": "function", "function": {"name": "read", "parameters": schema}});
    let grammar = json!({"type": "grammar", "grammar": {"syntax": "lark", "definition": "start: /x/"}});
    let patch = json!({"type": "custom", "custom": {"name": "patch", "description": words(10, 10), "format": grammar}});
    let call = json!({"id": "c", "type": "custom", "custom": {"name": "patch", "input": words(11, 30)}});
    let chat = json!({"max_tokens": 4, "tools": [{"type": "web_search"}, of_chat, patch], "web_search_options": {},
        "messages": [{"role": "system", "content": words(8, 80)}, {"role": "user", "content": words(9, 20)},
            {"role": "assistant", "content": null, "tool_calls": [call]},
            {"role": "tool", "tool_call_id": "c", "content": "done"}]});
    // The tool choice is not part of the prompt, so a request with another choice reuses the first one's state.
    let allowed = |tools: Value| json!({"type": "allowed_tools", "mode": "auto", "tools": tools});
    let of_responses = [
        json!("auto"),
        allowed(
            json!([{"type": "custom", "name": "patch"}, {"type": "function", "name": "wait", "namespace": "agents"}]),
        ),
    ];
    let named = json!([{"type": "function", "function": {"name": "read"}}]);
    let of_chat = [json!("auto"), json!({"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": named}})];
    for (path, mut body, choices) in [
        ("/v1/responses", responses, of_responses),
        ("/v1/messages", messages, [json!({"type": "auto"}), json!({"type": "none"})]),
        ("/v1/chat/completions", chat, of_chat),
    ] {
        let url = format!("{}{path}", rig.router_url());
        for (turn, choice) in choices.into_iter().enumerate() {
            body["tool_choice"] = choice;
            let reply = rig.post(&url, &body).await?;
            anyhow::ensure!(reply.status == 200, "{path}: {}", reply.text);
            assert_eq!(reply.header("x-warmpath-left-out-tools"), "web_search", "{path}");
            let blocks = |name: &str| reply.header(name).parse::<u64>().map(|tokens| tokens / BLOCK_SIZE_TOKENS);
            let (predicted, actual) =
                (blocks("x-warmpath-predicted-cached-tokens")?, blocks("x-warmpath-cached-tokens")?);
            assert_eq!(predicted, actual, "{path}, turn {turn}");
            assert!(turn == 0 || actual > 100 / BLOCK_SIZE_TOKENS, "{path}: {actual} blocks are reused");
        }
    }
    Ok(())
}

#[tokio::test]
async fn what_a_model_cannot_read_gives_the_same_prompt_in_router_and_worker() -> anyhow::Result<()> {
    let rig = Rig::start(N_WORKERS, &[]).await?;
    let call = json!({"id": "c", "type": "function", "function": {"name": "look", "arguments": "{}"}});
    let (asked, url) = (words(21, 80), "data:image/png;base64,AAAA");
    let image = json!({"type": "image_url", "image_url": {"url": url}});
    let chat = json!({"max_tokens": 4, "messages": [
        {"role": "user", "content": asked}, {"role": "assistant", "content": null, "reasoning": "so", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c", "content": [image]}]});
    let source = json!({"type": "base64", "media_type": "image/png", "data": "AAAA"});
    let result = json!({"type": "tool_result", "tool_use_id": "c", "content": [{"type": "image", "source": source}]});
    let document =
        json!({"type": "document", "source": {"type": "base64", "media_type": "application/pdf", "data": "JVBE"}});
    let messages = json!({"max_tokens": 4, "messages": [
        {"role": "user", "content": asked},
        {"role": "assistant", "content": [{"type": "tool_use", "id": "c", "name": "look", "input": {}}]},
        {"role": "user", "content": [result, document]}]});
    let responses = json!({"max_output_tokens": 4, "input": [
        {"role": "user", "content": asked},
        {"type": "function_call", "call_id": "c", "name": "look", "arguments": "{}"}, {"type": "compaction"},
        {"type": "function_call_output", "call_id": "c", "output": [{"type": "input_image", "image_url": url}]}]});
    for (path, body, left_out) in [
        ("/v1/chat/completions", chat, "image"),
        ("/v1/messages", messages, "image, document"),
        ("/v1/responses", responses, "other, image"),
    ] {
        for turn in 0..2 {
            let reply = rig.post(&format!("{}{path}", rig.router_url()), &body).await?;
            anyhow::ensure!(reply.status == 200, "{path}: {}", reply.text);
            assert_eq!(reply.header("x-warmpath-left-out-parts"), left_out, "{path}");
            let tokens = |name: &str| reply.header(name).parse::<u64>();
            let [predicted, actual, all] =
                ["predicted-cached", "cached", "prompt"].map(|name| tokens(&format!("x-warmpath-{name}-tokens")));
            let (predicted, actual, all) = (predicted?, actual?, all?);
            assert_eq!(predicted / BLOCK_SIZE_TOKENS, actual / BLOCK_SIZE_TOKENS, "{path}, turn {turn}");
            assert!(turn == 0 || actual + BLOCK_SIZE_TOKENS >= all, "{path}: {actual} of {all}");
        }
    }
    Ok(())
}

#[tokio::test]
async fn tools_and_a_schema_in_one_request_give_a_call_or_an_answer_by_the_schema() -> anyhow::Result<()> {
    let rig = Rig::start(1, &[]).await?;
    let object = |name: &str, values: Value| json!({"type": "object", "properties": {name: {"enum": values}}, "required": [name], "additionalProperties": false});
    let url = format!("{}/v1/responses", rig.router_url());
    let (mut n_calls, mut n_by_schema) = (0, 0);
    for seed in 0..30 {
        let body = json!({
            "input": "Is it raining?", "max_output_tokens": 200, "parallel_tool_calls": false,
            "tools": [{"type": "function", "name": "look", "parameters": object("city", json!(["Oslo", "Rome"])), "strict": true}],
            "text": {"format": {"type": "json_schema", "name": "sky", "strict": true, "schema": object("sky", json!(["blue", "grey"]))}},
            "temperature": 50, "top_k": 0, "top_p": 1, "min_p": 0, "seed": seed,
        });
        let reply = rig.post(&url, &body).await?;
        anyhow::ensure!(reply.status == 200, "{}", reply.text);
        let answer = reply.json();
        let item = &answer["output"][0];
        if item["type"] == "function_call" {
            n_calls += 1;
            let arguments: Value = serde_json::from_str(item["arguments"].as_str().unwrap_or_default())?;
            assert!(["Oslo", "Rome"].contains(&arguments["city"].as_str().unwrap_or_default()), "{answer}");
        } else {
            n_by_schema += 1;
            let said: Value = serde_json::from_str(item["content"][0]["text"].as_str().unwrap_or_default())?;
            assert!(["blue", "grey"].contains(&said["sky"].as_str().unwrap_or_default()), "{answer}");
        }
    }
    assert!(n_calls > 0 && n_by_schema > 0, "{n_calls} calls, {n_by_schema} answers by the schema");
    Ok(())
}
