//! Shifted state over HTTP: the request's fields and the response's counts.
//!
//! Not here: whether shifted state is correct (the engine's tests).

use serde_json::{Value, json};

use crate::harness::TestWorker;

const COMPLETIONS: &str = "/v1/completions";

fn prompt(tokens: impl IntoIterator<Item = u32>) -> Value {
    let max_tokens = 4;
    json!({"prompt": tokens.into_iter().collect::<Vec<_>>(), "max_tokens": max_tokens, "temperature": 0, "ignore_eos": true})
}

#[tokio::test]
async fn moved_state_is_used_on_request_and_counted_in_the_response() {
    let worker = TestWorker::start("--slots 1 --ctx-size 512").await;
    let whole = |n: u32| (0..n).map(|idx| idx * idx % 241);
    let cut = || whole(250).take(20).chain(whole(250).skip(90));
    worker.ask(COMPLETIONS, prompt(whole(250))).await;
    for (field, value, n_expected) in
        [("cache_reuse", json!(true), 159), ("n_cache_reuse", json!(100), 159), ("cache_reuse", json!(false), 0)]
    {
        worker.ask(COMPLETIONS, prompt(whole(250))).await;
        let mut body = prompt(cut());
        body[field] = value;
        let answer = worker.ask(COMPLETIONS, body).await;
        assert_eq!(answer["timings"]["prefix_cache_tokens"]["shifted"], n_expected, "{answer}");
        assert_eq!(answer["timings"]["prefix_cache_tokens"]["resident"], 20, "{answer}");
        assert!(answer.get("truncated").is_none(), "{answer}");
    }
}

#[tokio::test]
async fn moved_state_after_new_text_is_counted_too() {
    let worker = TestWorker::start("--slots 1 --ctx-size 512 --cache-reuse 32").await;
    let text = |n: u32| (0..n).map(|idx| idx * idx % 241);
    let new = |n: u32| (0..n).map(|idx| 242 + idx % 9);
    worker.ask(COMPLETIONS, prompt(text(250))).await;
    // The first part moves to a later position, and the second one to an earlier position.
    let behind = text(20).chain(new(70)).chain(text(250).skip(60).take(80)).chain(new(40)).chain(text(250).skip(215));
    let answer = worker.ask(COMPLETIONS, prompt(behind.chain(new(5)))).await;
    let timings = &answer["timings"];
    assert_eq!(timings["prefix_cache_tokens"]["shifted"], 80 + 35, "{answer}");
    assert_eq!(timings["prefix_cache_tokens"]["resident"], 20, "{answer}");
    assert_eq!((&timings["cache_n"], &timings["prompt_n"]), (&json!(135), &json!(70 + 40 + 5)), "{answer}");
    assert_eq!(worker.metric(r#"prefix_cache_tokens_total{tier="shifted"}"#).await, 115.0);
}

#[tokio::test]
async fn an_answer_that_outgrows_its_context_reports_it() {
    let worker = TestWorker::start("--slots 1 --ctx-size 512 --context-shift").await;
    let mut body = prompt(0..100);
    (body["max_tokens"], body["n_keep"], body["n_discard"]) = (json!(600), json!(-1), json!(50));
    let answer = worker.ask(COMPLETIONS, body.clone()).await;
    assert_eq!((&answer["truncated"], &answer["usage"]["completion_tokens"]), (&json!(true), &json!(600)));
    body["stream"] = json!(true);
    let events = worker.stream(COMPLETIONS, body).await;
    let (last, others) = events.split_last().expect("there are events");
    assert_eq!(last["truncated"], true);
    assert!(others.iter().all(|event| event.get("truncated").is_none()));
    assert!(worker.metric("context_shifts_total").await > 0.0);
}

#[tokio::test]
async fn unsupported_shifts_are_refused_by_name() {
    let worker = TestWorker::start("--slots 1 --ctx-size 512 --cache-type-k q8_0 --flash-attn on").await;
    for (field, value, says) in [
        ("cache_reuse", json!(true), "f32 and f16"),
        ("cache_reuse", json!(-1), "must be 0 to"),
        ("n_keep", json!(-2), "must be -1 to"),
        ("n_discard", json!(-1), "must be 0 to"),
    ] {
        let mut body = prompt(0..50);
        body[field] = value;
        let response = worker.post(COMPLETIONS, &body).send().await.expect("the worker responds");
        assert_eq!(response.status().as_u16(), 400, "{field}");
        let error: Value = response.json().await.expect("an error is JSON");
        assert_eq!(error["error"]["param"], field);
        assert!(error["error"]["message"].as_str().is_some_and(|text| text.contains(says)), "{error}");
    }
}
