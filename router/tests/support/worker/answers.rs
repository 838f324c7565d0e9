//! Parts of a fake worker's responses.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use axum::body::Bytes;
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::{IntoResponse, IntoResponseParts, Response};
use futures::Stream;
use serde_json::json;

use super::Shared;

/// Returns a refusal as the script has it.
pub(super) fn refusal(status: u16, retry_after: Option<String>, headers: impl IntoResponseParts) -> Response {
    let body = json!({"error": {"message": "scripted", "type": "scripted", "param": null, "code": null}});
    let status = StatusCode::from_u16(status).expect("a status");
    let mut response = (status, headers, body.to_string()).into_response();
    if let Some(after) = retry_after {
        response.headers_mut().insert("retry-after", after.parse().expect("a header"));
    }
    response
}

/// Returns endless events.
pub(super) fn trickle() -> impl Stream<Item = Result<Bytes, std::io::Error>> {
    futures::stream::unfold((), |()| async {
        tokio::time::sleep(Duration::from_millis(50)).await;
        Some((Ok(Bytes::from_static(b"data: {\"n\": 1}\n\n")), ()))
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
