//! The beginning of a stream: what is held back from the client, and keep-alive comments meanwhile.
//!
//! A comment before the first event is not part of the response. A client that waits for a stream gets its head and a
//! comment after some seconds, and comments while the attempts continue; then the events of the worker that responded,
//! or an event with the error. The first events of a stream that no other worker could continue wait for the first part
//! of the response: until then another server can give all of it.
//!
//! Not here: the attempts (`lifecycle`), the rest of a response (`relay`).

use std::future::Future;
use std::pin::{Pin, pin};
use std::sync::{Arc, OnceLock};

use axum::body::{Body, BodyDataStream, to_bytes};
use axum::http::header;
use axum::response::Response;
use bytes::{Bytes, BytesMut};
use futures::{Stream, StreamExt};
use tokio::sync::mpsc;
use tokio::time::{Instant, interval_at};
use tokio_util::sync::CancellationToken;
use warmpath_router_core::event_stream::StreamProgress;
use warmpath_router_core::overload::retry::WorkerFailure;
use warmpath_shell::event_stream;

use super::events::{Events, Passed};
use super::headers;
use crate::config::{COMMENT_INTERVAL, EVENT_HELD_BYTES_MAX};
use crate::endpoint::EndpointKind;
use crate::error::RequestError;
use crate::error::response::{error_event, refused_stream_event};
use crate::prompt::body::Delivery;

/// Longest error of a worker that becomes an event. Units: bytes.
///
/// Source: own choice: an error is some hundred bytes; one that repeats a schema has kilobytes.
const ERROR_BYTES_MAX: usize = 256 << 10;

/// A comment, which clients ignore; it keeps the connection alive.
pub(super) const COMMENT: &[u8] = b": the answer goes on\n\n";

/// Sender of keep-alive signals. A signal is dropped if the last one has not been read.
#[derive(Debug, Clone)]
pub(super) struct Keepalive {
    signals: mpsc::Sender<()>,
    /// Header of a response that begins with comments, once it is known.
    header: Arc<OnceLock<(&'static str, String)>>,
}

impl Keepalive {
    /// Returns the sender of a channel.
    pub(super) fn new(signals: mpsc::Sender<()>) -> Self {
        Self { signals, header: Arc::default() }
    }

    /// Adds a header to the response if it begins with comments from now on.
    pub(super) fn set_header(&self, name: &'static str, value: String) {
        // A second one is not expected, and would come too late.
        let _ = self.header.set((name, value));
    }

    /// Returns the result of `work`; a client that waits for a stream meanwhile gets a comment after every
    /// [`COMMENT_INTERVAL`].
    pub(super) async fn during<T>(&self, delivery: Delivery, work: impl Future<Output = T>) -> T {
        let mut work = pin!(work);
        let mut silence = interval_at(Instant::now() + COMMENT_INTERVAL, COMMENT_INTERVAL);
        loop {
            tokio::select! {
                biased;
                result = &mut work => return result,
                _ = silence.tick(), if delivery == Delivery::Stream => self.signal(),
            }
        }
    }

    /// Returns the first events of a stream, up to one that shows at least this progress.
    ///
    /// Comments before them are dropped. At most [`EVENT_HELD_BYTES_MAX`] bytes are held back. Errors: `Broken` if the
    /// stream ends before, `Timeout` if no such event comes in time.
    pub(super) async fn beginning(
        &self,
        events: &mut Events,
        progress_min: StreamProgress,
    ) -> Result<Bytes, WorkerFailure> {
        let mut first_events = BytesMut::new();
        loop {
            let Passed { bytes, progress } = events.next().await.ok_or(WorkerFailure::Broken)??;
            if first_events.is_empty() && progress == StreamProgress::Nothing {
                self.signal();
                continue;
            }
            if first_events.is_empty() && progress >= progress_min {
                return Ok(bytes);
            }
            first_events.extend_from_slice(&bytes);
            if progress >= progress_min || first_events.len() > EVENT_HELD_BYTES_MAX {
                return Ok(first_events.freeze());
            }
        }
    }

    /// Has the client get a comment.
    pub(super) fn signal(&self) {
        let _ = self.signals.try_send(());
    }
}

/// Returns the result of `attempts`, or, if comments come first, a stream that begins with comments.
///
/// Errors: the error of the attempts, unless a comment came before it; `ShuttingDown` if `cut_off` comes first.
pub(super) async fn answer<F>(
    endpoint: EndpointKind,
    cut_off: CancellationToken,
    attempts: impl FnOnce(Keepalive) -> F,
) -> Result<Response, RequestError>
where
    F: Future<Output = Result<Response, RequestError>> + Send + 'static,
{
    let (sender, signals) = mpsc::channel(1);
    let comments = Keepalive::new(sender);
    let header = Arc::clone(&comments.header);
    let mut waiting = Waiting { attempts: Box::pin(attempts(comments)), signals, endpoint, cut_off };
    match waiting.next().await {
        Signal::Answer(answer) => answer,
        Signal::Comment => {
            let mut response = head(Body::from_stream(waiting.stream()));
            if let Some((name, value)) = header.get() {
                headers::set(response.headers_mut(), name, value);
            }
            Ok(response)
        }
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
        let later_parts = futures::stream::unfold(Stage::Waiting(self), |stage| async {
            match stage {
                Stage::Waiting(mut waiting) => match waiting.next().await {
                    Signal::Comment => Some((Ok(Bytes::from_static(COMMENT)), Stage::Waiting(waiting))),
                    Signal::Answer(answer) => follow(answer, waiting.endpoint).await,
                },
                Stage::Passing(mut body) => body.next().await.map(|piece| (piece, Stage::Passing(body))),
                Stage::Done => None,
            }
        });
        first.chain(later_parts.fuse())
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
            let status = other.status();
            let body = to_bytes(other.into_body(), ERROR_BYTES_MAX).await.unwrap_or_default();
            Some((Ok(refused_stream_event(status, &body, endpoint).into()), Stage::Done))
        }
        Err(error) => Some((Ok(error_event(&error, endpoint, 0).into()), Stage::Done)),
    }
}

/// Returns whether a response's body can follow comments.
fn can_follow(response: &Response) -> bool {
    event_stream::is_event_stream(response.headers()) && !event_stream::is_encoded(response.headers())
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use axum::http::StatusCode;
    use warmpath_router_core::event_stream::EndMark;

    use super::*;

    /// Returns the events of a connection that sends these pieces and ends.
    fn events(given: &[&'static str]) -> Events {
        let pieces: Vec<_> = given.iter().map(|piece| Ok(Bytes::from_static(piece.as_bytes()))).collect();
        of_pieces(futures::stream::iter(pieces))
    }

    fn of_pieces(pieces: impl Stream<Item = Result<Bytes, WorkerFailure>> + Send + 'static) -> Events {
        let deadline = Instant::now() + Duration::from_secs(600);
        Events::new(pieces.fuse().boxed(), EndMark::Done, deadline, Duration::from_secs(300))
    }

    async fn check(given: &[&'static str], progress_min: StreamProgress, expected: Result<&str, WorkerFailure>) {
        let (sender, _receiver) = mpsc::channel(1);
        let found = Keepalive::new(sender).beginning(&mut events(given), progress_min).await;
        assert_eq!(found, expected.map(|first| Bytes::from(first.to_owned())), "{given:?}");
    }

    const ROLE: &str = "data: {\"choices\": [{\"delta\": {\"role\": \"assistant\"}}]}\n\n";
    const PART: &str = "data: {\"choices\": [{\"delta\": {\"content\": \"a\"}}]}\n\n";

    #[tokio::test]
    async fn a_stream_that_can_be_continued_begins_with_its_first_event() {
        let check = async |given: &[&'static str], expected| check(given, StreamProgress::Opening, Ok(expected)).await;
        check(&["data: 1\n\n", "data: 2\n\n"], "data: 1\n\n").await;
        check(&[":\n\n", ": a\n\n", "data: 1\n\n", "data: 2\n\n"], "data: 1\n\n").await;
        check(&[": a", " b\n", "\n: c\r\n\r\n", "data", ":\n\ndata: 1\n\n"], "data: 1\n\n").await;
        check(&[": a\n\ndata: 1\n\n"], ": a\n\ndata: 1\n\n").await;
        check(&["retry: 1\n\n", "data: 1\r\r"], "data: 1\r\r").await;
        check(&[ROLE, PART], ROLE).await;
    }

    #[tokio::test]
    async fn any_other_stream_begins_with_its_first_part_and_what_came_before_it() {
        let begins = async |given: &[&'static str], expected: &[&str]| {
            check(given, StreamProgress::Content, Ok(&expected.concat())).await;
        };
        let (comment, done, error) = (": a\n\n", "data: [DONE]\n\n", "data: {\"error\": 1}\n\n");
        begins(&[": b\n\n", ROLE, comment, ROLE, PART, PART], &[ROLE, comment, ROLE, PART]).await;
        begins(&[PART, PART], &[PART]).await;
        begins(&[ROLE, done], &[ROLE, done]).await;
        begins(&[ROLE, error], &[ROLE, error]).await;
        for given in [&[ROLE][..], &[ROLE, comment]] {
            check(given, StreamProgress::Content, Err(WorkerFailure::Broken)).await;
        }
    }

    #[tokio::test]
    async fn a_bounded_number_of_events_is_held_back() {
        let (sender, _receiver) = mpsc::channel(1);
        let endless = futures::stream::repeat_with(|| Ok(Bytes::from_static(ROLE.as_bytes())));
        let first = Keepalive::new(sender).beginning(&mut of_pieces(endless), StreamProgress::Content).await;
        let n_bytes = first.expect("they pass in the end").len();
        assert!(n_bytes > EVENT_HELD_BYTES_MAX && n_bytes <= EVENT_HELD_BYTES_MAX + ROLE.len(), "{n_bytes}");
    }

    /// Returns the response of a server that takes this long to give it, and the time until the client had its head.
    async fn answer_after(
        (waits, delivery, endpoint): (Duration, Delivery, EndpointKind),
        given: Result<Response, RequestError>,
    ) -> (Result<Response, RequestError>, Duration) {
        let start = Instant::now();
        let attempts = |comments: Keepalive| async move {
            let server = async {
                tokio::time::sleep(waits).await;
                given
            };
            comments.during(delivery, server).await
        };
        let response = answer(endpoint, CancellationToken::new(), attempts).await;
        (response, start.elapsed())
    }

    async fn text_of(response: Response) -> String {
        let body = to_bytes(response.into_body(), 1 << 20).await.expect("a body");
        String::from_utf8(body.to_vec()).expect("a text")
    }

    fn comments(n: usize) -> String {
        String::from_utf8_lossy(COMMENT).repeat(n)
    }

    #[tokio::test(start_paused = true)]
    async fn a_client_that_waits_for_a_stream_gets_comments_from_the_first_seconds_on() {
        let minutes = COMMENT_INTERVAL * 36 + Duration::from_secs(1);
        let waiting = (minutes, Delivery::Stream, EndpointKind::Chat);
        let (response, waited) = answer_after(waiting, Ok(head(Body::from(PART)))).await;
        assert_eq!(waited, COMMENT_INTERVAL);
        assert_eq!(text_of(response.expect("a stream")).await, format!("{}{PART}", comments(36)));
    }

    #[tokio::test(start_paused = true)]
    async fn a_quick_stream_and_a_response_in_one_piece_get_no_comment() {
        for (waits, delivery) in [(COMMENT_INTERVAL / 2, Delivery::Stream), (COMMENT_INTERVAL * 30, Delivery::Whole)] {
            let (response, waited) =
                answer_after((waits, delivery, EndpointKind::Chat), Ok(Response::new(Body::from("{}")))).await;
            assert_eq!((waited, text_of(response.expect("a response")).await.as_str()), (waits, "{}"));
        }
    }

    #[tokio::test(start_paused = true)]
    async fn an_error_after_comments_is_the_error_event_of_the_dialect() {
        let late = COMMENT_INTERVAL * 2 - Duration::from_secs(1);
        let check = async |endpoint, given: Result<Response, RequestError>, expected: [&str; 3]| {
            let (response, _) = answer_after((late, Delivery::Stream, endpoint), given).await;
            let text = text_of(response.expect("a stream")).await;
            let event = text.strip_prefix(&comments(1)).expect("a comment comes first");
            let all_there = expected.iter().all(|part| event.contains(part));
            assert!(all_there && event.matches("\n\n").count() == 1, "{endpoint:?}: {event} lacks one of {expected:?}");
        };
        let refused = || {
            let error = r#"{"error": {"message": "too long", "type": "bad", "code": "c"}}"#;
            let mut response = Response::new(Body::from(error));
            *response.status_mut() = StatusCode::BAD_REQUEST;
            Ok(response)
        };
        let said = r#""message":"too long""#;
        check(EndpointKind::Chat, refused(), ["data: {\"error\":{", said, r#""type":"bad""#]).await;
        let kind = r#""type":"invalid_request_error""#;
        check(EndpointKind::Messages, refused(), ["event: error\ndata: {", said, kind]).await;
        check(EndpointKind::Responses, refused(), ["event: error\ndata: {", said, r#""code":"c""#]).await;
        let full = || Err(RequestError::QueueLate { seconds: 60.0, retry_after: Duration::from_secs(7) });
        let said = "within 60 s; try again in 7 s";
        check(EndpointKind::Chat, full(), [said, "rate_limit_error", "queue_timeout"]).await;
        check(EndpointKind::Messages, full(), [said, "event: error", "rate_limit_error"]).await;
        check(EndpointKind::Responses, full(), [said, "event: error", "queue_timeout"]).await;
    }

    #[tokio::test]
    async fn a_stream_without_an_event_is_broken() {
        for given in [&[][..], &[": only\n\n"], &[": a\n", "\n", ":"], &["id: 1\n\n"], &["data: 1"], &["data: 1\n"]] {
            check(given, StreamProgress::Opening, Err(WorkerFailure::Broken)).await;
        }
    }
}
