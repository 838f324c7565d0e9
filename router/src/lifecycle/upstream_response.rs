//! A worker's response: its head, and its body as far as it has arrived.

use std::time::{Duration, SystemTime};

use axum::body::Body;
use axum::http::{HeaderMap, StatusCode};
use axum::response::Response;
use bytes::Bytes;
use serde_json::Value;
use warmpath_common::dialects::anthropic;
use warmpath_shell::api_error::{RETRY_AFTER_DEFAULT, RETRY_AFTER_MAX, set_retry_after, with_wait};
use warmpath_shell::event_stream;

use super::events::{BodyPieces, Events};
use super::headers;

/// Head of a response.
pub(super) struct ResponseHead {
    pub(super) status: StatusCode,
    pub(super) headers: HeaderMap,
}

/// Rest of a response's body.
pub(super) enum RestOfBody {
    /// Events, which another event can follow.
    Events(Box<Events>),
    /// Anything else; each piece must arrive within the timeout.
    Other(BodyPieces),
}

/// A response that may be shown to the client.
pub(super) enum UpstreamResponse {
    Whole { head: ResponseHead, body: Bytes },
    Stream { head: ResponseHead, first: Bytes, rest: RestOfBody },
}

impl UpstreamResponse {
    pub(super) fn head(&self) -> &ResponseHead {
        match self {
            Self::Whole { head, .. } | Self::Stream { head, .. } => head,
        }
    }
}

/// A worker's own error response when it does not serve now. A stock server's may have a status of success.
pub(super) struct WorkerRefusal {
    pub(super) head: ResponseHead,
    pub(super) body: Bytes,
}

impl WorkerRefusal {
    /// Returns the refusal as a response to the client, with a time to retry after that every client accepts.
    pub(super) fn into_response(self) -> Response {
        let (status, server_headers) = (self.head.status, &self.head.headers);
        let mut headers = headers::to_client(server_headers);
        let mut body = self.body;
        let is_momentary = matches!(status, StatusCode::TOO_MANY_REQUESTS | StatusCode::SERVICE_UNAVAILABLE)
            || status.as_u16() == anthropic::OVERLOADED;
        let announced_wait = headers::retry_after(server_headers, SystemTime::now());
        if let Some(wait) = announced_wait.or(is_momentary.then_some(RETRY_AFTER_DEFAULT)) {
            if wait > RETRY_AFTER_MAX && !event_stream::is_encoded(&headers) {
                body = with_wait_in_body(body, wait);
            }
            set_retry_after(&mut headers, wait);
            headers.remove(headers::RETRY_AFTER_MS);
        }
        let mut response = Response::new(Body::from(body));
        *response.status_mut() = status;
        *response.headers_mut() = headers;
        if event_stream::is_event_stream(response.headers()) {
            event_stream::keep_flowing(response.headers_mut());
        }
        response
    }
}

/// Returns an error's body with the time to retry after in its message; a body of another form is unchanged.
fn with_wait_in_body(body: Bytes, wait: Duration) -> Bytes {
    let Ok(mut error) = serde_json::from_slice::<Value>(&body) else { return body };
    // vLLM's older releases have no object around it.
    let path = if error.pointer("/error/message").is_some() { "/error/message" } else { "/message" };
    let Some(message) = error.pointer_mut(path) else { return body };
    let Some(text) = message.as_str() else { return body };
    *message = with_wait(text, wait).into();
    error.to_string().into()
}
