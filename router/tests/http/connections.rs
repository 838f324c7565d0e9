//! Connections to stock servers: kept between requests, and closed by their servers without harm.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use crate::support::stock::FakeStock;
use crate::support::{TestRouter, error_of};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use warmpath_router::config::RESEND_WITHIN;

#[tokio::test(flavor = "multi_thread")]
async fn requests_share_connections_to_a_stock_server() {
    let server = FakeStock::start("tiny");
    let router = TestRouter::ready_for(&[server.flag()], &[]).await;
    for _ in 0..40 {
        assert!(!router.chat("hello").await.text().await.expect("text").is_empty());
    }
    // A poll of the server may run beside a request, and a response's end is recorded a moment after it has come.
    assert!(server.n_connections() <= 8, "{} connections", server.n_connections());
}

/// Reads a request; returns its first line, or `None` at the connection's end.
async fn read_request(stream: &mut TcpStream) -> Option<String> {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(stream.read_u8().await.ok()?);
    }
    let head = String::from_utf8(head).expect("text").to_ascii_lowercase();
    let length =
        head.lines().find_map(|line| line.strip_prefix("content-length: ")).map_or(0, |n| n.parse().expect("n"));
    let mut body = vec![0; length];
    stream.read_exact(&mut body).await.ok()?;
    head.lines().next().map(str::to_owned)
}

/// Counts of the POST requests of a server that responds to one only as the first request on its connection; for any
/// other the connection is closed.
#[derive(Default)]
struct Posts {
    n_received: AtomicUsize,
    /// Requests whose connection was closed.
    n_lost: AtomicUsize,
}

/// Starts such a server, which closes a connection this long after the request; returns its flag.
async fn start_closing(closes_after: Duration, posts: &Arc<Posts>) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("port 0 is free");
    let address = listener.local_addr().expect("it is bound");
    let posts = Arc::clone(posts);
    tokio::spawn(async move {
        loop {
            let (stream, _) = listener.accept().await.expect("a connection");
            tokio::spawn(serve(stream, closes_after, Arc::clone(&posts)));
        }
    });
    format!("openai+http://{address}")
}

/// Serves one connection.
async fn serve(mut stream: TcpStream, closes_after: Duration, posts: Arc<Posts>) {
    let mut is_used = false;
    while let Some(line) = read_request(&mut stream).await {
        let is_post = line.starts_with("post");
        if is_post {
            posts.n_received.fetch_add(1, Ordering::SeqCst);
        }
        if is_used && is_post {
            posts.n_lost.fetch_add(1, Ordering::SeqCst);
            tokio::time::sleep(closes_after).await;
            return;
        }
        is_used = true;
        let (status, body) = match line.split(' ').nth(1) {
            Some("/health" | "/v1/chat/completions") => ("200 OK", "{}"),
            Some("/v1/models") => ("200 OK", r#"{"data": [{"id": "tiny"}]}"#),
            _ => ("404 Not Found", "{}"),
        };
        let length = body.len();
        let answer =
            format!("HTTP/1.1 {status}\r\ncontent-type: application/json\r\ncontent-length: {length}\r\n\r\n{body}");
        if stream.write_all(answer.as_bytes()).await.is_err() {
            return;
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_connection_that_its_server_ends_just_then_loses_no_request() {
    let posts = Arc::default();
    let router = TestRouter::ready_for(&[start_closing(Duration::ZERO, &posts).await], &[]).await;
    for _ in 0..20 {
        assert_eq!(router.chat("hello").await.status(), 200);
    }
    assert!(posts.n_lost.load(Ordering::SeqCst) > 0, "no connection was used twice");
    assert_eq!(router.metric_of_all("warmpath_router_failed_attempts_total").await, 0.0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_whose_connection_breaks_later_reaches_its_server_once() {
    let posts = Arc::default();
    let server = start_closing(2 * RESEND_WITHIN, &posts).await;
    let router = TestRouter::ready_for(&[server], &["--attempts-max", "1"]).await;
    let mut n_chats = 0;
    let broken = loop {
        let answer = router.chat("hello").await;
        n_chats += 1;
        if posts.n_lost.load(Ordering::SeqCst) > 0 {
            break answer;
        }
        assert!(n_chats < 20, "no connection was used twice");
    };
    assert_eq!(error_of(broken, 502).await["code"], "worker_failed");
    assert_eq!(posts.n_received.load(Ordering::SeqCst), n_chats);
    assert_eq!(router.metric("warmpath_router_failed_attempts_total{failure=\"broken\"}").await, 1.0);
}
