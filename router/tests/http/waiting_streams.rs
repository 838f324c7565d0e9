//! Clients that wait for a stream: comments keep their connections alive, whatever they wait for.
//!
//! Each test takes as long as a stream may be silent, in real time, since the servers have clocks of their own. Not
//! here: how many comments there are, and errors behind them (`lifecycle::keepalive`, in virtual time).

use crate::support::opening::Opening;
use crate::support::stock::FakeStock;
use crate::support::worker::{Behaviour, FakeWorker, full, idle};
use crate::support::{TestRouter, chat_body, eventually};

/// Asserts that a client gets the head of a stream and a comment; returns the stream.
async fn commented(router: &TestRouter) -> reqwest::Response {
    let mut response = router.chat_stream("hello").await;
    assert_eq!(response.status(), 200);
    let first = response.chunk().await.expect("the stream goes on").expect("it has not ended");
    assert_eq!(first, ": the answer goes on\n\n");
    response
}

async fn rest(response: reqwest::Response) -> String {
    let text = response.text().await.expect("the stream ends well");
    let (_, events) = text.split_at(text.find("data: ").expect("it has events"));
    events.to_owned()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_gets_comments_while_a_stock_server_is_silent_and_another_server_can_still_answer() {
    let mut servers = [FakeStock::start("tiny"), FakeStock::start("tiny")];
    for server in &servers {
        server.with(|script| script.is_silent = true);
    }
    let router = TestRouter::ready_for(&servers.each_ref().map(FakeStock::flag), &[]).await;
    let response = commented(&router).await;
    let silent = servers.iter().position(|server| !server.seen().is_empty()).expect("one has the request");
    servers[1 - silent].with(|script| script.is_silent = false);
    servers[silent].kill();
    assert!(rest(response).await.ends_with("data: [DONE]\n\n"));
    assert_eq!(servers[1 - silent].seen().len(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_gets_comments_while_its_request_waits_in_the_queue_and_while_its_model_loads() {
    let (busy, loading) = (FakeWorker::start(1), FakeWorker::start(2));
    loading.with(|script| script.opening = Opening::Loading(&["tiny"]));
    let queue = TestRouter::ready(&[&busy], &[]).await;
    busy.update(Vec::new(), Some(full(60_000)));
    eventually("it is full", || async { queue.fleet().await["workers"][0]["load"]["n_decoding"] == 4 }).await;
    let hold = TestRouter::start(&[&loading], &["--wait", "600"]).await;
    eventually("it loads", || async { hold.state_of(0).await == "loading" }).await;
    let (queued, held) = tokio::join!(commented(&queue), commented(&hold));
    assert!(busy.seen().is_empty() && loading.seen().is_empty());
    busy.update(Vec::new(), Some(idle()));
    loading.with(|script| script.opening = Opening::AtOnce);
    for response in [queued, held] {
        assert_eq!(rest(response).await, "data: {\"n\": 1}\n\ndata: {\"n\": 2}\n\ndata: [DONE]\n\n");
    }
    assert_eq!(busy.seen()[0].body, chat_body("hello", true));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_gets_comments_while_its_server_is_silent_in_the_middle_of_a_stream() {
    let worker = FakeWorker::start(1);
    worker.with(|script| script.behaviour = Behaviour::Hang);
    let router = TestRouter::ready(&[&worker], &[]).await;
    let mut response = router.chat_stream("hello").await;
    for expected in ["data: {\"n\": 1}\n\n", ": the answer goes on\n\n"] {
        assert_eq!(response.chunk().await.expect("the stream goes on").expect("it has not ended"), expected);
    }
}
