//! A server with the part of the hub's protocol that a download of models needs, and with faults on request.
//!
//! Source: the responses of huggingface.co to `/api/models/...` and `/REPO/resolve/...`: a redirect leads to another
//! host that has the files and supports ranges.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::{Path, Query, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use futures::{StreamExt, stream};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use tokio::net::TcpListener;
use url::Url;

/// Commit of the branch `main`.
pub const COMMIT: &str = "0123456789012345678901234567890123456789";
/// Commit of the tag `v2`.
pub const SECOND_COMMIT: &str = "abcdefabcdefabcdefabcdefabcdefabcdefabcd";
/// Token of a user with access to everything.
pub const TOKEN: &str = "hf_right";

/// Pause before a connection is closed. Source: enough to send the bytes before it.
const CUT_PAUSE: Duration = Duration::from_millis(30);

const FILES: [&str; 6] = [
    "README.md",
    "mmproj-tiny-F16.gguf",
    "mmproj-tiny-Q8_0.gguf",
    "parts/tiny-Q8_0-00001-of-00002.gguf",
    "parts/tiny-Q8_0-00002-of-00002.gguf",
    "tiny-Q4_K_M.gguf",
];

/// Fault of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// Every response ends after this number of bytes.
    CutAfter(usize),
    /// One byte is changed.
    Damaged,
    /// The host ignores ranges.
    NoRanges,
    /// Its size is an exabyte.
    Huge,
    /// Its path is outside the repository.
    PathOutside,
    /// The list of files has one file per page.
    ManyPages,
    /// A response stops after this number of bytes, and does not end.
    SilentAfter(usize),
    /// A response ends after this number of bytes, and further ones have another version of a plain URL.
    ReplacedAfter(usize),
}

/// ETag of plain URLs, which never decides whether a range is sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum PlainTag {
    #[default]
    Strong,
    Weak,
    Missing,
}

/// A hub and the host of its files.
pub struct FakeHub {
    /// Address of the hub.
    pub endpoint: Url,
    shared: Arc<Shared>,
}

#[derive(Default)]
struct Shared {
    faults: Mutex<HashMap<String, Fault>>,
    /// File and first byte of each response with a file's content.
    begins: Mutex<Vec<(String, usize)>>,
    elsewhere: Mutex<Option<Url>>,
    is_gated: AtomicBool,
    is_down: AtomicBool,
    is_replaced: AtomicBool,
    plain_tag: Mutex<PlainTag>,
    n_requests: AtomicUsize,
    n_with_token: AtomicUsize,
    n_with_token_elsewhere: AtomicUsize,
}

/// Returns the content of a file, some kilobytes that differ by its name.
pub fn content(name: &str) -> Vec<u8> {
    let seed = name.bytes().fold(7_u32, |hash, byte| hash.wrapping_mul(31).wrapping_add(byte.into()));
    (0..5000_u32).map(|n| n.wrapping_mul(seed | 1).rotate_left(n % 13).to_le_bytes()[2]).collect()
}

/// Returns the replaced content of a plain URL.
pub fn replaced() -> Vec<u8> {
    content("another")
}

/// Returns the name of a file's blob.
pub fn etag(name: &str) -> String {
    hex::encode(Sha256::digest(content(name)))
}

impl FakeHub {
    pub async fn start() -> Self {
        let shared = Arc::new(Shared::default());
        let files = Router::new().route("/files/{*path}", get(file)).with_state(Arc::clone(&shared));
        *shared.elsewhere.lock().expect("unbroken") = Some(serve(files).await);
        let hub = Router::new()
            .route("/api/models/acme/tiny-GGUF/revision/{revision}", get(revision))
            .route("/api/models/acme/tiny-GGUF/tree/{commit}", get(tree))
            .route("/acme/tiny-GGUF/resolve/{commit}/{*path}", get(resolve))
            .route("/plain/{*path}", get(plain))
            .with_state(Arc::clone(&shared));
        Self { endpoint: serve(hub).await, shared }
    }

    /// Sets the fault of a file.
    pub fn fault(&self, name: &str, fault: Fault) {
        self.shared.faults.lock().expect("unbroken").insert(name.to_owned(), fault);
    }

    pub fn is_gated(&self, is_gated: bool) {
        self.shared.is_gated.store(is_gated, Ordering::Relaxed);
    }

    pub fn is_down(&self, is_down: bool) {
        self.shared.is_down.store(is_down, Ordering::Relaxed);
    }

    /// Replaces the content of plain URLs.
    pub fn replace_plain(&self) {
        self.shared.replace_plain();
    }

    /// Sets the kind of ETag of plain URLs.
    pub fn tag_plain(&self, tag: PlainTag) {
        *self.shared.plain_tag.lock().expect("unbroken") = tag;
    }

    /// Returns the offsets from which responses had a file's content.
    pub fn begins(&self, name: &str) -> Vec<usize> {
        let begins = self.shared.begins.lock().expect("unbroken");
        begins.iter().filter(|(served, _)| served == name).map(|(_, begin)| *begin).collect()
    }

    /// Returns how many responses had a file's content.
    pub fn n_served(&self, name: &str) -> usize {
        self.begins(name).len()
    }

    pub fn n_requests(&self) -> usize {
        self.shared.n_requests.load(Ordering::Relaxed)
    }

    pub fn n_with_token(&self) -> usize {
        self.shared.n_with_token.load(Ordering::Relaxed)
    }

    pub fn n_with_token_elsewhere(&self) -> usize {
        self.shared.n_with_token_elsewhere.load(Ordering::Relaxed)
    }
}

async fn serve(router: Router) -> Url {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port is free");
    let address = listener.local_addr().expect("it is bound");
    tokio::spawn(async move { axum::serve(listener, router).await });
    Url::parse(&format!("http://{address}/")).expect("an address")
}

impl Shared {
    fn replace_plain(&self) {
        self.faults.lock().expect("unbroken").clear();
        self.is_replaced.store(true, Ordering::Relaxed);
    }

    fn fault_of(&self, name: &str) -> Option<Fault> {
        self.faults.lock().expect("unbroken").get(name).copied()
    }

    /// Returns the response to a request without access; `None` if it has access.
    fn refusal(&self, headers: &HeaderMap) -> Option<Response> {
        self.n_requests.fetch_add(1, Ordering::Relaxed);
        let token = headers.get(header::AUTHORIZATION);
        self.n_with_token.fetch_add(usize::from(token.is_some()), Ordering::Relaxed);
        if self.is_down.load(Ordering::Relaxed) {
            return Some((StatusCode::SERVICE_UNAVAILABLE, [(header::RETRY_AFTER, "0")]).into_response());
        }
        if !self.is_gated.load(Ordering::Relaxed) {
            return None;
        }
        let Some(token) = token else {
            let says = json!({"error": "Access to model acme/tiny-GGUF is restricted."});
            return Some((StatusCode::UNAUTHORIZED, axum::Json(says)).into_response());
        };
        let says = [("x-error-message", "you are not in the authorized list")];
        (*token != format!("Bearer {TOKEN}")).then(|| (StatusCode::FORBIDDEN, says).into_response())
    }
}

async fn revision(State(shared): State<Arc<Shared>>, Path(revision): Path<String>, headers: HeaderMap) -> Response {
    if let Some(refusal) = shared.refusal(&headers) {
        return refusal;
    }
    let commit = match revision.as_str() {
        "main" => COMMIT,
        "v2" | SECOND_COMMIT => SECOND_COMMIT,
        _ => {
            let says = [("x-error-code", "RevisionNotFound"), ("x-error-message", "Invalid rev id")];
            return (StatusCode::NOT_FOUND, says).into_response();
        }
    };
    axum::Json(json!({"id": "acme/tiny-GGUF", "sha": commit})).into_response()
}

async fn tree(
    State(shared): State<Arc<Shared>>,
    Path(commit): Path<String>,
    Query(query): Query<HashMap<String, String>>,
    headers: HeaderMap,
) -> Response {
    if let Some(refusal) = shared.refusal(&headers) {
        return refusal;
    }
    assert_eq!(query.get("recursive").map(String::as_str), Some("true"));
    let folder = json!({"type": "directory", "oid": "0".repeat(40), "size": 0, "path": "parts"});
    let entries: Vec<Value> = [folder].into_iter().chain(FILES.map(|name| entry(&shared, name))).collect();
    if shared.fault_of("") != Some(Fault::ManyPages) {
        return axum::Json(entries).into_response();
    }
    let page: usize = query.get("cursor").map_or(0, |cursor| cursor.parse().expect("a number"));
    let next = format!("</api/models/acme/tiny-GGUF/tree/{commit}?recursive=true&cursor={}>; rel=\"next\"", page + 1);
    let mut response = axum::Json(&entries[page..=page]).into_response();
    if page + 1 < entries.len() {
        response.headers_mut().insert(header::LINK, next.parse().expect("a header"));
    }
    response
}

fn entry(shared: &Shared, name: &str) -> Value {
    let fault = shared.fault_of(name);
    let size = if fault == Some(Fault::Huge) { 1 << 60 } else { content(name).len() };
    let path = if fault == Some(Fault::PathOutside) { format!("../../{name}") } else { name.to_owned() };
    let oid = "1".repeat(40);
    if name.ends_with(".md") {
        return json!({"type": "file", "oid": oid, "size": size, "path": path});
    }
    let lfs = json!({"oid": etag(name), "size": size, "pointerSize": 134});
    json!({"type": "file", "oid": oid, "size": size, "lfs": lfs, "path": path, "xetHash": "2".repeat(64)})
}

async fn resolve(
    State(shared): State<Arc<Shared>>,
    Path((commit, path)): Path<(String, String)>,
    headers: HeaderMap,
) -> Response {
    if let Some(refusal) = shared.refusal(&headers) {
        return refusal;
    }
    let elsewhere = shared.elsewhere.lock().expect("unbroken").clone().expect("it is set");
    let location = format!("{elsewhere}files/{path}?X-Amz-Signature=secret");
    let linked = [
        ("location", location),
        ("x-repo-commit", commit),
        ("x-linked-etag", format!("\"{}\"", etag(&path))),
        ("x-linked-size", content(&path).len().to_string()),
    ];
    (StatusCode::FOUND, linked).into_response()
}

async fn file(State(shared): State<Arc<Shared>>, Path(path): Path<String>, headers: HeaderMap) -> Response {
    let has_token = headers.contains_key(header::AUTHORIZATION);
    shared.n_with_token_elsewhere.fetch_add(usize::from(has_token), Ordering::Relaxed);
    bytes_of(&shared, &path, &content(&path), &headers)
}

async fn plain(State(shared): State<Arc<Shared>>, Path(path): Path<String>, headers: HeaderMap) -> Response {
    if let Some(refusal) = shared.refusal(&headers) {
        return refusal;
    }
    let content = if shared.is_replaced.load(Ordering::Relaxed) { replaced() } else { content(&path) };
    let strong = format!("\"{}\"", &hex::encode(Sha256::digest(&content))[..8]);
    let tag = match *shared.plain_tag.lock().expect("unbroken") {
        PlainTag::Strong => Some(strong),
        PlainTag::Weak => Some(format!("W/{strong}")),
        PlainTag::Missing => None,
    };
    if headers.get(header::IF_NONE_MATCH).is_some_and(|known| tag.as_ref().is_some_and(|tag| known == tag)) {
        return StatusCode::NOT_MODIFIED.into_response();
    }
    let mut response = bytes_of(&shared, &path, &content, &headers);
    if let Some(tag) = tag {
        response.headers_mut().insert(header::ETAG, tag.parse().expect("a header"));
    }
    response
}

/// Returns a file's content or the requested part of it, with the file's fault.
fn bytes_of(shared: &Shared, name: &str, content: &[u8], headers: &HeaderMap) -> Response {
    let fault = shared.fault_of(name);
    let range = headers.get(header::RANGE).filter(|_| fault != Some(Fault::NoRanges));
    let begin = range.map(|range| {
        let range = range.to_str().expect("ASCII");
        range.strip_prefix("bytes=").and_then(|range| range.strip_suffix('-')).expect("an open range").parse::<usize>()
    });
    let begin = begin.map(|begin| begin.expect("a number"));
    let first = begin.unwrap_or(0);
    if first >= content.len() {
        return StatusCode::RANGE_NOT_SATISFIABLE.into_response();
    }
    shared.begins.lock().expect("unbroken").push((name.to_owned(), first));
    let mut bytes = content[first..].to_vec();
    if fault == Some(Fault::Damaged) {
        bytes[0] ^= 1;
    }
    let length = bytes.len();
    let is_cut = matches!(fault, Some(Fault::CutAfter(n) | Fault::ReplacedAfter(n)) if n < length);
    if let Some(Fault::CutAfter(n) | Fault::ReplacedAfter(n) | Fault::SilentAfter(n)) = fault {
        bytes.truncate(n);
    }
    if matches!(fault, Some(Fault::ReplacedAfter(_))) {
        shared.replace_plain();
    }
    let sent = stream::iter([Ok::<_, std::io::Error>(Bytes::from(bytes))]);
    // The bytes must be sent before the connection ends.
    let cut = stream::once(async {
        tokio::time::sleep(CUT_PAUSE).await;
        Err(std::io::Error::other("cut"))
    });
    let body = match fault {
        Some(Fault::SilentAfter(_)) => Body::from_stream(sent.chain(stream::pending())),
        _ if is_cut => Body::from_stream(sent.chain(cut)),
        _ => Body::from_stream(sent),
    };
    let mut response = Response::new(body);
    let mut set = |name, value: String| response.headers_mut().insert(name, value.parse().expect("a header"));
    set(header::CONTENT_LENGTH, length.to_string());
    if begin.is_some() {
        set(header::CONTENT_RANGE, format!("bytes {first}-{}/{}", content.len() - 1, content.len()));
        *response.status_mut() = StatusCode::PARTIAL_CONTENT;
    }
    response
}
