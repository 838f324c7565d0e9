//! Responses on their way: unchanged, broken off by a worker, left by a client, ended by the router's own end.

use std::time::Duration;

use crate::support::worker::{Behaviour, FakeWorker};
use crate::support::{TestRouter, error_of, eventually, fleet_of_one, fleet_of_two, header};
use futures::StreamExt;

const THREE_EVENTS: &str = "data: {\"n\": 1}\n\ndata: {\"n\": 2}\n\ndata: [DONE]\n\n";

#[tokio::test(flavor = "multi_thread")]
async fn a_stream_passes_through_untouched() {
    let (_worker, router) = fleet_of_one().await;
    let response = router.chat_stream("hello").await;
    assert_eq!(header(&response, "content-type"), "text/event-stream");
    assert_eq!(header(&response, "x-warmpath-route"), "only");
    assert_eq!(response.text().await.expect("text"), THREE_EVENTS);
    router.wait_for_metric("warmpath_router_request_seconds_count", 1.0).await;
    assert_eq!(router.metric_of_all("warmpath_router_ttfb_seconds_count").await, 1.0);
    assert_eq!(router.metric_of_all("warmpath_router_tpot_seconds_count").await, 1.0);
    assert_eq!(router.metric("warmpath_router_requests_in_flight").await, 0.0);
    assert_eq!(router.fleet().await["workers"][0]["in_flight"], 0);
    assert_eq!(router.metric("warmpath_router_abandoned_responses_total").await, 0.0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stream_that_breaks_off_ends_with_an_error_event_and_is_not_repeated() {
    let (workers, router) = fleet_of_two().await;
    workers.iter().for_each(|worker| worker.with(|script| script.behaviour = Behaviour::BreakMidway));
    let response = router.chat_stream("hello").await;
    assert_eq!(response.status(), 200);
    let text = response.text().await.expect("the stream ends in order");
    let error =
        text.strip_prefix("data: {\"n\": 1}\n\ndata: {\"n\": 2}\n\ndata: ").expect("what came, then one more event");
    let error: serde_json::Value = serde_json::from_str(error.trim_end()).expect("JSON");
    assert_eq!(error["error"]["code"], "worker_failed");
    assert_eq!(error["error"]["type"], "server_error");
    assert_eq!(workers[0].seen().len() + workers[1].seen().len(), 1);
    assert_eq!(router.metric("warmpath_router_broken_responses_total").await, 1.0);
    assert_eq!(router.metric("warmpath_router_retries_total").await, 0.0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_got_comments_gets_an_error_event_if_no_worker_answers() {
    let (worker, router) = fleet_of_one().await;
    worker.with(|script| script.behaviour = Behaviour::BreakBehindComment);
    let response = router.chat_stream("hello").await;
    assert_eq!(response.status(), 200);
    assert_eq!(header(&response, "content-type"), "text/event-stream");
    let text = response.text().await.expect("the stream ends in order");
    let error = text.trim_start_matches(": the answer goes on\n\n").trim_start_matches("data: ");
    let error: serde_json::Value = serde_json::from_str(error.trim_end()).expect("JSON");
    assert_eq!(error["error"]["code"], "worker_failed", "{text}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_whole_answer_that_breaks_off_everywhere_is_a_bad_gateway() {
    let (worker, router) = fleet_of_one().await;
    worker.with(|script| script.behaviour = Behaviour::BreakMidway);
    assert_eq!(error_of(router.chat("hello").await, 502).await["code"], "worker_failed");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_killed_in_the_middle_of_a_stream_ends_it_with_an_error() {
    let mut worker = FakeWorker::start(1);
    let router = TestRouter::ready(&[&worker], &[]).await;
    worker.with(|script| script.behaviour = Behaviour::Hang);
    let mut body = router.chat_stream("hello").await.bytes_stream();
    let first = body.next().await.expect("a piece").expect("bytes");
    assert_eq!(first, "data: {\"n\": 1}\n\n");
    worker.kill();
    let last = body.next().await.expect("a piece").expect("bytes");
    assert!(last.starts_with(b"data: {\"error\":"), "{last:?}");
    assert!(body.next().await.is_none(), "the stream ends");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_that_falls_silent_is_cut_off() {
    let worker = FakeWorker::start(1);
    let router = TestRouter::ready(&[&worker], &["--idle-timeout", "0.2"]).await;
    worker.with(|script| script.behaviour = Behaviour::Hang);
    let text = router.chat_stream("hello").await.text().await.expect("the stream ends in order");
    assert!(text.contains("\"worker_failed\""), "{text}");
    assert_eq!(error_of(router.chat("hello").await, 504).await["code"], "worker_failed");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_leaves_frees_the_worker() {
    let (worker, router) = fleet_of_one().await;
    worker.with(|script| script.behaviour = Behaviour::Hang);
    let mut body = router.chat_stream("hello").await.bytes_stream();
    body.next().await.expect("a piece").expect("bytes");
    assert_eq!(router.fleet().await["workers"][0]["in_flight"], 1);
    drop(body);
    eventually("the worker sees the client leave", || async { worker.n_left() == 1 }).await;
    router.wait_for_metric("warmpath_router_abandoned_responses_total", 1.0).await;
    assert_eq!(router.fleet().await["workers"][0]["in_flight"], 0);
    assert_eq!(router.metric("warmpath_router_requests_in_flight").await, 0.0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_leaves_before_the_first_byte_frees_the_worker() {
    let (worker, router) = fleet_of_one().await;
    worker.with(|script| script.behaviour = Behaviour::Hang);
    // Without streaming the client gets nothing before the whole response, so it waits.
    let request =
        router.client.post(router.url("/v1/chat/completions")).body(crate::support::chat_body("hello", false));
    let waiting = tokio::spawn(request.send());
    eventually("the worker has the request", || async { worker.seen().len() == 1 }).await;
    waiting.abort();
    eventually("the worker sees the client leave", || async { worker.n_left() == 1 }).await;
    eventually("its place is free", || async { router.metric("warmpath_router_requests_in_flight").await == 0.0 })
        .await;
    assert_eq!(router.fleet().await["workers"][0]["in_flight"], 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn stopping_lets_running_answers_finish_and_takes_no_more() {
    let mut worker = FakeWorker::start(1);
    let router = TestRouter::ready(&[&worker], &["--drain-timeout", "10"]).await;
    worker.with(|script| script.behaviour = Behaviour::Hang);
    let mut body = router.chat_stream("hello").await.bytes_stream();
    body.next().await.expect("a piece").expect("bytes");
    let (url, admin) = (router.url("/livez"), format!("http://{}/readyz", router.server.admin_address));
    let TestRouter { server, client } = router;
    let stopping = tokio::spawn(server.stop());
    eventually("the router is not ready any more", || async {
        client.get(&admin).send().await.is_ok_and(|response| response.status() == 503)
    })
    .await;
    eventually("no new connection is accepted", || async {
        let fresh = reqwest::Client::builder().no_proxy().build().expect("a client");
        fresh.get(&url).send().await.is_err()
    })
    .await;
    assert!(!stopping.is_finished(), "an answer is still running");
    worker.kill();
    let last = body.next().await.expect("a piece").expect("bytes");
    assert!(last.starts_with(b"data: {\"error\":"), "{last:?}");
    drop(body);
    tokio::time::timeout(Duration::from_secs(8), stopping)
        .await
        .expect("it stops before the deadline")
        .expect("no panic");
}

#[tokio::test(flavor = "multi_thread")]
async fn stopping_does_not_wait_forever() {
    let worker = FakeWorker::start(1);
    let router = TestRouter::ready(&[&worker], &["--drain-timeout", "0.2"]).await;
    worker.with(|script| script.behaviour = Behaviour::Hang);
    let mut body = router.chat_stream("hello").await.bytes_stream();
    body.next().await.expect("a piece").expect("bytes");
    tokio::time::timeout(Duration::from_secs(8), router.server.stop()).await.expect("the drain timeout ends it");
}
