//! More work than the fleet can start: queueing, order, refusals and their responses; and the limits on time and
//! retries.

use crate::support::worker::{Behaviour, FakeWorker, full, idle};
use crate::support::{TestRouter, chat_body, config, error_of, eventually, fleet_of_one, header};
use reqwest::Response;
use serde_json::json;
use tokio::task::JoinHandle;
use warmpath_common::ids::SlotId;
use warmpath_common::summary::{Load, Rates};
use warmpath_router::server::Server;
use warmpath_router_core::overload::retry::BudgetOptions;

const WAITING: &str = "warmpath_router_queue_requests";

fn outcome(name: &str) -> String {
    format!("warmpath_router_queue_outcomes_total{{outcome=\"{name}\"}}")
}

/// Reports a load and waits until the router knows it.
async fn report(router: &TestRouter, worker: &FakeWorker, idx: usize, load: Load) {
    let shown = serde_json::to_value(&load).expect("JSON");
    worker.update(Vec::new(), Some(load));
    eventually("the load is known", || async { router.fleet().await["workers"][idx]["load"] == shown }).await;
}

/// Sends a chat under a separate key and does not wait for the response.
fn send(router: &TestRouter, key: &str) -> JoinHandle<Response> {
    let request = router.client.post(router.url("/v1/chat/completions")).body(chat_body("hello", false));
    let request = request.header("authorization", format!("Bearer {key}")).header("x-asked-by", key);
    tokio::spawn(async move { request.send().await.expect("an answer") })
}

async fn waiting(router: &TestRouter, n: usize) {
    eventually("so many wait", || async { router.metric(WAITING).await == n as f64 }).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_that_no_worker_can_start_waits_and_starts_when_one_can() {
    let (worker, router) = fleet_of_one().await;
    report(&router, &worker, 0, full(10_000)).await;
    let waiter = send(&router, "a");
    waiting(&router, 1).await;
    assert!(worker.seen().is_empty());
    worker.update(Vec::new(), Some(idle()));
    let response = waiter.await.expect("no panic");
    assert_eq!((response.status().as_u16(), header(&response, "x-warmpath-route").as_str()), (200, "only"));
    assert_eq!(router.metric(&outcome("admitted")).await, 1.0);
    assert_eq!(router.metric(WAITING).await, 0.0);
    assert_eq!(router.metric("warmpath_router_queue_seconds_count").await, 1.0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_whose_deadline_passes_is_refused_with_retry_after() {
    let worker = FakeWorker::start(1);
    let router = TestRouter::ready(&[&worker], &["--queue-timeout", "0.2"]).await;
    report(&router, &worker, 0, full(10_000)).await;
    let response = send(&router, "a").await.expect("no panic");
    // 10,000 tokens at 1,000 a second, and the slots.
    let seconds: u64 = header(&response, "retry-after").parse().expect("a number");
    assert!((10..=12).contains(&seconds), "{seconds}");
    let error = error_of(response, 429).await;
    assert_eq!((&error["code"], &error["type"]), (&json!("queue_timeout"), &json!("rate_limit_error")));
    assert_eq!(error["message"], "no worker could start the request within 0.2 s");
    assert_eq!(router.metric(&outcome("timed_out")).await, 1.0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_queue_of_no_time_or_no_length_refuses_at_once() {
    let worker = FakeWorker::start(1);
    for (flags, code) in [(["--queue-timeout", "0"], "queue_timeout"), (["--queue-max", "0"], "queue_full")] {
        let router = TestRouter::ready(&[&worker], &flags).await;
        report(&router, &worker, 0, full(10_000)).await;
        assert_eq!(error_of(router.chat("hello").await, 429).await["code"], code);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_full_queue_drops_a_request_of_the_longest_line_for_another_key() {
    let worker = FakeWorker::start(1);
    let router = TestRouter::ready(&[&worker], &["--queue-max", "2"]).await;
    report(&router, &worker, 0, full(10_000)).await;
    let first = send(&router, "a");
    waiting(&router, 1).await;
    let second = send(&router, "a");
    waiting(&router, 2).await;
    let third = send(&router, "a").await.expect("no panic");
    assert!(!header(&third, "retry-after").is_empty());
    let error = error_of(third, 429).await;
    assert_eq!(error["message"], "every worker is busy, and 2 requests are already waiting");
    assert_eq!(router.metric(&outcome("rejected")).await, 1.0);
    let other = send(&router, "b");
    assert_eq!(error_of(second.await.expect("no panic"), 429).await["code"], "queue_full");
    assert_eq!(router.metric(&outcome("evicted")).await, 1.0);
    worker.update(Vec::new(), Some(idle()));
    for waiter in [first, other] {
        assert_eq!(waiter.await.expect("no panic").status(), 200);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn keys_take_turns() {
    let worker = FakeWorker::start(1);
    let router = TestRouter::ready(&[&worker], &["--worker-wait-max", "0"]).await;
    report(&router, &worker, 0, full(10_000)).await;
    let mut waiters = Vec::new();
    for key in ["a", "a", "a", "a", "b", "b"] {
        waiters.push(send(&router, key));
        waiting(&router, waiters.len()).await;
    }
    // One free slot: one request at a time.
    worker.update(Vec::new(), Some(Load { busy_slots: (0..3).map(SlotId).collect(), ..idle() }));
    for waiter in waiters {
        assert_eq!(waiter.await.expect("no panic").status(), 200);
    }
    let seen = worker.seen();
    let order: Vec<_> = seen.iter().map(|seen| seen.headers["x-asked-by"].to_str().expect("text")).collect();
    assert_eq!(order, ["a", "b", "a", "b", "a", "a"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_leaves_the_queue_frees_its_place() {
    let worker = FakeWorker::start(1);
    let router = TestRouter::ready(&[&worker], &["--queue-max", "1"]).await;
    report(&router, &worker, 0, full(10_000)).await;
    let waiter = send(&router, "a");
    waiting(&router, 1).await;
    waiter.abort();
    waiting(&router, 0).await;
    assert_eq!(router.metric(&outcome("client_gone")).await, 1.0);
    let next = send(&router, "a");
    waiting(&router, 1).await;
    worker.update(Vec::new(), Some(idle()));
    assert_eq!(next.await.expect("no panic").status(), 200);
    assert_eq!(worker.seen().len(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn queued_requests_get_an_error_when_the_last_worker_is_lost() {
    let mut worker = FakeWorker::start(1);
    let router = TestRouter::ready(&[&worker], &[]).await;
    report(&router, &worker, 0, full(10_000)).await;
    let waiter = send(&router, "a");
    waiting(&router, 1).await;
    worker.kill();
    let response = waiter.await.expect("no panic");
    assert_eq!(header(&response, "retry-after"), "2");
    assert_eq!(error_of(response, 503).await["code"], "no_worker");
    assert_eq!(router.metric(&outcome("no_worker")).await, 1.0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_that_joins_is_not_flooded() {
    let (old, mut new) = (FakeWorker::start(1), FakeWorker::start(2));
    new.kill();
    let router = TestRouter::ready(&[&old, &new], &[]).await;
    report(&router, &old, 0, full(10_000)).await;
    let waiters: Vec<_> = (0..12).map(|_| send(&router, "a")).collect();
    waiting(&router, 12).await;
    new.with(|script| {
        script.behaviour = Behaviour::Hang;
        script.summary.snapshot.load.rates = Rates::default();
    });
    new.revive();
    waiting(&router, 8).await;
    eventually("it has a request in each slot", || async { new.seen().len() == 4 }).await;
    // A report that it uses four slots, and its rates: two seconds of waiting count as capacity for the others.
    new.update(Vec::new(), Some(full(0)));
    waiting(&router, 0).await;
    eventually("it has the others", || async { new.seen().len() == 12 }).await;
    waiters.into_iter().for_each(|waiter| waiter.abort());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_that_every_worker_refuses_as_full_waits_and_is_retried() {
    let workers = [FakeWorker::start(1), FakeWorker::start(2)];
    let router = TestRouter::ready(&workers.each_ref(), &["--attempts-max", "2"]).await;
    workers.iter().for_each(|worker| worker.with(|script| script.behaviour = Behaviour::Refuse(429)));
    let waiter = send(&router, "a");
    waiting(&router, 1).await;
    eventually("they are asked again", || async { workers[0].seen().len() + workers[1].seen().len() > 4 }).await;
    workers[0].with(|script| script.behaviour = Behaviour::Answer);
    let response = waiter.await.expect("no panic");
    assert_eq!((response.status().as_u16(), header(&response, "x-warmpath-route").as_str()), (200, "retry"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_that_counts_too_many_prompts_still_generates() {
    let workers = [FakeWorker::start(1), FakeWorker::start(2)];
    let router = TestRouter::ready(&workers.each_ref(), &["--attempts-max", "2"]).await;
    workers.iter().for_each(|worker| worker.with(|script| script.behaviour = Behaviour::Refuse(429)));
    let count = router.post("/tokenize", json!({"content": "a"}).to_string()).await;
    assert_eq!(error_of(count, 429).await["message"], "scripted", "the worker's own words");
    assert_eq!(workers.each_ref().map(|worker| worker.seen().len()), [1, 1], "each was asked once");
    workers.iter().for_each(|worker| worker.with(|script| script.behaviour = Behaviour::Answer));
    let worker = send(&router, "a");
    assert_eq!(worker.await.expect("no panic").status(), 200);
    assert_eq!(router.metric_of_all("warmpath_router_queue_outcomes_total").await, 0.0, "nothing waited");
}

#[tokio::test(flavor = "multi_thread")]
async fn retries_beyond_the_budget_are_withheld() {
    let worker = [FakeWorker::start(1), FakeWorker::start(2)];
    let mut config = config(&worker.each_ref(), &["--attempts-max", "2"]);
    config.requests.retry_budget = BudgetOptions { per_request: 0.0, per_s: 0.0, saved_max: 1.0 };
    let server = Server::start(config).await.expect("port 0 is free");
    let router = TestRouter { server, client: reqwest::Client::builder().no_proxy().build().expect("a client") };
    eventually("the router is ready", || async { router.get("/readyz").await.0 == 200 }).await;
    worker.iter().for_each(|worker| worker.with(|script| script.behaviour = Behaviour::BreakAtOnce));
    for (said, n_seen) in [("2 attempts failed", 2), ("the attempt failed", 3)] {
        let error = error_of(router.chat("hello").await, 502).await;
        assert!(error["message"].as_str().is_some_and(|text| text.starts_with(said)), "{error}");
        assert_eq!(worker.iter().map(|worker| worker.seen().len()).sum::<usize>(), n_seen);
    }
    assert_eq!(router.metric("warmpath_router_retry_budget_exhausted_total").await, 1.0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_that_does_not_begin_to_answer_is_given_up_for_another() {
    let workers = [FakeWorker::start(1), FakeWorker::start(2)];
    let router = TestRouter::ready(&workers.each_ref(), &["--response-timeout", "0.2"]).await;
    workers.iter().for_each(|worker| worker.with(|script| script.behaviour = Behaviour::Silent));
    assert_eq!(error_of(router.chat("hello").await, 504).await["code"], "worker_failed");
    eventually("both see the router leave", || async { workers.iter().all(|worker| worker.n_left() == 1) }).await;
    workers[1].with(|script| script.behaviour = Behaviour::Answer);
    assert_eq!(router.chat("hello").await.status(), 200);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_that_takes_no_connection_is_down_after_the_connect_timeout() {
    // A listener whose queue is full accepts no further connection.
    let socket = tokio::net::TcpSocket::new_v4().expect("a socket");
    socket.bind("127.0.0.1:0".parse().expect("an address")).expect("port 0 is free");
    let listener = socket.listen(1).expect("it listens");
    let address = listener.local_addr().expect("it is bound");
    let fillers: Vec<_> = (0..8).map(|_| tokio::spawn(tokio::net::TcpStream::connect(address))).collect();
    let config = config(&[], &["--worker", &format!("http://{address}"), "--connect-timeout", "0.2"]);
    let server = Server::start(config).await.expect("port 0 is free");
    let router = TestRouter { server, client: reqwest::Client::builder().no_proxy().build().expect("a client") };
    router.wait_for_metric("warmpath_router_summary_stream_ends_total{reason=\"connect\"}", 1.0).await;
    eventually("it is down", || async { router.state_of(0).await == "down" }).await;
    drop((listener, fillers));
}
