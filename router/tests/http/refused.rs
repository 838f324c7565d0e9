//! Vocabularies that would harm a router: their workers are excluded, and all others are served.
//!
//! Not here: harmful vocabularies (`warmpath-gguf`'s tests), vocabularies that only differ from the declared ones
//! (`summaries`).

use std::time::Duration;

use crate::support::worker::{FakeWorker, MAKER, model};
use crate::support::{TestRouter, VOCABULARY, chat_body, config, eventually, program};
use axum::body::Bytes;
use warmpath_common::model::{Fingerprint, ModelInfo};
use warmpath_gguf::{Value, Writer, check};
use warmpath_prompt::{PromptMaker, PromptOptions};
use warmpath_router::server::Server;

/// An architecture that llama.cpp does not know, so it refuses the file before it reads the vocabulary.
const UNKNOWN: &str = "none-known";

/// Returns the tiny model's vocabulary with other metadata.
fn changed(change: impl FnOnce(&mut Writer)) -> Bytes {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = folder.path().join("vocabulary.gguf");
    std::fs::write(&path, &*VOCABULARY).expect("the vocabulary is written");
    let mut writer = Writer::new();
    writer.copy_keys(&check(&path).expect("it is sound"), |_| true);
    change(&mut writer);
    writer.begin(&path).and_then(warmpath_gguf::TensorSink::finish).expect("it is written");
    Bytes::from(std::fs::read(&path).expect("it is there"))
}

fn with_text(key: &str, text: &str) -> Bytes {
    changed(|writer| writer.set(key, Value::Text(text)).expect("a good value"))
}

fn with_equal_tokens() -> Bytes {
    let tokens = vec!["a".to_owned(); MAKER.vocabulary().n_vocab as usize];
    changed(|writer| {
        writer.set("general.architecture", Value::Text(UNKNOWN)).expect("a good value");
        writer.set("tokenizer.ggml.tokens", Value::Texts(&tokens)).expect("a good value");
    })
}

fn of_kind(kind: &str) -> Bytes {
    changed(|writer| {
        writer.set("general.architecture", Value::Text(UNKNOWN)).expect("a good value");
        writer.set("tokenizer.ggml.model", Value::Text(kind)).expect("a good value");
    })
}

/// Starts a worker that serves `vocabulary` with a model of its own.
fn stranger(uid: u64, vocabulary: Bytes) -> FakeWorker {
    let worker = FakeWorker::start(uid);
    worker.with(|script| {
        script.vocabulary = vocabulary;
        let names = vec!["strange".to_owned()];
        script.summary.snapshot.model = ModelInfo { names, fingerprint: Fingerprint([9; 32]), ..model() };
    });
    worker
}

async fn excluded(router: &TestRouter, idx: usize) -> String {
    router.fleet().await["workers"][idx]["excluded"].as_str().unwrap_or_default().to_owned()
}

/// Requests the ordinary model, by its name.
async fn status(router: &TestRouter) -> u16 {
    let body = chat_body("a question", false).replacen('{', "{\"model\": \"tiny\", ", 1);
    router.post("/v1/chat/completions", body).await.status().as_u16()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_worker_whose_vocabulary_would_end_the_router_is_excluded_and_others_are_served() {
    let cases = [
        (with_equal_tokens(), "tokens 0 and 1 are both \"a\""),
        (of_kind("llama"), "no token stands for byte"),
        (of_kind("rwkv"), "no token stands for byte"),
        (with_text("tokenizer.ggml.pre", "no such"), "cannot load the vocabulary"),
        // Templates end no process: minijinja's fuel pays for the memory that they take, too.
        (Bytes::from_static(b"GGUF"), "cannot load the vocabulary"),
        (with_text("warmpath.vocabulary", "{}"), "its declaration is invalid"),
    ];
    for (vocabulary, says) in cases {
        let (worker, stranger) = (FakeWorker::start(1), stranger(2, vocabulary));
        // The router survives its start and its restart.
        for _ in 0..2 {
            let router = TestRouter::ready(&[&worker, &stranger], &[]).await;
            eventually(says, || async { excluded(&router, 1).await.contains(says) }).await;
            assert_eq!(excluded(&router, 0).await, "");
            assert_eq!((status(&router).await, router.state_of(1).await.as_str()), (200, "excluded"));
            let line = "warmpath_router_workers_excluded{disagreement=\"vocabulary_refused\"}";
            router.wait_for_metric(line, 1.0).await;
            router.wait_for_metric("warmpath_router_vocabulary_downloads_total{outcome=\"refused\"}", 1.0).await;
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_worker_that_returns_with_a_valid_vocabulary_is_admitted() {
    let (worker, mut stranger) = (FakeWorker::start(1), stranger(2, with_equal_tokens()));
    let router = TestRouter::ready(&[&worker, &stranger], &[]).await;
    eventually("it is kept out", || async { router.state_of(1).await == "excluded" }).await;
    stranger.kill();
    stranger.with(|script| script.vocabulary = Bytes::from_static(&VOCABULARY));
    stranger.revive();
    eventually("it is let in", || async { router.state_of(1).await == "ready" }).await;
    assert_eq!(excluded(&router, 1).await, "");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_sound_vocabulary_of_the_same_model_is_taken_from_another_worker() {
    let (worker, liar) = (FakeWorker::start(1), FakeWorker::start(2));
    liar.with(|script| script.vocabulary = with_equal_tokens());
    let router = TestRouter::ready(&[&liar, &worker], &[]).await;
    let is_ready = || async { router.fleet().await["vocabularies"][0]["state"] == "ready" };
    eventually("the vocabulary is ready", is_ready).await;
    assert_eq!((status(&router).await, router.state_of(1).await.as_str()), (200, "ready"));
}

/// Returns the tiny model's vocabulary, which declares itself as its worker's does.
pub fn declared() -> Bytes {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = folder.path().join("vocabulary.gguf");
    std::fs::write(&path, &*VOCABULARY).expect("the vocabulary is written");
    let maker = PromptMaker::open(&path, PromptOptions::default()).expect("it is sound");
    with_text("warmpath.vocabulary", &maker.declaration(&path).expect("it needs no llama.cpp"))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_a_verdict_on_a_vocabulary_its_model_is_routed_by_load() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let cases = [
        ("exec sleep 1000", "took longer than"),
        ("kill -KILL $$", "without a verdict"),
        ("echo running 0 tests", "running 0 tests"),
        ("echo out of luck >&2; exit 1", "out of luck"),
    ];
    for (script, says) in cases {
        let worker = FakeWorker::start(1);
        let mut config = config(&[&worker], &[]);
        config.fleet.trial.program = program(folder.path(), script);
        config.fleet.trial.timeout = if script.contains("sleep") { Duration::from_millis(200) } else { Duration::MAX };
        let server = Server::start(config).await.expect("port 0 is free");
        let client = reqwest::Client::builder().no_proxy().build().expect("a client");
        let router = TestRouter { server, client };
        eventually(says, || async {
            let vocabularies = router.fleet().await["vocabularies"].clone();
            vocabularies[0]["state"] == "failed" && vocabularies[0].to_string().contains(says)
        })
        .await;
        eventually("it is ready", || async { router.get("/readyz").await.0 == 200 }).await;
        assert_eq!((status(&router).await, router.state_of(0).await.as_str()), (200, "ready"));
    }
}
