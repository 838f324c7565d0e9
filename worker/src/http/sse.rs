//! Server-sent events: how one is written, and the response that is made of them.
//!
//! Not here: what the events say.

use std::convert::Infallible;

use axum::body::Body;
use axum::http::{HeaderName, header};
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use futures::Stream;
use serde::Serialize;

/// Writes one event; JSON has no line breaks of its own, so one `data:` line holds it.
pub fn write_event(out: &mut Vec<u8>, content: &impl Serialize) {
    out.extend_from_slice(b"data: ");
    serde_json::to_writer(&mut *out, content).expect("the objects of an answer all have a JSON form");
    out.extend_from_slice(b"\n\n");
}

/// Writes one event with its name, as dialects want it whose clients read `event:` lines.
pub fn write_named_event(out: &mut Vec<u8>, name: &str, content: &impl Serialize) {
    out.extend_from_slice(b"event: ");
    out.extend_from_slice(name.as_bytes());
    out.push(b'\n');
    write_event(out, content);
}

/// Returns the response whose body is these events.
pub fn response(events: impl Stream<Item = Result<Bytes, Infallible>> + Send + 'static) -> Response {
    let described = [
        (header::CONTENT_TYPE, "text/event-stream"),
        (header::CACHE_CONTROL, "no-cache"),
        // Tells nginx not to gather the stream.
        (HeaderName::from_static("x-accel-buffering"), "no"),
    ];
    (described, Body::from_stream(events)).into_response()
}
