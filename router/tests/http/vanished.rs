//! Packets that vanish silently: waiting requests go elsewhere, dead connections keep nothing, and a vanished client
//! keeps no worker.
//!
//! Not here: workers that hang while their machine responds (`lost`).

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::time::Duration;

use crate::support::network::{Cut, FAR, NEAR, Network};
use crate::support::stock::FakeStock;
use crate::support::worker::{Behaviour, FakeWorker};
use crate::support::{TestRouter, chat_body, config, eventually, header, long_text};
use tokio::task::JoinHandle;

/// Time in which a request must have gone elsewhere, far below the time limit of a worker's response.
const ELSEWHERE: Duration = Duration::from_secs(60);

/// Connections to a stock server before it is cut off: one for the request that it holds, and idle ones.
const N_CONNECTIONS: usize = 3;

/// A worker behind a cable, and the actions of a scenario.
struct Far<'a> {
    networks: (&'a Network, &'a Network),
    cut: Cut,
    n_seen: &'a (dyn Fn() -> usize + Sync),
    be_silent: &'a (dyn Fn() + Sync),
    answer: &'a (dyn Fn() + Sync),
}

fn send(router: &TestRouter, text: &str) -> JoinHandle<reqwest::Response> {
    let request = router.client.post(router.url("/v1/chat/completions")).body(chat_body(text, false));
    tokio::spawn(async move { request.send().await.expect("an answer") })
}

/// Returns the response to a request that must not wait for the far worker.
async fn answer(waiting: JoinHandle<reqwest::Response>) -> reqwest::Response {
    tokio::time::timeout(ELSEWHERE, waiting).await.expect("it goes elsewhere").expect("no panic")
}

/// Cuts the first worker off while it runs a request, whose text is routed to it, and sends more.
async fn cut_off(router: &TestRouter, text: &str, far: &Far<'_>) {
    let n_before = (far.n_seen)();
    assert_eq!(answer(send(router, text)).await.status(), 200);
    assert_eq!((far.n_seen)(), n_before + 1, "the far worker gets this text");
    (far.be_silent)();
    let mut waiting = vec![send(router, text)];
    eventually("it has the request", || async { (far.n_seen)() == n_before + 2 }).await;
    let (near, network) = far.networks;
    if matches!(far.cut, Cut::Flows) {
        // It can be reached again.
        (far.answer)();
    }
    network.cut(near, far.cut);
    // The loss is not known yet; connections of earlier requests are idle.
    waiting.extend((0..3).map(|_| send(router, text)));
    for (nth, waiting) in waiting.into_iter().enumerate() {
        let response = answer(waiting).await;
        assert_eq!(response.status(), 200);
        let is_repeated = header(&response, "x-warmpath-route") == "retry";
        assert!(nth > 0 || is_repeated || matches!(far.cut, Cut::Flows), "the far worker had it");
    }
    if matches!(far.cut, Cut::Flows) {
        // The worker is healthy, even if it was lost for a moment.
        return;
    }
    eventually("it is lost", || async { router.state_of(0).await == "down" }).await;
    assert_eq!(answer(send(router, text)).await.status(), 200);
    (far.answer)();
    network.mend(far.cut);
    eventually("it is back", || async { router.state_of(0).await == "ready" }).await;
    for waiting in [(); 4].map(|()| send(router, text)) {
        assert_eq!(answer(waiting).await.status(), 200);
    }
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().expect("a runtime")
}

fn worker_is_cut_off(cut: Cut) {
    let Some((near, far)) = Network::joined() else { return };
    let away = far.inside(|| FakeWorker::start_at(1, &format!("{FAR}:0"), ""));
    let scenario = || {
        let at_hand = FakeWorker::start(2);
        runtime().block_on(async {
            let router = TestRouter::ready(&[&away, &at_hand], &[]).await;
            let text = long_text("bread");
            away.hold(&text, None, 0);
            eventually("its blocks are known", || async { router.fleet().await["workers"][0]["blocks"] != 0 }).await;
            let far = Far {
                networks: (&near, &far),
                cut,
                n_seen: &|| away.seen().len(),
                be_silent: &|| away.with(|script| script.behaviour = Behaviour::Silent),
                answer: &|| away.with(|script| script.behaviour = Behaviour::Answer),
            };
            cut_off(&router, &text, &far).await;
        });
    };
    near.inside(scenario);
}

/// Texts of requests: within what a host's machine takes at once, whether it is read or not, and far beyond.
fn texts() -> [String; 2] {
    [long_text("bread"), long_text("bread").repeat(160)]
}

fn stock_server_is_cut_off(cut: Cut) {
    for text in texts() {
        stock_server_is_cut_off_with(cut, &text);
    }
}

fn stock_server_is_cut_off_with(cut: Cut, text: &str) {
    let Some((near, far)) = Network::joined() else { return };
    let away = far.inside(|| FakeStock::start_at("tiny", &format!("{FAR}:0"), ""));
    let scenario = || {
        let at_hand = FakeStock::start("tiny");
        runtime().block_on(async {
            at_hand.with(|script| script.health = Some(503));
            let router = TestRouter::ready_for(&[away.flag(), at_hand.flag()], &[]).await;
            eventually("several connections are open, and idle when the cut comes", || async {
                for waiting in [(); 4].map(|()| send(&router, text)) {
                    assert_eq!(answer(waiting).await.status(), 200);
                }
                away.n_connections() >= N_CONNECTIONS
            })
            .await;
            at_hand.with(|script| script.health = Some(200));
            eventually("both are ready", || async { router.state_of(1).await == "ready" }).await;
            let far = Far {
                networks: (&near, &far),
                cut,
                n_seen: &|| away.seen().len(),
                be_silent: &|| away.with(|script| script.is_silent = true),
                answer: &|| away.with(|script| script.is_silent = false),
            };
            cut_off(&router, text, &far).await;
        });
    };
    near.inside(scenario);
}

#[test]
fn requests_at_a_worker_whose_cable_is_pulled_are_retried_elsewhere() {
    worker_is_cut_off(Cut::Cable);
}

#[test]
fn requests_at_a_worker_whose_answers_vanish_are_retried_elsewhere() {
    worker_is_cut_off(Cut::Answers);
}

#[test]
fn requests_at_a_stock_server_whose_cable_is_pulled_are_retried_elsewhere() {
    stock_server_is_cut_off(Cut::Cable);
}

#[test]
fn requests_at_a_stock_server_whose_answers_vanish_are_retried_elsewhere() {
    stock_server_is_cut_off(Cut::Answers);
}

#[test]
fn requests_on_dead_connections_continue_at_a_worker() {
    worker_is_cut_off(Cut::Flows);
}

#[test]
fn requests_on_dead_connections_continue_at_a_stock_server() {
    stock_server_is_cut_off(Cut::Flows);
}

/// Returns a connection on which the first events of a stream have arrived.
fn begun_stream(router: std::net::SocketAddr) -> TcpStream {
    let mut connection = TcpStream::connect(router).expect("the router listens");
    let body = chat_body("bread", true);
    let head = format!("POST /v1/chat/completions HTTP/1.1\r\nhost: {NEAR}\r\ncontent-length: {}\r\n\r\n", body.len());
    connection.write_all(format!("{head}{body}").as_bytes()).expect("the router reads");
    let mut arrived = Vec::new();
    while !String::from_utf8_lossy(&arrived).contains("data: ") {
        let mut part = [0; 4096];
        let n = connection.read(&mut part).expect("the router answers");
        assert_ne!(n, 0, "the stream goes on: {}", String::from_utf8_lossy(&arrived));
        arrived.extend_from_slice(&part[..n]);
    }
    connection
}

fn client_is_cut_off(cut: Cut) {
    let Some((near, far)) = Network::joined() else { return };
    near.inside(|| {
        let worker = FakeWorker::start(1);
        runtime().block_on(async {
            let mut config = config(&[&worker], &["--idle-timeout", "2", "--allowed-host", NEAR]);
            config.listen = format!("{NEAR}:0").parse().expect("an address");
            let router = TestRouter::start_with(config).await.wait_until_ready().await;
            worker.with(|script| script.behaviour = Behaviour::Trickle);
            let address = router.server.address;
            let connection = tokio::task::block_in_place(|| far.inside(|| begun_stream(address)));
            tokio::time::sleep(Duration::from_secs(4)).await;
            assert_eq!(worker.n_left(), 0, "the client need not send anything");
            far.cut(&near, cut);
            eventually("the worker is free", || async { worker.n_left() == 1 }).await;
            drop(connection);
        });
    });
}

#[test]
fn a_client_whose_cable_is_pulled_in_the_middle_of_a_stream_keeps_no_worker() {
    client_is_cut_off(Cut::Cable);
}

#[test]
fn a_client_whose_acknowledgements_vanish_in_the_middle_of_a_stream_keeps_no_worker() {
    client_is_cut_off(Cut::Answers);
}
