//! Models that hosts load on demand: requests are held and demanded, and no swap, loss or lie of a host loses any.

use std::time::Duration;

use serde_json::{Value, json};
use tokio::task::JoinHandle;
use warmpath_common::host::{HostModel, ModelState};
use warmpath_common::model::{Fingerprint, ModelInfo};

use crate::support::host::{FakeHost, impossible, loadable, loaded, loading};
use crate::support::logged::Logged;
use crate::support::opening::Opening;
use crate::support::worker::{Behaviour, FakeWorker, idle, model};
use crate::support::{TestRouter, config, error_of, eventually, header};

const WAITING: &str = "warmpath_router_model_waiting_requests";

/// Starts a router with these hosts and no other source of workers.
async fn start(hosts: &[&FakeHost], flags: &[&str]) -> TestRouter {
    let urls: Vec<String> = hosts.iter().map(|host| host.url()).collect();
    let hosts = urls.iter().flat_map(|url| ["--host", url]);
    let flags: Vec<&str> = hosts.chain(flags.iter().copied()).collect();
    TestRouter::start_with(config(&[], &flags)).await
}

async fn ready(hosts: &[&FakeHost], flags: &[&str]) -> TestRouter {
    start(hosts, flags).await.wait_until_ready().await
}

/// Returns a worker that serves one model under this name.
fn serving(uid: u64, name: &str) -> FakeWorker {
    let worker = FakeWorker::start(uid);
    let model = ModelInfo { names: vec![name.to_owned()], fingerprint: Fingerprint([uid as u8; 32]), ..model() };
    worker.with(|script| script.summary.snapshot.model = model);
    worker
}

fn chat_of(name: &str) -> Value {
    json!({"model": name, "messages": [{"role": "user", "content": "hello"}]})
}

/// Sends a chat in a separate task.
fn chat(router: &TestRouter, name: &str) -> JoinHandle<reqwest::Response> {
    sent(router, "/v1/chat/completions", chat_of(name))
}

fn sent(router: &TestRouter, path: &str, body: Value) -> JoinHandle<reqwest::Response> {
    let request = router.client.post(router.url(path)).body(body.to_string());
    tokio::spawn(async move { request.send().await.expect("the router answers") })
}

async fn status(answer: JoinHandle<reqwest::Response>) -> u16 {
    answer.await.expect("no panic").status().as_u16()
}

#[tokio::test(flavor = "multi_thread")]
async fn requests_for_a_loadable_model_are_held_have_one_demand_and_are_answered_once_a_worker_serves_it() {
    let host = FakeHost::start(vec![HostModel::new("a", loadable()), HostModel::new("b", loadable())]);
    let router = ready(&[&host], &["--wait", "600"]).await;
    let held: Vec<_> = (0..3).map(|_| chat(&router, "a")).collect();
    eventually("all are in the demand", || async { host.demands().iter().any(|demand| demand.n_waiting == 3) }).await;
    eventually("it is repeated", || async { host.demands().len() >= 4 }).await;
    let demands = host.demands();
    assert!(demands.iter().all(|demand| demand.model == "a" && demand.router == demands[0].router), "{demands:?}");
    let waits: Vec<u64> = demands.iter().map(|demand| demand.oldest_wait_ms).collect();
    assert!(waits.is_sorted() && waits[3] >= 2_000, "one demand a second: {waits:?}");
    assert_eq!(router.metric(WAITING).await, 3.0);

    // The worker loads, and then serves.
    let worker = serving(1, "a");
    worker.with(|script| script.opening = Opening::Loading(&["a"]));
    host.set("a", loading(Some(worker.url())));
    eventually("it loads", || async { router.state_of(0).await == "loading" }).await;
    assert!(held.iter().all(|answer| !answer.is_finished()));
    worker.with(|script| script.opening = Opening::AtOnce);
    host.set("a", loaded(worker.url()));
    for answer in held {
        assert_eq!(status(answer).await, 200);
    }
    assert_eq!(router.metric(WAITING).await, 0.0);
    assert_eq!(router.metric("warmpath_router_model_waits_total").await, 3.0);
    assert_eq!(router.metric("warmpath_router_model_wait_seconds_count").await, 3.0);
    assert_eq!(router.metric("warmpath_router_model_loads_total").await, 1.0);
    assert!(router.metric("warmpath_router_model_demands_total{outcome=\"taken\"}").await >= 4.0);
    assert_eq!(status(chat(&router, "a")).await, 200);
    assert!(host.demands().iter().all(|demand| demand.model == "a"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stream_gets_its_head_and_a_comment_while_its_model_is_loaded() {
    let host = FakeHost::start(vec![HostModel::new("a", loadable())]);
    let router = ready(&[&host], &["--wait", "600"]).await;
    let mut body = chat_of("a");
    body["stream"] = json!(true);
    let mut response = router.post("/v1/chat/completions", body.to_string()).await;
    assert_eq!(response.status(), 200);
    let first = response.chunk().await.expect("the stream goes on").expect("it has not ended");
    assert_eq!(first, ": the answer goes on\n\n");
    let worker = serving(1, "a");
    host.set("a", loaded(worker.url()));
    let text = response.text().await.expect("the stream ends well");
    assert!(text.ends_with("data: [DONE]\n\n"), "{text}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_wait_that_is_over_ends_with_the_share_and_the_seconds_and_a_request_without_one_demands_once() {
    let host = FakeHost::start(vec![HostModel::new("a", loading(None)), HostModel::new("b", loadable())]);
    let late = ready(&[&host], &["--wait", "0.05"]).await;
    let response = late.post("/v1/chat/completions", chat_of("a").to_string()).await;
    assert_eq!(header(&response, "retry-after"), "12");
    let error = error_of(response, 503).await;
    assert_eq!(error["code"], "model_loading");
    assert_eq!(error["message"], "the model `a` is not ready yet: 40 % loaded, about 12 s left");

    let at_once = ready(&[&host], &[]).await;
    let response = at_once.post("/v1/chat/completions", chat_of("b").to_string()).await;
    assert_eq!(header(&response, "retry-after"), "7");
    assert_eq!(error_of(response, 503).await["code"], "model_loading");
    eventually("it is demanded", || async { host.demands().iter().any(|demand| demand.model == "b") }).await;
    let demands = host.demands();
    let demand = demands.iter().find(|demand| demand.model == "b").expect("as above");
    assert_eq!(demand.n_waiting, 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_model_that_no_host_can_load_is_refused_with_the_reason_and_without_a_path() {
    let reason = "failed to open /home/ann/models/a.gguf";
    let hosts = [
        FakeHost::start(vec![HostModel::new("a", impossible(reason)), HostModel::new("b", impossible("no memory"))]),
        FakeHost::start(vec![HostModel::new("b", loadable())]),
    ];
    let router = ready(&hosts.each_ref(), &["--wait", "600"]).await;
    let response = router.post("/v1/chat/completions", chat_of("a").to_string()).await;
    assert_eq!((header(&response, "retry-after"), header(&response, "x-should-retry")), ("60".into(), "false".into()));
    let error = error_of(response, 503).await;
    assert_eq!(error["code"], "model_impossible");
    assert_eq!(error["message"], "no host can load the model `a`: failed to open \u{2026}/a.gguf");
    // Another host can load it.
    let held = chat(&router, "b");
    eventually("the other host is asked", || async { !hosts[1].demands().is_empty() }).await;
    assert!(hosts[0].demands().is_empty());
    // What becomes impossible meanwhile is not waited for.
    hosts[1].set("b", impossible("a broken file"));
    let error = error_of(held.await.expect("no panic"), 503).await;
    assert_eq!(error["message"], "no host can load the model `b`: no memory; a broken file");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_unknown_name_is_answered_with_the_nearest_names() {
    let host = FakeHost::start(vec![HostModel::new("gemma-3-4b", loadable()), HostModel::new("qwen3-8b", loadable())]);
    let router = ready(&[&host], &["--wait", "600"]).await;
    let error = error_of(router.post("/v1/chat/completions", chat_of("gema-3-4b").to_string()).await, 404).await;
    assert_eq!(error["code"], "model_not_found");
    let expected =
        "the model `gema-3-4b` does not exist; did you mean `gemma-3-4b`?; available: `gemma-3-4b`, `qwen3-8b`";
    assert_eq!(error["message"], expected);
    let nameless = json!({"messages": [{"role": "user", "content": "hello"}]});
    let error = error_of(router.post("/v1/chat/completions", nameless.to_string()).await, 400).await;
    assert_eq!(error["code"], "model_required");
    assert!(host.demands().is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn no_request_is_lost_while_a_worker_leaves_for_another_model_and_comes_back() {
    let (worker, second) = (serving(1, "a"), serving(2, "b"));
    let host = FakeHost::start(vec![HostModel::new("a", loaded(worker.url())), HostModel::new("b", loadable())]);
    let router = ready(&[&host], &["--wait", "600"]).await;
    eventually("it serves", || async { router.state_of(0).await == "ready" }).await;
    assert_eq!(status(chat(&router, "a")).await, 200);
    // The worker refuses requests before the router knows that it leaves.
    worker.with(|script| script.behaviour = Behaviour::Refuse(503));
    let early = chat(&router, "a");
    eventually("it was refused", || async { worker.seen().len() == 2 }).await;
    host.set("a", ModelState::Unloading { worker_url: worker.url() });
    worker.update(Vec::new(), Some(warmpath_common::summary::Load { draining: true, ..idle() }));
    eventually("it leaves", || async { router.state_of(0).await == "leaving" }).await;
    let late = chat(&router, "a");
    eventually("both are demanded", || async { host.demands().iter().any(|demand| demand.n_waiting == 2) }).await;
    // The other model has its turn.
    host.set("a", loadable());
    host.set("b", loaded(second.url()));
    assert_eq!(status(chat(&router, "b")).await, 200);
    assert!(!early.is_finished() && !late.is_finished());
    // The first model comes back at the same address, as another process.
    let mut worker = worker;
    worker.kill();
    worker.with(|script| {
        script.behaviour = Behaviour::Answer;
        script.summary.snapshot.load = idle();
    });
    worker.revive();
    host.set("a", loaded(worker.url()));
    for answer in [early, late] {
        let answer = answer.await.expect("no panic");
        assert_eq!(answer.status(), 200, "{:?}", answer.text().await);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_host_that_is_down_leaves_its_workers_in_use_and_its_names_known_and_may_return_with_any_number() {
    let worker = serving(1, "a");
    let mut host = FakeHost::start(vec![HostModel::new("a", loaded(worker.url())), HostModel::new("b", loadable())]);
    host.with(|script| script.summary.sequence = 900);
    let router = ready(&[&host], &["--wait", "600"]).await;
    eventually("it serves", || async { router.state_of(0).await == "ready" }).await;
    host.kill();
    router.wait_for_metric("warmpath_router_hosts{state=\"lost\"}", 1.0).await;
    assert_eq!(status(chat(&router, "a")).await, 200);
    // What the host could load is still waited for.
    let held = chat(&router, "b");
    router.wait_for_metric("warmpath_router_model_demands_total{outcome=\"failed\"}", 1.0).await;
    assert_eq!(router.get("/readyz").await.0, 200);
    let second = serving(2, "b");
    host.with(|script| script.summary.sequence = 0);
    host.set("b", loaded(second.url()));
    host.revive();
    assert_eq!(status(held).await, 200);
    assert_eq!(status(chat(&router, "a")).await, 200);
    router.wait_for_metric("warmpath_router_hosts{state=\"live\"}", 1.0).await;
}

#[tokio::test]
async fn invalid_summaries_are_refused_with_a_line_in_the_log_and_harm_nothing() {
    let worker = serving(1, "a");
    let host = FakeHost::start(vec![HostModel::new("a", loaded(worker.url())), HostModel::new("b", loadable())]);
    let router = ready(&[&host], &[]).await;
    eventually("it serves", || async { router.state_of(0).await == "ready" }).await;
    let foreign = json!({"host": "x", "sequence": 1_000_000, "memory": [], "models": [{"name": "a",
        "is_autoloaded": true, "is_pinned": false, "state": "unloading", "worker_url": "ftp://a"}]});
    for (raw, reason) in [
        ("data: {\"host\": 1}\n\n".to_owned(), "malformed"),
        ("\u{0}\u{1}garbage\n\ndata: x\n\n".to_owned(), "malformed"),
        (format!("data: {}", "x".repeat(3 << 20)), "event_too_long"),
        ("data: {}\n\n".repeat(2_000), "flood"),
        (format!("data: {foreign}\n\n"), "worker_url"),
    ] {
        let logged = Logged::start();
        host.with(|script| script.raw = Some(raw.into_bytes()));
        let line = format!("warmpath_router_host_stream_ends_total{{reason=\"{reason}\"}}");
        router.wait_for_metric(&line, 1.0).await;
        eventually("it is logged", || async { logged.n("stream of a host ended") >= 1 }).await;
        assert_eq!(status(chat(&router, "a")).await, 200, "{reason}");
        assert_eq!(status(chat(&router, "b")).await, 503, "{reason}");
    }
    host.with(|script| script.raw = None);
    router.wait_for_metric("warmpath_router_hosts{state=\"live\"}", 1.0).await;
    assert_eq!(status(chat(&router, "a")).await, 200);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_router_with_hosts_alone_is_ready_after_the_first_summary_and_says_what_is_missing() {
    let host = FakeHost::start(vec![HostModel::new("a", loadable())]);
    host.with(|script| script.is_silent = true);
    let router = start(&[&host], &[]).await;
    let (status, body) = router.get("/readyz").await;
    assert_eq!(status, 503);
    assert_eq!(body["reason"], "no model can be served: a host has sent no summary yet");
    let admin = format!("http://{}/readyz", router.server.admin_address);
    let body: Value = router.client.get(admin).send().await.expect("an answer").json().await.expect("JSON");
    assert_eq!(body["reason"], format!("no model can be served: {} has sent no summary yet", host.url()));
    host.with(|script| script.is_silent = false);
    eventually("it is ready", || async { router.get("/readyz").await.0 == 200 }).await;
    host.set("a", impossible("no memory"));
    eventually("it is not", || async { router.get("/readyz").await.0 == 503 }).await;
    let (_, body) = router.get("/readyz").await;
    assert_eq!(body["reason"], "no model can be served: a host has no model that it can load");
}

#[tokio::test(flavor = "multi_thread")]
async fn early_requests_wait_for_the_first_summary() {
    let (host, worker) = (FakeHost::start(vec![HostModel::new("a", loadable())]), serving(1, "a"));
    host.with(|script| script.is_silent = true);
    let router = start(&[&host], &["--wait", "600"]).await;
    let early = chat(&router, "a");
    router.wait_for_metric("warmpath_router_requests_in_flight", 1.0).await;
    host.with(|script| script.is_silent = false);
    eventually("it is demanded", || async { !host.demands().is_empty() }).await;
    host.set("a", loaded(worker.url()));
    assert_eq!(status(early).await, 200);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_loads_no_model_against_its_own_or_the_catalogue_s_will() {
    let mut by_hand = HostModel::new("hand", loadable());
    by_hand.is_autoloaded = false;
    let host = FakeHost::start(vec![HostModel::new("a", loadable()), by_hand]);
    let router = ready(&[&host], &["--wait", "600"]).await;
    for (path, name) in [("/v1/chat/completions?autoload=false", "a"), ("/v1/chat/completions", "hand")] {
        let error = error_of(router.post(path, chat_of(name).to_string()).await, 400).await;
        assert_eq!((&error["code"], &error["param"]), (&json!("model_not_loaded"), &json!("model")), "{path}");
    }
    let error = error_of(router.post("/v1/chat/completions?autoload=x", chat_of("a").to_string()).await, 400).await;
    assert_eq!(error["param"], "autoload");
    assert!(host.demands().is_empty());
    let held = sent(&router, "/v1/chat/completions?autoload=true", chat_of("hand"));
    eventually("it is demanded", || async { host.demands().iter().any(|demand| demand.model == "hand") }).await;
    let worker = serving(1, "hand");
    host.set("hand", loaded(worker.url()));
    assert_eq!(status(held).await, 200);
    // Once it is loaded, every request may use it.
    assert_eq!(status(chat(&router, "hand")).await, 200);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_demand_goes_to_another_host_if_one_refuses_it_and_either_serves() {
    let hosts = [0, 1].map(|_| FakeHost::start(vec![HostModel::new("a", loadable())]));
    hosts[0].with(|script| script.refuses = Some(503));
    let router = ready(&hosts.each_ref(), &["--wait", "600"]).await;
    let held = chat(&router, "a");
    eventually("the second one is asked", || async { !hosts[1].demands().is_empty() }).await;
    assert!(!hosts[0].demands().is_empty());
    let worker = serving(1, "a");
    hosts[1].set("a", loaded(worker.url()));
    assert_eq!(status(held).await, 200);
}

#[tokio::test(flavor = "multi_thread")]
async fn hosts_get_the_fleet_s_token() {
    let token = "0123456789abcdef0123456789abcdef";
    let file = tempfile::NamedTempFile::new().expect("a temporary file");
    std::fs::write(file.path(), format!("{token}\n")).expect("it can be written");
    let host = FakeHost::start(vec![HostModel::new("a", loadable())]);
    host.with(|script| script.token = Some(token.to_owned()));
    let refused = start(&[&host], &[]).await;
    refused.wait_for_metric("warmpath_router_host_stream_ends_total{reason=\"refused\"}", 1.0).await;
    let flags = ["--fleet-token-file", file.path().to_str().expect("UTF-8"), "--wait", "600"];
    let router = ready(&[&host], &flags).await;
    let held = chat(&router, "a");
    eventually("it is demanded", || async { !host.demands().is_empty() }).await;
    held.abort();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_leaves_is_no_longer_in_the_demand() {
    let host = FakeHost::start(vec![HostModel::new("a", loadable()), HostModel::new("b", loadable())]);
    let router = ready(&[&host], &["--wait", "600"]).await;
    let held = [chat(&router, "a"), chat(&router, "a")];
    eventually("both are demanded", || async { host.demands().iter().any(|demand| demand.n_waiting == 2) }).await;
    held[0].abort();
    eventually("one is left", || async { router.metric(WAITING).await == 1.0 }).await;
    held[1].abort();
    eventually("none is left", || async { router.metric(WAITING).await == 0.0 }).await;
    let is_withdrawn = || host.demands().last().is_some_and(|demand| demand.n_waiting == 0 && demand.model == "a");
    eventually("the host is told", || async { is_withdrawn() }).await;
    let n_demands = |name: &str| host.demands().iter().filter(|demand| demand.model == name).count();
    // While another model is demanded thrice, nobody demands this one.
    let n_before = n_demands("a");
    let other = chat(&router, "b");
    eventually("the other model is demanded", || async { n_demands("b") >= 3 }).await;
    assert_eq!(n_demands("a"), n_before, "nobody waits");
    other.abort();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_model_that_is_loaded_again_needs_no_second_download_of_its_vocabulary() {
    let workers = [serving(1, "a"), serving(2, "a")];
    for worker in &workers {
        worker.with(|script| script.summary.snapshot.model.fingerprint = Fingerprint([5; 32]));
    }
    let host = FakeHost::start(vec![HostModel::new("a", loaded(workers[0].url()))]);
    let mut config = config(&[], &["--host", &host.url(), "--wait", "600"]);
    config.fleet.membership.linger = Duration::ZERO;
    let router = TestRouter::start_with(config).await.wait_until_ready().await;
    let vocabularies = || async { router.fleet().await["vocabularies"].clone() };
    eventually("it has the vocabulary", || async { vocabularies().await[0]["state"] == "ready" }).await;
    host.set("a", loadable());
    eventually("the worker has left", || async { router.fleet().await["workers"] == json!([]) }).await;
    host.set("a", loaded(workers[1].url()));
    let answer = chat(&router, "a").await.expect("no panic");
    assert_eq!(header(&answer, "x-warmpath-predicted-cached-tokens"), "0", "the prompt was tokenized");
    let asked = workers[1].asked();
    assert!(asked.iter().all(|(path, _)| path != warmpath_common::summary::VOCABULARY_PATH), "{asked:?}");
}
