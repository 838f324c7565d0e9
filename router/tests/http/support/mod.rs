//! Shared code of the router's tests: a router in this process, scripted fake workers, ways to inspect both.

pub mod authority;
pub mod fake_server;
pub mod host;
pub mod keys;
pub mod logged;
pub mod network;
pub mod opening;
pub mod raw;
pub mod real_worker;
pub mod stock;
pub mod worker;

use std::future::Future;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::sync::LazyLock;
use std::time::{Duration, Instant};

use clap::Parser;
use serde_json::{Value, json};
use warmpath_bench::model::{Preset, write_model};
use warmpath_router::config::{Config, flags::Flags, resolve};
use warmpath_router::server::Server;

use self::worker::FakeWorker;

/// Time limit of every wait in these tests.
const PATIENCE: Duration = Duration::from_secs(20);

/// Vocabulary of the tiny model, as a worker serves it.
pub static VOCABULARY: LazyLock<Vec<u8>> = LazyLock::new(|| {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = folder.path().join("tiny.gguf");
    write_model(Preset::Tiny, 1, None, &path).expect("the tiny model");
    warmpath_gguf::vocabulary(&path).expect("its vocabulary")
});

/// A router in this process.
pub struct TestRouter {
    pub server: Server,
    pub client: reqwest::Client,
}

impl TestRouter {
    /// Starts a router in front of `workers`, with further flags.
    pub async fn start(workers: &[&FakeWorker], flags: &[&str]) -> Self {
        Self::start_with(config(workers, flags)).await
    }

    /// Starts a router with a configuration.
    pub async fn start_with(config: Config) -> Self {
        let server = Server::start(config).await.expect("port 0 is free");
        let client = reqwest::Client::builder().no_proxy().build().expect("a client");
        Self { server, client }
    }

    /// Starts a router and waits until it is ready.
    pub async fn ready(workers: &[&FakeWorker], flags: &[&str]) -> Self {
        let router = Self::start(workers, flags).await;
        router.wait_until_ready().await
    }

    /// Starts a router in front of workers of any kind, each as on the command line, and waits until it is ready.
    pub async fn ready_for(workers: &[String], flags: &[&str]) -> Self {
        Self::start_with(config_of(workers, flags)).await.wait_until_ready().await
    }

    /// Waits until the router is ready.
    pub async fn wait_until_ready(self) -> Self {
        let router = self;
        eventually("the router is ready", || async { router.get("/readyz").await.0 == 200 }).await;
        router
    }

    pub fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.server.address)
    }

    /// Returns status and body of a GET.
    pub async fn get(&self, path: &str) -> (u16, Value) {
        let response = self.client.get(self.url(path)).send().await.expect("the router answers");
        let status = response.status().as_u16();
        (status, response.json().await.unwrap_or(Value::Null))
    }

    pub async fn post(&self, path: &str, body: impl Into<reqwest::Body>) -> reqwest::Response {
        self.client.post(self.url(path)).body(body).send().await.expect("the router answers")
    }

    pub async fn chat(&self, text: &str) -> reqwest::Response {
        self.post("/v1/chat/completions", chat_body(text, false)).await
    }

    pub async fn chat_stream(&self, text: &str) -> reqwest::Response {
        self.post("/v1/chat/completions", chat_body(text, true)).await
    }

    /// Returns the operators' view of the fleet.
    pub async fn fleet(&self) -> Value {
        let url = format!("http://{}/internal/v1/fleet", self.server.admin_address);
        self.client.get(url).send().await.expect("the admin listener answers").json().await.expect("JSON")
    }

    pub async fn state_of(&self, idx: usize) -> String {
        self.fleet().await["workers"][idx]["state"].as_str().unwrap_or_default().to_owned()
    }

    /// Returns every metric.
    pub async fn metric_text(&self) -> String {
        let url = format!("http://{}/metrics", self.server.admin_address);
        self.client.get(url).send().await.expect("the admin listener answers").text().await.expect("text")
    }

    /// Returns the value of a metric's line, 0 if it is absent.
    pub async fn metric(&self, line: &str) -> f64 {
        let text = self.metric_text().await;
        let value = text.lines().find_map(|found| found.strip_prefix(line)?.strip_prefix(' ')?.parse().ok());
        value.unwrap_or(0.0)
    }

    /// Returns the sum of a metric's series, whatever their labels.
    pub async fn metric_of_all(&self, name: &str) -> f64 {
        let text = self.metric_text().await;
        let series = text.lines().filter_map(|line| line.strip_prefix(name)?.strip_prefix('{')?.rsplit_once(' '));
        series.filter_map(|(_, value)| value.parse::<f64>().ok()).sum()
    }

    pub async fn wait_for_metric(&self, line: &str, at_least: f64) {
        eventually(line, || async { self.metric(line).await >= at_least }).await;
    }
}

/// Starts a worker, and a router in front of it.
pub async fn fleet_of_one() -> (FakeWorker, TestRouter) {
    let worker = FakeWorker::start(1);
    let router = TestRouter::ready(&[&worker], &[]).await;
    (worker, router)
}

/// Starts two workers, and a router in front of them.
pub async fn fleet_of_two() -> ([FakeWorker; 2], TestRouter) {
    let workers = [FakeWorker::start(1), FakeWorker::start(2)];
    let router = TestRouter::ready(&workers.each_ref(), &[]).await;
    (workers, router)
}

pub fn config(workers: &[&FakeWorker], flags: &[&str]) -> Config {
    config_of(&workers.iter().map(|worker| worker.url()).collect::<Vec<_>>(), flags)
}

pub fn config_of(urls: &[String], flags: &[&str]) -> Config {
    let line = ["warmpath-router", "--listen", "127.0.0.1:0", "--admin-listen", "127.0.0.1:0", "--index-max", "16"];
    let workers = urls.iter().flat_map(|url| ["--worker", url.as_str()]);
    let line: Vec<_> = line.into_iter().chain(workers).chain(flags.iter().copied()).collect();
    let mut config = resolve(Flags::try_parse_from(line).expect("good flags")).expect("a good configuration");
    // The present program is the test's.
    config.fleet.trial.program = env!("CARGO_BIN_EXE_warmpath-router").into();
    config
}

pub fn chat_body(text: &str, stream: bool) -> String {
    json!({"messages": [{"role": "user", "content": text}], "stream": stream, "x": 1}).to_string()
}

/// Returns a text that is many blocks long.
pub fn long_text(topic: &str) -> String {
    format!("Tell me about {topic}. ").repeat(60)
}

/// Polls until `done`, or fails.
pub async fn eventually<F: Future<Output = bool>>(what: &str, mut done: impl FnMut() -> F) {
    let deadline = Instant::now() + PATIENCE;
    while !done().await {
        assert!(Instant::now() < deadline, "waited for: {what}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

/// Writes a program that runs `script`.
pub fn program(folder: &Path, script: &str) -> std::path::PathBuf {
    let path = folder.join("trial");
    std::fs::write(&path, format!("#!/bin/sh\n{script}\n")).expect("it is written");
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).expect("it can be made executable");
    path
}

/// Returns a response's header, empty if it is absent.
pub fn header(response: &reqwest::Response, name: &str) -> String {
    response.headers().get(name).and_then(|value| value.to_str().ok()).unwrap_or_default().to_owned()
}

/// Asserts that a response is OpenAI's error object; returns the object.
pub async fn error_of(response: reqwest::Response, status: u16) -> Value {
    let actual = response.status().as_u16();
    let body: Value = response.json().await.expect("an error is JSON");
    assert_eq!(actual, status, "{body}");
    assert!(body["error"]["message"].is_string(), "{body}");
    assert!(body["error"]["type"].is_string(), "{body}");
    body["error"].clone()
}
