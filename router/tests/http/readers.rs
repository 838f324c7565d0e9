//! Clients that stop reading, or read slowly.

use std::time::Duration;

use crate::support::raw::{RawServer, Step, events};
use crate::support::{TestRouter, chat_body, eventually};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// Returns an event of 16 KiB.
fn event() -> String {
    format!("data: {{\"text\": \"{}\"}}\n\n", "x".repeat(16 << 10))
}

/// Requests a stream and reads nothing of it.
async fn ask(router: &TestRouter) -> TcpStream {
    let mut client = TcpStream::connect(router.server.address).await.expect("it listens");
    let body = chat_body("hello", true);
    let head = format!(
        "POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\ncontent-length: {}",
        body.len()
    );
    client.write_all(format!("{head}\r\n\r\n{body}").as_bytes()).await.expect("it takes bytes");
    client
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_stops_reading_is_cut_off_and_its_server_freed() {
    let server = RawServer::start(events(&[]).then(Step::Repeat(event().into_bytes()))).await;
    let router = TestRouter::ready_for(&[server.flag()], &["--idle-timeout", "0.5"]).await;
    let mut clients = Vec::new();
    for _ in 0..5 {
        clients.push(ask(&router).await);
    }
    eventually("the server has been left", || async { server.n_left() == 5 }).await;
    eventually("their places are free", || async { router.metric("warmpath_router_requests_in_flight").await == 0.0 })
        .await;
    router.wait_for_metric("warmpath_router_abandoned_responses_total", 5.0).await;
    for mut client in clients {
        let mut given = Vec::new();
        let _ = client.read_to_end(&mut given).await;
        assert!(!given.ends_with(b"0\r\n\r\n"), "the answer does not look complete");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_reads_slowly_gets_everything() {
    let event = event();
    let pieces = vec![event.as_str(); 200];
    let server = RawServer::start(events(&[&pieces[..], &["data: [DONE]\n\n"]].concat())).await;
    let router = TestRouter::ready_for(&[server.flag()], &["--idle-timeout", "1"]).await;
    let mut client = ask(&router).await;
    let (mut given, mut buffer) = (Vec::new(), vec![0; 32 << 10]);
    loop {
        let n = client.read(&mut buffer).await.expect("the connection is whole");
        given.extend_from_slice(&buffer[..n]);
        if n == 0 {
            break;
        }
        // This reader is slow: the whole stream takes longer than the timeout for reading nothing.
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    assert!(given.ends_with(b"0\r\n\r\n"), "the answer is whole");
    assert!(given.windows(6).any(|window| window == b"[DONE]"));
}
