//! Server-sent events: writing an event, and a response of events.
//!
//! Not here: the content of the events.

use std::convert::Infallible;
use std::time::Duration;

use axum::body::Body;
use axum::http::header;
use axum::response::Response;
use bytes::Bytes;
use futures::{Stream, StreamExt};
use serde::Serialize;
use warmpath_shell::{event_stream, one_line};

/// Writes one event as one `data:` line, because its JSON has no line breaks.
pub fn write_event(out: &mut Vec<u8>, content: &impl Serialize) {
    out.extend_from_slice(b"data: ");
    one_line::write(out, content);
    out.extend_from_slice(b"\n\n");
}

/// Writes one event with its name, for dialects whose clients read `event:` lines.
pub fn write_named_event(out: &mut Vec<u8>, name: &str, content: &impl Serialize) {
    out.extend_from_slice(b"event: ");
    out.extend_from_slice(name.as_bytes());
    out.push(b'\n');
    write_event(out, content);
}

/// Keep-alive comment, which clients ignore.
pub const COMMENT: &[u8] = b": the answer goes on\n\n";

/// Keep-alive comment in a stream with a journal.
pub const JOURNALED_COMMENT: &[u8] = b": the answer goes on\n\n:wp\n";

/// Error: no event arrived within the longest allowed silence.
#[derive(Debug, PartialEq, Eq)]
pub struct Silent;

/// Returns the next event, if it arrives within `silence_max`.
///
/// Errors: [`Silent`]; `next` is then dropped, so it must be safe to cancel.
pub async fn unless_silent<T>(silence_max: Option<Duration>, next: impl Future<Output = T>) -> Result<T, Silent> {
    match silence_max {
        None => Ok(next.await),
        Some(silence_max) => tokio::time::timeout(silence_max, next).await.map_err(|_| Silent),
    }
}

/// Returns these events, with a comment whenever none has arrived for `silence_max`.
pub fn kept_alive<E>(
    events: E,
    silence_max: Option<Duration>,
    comment: &'static [u8],
) -> impl Stream<Item = E::Item> + Send + 'static
where
    E: Stream<Item = Result<Bytes, Infallible>> + Send + 'static,
{
    futures::stream::unfold(Box::pin(events), move |mut events| async move {
        let next = unless_silent(silence_max, events.next()).await;
        let piece = next.unwrap_or(Some(Ok(Bytes::from_static(comment))))?;
        Some((piece, events))
    })
    .fuse()
}

/// Returns the response with these events as its body.
pub fn response(events: impl Stream<Item = Result<Bytes, Infallible>> + Send + 'static) -> Response {
    let mut response = Response::new(Body::from_stream(events));
    response.headers_mut().insert(header::CONTENT_TYPE, event_stream::CONTENT_TYPE);
    event_stream::keep_flowing(response.headers_mut());
    response
}

#[cfg(test)]
mod tests {
    use tokio::sync::mpsc;
    use tokio::time::Instant;
    use tokio_stream::wrappers::UnboundedReceiverStream;

    use super::*;

    #[test]
    fn an_event_has_no_character_at_which_a_client_ends_a_line() {
        let content = serde_json::json!({"a\u{2028}": "b\u{85}\n\u{2029}ü", "c": ["\u{2028}\u{2028}"]});
        let raw = serde_json::value::RawValue::from_string(content.to_string()).expect("it is JSON");
        for of_raw in [false, true] {
            let mut out = Vec::new();
            if of_raw {
                write_event(&mut out, &raw)
            } else {
                write_event(&mut out, &content)
            }
            let event = String::from_utf8(out).expect("it is text");
            assert!(event.starts_with("data: ") && event.ends_with("\n\n") && event.contains('ü'), "{event}");
            let line = event["data: ".len()..].trim_end_matches('\n');
            assert!(!line.contains(['\n', '\r', '\u{85}', '\u{2028}', '\u{2029}']), "{line:?}");
            assert_eq!(serde_json::from_str::<serde_json::Value>(line).expect("it is JSON"), content);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_silent_stream_gets_comments_and_loses_nothing() {
        let (events, received) = mpsc::unbounded_channel();
        let event = |text: &'static str| Ok(Bytes::from_static(text.as_bytes()));
        let silence = Duration::from_secs(15);
        let mut stream = Box::pin(kept_alive(UnboundedReceiverStream::new(received), Some(silence), COMMENT));
        let began = Instant::now();
        for n in 1..=3 {
            assert_eq!(stream.next().await, Some(Ok(Bytes::from_static(COMMENT))));
            assert_eq!(began.elapsed(), silence * n);
        }
        events.send(event("data: 1\n\n")).expect("the stream is there");
        assert_eq!((stream.next().await, began.elapsed()), (Some(event("data: 1\n\n")), silence * 3));
        drop(events);
        assert_eq!(stream.next().await, None);
    }

    #[test]
    fn every_stream_has_the_header_against_buffering() {
        let response = response(futures::stream::empty());
        let header = |name: &str| response.headers()[name].to_str().expect("a text");
        assert_eq!(["content-type", "x-accel-buffering"].map(header), ["text/event-stream", "no"]);
        assert_eq!(header("cache-control"), "no-cache, no-transform");
    }

    #[tokio::test(start_paused = true)]
    async fn without_a_limit_a_stream_may_be_silent_forever() {
        let (_events, received) = mpsc::unbounded_channel();
        let mut stream = Box::pin(kept_alive(UnboundedReceiverStream::new(received), None, COMMENT));
        assert!(tokio::time::timeout(Duration::from_secs(1_000_000), stream.next()).await.is_err());
    }
}
