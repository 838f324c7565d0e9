//! Keep-alive comments to a client whose worker has only sent comments so far.
//!
//! A comment before the first event is not part of the response. The client gets the head of a stream, and comments
//! while the attempts continue; then the events of the worker that responded, or an event with the error.
//!
//! Not here: the attempts (`lifecycle`), the rest of a response (`relay`).

use std::future::Future;
use std::pin::Pin;

use axum::body::{Body, BodyDataStream};
use axum::http::header;
use axum::response::Response;
use bytes::Bytes;
use futures::{Stream, StreamExt};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;
use warmpath_router_core::event_stream::StreamProgress;
use warmpath_router_core::overload::retry::WorkerFailure;
use warmpath_shell::event_stream;

use super::events::{Events, Passed};
use crate::error::RequestError;
use crate::http::error::failed_stream_event;
use crate::prompt::EndpointKind;

/// A comment, which clients ignore; it keeps the connection alive.
pub(super) const COMMENT: &[u8] = b": the answer goes on\n\n";

/// Sender of keep-alive signals. A signal is dropped if the last one has not been read.
#[derive(Debug, Clone)]
pub(super) struct Keepalive(mpsc::Sender<()>);

impl Keepalive {
    /// Returns the sender of a channel.
    pub(super) fn new(signals: mpsc::Sender<()>) -> Self {
        Self(signals)
    }

    /// Returns the first events of a stream that are not keep-alive comments.
    ///
    /// Errors: `Broken` if the stream ends before, `Timeout` if none comes in time.
    pub(super) async fn skip(&self, events: &mut Events) -> Result<Bytes, WorkerFailure> {
        while let Some(passed) = events.next().await {
            let Passed { bytes, progress } = passed?;
            if progress > StreamProgress::Nothing {
                return Ok(bytes);
            }
            let _ = self.0.try_send(());
        }
        Err(WorkerFailure::Broken)
    }
}

/// Returns the result of `attempts`, or, if the worker sends comments first, a stream that begins with comments.
///
/// Errors: the error of the attempts, unless a comment came before it; `ShuttingDown` if `cut_off` comes first.
pub(super) async fn answer<F>(
    (endpoint, cut_off): (EndpointKind, CancellationToken),
    attempts: impl FnOnce(Keepalive) -> F,
) -> Result<Response, RequestError>
where
    F: Future<Output = Result<Response, RequestError>> + Send + 'static,
{
    let (comments, signals) = mpsc::channel(1);
    let mut waiting = Waiting { attempts: Box::pin(attempts(Keepalive(comments))), signals, endpoint, cut_off };
    match waiting.next().await {
        Signal::Answer(answer) => answer,
        Signal::Comment => Ok(head(Body::from_stream(waiting.stream()))),
    }
}

fn head(body: Body) -> Response {
    let mut response = Response::new(body);
    response.headers_mut().insert(header::CONTENT_TYPE, event_stream::CONTENT_TYPE);
    event_stream::keep_flowing(response.headers_mut());
    response
}

/// A request whose client has at most the head of a response.
struct Waiting {
    attempts: Pin<Box<dyn Future<Output = Result<Response, RequestError>> + Send>>,
    signals: mpsc::Receiver<()>,
    endpoint: EndpointKind,
    /// End of the time in which running responses may finish.
    cut_off: CancellationToken,
}

/// Next event of the attempts.
enum Signal {
    Answer(Result<Response, RequestError>),
    Comment,
}

/// Next part of the stream for the client.
enum Stage {
    Waiting(Waiting),
    Passing(BodyDataStream),
    Done,
}

impl Waiting {
    async fn next(&mut self) -> Signal {
        tokio::select! {
            biased;
            answer = &mut self.attempts => Signal::Answer(answer),
            () = self.cut_off.cancelled() => Signal::Answer(Err(RequestError::ShuttingDown)),
            Some(()) = self.signals.recv() => Signal::Comment,
        }
    }

    fn stream(self) -> impl Stream<Item = Result<Bytes, axum::Error>> + Send + 'static {
        let first = futures::stream::once(std::future::ready(Ok(Bytes::from_static(COMMENT))));
        let rest = futures::stream::unfold(Stage::Waiting(self), |stage| async {
            match stage {
                Stage::Waiting(mut waiting) => match waiting.next().await {
                    Signal::Comment => Some((Ok(Bytes::from_static(COMMENT)), Stage::Waiting(waiting))),
                    Signal::Answer(answer) => follow(answer, waiting.endpoint).await,
                },
                Stage::Passing(mut body) => body.next().await.map(|piece| (piece, Stage::Passing(body))),
                Stage::Done => None,
            }
        });
        first.chain(rest.fuse())
    }
}

/// Returns the part after the comments: the response's events, or an event with the error.
async fn follow(
    answer: Result<Response, RequestError>,
    endpoint: EndpointKind,
) -> Option<(Result<Bytes, axum::Error>, Stage)> {
    match answer {
        Ok(response) if response.status().is_success() && can_follow(&response) => {
            let mut body = response.into_body().into_data_stream();
            body.next().await.map(|piece| (piece, Stage::Passing(body)))
        }
        Ok(other) => {
            let message = format!("a worker answered with status {} and no events", other.status().as_u16());
            Some((Ok(failed_stream_event((&message, "worker_failed"), endpoint, 0).into()), Stage::Done))
        }
        Err(error) => {
            let code = error.code().unwrap_or("worker_failed");
            Some((Ok(failed_stream_event((&error.to_string(), code), endpoint, 0).into()), Stage::Done))
        }
    }
}

/// Returns whether a response's body can follow comments.
fn can_follow(response: &Response) -> bool {
    event_stream::is_event_stream(response.headers()) && !event_stream::is_encoded(response.headers())
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::time::Instant;
    use warmpath_router_core::event_stream::EndMark;

    use super::*;

    async fn check(given: &[&'static str], expected: Result<&str, WorkerFailure>) {
        let (sender, _receiver) = mpsc::channel(1);
        let pieces: Vec<_> = given.iter().map(|piece| Ok(Bytes::from_static(piece.as_bytes()))).collect();
        let pieces = futures::stream::iter(pieces).fuse().boxed();
        let patience = (Instant::now() + Duration::from_secs(600), Duration::from_secs(300));
        let mut events = Events::new(pieces, EndMark::Done, patience);
        let found = Keepalive(sender).skip(&mut events).await;
        assert_eq!(found, expected.map(|first| Bytes::from(first.to_owned())), "{given:?}");
    }

    #[tokio::test]
    async fn a_stream_begins_with_its_first_event() {
        check(&["data: 1\n\n", "data: 2\n\n"], Ok("data: 1\n\n")).await;
        check(&[":\n\n", ": a\n\n", "data: 1\n\n", "data: 2\n\n"], Ok("data: 1\n\n")).await;
        check(&[": a", " b\n", "\n: c\r\n\r\n", "data", ":\n\ndata: 1\n\n"], Ok("data: 1\n\n")).await;
        check(&[": a\n\ndata: 1\n\n"], Ok(": a\n\ndata: 1\n\n")).await;
        check(&["retry: 1\n\n", "data: 1\r\r"], Ok("data: 1\r\r")).await;
    }

    #[tokio::test]
    async fn a_stream_without_an_event_is_broken() {
        for given in [&[][..], &[": only\n\n"], &[": a\n", "\n", ":"], &["id: 1\n\n"], &["data: 1"], &["data: 1\n"]] {
            check(given, Err(WorkerFailure::Broken)).await;
        }
    }
}
