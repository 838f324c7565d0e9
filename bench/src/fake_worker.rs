//! A fake worker: holds no blocks and answers every chat immediately.
//!
//! It serves `overhead`, where workers must cost no time. The fake worker declares a real worker's model. Like a real
//! worker, it announces every accepted request, at most once a millisecond: otherwise a router would assume that other
//! routers exist.

use std::mem;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
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
use tokio::sync::Notify;
use tokio::task::JoinSet;
use warmpath_common::headers::{JOURNAL, REQUEST_ID};
use warmpath_common::ids::{RequestId, WorkerUid};
use warmpath_common::journal::{LINE_START, MARK_ALONE};
use warmpath_common::summary::{
    self, Change, Digest, Frame, FrameBody, SNAPSHOT_PATH, STREAM_PATH, Snapshot, Stamp, VOCABULARY_PATH,
};

use crate::fleet::{Fleet, FleetSpec};

/// Time between two frames of an idle worker.
const HEARTBEAT: Duration = Duration::from_millis(200);
/// Shortest time between two frames that announce requests, as with a real worker.
const NAMING_INTERVAL: Duration = Duration::from_millis(1);

/// A real worker's declaration of a model.
#[derive(Debug, Clone)]
pub struct Likeness {
    form: Snapshot,
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
        let url = real.workers[0].base_url();
        let http = reqwest::Client::builder().no_proxy().build()?;
        let form = http.get(format!("{url}{SNAPSHOT_PATH}")).send().await?.json().await?;
        let vocabulary = http.get(format!("{url}{VOCABULARY_PATH}")).send().await?.bytes().await?;
        Ok(Self { form, vocabulary })
    }

    /// Returns the name of the model.
    pub fn model_name(&self) -> &str {
        self.form.model.names.first().map_or("model", String::as_str)
    }
}

/// A fake worker.
pub struct FakeWorker {
    likeness: Likeness,
    uid: WorkerUid,
    /// Tokens of a streamed answer, each with a write of its own; 0 if answers are whole.
    stream_tokens: u32,
    /// Number of the last update; a later stream never goes back.
    seq: AtomicU64,
    /// Whether a router reads its summary; other gateways do not.
    has_reader: AtomicBool,
    /// Requests that have not been announced yet. The lock is held to add one or to take all.
    unnamed: Mutex<Vec<RequestId>>,
    came: Notify,
}

impl FakeWorker {
    /// Returns a worker that streams answers of `stream_tokens`, or returns them whole if that is 0.
    pub fn new(uid: u64, stream_tokens: u32, likeness: &Likeness) -> Arc<Self> {
        Arc::new(Self {
            likeness: likeness.clone(),
            uid: WorkerUid(uid),
            stream_tokens,
            seq: AtomicU64::new(0),
            has_reader: AtomicBool::new(false),
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
            .route(STREAM_PATH, get(summary_stream))
            .route(VOCABULARY_PATH, get(async |State(fake): State<Arc<Self>>| fake.likeness.vocabulary.clone()))
            .route("/v1/chat/completions", post(answer))
            .route("/v1/models", get(models))
            .fallback(async || ([(CONTENT_TYPE, "application/json")], "{}"))
            .with_state(Arc::clone(self));
        tasks.spawn(async move {
            // The server ends with the task.
            let _ = axum::serve(listener, routes).await;
        });
        Ok(url)
    }

    /// Returns the stamp of the next frame.
    fn stamp(&self) -> Stamp {
        let seq = self.seq.fetch_add(1, Ordering::SeqCst) + 1;
        Stamp { worker_uid: self.uid, seq, ..self.likeness.form.stamp }
    }

    fn update(&self, changes: Vec<Change>) -> Frame {
        let digest = Some(Digest::default());
        Frame { stamp: self.stamp(), body: FrameBody::Update { changes, load: None, digest } }
    }

    fn unnamed(&self) -> MutexGuard<'_, Vec<RequestId>> {
        self.unnamed.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

async fn summary_stream(State(fake): State<Arc<FakeWorker>>) -> Response {
    fake.has_reader.store(true, Ordering::SeqCst);
    let snapshot = Snapshot { stamp: fake.stamp(), runs: Vec::new(), ..fake.likeness.form.clone() };
    let first: Vec<Frame> = snapshot.into_frames();
    let beats = stream::unfold(fake, move |fake| async move {
        tokio::select! {
            () = tokio::time::sleep(HEARTBEAT) => Some((fake.update(Vec::new()), fake)),
            () = fake.came.notified() => {
                tokio::time::sleep(NAMING_INTERVAL).await;
                let named = mem::take(&mut *fake.unnamed());
                Some((fake.update(named.into_iter().map(Change::Accepted).collect()), fake))
            }
        }
    });
    let frames = stream::iter(first).chain(beats).map(|frame| Ok::<_, std::convert::Infallible>(framed(&frame)));
    ([(CONTENT_TYPE, summary::CONTENT_TYPE)], Body::from_stream(frames)).into_response()
}

/// Returns a frame in the form of a stream: its length, then its bytes.
pub(crate) fn framed(frame: &Frame) -> Bytes {
    let bytes = frame.encode();
    let length = u32::try_from(bytes.len()).expect("a frame is below 1 MiB");
    Bytes::from([&length.to_be_bytes()[..], &bytes].concat())
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
    if let Some(id) = id.filter(|_| fake.has_reader.load(Ordering::SeqCst)) {
        fake.unnamed().push(id);
        fake.came.notify_one();
    }
    match fake.stream_tokens {
        0 => ([(CONTENT_TYPE, "application/json")], ANSWER).into_response(),
        n_tokens => streamed(n_tokens, &headers),
    }
}

/// Returns a stream of one write for each token, with the journal if the request's headers ask for it.
fn streamed(n_tokens: u32, asked: &HeaderMap) -> Response {
    const TOKEN: &str = r#"data: {"id":"1","object":"chat.completion.chunk","created":0,"model":"m","choices":[{"index":0,"delta":{"content":"yes"},"finish_reason":null}]}"#;
    const LAST: &str = r#"data: {"id":"1","object":"chat.completion.chunk","created":0,"model":"m","choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}"#;
    let is_journaled = asked.contains_key(JOURNAL);
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
