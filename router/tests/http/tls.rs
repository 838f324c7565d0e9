//! TLS on the listener for clients: renewed certificates, required client certificates, and slow heads.

use std::time::Duration;

use crate::support::authority::{Authority, get, text};
use crate::support::worker::FakeWorker;
use crate::support::{TestRouter, config, eventually};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use warmpath_router::server::Server;

#[tokio::test(flavor = "multi_thread")]
async fn a_certificate_is_renewed_under_running_answers_and_wrong_files_change_nothing() {
    let authority = Authority::new();
    let (cert, key) = authority.sign("server");
    let worker = FakeWorker::start(1);
    let flags = ["--tls-cert", text(&cert), "--tls-key", text(&key)];
    let server = Server::start(config(&[&worker], &flags)).await.expect("port 0 is free");
    let router = TestRouter { server, client: reqwest::Client::new() };
    let address = router.server.address;
    let client = authority.client(None);
    let (first, answer) = get(address, &client).await.expect("it answers");
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    assert!(get(address, &Authority::new().client(None)).await.is_err(), "another authority's client");
    let mut plain = TcpStream::connect(address).await.expect("it listens");
    plain.write_all(b"GET /livez HTTP/1.1\r\n\r\n").await.expect("it takes bytes");
    let mut answer = Vec::new();
    // An error is as good: the connection is closed.
    let _ = plain.read_to_end(&mut answer).await;
    assert!(!answer.starts_with(b"HTTP"), "{answer:?}");

    std::fs::write(&cert, "no certificate").expect("it can be written");
    router.wait_for_metric("warmpath_router_tls_failures_total", 1.0).await;
    assert_eq!(get(address, &client).await.expect("it answers").0, first);
    authority.sign("server");
    eventually("the new certificate is shown", || async {
        get(address, &client).await.is_ok_and(|(shown, _)| shown != first)
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn clients_must_show_a_certificate_where_their_roots_are_given() {
    let (authority, other) = (Authority::new(), Authority::new());
    let ((cert, key), root) = (authority.sign("server"), authority.root_file());
    let worker = FakeWorker::start(1);
    let flags = ["--tls-cert", text(&cert), "--tls-key", text(&key), "--tls-client-ca", text(&root)];
    let server = Server::start(config(&[&worker], &flags)).await.expect("port 0 is free");
    let (own, foreign) = (authority.sign("client"), other.sign("client"));
    let (_, answer) = get(server.address, &authority.client(Some(&own))).await.expect("it answers");
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    for connector in [authority.client(None), authority.client(Some(&foreign))] {
        assert!(get(server.address, &connector).await.is_err());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn files_that_do_not_fit_end_the_start() {
    let authority = Authority::new();
    let ((cert, _), (_, other_key)) = (authority.sign("server"), authority.sign("other"));
    let worker = FakeWorker::start(1);
    for (cert, key) in
        [(text(&cert), text(&other_key)), (text(&cert), "/nonexistent"), (text(&other_key), text(&other_key))]
    {
        let start = Server::start(config(&[&worker], &["--tls-cert", cert, "--tls-key", key])).await;
        assert!(start.err().expect("it does not start").to_string().starts_with("--tls-cert"));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_late_request_head_closes_only_its_own_connection() {
    let worker = FakeWorker::start(1);
    let router = TestRouter::ready(&[&worker], &["--head-timeout", "0.3"]).await;
    let mut slow = Vec::new();
    for _ in 0..50 {
        let mut stream = TcpStream::connect(router.server.address).await.expect("it listens");
        stream.write_all(b"POST /v1/chat/completions HTTP/1.1\r\nhost:").await.expect("it takes bytes");
        slow.push(stream);
    }
    assert_eq!(router.chat("hello").await.status(), 200);
    for mut stream in slow {
        let mut answer = Vec::new();
        let read = tokio::time::timeout(Duration::from_secs(20), stream.read_to_end(&mut answer)).await;
        // Closed or reset, but not left open; perhaps with an alert.
        assert!(read.is_ok(), "the connection stays open");
    }
}
