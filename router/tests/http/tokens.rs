//! The fleet's token: sent to every Warmpath worker and to no other server, changed during requests, refused visibly.
//!
//! Not here: the file's format (`warmpath-shell`), real workers (`worker_tls`).

use std::path::PathBuf;
use std::time::Duration;

use crate::support::stock::FakeStock;
use crate::support::worker::FakeWorker;
use crate::support::{TestRouter, chat_body, config, eventually, header};
use tempfile::TempDir;
use warmpath_common::summary::{STREAM_PATH, VOCABULARY_PATH};
use warmpath_router::server::Server;

/// A file of tokens in a temporary folder.
struct TokenFile {
    path: PathBuf,
    _folder: TempDir,
}

impl TokenFile {
    fn new(text: &str) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let file = Self { path: folder.path().join("token"), _folder: folder };
        file.write(text);
        file
    }

    fn write(&self, text: &str) {
        std::fs::write(&self.path, text).expect("it can be written");
    }

    fn flags(&self) -> [&str; 2] {
        ["--fleet-token-file", self.path.to_str().expect("UTF-8")]
    }
}

/// Returns a token of one letter.
fn token(letter: char) -> String {
    letter.to_string().repeat(40)
}

fn worker_that_wants(uid: u64, token: &str) -> FakeWorker {
    let worker = FakeWorker::start(uid);
    worker.with(|script| script.token = Some(token.to_owned()));
    worker
}

#[tokio::test(flavor = "multi_thread")]
async fn every_call_to_a_worker_carries_the_token_and_no_call_to_a_stock_server_does() {
    let worker = worker_that_wants(1, &token('a'));
    let stock = FakeStock::start("other");
    let file = TokenFile::new(&token('a'));
    let router = TestRouter::ready_for(&[worker.url(), format!("openai+{}", stock.url())], &file.flags()).await;
    for (model, path) in [("tiny", "/v1/chat/completions"), ("other", "/v1/chat/completions"), ("tiny", "/v1/messages")]
    {
        let body =
            chat_body("hello", false).replacen('{', &format!("{{\"model\": \"{model}\", \"max_tokens\": 5, "), 1);
        let request = router.client.post(router.url(path)).bearer_auth("of-the-client").header("x-api-key", "its-own");
        assert_eq!(request.body(body).send().await.expect("an answer").status(), 200, "{model} {path}");
    }
    let asked = worker.asked();
    for path in [STREAM_PATH, VOCABULARY_PATH, "/v1/chat/completions", "/v1/messages"] {
        assert!(asked.iter().any(|(found, _)| found == path), "{path}");
    }
    for (path, headers) in asked {
        assert_eq!(headers["authorization"], format!("Bearer {}", token('a')), "{path}");
        assert!(!format!("{headers:?}").contains("its-own"), "{path}: the client's key goes no further");
    }
    let seen = &stock.seen()[0].headers;
    assert_eq!(seen["authorization"], "Bearer of-the-client", "a stock server may want a key of its own");
    assert!(stock.seen().iter().all(|seen| !format!("{:?}", seen.headers).contains(&token('a'))));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_that_requires_another_token_is_reported_and_gets_no_requests() {
    let (good, bad) = (worker_that_wants(1, &token('a')), worker_that_wants(2, &token('b')));
    let file = TokenFile::new(&token('a'));
    let router = TestRouter::ready(&[&good, &bad], &file.flags()).await;
    eventually("it is refused", || async { router.state_of(1).await == "refused" }).await;
    let trouble = router.fleet().await["workers"][1]["trouble"].clone();
    assert!(trouble.as_str().expect("it is said why").contains("--fleet-token-file"), "{trouble}");
    router.wait_for_metric("warmpath_router_summary_stream_ends_total{reason=\"refused\"}", 1.0).await;
    assert_eq!(router.metric("warmpath_router_workers{state=\"refused\"}").await, 1.0);
    for _ in 0..8 {
        let response = router.chat("hello").await;
        assert_eq!((response.status().as_u16(), header(&response, "x-warmpath-worker")), (200, format!("{:016x}", 1)));
    }
    assert!(bad.seen().is_empty());

    bad.with(|script| script.token = Some(token('a')));
    eventually("it is let in", || async { router.state_of(1).await == "ready" }).await;
    assert_eq!(router.fleet().await["workers"][1]["trouble"], serde_json::Value::Null);
}

#[tokio::test(flavor = "multi_thread")]
async fn tokens_are_changed_without_a_lost_request() {
    let worker = worker_that_wants(1, &token('a'));
    let file = TokenFile::new(&token('a'));
    let router = TestRouter::ready(&[&worker], &file.flags()).await;
    let all_answer = async || {
        for _ in 0..5 {
            assert_eq!(router.chat("hello").await.status(), 200);
        }
    };
    let shows = async |letter: char| {
        eventually("the file is read", || async {
            assert_eq!(router.chat("hello").await.status(), 200);
            worker
                .asked()
                .last()
                .is_some_and(|(_, headers)| headers["authorization"] == format!("Bearer {}", token(letter)))
        })
        .await;
    };
    file.write("too short");
    router.wait_for_metric("warmpath_router_token_file_failures_total", 1.0).await;
    all_answer().await;
    file.write(&format!("{}\n{}\n", token('b'), token('a')));
    // The router sends the new one first; the worker knows only the old one.
    eventually("both are shown", || async {
        assert_eq!(router.chat("hello").await.status(), 200);
        worker.asked().iter().any(|(_, headers)| headers["authorization"] == format!("Bearer {}", token('b')))
    })
    .await;
    worker.with(|script| script.token = Some(token('b')));
    all_answer().await;
    file.write(&token('b'));
    tokio::time::sleep(Duration::from_millis(1100)).await;
    shows('b').await;
    assert_eq!(router.metric("warmpath_router_failed_attempts_total{failure=\"refused\"}").await, 0.0);

    // A request that is refused all the same goes elsewhere, and the client never sees the worker's response.
    worker.with(|script| script.token = Some(token('c')));
    assert_eq!(router.chat("hello").await.status(), 502);
    assert_eq!(router.metric("warmpath_router_failed_attempts_total{failure=\"refused\"}").await, 1.0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_wrong_file_of_tokens_ends_the_start() {
    let worker = FakeWorker::start(1);
    let file = TokenFile::new("too short");
    for flags in [file.flags(), ["--fleet-token-file", "/nonexistent"]] {
        let error = Server::start(config(&[&worker], &flags)).await.err().expect("it does not start");
        assert!(error.to_string().starts_with("--fleet-token-file"), "{error}");
    }
}
