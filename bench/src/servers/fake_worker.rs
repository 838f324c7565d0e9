//! A fake worker: declares a real worker's model, holds no blocks and answers every chat by a fixed rule.
//!
//! `overhead` and tests use it where workers must cost no time. Like a real worker, it announces every accepted
//! request, at most once a millisecond: otherwise a router would assume that other routers exist.

pub mod summary;

use std::mem;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::State;
use axum::http::header::CONTENT_TYPE;
use axum::http::{HeaderMap, HeaderValue};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::serve::ListenerExt as _;
use futures::{StreamExt as _, stream};
use tokio::sync::{Notify, watch};
use tokio::task::JoinSet;
use warmpath_common::headers::{JOURNAL, REQUEST_ID};
use warmpath_common::ids::{RequestId, WorkerUid};
use warmpath_common::journal::{LINE_START, MARK_ALONE};
use warmpath_common::summary::{Change, Digest, SNAPSHOT_PATH, STREAM_PATH, Snapshot, VOCABULARY_PATH};

use self::summary::FakeSummary;
use crate::fleet::{Fleet, FleetSpec};

/// Time between two frames of an idle worker.
const HEARTBEAT: Duration = Duration::from_millis(200);
/// Shortest time between two frames that announce requests, as with a real worker.
const NAMING_INTERVAL: Duration = Duration::from_millis(1);

/// A real worker's declaration of a model.
#[derive(Debug, Clone)]
pub struct Likeness {
    /// The declaration, without blocks.
    pub snapshot: Snapshot,
    vocabulary: Bytes,
}

impl Likeness {
    /// Starts a worker on `model`, reads its declaration, and ends it.
    ///
    /// Errors: it does not start or does not respond.
    pub async fn of(bin_dir: &Path, model: &Path) -> anyhow::Result<Self> {
        let spec = FleetSpec {
            bin_dir: bin_dir.to_owned(),
            model: model.to_owned(),
            n_workers: 1,
            worker_args: ["--flash-attn", "off", "--kv-unified", "off", "--threads", "1"].map(str::to_owned).into(),
            router_args: Vec::new(),
        };
        let real = Fleet::start(spec).await?;
        Self::of_worker(&real.workers[0].base_url()).await
    }

    /// Reads the declaration of the worker at `url`.
    ///
    /// Errors: it does not respond.
    pub async fn of_worker(url: &str) -> anyhow::Result<Self> {
        let http = reqwest::Client::builder().no_proxy().build()?;
        let snapshot: Snapshot = http.get(format!("{url}{SNAPSHOT_PATH}")).send().await?.json().await?;
        let vocabulary = http.get(format!("{url}{VOCABULARY_PATH}")).send().await?.bytes().await?;
        Ok(Self { snapshot: Snapshot { runs: Vec::new(), ..snapshot }, vocabulary })
    }

    /// Returns the name of the model.
    pub fn model_name(&self) -> &str {
        self.snapshot.model.names.first().map_or("model", String::as_str)
    }
}

/// Response to every chat.
#[derive(Debug, Clone)]
pub enum Answers {
    /// A whole response.
    Whole,
    /// A stream with this number of tokens, each with a write of its own.
    Streamed(u32),
    /// A stream of one event, which ends when the value becomes true or its sender is dropped.
    Held(watch::Receiver<bool>),
}

/// A fake worker.
pub struct FakeWorker {
    likeness: Likeness,
    answers: Answers,
    /// The lock is held for one update or one start of a stream.
    summary: Mutex<FakeSummary>,
    /// Requests that have not been announced yet. The lock is held to add one or to take all.
    unnamed: Mutex<Vec<RequestId>>,
    came: Notify,
}

impl FakeWorker {
    /// Returns a worker that gives these answers.
    pub fn new(uid: u64, answers: Answers, likeness: &Likeness) -> Arc<Self> {
        let mut snapshot = likeness.snapshot.clone();
        snapshot.stamp.worker_uid = WorkerUid(uid);
        Arc::new(Self {
            likeness: likeness.clone(),
            answers,
            summary: Mutex::new(FakeSummary::new(snapshot)),
            unnamed: Mutex::default(),
            came: Notify::new(),
        })
    }

    /// Serves on a free port as long as `tasks` live; returns `http://host:port`.
    ///
    /// Errors: no port is free.
    pub async fn serve(self: &Arc<Self>, tasks: &mut JoinSet<()>) -> anyhow::Result<String> {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await?;
        let url = format!("http://{}", listener.local_addr()?);
        // Otherwise the second of two small writes would wait 40 ms for the acknowledgement of the first.
        let listener = listener.tap_io(|connection| {
            let _ = connection.set_nodelay(true);
        });
        let routes = Router::new()
            .route(STREAM_PATH, get(async |State(fake): State<Arc<Self>>| fake.stream()))
            .route(VOCABULARY_PATH, get(async |State(fake): State<Arc<Self>>| fake.likeness.vocabulary.clone()))
            .route("/v1/chat/completions", post(answer))
            .route("/v1/models", get(models))
            .fallback(async || ([(CONTENT_TYPE, "application/json")], "{}"))
            .with_state(Arc::clone(self));
        tasks.spawn(Arc::clone(self).announce());
        tasks.spawn(async move {
            // The server ends with the task.
            let _ = axum::serve(listener, routes).await;
        });
        Ok(url)
    }

    /// Announces accepted requests and sends heartbeats, without end.
    async fn announce(self: Arc<Self>) {
        loop {
            let changes = tokio::select! {
                () = tokio::time::sleep(HEARTBEAT) => Vec::new(),
                () = self.came.notified() => {
                    tokio::time::sleep(NAMING_INTERVAL).await;
                    mem::take(&mut *self.unnamed()).into_iter().map(Change::Accepted).collect()
                }
            };
            self.summary().update(changes, None, Some(Digest::default()));
        }
    }

    fn stream(&self) -> Response {
        let summary = self.summary();
        summary.stream(summary.head(None))
    }

    fn summary(&self) -> MutexGuard<'_, FakeSummary> {
        self.summary.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn unnamed(&self) -> MutexGuard<'_, Vec<RequestId>> {
        self.unnamed.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Returns a list of one model, for gateways that ask for it before they send requests.
async fn models(State(fake): State<Arc<FakeWorker>>) -> Response {
    let name = fake.likeness.model_name();
    axum::Json(serde_json::json!({"object": "list", "data": [{"id": name, "object": "model", "owned_by": "nobody"}]}))
        .into_response()
}

async fn answer(State(fake): State<Arc<FakeWorker>>, headers: HeaderMap, _body: Bytes) -> Response {
    const ANSWER: &str = r#"{"id":"1","object":"chat.completion","created":0,"model":"m","choices":[{"index":0,"message":{"role":"assistant","content":"yes"},"finish_reason":"stop"}],"usage":{"prompt_tokens":1,"completion_tokens":1,"total_tokens":2}}"#;
    let id = headers.get(REQUEST_ID).and_then(|id| RequestId::new(id.to_str().ok()?));
    // Gateways other than a router do not read the summary.
    if let Some(id) = id.filter(|_| fake.summary().has_stream()) {
        fake.unnamed().push(id);
        fake.came.notify_one();
    }
    match &fake.answers {
        Answers::Whole => ([(CONTENT_TYPE, "application/json")], ANSWER).into_response(),
        Answers::Streamed(n_tokens) => streamed(*n_tokens, &headers),
        Answers::Held(is_over) => held(is_over.clone()),
    }
}

/// Returns a stream of one write for each token, with the journal if the request's headers ask for it.
fn streamed(n_tokens: u32, headers: &HeaderMap) -> Response {
    const TOKEN: &str = r#"data: {"id":"1","object":"chat.completion.chunk","created":0,"model":"m","choices":[{"index":0,"delta":{"content":"yes"},"finish_reason":null}]}"#;
    const LAST: &str = r#"data: {"id":"1","object":"chat.completion.chunk","created":0,"model":"m","choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}"#;
    let is_journaled = headers.contains_key(JOURNAL);
    let write = move |n: u32| {
        let (event, line) = match n {
            n if n < n_tokens => (TOKEN, format!("{LINE_START} 0 {}\n", 10_000 + n)),
            n if n == n_tokens => (LAST, format!("{LINE_START} 0 \n")),
            _ => ("data: [DONE]", String::from_utf8_lossy(MARK_ALONE).into_owned()),
        };
        format!("{event}\n\n{}", if is_journaled { line.as_str() } else { "" })
    };
    let writes = stream::iter(0..n_tokens + 2).then(move |n| async move {
        // Each write is sent separately, like a token that takes time to compute.
        tokio::task::yield_now().await;
        Ok::<_, std::convert::Infallible>(Bytes::from(write(n)))
    });
    let mut response = ([(CONTENT_TYPE, "text/event-stream")], Body::from_stream(writes)).into_response();
    if is_journaled {
        response.headers_mut().insert(JOURNAL, HeaderValue::from_static("exact"));
    }
    response
}

/// Returns a stream of one event, which ends with `is_over`.
fn held(mut is_over: watch::Receiver<bool>) -> Response {
    let first = stream::iter([Bytes::from_static(b"data: {\"choices\":[{\"delta\":{\"content\":\"well\"}}]}\n\n")]);
    let last = stream::once(async move {
        let _ = is_over.wait_for(|is_over| *is_over).await;
        Bytes::from_static(b"data: [DONE]\n\n")
    });
    let events = first.chain(last).map(Ok::<_, std::convert::Infallible>);
    ([(CONTENT_TYPE, "text/event-stream")], Body::from_stream(events)).into_response()
}
