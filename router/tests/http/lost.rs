//! Workers that hang: requests that wait for them go elsewhere when they are lost, running responses end.

use std::time::Duration;

use crate::support::stock::FakeStock;
use crate::support::worker::{Behaviour, FakeWorker};
use crate::support::{TestRouter, chat_body, config, config_of, error_of, eventually, fleet_of_one, header, long_text};
use futures::StreamExt;
use tokio::task::JoinHandle;
use warmpath_router::config::Config;

/// Starts a router that gives requests no time for retries.
async fn without_time_for_retries(mut config: Config) -> TestRouter {
    config.requests.retry.elapsed_max = Duration::ZERO;
    TestRouter::start_with(config).await.wait_until_ready().await
}

/// Starts a router in front of two workers, the first of which has the text cached and hangs.
async fn with_a_hanging_holder(text: &str, behaviour: Behaviour) -> ([FakeWorker; 2], TestRouter) {
    let workers = [FakeWorker::start(1), FakeWorker::start(2)];
    // The time before the worker was lost does not count as time of retries.
    let router = without_time_for_retries(config(&workers.each_ref(), &[])).await;
    workers[0].hold(text, None, 0);
    eventually("the router knows the blocks", || async { router.fleet().await["workers"][0]["blocks"] != 0 }).await;
    workers[0].with(|script| script.behaviour = behaviour);
    (workers, router)
}

fn send(router: &TestRouter, text: &str) -> JoinHandle<reqwest::Response> {
    let request = router.client.post(router.url("/v1/chat/completions")).body(chat_body(text, false));
    tokio::spawn(async move { request.send().await.expect("an answer") })
}

fn hang(worker: &FakeWorker) {
    worker.with(|script| script.has_heartbeat = false);
}

const LOST: &str = "warmpath_router_failed_attempts_total{failure=\"lost\"}";

#[tokio::test(flavor = "multi_thread")]
async fn a_request_at_a_lost_worker_is_sent_to_another_at_once() {
    let text = long_text("bread");
    let (workers, router) = with_a_hanging_holder(&text, Behaviour::Silent).await;
    let first = send(&router, &text);
    eventually("the holder has it", || async { workers[0].seen().len() == 1 }).await;
    hang(&workers[0]);
    // The loss is not known yet.
    let second = send(&router, &text);
    eventually("the holder has both", || async { workers[0].seen().len() == 2 }).await;
    for waiting in [first, second] {
        let response = waiting.await.expect("no panic");
        assert_eq!(response.status(), 200);
        assert_eq!(header(&response, "x-warmpath-worker"), "0000000000000002");
        assert_eq!(header(&response, "x-warmpath-route"), "retry");
    }
    assert_eq!(router.metric(LOST).await, 2.0);
    // The router tries it again, so it is up for a moment from time to time.
    eventually("it is down", || async { router.state_of(0).await == "down" }).await;
    eventually("the lost worker has no request left", || async { workers[0].n_left() == 2 }).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_answer_of_a_lost_worker_ends_with_an_error_event() {
    let text = long_text("bread");
    let (workers, router) = with_a_hanging_holder(&text, Behaviour::Hang).await;
    let mut body = router.chat_stream(&text).await.bytes_stream();
    assert_eq!(body.next().await.expect("a piece").expect("bytes"), "data: {\"n\": 1}\n\n");
    hang(&workers[0]);
    let last = body.next().await.expect("a piece").expect("bytes");
    assert!(last.starts_with(b"data: {\"error\":"), "{last:?}");
    assert!(body.next().await.is_none(), "the stream ends");
    // Nothing of a non-streaming response has been shown yet.
    let whole = send(&router, &text).await.expect("no panic");
    assert_eq!(whole.status(), 200);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_unstreamed_answer_that_stops_midway_continues_elsewhere_if_its_worker_is_lost() {
    let text = long_text("bread");
    let (workers, router) = with_a_hanging_holder(&text, Behaviour::Hang).await;
    let whole = send(&router, &text);
    eventually("the holder has it", || async { workers[0].seen().len() == 1 }).await;
    hang(&workers[0]);
    let response = whole.await.expect("no panic");
    assert_eq!(header(&response, "x-warmpath-worker"), "0000000000000002");
    assert_eq!(response.text().await.expect("text"), "{\"answer\": 42}");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_answer_that_still_arrives_outlives_its_worker_s_summary() {
    let text = long_text("bread");
    let (workers, router) = with_a_hanging_holder(&text, Behaviour::Trickle).await;
    let mut body = router.chat_stream(&text).await.bytes_stream();
    hang(&workers[0]);
    let mut is_down = false;
    let mut n_behind = 0;
    while n_behind < 20 {
        let piece = body.next().await.expect("a piece").expect("bytes");
        assert!(piece.starts_with(b"data: {\"n\": 1}"), "{piece:?}");
        is_down |= router.state_of(0).await == "down";
        n_behind += usize::from(is_down);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_client_of_the_last_worker_gets_an_error_when_it_is_lost() {
    let (worker, router) = fleet_of_one().await;
    worker.with(|script| script.behaviour = Behaviour::Silent);
    let waiting = send(&router, "hello");
    eventually("the worker has it", || async { worker.seen().len() == 1 }).await;
    hang(&worker);
    let error = error_of(waiting.await.expect("no panic"), 502).await;
    assert_eq!(error["code"], "worker_failed");
    assert!(error["message"].as_str().is_some_and(|text| text.ends_with("the worker was lost")), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_at_a_lost_stock_server_is_sent_to_another_worker() {
    let servers = [FakeStock::start("tiny"), FakeStock::start("tiny")];
    let flags: Vec<_> = servers.iter().map(FakeStock::flag).collect();
    let router = without_time_for_retries(config_of(&flags, &[])).await;
    servers.iter().for_each(|server| server.with(|script| script.is_silent = true));
    let waiting = send(&router, "hello");
    eventually("one has it", || async { servers.iter().any(|server| server.seen().len() == 1) }).await;
    let lost = usize::from(servers[0].seen().is_empty());
    servers[1 - lost].with(|script| script.is_silent = false);
    servers[lost].with(|script| script.health = None);
    let response = tokio::time::timeout(Duration::from_secs(30), waiting).await.expect("it goes elsewhere");
    let response = response.expect("no panic");
    assert_eq!((response.status().as_u16(), header(&response, "x-warmpath-route").as_str()), (200, "retry"));
    assert_eq!(router.metric(LOST).await, 1.0);
}

/// Heartbeat that a worker announces whose loss is noticed early.
const HEARTBEAT: (&str, &str) = ("x-warmpath-heartbeat-ms", "250");

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_is_lost_after_four_announced_heartbeats_while_others_still_send() {
    for (headers, n_workers, silence_ms) in [
        (vec![HEARTBEAT], 2, 1000),
        (vec![HEARTBEAT], 1, 3500),
        (Vec::new(), 2, 3500),
        (vec![("x-warmpath-heartbeat-ms", "1")], 2, 1000),
        (vec![("x-warmpath-heartbeat-ms", "99999")], 2, 3500),
        (vec![("x-warmpath-heartbeat-ms", "soon")], 2, 3500),
    ] {
        let workers: Vec<_> = (1..=n_workers).map(FakeWorker::start).collect();
        workers[0].with(|script| script.headers = headers.clone());
        let router = TestRouter::ready(&workers.iter().collect::<Vec<_>>(), &[]).await;
        hang(&workers[0]);
        let expected = format!("nothing arrived for {silence_ms} ms");
        eventually("it is lost", || async { router.fleet().await["workers"][0]["trouble"] == expected.as_str() }).await;
    }
}
