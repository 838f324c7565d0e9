//! Whole responses that another worker has begun: from every cut, the continuation is the uninterrupted response.
//!
//! Not here: streams (`continuations`), the router that keeps the journal (the router's tests and `warmpath-tests`).

use std::collections::BTreeSet;
use std::time::Duration;

use futures::StreamExt;
use serde_json::{Value, json};

use crate::continuations::{alike, journaled, two, weather};
use crate::harness::{TestWorker, user};

const CHAT: &str = "/v1/chat/completions";
const COMPLETIONS: &str = "/v1/completions";
const MESSAGES: &str = "/v1/messages";
const RESPONSES: &str = "/v1/responses";
const NATIVE: &str = "/completion";

/// A response with its journal.
struct Whole {
    cached_tokens: String,
    lines: Vec<String>,
    status: u16,
    object: Value,
}

/// Splits a response into the lines of its journal, its status and its object.
fn read(text: &str) -> Whole {
    let (journal, rest) = text.split_once(":wp= ").expect("a status");
    let (status, object) = rest.split_once('\n').expect("a body");
    let lines = journal.split_inclusive('\n').map(|line| line.strip_prefix(":wp ").expect("a line").to_owned());
    let status = status.parse().expect("a number");
    let object = serde_json::from_str(object).expect("an object");
    Whole { cached_tokens: String::new(), lines: lines.collect(), status, object }
}

async fn whole(worker: &TestWorker, path: &str, body: &Value, past: Option<(&str, &str)>) -> Whole {
    let request = journaled(worker, (path, body), past);
    let response = request.send().await.expect("the worker responds");
    assert_eq!(response.status(), 200);
    assert_eq!(response.headers()["x-warmpath-journal"], "exact");
    let cached_tokens = response.headers()["x-warmpath-cached-tokens"].to_str().expect("a number").to_owned();
    Whole { cached_tokens, ..read(&response.text().await.expect("it ends in order")) }
}

/// Returns an object without the fields that differ between any two responses.
fn settled(mut object: Value) -> Value {
    let fields = object.as_object_mut().expect("an object");
    for name in ["timings", "id_slot", "completed_at"] {
        fields.remove(name);
    }
    object
}

/// Checks every cut of a response.
async fn check((worker, elsewhere): (&TestWorker, &TestWorker), path: &str, mut body: Value) -> Value {
    let has_tools = body.get("tools").is_some();
    if !has_tools {
        body["ignore_eos"] = json!(true);
    }
    let uncut = whole(worker, path, &body, None).await;
    assert!(uncut.lines.len() > 1 && uncut.status == 200, "{path}: {:?}", uncut.lines);
    for cut in 1..=uncut.lines.len() {
        let (had, rest) = uncut.lines.split_at(cut);
        let continued = whole(elsewhere, path, &body, Some((&had.concat(), &uncut.cached_tokens))).await;
        assert_eq!(continued.status, 200);
        // Lines of several choices come in any order.
        let lines = |lines: &[String]| lines.iter().map(|line| without_probabilities(line)).collect::<BTreeSet<_>>();
        assert_eq!(lines(&continued.lines), lines(rest), "{path}: cut {cut}");
        let (continued, uncut) = (settled(continued.object), settled(uncut.object.clone()));
        assert!(alike(&continued, &uncut), "{path}: cut {cut}: {continued} {uncut}");
    }
    // A client without a router gets the same, except for the ids, which depend on the router's identity.
    if !has_tools {
        let plain = worker.ask(path, body).await;
        for field in ["choices", "content"] {
            assert!(alike(&plain[field], &uncut.object[field]), "{path}: {plain}");
        }
    }
    uncut.object
}

/// Returns a line with only its tokens.
fn without_probabilities(line: &str) -> String {
    line.split(',').map(|token| token.split(':').next().unwrap_or_default().trim_end()).collect::<Vec<_>>().join(",")
}

#[tokio::test]
async fn a_whole_response_continues_the_same_from_every_line() {
    let (worker, elsewhere) = two().await;
    let both = (&worker, &elsewhere);
    let asked = json!({"messages": user("Go on"), "max_tokens": 50, "temperature": 0});
    check(both, CHAT, asked).await;
    let several = json!({"messages": user("Go on"), "max_tokens": 36, "temperature": 1, "n": 2, "seed": 3,
        "logprobs": true, "top_logprobs": 2});
    check(both, CHAT, several).await;
    let penalties = json!({"prompt": "It was", "max_tokens": 50, "temperature": 1.2, "seed": 5, "repeat_penalty": 1.4,
        "dry_multiplier": 0.8, "logprobs": 2});
    check(both, COMPLETIONS, penalties).await;
    let native = json!({"prompt": "It was", "n_predict": 50, "temperature": 1.2, "seed": 5, "return_tokens": true,
        "n_probs": 2});
    check(both, NATIVE, native).await;
    let asked = json!({"messages": user("Go on"), "max_tokens": 50, "temperature": 0});
    check(both, MESSAGES, asked).await;
    let asked = json!({"input": "Go on", "max_output_tokens": 50, "temperature": 0});
    check(both, RESPONSES, asked).await;
    let call = json!({"messages": user("Rain?"), "tools": [weather()], "tool_choice": "required", "max_tokens": 90,
        "temperature": 1, "seed": 6});
    let called = check(both, CHAT, call).await;
    assert_eq!(called["choices"][0]["message"]["tool_calls"][0]["function"]["name"], "get_weather");
}

#[tokio::test]
async fn a_failed_whole_response_has_its_error_after_its_lines() {
    let worker = TestWorker::start("--slots 2 --ctx-size 4096").await;
    for (path, status, kind) in [(CHAT, 503, "unavailable_error"), (MESSAGES, 529, "overloaded_error")] {
        let worker = TestWorker::start("--slots 2 --ctx-size 4096 --drain-timeout 0.1").await;
        let body = json!({"messages": user("Go on"), "max_tokens": 3000, "ignore_eos": true, "temperature": 0});
        let request = journaled(&worker, (path, &body), None);
        let response = request.send().await.expect("the worker responds");
        let mut pieces = response.bytes_stream();
        let mut text = String::new();
        while !text.contains('\n') {
            text.push_str(&String::from_utf8_lossy(&pieces.next().await.expect("more").expect("it is whole")));
        }
        worker.ask_to_stop();
        while let Some(piece) = pieces.next().await {
            text.push_str(&String::from_utf8_lossy(&piece.expect("it ends in order")));
        }
        let failed = read(&text);
        assert_eq!((failed.status, failed.object["error"]["type"].as_str()), (status, Some(kind)), "{text}");
    }
    // An error before the response begins has its status in the HTTP head, as without a journal.
    let request = journaled(&worker, (CHAT, &json!({"messages": 1})), None);
    let refused = request.send().await.expect("the worker responds");
    assert_eq!(refused.status(), 400);
    assert!(!refused.headers().contains_key("x-warmpath-journal"));
}

#[tokio::test]
async fn the_response_ends_when_the_router_disconnects() {
    let worker = TestWorker::start("--slots 1 --ctx-size 4096").await;
    let body = json!({"messages": user("Go on"), "max_tokens": 3900, "ignore_eos": true, "temperature": 0});
    let request = journaled(&worker, (CHAT, &body), None);
    drop(request.send().await.expect("the worker responds"));
    // The only slot is free again before the response would have ended.
    let next = json!({"messages": user("Hello"), "max_tokens": 2, "temperature": 0});
    let next = tokio::time::timeout(Duration::from_secs(300), worker.ask(CHAT, next)).await.expect("it is answered");
    assert_eq!(next["usage"]["completion_tokens"], 2);
}
