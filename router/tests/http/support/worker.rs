//! A fake worker: speaks the summary protocol and responds by its script, in a runtime that can be killed as a whole.

pub mod answers;

use std::net::SocketAddr;
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
use tokio::runtime::Runtime;
use tokio::sync::broadcast;
use warmpath_common::block_hash::{BlockKey, ChainRoot, block_chain};
use warmpath_common::ids::{SlotId, WorkerUid};
use warmpath_common::model::{Capability, Fingerprint, MemoryKind, ModelInfo};
use warmpath_common::openai::ChatPrompt;
use warmpath_common::prefetch::HotPrefix;
use warmpath_common::summary::{
    self, Change, Digest, Frame, FrameBody, Load, ReplayBuffer, ReplayLimits, Resume, Run, RunState, Snapshot, Stamp,
    Tier,
};
use warmpath_prompt::{PromptMaker, PromptOptions};

use super::opening::{self, Opening};
use super::{VOCABULARY, end, serve_apart, under};
use answers::{End, hot_list};
use answers::{Left, comment_first, journaled, journaled_whole, kind_of, late_break, refusal, trickle, vocabulary};
pub use answers::{Seen, full, idle};

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
    pub snapshot: Snapshot,
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
    /// Replay buffer for a router that reconnects.
    pub replay_buffer: ReplayBuffer<Bytes>,
}

/// Limits of the replay buffer.
pub const REPLAY_LIMITS: ReplayLimits = ReplayLimits { updates_max: 1000, bytes_max: 1 << 20 };

struct Shared {
    script: Mutex<Script>,
    seen: Mutex<Vec<Seen>>,
    /// Every requested path, with the headers, including refused ones.
    asked: Mutex<Vec<(String, HeaderMap)>>,
    /// Bytes of updates for every stream; no bytes end it.
    updates: broadcast::Sender<Bytes>,
    n_streams: AtomicUsize,
    n_left: AtomicUsize,
}

/// A fake worker.
pub struct FakeWorker {
    address: SocketAddr,
    /// Path before all of its endpoints.
    base: &'static str,
    shared: Arc<Shared>,
    runtime: Option<Runtime>,
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
        let snapshot = Snapshot { stamp, model: model(), runs: Vec::new(), load: idle() };
        let script = Script {
            snapshot,
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
            replay_buffer: ReplayBuffer::new(REPLAY_LIMITS, stamp),
        };
        let shared = Arc::new(Shared {
            script: Mutex::new(script),
            seen: Mutex::default(),
            asked: Mutex::default(),
            updates: broadcast::channel(100_000).0,
            n_streams: AtomicUsize::new(0),
            n_left: AtomicUsize::new(0),
        });
        let mut worker = Self { address: address.parse().expect("an address"), base, shared, runtime: None };
        worker.revive();
        worker
    }

    pub fn url(&self) -> String {
        format!("http://{}{}", self.address, self.base)
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
        if let Some(runtime) = self.runtime.take() {
            end(runtime);
        }
    }

    /// Starts the worker, again on the same port, with a new boot epoch and no blocks.
    pub fn revive(&mut self) {
        self.with(|script| {
            script.snapshot.stamp.boot_epoch += 1;
            script.snapshot.stamp.seq = 0;
            script.snapshot.runs.clear();
            script.replay_buffer = ReplayBuffer::new(REPLAY_LIMITS, script.snapshot.stamp);
        });
        let (address, runtime) = serve_apart(self.address, under(self.base, routes(Arc::clone(&self.shared))));
        self.address = address;
        runtime.spawn(heartbeat(Arc::clone(&self.shared)));
        self.runtime = Some(runtime);
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
        self.with(|script| script.snapshot.runs.push(run));
    }

    /// Sends an update.
    pub fn update(&self, changes: Vec<Change>, load: Option<Load>) {
        send_update(&self.shared, FrameBody::Update { changes, load, digest: None });
    }

    /// Sends an update with a digest.
    pub fn update_with_digest(&self, changes: Vec<Change>, digest: Digest) {
        send_update(&self.shared, FrameBody::Update { changes, load: None, digest: Some(digest) });
    }

    /// Returns the bytes of a snapshot's first frame.
    pub fn opening(&self) -> Vec<u8> {
        let frames = self.script().snapshot.clone().into_frames();
        framed(&frames[0].encode())
    }

    /// Ends every stream.
    pub fn cut(&self) {
        self.send_raw(&[]);
    }

    /// Sends an update under a number of its own.
    pub fn send_seq(&self, skip: i64) {
        let mut script = self.script();
        let mut stamp = script.snapshot.stamp;
        stamp.seq = stamp.seq.checked_add_signed(skip).expect("a number");
        script.snapshot.stamp = stamp;
        script.replay_buffer = ReplayBuffer::new(REPLAY_LIMITS, stamp);
        let frame = Frame { stamp, body: FrameBody::Update { changes: Vec::new(), load: None, digest: None } };
        self.send_raw(&framed(&frame.encode()));
    }

    /// Sends bytes on every stream.
    pub fn send_raw(&self, bytes: &[u8]) {
        // Without a stream there is no receiver.
        let _ = self.shared.updates.send(Bytes::copy_from_slice(bytes));
    }

    pub fn seen(&self) -> Vec<Seen> {
        self.shared.seen.lock().expect("no test panics here").clone()
    }

    /// Returns every requested path, with the headers.
    pub fn asked(&self) -> Vec<(String, HeaderMap)> {
        self.shared.asked.lock().expect("no test panics here").clone()
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

impl Drop for FakeWorker {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Returns the worker's model: the tiny one's vocabulary.
pub fn model() -> ModelInfo {
    let maker = &*MAKER;
    ModelInfo {
        names: vec!["tiny".to_owned(), "alias".to_owned()],
        fingerprint: Fingerprint([7; 32]),
        kv_fingerprint: Fingerprint([8; 32]),
        chat_template_fingerprint: maker.chat_template_fingerprint(),
        chat_template_kwargs: maker.chat_template_kwargs().to_json(),
        hash_version: warmpath_common::block_hash::HASH_VERSION,
        block_size_tokens: 16,
        add_bos: maker.vocabulary().add_bos,
        add_eos: maker.vocabulary().add_eos,
        context_tokens: 8192,
        n_ctx_train: None,
        n_slots: 4,
        memory: MemoryKind::Full,
        n_vocab: maker.vocabulary().n_vocab,
        capabilities: vec![Capability::Completion, Capability::Chat],
        embedding: None,
        adapters: Vec::new(),
        adapter_in_force: None,
        kv_transfer: None,
        media: None,
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

/// Returns bytes after their length.
pub fn framed(bytes: &[u8]) -> Vec<u8> {
    let length = u32::try_from(bytes.len()).expect("a short frame").to_be_bytes();
    [&length[..], bytes].concat()
}

fn send_update(shared: &Shared, body: FrameBody) {
    let mut script = shared.script.lock().expect("no test panics here");
    if let FrameBody::Update { load: Some(load), .. } = &body {
        script.snapshot.load = load.clone();
    }
    let bytes = script.replay_buffer.push(|stamp| {
        let bytes = Bytes::from(framed(&Frame { stamp, body }.encode()));
        let n_bytes = bytes.len();
        (bytes, n_bytes)
    });
    script.snapshot.stamp = script.replay_buffer.last();
    // Without a stream there is no receiver.
    let _ = shared.updates.send(bytes);
}

async fn heartbeat(shared: Arc<Shared>) {
    let mut beats = tokio::time::interval(Duration::from_millis(300));
    loop {
        beats.tick().await;
        let (beats, load) = {
            let script = shared.script.lock().expect("no test panics here");
            (script.has_heartbeat, script.snapshot.load.clone())
        };
        if beats {
            send_update(&shared, FrameBody::Update { changes: Vec::new(), load: Some(load), digest: None });
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
    let wanted = shared.script.lock().expect("no test panics here").token.clone();
    let asked = (request.uri().path().to_owned(), request.headers().clone());
    shared.asked.lock().expect("no test panics here").push(asked);
    let shown = request.headers().get("authorization").and_then(|value| value.to_str().ok());
    if wanted.is_some_and(|token| shown != Some(&format!("Bearer {token}"))) {
        return StatusCode::UNAUTHORIZED.into_response();
    }
    next.run(request).await
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
    let (updates, head, name) = {
        let script = shared.script.lock().expect("no test panics here");
        if script.is_loading {
            return StatusCode::SERVICE_UNAVAILABLE.into_response();
        }
        let after: Option<Stamp> = asked.after.and_then(|after| after.parse().ok());
        let missed = after.and_then(|after| Some((after, script.replay_buffer.since(after)?)));
        let head = match missed {
            Some((stamp, missed)) => {
                let first = framed(&Frame { stamp, body: FrameBody::Resumed }.encode());
                first.into_iter().chain(missed.concat()).collect()
            }
            None => {
                let frames = script.snapshot.clone().into_frames();
                frames.iter().flat_map(|frame| framed(&frame.encode())).collect()
            }
        };
        let name = script.name.clone().unwrap_or_else(|| script.snapshot.stamp.worker_uid.to_string());
        (shared.updates.subscribe(), script.raw_stream.clone().unwrap_or(head), name)
    };
    let updates = futures::stream::unfold(updates, |mut updates| async {
        let bytes = updates.recv().await.ok().filter(|bytes| !bytes.is_empty())?;
        Some((Ok::<_, std::io::Error>(bytes), updates))
    });
    let head = futures::stream::once(async move { Ok(Bytes::from(head)) });
    let headers = [("content-type", summary::CONTENT_TYPE.to_owned()), ("x-warmpath-worker", name)];
    (headers, Body::from_stream(head.chain(updates))).into_response()
}

async fn answer(State(shared): State<Arc<Shared>>, uri: Uri, headers: HeaderMap, body: Bytes) -> Response {
    let asked = Seen { target: uri.to_string(), headers, body: body.clone() };
    shared.seen.lock().expect("no test panics here").push(asked.clone());
    let (behaviour, uid, retry_after) = {
        let script = shared.script.lock().expect("no test panics here");
        let text = String::from_utf8_lossy(&body);
        let poison = script.poison.filter(|(word, _)| text.contains(word));
        let behaviour = poison.map_or(script.behaviour, |(_, behaviour)| behaviour);
        (behaviour, script.snapshot.stamp.worker_uid, script.retry_after.clone())
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
        Behaviour::Refuse(status) => refusal(status, retry_after, headers),
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
        Behaviour::Journaled(n_writes, end) => (headers, journaled(shared, &asked, (n_writes, end))).into_response(),
        Behaviour::JournaledWhole(n, end) => (headers, journaled_whole(shared, &asked, (n, end))).into_response(),
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
