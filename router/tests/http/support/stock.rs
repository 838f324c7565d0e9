//! A fake stock server: responds like llama-server, reuses computed prompts, and follows a script; in a separate
//! runtime, so that it can be killed with all its connections.

use std::collections::HashSet;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard};

use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::{ConnectInfo, Request, State};
use axum::http::{HeaderMap, StatusCode, Uri};
use axum::middleware::{Next, from_fn_with_state, map_response};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use serde_json::{Value, json};
use warmpath_common::ids::Token;
use warmpath_common::openai::ChatPrompt;

use super::fake_server::{self, FakeServer, RequestLog, Seen};
use super::worker::MAKER;

/// Token counts in responses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Says {
    /// `usage` with `cached_tokens`.
    Usage,
    /// `timings`, as llama-server adds them to the end of a stream.
    Timings,
    /// `usage` without `cached_tokens`.
    NoReuse,
}

/// State and behaviour of the server.
pub struct Script {
    pub name: &'static str,
    pub says: Says,
    /// Added to each prompt's length, as with another vocabulary.
    pub extra_tokens: u32,
    /// Most prompts that it keeps.
    pub kept_max: usize,
    /// Status of its health; for `None` no response ever comes.
    pub health: Option<u16>,
    /// Response of `/v1/models`; its own list for `None`.
    pub models: Option<Value>,
    /// Response of `/slots`; 501 for `None`.
    pub slots: Option<Value>,
    /// Whether it has unloaded its model, as `/props` reports; `None` for a server that cannot.
    pub is_sleeping: Option<bool>,
    /// Whether it accepts requests and never responds.
    pub is_silent: bool,
    /// Status with which it refuses requests, and its `Retry-After`.
    pub refusal: Option<(u16, Option<String>)>,
    /// A word at which it closes the connection.
    pub poison: Option<&'static str>,
    /// Key that every request must have; `None` if none is required.
    pub key: Option<&'static str>,
    kept: Vec<Vec<Token>>,
}

struct Shared {
    script: Mutex<Script>,
    log: Arc<RequestLog>,
    /// Remote addresses of all connections that have carried a request.
    peers: Mutex<HashSet<SocketAddr>>,
}

/// A fake stock server.
pub struct FakeStock {
    server: FakeServer,
    shared: Arc<Shared>,
}

impl FakeStock {
    /// Starts a server that has computed nothing.
    pub fn start(name: &'static str) -> Self {
        Self::start_under(name, "")
    }

    /// Starts a server with a path before all of its endpoints.
    pub fn start_under(name: &'static str, base: &'static str) -> Self {
        Self::start_at(name, "127.0.0.1:0", base)
    }

    /// Starts such a server at an address of this machine.
    pub fn start_at(name: &'static str, address: &str, base: &'static str) -> Self {
        let script = Script {
            name,
            says: Says::Usage,
            extra_tokens: 0,
            kept_max: 100,
            health: Some(200),
            models: None,
            slots: None,
            is_sleeping: None,
            is_silent: false,
            refusal: None,
            poison: None,
            key: None,
            kept: Vec::new(),
        };
        let server = FakeServer::at(address, base);
        let shared = Shared { script: Mutex::new(script), log: Arc::clone(&server.log), peers: Mutex::default() };
        let mut server = Self { server, shared: Arc::new(shared) };
        server.revive();
        server
    }

    /// Returns its address on the command line.
    pub fn flag(&self) -> String {
        format!("openai+{}", self.url())
    }

    pub fn url(&self) -> String {
        self.server.url()
    }

    pub fn asked(&self) -> Vec<(String, HeaderMap)> {
        self.server.log.asked()
    }

    pub fn with(&self, change: impl FnOnce(&mut Script)) {
        change(&mut self.shared.script());
    }

    /// Drops its computed prompts, as an eviction would.
    pub fn forget(&self) {
        self.with(|script| script.kept.clear());
    }

    pub fn seen(&self) -> Vec<Seen> {
        self.server.log.seen()
    }

    /// Returns how many connections have carried a request.
    pub fn n_connections(&self) -> usize {
        self.shared.peers.lock().expect("no test panics here").len()
    }

    /// Ends the server with all its connections.
    pub fn kill(&mut self) {
        self.server.kill();
    }

    /// Starts the server, again on the same port; it has computed nothing.
    pub fn revive(&mut self) {
        self.forget();
        self.server.start(routes(Arc::clone(&self.shared)));
    }
}

impl Shared {
    fn script(&self) -> MutexGuard<'_, Script> {
        self.script.lock().expect("no test panics here")
    }
}

fn routes(shared: Arc<Shared>) -> Router {
    Router::new()
        .route("/health", get(health))
        .route("/v1/models", get(models))
        .route("/props", get(props))
        .route("/slots", get(slots))
        .route("/v1/chat/completions", post(chat))
        .route("/v1/messages", post(message))
        .route("/v1/embeddings", post(numbers))
        .route("/v1/rerank", post(numbers))
        .route("/v2/rerank", post(numbers))
        .layer(from_fn_with_state(Arc::clone(&shared), guard))
        // As llama-server does.
        .layer(map_response(async |response: Response| ([("access-control-allow-origin", "*")], response)))
        .layer(from_fn_with_state(Arc::clone(&shared), count))
        .with_state(shared)
}

async fn count(
    State(shared): State<Arc<Shared>>,
    peer: ConnectInfo<SocketAddr>,
    request: Request,
    next: Next,
) -> Response {
    shared.peers.lock().expect("no test panics here").insert(peer.0);
    next.run(request).await
}

async fn guard(State(shared): State<Arc<Shared>>, request: Request, next: Next) -> Response {
    let key = shared.script().key;
    match shared.log.admit(&request, key) {
        Ok(()) => next.run(request).await,
        Err(status) => status.into_response(),
    }
}

async fn health(State(shared): State<Arc<Shared>>) -> StatusCode {
    let status = shared.script().health;
    match status {
        Some(status) => StatusCode::from_u16(status).expect("a status"),
        None => std::future::pending().await,
    }
}

async fn models(State(shared): State<Arc<Shared>>) -> axum::Json<Value> {
    let script = shared.script();
    axum::Json(script.models.clone().unwrap_or_else(|| json!({"object": "list", "data": [{"id": script.name}]})))
}

async fn props(State(shared): State<Arc<Shared>>) -> axum::Json<Value> {
    let mut props = json!({"total_slots": 2, "default_generation_settings": {"n_ctx": 4096}});
    if let Some(is_sleeping) = shared.script().is_sleeping {
        props["is_sleeping"] = is_sleeping.into();
    }
    axum::Json(props)
}

async fn slots(State(shared): State<Arc<Shared>>) -> Response {
    match shared.script().slots.clone() {
        Some(slots) => axum::Json(slots).into_response(),
        None => StatusCode::NOT_IMPLEMENTED.into_response(),
    }
}

/// Responds to a request for a message without reading it.
async fn message(State(shared): State<Arc<Shared>>, uri: Uri, headers: HeaderMap, body: Bytes) -> axum::Json<Value> {
    shared.log.record(&uri, headers, &body);
    axum::Json(
        json!({"type": "message", "usage": {"input_tokens": 4, "cache_read_input_tokens": 6, "output_tokens": 3}}),
    )
}

/// Responds to a request for vectors or scores without reading it.
async fn numbers(State(shared): State<Arc<Shared>>, uri: Uri, headers: HeaderMap, body: Bytes) -> Response {
    shared.log.record(&uri, headers, &body);
    refusal(&shared, &body).unwrap_or_else(|| axum::Json(json!({"data": []})).into_response())
}

/// Returns the script's refusal, if it has one; breaks the connection if the script requires it.
fn refusal(shared: &Shared, body: &Bytes) -> Option<Response> {
    let (refusal, poison) = {
        let script = shared.script();
        (script.refusal.clone(), script.poison)
    };
    let is_poison = poison.is_some_and(|word| String::from_utf8_lossy(body).contains(word));
    assert!(!is_poison, "scripted: the connection breaks");
    let (status, after) = refusal?;
    Some(fake_server::refusal(status, after))
}

async fn chat(State(shared): State<Arc<Shared>>, uri: Uri, headers: HeaderMap, body: Bytes) -> Response {
    shared.log.record(&uri, headers, &body);
    if let Some(response) = refusal(&shared, &body) {
        return response;
    }
    if shared.script().is_silent {
        std::future::pending::<()>().await;
    }
    let chat: ChatPrompt = serde_json::from_slice(&body).expect("a chat");
    let tokens = MAKER.chat(&chat).expect("it renders").tokens;
    let (says, prompt, cached) = {
        let mut script = shared.script();
        let cached = script.compute(&tokens);
        (script.says, tokens.len() as u32 + script.extra_tokens, cached)
    };
    let usage = match says {
        Says::Usage => json!({"prompt_tokens": prompt, "completion_tokens": 3, "total_tokens": prompt + 3,
            "prompt_tokens_details": {"cached_tokens": cached}}),
        Says::NoReuse => json!({"prompt_tokens": prompt, "completion_tokens": 3, "total_tokens": prompt + 3}),
        Says::Timings => Value::Null,
    };
    let timings = match says {
        Says::Timings => json!({"cache_n": cached, "prompt_n": prompt - cached,
            "prompt_ms": 0.1 * f64::from(prompt - cached), "predicted_n": 3, "predicted_per_token_ms": 5.0}),
        Says::Usage | Says::NoReuse => Value::Null,
    };
    let last = json!({"choices": [], "usage": usage, "timings": timings});
    let wants_stream = serde_json::from_slice::<Value>(&body).is_ok_and(|body| body["stream"] == json!(true));
    if !wants_stream {
        return ([("content-type", "application/json")], last.to_string()).into_response();
    }
    let events = format!("data: {{\"n\": 1}}\n\ndata: {{\"n\": 2}}\n\ndata: {last}\n\ndata: [DONE]\n\n");
    let pieces: Vec<_> =
        events.into_bytes().chunks(7).map(Bytes::copy_from_slice).map(Ok::<_, std::io::Error>).collect();
    ([("content-type", "text/event-stream")], Body::from_stream(futures::stream::iter(pieces))).into_response()
}

impl Script {
    /// Computes a prompt; returns how many of its tokens were cached.
    fn compute(&mut self, tokens: &[Token]) -> u32 {
        let shared = |kept: &Vec<Token>| kept.iter().zip(tokens).take_while(|(a, b)| a == b).count();
        let cached = self.kept.iter().map(shared).max().unwrap_or(0).min(tokens.len() - 1);
        self.kept.push(tokens.to_vec());
        let n_over = self.kept.len().saturating_sub(self.kept_max);
        self.kept.drain(..n_over);
        u32::try_from(cached).expect("a prompt of a test")
    }
}
