//! A worker in the test's own process on a free port, and a client for it.

use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use futures::StreamExt;
use reqwest::{Client, RequestBuilder, Response, StatusCode};
use serde_json::{Value, json};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use warmpath_bench::model::Preset;
use warmpath_bench::model::cache::cached_model;
use warmpath_worker::config::flags::Flags;
use warmpath_worker::config::{Config, resolve};
use warmpath_worker::start::{RunError, bind};

use crate::contract;

/// Time limit of every wait in these tests.
pub const PATIENCE: Duration = Duration::from_secs(300);

/// Returns a folder for files that tests make.
pub fn folder() -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("worker-http");
    std::fs::create_dir_all(&folder).expect("the folder can be made");
    folder
}

/// Returns the tiny model, which is generated once.
pub fn tiny() -> &'static Path {
    static TINY: OnceLock<PathBuf> = OnceLock::new();
    TINY.get_or_init(|| model(Preset::Tiny, 1))
}

/// Returns a model of another kind or with other weights.
pub fn model(preset: Preset, seed: u64) -> PathBuf {
    cached_model(preset, seed, &folder()).expect("the model can be made")
}

/// A running worker.
pub struct TestWorker {
    base: String,
    client: Client,
    stop: CancellationToken,
    served: JoinHandle<Result<(), RunError>>,
}

impl TestWorker {
    /// Starts a worker with `flags` in addition to those for the model and the address, and waits until it is ready.
    pub async fn start(flags: &str) -> Self {
        Self::start_model(tiny(), flags).await
    }

    /// Starts a worker as [`Self::start`] does, with another model.
    pub async fn start_model(model: &Path, flags: &str) -> Self {
        Self::start_changed(model, flags, |_| {}).await
    }

    /// Starts a worker as [`Self::start_model`] does, with a change of its configuration that has no flag.
    pub async fn start_changed(model: &Path, flags: &str, change: impl FnOnce(&mut Config)) -> Self {
        // Each worker has one thread, because many workers on few processors would wait for each other in every step.
        let fixed = "--listen 127.0.0.1:0 --alias tiny --threads 1";
        let command = format!("warmpath-worker --model {} {fixed} {flags}", model.display());
        let flags = Flags::from_command_line(command.split_whitespace().map(Into::into))
            .expect("the flags parse")
            .run()
            .expect("a run");
        let mut config = resolve(flags).expect("the flags fit together");
        change(&mut config);
        let bound = bind(config).await.expect("the worker binds");
        // The worker may listen on all addresses; this machine's is one of them.
        let base = format!("http://127.0.0.1:{}", bound.address().port());
        let stop = CancellationToken::new();
        let served = tokio::spawn(bound.serve(stop.clone().cancelled_owned()));
        let worker = Self { base, client: Client::new(), stop, served };
        worker.until("the worker is ready", async |worker| worker.get("/readyz").await.status().is_success()).await;
        worker
    }

    /// Stops the worker and returns the result of its run.
    pub async fn stop(self) -> Result<(), RunError> {
        self.stop.cancel();
        tokio::time::timeout(PATIENCE, self.served).await.expect("the worker stops").expect("the worker does not panic")
    }

    /// Returns the worker's base URL.
    pub fn base(&self) -> &str {
        &self.base
    }

    /// Asks the worker to stop, without waiting.
    pub fn ask_to_stop(&self) {
        self.stop.cancel();
    }

    pub async fn get(&self, path: &str) -> Response {
        self.client.get(format!("{}{path}", self.base)).send().await.expect("the worker responds")
    }

    pub async fn get_json(&self, path: &str) -> Value {
        let response = self.get(path).await;
        assert!(response.status().is_success(), "{path}: {}", response.status());
        let object = response.json().await.expect("the response is JSON");
        contract::check("get", path, 200, &object);
        object
    }

    pub fn request(&self, path: &str) -> RequestBuilder {
        self.client.get(format!("{}{path}", self.base))
    }

    pub fn post(&self, path: &str, body: &Value) -> RequestBuilder {
        self.client.post(format!("{}{path}", self.base)).body(body.to_string())
    }

    /// Sends a request without a body and returns its status and its response's object.
    pub async fn delete(&self, path: &str) -> (u16, Value) {
        let response = self.client.delete(format!("{}{path}", self.base)).send().await.expect("the worker responds");
        let (status, object) = (response.status().as_u16(), response.json().await.expect("the response is JSON"));
        contract::check("delete", path, status, &object);
        (status, object)
    }

    /// Returns the status and its response's object.
    pub async fn try_ask(&self, path: &str, body: &Value) -> (u16, Value) {
        let response = self.post(path, body).send().await.expect("the worker responds");
        let (status, object) = (response.status().as_u16(), response.json().await.expect("the response is JSON"));
        contract::check("post", path, status, &object);
        (status, object)
    }

    /// Posts bytes.
    pub async fn post_bytes(&self, path: &str, body: impl Into<reqwest::Body>) -> Response {
        self.client.post(format!("{}{path}", self.base)).body(body).send().await.expect("the worker responds")
    }

    /// Returns the object of a request that succeeds.
    pub async fn ask(&self, path: &str, body: Value) -> Value {
        let response = self.post(path, &body).send().await.expect("the worker responds");
        let status = response.status();
        let object: Value = response.json().await.expect("the response is JSON");
        assert_eq!(status, StatusCode::OK, "{object}");
        contract::check("post", path, 200, &object);
        object
    }

    /// Returns the events of a successful stream, without the last one, `[DONE]`.
    pub async fn stream(&self, path: &str, body: Value) -> Vec<Value> {
        let response = self.post(path, &body).send().await.expect("the worker responds");
        assert_eq!(response.status(), StatusCode::OK);
        let mut events = events(&response.text().await.expect("the stream ends well"));
        assert_eq!(events.pop(), Some(Value::String("[DONE]".to_owned())));
        events.iter().for_each(|event| contract::check_event(path, event));
        events
    }

    /// Begins a response of thousands of tokens; returns when its first text has arrived.
    pub async fn begin_long(&self) -> impl futures::Stream<Item = reqwest::Result<bytes::Bytes>> + Unpin + use<> {
        let body = json!({"prompt": "It goes on", "stream": true, "ignore_eos": true, "temperature": 0});
        let response = self.post("/v1/completions", &body).send().await.expect("the worker responds");
        assert_eq!(response.status(), StatusCode::OK);
        let mut stream = Box::pin(response.bytes_stream());
        stream.next().await.expect("there is a first text").expect("the stream is whole");
        stream
    }

    /// Waits until `holds` returns true, which is called repeatedly; fails after [`PATIENCE`].
    pub async fn until(&self, what: &str, holds: impl AsyncFn(&Self) -> bool) {
        let deadline = Instant::now() + PATIENCE;
        while !holds(self).await {
            assert!(Instant::now() < deadline, "timeout: {what}");
            tokio::task::yield_now().await;
        }
    }

    /// Returns the value of a metric without labels.
    pub async fn metric(&self, name: &str) -> f64 {
        self.try_metric(name).await.unwrap_or_else(|| panic!("{name} is not in the metrics"))
    }

    /// Returns the value of a metric with its labels, if it has one.
    pub async fn try_metric(&self, name: &str) -> Option<f64> {
        let text = self.get("/metrics").await.text().await.expect("metrics are text");
        let line = text.lines().find_map(|line| line.strip_prefix(&format!("warmpath_worker_{name} ")));
        line.map(|value| value.parse().expect("a metric is a number"))
    }
}

/// Returns the content of every `data:` line: JSON, or text if it is not JSON.
pub fn events(text: &str) -> Vec<Value> {
    let lines = text.split("\n\n").filter(|event| !event.is_empty());
    let content = lines.map(|event| event.strip_prefix("data: ").unwrap_or_else(|| panic!("no data line: {event:?}")));
    content.map(|content| serde_json::from_str(content).unwrap_or_else(|_| Value::String(content.to_owned()))).collect()
}

/// Returns one user's message.
pub fn user(text: &str) -> Value {
    json!([{"role": "user", "content": text}])
}
