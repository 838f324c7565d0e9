//! Traces: one for each request, from the client's through the router to the worker's prompt and response.
//!
//! Not here: sampling, and the header's format (`warmpath-shell`).

use std::sync::{Arc, Mutex};

use crate::support::fake_server::serve_apart;
use crate::support::real_worker::RealWorker;
use crate::support::worker::{Behaviour, FakeWorker};
use crate::support::{TestRouter, eventually};
use axum::extract::State;
use axum::routing::post;
use axum::{Json, Router};
use serde_json::{Value, json};
use tokio::runtime::Runtime;

/// A collector that keeps the received spans.
struct Collector {
    url: String,
    messages: Arc<Mutex<Vec<Value>>>,
    runtime: Option<Runtime>,
}

impl Collector {
    fn start() -> Self {
        let messages: Arc<Mutex<Vec<Value>>> = Arc::default();
        let take = async |State(messages): State<Arc<Mutex<Vec<Value>>>>, Json(message): Json<Value>| {
            messages.lock().expect("no test panics here").push(message);
            Json(json!({}))
        };
        let routes = Router::new().route("/v1/traces", post(take)).with_state(Arc::clone(&messages));
        let (address, runtime) = serve_apart("127.0.0.1:0".parse().expect("an address"), routes);
        Self { url: format!("http://{address}"), messages, runtime: Some(runtime) }
    }

    /// Returns every span, each with its service.
    fn spans(&self) -> Vec<Value> {
        let messages = self.messages.lock().expect("no test panics here");
        let mut spans = Vec::new();
        for resource in messages.iter().flat_map(|message| message["resourceSpans"].as_array().expect("a list")) {
            let service = &resource["resource"]["attributes"][0]["value"]["stringValue"];
            for span in resource["scopeSpans"][0]["spans"].as_array().expect("a list") {
                let mut span = span.clone();
                span["service"] = service.clone();
                spans.push(span);
            }
        }
        spans
    }

    async fn span(&self, name: &str) -> Value {
        let find = || self.spans().into_iter().find(|span| span["name"] == name);
        eventually(name, || async { find().is_some() }).await;
        find().expect("it is there")
    }
}

impl Drop for Collector {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

fn ns(span: &Value, which: &str) -> u128 {
    span[which].as_str().expect("a number as text").parse().expect("a number")
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_is_one_connected_trace_without_any_text() {
    let collector = Collector::start();
    let flags = ["--otlp-endpoint", collector.url.as_str()];
    // The worker records what its router records, and nothing else.
    let worker = RealWorker::start(&[&flags[..], &["--trace-ratio", "0"]].concat()).await;
    let router = TestRouter::ready_for(&[worker.url("http")], &flags).await;
    let (trace, parent) = ("4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7");
    let body = json!({"messages": [{"role": "user", "content": "chestnuts"}], "max_tokens": 4, "stream": true});
    let request = router.client.post(router.url("/v1/chat/completions")).body(body.to_string());
    let request = request.header("traceparent", format!("00-{trace}-{parent}-01")).header("tracestate", "v=1");
    let answer = request.send().await.expect("an answer").text().await.expect("text");
    assert!(answer.contains("[DONE]"), "{answer}");

    let expected = [
        ("router.request", None, 2),
        ("router.prepare", Some("router.request"), 1),
        ("router.attempt", Some("router.request"), 3),
        ("worker.request", Some("router.attempt"), 2),
        ("worker.prepare", Some("worker.request"), 1),
        ("worker.queue", Some("worker.request"), 1),
        ("worker.prefill", Some("worker.request"), 1),
        ("worker.decode", Some("worker.request"), 1),
    ];
    for (name, of, kind) in expected {
        let span = collector.span(name).await;
        assert_eq!((&span["traceId"], &span["kind"]), (&json!(trace), &json!(kind)), "{name}");
        assert_eq!(span["traceState"], "v=1", "{name}");
        assert_eq!(span["service"], format!("warmpath-{}", name.split('.').next().expect("a service")));
        let above = match of {
            None => json!({"spanId": parent, "startTimeUnixNano": "0", "endTimeUnixNano": u64::MAX.to_string()}),
            Some(of) => collector.span(of).await,
        };
        assert_eq!(span["parentSpanId"], above["spanId"], "{name}");
        // Each time is converted to the time of day separately.
        let slack = 5_000_000;
        assert!(ns(&span, "startTimeUnixNano") + slack >= ns(&above, "startTimeUnixNano"), "{name}: {span} {above}");
        assert!(ns(&span, "endTimeUnixNano") <= ns(&above, "endTimeUnixNano") + slack, "{name}: {span} {above}");
        assert!(ns(&span, "startTimeUnixNano") <= ns(&span, "endTimeUnixNano") + slack, "{name}");
    }
    let all = collector.spans();
    assert_eq!(all.len(), expected.len(), "{all:?}");
    let ids: std::collections::HashSet<_> = all.iter().map(|span| span["spanId"].to_string()).collect();
    assert_eq!(ids.len(), all.len());
    let said = format!("{all:?}");
    assert!(!said.contains("chestnuts"), "{said}");
    let texts: Vec<Value> =
        answer.split("data: ").filter_map(|event| serde_json::from_str(event.trim()).ok()).collect();
    for text in texts.iter().filter_map(|event| event["choices"][0]["delta"]["content"].as_str()) {
        assert!(text.len() < 4 || !said.contains(text), "{text}");
    }
}

/// Sends `body` to `url`, within a separate trace, once a worker is ready, and returns the response's status.
async fn ask(worker: &RealWorker, path: &str, body: &Value) -> u16 {
    let client = reqwest::Client::new();
    eventually("the worker is ready", || async {
        let ready = client.get(format!("{}/readyz", worker.url("http"))).send().await;
        ready.is_ok_and(|answer| answer.status().is_success())
    })
    .await;
    let request = client.post(format!("{}{path}", worker.url("http"))).body(body.to_string());
    let answer = request.header("content-type", "application/json").send().await.expect("an answer");
    let status = answer.status().as_u16();
    answer.bytes().await.expect("a body");
    status
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_s_trace_reports_restores_and_failures() {
    let collector = Collector::start();
    let worker = RealWorker::start(&["--otlp-endpoint", collector.url.as_str()]).await;
    let body = json!({"prompt": "chestnuts roasting ".repeat(40), "max_tokens": 2});
    for _ in 0..2 {
        assert_eq!(ask(&worker, "/v1/completions", &body).await, 200);
    }
    let restore = collector.span("worker.restore").await;
    let resident = |values: &Value| {
        let value = values.as_array()?.iter().find(|value| value["key"] == "resident")?;
        value["value"]["intValue"].as_str()?.parse::<u32>().ok()
    };
    assert!(resident(&restore["attributes"]).is_some_and(|n_tokens| n_tokens >= 32), "{restore}");

    assert_eq!(ask(&worker, "/v1/completions", &json!({"prompt": "a", "n": 0})).await, 400);
    eventually("the refused request is told", || async {
        collector.spans().iter().any(|span| span["name"] == "worker.request" && span["status"]["message"] == "prepare")
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn texts_that_are_embedded_are_a_trace_too() {
    let collector = Collector::start();
    let worker = RealWorker::start_embedder(&["--otlp-endpoint", collector.url.as_str()]).await;
    assert_eq!(ask(&worker, "/v1/embeddings", &json!({"input": ["a chestnut", "two"]})).await, 200);
    let request = collector.span("worker.request").await;
    for part in ["worker.prepare", "worker.embed"] {
        let span = collector.span(part).await;
        assert_eq!((&span["traceId"], &span["parentSpanId"]), (&request["traceId"], &request["spanId"]), "{part}");
    }
    assert!(request["attributes"].to_string().contains("warmpath.prompt_tokens"), "{request}");
    assert_eq!(ask(&worker, "/v1/embeddings", &json!({"input": []})).await, 400);
    eventually("the refused request is told", || async {
        collector.spans().iter().any(|span| span["name"] == "worker.request" && span["status"]["message"] == "prepare")
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn each_failed_attempt_has_its_own_span_and_an_absent_collector_affects_no_request() {
    let mut collector = Collector::start();
    let (bad, good) = (FakeWorker::start(1), FakeWorker::start(2));
    bad.with(|script| script.behaviour = Behaviour::Refuse(503));
    let flags = ["--otlp-endpoint", collector.url.as_str(), "--policy", "round-robin"];
    let router = TestRouter::ready(&[&bad, &good], &flags).await;
    eventually("both are ready", || async {
        router.state_of(1).await == "ready" && router.state_of(0).await == "ready"
    })
    .await;
    eventually("one attempt fails", || async {
        assert_eq!(router.chat("hello").await.status(), 200);
        router.metric("warmpath_router_failed_attempts_total{failure=\"unready\"}").await > 0.0
    })
    .await;
    eventually("the failed attempt is told", || async {
        let spans = collector.spans();
        let failed = spans.iter().find(|span| span["status"]["message"] == "unready");
        let Some(failed) = failed else { return false };
        let of_trace = spans.iter().filter(|span| span["traceId"] == failed["traceId"]);
        of_trace.filter(|span| span["name"] == "router.attempt").count() == 2
    })
    .await;
    let seen = bad.seen()[0].headers["traceparent"].to_str().expect("text").to_owned();
    assert!(seen.ends_with("-01"), "{seen}");

    let runtime = collector.runtime.take().expect("it runs");
    tokio::task::block_in_place(|| drop(runtime));
    assert_eq!(router.chat("hello").await.status(), 200);
    router.wait_for_metric("warmpath_router_trace_spans_dropped_total", 1.0).await;
    assert_eq!(router.chat("hello").await.status(), 200);
}
