//! Anthropic's messages and OpenAI's responses through the router: routed by their chat, passed on unchanged, errors in
//! the client's dialect.

use crate::support::worker::{Behaviour, FakeWorker};
use crate::support::{TestRouter, error_of, eventually, fleet_of_one, fleet_of_two, header, long_text};
use serde_json::{Value, json};

const MESSAGES: &str = "/v1/messages";
const RESPONSES: &str = "/v1/responses";

/// Returns a request for a message with the same chat as `crate::support::chat_body`.
fn message(text: &str) -> Value {
    json!({"max_tokens": 5, "messages": [{"role": "user", "content": [{"type": "text", "text": text}]}], "unknown": {"a": 1}})
}

fn response(text: &str) -> Value {
    json!({"input": [{"role": "user", "content": [{"type": "input_text", "text": text}]}]})
}

/// Asserts that a response is Anthropic's error object; returns its type and message.
async fn anthropic_error(response: reqwest::Response, status: u16) -> (String, String) {
    let (actual, id) = (response.status().as_u16(), header(&response, "x-request-id"));
    let body: Value = response.json().await.expect("an error is JSON");
    assert_eq!(actual, status, "{body}");
    assert_eq!((&body["type"], &body["request_id"]), (&json!("error"), &json!(id)), "{body}");
    let text = |name: &str| body["error"][name].as_str().expect("a text").to_owned();
    (text("type"), text("message"))
}

#[tokio::test(flavor = "multi_thread")]
async fn requests_of_every_dialect_go_to_the_worker_that_holds_the_same_chat() {
    let (workers, router) = fleet_of_two().await;
    let text = long_text("blocks");
    workers[1].hold(&text, None, 3);
    let predicted = async || header(&router.chat(&text).await, "x-warmpath-predicted-cached-tokens");
    // The script always reuses 32 tokens: two blocks.
    eventually("the router knows the blocks and the reuse", || async { predicted().await == "32" }).await;
    for (path, body) in [(MESSAGES, message(&text)), (RESPONSES, response(&text)), (RESPONSES, json!({"input": text}))]
    {
        let answer = router.post(path, body.to_string()).await;
        assert_eq!(answer.status(), 200, "{path}");
        assert_eq!(header(&answer, "x-warmpath-worker"), "0000000000000002", "{path}");
        assert_eq!(header(&answer, "x-warmpath-predicted-cached-tokens"), "32", "{path}");
        let seen = workers[1].seen().pop().expect("the worker was asked");
        assert_eq!(seen.body, body.to_string(), "workers get the client's body unchanged");
    }
    let dry_run = format!("http://{}/internal/v1/route?path={MESSAGES}", router.server.admin_address);
    let plan = router.client.post(dry_run).body(message(&text).to_string()).send().await.expect("an answer");
    let plan: Value = plan.json().await.expect("JSON");
    assert_eq!(plan["workers"][1]["claimed_blocks"], plan["prompt"]["blocks"], "{plan}");
    let salted = json!({"max_tokens": 5, "messages": message(&text)["messages"], "cache_salt": "other"});
    let answer = router.post(MESSAGES, salted.to_string()).await;
    assert_eq!(header(&answer, "x-warmpath-predicted-cached-tokens"), "0");
}

#[tokio::test(flavor = "multi_thread")]
async fn small_endpoints_of_the_dialects_reach_a_worker() {
    let (_worker, router) = fleet_of_one().await;
    let answer = router.post("/v1/messages/count_tokens", message("a").to_string()).await;
    assert_eq!(answer.json::<Value>().await.expect("JSON"), json!({"answer": 42}));
    let stored = router.client.get(router.url("/v1/responses/resp_1")).send().await.expect("an answer");
    assert!(error_of(stored, 404).await["message"].as_str().is_some_and(|text| text.contains("not stored here")));
}

#[tokio::test(flavor = "multi_thread")]
async fn bad_bodies_are_refused_in_the_dialect_s_words_and_no_worker_sees_them() {
    let (worker, router) = fleet_of_one().await;
    let file = json!({"max_tokens": 1, "messages": [{"role": "user", "content": [{"type": "document"}]}]});
    let system = json!({"max_tokens": 1, "system": 5, "messages": []});
    for (body, says) in [
        ("{".to_owned(), "not valid JSON"),
        ("{}".to_owned(), "`max_tokens` is missing"),
        (file.to_string(), "`messages[0].content[0].type`"),
        (system.to_string(), "`system` must be"),
    ] {
        let (kind, message) = anthropic_error(router.post(MESSAGES, body).await, 400).await;
        assert_eq!(kind, "invalid_request_error");
        assert!(message.contains(says), "{message}");
    }
    for (body, param) in [
        (json!({}), "input"),
        (json!({"input": "a", "conversation": "conv_1"}), "conversation"),
        (json!({"input": [{"role": "user", "content": [{"type": "input_file"}]}]}), "input[0].content[0].type"),
        (json!({"input": "a", "cache_salt": 5}), "cache_salt"),
    ] {
        let error = error_of(router.post(RESPONSES, body.to_string()).await, 400).await;
        assert_eq!(error["param"], param, "{error}");
    }
    assert!(worker.seen().is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn the_router_s_own_errors_are_in_the_dialect_s_words() {
    let mut worker = FakeWorker::start(1);
    let router = TestRouter::ready(&[&worker], &["--requests-max", "1", "--body-max", "1000"]).await;
    let mut unknown = message("a");
    unknown["model"] = json!("claude");
    let (kind, said) = anthropic_error(router.post(MESSAGES, unknown.to_string()).await, 404).await;
    assert_eq!((kind.as_str(), said.contains("`claude`")), ("not_found_error", true), "{said}");
    let (kind, _) = anthropic_error(router.post("/v1/messages/batches", "{}").await, 404).await;
    assert_eq!(kind, "not_found_error");
    let (kind, _) = anthropic_error(router.post(MESSAGES, message(&"a".repeat(1000)).to_string()).await, 413).await;
    assert_eq!(kind, "request_too_large");

    worker.with(|script| script.behaviour = Behaviour::Hang);
    let held = router.chat_stream("hello").await;
    let full = router.post(MESSAGES, message("a").to_string()).await;
    assert_eq!(header(&full, "retry-after"), "1");
    assert_eq!(anthropic_error(full, 429).await.0, "rate_limit_error");
    let full = error_of(router.post(RESPONSES, response("a").to_string()).await, 429).await;
    assert_eq!(full["code"], "queue_full");
    drop(held);

    worker.kill();
    eventually("the worker is down", || async { router.get("/readyz").await.0 == 503 }).await;
    let down = router.post(MESSAGES, message("a").to_string()).await;
    assert!(!header(&down, "retry-after").is_empty());
    assert_eq!(anthropic_error(down, 529).await.0, "overloaded_error", "Anthropic's status for 503");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_that_is_overloaded_in_anthropic_s_words_is_replaced_by_another() {
    let (workers, router) = fleet_of_two().await;
    workers[0].with(|script| script.behaviour = Behaviour::Refuse(529));
    for _ in 0..4 {
        let answer = router.post(MESSAGES, message("a").to_string()).await;
        assert_eq!(header(&answer, "x-warmpath-worker"), "0000000000000002");
    }
    assert!(!workers[0].seen().is_empty(), "it was asked first at least once");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stream_that_breaks_off_ends_with_the_dialect_s_error_event() {
    let (worker, router) = fleet_of_one().await;
    worker.with(|script| script.behaviour = Behaviour::BreakMidway);
    let last_event = async |path: &str, mut body: Value| {
        body["stream"] = json!(true);
        let text = router.post(path, body.to_string()).await.text().await.expect("the stream ends well");
        let event = text.trim_end().rsplit("\n\n").next().expect("there is one").to_owned();
        let (name, data) = event.split_once('\n').expect("two lines");
        assert_eq!(name, "event: error");
        serde_json::from_str::<Value>(data.strip_prefix("data: ").expect("data")).expect("JSON")
    };
    let said = "the worker 0000000000000001 ended its response early";
    let error = json!({"type": "api_error", "message": said});
    assert_eq!(last_event(MESSAGES, message("a")).await, json!({"type": "error", "error": error}));
    // Two events came before.
    let error = json!({"type": "error", "code": "worker_failed", "message": said, "param": null, "sequence_number": 2});
    assert_eq!(last_event(RESPONSES, response("a")).await, error);
}
