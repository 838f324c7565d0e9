//! Responses about models that are known and not ready yet, and before the router has contacted its workers.

use std::time::Duration;

use crate::support::opening::Opening;
use crate::support::stock::FakeStock;
use crate::support::worker::{FakeWorker, model};
use crate::support::{TestRouter, config, config_of, error_of, eventually, header, program};
use serde_json::{Value, json};
use warmpath_common::model::{Fingerprint, ModelInfo};
use warmpath_router::server::Server;

fn chat(model: &str) -> String {
    json!({"model": model, "messages": [{"role": "user", "content": "hello"}]}).to_string()
}

/// Returns the status, the code and whether the response has a `Retry-After`.
async fn answer(router: &TestRouter, model: &str) -> (u16, Value, bool) {
    let response = router.post("/v1/chat/completions", chat(model)).await;
    let (status, comes_again) = (response.status().as_u16(), response.headers().contains_key("retry-after"));
    let body: Value = response.json().await.expect("JSON");
    (status, body["error"]["code"].clone(), comes_again)
}

/// Returns a worker whose model with these names is loading.
fn loading(uid: u64, names: &'static [&'static str]) -> FakeWorker {
    let worker = FakeWorker::start(uid);
    let names_of_model = names.iter().map(|&name| name.to_owned()).collect();
    let model = ModelInfo { names: names_of_model, fingerprint: Fingerprint([uid as u8; 32]), ..model() };
    worker.with(|script| (script.summary.snapshot.model, script.opening) = (model, Opening::Loading(names)));
    worker
}

#[tokio::test(flavor = "multi_thread")]
async fn a_model_whose_only_worker_loads_is_not_ready_and_another_name_does_not_exist() {
    let (ready, later) = (FakeWorker::start(1), loading(2, &["big", "also"]));
    let router = TestRouter::ready(&[&ready, &later], &[]).await;
    eventually("it says that it loads", || async { router.state_of(1).await == "loading" }).await;
    let not_ready = (503, json!("model_loading"), true);
    for name in ["big", "also"] {
        assert_eq!(answer(&router, name).await, not_ready);
        assert_eq!(router.get(&format!("/v1/models/{name}")).await.0, 503);
    }
    for path in ["/v1/completions", "/v1/messages", "/v1/responses", "/v1/embeddings", "/tokenize"] {
        let body = json!({"model": "big", "prompt": "a", "content": "a", "input": "a", "max_tokens": 5,
            "messages": [{"role": "user", "content": "a"}]});
        // Anthropic's clients expect another status.
        let expected = if path == "/v1/messages" { 529 } else { 503 };
        assert_eq!(router.post(path, body.to_string()).await.status(), expected, "{path}");
    }
    assert_eq!(answer(&router, "nobody's").await.0, 404);
    assert_eq!(answer(&router, "tiny").await.0, 200);
    let (_, list) = router.get("/v1/models").await;
    let names: Vec<_> = list["data"].as_array().expect("a list").iter().map(|model| model["id"].clone()).collect();
    assert_eq!(names, ["tiny", "alias"], "only what has been loaded is listed");
    assert_eq!(router.get("/readyz").await.0, 200);

    later.with(|script| script.opening = Opening::AtOnce);
    eventually("it is served", || async { answer(&router, "big").await.0 == 200 }).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_fleet_that_loads_is_not_ready_and_says_what_it_waits_for() {
    let later = loading(1, &["big"]);
    let router = TestRouter::start(&[&later], &[]).await;
    eventually("it says that it loads", || async { router.state_of(0).await == "loading" }).await;
    assert_eq!(answer(&router, "big").await, (503, json!("model_loading"), true));
    assert_eq!(answer(&router, "other").await.0, 404);
    let nameless = json!({"messages": [{"role": "user", "content": "hello"}]}).to_string();
    let error = error_of(router.post("/v1/chat/completions", nameless).await, 503).await;
    assert_eq!(error["code"], "model_loading");
    let (status, body) = router.get("/readyz").await;
    assert_eq!(status, 503);
    assert!(body["reason"].as_str().is_some_and(|reason| reason.contains("loading")), "{body}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_restarted_worker_keeps_its_model_known_while_it_loads_unless_the_model_differs() {
    let mut worker = FakeWorker::start(1);
    let other = FakeWorker::start(2);
    let another = ModelInfo { names: vec!["other".into()], fingerprint: Fingerprint([9; 32]), ..model() };
    other.with(|script| script.summary.snapshot.model = another);
    let router = TestRouter::ready(&[&worker, &other], &[]).await;
    assert_eq!(answer(&router, "tiny").await.0, 200);
    worker.kill();
    eventually("it is down", || async { router.state_of(0).await == "down" }).await;
    assert_eq!(answer(&router, "tiny").await, (503, json!("no_worker"), true));
    worker.with(|script| script.opening = Opening::Loading(&["tiny", "alias"]));
    worker.revive();
    eventually("it loads", || async { router.state_of(0).await == "loading" }).await;
    assert_eq!(answer(&router, "tiny").await, (503, json!("no_worker"), true));
    worker.with(|script| script.opening = Opening::Loading(&["swapped"]));
    eventually("its model is gone", || async { answer(&router, "tiny").await.0 == 404 }).await;
    assert_eq!(answer(&router, "swapped").await, (503, json!("model_loading"), true));
}

#[tokio::test(flavor = "multi_thread")]
async fn no_name_is_unknown_while_a_worker_s_models_are_unknown() {
    let worker = FakeWorker::start(1);
    let nobody = "http://127.0.0.1:9".to_owned();
    let router = TestRouter::ready_for(&[worker.url(), nobody], &[]).await;
    assert_eq!(answer(&router, "tiny").await.0, 200);
    assert_eq!(answer(&router, "other").await, (503, json!("no_worker"), true));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stock_server_that_loads_and_lists_its_model_is_waited_for() {
    let servers = [FakeStock::start("tiny"), FakeStock::start("big")];
    servers[1].with(|script| script.health = Some(503));
    let router = TestRouter::ready_for(&servers.each_ref().map(FakeStock::flag), &[]).await;
    eventually("it loads", || async { router.state_of(1).await == "loading" }).await;
    assert_eq!(answer(&router, "big").await, (503, json!("model_loading"), true));
    assert_eq!(answer(&router, "other").await.0, 404);
    servers[1].with(|script| script.health = Some(200));
    eventually("it is served", || async { answer(&router, "big").await.0 == 200 }).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_that_loads_is_not_silent() {
    let (worker, server) = (loading(1, &["big"]), FakeStock::start("tiny"));
    server.with(|script| script.health = Some(503));
    let config = config_of(&[worker.url(), server.flag()], &[]);
    let server_of_router = Server::start(config).await.expect("port 0 is free");
    let client = reqwest::Client::builder().no_proxy().build().expect("a client");
    let router = TestRouter { server: server_of_router, client };
    for idx in [0, 1] {
        eventually("it loads", || async { router.state_of(idx).await == "loading" }).await;
        let age_s = || async { router.fleet().await["workers"][idx]["age_seconds"].as_f64().expect("it has answered") };
        eventually("its last answer is some time ago", || async { age_s().await > 0.3 }).await;
        eventually("it answers again", || async { age_s().await < 0.3 }).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn early_requests_wait_until_all_workers_have_been_contacted() {
    let (held, ready) = (FakeWorker::start(1), FakeWorker::start(2));
    held.with(|script| script.opening = Opening::Held);
    let another = ModelInfo { names: vec!["other".into()], fingerprint: Fingerprint([9; 32]), ..model() };
    ready.with(|script| script.summary.snapshot.model = another);
    let router = TestRouter::start(&[&held, &ready], &[]).await;
    eventually("the other worker is ready", || async { router.state_of(1).await == "ready" }).await;
    assert_eq!(router.get("/readyz").await.0, 503);
    let (client, url) = (router.client.clone(), router.url("/v1/chat/completions"));
    let early = tokio::spawn(async move { client.post(url).body(chat("tiny")).send().await });
    let (client, url) = (router.client.clone(), router.url("/v1/models"));
    let list = tokio::spawn(async move { client.get(url).send().await });
    router.wait_for_metric("warmpath_router_requests_in_flight", 1.0).await;
    held.with(|script| script.opening = Opening::AtOnce);
    assert_eq!(early.await.expect("no panic").expect("an answer").status(), 200);
    let list: Value = list.await.expect("no panic").expect("an answer").json().await.expect("JSON");
    assert_eq!(list["data"].as_array().map(Vec::len), Some(3), "{list}");
    eventually("the router is ready", || async { router.get("/readyz").await.0 == 200 }).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn early_requests_wait_until_the_vocabulary_is_loaded() {
    let worker = FakeWorker::start(1);
    let folder = tempfile::tempdir().expect("a temporary folder");
    let mut config = config(&[&worker], &[]);
    let trial = config.fleet.trial.program.display().to_string();
    config.fleet.trial.program = program(folder.path(), &format!("sleep 0.5; exec {trial} \"$@\""));
    let server = Server::start(config).await.expect("port 0 is free");
    let router = TestRouter { server, client: reqwest::Client::builder().no_proxy().build().expect("a client") };
    let response = router.chat("hello").await;
    assert_eq!(response.status(), 200);
    assert_eq!(header(&response, "x-warmpath-predicted-cached-tokens"), "0", "the prompt was tokenized");
}

#[tokio::test(flavor = "multi_thread")]
async fn requests_wait_for_the_first_contact_no_longer_than_its_limit() {
    let (held, ready) = (FakeWorker::start(1), FakeWorker::start(2));
    held.with(|script| script.opening = Opening::Held);
    let mut config = config(&[&held, &ready], &[]);
    config.fleet.first_contact_timeout = Duration::from_millis(50);
    let server = Server::start(config).await.expect("port 0 is free");
    let router = TestRouter { server, client: reqwest::Client::builder().no_proxy().build().expect("a client") };
    eventually("one worker is ready", || async { router.state_of(1).await == "ready" }).await;
    assert_eq!(answer(&router, "tiny").await.0, 200);
    assert_eq!(answer(&router, "other").await, (503, json!("no_worker"), true));
}

#[tokio::test(flavor = "multi_thread")]
async fn the_first_contact_includes_the_first_result_of_discovery() {
    let worker = FakeWorker::start(1);
    // This name is never found, so the first contact lasts as long as it may.
    let mut config = config_of(&[worker.url()], &["--worker-dns", "nowhere.invalid:1"]);
    config.fleet.first_contact_timeout = Duration::from_secs(3600);
    let server = Server::start(config).await.expect("port 0 is free");
    let router = TestRouter { server, client: reqwest::Client::builder().no_proxy().build().expect("a client") };
    eventually("the worker is ready", || async { router.state_of(0).await == "ready" }).await;
    router.wait_for_metric("warmpath_router_discovery_failures_total{source=\"dns\"}", 1.0).await;
    assert_eq!(router.get("/readyz").await.0, 503);
    let (client, url) = (router.client.clone(), router.url("/v1/chat/completions"));
    let early = tokio::spawn(async move { client.post(url).body(chat("tiny")).send().await });
    router.wait_for_metric("warmpath_router_requests_in_flight", 1.0).await;
    assert_eq!(worker.seen().len(), 0);
    early.abort();
    eventually("its place is free", || async { router.metric("warmpath_router_requests_in_flight").await == 0.0 })
        .await;
}
