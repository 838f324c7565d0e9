//! Workers behind a path, and stock servers that require a key.

use std::path::Path;

use crate::support::stock::FakeStock;
use crate::support::worker::FakeWorker;
use crate::support::{TestRouter, chat_body, config_of, eventually, long_text};
use reqwest::header::{AUTHORIZATION, HeaderMap};
use serde_json::json;
use tempfile::NamedTempFile;
use warmpath_router::server::{Server, StartError};

fn key_file(key: &str) -> NamedTempFile {
    let file = NamedTempFile::new().expect("a temporary file");
    std::fs::write(file.path(), key).expect("it can be written");
    file
}

fn key_flag(url: &str, path: &Path) -> String {
    format!("{url}={}", path.display())
}

fn text<'a>(headers: &'a HeaderMap, name: &str) -> Option<&'a str> {
    headers.get(name).map(|value| value.to_str().expect("text"))
}

#[tokio::test(flavor = "multi_thread")]
async fn workers_of_both_kinds_are_used_behind_a_path() {
    let own = FakeWorker::start_under(1, "/workers/w1");
    let stock = FakeStock::start_under("big", "/proxy/llama");
    let flags = [format!("{}/", own.url()), format!("{}/v1", stock.flag())];
    let router = TestRouter::ready_for(&flags, &[]).await;
    assert_eq!((router.state_of(0).await, router.state_of(1).await), ("ready".to_owned(), "ready".to_owned()));
    for model in ["tiny", "big"] {
        let body = json!({"model": model, "messages": [{"role": "user", "content": "hello"}]}).to_string();
        assert_eq!(router.post("/v1/chat/completions", body).await.status(), 200, "{model}");
    }
    assert_eq!((own.seen().len(), stock.seen().len()), (1, 1));
    // The summary came, and the vocabulary.
    own.hold(&long_text("bread"), None, 0);
    eventually("its blocks are known", || async { router.fleet().await["workers"][0]["blocks"] != 0 }).await;
    eventually("its vocabulary is known", || async { router.fleet().await["vocabularies"][0]["state"] == "ready" })
        .await;
    let paths: Vec<_> = stock.asked().into_iter().map(|(path, _)| path).collect();
    for path in ["/health", "/v1/models", "/props", "/v1/chat/completions"] {
        assert!(paths.contains(&path.to_owned()), "{path}: {paths:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_s_key_is_sent_to_that_server_only_in_place_of_a_client_s() {
    let (keyed, other) = (FakeStock::start("tiny"), FakeStock::start("tiny"));
    keyed.with(|script| script.key = Some("secret-of-one"));
    let file = key_file("# of the first\nsecret-of-one\n");
    let flag = key_flag(&keyed.flag(), file.path());
    let flags = ["--worker-key-file", &flag, "--policy", "round-robin"];
    let router = TestRouter::ready_for(&[keyed.flag(), other.flag()], &flags).await;
    for worker in 0..2 {
        eventually("it lets the router in", || async { router.state_of(worker).await == "ready" }).await;
    }
    for path in ["/v1/chat/completions", "/v1/messages"] {
        for _ in 0..4 {
            let request = router.client.post(router.url(path)).body(chat_body("hello", false));
            let response = request.header("authorization", "Bearer client").header("x-api-key", "client").send().await;
            assert_eq!(response.expect("an answer").status(), 200);
        }
    }
    let (of_keyed, of_other) = (keyed.asked(), other.asked());
    assert!(of_keyed.iter().any(|(path, _)| path == "/v1/messages"), "both were asked");
    for (path, headers) in &of_keyed {
        assert_eq!(text(headers, AUTHORIZATION.as_str()), Some("Bearer secret-of-one"), "{path}");
        assert_ne!(text(headers, "x-api-key"), Some("client"), "{path}");
    }
    for (path, headers) in &of_other {
        let expected = path.starts_with("/v1/") && path != "/v1/models";
        assert_eq!(text(headers, AUTHORIZATION.as_str()), expected.then_some("Bearer client"), "{path}");
    }
    let shown = format!("{} {}", router.fleet().await, router.metric_text().await);
    assert!(!shown.contains("secret"), "{shown}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_key_that_changes_counts_at_once_and_a_wrong_one_is_the_router_s_fault() {
    let server = FakeStock::start("tiny");
    server.with(|script| script.key = Some("first"));
    let file = key_file("first");
    let flag = file.path().display().to_string();
    let router = TestRouter::ready_for(&[server.flag()], &["--worker-key-file", &flag]).await;
    assert_eq!(router.chat("hello").await.status(), 200);

    server.with(|script| script.key = Some("second"));
    let response = router.chat("hello").await;
    assert!([502, 503].contains(&response.status().as_u16()), "{}", response.status());
    eventually("it refuses the router", || async { router.state_of(0).await == "refused" }).await;
    let trouble = router.fleet().await["workers"][0]["trouble"].to_string();
    assert!(trouble.contains("--worker-key-file"), "{trouble}");
    // An invalid file changes nothing.
    std::fs::write(file.path(), "two words").expect("it can be written");
    router.wait_for_metric("warmpath_router_worker_key_file_failures_total", 1.0).await;
    std::fs::write(file.path(), "second\n").expect("it can be written");
    eventually("it lets the router in again", || async { router.chat("hello").await.status() == 200 }).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_without_its_own_key_gets_the_client_s() {
    let server = FakeStock::start("tiny");
    let router = TestRouter::ready_for(&[server.flag()], &[]).await;
    let request = router.client.post(router.url("/v1/chat/completions")).body(chat_body("hello", false));
    let answer = request.header("authorization", "Bearer client").send().await.expect("an answer");
    assert_eq!(answer.status(), 200);
    assert_eq!(text(&server.seen()[0].headers, "authorization"), Some("Bearer client"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_router_with_a_wrong_key_file_does_not_start_and_logs_no_key() {
    let file = key_file("two words");
    for path in ["/nowhere.key".to_owned(), file.path().display().to_string()] {
        let config = config_of(&["openai+http://127.0.0.1:9".to_owned()], &["--worker-key-file", &path]);
        let error = Server::start(config).await.err().expect("it does not start");
        assert!(matches!(error, StartError::WorkerKey { .. }), "{error}");
        let text = warmpath_shell::chain(&error);
        assert!(text.contains(&path) && !text.contains("two words"), "{text}");
    }
}
