//! Requests for models that are loading, held for as long as `--wait` allows.

use std::time::{Duration, Instant};

use crate::support::opening::Opening;
use crate::support::stock::FakeStock;
use crate::support::worker::{FakeWorker, full, model};
use crate::support::{TestRouter, error_of, eventually};
use serde_json::{Value, json};
use tokio::task::JoinHandle;
use warmpath_common::model::{Fingerprint, ModelInfo};

const IN_FLIGHT: &str = "warmpath_router_requests_in_flight";

/// Returns a worker whose model `big` is loading.
fn loading(uid: u64) -> FakeWorker {
    let worker = FakeWorker::start(uid);
    let model = ModelInfo { names: vec!["big".into()], fingerprint: Fingerprint([uid as u8; 32]), ..model() };
    worker.with(|script| (script.summary.snapshot.model, script.opening) = (model, Opening::Loading(&["big"])));
    worker
}

/// Requests a model in a separate task; without a name the only one.
fn asked(router: &TestRouter, path: &str, model: Option<&str>) -> JoinHandle<reqwest::Response> {
    let text = json!("hello");
    let messages = json!([{"role": "user", "content": text}]);
    let mut body = match path {
        "/v1/completions" => json!({"prompt": text}),
        "/v1/responses" => json!({"input": text}),
        "/tokenize" => json!({"content": text}),
        _ => json!({"messages": messages, "max_tokens": 5}),
    };
    if let Some(model) = model {
        body["model"] = json!(model);
    }
    let request = router.client.post(router.url(path)).body(body.to_string());
    tokio::spawn(async move { request.send().await.expect("the router answers") })
}

fn chat(router: &TestRouter, model: Option<&str>) -> JoinHandle<reqwest::Response> {
    asked(router, "/v1/chat/completions", model)
}

async fn status(answer: JoinHandle<reqwest::Response>) -> u16 {
    answer.await.expect("no panic").status().as_u16()
}

#[tokio::test(flavor = "multi_thread")]
async fn requests_of_every_dialect_are_held_until_the_model_is_loaded() {
    let worker = loading(1);
    let router = TestRouter::start(&[&worker], &["--wait", "600"]).await;
    eventually("it loads", || async { router.state_of(0).await == "loading" }).await;
    let paths = ["/v1/chat/completions", "/v1/completions", "/v1/messages", "/v1/responses", "/tokenize"];
    let mut held: Vec<_> = paths.iter().map(|path| asked(&router, path, Some("big"))).collect();
    held.push(chat(&router, None));
    let n_held = held.len() as f64;
    eventually("all are held", || async { router.metric(IN_FLIGHT).await == n_held }).await;
    // A request for a model that no worker loads is not held, and readiness is no request.
    assert_eq!(status(chat(&router, Some("nobody's"))).await, 404);
    assert_eq!(router.get("/readyz").await.0, 200);
    assert!(held.iter().all(|answer| !answer.is_finished()));
    worker.with(|script| script.opening = Opening::AtOnce);
    for answer in held {
        let answer = answer.await.expect("no panic");
        let (path, status) = (answer.url().path().to_owned(), answer.status());
        assert_eq!(status, 200, "{path}: {:?}", answer.text().await);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn requests_are_held_for_workers_not_yet_contacted_and_a_loading_stock_server() {
    let mut worker = FakeWorker::start(1);
    worker.kill();
    let server = FakeStock::start("big");
    server.with(|script| script.health = Some(503));
    let urls = [worker.url(), server.flag()];
    let config = crate::support::config_of(&urls, &["--wait", "600"]);
    let server_of_router = warmpath_router::server::Server::start(config).await.expect("port 0 is free");
    let client = reqwest::Client::builder().no_proxy().build().expect("a client");
    let router = TestRouter { server: server_of_router, client };
    eventually("one is away", || async { router.state_of(0).await == "down" }).await;
    eventually("one loads", || async { router.state_of(1).await == "loading" }).await;
    let held = ["tiny", "big"].map(|name| chat(&router, Some(name)));
    router.wait_for_metric(IN_FLIGHT, 2.0).await;
    server.with(|script| script.health = Some(200));
    let [tiny, big] = held;
    assert_eq!(status(big).await, 200);
    assert!(!tiny.is_finished());
    worker.revive();
    assert_eq!(status(tiny).await, 200);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_for_a_restarted_worker_is_held_until_it_has_loaded() {
    let (mut worker, other) = (FakeWorker::start(1), loading(2));
    other.with(|script| script.opening = Opening::AtOnce);
    let router = TestRouter::ready(&[&worker, &other], &["--wait", "600"]).await;
    assert_eq!(status(chat(&router, Some("tiny"))).await, 200);
    worker.kill();
    eventually("it is down", || async { router.state_of(0).await == "down" }).await;
    // It may never return.
    assert_eq!(status(chat(&router, Some("tiny"))).await, 503);
    worker.with(|script| script.opening = Opening::Loading(&["tiny", "alias"]));
    worker.revive();
    eventually("it loads", || async { router.state_of(0).await == "loading" }).await;
    let held = chat(&router, Some("tiny"));
    router.wait_for_metric(IN_FLIGHT, 1.0).await;
    assert_eq!(status(chat(&router, Some("big"))).await, 200, "others are not held");
    worker.with(|script| script.opening = Opening::AtOnce);
    assert_eq!(status(held).await, 200);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_router_is_ready_for_clients_while_it_would_hold_their_requests() {
    let mut worker = FakeWorker::start(1);
    let router = TestRouter::ready(&[&worker], &["--wait", "600"]).await;
    let probes = async || {
        let mut statuses = Vec::new();
        for address in [router.server.address, router.server.admin_address] {
            for path in ["/readyz", "/health"] {
                let response = router.client.get(format!("http://{address}{path}")).send().await;
                statuses.push(response.expect("the router answers").status().as_u16());
            }
        }
        statuses
    };
    worker.kill();
    eventually("it is down", || async { router.state_of(0).await == "down" }).await;
    assert_eq!(probes().await, [503; 4], "it may never return");
    worker.with(|script| script.opening = Opening::Loading(&["tiny", "alias"]));
    worker.revive();
    eventually("it loads", || async { router.state_of(0).await == "loading" }).await;
    assert_eq!(probes().await, [200; 4]);
    let fleet = router.fleet().await;
    assert_eq!(fleet["ready"], false, "operators see that no worker can take requests");
    assert!(fleet["unready_reason"].as_str().is_some_and(|reason| reason.ends_with("is loading")), "{fleet}");
    worker.kill();
    eventually("it is down", || async { router.state_of(0).await == "down" }).await;
    assert_eq!(probes().await, [503; 4], "it may never load its model");
    worker.with(|script| script.opening = Opening::AtOnce);
    worker.revive();
    eventually("it is served", || async { router.state_of(0).await == "ready" }).await;
    assert_eq!(probes().await, [200; 4]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_router_that_reaches_no_worker_is_not_ready() {
    let mut worker = FakeWorker::start(1);
    worker.kill();
    let router = TestRouter::start(&[&worker], &["--wait", "600"]).await;
    eventually("it is down", || async { router.state_of(0).await == "down" }).await;
    let held = chat(&router, Some("tiny"));
    router.wait_for_metric(IN_FLIGHT, 1.0).await;
    assert_eq!(router.get("/readyz").await.0, 503);
    worker.revive();
    assert_eq!(status(held).await, 200);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_is_held_no_longer_than_the_limit() {
    let worker = loading(1);
    let router = TestRouter::start(&[&worker], &["--wait", "0.05"]).await;
    eventually("it loads", || async { router.state_of(0).await == "loading" }).await;
    let refused = chat(&router, Some("big")).await.expect("no panic");
    assert!(refused.headers().contains_key("retry-after"));
    assert_eq!(error_of(refused, 503).await["code"], "model_loading");
    // A worker that finally lacks the expected model ends the wait as well.
    let router = TestRouter::start(&[&worker], &["--wait", "600"]).await;
    eventually("it loads", || async { router.state_of(0).await == "loading" }).await;
    let held = chat(&router, Some("big"));
    router.wait_for_metric(IN_FLIGHT, 1.0).await;
    worker.with(|script| script.opening = Opening::Loading(&["another"]));
    assert_eq!(status(held).await, 404);
}

#[tokio::test(flavor = "multi_thread")]
async fn held_requests_count_against_the_limit_until_their_client_leaves() {
    let worker = loading(1);
    let router = TestRouter::start(&[&worker], &["--wait", "600", "--requests-max", "1"]).await;
    eventually("it loads", || async { router.state_of(0).await == "loading" }).await;
    let held = chat(&router, Some("big"));
    router.wait_for_metric(IN_FLIGHT, 1.0).await;
    let refused = chat(&router, Some("big")).await.expect("no panic");
    assert_eq!(error_of(refused, 429).await["code"], "queue_full");
    held.abort();
    eventually("its place is free", || async { router.metric(IN_FLIGHT).await == 0.0 }).await;
    worker.with(|script| script.opening = Opening::AtOnce);
    eventually("it is served", || async { router.state_of(0).await == "ready" }).await;
    assert_eq!(status(chat(&router, Some("big"))).await, 200);
    assert_eq!(worker.seen().len(), 1, "the one that left was not sent");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_shutdown_ends_held_requests_at_once_with_an_error() {
    let worker = loading(1);
    let router = TestRouter::start(&[&worker], &["--wait", "600", "--drain-timeout", "600"]).await;
    eventually("it loads", || async { router.state_of(0).await == "loading" }).await;
    let held = ["/v1/chat/completions", "/v1/messages"].map(|path| asked(&router, path, Some("big")));
    router.wait_for_metric(IN_FLIGHT, 2.0).await;
    let stopping = tokio::time::timeout(Duration::from_secs(60), router.server.stop());
    stopping.await.expect("the router stops at once");
    let [chat, message] = held;
    assert_eq!(error_of(chat.await.expect("no panic"), 503).await["code"], "draining");
    let message = message.await.expect("no panic");
    assert_eq!(message.status(), 529);
    let body: Value = message.json().await.expect("JSON");
    assert!(body["error"]["message"].as_str().is_some_and(|text| text.contains("shutting down")), "{body}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_s_time_in_the_queue_begins_after_it_was_held() {
    let worker = loading(1);
    worker.with(|script| script.summary.snapshot.load = full(1 << 20));
    let router = TestRouter::start(&[&worker], &["--wait", "600", "--queue-timeout", "0.1"]).await;
    eventually("it loads", || async { router.state_of(0).await == "loading" }).await;
    let (held, start) = (chat(&router, Some("big")), Instant::now());
    router.wait_for_metric(IN_FLIGHT, 1.0).await;
    eventually("its arrival is long ago", || async { start.elapsed() > Duration::from_millis(200) }).await;
    worker.with(|script| script.opening = Opening::AtOnce);
    assert_eq!(error_of(held.await.expect("no panic"), 429).await["code"], "queue_timeout");
    assert_eq!(
        router.metric("warmpath_router_queue_outcomes_total{outcome=\"timed_out\"}").await,
        1.0,
        "it has waited"
    );
}
