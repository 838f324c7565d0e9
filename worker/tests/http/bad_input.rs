//! Client errors: OpenAI's error object with the right status.

use futures::StreamExt;
use reqwest::{Response, StatusCode};
use serde_json::{Value, json};

use crate::harness::{TestWorker, folder, user};

const CHAT: &str = "/v1/chat/completions";
const COMPLETIONS: &str = "/v1/completions";

/// Expected error.
struct Expected {
    status: u16,
    param: Option<&'static str>,
    code: Option<&'static str>,
    /// Part of the message.
    says: &'static str,
}

async fn check_response(response: Response, expected: &Expected, case: &str) {
    assert_eq!(response.status().as_u16(), expected.status, "{case}");
    assert!(response.headers().contains_key("x-request-id"), "{case}");
    let body: Value = response.json().await.expect("an error is JSON");
    let error = &body["error"];
    assert_eq!(error["param"].as_str(), expected.param, "{case}: {error}");
    assert_eq!(error["code"].as_str(), expected.code, "{case}: {error}");
    assert!(error["message"].as_str().is_some_and(|text| text.contains(expected.says)), "{case}: {error}");
    assert!(error["type"].is_string(), "{case}: {error}");
}

fn refused(param: &'static str, says: &'static str) -> Expected {
    Expected { status: 400, param: Some(param), code: None, says }
}

#[tokio::test]
async fn unreadable_bodies_are_refused_with_the_name_of_the_field() {
    let worker = TestWorker::start("--slots 1 --queue-max 3 --ctx-size 512").await;
    let json_error = |says| Expected { status: 400, param: None, code: Some("invalid_json"), says };
    let unsupported = |param| Expected {
        status: 400,
        param: Some(param),
        code: Some("unsupported_parameter"),
        says: "not supported",
    };
    let cases = [
        (CHAT, "", json_error("EOF")),
        (CHAT, "{", json_error("EOF")),
        (CHAT, "{\"messages\": [}", json_error("expected value")),
        (CHAT, "{} {}", json_error("trailing")),
        (CHAT, "\"text\"", Expected { status: 400, param: None, code: None, says: "expected struct" }),
        (CHAT, "{}", refused("messages", "missing")),
        (CHAT, r#"{"messages": null}"#, refused("messages", "missing")),
        (CHAT, r#"{"messages": []}"#, refused("messages", "empty")),
        (CHAT, r#"{"messages": "hello"}"#, refused("messages", "invalid type")),
        (CHAT, r#"{"messages": [{"role": "user", "content": "a"}, 7]}"#, refused("messages[1]", "invalid type")),
        (COMPLETIONS, "{}", refused("prompt", "missing")),
        (COMPLETIONS, r#"{"prompt": "a", "priority": 101}"#, refused("priority", "-100 to 100")),
        (COMPLETIONS, r#"{"prompt": "a", "priority": "high"}"#, refused("priority", "invalid type")),
        (COMPLETIONS, r#"{"prompt": ""}"#, refused("prompt", "empty")),
        (COMPLETIONS, r#"{"prompt": []}"#, refused("prompt", "empty")),
        (COMPLETIONS, r#"{"prompt": {"text": "a"}}"#, refused("prompt", "array of token ids")),
        (COMPLETIONS, r#"{"prompt": [1, null]}"#, refused("prompt", "array of token ids")),
        (COMPLETIONS, r#"{"prompt": [1, 99999999]}"#, refused("prompt", "token 99999999")),
        (COMPLETIONS, r#"{"prompt": ["a", "a", "a", "a", "a"]}"#, refused("prompt", "allows at most 4")),
        (COMPLETIONS, r#"{"prompt": "a", "n": 5}"#, refused("n", "allows at most 4")),
        (COMPLETIONS, r#"{"prompt": "a", "n": 0}"#, refused("n", "must be 1 to 128")),
        (COMPLETIONS, r#"{"prompt": "a", "temperature": "hot"}"#, refused("temperature", "invalid type")),
        (COMPLETIONS, r#"{"prompt": "a", "top_p": 2}"#, refused("top_p", "must be 0 to 1")),
        (COMPLETIONS, r#"{"prompt": "a", "stop": [1]}"#, refused("stop", "array of strings")),
        (COMPLETIONS, r#"{"prompt": "a", "id_slot": -2}"#, refused("id_slot", "-1 or more")),
        (COMPLETIONS, r#"{"prompt": "a", "grammar": "root ::= ("}"#, refused("grammar", "")),
        (
            COMPLETIONS,
            r#"{"prompt": "a", "stream_options": {"include_usage": 1}}"#,
            refused("stream_options.include_usage", "bool"),
        ),
        (COMPLETIONS, r#"{"prompt": "a", "logprobs": 21}"#, refused("logprobs", "must be 0 to 20")),
        (COMPLETIONS, r#"{"prompt": "a", "logprobs": "all"}"#, refused("logprobs", "true, false or a number")),
        (
            CHAT,
            r#"{"messages": [], "add_generation_prompt": true, "continue_final_message": true}"#,
            refused("continue_final_message", "cannot be combined"),
        ),
        (COMPLETIONS, r#"{"prompt": "a", "sse_ping_interval": -2}"#, refused("sse_ping_interval", "-1 to 86400")),
        (
            CHAT,
            r#"{"messages": [{"role": "user", "content": "a"}], "top_logprobs": 1}"#,
            refused("top_logprobs", "needs"),
        ),
        (CHAT, r#"{"messages": [{"role": "user", "content": "a"}], "echo": true}"#, unsupported("echo")),
        (
            CHAT,
            r#"{"messages": [{"role": "user", "content": "a"}], "tool_choice": "required"}"#,
            refused("tool_choice", "no `tools`"),
        ),
        ("/tokenize", r#"{"content": 7}"#, refused("content", "invalid type")),
        ("/detokenize", r#"{"tokens": [99999999]}"#, refused("tokens", "token 99999999")),
        ("/apply-template", "{}", refused("messages", "missing")),
    ];
    for (path, body, expected) in cases {
        check_response(worker.post_bytes(path, body).await, &expected, &format!("{path} {body}")).await;
    }
    assert_eq!(worker.ask(COMPLETIONS, json!({"prompt": "a", "max_tokens": 1})).await["object"], "text_completion");
}

#[tokio::test]
async fn a_prompt_over_the_context_is_refused_with_both_numbers() {
    let worker = TestWorker::start("--slots 1 --ctx-size 256").await;
    let context = worker.get_json("/props").await["default_generation_settings"]["n_ctx"].as_u64().expect("a number");
    let full: Vec<u32> = vec![5; usize::try_from(context).expect("a small number")];
    let response = worker.post(COMPLETIONS, &json!({"prompt": full})).send().await.expect("a response");
    let expected =
        Expected { status: 400, param: None, code: Some("context_length_exceeded"), says: "the prompt of 256 tokens" };
    assert_eq!(context, 256);
    check_response(response, &expected, "as long as the context").await;

    let long = worker.post(CHAT, &json!({"messages": user(&"word ".repeat(500))})).send().await.expect("a response");
    let expected = Expected { says: "context size, which is 256 tokens", ..expected };
    check_response(long, &expected, "a long chat").await;

    let (text, says) = (".".repeat(1 << 20), "the prompt of at least 257 tokens exceeds the available context size");
    let messages = user(&text);
    for (path, body) in [
        (CHAT, json!({"messages": messages})),
        (COMPLETIONS, json!({"prompt": text})),
        ("/completion", json!({"prompt": [1, text]})),
        ("/v1/responses", json!({"input": text})),
    ] {
        let far = worker.post(path, &body).send().await.expect("a response");
        check_response(far, &Expected { says, ..expected }, path).await;
    }
    let body = json!({"model": "tiny", "max_tokens": 9, "messages": messages});
    let far: Value = worker.post("/v1/messages", &body).send().await.expect("a response").json().await.expect("JSON");
    assert_eq!(far["error"]["message"], "prompt is too long: 257 tokens > 255 maximum");
    let marked = format!("\u{feff}{}", json!({"prompt": "a", "max_tokens": 1, "seed": u64::MAX}));
    let raw = worker.post_bytes(COMPLETIONS, marked).await;
    assert_eq!(raw.status(), 200, "a byte order mark is not part of the body");

    let answer = worker.ask(COMPLETIONS, json!({"prompt": &full[1..], "max_tokens": 50, "ignore_eos": true})).await;
    assert_eq!(answer["choices"][0]["finish_reason"], "length");
    assert_eq!(answer["usage"]["prompt_tokens"], 255);
}

#[tokio::test]
async fn unknown_models_and_paths_are_404_and_wrong_methods_405() {
    let worker = TestWorker::start("--slots 1 --alias other").await;
    let unknown =
        Expected { status: 404, param: Some("model"), code: Some("model_not_found"), says: "serves tiny, other" };
    let body = json!({"model": "gpt-9", "messages": user("a")});
    check_response(worker.post(CHAT, &body).send().await.expect("a response"), &unknown, "chat").await;
    check_response(worker.get("/v1/models/gpt-9").await, &unknown, "show").await;
    let nothing = Expected { status: 404, param: None, code: None, says: "/v1/nothing" };
    check_response(worker.get("/v1/nothing").await, &nothing, "path").await;
    let method = Expected { status: 405, param: None, code: None, says: "does not support the method GET" };
    check_response(worker.get(CHAT).await, &method, "method").await;
}

#[tokio::test]
async fn a_body_over_the_limit_is_413() {
    let worker = TestWorker::start("--slots 1 --body-max 1000").await;
    let too_long = Expected { status: 413, param: None, code: Some("request_too_large"), says: "1000 bytes" };
    let body = json!({"prompt": "a", "max_tokens": 1, "user": ""}).to_string();
    let padded = |n: usize| body.replace("\"user\":\"\"", &format!("\"user\":\"{}\"", "x".repeat(n - body.len())));
    check_response(worker.post_bytes(COMPLETIONS, padded(1001)).await, &too_long, "with a length").await;
    let chunks = futures::stream::iter(vec![Ok::<_, std::io::Error>(padded(1001))]);
    let response = worker.post_bytes(COMPLETIONS, reqwest::Body::wrap_stream(chunks)).await;
    check_response(response, &too_long, "without a length").await;
    assert_eq!(worker.post_bytes(COMPLETIONS, padded(1000)).await.status(), StatusCode::OK);
}

#[tokio::test]
async fn the_message_of_a_template_that_refuses_is_returned() {
    let template = folder().join("refuses.jinja");
    std::fs::write(&template, "{{ raise_exception('Only owls may speak here.') }}").expect("the template is written");
    let worker = TestWorker::start(&format!("--slots 1 --chat-template-file {}", template.display())).await;
    let expected = Expected {
        status: 400,
        param: Some("messages"),
        code: Some("invalid_prompt"),
        says: "Only owls may speak here.",
    };
    for path in [CHAT, "/apply-template"] {
        let response = worker.post(path, &json!({"messages": user("Hello")})).send().await.expect("a response");
        check_response(response, &expected, path).await;
    }
}

#[tokio::test]
async fn a_full_queue_is_429_with_retry_after_and_accepts_requests_again_later() {
    let worker = TestWorker::start("--slots 1 --queue-max 1").await;
    let mut running = worker.begin_long().await;
    let short = json!({"prompt": "Wait", "max_tokens": 1});
    let waiting = tokio::spawn(worker.post(COMPLETIONS, &short).send());
    worker.until("one request waits", async |worker| worker.metric("queue_sequences").await == 1.0).await;

    let response = worker.post(COMPLETIONS, &short).send().await.expect("a response");
    assert_eq!(response.headers()["retry-after"], "1");
    let expected = Expected { status: 429, param: None, code: Some("queue_full"), says: "1 requests wait" };
    check_response(response, &expected, "full").await;

    assert!(running.next().await.is_some_and(|chunk| chunk.is_ok()), "the running stream is not disturbed");
    drop(running);
    let waited = waiting.await.expect("no panic").expect("a response");
    assert_eq!(waited.status(), StatusCode::OK, "the waiting request gets the slot");
    assert_eq!(worker.ask(COMPLETIONS, short).await["usage"]["completion_tokens"], 1);
}
