//! Tools together with a schema for the response, as agent frameworks send them in every dialect.
//!
//! The response is a complete call or follows the schema; a model with equal probabilities for all allowed tokens does
//! both.

use jsonschema::validator_for;
use serde_json::{Value, json};

use crate::harness::{TestWorker, folder, user};

const CHAT: &str = "/v1/chat/completions";
const MESSAGES: &str = "/v1/messages";
const RESPONSES: &str = "/v1/responses";

/// Schema of a tool's arguments.
fn arguments() -> Value {
    json!({"type": "object", "properties": {"city": {"enum": ["Berlin", "Oslo"]}}, "required": ["city"], "additionalProperties": false})
}

/// Schema of the answer.
fn answer_schema() -> Value {
    json!({
        "type": "object",
        "properties": {"sky": {"enum": ["blue", "grey"]}, "degrees": {"type": "integer", "minimum": -9, "maximum": 40}},
        "required": ["sky", "degrees"],
        "additionalProperties": false,
    })
}

/// Kind of a response.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Call,
    BySchema,
}

/// Returns the kind of a complete response; checks its content and calls.
fn kind(content: &str, calls: &[Value]) -> Kind {
    let is_valid = |schema: &Value, value: &Value| validator_for(schema).expect("the schema is one").is_valid(value);
    if calls.is_empty() {
        let value: Value = serde_json::from_str(content).unwrap_or_else(|error| panic!("{content:?}: {error}"));
        assert!(is_valid(&answer_schema(), &value), "{value}");
        return Kind::BySchema;
    }
    assert_eq!(content, "", "a response with a call has no content");
    calls.iter().for_each(|arguments_said| assert!(is_valid(&arguments(), arguments_said), "{arguments_said}"));
    Kind::Call
}

/// Makes all allowed tokens about equally likely.
fn at_random(mut body: Value, seed: u64) -> Value {
    let fields = json!({"temperature": 50, "top_k": 0, "top_p": 1.0, "min_p": 0.0, "seed": seed});
    body.as_object_mut().expect("a body").extend(fields.as_object().cloned().unwrap_or_default());
    body
}

fn tool(name: &str, strict: bool) -> Value {
    json!({"type": "function", "function": {"name": name, "parameters": arguments(), "strict": strict}})
}

fn format(strict: bool) -> Value {
    json!({"type": "json_schema", "json_schema": {"name": "weather", "strict": strict, "schema": answer_schema()}})
}

fn chat(choice: &str, strict: bool) -> Value {
    json!({
        "messages": user("Is it raining?"), "tools": [tool("get_weather", strict), tool("get_wind", strict)],
        "tool_choice": choice, "response_format": format(strict), "max_tokens": 300, "parallel_tool_calls": false,
    })
}

fn parsed(text: &Value) -> Value {
    serde_json::from_str(text.as_str().expect("a text")).unwrap_or_else(|error| panic!("{text}: {error}"))
}

/// Sends a chat, whole or streamed, and returns the response's kind.
async fn ask_chat(worker: &TestWorker, mut body: Value, streamed: bool) -> Kind {
    if !streamed {
        let answer = worker.ask(CHAT, body).await;
        let choice = &answer["choices"][0];
        let calls = choice["message"]["tool_calls"].as_array().cloned().unwrap_or_default();
        let calls: Vec<Value> = calls.iter().map(|call| parsed(&call["function"]["arguments"])).collect();
        assert_eq!(choice["finish_reason"], if calls.is_empty() { "stop" } else { "tool_calls" }, "{answer}");
        return kind(choice["message"]["content"].as_str().unwrap_or_default(), &calls);
    }
    body["stream"] = json!(true);
    let (mut content, mut calls) = (String::new(), Vec::<String>::new());
    for event in worker.stream(CHAT, body).await {
        let delta = &event["choices"][0]["delta"];
        content.push_str(delta["content"].as_str().unwrap_or_default());
        for part in delta["tool_calls"].as_array().into_iter().flatten() {
            let idx = usize::try_from(part["index"].as_u64().expect("an index")).expect("a small one");
            calls.resize(calls.len().max(idx + 1), String::new());
            calls[idx].push_str(part["function"]["arguments"].as_str().unwrap_or_default());
        }
    }
    let calls: Vec<Value> = calls.into_iter().map(|call| parsed(&json!(call))).collect();
    kind(&content, &calls)
}

/// Checks that both kinds occurred.
fn check_both(kinds: &[Kind]) {
    for kind in [Kind::Call, Kind::BySchema] {
        assert!(kinds.contains(&kind), "{kind:?} is not among {kinds:?}");
    }
}

#[tokio::test]
async fn a_chat_s_answer_is_a_call_or_follows_the_schema_and_both_happen() {
    let worker = TestWorker::start("--slots 1 --ctx-size 2048").await;
    for streamed in [false, true] {
        let mut kinds = Vec::new();
        for seed in 0..40 {
            let body = at_random(chat("auto", seed % 2 == 0), seed);
            kinds.push(ask_chat(&worker, body, streamed).await);
        }
        check_both(&kinds);
    }
}

#[tokio::test]
async fn an_answer_in_json_mode_is_an_object_or_a_call() {
    let worker = TestWorker::start("--slots 1 --ctx-size 2048").await;
    let (mut n_calls, mut n_objects) = (0, 0);
    for seed in 0..40 {
        let mut body = at_random(chat("auto", false), seed);
        body["response_format"] = json!({"type": "json_object"});
        body["logit_bias"] = json!([["}", 8]]);
        let answer = worker.ask(CHAT, body).await;
        let choice = &answer["choices"][0];
        match (choice["finish_reason"].as_str(), &choice["message"]["content"]) {
            (Some("tool_calls"), _) => n_calls += 1,
            (Some("stop"), content) => {
                assert!(parsed(content).is_object(), "{answer}");
                n_objects += 1;
            }
            (_, content) => assert!(content.as_str().is_none_or(|text| text.starts_with('{')), "{answer}"),
        }
    }
    assert!(n_calls > 0 && n_objects > 0, "{n_calls} calls, {n_objects} objects");
}

#[tokio::test]
async fn the_choice_of_tools_decides_which_of_both_is_allowed() {
    let worker = TestWorker::start("--slots 1 --ctx-size 2048").await;
    for seed in 0..12 {
        let check = async |choice: Value, expected: Kind| {
            for parallel in [false, true] {
                let mut body = at_random(chat("auto", false), seed);
                body["tool_choice"] = choice.clone();
                if expected == Kind::BySchema {
                    body["parallel_tool_calls"] = json!(parallel);
                }
                let streamed = parallel;
                assert_eq!(ask_chat(&worker, body, streamed).await, expected, "{choice}");
            }
        };
        check(json!("none"), Kind::BySchema).await;
        check(json!("required"), Kind::Call).await;
        check(json!({"type": "function", "function": {"name": "get_wind"}}), Kind::Call).await;
    }
}

#[tokio::test]
async fn several_calls_are_possible_instead_of_an_answer_by_the_schema() {
    let worker = TestWorker::start("--slots 1 --ctx-size 2048").await;
    let (mut n_several, mut n_by_schema) = (0, 0);
    for seed in 0..40 {
        let mut body = at_random(chat("auto", true), seed);
        body["parallel_tool_calls"] = json!(true);
        let answer = worker.ask(CHAT, body).await;
        let choice = &answer["choices"][0];
        let calls = choice["message"]["tool_calls"].as_array().cloned().unwrap_or_default();
        let is_cut = choice["finish_reason"] == "length";
        let whole = calls.len() - usize::from(is_cut && !calls.is_empty());
        let said: Vec<Value> = calls[..whole].iter().map(|call| parsed(&call["function"]["arguments"])).collect();
        n_several += u32::from(said.len() > 1);
        if calls.is_empty() && !is_cut {
            n_by_schema += 1;
            kind(choice["message"]["content"].as_str().unwrap_or_default(), &[]);
        } else {
            said.iter().for_each(|call| assert_eq!(kind("", std::slice::from_ref(call)), Kind::Call));
        }
    }
    assert!(n_several > 0 && n_by_schema > 0, "{n_several} with several calls, {n_by_schema} by the schema");
}

#[tokio::test]
async fn responses_and_messages_support_both_too() {
    let worker = TestWorker::start("--slots 1 --ctx-size 2048").await;
    let (mut of_responses, mut of_messages) = (Vec::new(), Vec::new());
    for seed in 0..40 {
        let body = at_random(
            json!({
                "input": "Is it raining?", "max_output_tokens": 300, "parallel_tool_calls": false, "tool_choice": "auto",
                "tools": [{"type": "function", "name": "get_weather", "parameters": arguments(), "strict": true}],
                "text": {"format": {"type": "json_schema", "name": "weather", "strict": true, "schema": answer_schema()}},
            }),
            seed,
        );
        let answer = worker.ask(RESPONSES, body).await;
        assert_eq!(answer["status"], "completed", "{answer}");
        let items = answer["output"].as_array().expect("items");
        let calls = items.iter().filter(|item| item["type"] == "function_call");
        let calls: Vec<Value> = calls.map(|item| parsed(&item["arguments"])).collect();
        let text = items.iter().find(|item| item["type"] == "message").map(|item| &item["content"][0]["text"]);
        of_responses.push(kind(text.and_then(Value::as_str).unwrap_or_default(), &calls));

        let format = json!({"type": "json_schema", "schema": answer_schema()});
        let mut body = at_random(
            json!({
                "messages": user("Is it raining?"), "max_tokens": 300,
                "tools": [{"name": "get_weather", "input_schema": arguments()}],
                "tool_choice": {"type": "auto", "disable_parallel_tool_use": true},
            }),
            seed,
        );
        if seed % 2 == 0 {
            body["output_config"] = json!({"format": format});
        } else {
            body["output_format"] = format;
        }
        let answer = worker.ask(MESSAGES, body).await;
        let blocks = answer["content"].as_array().expect("blocks");
        let calls: Vec<Value> =
            blocks.iter().filter(|block| block["type"] == "tool_use").map(|block| block["input"].clone()).collect();
        assert_eq!(answer["stop_reason"], if calls.is_empty() { "end_turn" } else { "tool_use" }, "{answer}");
        let text = blocks.iter().find(|block| block["type"] == "text").map(|block| &block["text"]);
        of_messages.push(kind(text.and_then(Value::as_str).unwrap_or_default(), &calls));
    }
    check_both(&of_responses);
    check_both(&of_messages);
}

#[tokio::test]
async fn reasoning_precedes_both_kinds() {
    let path = folder().join("thinks-then-calls.jinja");
    let template = "{%- if tools %}{{ 'Tools:' }}{%- for tool in tools %}{{ tool | tojson }}{%- endfor %}{%- endif %}{%- for m in messages %}{{ '<|im_start|>' + m.role + '\\n' }}{%- if m.reasoning_content %}{{ '<think>\\n' + m.reasoning_content + '\\n</think>\\n\\n' }}{%- endif %}{{ (m.content or '') }}{%- for call in m.tool_calls or [] %}{{ '<tool_call>\\n{\"name\": \"' + call.function.name + '\", \"arguments\": ' + (call.function.arguments | tojson) + '}\\n</tool_call>' }}{%- endfor %}{{ '<|im_end|>\\n' }}{%- endfor %}{%- if add_generation_prompt %}{{ '<|im_start|>assistant\\n<think>\\n' }}{%- endif %}";
    std::fs::write(&path, template).expect("the file can be written");
    let worker = TestWorker::start(&format!("--slots 1 --ctx-size 2048 --chat-template-file {}", path.display())).await;
    let (mut kinds, mut n_with_thoughts) = (Vec::new(), 0);
    for seed in 0..40 {
        let mut body = at_random(chat("auto", false), seed);
        // All tokens are about equally likely, except for the end of the reasoning.
        body["logit_bias"] = json!([["</think>", 250]]);
        body["max_tokens"] = json!(1500);
        let answer = worker.ask(CHAT, body).await;
        if answer["choices"][0]["finish_reason"] == "length" {
            continue;
        }
        let message = &answer["choices"][0]["message"];
        n_with_thoughts +=
            usize::from(message["reasoning_content"].as_str().is_some_and(|thoughts| !thoughts.is_empty()));
        let calls = message["tool_calls"].as_array().cloned().unwrap_or_default();
        let calls: Vec<Value> = calls.iter().map(|call| parsed(&call["function"]["arguments"])).collect();
        kinds.push(kind(message["content"].as_str().unwrap_or_default().trim(), &calls));
    }
    // The end of the reasoning may be the first token.
    assert!(n_with_thoughts > kinds.len() / 2, "{n_with_thoughts} of {}", kinds.len());
    check_both(&kinds);
}
