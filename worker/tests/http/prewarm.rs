//! Requests that only fill the cache, in every dialect: their answers, what later requests reuse, and their metrics.

use serde_json::{Value, json};
use warmpath_bench::model::Preset;

use crate::harness::{TestWorker, model, user};

const CHAT: &str = "/v1/chat/completions";
const COMPLETION: &str = "/completion";
const COMPLETIONS: &str = "/v1/completions";
const MESSAGES: &str = "/v1/messages";
const RESPONSES: &str = "/v1/responses";

/// Returns a question that no other test of this file asks.
fn question(n: usize) -> String {
    format!("Question {n}: what does a cache keep of all these words, and for whom does it keep them so long?")
}

/// Returns the body with these fields instead.
fn with(body: &Value, fields: Value) -> Value {
    let mut body = body.clone();
    let Value::Object(fields) = fields else { panic!("{fields} is no object") };
    body.as_object_mut().expect("an object").extend(fields);
    body
}

/// Returns the number of prompt tokens and of those that were reused.
async fn follow_up(worker: &TestWorker, chat: &Value) -> (u64, u64) {
    let answer = worker.ask(CHAT, with(chat, json!({"max_tokens": 6, "temperature": 0}))).await;
    let uncached = json!({"max_tokens": 6, "temperature": 0, "cache_prompt": false});
    let uncached = worker.ask(CHAT, with(chat, uncached)).await;
    assert_eq!(answer["choices"][0]["message"], uncached["choices"][0]["message"]);
    let usage = &answer["usage"];
    let n = |value: &Value| value.as_u64().expect("a number");
    (n(&usage["prompt_tokens"]), n(&usage["prompt_tokens_details"]["cached_tokens"]))
}

#[tokio::test]
async fn a_prewarm_of_every_dialect_generates_nothing_and_the_same_prompt_is_reused() {
    let worker = TestWorker::start("--slots 2").await;
    let check = async |n: usize, path: &str, body: Value, expected: &[(&str, Value)]| {
        let prewarmed = worker.ask(path, body.clone()).await;
        for (pointer, value) in expected {
            assert_eq!(prewarmed.pointer(pointer).unwrap_or(&Value::Null), value, "{path} {pointer}: {prewarmed}");
        }
        let chat = json!({"messages": user(&question(n))});
        let (prompt, cached) = follow_up(&worker, &chat).await;
        assert_eq!(cached, prompt - 1, "{path} {body}");
    };
    for (idx, name) in ["max_tokens", "max_completion_tokens", "n_predict"].into_iter().enumerate() {
        let body = json!({"messages": user(&question(idx)), name: 0});
        let choice = "/choices/0/finish_reason";
        let expected = [
            (choice, json!("length")),
            ("/usage/completion_tokens", json!(0)),
            ("/choices/0/message/content", json!("")),
        ];
        check(idx, CHAT, body, &expected).await;
    }
    let body = json!({"max_tokens": 0, "messages": user(&question(3))});
    let expected = [("/content", json!([])), ("/stop_reason", json!("max_tokens")), ("/usage/output_tokens", json!(0))];
    check(3, MESSAGES, body, &expected).await;
    let prewarm = json!({"prewarm": true});
    let body = json!({"input": question(4), "prompt_cache_options": prewarm, "max_output_tokens": 9});
    let expected = [
        ("/output", json!([])),
        ("/status", json!("completed")),
        ("/incomplete_details", Value::Null),
        ("/usage/output_tokens", json!(0)),
    ];
    check(4, RESPONSES, body, &expected).await;

    let (status, error) =
        worker.try_ask(RESPONSES, &json!({"input": "Hi", "prompt_cache_options": {"prewarm": "yes"}})).await;
    assert_eq!((status, &error["error"]["param"]), (400, &json!("prompt_cache_options.prewarm")));
    let answer = worker.ask(RESPONSES, json!({"input": "Hi", "prompt_cache_options": {"prewarm": false}})).await;
    assert!(answer["usage"]["output_tokens"].as_u64() > Some(0));
}

#[tokio::test]
async fn a_prewarm_streams_its_dialect_s_first_and_last_events_without_a_part() {
    let worker = TestWorker::start("--slots 1").await;
    let text = async |path: &str, body: Value| {
        let response = worker.post(path, &with(&body, json!({"stream": true}))).send().await.expect("a response");
        assert_eq!(response.status(), 200, "{path}");
        response.text().await.expect("the stream ends well")
    };
    let names = |text: &str| -> Vec<String> {
        text.lines().filter_map(|line| line.strip_prefix("event: ")).map(str::to_owned).collect()
    };
    let messages = text(MESSAGES, json!({"max_tokens": 0, "messages": user(&question(0))})).await;
    assert_eq!(names(&messages), ["message_start", "ping", "message_delta", "message_stop"], "{messages}");
    assert!(messages.contains(r#""stop_reason":"max_tokens""#), "{messages}");
    let responses = text(RESPONSES, json!({"input": question(1), "prompt_cache_options": {"prewarm": true}})).await;
    assert_eq!(names(&responses), ["response.created", "response.in_progress", "response.completed"], "{responses}");
    for (path, body) in [
        (CHAT, json!({"messages": user(&question(2)), "max_tokens": 0})),
        (COMPLETIONS, json!({"prompt": "Hi", "max_tokens": 0})),
    ] {
        let chat = text(path, body).await;
        assert!(chat.contains(r#""finish_reason":"length""#) && chat.ends_with("data: [DONE]\n\n"), "{chat}");
    }
    let native = text(COMPLETION, json!({"prompt": "Hi", "n_predict": 0})).await;
    assert!(native.contains(r#""stop":true"#) && native.contains(r#""tokens_predicted":0"#), "{native}");
}

#[tokio::test]
async fn prewarms_are_counted_apart_from_reuse_and_times() {
    let worker = TestWorker::start("--slots 1").await;
    let before = worker.metric("prompt_tokens_total").await;
    let body = json!({"messages": user(&question(0)), "max_tokens": 0});
    worker.ask(CHAT, body.clone()).await;
    worker.ask(CHAT, body.clone()).await;
    worker.until("both are counted", async |worker| worker.metric("prewarms_total").await == 2.0).await;
    assert_eq!(worker.metric("prompt_tokens_total").await, before);
    assert_eq!(worker.metric("prefix_cache_ratio_count").await, 0.0);
    worker.ask(CHAT, with(&body, json!({"max_tokens": 1}))).await;
    worker.until("it is counted", async |worker| worker.metric("prompt_tokens_total").await > before).await;
    assert_eq!((worker.metric("prewarms_total").await, worker.metric("prefix_cache_ratio_count").await), (2.0, 1.0));
}

#[tokio::test]
async fn every_kind_of_memory_keeps_the_whole_blocks_of_a_prewarm_for_the_same_and_a_longer_prompt() {
    const BLOCK_TOKENS: u64 = 16;
    for preset in [Preset::Tiny, Preset::TinySwa, Preset::TinyRecurrent, Preset::TinyHybrid] {
        let worker = TestWorker::start_model(&model(preset, 1), "--slots 1").await;
        let prompt = question(0).repeat(3);
        let ask = |prompt: &str, fields: Value| {
            let body = json!({"prompt": prompt, "max_tokens": 6, "temperature": 0, "ignore_eos": true});
            worker.ask(COMPLETIONS, with(&body, fields))
        };
        let prewarmed = ask(&prompt, json!({"max_tokens": 0})).await;
        assert_eq!(prewarmed["usage"]["completion_tokens"], 0, "{prewarmed}");
        let n_prompt = prewarmed["usage"]["prompt_tokens"].as_u64().expect("a number");
        for later in [prompt.clone(), format!("{prompt} And further, what else?")] {
            let answer = ask(&later, json!({})).await;
            let cached = answer["usage"]["prompt_tokens_details"]["cached_tokens"].as_u64().expect("a number");
            let least = (n_prompt - 1) / BLOCK_TOKENS * BLOCK_TOKENS;
            assert!(cached >= least, "{preset:?}: {cached} of {n_prompt}");
            let uncached = ask(&later, json!({"cache_prompt": false})).await;
            assert_eq!(answer["choices"][0]["text"], uncached["choices"][0]["text"], "{preset:?}");
            ask(&prompt, json!({"max_tokens": 0})).await;
        }
    }
}
