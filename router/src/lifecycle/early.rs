//! Answers that begin with silence: what a client gets while its worker only says that it lives.
//!
//! Not here: the attempts (`lifecycle`), the rest of an answer (`relay`). The idea: a comment in front of the first event is no
//! part of the answer. The client gets the head of a stream and comments, the attempts go on behind them, and whatever comes
//! of these follows: the events of the worker that answered, or an event that says why none did.

use std::future::Future;
use std::pin::Pin;

use axum::body::{Body, BodyDataStream};
use axum::http::{HeaderName, header};
use axum::response::{IntoResponse, Response};
use bytes::{Bytes, BytesMut};
use futures::{Stream, StreamExt};
use tokio::sync::mpsc;
use warmpath_router_core::retry::Failure;

use super::upstream::Pieces;
use crate::error::RequestError;
use crate::http::error::failed_stream_event;
use crate::prompt::Shape;

/// Is an event that no client sees: it says that the connection lives.
const COMMENT: &[u8] = b": the answer goes on\n\n";

/// Is the longest beginning of a stream that is held back as a comment. Units: bytes.
///
/// Source: own choice: a comment is a line; what is longer is passed on as it is.
const COMMENT_BYTES_MAX: usize = 4 << 10;

/// Tells the client that a worker lives; nothing is lost where it is told already.
#[derive(Debug, Clone)]
pub(super) struct Comments(mpsc::Sender<()>);

impl Comments {
    /// Returns the first piece of a stream that is more than comments, or nothing where there is none.
    ///
    /// Errors: that of the piece that failed.
    pub(super) async fn skip(&self, pieces: &mut Pieces) -> Result<Bytes, Failure> {
        let mut held = BytesMut::new();
        while let Some(piece) = pieces.next().await {
            held.extend_from_slice(&piece?);
            if !is_comment(&held) || held.len() > COMMENT_BYTES_MAX {
                return Ok(held.freeze());
            }
            if held.ends_with(b"\n") {
                held.clear();
                let _ = self.0.try_send(());
            }
        }
        Ok(held.freeze())
    }
}

/// Returns whether every line, whole or begun, is empty or a comment.
fn is_comment(bytes: &[u8]) -> bool {
    bytes.split(|&byte| byte == b'\n').all(|line| matches!(line, [] | [b'\r'] | [b':', ..]))
}

/// Returns what `attempts` come to, or a stream that begins with comments where its worker lets the client wait for so long.
///
/// Errors: that of the attempts, unless a comment came before.
pub(super) async fn answer<F>(shape: Shape, attempts: impl FnOnce(Comments) -> F) -> Result<Response, RequestError>
where
    F: Future<Output = Result<Response, RequestError>> + Send + 'static,
{
    let (comments, heard) = mpsc::channel(1);
    let mut waiting = Waiting { attempts: Box::pin(attempts(Comments(comments))), heard, shape };
    match waiting.next().await {
        Heard::Answer(answer) => answer,
        Heard::Comment => Ok(head(Body::from_stream(waiting.stream()))),
    }
}

fn head(body: Body) -> Response {
    let described = [
        (header::CONTENT_TYPE, "text/event-stream"),
        (header::CACHE_CONTROL, "no-cache"),
        // Tells nginx not to gather the stream.
        (HeaderName::from_static("x-accel-buffering"), "no"),
    ];
    (described, body).into_response()
}

/// Is a request whose client has an answer's head at most.
struct Waiting {
    attempts: Pin<Box<dyn Future<Output = Result<Response, RequestError>> + Send>>,
    heard: mpsc::Receiver<()>,
    shape: Shape,
}

/// Is what is heard next of the attempts.
enum Heard {
    Answer(Result<Response, RequestError>),
    Comment,
}

/// Says what the client gets next.
enum Stage {
    Waiting(Waiting),
    Passing(BodyDataStream),
    Done,
}

impl Waiting {
    async fn next(&mut self) -> Heard {
        tokio::select! {
            biased;
            answer = &mut self.attempts => Heard::Answer(answer),
            Some(()) = self.heard.recv() => Heard::Comment,
        }
    }

    fn stream(self) -> impl Stream<Item = Result<Bytes, axum::Error>> + Send + 'static {
        let first = futures::stream::once(std::future::ready(Ok(Bytes::from_static(COMMENT))));
        let rest = futures::stream::unfold(Stage::Waiting(self), |stage| async {
            match stage {
                Stage::Waiting(mut waiting) => match waiting.next().await {
                    Heard::Comment => Some((Ok(Bytes::from_static(COMMENT)), Stage::Waiting(waiting))),
                    Heard::Answer(answer) => follow(answer, waiting.shape).await,
                },
                Stage::Passing(mut body) => body.next().await.map(|piece| (piece, Stage::Passing(body))),
                Stage::Done => None,
            }
        });
        first.chain(rest)
    }
}

/// Returns what stands behind the comments: the answer's events, or one that says why there are none.
async fn follow(answer: Result<Response, RequestError>, shape: Shape) -> Option<(Result<Bytes, axum::Error>, Stage)> {
    match answer {
        Ok(response) if response.status().is_success() => {
            let mut body = response.into_body().into_data_stream();
            body.next().await.map(|piece| (piece, Stage::Passing(body)))
        }
        Ok(refusal) => {
            let message = format!("a worker refused with status {}", refusal.status().as_u16());
            Some((Ok(failed_stream_event(&message, shape, 0).into()), Stage::Done))
        }
        Err(error) => Some((Ok(failed_stream_event(&error.to_string(), shape, 0).into()), Stage::Done)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pieces(pieces: &[&'static str]) -> Pieces {
        let pieces: Vec<_> = pieces.iter().map(|piece| Ok(Bytes::from_static(piece.as_bytes()))).collect();
        futures::stream::iter(pieces).boxed()
    }

    async fn check(given: &[&'static str], (first, n_left): (&str, usize)) {
        let (sender, _heard) = mpsc::channel(1);
        let mut pieces = pieces(given);
        let found = Comments(sender).skip(&mut pieces).await.expect("no piece fails");
        assert_eq!((found, pieces.count().await), (Bytes::from(first.to_owned()), n_left), "{given:?}");
    }

    #[tokio::test]
    async fn a_stream_begins_with_its_first_event() {
        check(&["data: 1\n\n", "data: 2\n\n"], ("data: 1\n\n", 1)).await;
        check(&[":\n\n", ": a\n\n", "data: 1\n\n", "data: 2\n\n"], ("data: 1\n\n", 1)).await;
        check(&[": a", " b\n", "\n: c\r\n\r\n", "data"], ("data", 0)).await;
        check(&[": a\n\ndata: 1\n\n"], (": a\n\ndata: 1\n\n", 0)).await;
        check(&[": a", "\ndata: 1"], (": a\ndata: 1", 0)).await;
        check(&[": only\n\n"], ("", 0)).await;
        check(&[], ("", 0)).await;
        let long: &'static str = Box::leak(format!(":{}", "x".repeat(COMMENT_BYTES_MAX)).into_boxed_str());
        check(&[long, "data"], (long, 1)).await;
    }
}
