//! A fake worker: speaks the summary protocol and responds by its script, in a runtime that can be killed as a whole.

pub mod answers;

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::{Query, Request, State};
use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode, Uri};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use futures::StreamExt;
use serde_json::{Value, json};
use warmpath_bench::fake_worker::summary::FakeSummary;
use warmpath_common::block_hash::{BlockKey, ChainRoot, block_chain};
use warmpath_common::ids::{SlotId, WorkerUid};
use warmpath_common::model::{Fingerprint, ModelInfo};
use warmpath_common::openai::ChatPrompt;
use warmpath_common::prefetch::HotPrefix;
use warmpath_common::summary::{self, Change, Digest, Load, Resume, Run, RunState, Snapshot, Stamp, Tier, with_length};
use warmpath_prompt::{PromptMaker, PromptOptions};

use super::VOCABULARY;
use super::fake_server::{FakeServer, RequestLog, Seen, refusal};
use super::opening::{self, Opening};
use answers::{End, hot_list};
use answers::{Left, comment_first, journaled, journaled_whole, kind_of, late_break, trickle, vocabulary};
pub use answers::{full, idle};

/// Behaviour of the worker for chats and completions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Behaviour {
    /// Whole, or as a stream of three events.
    Answer,
    /// With this status and an error object.
    Refuse(u16),
    /// Not at all: the connection breaks.
    BreakAtOnce,
    /// In part: the connection breaks after the second event, or in the middle of the JSON.
    BreakMidway,
    /// With only a comment, after which the connection breaks.
    BreakBehindComment,
    /// With a comment, and then as a stream of three events.
    CommentFirst,
    /// With one event, and then nothing; records when the client disconnects.
    Hang,
    /// Not at all: nothing comes; records when the client disconnects.
    Silent,
    /// With one event after the other, without end; records when the client disconnects.
    Trickle,
    /// As a stream with a journal, until it has sent so many writes.
    Journaled(usize, End),
    /// Whole, behind a journal, until it has sent so many lines.
    JournaledWhole(usize, End),
}

/// State and behaviour of the worker.
pub struct Script {
    pub summary: FakeSummary,
    pub behaviour: Behaviour,
    /// A word, and the behaviour for a request that contains it.
    pub poison: Option<(&'static str, Behaviour)>,
    /// The `Retry-After` of refusals.
    pub retry_after: Option<String>,
    /// Name that it gives itself; its uid for `None`.
    pub name: Option<String>,
    /// Further headers of its answers.
    pub headers: Vec<(&'static str, &'static str)>,
    /// Token that every request must have; `None` if none is required.
    pub token: Option<String>,
    /// Whether the vocabulary can be fetched.
    pub has_vocabulary: bool,
    /// The vocabulary.
    pub vocabulary: Bytes,
    /// Whether its model is still loading: its summary responds with 503.
    pub is_loading: bool,
    /// Whether heartbeats are sent.
    pub has_heartbeat: bool,
    /// Response to requests for the summary.
    pub opening: Opening,
    /// Bytes sent in place of the snapshot's frames.
    pub raw_stream: Option<Vec<u8>>,
    /// Prefixes that it lists; refused without any.
    pub hot: Vec<HotPrefix>,
}

struct Shared {
    script: Mutex<Script>,
    log: Arc<RequestLog>,
    n_streams: AtomicUsize,
    n_left: AtomicUsize,
}

/// A fake worker.
pub struct FakeWorker {
    server: FakeServer,
    shared: Arc<Shared>,
}

impl FakeWorker {
    /// Starts a worker without blocks that answers everything.
    pub fn start(uid: u64) -> Self {
        Self::start_under(uid, "")
    }

    /// Starts such a worker with a path before all of its endpoints.
    pub fn start_under(uid: u64, base: &'static str) -> Self {
        Self::start_at(uid, "127.0.0.1:0", base)
    }

    /// Starts such a worker at an address of this machine.
    pub fn start_at(uid: u64, address: &str, base: &'static str) -> Self {
        let stamp = Stamp { worker_uid: WorkerUid(uid), boot_epoch: 1, seq: 0 };
        let summary = FakeSummary::new(Snapshot { stamp, model: model(), runs: Vec::new(), load: idle() });
        let script = Script {
            summary,
            behaviour: Behaviour::Answer,
            poison: None,
            retry_after: Some("1".to_owned()),
            name: None,
            headers: Vec::new(),
            token: None,
            has_vocabulary: true,
            vocabulary: Bytes::from_static(&VOCABULARY),
            has_heartbeat: true,
            is_loading: false,
            opening: Opening::AtOnce,
            raw_stream: None,
            hot: Vec::new(),
        };
        let server = FakeServer::at(address, base);
        let shared = Arc::new(Shared {
            script: Mutex::new(script),
            log: Arc::clone(&server.log),
            n_streams: AtomicUsize::new(0),
            n_left: AtomicUsize::new(0),
        });
        let mut worker = Self { server, shared };
        worker.revive();
        worker
    }

    pub fn url(&self) -> String {
        self.server.url()
    }

    /// Changes the script.
    pub fn with(&self, change: impl FnOnce(&mut Script)) {
        change(&mut self.script());
    }

    fn script(&self) -> MutexGuard<'_, Script> {
        self.shared.script.lock().expect("no test panics here")
    }

    /// Ends the worker with all its connections.
    pub fn kill(&mut self) {
        self.server.kill();
    }

    /// Starts the worker, again on the same port, with a new boot epoch and no blocks.
    pub fn revive(&mut self) {
        self.with(|script| script.summary.restart());
        let runtime = self.server.start(routes(Arc::clone(&self.shared)));
        runtime.spawn(heartbeat(Arc::clone(&self.shared)));
    }

    /// Announces the first `n_blocks` of a chat (all of them for `None`), in `slot`.
    pub fn hold(&self, text: &str, n_blocks: Option<usize>, slot: u16) {
        let mut keys = chat_keys(text, "");
        keys.truncate(n_blocks.unwrap_or(keys.len()));
        self.hold_keys(keys, slot);
    }

    /// Announces these blocks in `slot`.
    pub fn hold_keys(&self, keys: Vec<BlockKey>, slot: u16) {
        let run = Run {
            keys,
            tier: Tier::Resident,
            state: RunState::Ready,
            resume: Resume::EveryBlock,
            slot: Some(SlotId(slot)),
        };
        self.update(vec![Change::Stored(run.clone())], None);
        self.with(|script| script.summary.snapshot.runs.push(run));
    }

    /// Sends an update.
    pub fn update(&self, changes: Vec<Change>, load: Option<Load>) {
        self.with(|script| script.summary.update(changes, load, None));
    }

    /// Sends an update with a digest.
    pub fn update_with_digest(&self, changes: Vec<Change>, digest: Digest) {
        self.with(|script| script.summary.update(changes, None, Some(digest)));
    }

    /// Returns the bytes of a snapshot's first frame.
    pub fn opening(&self) -> Vec<u8> {
        let frames = self.script().summary.snapshot.clone().into_frames();
        with_length(&frames[0].encode())
    }

    /// Ends every stream.
    pub fn cut(&self) {
        self.send_raw(&[]);
    }

    /// Sends an update under a number of its own.
    pub fn send_seq(&self, skip: i64) {
        self.with(|Script { summary, .. }| {
            let stamp = summary.snapshot.stamp;
            let seq = stamp.seq.checked_add_signed(skip - 1).expect("heartbeats have raised it");
            summary.set_stamp(Stamp { seq, ..stamp });
            summary.update(Vec::new(), None, None);
        });
    }

    /// Sends bytes on every stream.
    pub fn send_raw(&self, bytes: &[u8]) {
        self.with(|script| script.summary.send_raw(Bytes::copy_from_slice(bytes)));
    }

    pub fn seen(&self) -> Vec<Seen> {
        self.server.log.seen()
    }

    /// Returns every requested path, with the headers.
    pub fn asked(&self) -> Vec<(String, HeaderMap)> {
        self.server.log.asked()
    }

    /// Returns how many summary streams were opened.
    pub fn n_streams(&self) -> usize {
        self.shared.n_streams.load(Ordering::SeqCst)
    }

    /// Returns how many clients left a hanging response.
    pub fn n_left(&self) -> usize {
        self.shared.n_left.load(Ordering::SeqCst)
    }
}

/// Returns the worker's model: the tiny one's vocabulary.
pub fn model() -> ModelInfo {
    let maker = &*MAKER;
    ModelInfo {
        names: vec!["tiny".to_owned(), "alias".to_owned()],
        kv_fingerprint: Fingerprint([8; 32]),
        chat_template_fingerprint: maker.chat_template_fingerprint(),
        chat_template_kwargs: maker.chat_template_kwargs().to_json(),
        add_bos: maker.vocabulary().add_bos,
        add_eos: maker.vocabulary().add_eos,
        ..ModelInfo::text(Fingerprint([7; 32]), 16, 8192, 4, maker.vocabulary().n_vocab)
    }
}

pub static MAKER: std::sync::LazyLock<PromptMaker> = std::sync::LazyLock::new(|| {
    let mut file = tempfile::NamedTempFile::new().expect("a temporary file");
    std::io::Write::write_all(&mut file, &VOCABULARY).expect("it takes the vocabulary");
    PromptMaker::open(file.path(), PromptOptions::default()).expect("the vocabulary loads")
});

/// Returns the keys of a chat's blocks.
pub fn chat_keys(text: &str, salt: &str) -> Vec<BlockKey> {
    let HotPrefix { root, tokens } = chat_prefix(text, salt);
    block_chain(&root, &tokens, model().block_size_tokens).iter().map(|hash| hash.key()).collect()
}

/// Returns the whole blocks of a chat.
pub fn chat_prefix(text: &str, salt: &str) -> HotPrefix {
    let chat: ChatPrompt = serde_json::from_str(&super::chat_body(text, false)).expect("a chat");
    let mut tokens = MAKER.chat(&chat).expect("it renders").tokens;
    let model = model();
    tokens.truncate(tokens.len() / model.block_size_tokens as usize * model.block_size_tokens as usize);
    let root = ChainRoot { model_fingerprint: &model.fingerprint.0, lora: &[], cache_salt: salt.as_bytes() }.hash();
    HotPrefix { root, tokens }
}

async fn heartbeat(shared: Arc<Shared>) {
    let mut beats = tokio::time::interval(Duration::from_millis(300));
    loop {
        beats.tick().await;
        let mut script = shared.script.lock().expect("no test panics here");
        if script.has_heartbeat {
            let load = script.summary.snapshot.load.clone();
            script.summary.update(Vec::new(), Some(load), None);
        }
    }
}

fn routes(shared: Arc<Shared>) -> Router {
    Router::new()
        .route(summary::STREAM_PATH, get(stream))
        .route(summary::VOCABULARY_PATH, get(vocabulary))
        .route(summary::KV_PATH, get(hot_list).post(answer))
        .route("/v1/chat/completions", post(answer))
        .route("/v1/completions", post(answer))
        .route("/completion", post(answer))
        .route("/v1/messages", post(answer))
        .route("/v1/messages/count_tokens", post(answer))
        .route("/v1/responses", post(answer))
        .route("/tokenize", post(answer))
        .route("/slots", get(answer))
        .layer(from_fn_with_state(Arc::clone(&shared), decorate))
        .layer(from_fn_with_state(Arc::clone(&shared), guard))
        .with_state(shared)
}

/// Adds the script's headers to a response.
async fn decorate(State(shared): State<Arc<Shared>>, request: Request, next: Next) -> Response {
    let mut response = next.run(request).await;
    for (name, value) in &shared.script.lock().expect("no test panics here").headers {
        response.headers_mut().append(HeaderName::from_static(name), HeaderValue::from_static(value));
    }
    response
}

async fn guard(State(shared): State<Arc<Shared>>, request: Request, next: Next) -> Response {
    let token = shared.script.lock().expect("no test panics here").token.clone();
    match shared.log.admit(&request, token.as_deref()) {
        Ok(()) => next.run(request).await,
        Err(status) => status.into_response(),
    }
}

/// Query of a request for a stream.
#[derive(Debug, serde::Deserialize)]
struct Asked {
    after: Option<String>,
}

async fn stream(State(shared): State<Arc<Shared>>, Query(asked): Query<Asked>) -> Response {
    shared.n_streams.fetch_add(1, Ordering::SeqCst);
    if let Some(refusal) = opening::refusal(|| shared.script.lock().expect("no test panics here").opening).await {
        return refusal;
    }
    let script = shared.script.lock().expect("no test panics here");
    if script.is_loading {
        return StatusCode::SERVICE_UNAVAILABLE.into_response();
    }
    let after: Option<Stamp> = asked.after.and_then(|after| after.parse().ok());
    let head = script.raw_stream.clone().unwrap_or_else(|| script.summary.head(after));
    let name = script.name.clone().unwrap_or_else(|| script.summary.snapshot.stamp.worker_uid.to_string());
    ([("x-warmpath-worker", name)], script.summary.stream(head)).into_response()
}

async fn answer(State(shared): State<Arc<Shared>>, uri: Uri, headers: HeaderMap, body: Bytes) -> Response {
    let request = shared.log.record(&uri, headers, &body);
    let (behaviour, uid, retry_after) = {
        let script = shared.script.lock().expect("no test panics here");
        let text = String::from_utf8_lossy(&body);
        let poison = script.poison.filter(|(word, _)| text.contains(word));
        let behaviour = poison.map_or(script.behaviour, |(_, behaviour)| behaviour);
        (behaviour, script.summary.snapshot.stamp.worker_uid, script.retry_after.clone())
    };
    let wants_stream = serde_json::from_slice::<Value>(&body).is_ok_and(|body| body["stream"] == json!(true));
    let pieces: Vec<&'static str> = if wants_stream {
        vec!["data: {\"n\": 1}\n\n", "data: {\"n\": 2}\n\n", "data: [DONE]\n\n"]
    } else {
        vec!["{\"answer\":", " 42}"]
    };
    // A journal behind the body hides its JSON.
    let kind = kind_of(wants_stream || matches!(behaviour, Behaviour::Journaled(..)));
    let headers = [("content-type", kind.to_owned()), ("x-warmpath-worker", uid.to_string())];
    let chunks = |n: usize| pieces.clone().into_iter().take(n).map(|piece| Ok(Bytes::from_static(piece.as_bytes())));
    match behaviour {
        Behaviour::Answer => {
            let body = Body::from_stream(futures::stream::iter(chunks(3).collect::<Vec<Result<_, std::io::Error>>>()));
            (headers, [("x-warmpath-cached-tokens", "32")], body).into_response()
        }
        Behaviour::Refuse(status) => (headers, refusal(status, retry_after)).into_response(),
        Behaviour::BreakAtOnce => panic!("scripted: the connection breaks"),
        Behaviour::BreakMidway => {
            let chunks = chunks(1 + usize::from(wants_stream)).collect::<Vec<_>>();
            (headers, Body::from_stream(futures::stream::iter(chunks).chain(late_break()))).into_response()
        }
        Behaviour::BreakBehindComment => {
            let comment = futures::stream::iter([Ok(Bytes::from_static(b": wait\n\n"))]);
            (headers, Body::from_stream(comment.chain(late_break()))).into_response()
        }
        Behaviour::CommentFirst => (headers, Body::from_stream(comment_first(pieces.concat()))).into_response(),
        Behaviour::Journaled(n_writes, end) => (headers, journaled(shared, &request, (n_writes, end))).into_response(),
        Behaviour::JournaledWhole(n, end) => (headers, journaled_whole(shared, &request, (n, end))).into_response(),
        Behaviour::Trickle => (headers, Body::from_stream(trickle(shared))).into_response(),
        Behaviour::Silent => {
            let _guard = Left(shared);
            std::future::pending().await
        }
        Behaviour::Hang => {
            let guard = Left(shared);
            let never = futures::stream::once(async move {
                let _guard = guard;
                std::future::pending().await
            });
            (headers, Body::from_stream(futures::stream::iter(chunks(1).collect::<Vec<_>>()).chain(never)))
                .into_response()
        }
    }
}
