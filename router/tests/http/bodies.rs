//! Bodies in a content coding, and queries after a path: how they reach workers and stock servers.
//!
//! Not here: the codings themselves (`warmpath_shell::body::coding`), invalid bodies (`requests`).

#[path = "../../../common/shell/src/http/body/coding/tests/encoded.rs"]
mod encoded;

use crate::support::keys::{KeyFile, key};
use crate::support::stock::FakeStock;
use crate::support::worker::FakeWorker;
use crate::support::{TestRouter, chat_body, error_of, fleet_of_one, header};
use encoded::encoded;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

const CODINGS: [&str; 4] = ["gzip", "deflate", "br", "zstd"];

fn post(router: &TestRouter, path: &str, coding: &str, body: Vec<u8>) -> reqwest::RequestBuilder {
    router.client.post(router.url(path)).header("content-encoding", coding).body(body)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_body_in_any_coding_reaches_every_kind_of_server_decoded() {
    let (worker, stock) = (FakeWorker::start(1), FakeStock::start("tiny"));
    let own = TestRouter::ready(&[&worker], &[]).await;
    let other = TestRouter::ready_for(&[stock.flag()], &[]).await;
    let message = json!({"max_tokens": 5, "messages": [{"role": "user", "content": "hello"}]}).to_string();
    for (path, body) in [("/v1/chat/completions", chat_body("hello", false)), ("/v1/messages", message)] {
        for (coding, router) in CODINGS.into_iter().flat_map(|coding| [(coding, &own), (coding, &other)]) {
            let bytes = encoded(coding, body.as_bytes()).await;
            let response = post(router, path, coding, bytes).send().await.expect("an answer");
            assert_eq!(response.status(), 200, "{path} {coding}");
        }
        for seen in [worker.seen(), stock.seen()].map(|seen| seen.last().cloned().expect("it was asked")) {
            assert_eq!(seen.body, body, "{path}");
            assert_eq!(seen.headers["content-length"], body.len().to_string(), "{path}");
            assert!(!seen.headers.contains_key("content-encoding"), "{path}: {:?}", seen.headers);
        }
    }
    // `Connection` cannot hide the coding.
    let bytes = encoded("gzip", chat_body("hello", false).as_bytes()).await;
    let hidden = post(&own, "/v1/chat/completions", "gzip", bytes).header("connection", "content-encoding");
    assert_eq!(hidden.send().await.expect("an answer").status(), 200);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_coding_that_is_not_known_is_named_with_those_that_are() {
    let (worker, router) = fleet_of_one().await;
    for coding in ["compress", "gzip, gzip", "snappy"] {
        let response = post(&router, "/v1/chat/completions", coding, b"anything".to_vec()).send().await;
        let response = response.expect("an answer");
        assert_eq!(header(&response, "accept-encoding"), "gzip, deflate, br, zstd");
        let error = error_of(response, 415).await;
        assert_eq!(error["code"], "unsupported_content_encoding", "{coding}");
        assert_eq!(error["message"], "the request's content-encoding must be one of gzip, deflate, br, zstd");
    }
    let response = post(&router, "/v1/messages", "compress", b"anything".to_vec()).send().await.expect("an answer");
    let (status, told) = (response.status(), response.json::<Value>().await.expect("JSON"));
    assert_eq!((status.as_u16(), &told["type"]), (415, &json!("error")));
    assert!(told["error"]["message"].as_str().is_some_and(|text| text.contains("gzip, deflate, br, zstd")), "{told}");
    for coding in CODINGS {
        let response = post(&router, "/v1/chat/completions", coding, b"{}".to_vec()).send().await.expect("an answer");
        assert_eq!(error_of(response, 400).await["message"], format!("the request body is not valid {coding}"));
    }
    assert!(worker.seen().is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn keys_limits_and_timeouts_apply_before_a_body_is_decoded() {
    let worker = FakeWorker::start(1);
    let (known, entry) = key("a", "requests_per_minute = 100");
    let file = KeyFile::new(&entry);
    let flags = ["--body-max", "100000", "--body-timeout", "0.5"];
    let router = TestRouter::ready(&[&worker], &[&file.flags()[..], &flags].concat()).await;
    let bomb = encoded("gzip", &vec![b' '; 50_000_000]).await;
    assert!(bomb.len() < 100_000, "{}", bomb.len());
    for coding in ["gzip", "compress"] {
        let response = post(&router, "/v1/chat/completions", coding, bomb.clone()).send().await.expect("an answer");
        error_of(response, 401).await;
    }
    let response = post(&router, "/v1/chat/completions", "gzip", bomb).bearer_auth(&known).send().await;
    let error = error_of(response.expect("an answer"), 413).await;
    assert_eq!(
        (&error["code"], &error["message"]),
        (&json!("request_too_large"), &json!("the request body is longer than 100000 bytes"))
    );

    let mut socket = tokio::net::TcpStream::connect(router.server.address).await.expect("a connection");
    let head = format!(
        "POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\nauthorization: Bearer {known}\r\n\
         content-encoding: gzip\r\ncontent-length: 100\r\n\r\n\x1f"
    );
    socket.write_all(head.as_bytes()).await.expect("it is sent");
    let mut answer = String::new();
    socket.read_to_string(&mut answer).await.expect("an answer");
    assert!(answer.starts_with("HTTP/1.1 408"), "{answer}");
    assert!(worker.seen().is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn the_query_of_a_path_is_passed_on() {
    let (worker, stock) = (FakeWorker::start(1), FakeStock::start("tiny"));
    let own = TestRouter::ready(&[&worker], &[]).await;
    let other = TestRouter::ready_for(&[stock.flag()], &[]).await;
    let message = json!({"max_tokens": 5, "messages": [{"role": "user", "content": "hello"}]}).to_string();
    for target in [
        "/v1/messages?beta=true",
        "/v1/messages",
        "/v1/messages?a=%2Fb%3F%26&c=z%C3%BCrich&flag&d=a+b",
        "/v1/messages?a=1?b=2",
        "/v1/chat/completions?api-version=2024-10-21",
    ] {
        for router in [&own, &other] {
            assert_eq!(router.post(target, message.clone()).await.status(), 200, "{target}");
        }
        for seen in [worker.seen(), stock.seen()] {
            assert_eq!(seen.last().expect("it was asked").target, target);
        }
    }
}
