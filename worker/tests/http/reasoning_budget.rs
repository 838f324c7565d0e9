//! The bound of reasoning over HTTP: at the bound the reasoning is closed, and the answer follows.
//!
//! Not here: counting tokens (`warmpath_worker_output`), drafts (the engine's tests), continued streams
//! (`continuations`).

use std::path::Path;

use serde_json::{Value, json};

use crate::continuations::{self, weather};
use crate::harness::{TestWorker, folder, user};

const CHAT: &str = "/v1/chat/completions";
const MESSAGES: &str = "/v1/messages";
const RESPONSES: &str = "/v1/responses";
const NATIVE: &str = "/completion";

/// A template whose prompt opens the reasoning, unless it is turned off.
const THINKS: &str = "{%- if tools %}{{ 'Tools:' }}{%- for tool in tools %}{{ tool | tojson }}{%- endfor %}{%- endif %}{%- for m in messages %}{{ '<|im_start|>' + m.role + '\n' }}{%- if m.reasoning_content %}{{ '<think>\n' + m.reasoning_content + '\n</think>\n\n' }}{%- endif %}{{ (m.content or '') }}{%- for call in m.tool_calls or [] %}{{ '<tool_call>\n{\"name\": \"' + call.function.name + '\", \"arguments\": ' + (call.function.arguments | tojson) + '}\n</tool_call>' }}{%- endfor %}{{ '<|im_end|>\n' }}{%- endfor %}{%- if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{%- if enable_thinking is defined and enable_thinking is false %}{{ '<think>\n\n</think>\n\n' }}{%- else %}{{ '<think>\n' }}{%- endif %}{%- endif %}";

/// The prompt of [`asked`], as the template renders it.
const PROMPT: &str = "<|im_start|>user\nWhy?<|im_end|>\n<|im_start|>assistant\n<think>\n";

/// Starts a worker whose model thinks.
async fn thinker(name: &str, flags: &str) -> TestWorker {
    let path = folder().join(format!("bounded-{name}.jinja"));
    std::fs::write(&path, THINKS).expect("the file can be written");
    TestWorker::start(&format!("--slots 2 --ctx-size 4096 --chat-template-file {} {flags}", path.display())).await
}

fn asked(change: &Value) -> Value {
    let mut body = json!({"messages": user("Why?"), "max_tokens": 24, "temperature": 0, "ignore_eos": true});
    body.as_object_mut().expect("an object").extend(change.as_object().expect("an object").clone());
    body
}

/// Returns the reasoning, the content and the number of reasoning tokens of a chat's answer.
fn parts(answer: &Value) -> (&str, &str, u64) {
    let message = &answer["choices"][0]["message"];
    let text = |name: &str| message[name].as_str().unwrap_or_default();
    let n_reasoning = answer["usage"]["completion_tokens_details"]["reasoning_tokens"].as_u64();
    (text("reasoning_content"), text("content"), n_reasoning.unwrap_or_default())
}

#[tokio::test]
async fn the_answer_follows_at_the_bound_and_has_the_state_of_its_tokens() {
    let worker = thinker("state", "").await;
    let unbounded = worker
        .ask(
            NATIVE,
            json!({"prompt": PROMPT, "n_predict": 24, "temperature": 0, "ignore_eos": true, "return_tokens": true}),
        )
        .await;
    let free = unbounded["tokens"].as_array().expect("tokens");
    let closed = worker.ask("/tokenize", json!({"content": "</think>"})).await["tokens"].clone();
    let [mark] = closed.as_array().expect("tokens").as_slice() else { panic!("{closed}") };
    assert!(!free.contains(mark), "the reasoning goes on: {unbounded}");
    assert_eq!(parts(&worker.ask(CHAT, asked(&json!({}))).await).1, "", "without a bound, there is no answer");
    let prompt = worker.ask("/tokenize", json!({"content": PROMPT, "add_special": true, "parse_special": true})).await;
    for n in [0_usize, 1, 4] {
        let bound = json!({"reasoning_budget_tokens": n});
        let mut body = asked(&bound);
        body["prompt"] = json!(PROMPT);
        body["return_tokens"] = json!(true);
        let native = worker.ask(NATIVE, body).await;
        let tokens = native["tokens"].as_array().expect("tokens");
        assert_eq!(tokens[..n], free[..n]);
        assert_eq!((&tokens[n], tokens.len()), (mark, 24), "{native}");
        // The rest is what the model says behind these tokens.
        let before = prompt["tokens"].as_array().expect("tokens").iter().chain(&tokens[..=n]).collect::<Vec<_>>();
        let n_rest = 23 - n;
        let rest = worker.ask(NATIVE, json!({"prompt": before, "n_predict": n_rest, "temperature": 0, "ignore_eos": true, "return_tokens": true, "cache_prompt": false})).await;
        assert_eq!(rest["tokens"].as_array().expect("tokens"), &tokens[n + 1..]);
        let answer = worker.ask(CHAT, asked(&bound)).await;
        let (reasoning, content, n_reasoning) = parts(&answer);
        assert!(reasoning.is_empty() == (n == 0) && !content.is_empty(), "{answer}");
        assert!(n_reasoning <= n as u64, "{answer}");
        assert_eq!(
            parts(&worker.ask(CHAT, asked(&json!({"thinking_budget_tokens": n}))).await),
            (reasoning, content, n_reasoning)
        );
    }
    let ample = worker.ask(CHAT, asked(&json!({"reasoning_budget_tokens": 100}))).await;
    let unbounded = worker.ask(CHAT, asked(&json!({"reasoning_budget_tokens": -1}))).await;
    assert_eq!(parts(&ample), parts(&unbounded));
}

#[tokio::test]
async fn every_dialect_s_answers_and_streams_have_the_bound() {
    let worker = thinker("dialects", "").await;
    for n in [0, 1, 4] {
        let chat = worker.ask(CHAT, asked(&json!({"reasoning_budget_tokens": n, "n": 2}))).await;
        let (reasoning, content, _) = parts(&chat);
        assert_eq!(chat["choices"][0]["message"], chat["choices"][1]["message"]);
        let streamed = worker.stream(CHAT, asked(&json!({"reasoning_budget_tokens": n, "stream": true}))).await;
        let added = |name: &str| {
            streamed.iter().filter_map(|event| event["choices"][0]["delta"][name].as_str()).collect::<String>()
        };
        assert_eq!((added("reasoning_content").as_str(), added("content").as_str()), (reasoning, content));

        let thinking = json!({"type": "enabled", "budget_tokens": n});
        let answer = worker.ask(MESSAGES, asked(&json!({"thinking": thinking}))).await;
        let blocks = answer["content"].as_array().expect("blocks");
        let text = |name: &str| blocks.iter().find_map(|block| block[name].as_str()).unwrap_or_default();
        assert_eq!((text("thinking"), text("text")), (reasoning, content), "{answer}");

        let body = json!({"input": "Why?", "max_output_tokens": 24, "temperature": 0, "ignore_eos": true, "reasoning_budget_tokens": n});
        let answer = worker.ask(RESPONSES, body).await;
        let items = answer["output"].as_array().expect("items");
        let text = |kind: &str| {
            let item = items.iter().find(|item| item["type"] == kind);
            item.and_then(|item| item["content"][0]["text"].as_str()).unwrap_or_default()
        };
        assert_eq!((text("reasoning"), text("message")), (reasoning, content), "{answer}");
    }
    let disabled = json!({"thinking": {"type": "disabled"}, "reasoning_budget_tokens": 4});
    let answer = worker.ask(MESSAGES, asked(&disabled)).await;
    assert_eq!(answer["content"].as_array().map(Vec::len), Some(1), "{answer}");
    let (status, error) =
        worker.try_ask(MESSAGES, &asked(&json!({"thinking": {"type": "enabled", "budget_tokens": -2}}))).await;
    assert!(
        status == 400
            && error["error"]["message"].as_str().is_some_and(|said| said.contains("`thinking.budget_tokens`")),
        "{error}"
    );
}

#[tokio::test]
async fn a_worker_s_default_bound_holds_for_chats_that_set_none() {
    let worker = thinker("flags", "--reasoning-budget 2 --reasoning-budget-message Enough.").await;
    let chat = async |change: Value| {
        let answer = worker.ask(CHAT, asked(&change)).await;
        let (reasoning, content, n_reasoning) = parts(&answer);
        (reasoning.to_owned(), content.to_owned(), n_reasoning)
    };
    let default = chat(json!({})).await;
    assert!(default.0.ends_with("Enough.") && !default.1.is_empty(), "{default:?}");
    assert_eq!(chat(json!({"reasoning_budget_tokens": -1})).await, default);
    assert_eq!(chat(json!({"reasoning_budget_tokens": 0})).await.0, "Enough.");
    let own = chat(json!({"reasoning_budget_tokens": 0, "reasoning_budget_message": "Now."})).await;
    assert_eq!(own.0, "Now.");
    // A raw prompt may be about these marks.
    let raw = json!({"prompt": PROMPT, "n_predict": 24, "temperature": 0, "ignore_eos": true});
    let raw = worker.ask(NATIVE, raw).await;
    assert!(!raw["content"].as_str().expect("a text").contains("</think>"), "{raw}");
}

#[tokio::test]
async fn a_raw_prompt_has_the_template_s_marks_or_its_own() {
    let worker = thinker("raw", "").await;
    let raw = async |change: Value| {
        let mut body = json!({"prompt": "Why? <t>", "n_predict": 12, "temperature": 0, "ignore_eos": true, "reasoning_budget_tokens": 1});
        body.as_object_mut().expect("an object").extend(change.as_object().expect("an object").clone());
        worker.ask(NATIVE, body).await["content"].as_str().expect("a text").to_owned()
    };
    let unbounded = raw(json!({"reasoning_budget_tokens": -1})).await;
    assert_eq!(raw(json!({})).await, unbounded, "the prompt opens no reasoning");
    for end in [json!({"reasoning_budget_end_tag": "</t>"}), json!({"reasoning_budget_end_tags": ["</t>", "<x>"]})] {
        let mut tags = end;
        tags["reasoning_budget_start_tag"] = json!("<t>");
        assert!(raw(tags).await.contains("</t>"));
    }
    assert!(raw(json!({"prompt": "Why? <think>"})).await.contains("</think>"));
}

#[tokio::test]
async fn calls_and_schemas_follow_at_the_bound() {
    let worker = thinker("calls", "").await;
    let random = json!({"reasoning_budget_tokens": 3, "reasoning_budget_message": "Enough.", "max_tokens": 400,
        "ignore_eos": false});
    for (choice, seed) in ["required", "auto"].into_iter().flat_map(|choice| (0..6).map(move |seed| (choice, seed))) {
        let mut body = asked(&random);
        body["tools"] = json!([weather()]);
        body["tool_choice"] = json!(choice);
        (body["temperature"], body["seed"]) = (json!(1), json!(seed));
        let answer = worker.ask(CHAT, body).await;
        let message = &answer["choices"][0]["message"];
        let reasoning = message["reasoning_content"].as_str().unwrap_or_default();
        assert!(reasoning.ends_with("Enough."), "{answer}");
        if choice == "required" {
            let arguments = message["tool_calls"][0]["function"]["arguments"].as_str().expect("a call");
            let arguments: Value = serde_json::from_str(arguments).unwrap_or_else(|_| panic!("{answer}"));
            assert!(["Berlin", "Oslo"].contains(&arguments["city"].as_str().expect("a city")), "{answer}");
        }
    }
    let schema = json!({"type": "object", "properties": {"city": {"enum": ["Berlin", "Oslo"]}}, "required": ["city"], "additionalProperties": false});
    for (name, reasoning_format) in [("apart", "auto"), ("inline", "none")] {
        let mut body = asked(&random);
        body["response_format"] = json!({"type": "json_schema", "json_schema": {"name": "x", "schema": schema}});
        body["reasoning_format"] = json!(reasoning_format);
        let answer = worker.ask(CHAT, body).await;
        let (reasoning, content, _) = parts(&answer);
        assert_eq!(reasoning.ends_with("Enough."), name == "apart", "{answer}");
        assert!(serde_json::from_str::<Value>(content).is_ok_and(|object| object["city"].is_string()), "{answer}");
    }
}

#[tokio::test]
async fn bounded_streams_continue_from_every_cut() {
    let worker = thinker("continued", "").await;
    let check = async |path: &str, mut body: Value| {
        body["reasoning_budget_tokens"] = json!(3);
        body["reasoning_budget_message"] = json!("Enough.");
        continuations::check((&worker, &worker), path, body).await
    };
    let drawn = json!({"messages": user("Why?"), "max_tokens": 20, "temperature": 1, "seed": 5, "n": 2,
        "logprobs": true, "repeat_penalty": 1.4, "ignore_eos": true});
    let streamed = check(CHAT, drawn).await;
    assert!(streamed.contains("ough") && streamed.contains("\"content\""), "{streamed}");
    check(MESSAGES, asked(&json!({}))).await;
    let random = json!({"input": "Why?", "max_output_tokens": 20, "temperature": 1, "seed": 5, "ignore_eos": true});
    check(RESPONSES, random).await;
    let raw = json!({"prompt": PROMPT, "n_predict": 20, "temperature": 1, "seed": 5, "return_tokens": true});
    check(NATIVE, raw).await;
    let called = json!({"messages": user("Rain?"), "tools": [weather()], "tool_choice": "required", "max_tokens": 90,
        "temperature": 1, "seed": 6});
    assert!(check(CHAT, called).await.contains("\"tool_calls\""));
}

#[tokio::test]
async fn forced_tokens_have_their_probabilities() {
    let worker = thinker("probabilities", "").await;
    let bound =
        json!({"reasoning_budget_tokens": 1, "logprobs": true, "top_logprobs": 1, "max_tokens": 4, "stop": ["never"]});
    let listed = worker.ask(CHAT, asked(&bound)).await["choices"][0]["logprobs"]["content"].clone();
    let listed = listed.as_array().expect("tokens");
    assert_eq!((listed.len(), &listed[1]["token"]), (4, &json!("</think>")), "{listed:?}");
    assert!(listed[1]["logprob"].as_f64() < listed[1]["top_logprobs"][0]["logprob"].as_f64(), "{listed:?}");
    let drawn = json!({"prompt": PROMPT, "n_probs": 1, "post_sampling_probs": true, "reasoning_budget_tokens": 1, "n_predict": 4});
    let drawn = worker.ask(NATIVE, asked(&drawn)).await;
    assert_eq!(drawn["completion_probabilities"][1]["prob"], 1.0, "{drawn}");
}

#[tokio::test]
async fn a_model_without_reasoning_ignores_the_bound_and_an_unknown_end_is_named() {
    let plain = TestWorker::start("--slots 1 --ctx-size 512 --reasoning-budget 0").await;
    let answer = plain.ask(CHAT, asked(&json!({}))).await;
    assert_eq!(plain.ask(CHAT, asked(&json!({"reasoning_budget_tokens": 0}))).await["choices"], answer["choices"]);
    let template = Path::new(env!("CARGO_MANIFEST_DIR")).join("../target/fixtures/templates/muse-glimmer.jinja");
    assert!(template.exists(), "run `make fixtures` to download the templates");
    let flags = format!("--slots 1 --ctx-size 2048 --reasoning-budget 0 --chat-template-file {}", template.display());
    let unknown = TestWorker::start(&flags).await;
    for (path, body, field) in [
        (CHAT, json!({"reasoning_budget_tokens": 4}), "reasoning_budget_tokens"),
        (CHAT, json!({"thinking_budget_tokens": 4}), "thinking_budget_tokens"),
        (MESSAGES, json!({"thinking": {"type": "enabled", "budget_tokens": 4}}), "thinking.budget_tokens"),
    ] {
        let (status, error) = unknown.try_ask(path, &asked(&body)).await;
        let said = error["error"]["message"].as_str().unwrap_or_default().to_owned();
        assert!(status == 400 && said.contains(&format!("`{field}`")) && said.contains("not known"), "{error}");
    }
    assert_eq!(unknown.try_ask(CHAT, &asked(&json!({}))).await.0, 200, "the default has no effect");
}

/// Templates with different marks of reasoning, each with the mark that closes it.
const FORMS: [(&str, &str); 9] = [
    ("Apriel-1.6-15b-Thinker-fixed", "[BEGIN FINAL RESPONSE]"),
    ("ByteDance-Seed-OSS", "</seed:think>"),
    ("Kimi-K3", "<|close|>think<|sep|>"),
    ("Qwen3.5-4B", "\n</think>"),
    ("deepseek-ai-DeepSeek-V3.1", "</think>"),
    ("google-gemma-4-31B-it", "<channel|>"),
    ("mistralai-Ministral-3-14B-Reasoning-2512", "[/THINK]"),
    ("openai-gpt-oss-120b", "<|end|>"),
    ("tencent-Hy3", "</think:opensource>"),
];

#[tokio::test]
async fn reasoning_is_closed_with_the_mark_of_each_template() {
    for (name, mark) in FORMS {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../target/fixtures/templates");
        let path = folder.join(format!("{name}.jinja"));
        assert!(path.exists(), "run `make fixtures` to download the templates");
        let worker =
            TestWorker::start(&format!("--slots 1 --ctx-size 8192 --chat-template-file {}", path.display())).await;
        // The prompt of each template opens the reasoning of a message that is continued.
        let begun = json!({"role": "assistant", "content": "", "reasoning_content": "Hm"});
        let messages = json!([{"role": "user", "content": "Why?"}, begun]);
        let tokens = async |bound: i32| {
            let wish =
                json!({"messages": messages, "max_tokens": 60, "logprobs": true, "reasoning_budget_tokens": bound});
            let answer = worker.ask(CHAT, asked(&wish)).await;
            let listed = answer["choices"][0]["logprobs"]["content"].as_array().expect("tokens").clone();
            listed.iter().map(|token| token["token"].as_str().expect("a text").to_owned()).collect::<Vec<_>>()
        };
        let (unbounded, bounded) = (tokens(-1).await, tokens(2).await);
        assert!(!unbounded.concat().contains(mark), "{name}: {unbounded:?}");
        assert_eq!(bounded[..2], unbounded[..2], "{name}");
        let behind = bounded[2..].concat();
        assert!(behind.starts_with(mark) && behind.len() > mark.len(), "{name}: {bounded:?}");
        worker.stop().await.expect("it stops");
    }
}
