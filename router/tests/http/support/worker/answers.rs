//! Parts of a fake worker's responses.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use axum::Json;
use axum::body::{Body, Bytes};
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use futures::{Stream, StreamExt};
use warmpath_common::ids::SlotId;
use warmpath_common::prefetch::{HotList, pack};
use warmpath_common::summary::{Load, Rates};

use super::Shared;
use crate::support::fake_server::Seen;

pub fn idle() -> Load {
    let rates = Rates {
        prefill_tokens_per_s: Some(1000.0),
        decode_step_ms: Some(10.0),
        answer_tokens: Some(50.0),
        ..Rates::default()
    };
    Load { free_cells: 8192, rates, ..Load::default() }
}

/// Returns the load of a worker whose slots are all taken, with this many queued prompt tokens.
pub fn full(queued_prefill_tokens: u64) -> Load {
    Load { queued_prefill_tokens, n_decoding: 4, busy_slots: (0..4).map(SlotId).collect(), ..idle() }
}

/// Responds with the prefixes of the script.
pub(super) async fn hot_list(State(shared): State<Arc<Shared>>) -> Response {
    let (hot, block_size_tokens) = {
        let script = shared.script.lock().expect("no test panics here");
        (script.hot.clone(), script.summary.snapshot.model.block_size_tokens)
    };
    if hot.is_empty() {
        return StatusCode::NOT_FOUND.into_response();
    }
    Json(HotList { block_size_tokens, prefixes: pack(&hot, block_size_tokens) }).into_response()
}

/// Returns the content type of a response.
pub(super) fn kind_of(is_stream: bool) -> &'static str {
    if is_stream { "text/event-stream" } else { "application/json" }
}

/// Number of tokens of a response with a journal.
pub const N_TOKENS: usize = 8;

/// End of a response with a journal before its last token.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    /// The connection breaks within the next write.
    Break,
    /// The connection is closed in order.
    Close,
    /// Nothing comes; records when the client disconnects.
    Hang,
    /// With an error event after which another worker may continue.
    Error,
}

/// Returns a write of a stream of llama-server's own completions with two choices, the second of which begins when the
/// first has ended.
pub fn native_event(n: usize) -> String {
    let (index, stop) = (choice_of(n), (n + 1).is_multiple_of(N_TOKENS / 2));
    format!("data: {{\"index\": {index}, \"content\": \"{n}\", \"stop\": {stop}}}\n\n")
}

fn choice_of(n: usize) -> usize {
    n / (N_TOKENS / 2)
}

/// Event with which a stream of OpenAI's responses begins.
pub const RESPONSE_CREATED: &str = "event: response.created\ndata: {\"sequence_number\": 0}\n\n";

/// Event that keeps a stream of OpenAI's responses alive.
pub const RESPONSE_IN_PROGRESS: &str = "event: response.in_progress\ndata: {\"sequence_number\": 1}\n\n";

/// Last event of a stream of OpenAI's responses.
pub const RESPONSE_COMPLETED: &str = "event: response.completed\ndata: {}\n\n";

/// Returns a write of a stream of OpenAI's responses.
pub fn response_event(n: usize) -> String {
    format!("event: response.output_text.delta\ndata: {{\"sequence_number\": {}}}\n\n", n + 2)
}

/// Returns a stream with a journal that continues after that in the request, if there is one. A stream of OpenAI's
/// responses begins with a keep-alive event behind its first ones, which a continuation leaves out.
pub(super) fn journaled(shared: Arc<Shared>, request: &Seen, part: (usize, End)) -> Response {
    let (is_native, is_response) = (request.target == "/completion", request.target == "/v1/responses");
    let write = |n: usize| {
        let (event, choice) = match request.target.as_str() {
            "/completion" => (native_event(n), choice_of(n)),
            "/v1/responses" => (response_event(n), 0),
            _ => (format!("data: {{\"n\": {n}}}\n\n"), 0),
        };
        format!("{event}:wp {choice} {n}\n")
    };
    let is_continued = request.headers.contains_key("x-warmpath-journal-bytes");
    let opening = match (is_response, is_continued) {
        (false, _) => String::new(),
        (true, false) => format!("{RESPONSE_CREATED}{RESPONSE_IN_PROGRESS}:wp\n{RESPONSE_IN_PROGRESS}:wp\n"),
        (true, true) => format!("{RESPONSE_IN_PROGRESS}:wp\n"),
    };
    behind_journal((shared, request), part, (opening, write), |end| match end {
        None if is_native => &[],
        None if is_response => &[RESPONSE_COMPLETED, ":wp\n"],
        None => &["data: [DONE]\n\n:wp\n"],
        Some(End::Error) => &["data: {\"error\": {\"message\": \"my own words\"}}\n\n"],
        Some(End::Break) => &["data: {\"n\": \"half\"}\n\n:wp"],
        Some(End::Close | End::Hang) => &[],
    })
}

/// Returns a whole response behind a journal that continues after that in the request, if there is one.
pub(super) fn journaled_whole(shared: Arc<Shared>, request: &Seen, part: (usize, End)) -> Response {
    let write = |n: usize| format!(":wp 0 {n}\n");
    behind_journal((shared, request), part, (String::new(), write), |end| match end {
        None => &[":wp= 200\n{\"answer\":", " 42}"],
        Some(End::Error) => &[":wp= 503\n{\"error\": {\"message\": \"my own words\"}}"],
        Some(End::Break) => &[":wp"],
        Some(End::Close | End::Hang) => &[],
    })
}

/// Returns a response of `opening` and up to `n_writes` writes after those in the request, followed by `end`; the
/// response is complete after its last write.
fn behind_journal(
    (shared, request): (Arc<Shared>, &Seen),
    (n_writes, end): (usize, End),
    (opening, write): (String, impl Fn(usize) -> String),
    last: impl FnOnce(Option<End>) -> &'static [&'static str],
) -> Response {
    let n_had = n_had(request);
    let until = N_TOKENS.min(n_had + n_writes);
    let end = Some(end).filter(|_| until < N_TOKENS);
    let opening = Some(opening).filter(|opening| !opening.is_empty());
    let writes = opening.into_iter().chain((n_had..until).map(write));
    let pieces = writes.chain(last(end).iter().map(|piece| (*piece).to_owned()));
    // A continuation reuses another number of tokens.
    let cached_tokens = if n_had == 0 { "32" } else { "48" };
    let response = behind_journal_headers(shared, pieces.collect(), end);
    ([("x-warmpath-cached-tokens", cached_tokens)], response).into_response()
}

/// Returns the number of lines behind a request's body.
fn n_had(request: &Seen) -> usize {
    let number = |name: &str| request.headers.get(name)?.to_str().ok()?.parse::<usize>().ok();
    number("x-warmpath-journal-bytes").map_or(0, |length| {
        let lines = &request.body[request.body.len() - length..];
        String::from_utf8_lossy(lines).matches('\n').count()
    })
}

/// Returns a response of these pieces with the headers of one with a journal; `None` is an end in order.
fn behind_journal_headers(shared: Arc<Shared>, pieces: Vec<String>, end: Option<End>) -> Response {
    let pieces = futures::stream::iter(pieces.into_iter().map(|piece| Ok::<_, std::io::Error>(Bytes::from(piece))));
    let body = match end {
        Some(End::Break) => Body::from_stream(pieces.chain(late_break())),
        Some(End::Hang) => {
            let guard = Left(shared);
            let never = futures::stream::once(async move {
                let _guard = guard;
                std::future::pending().await
            });
            Body::from_stream(pieces.chain(never))
        }
        Some(End::Close | End::Error) | None => Body::from_stream(pieces),
    };
    ([("x-warmpath-journal", "exact")], body).into_response()
}

/// Returns a comment and then, after a moment, these events.
pub(super) fn comment_first(events: String) -> impl Stream<Item = Result<Bytes, std::io::Error>> {
    let comment = futures::stream::iter([Ok(Bytes::from_static(b": wait\n\n"))]);
    comment.chain(futures::stream::once(async move {
        tokio::time::sleep(Duration::from_millis(50)).await;
        Ok(Bytes::from(events))
    }))
}

/// Returns endless events.
pub(super) fn trickle(shared: Arc<Shared>) -> impl Stream<Item = Result<Bytes, std::io::Error>> {
    futures::stream::unfold(Left(shared), |guard| async {
        tokio::time::sleep(Duration::from_millis(50)).await;
        Some((Ok(Bytes::from_static(b"data: {\"n\": 1}\n\n")), guard))
    })
}

/// Counter of clients that disconnect.
pub(super) struct Left(pub(super) Arc<Shared>);

impl Drop for Left {
    fn drop(&mut self) {
        self.0.n_left.fetch_add(1, Ordering::SeqCst);
    }
}

/// Returns the end of a body that breaks, once the pieces before it have had time to leave.
pub(super) fn late_break() -> impl Stream<Item = Result<Bytes, std::io::Error>> {
    futures::stream::once(async {
        tokio::time::sleep(Duration::from_millis(50)).await;
        Err(std::io::Error::other("scripted"))
    })
}

/// Responds to a request for the vocabulary.
pub(super) async fn vocabulary(State(shared): State<Arc<Shared>>) -> Response {
    let script = shared.script.lock().expect("no test panics here");
    if script.has_vocabulary {
        script.vocabulary.clone().into_response()
    } else {
        StatusCode::INTERNAL_SERVER_ERROR.into_response()
    }
}
