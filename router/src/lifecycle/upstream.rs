//! One attempt at one worker: sends the request and waits for the first byte of the response.
//!
//! A response in one piece is read completely before any of it is sent to the client, so that another worker can still
//! answer if it breaks off. Of a stream only its beginning is awaited. Not here: the next attempt (`lifecycle`), the
//! rest of the response (`relay`).

use std::time::{Duration, SystemTime};

use axum::body::{Body, BodyDataStream};
use axum::http::{Method, StatusCode};
use bytes::{Bytes, BytesMut};
use futures::StreamExt;
use tokio::time::{Instant, timeout_at};
use warmpath_common::dialects::anthropic;
use warmpath_router_core::event_stream::{EndMark, StreamProgress};
use warmpath_router_core::overload::retry::WorkerFailure;
use warmpath_router_core::stock::reported_error::{self, ReportedError};
use warmpath_shell::event_stream;

use super::attempt_target::AttemptTarget;
use super::events::{BodyPieces, Events, end_mark};
use super::headers;
use super::keepalive::Keepalive;
use super::partial_response::PartialResponse;
use super::request::IncomingRequest;
use super::upstream_response::{ResponseHead, RestOfBody, UpstreamResponse, WorkerRefusal};
use super::whole::WholeReader;
use crate::config::{LOST_SILENCE, REFUSAL_TIMEOUT, RequestConfig, WHOLE_ANSWER_BYTES_MAX};
use crate::endpoint::EndpointKind;
use crate::fleet::client::CallError;
use crate::fleet::members::{Loss, Member};

/// Client of one worker, and the limits of the request.
pub(super) struct Upstream<'a> {
    pub(super) member: &'a Member,
    pub(super) limits: &'a RequestConfig,
    pub(super) comments: &'a Keepalive,
    /// Response so far, if this attempt continues one.
    pub(super) partial_response: Option<&'a PartialResponse>,
    /// Number of requested choices, of all prompts together.
    pub(super) n_choices: u32,
}

/// Failure of an attempt before the client saw anything.
pub(super) struct AttemptError {
    pub(super) failure: WorkerFailure,
    pub(super) refusal: Option<WorkerRefusal>,
    /// Time for which the worker wants no further request; `None` if it gives none.
    pub(super) retry_after: Option<Duration>,
    /// Response so far, from which another worker can continue; `None` if this attempt added nothing.
    pub(super) partial_response: Option<PartialResponse>,
}

impl From<WorkerFailure> for AttemptError {
    fn from(failure: WorkerFailure) -> Self {
        Self { failure, refusal: None, retry_after: None, partial_response: None }
    }
}

impl AttemptError {
    /// Returns the failure of an attempt whose response has a status of success and reports an error in this body.
    fn reported(failure: WorkerFailure, head: ResponseHead, body: Bytes) -> Self {
        // An empty body says nothing to a client, and a key that the server rejects is the router's own.
        let is_for_client = !body.trim_ascii().is_empty() && failure != WorkerFailure::Refused;
        Self { refusal: is_for_client.then_some(WorkerRefusal { head, body }), ..failure.into() }
    }
}

impl Upstream<'_> {
    /// Sends the request and waits until there is something for the client.
    pub(super) async fn attempt(
        &self,
        request: &IncomingRequest,
        attempt_target: &AttemptTarget,
    ) -> Result<UpstreamResponse, AttemptError> {
        let client = &self.member.client;
        let mut url = client.url(&request.path);
        url.set_query(request.query.as_deref());
        let headers = headers::to_worker(request, attempt_target, self.partial_response);
        let call = client.call(request.method.clone(), &url, headers, self.body(request));
        let deadline = Instant::now() + self.limits.response_timeout;
        let mut loss = self.member.loss();
        let response = tokio::select! {
            response = timeout_at(deadline, call) => response,
            () = loss.wait() => return Err(WorkerFailure::Lost.into()),
        };
        let response = response.map_err(|_| WorkerFailure::Timeout)?.map_err(|error| failure(&error))?;
        let (parts, body) = response.into_parts();
        let head = ResponseHead { status: parts.status, headers: parts.headers };
        if !may_pass(head.status) {
            return Err(WorkerFailure::Broken.into());
        }
        let pieces = pieces(body, loss);
        if head.status.is_success() && event_stream::is_event_stream(&head.headers) {
            let mark = end_mark(request.endpoint, &request.path, self.n_choices);
            let mark = mark.map(|mark| self.mark_of_server(mark, attempt_target));
            return self.begin_stream(head, pieces, mark, deadline).await;
        }
        if self.has_journal(&head) {
            return self.read_after_journal(head, pieces, deadline).await;
        }
        let mut pieces = patient(pieces, self.limits.idle_timeout);
        // Another worker has accepted the body, so this one refuses the journal.
        let is_misread = self.partial_response.is_some() && head.status.is_client_error();
        let worker_failure = self.refused(head.status).or(is_misread.then_some(WorkerFailure::Error));
        if worker_failure == Some(WorkerFailure::Refused) {
            return Err(WorkerFailure::Refused.into());
        }
        if let Some(failure) = worker_failure {
            let retry_after = headers::retry_after(&head.headers, SystemTime::now());
            let refusal = match tokio::time::timeout(REFUSAL_TIMEOUT, read_body(&mut pieces)).await {
                Ok(Ok(ReadBody::Whole(body))) => Some(WorkerRefusal { head, body }),
                Ok(Ok(ReadBody::Part(_)) | Err(_)) | Err(_) => None,
            };
            return Err(AttemptError { failure, refusal, retry_after, partial_response: None });
        }
        let read_part = timeout_at(deadline, read_body(&mut pieces)).await.map_err(|_| WorkerFailure::Timeout)??;
        let may_be_error = head.status.is_success() && !matches!(request.endpoint, EndpointKind::Passthrough(_));
        let failure = match &read_part {
            ReadBody::Whole(body) if may_be_error => self.failure_in(body),
            ReadBody::Whole(_) | ReadBody::Part(_) => None,
        };
        match (failure, read_part) {
            (Some(failure), ReadBody::Whole(body)) => Err(AttemptError::reported(failure, head, body)),
            (_, read_part) => Ok(read_part.response(head, pieces)),
        }
    }

    /// Returns whether the response has a journal; only Warmpath workers keep one.
    fn has_journal(&self, head: &ResponseHead) -> bool {
        self.member.stock.is_none() && head.headers.contains_key(warmpath_common::headers::JOURNAL)
    }

    /// Returns the failure that a status stands for; `None` if the response is for the client.
    fn refused(&self, status: StatusCode) -> Option<WorkerFailure> {
        match status {
            // A stock server checks the client's own key, so the client gets its 401, unless the router sent a key of
            // its own. A Warmpath worker never checks a client's key.
            StatusCode::UNAUTHORIZED if self.member.stock.is_none() || self.member.client.has_own_key() => {
                Some(WorkerFailure::Refused)
            }
            StatusCode::TOO_MANY_REQUESTS => Some(WorkerFailure::Full),
            StatusCode::SERVICE_UNAVAILABLE => Some(WorkerFailure::Unready),
            status if status.as_u16() == anthropic::OVERLOADED => Some(WorkerFailure::Unready),
            // A task that the server does not support is not a failure of the server.
            StatusCode::NOT_IMPLEMENTED => None,
            status if status.is_server_error() => Some(WorkerFailure::Error),
            _ => None,
        }
    }

    /// Returns the failure that a stock server reports in a whole response with a status of success.
    fn failure_in(&self, body: &Bytes) -> Option<WorkerFailure> {
        self.member.stock.as_ref()?;
        self.reported(reported_error::in_body(body)?)
    }

    /// Returns the failure that an error in a successful response stands for: that of the status that it names, or of
    /// 500. `None` if the error is for the client.
    fn reported(&self, error: ReportedError) -> Option<WorkerFailure> {
        let status = error.status.and_then(|status| StatusCode::from_u16(status).ok());
        match status.filter(|status| status.is_client_error() || status.is_server_error()) {
            Some(status) => self.refused(status),
            None => Some(WorkerFailure::Error),
        }
    }

    /// Reads a response in one piece, which follows the lines of its journal.
    async fn read_after_journal(
        &self,
        head: ResponseHead,
        mut pieces: BodyPieces,
        deadline: Instant,
    ) -> Result<UpstreamResponse, AttemptError> {
        let mut reader = WholeReader::new(
            self.partial_response.map(|partial_response| partial_response.lines.clone()).unwrap_or_default(),
        );
        let read = self.read_journaled(&mut reader, &mut pieces, deadline).await;
        let known_before = self.partial_response.and_then(|partial_response| partial_response.cached_tokens);
        let cached_tokens = known_before.or(headers::number(&head.headers, warmpath_common::headers::CACHED_TOKENS));
        let partial_response =
            reader.into_lines().map(|lines| PartialResponse { lines, cached_tokens, ..PartialResponse::default() });
        let (status, read_part) = match read {
            Ok(read) => read,
            Err(failure) => return Err(AttemptError { partial_response, ..failure.into() }),
        };
        let head = ResponseHead { status, ..head };
        if let Some(failure) = self.refused(status) {
            let (ReadBody::Whole(body) | ReadBody::Part(body)) = read_part;
            return Err(AttemptError {
                refusal: Some(WorkerRefusal { head, body }),
                partial_response,
                ..failure.into()
            });
        }
        Ok(read_part.response(head, patient(pieces, self.limits.idle_timeout)))
    }

    /// Reads such a response until it ends or exceeds the buffer; returns its status and the read part of its body.
    async fn read_journaled(
        &self,
        reader: &mut WholeReader,
        pieces: &mut BodyPieces,
        deadline: Instant,
    ) -> Result<(StatusCode, ReadBody), WorkerFailure> {
        let read_part: fn(Bytes) -> ReadBody = loop {
            if reader.body_bytes() > WHOLE_ANSWER_BYTES_MAX {
                break ReadBody::Part;
            }
            let idle_deadline = reader.has_begun().then(|| Instant::now() + self.limits.idle_timeout);
            let until = idle_deadline.map_or(deadline, |idle| idle.min(deadline));
            match timeout_at(until, pieces.next()).await.map_err(|_| WorkerFailure::Timeout)? {
                Some(piece) => reader.push(&piece?)?,
                None => break ReadBody::Whole,
            }
        };
        let (status, body) = reader.take().ok_or(WorkerFailure::Broken)?;
        Ok((status, read_part(body)))
    }

    /// Returns the request's body, followed by the journal if a response is continued; a look has none.
    fn body(&self, request: &IncomingRequest) -> Bytes {
        if request.method != Method::POST {
            return Bytes::new();
        }
        match self.partial_response {
            None => request.body.clone(),
            Some(partial_response) => [&request.body[..], &partial_response.lines].concat().into(),
        }
    }

    /// Returns the mark that completes a stream of this server. A stock server may omit a chat's last event; if there
    /// is only one choice, its `finish_reason` shows whether the response is complete.
    fn mark_of_server(&self, mark: EndMark, attempt_target: &AttemptTarget) -> EndMark {
        let may_lack_it = self.member.stock.is_some() && attempt_target.has_one_prompt;
        if mark == EndMark::Done && may_lack_it { EndMark::DoneOrFinished } else { mark }
    }

    /// Waits until a stream has begun; a stream without an event is no response.
    ///
    /// A stream with a journal begins with its first event, as another worker could continue it. No other server
    /// continues a stock server's stream, which begins with the first part of the response.
    async fn begin_stream(
        &self,
        head: ResponseHead,
        pieces: BodyPieces,
        mark: Option<EndMark>,
        deadline: Instant,
    ) -> Result<UpstreamResponse, AttemptError> {
        let Some(mark) = mark.filter(|_| !event_stream::is_encoded(&head.headers)) else {
            // Events of such a stream cannot be read, and nothing can be added after them.
            let mut pieces = patient(pieces, self.limits.idle_timeout);
            let first = timeout_at(deadline, pieces.next()).await.map_err(|_| WorkerFailure::Timeout)?;
            let first = first.unwrap_or(Err(WorkerFailure::Broken))?;
            return Ok(UpstreamResponse::Stream { head, first, rest: RestOfBody::Other(pieces) });
        };
        let mut events = Events::new(pieces, mark, deadline, self.limits.idle_timeout);
        if self.has_journal(&head) {
            let (lines, n_ended_choices) = self
                .partial_response
                .map(|partial_response| (partial_response.lines.clone(), partial_response.n_ended_choices))
                .unwrap_or_default();
            events = events.with_journal(lines, n_ended_choices);
        }
        let is_stock = self.member.stock.is_some();
        let progress_min = if is_stock { StreamProgress::Content } else { StreamProgress::Opening };
        let first = self.comments.beginning(&mut events, progress_min).await?;
        let state = events.state();
        // The server has generated nothing, so another one may answer.
        let is_error = is_stock && state.has_failed && !state.has_begun;
        if let Some(failure) = self.reported(ReportedError { status: state.error_status }).filter(|_| is_error) {
            return Err(AttemptError::reported(failure, head, with_rest(first, events).await));
        }
        Ok(UpstreamResponse::Stream { head, first, rest: RestOfBody::Events(Box::new(events)) })
    }
}

/// Returns the first events of a stream, followed by the other events that arrive before it ends or takes too long.
async fn with_rest(first: Bytes, mut events: Events) -> Bytes {
    let mut body = BytesMut::from(&first[..]);
    let rest = async {
        while let Some(Ok(passed)) = events.next().await
            && body.len() <= WHOLE_ANSWER_BYTES_MAX
        {
            body.extend_from_slice(&passed.bytes);
        }
    };
    // What has arrived by then is enough.
    let _ = tokio::time::timeout(REFUSAL_TIMEOUT, rest).await;
    body.freeze()
}

/// Returns whether a worker's response with this status may reach a client: it is final, whole, and about the request
/// itself.
///
/// Source: RFC 9110, sections 15.2 (interim), 15.3.7 (a range nobody requested), 15.4 (redirection), 15.5.8 and 15.5.22
/// (between a client and its proxy), RFC 6585, section 6 (a network's own login); above 599 no status is defined.
fn may_pass(status: StatusCode) -> bool {
    matches!(status.as_u16(), 200..=299 | 400..=599) && !matches!(status.as_u16(), 206 | 407 | 426 | 511)
}

fn failure(error: &CallError) -> WorkerFailure {
    if error.is_shortage() {
        WorkerFailure::Shortage
    } else if error.is_connect() {
        WorkerFailure::Connect
    } else {
        WorkerFailure::Broken
    }
}

fn pieces(body: Body, loss: Loss) -> BodyPieces {
    let source = Source { body: body.into_data_stream(), loss };
    let next = |mut source: Source| async { source.next().await.map(|piece| (piece, source)) };
    futures::stream::unfold(source, next).fuse().boxed()
}

/// Source of a body's pieces, and the loss that ends them.
struct Source {
    body: BodyDataStream,
    loss: Loss,
}

impl Source {
    async fn next(&mut self) -> Option<Result<Bytes, WorkerFailure>> {
        let start = Instant::now();
        loop {
            tokio::select! {
                biased;
                piece = self.body.next() => return piece.map(|piece| piece.map_err(|_| WorkerFailure::Broken)),
                () = self.loss.wait() => {
                    if start.elapsed() >= LOST_SILENCE {
                        return Some(Err(WorkerFailure::Lost));
                    }
                }
            }
        }
    }
}

/// Returns these pieces; each must arrive within the timeout.
fn patient(pieces: BodyPieces, idle_timeout: Duration) -> BodyPieces {
    let patient = futures::stream::unfold(pieces, move |mut pieces| async move {
        let next = tokio::time::timeout(idle_timeout, pieces.next()).await;
        let piece = next.unwrap_or(Some(Err(WorkerFailure::Timeout)))?;
        Some((piece, pieces))
    });
    patient.fuse().boxed()
}

/// A body as far as it was read.
enum ReadBody {
    Whole(Bytes),
    /// The buffer is full, and there is more.
    Part(Bytes),
}

impl ReadBody {
    /// Returns the response that begins with this part; `pieces` is the rest of its body.
    fn response(self, head: ResponseHead, pieces: BodyPieces) -> UpstreamResponse {
        match self {
            Self::Whole(body) => UpstreamResponse::Whole { head, body },
            Self::Part(first) => UpstreamResponse::Stream { head, first, rest: RestOfBody::Other(pieces) },
        }
    }
}

async fn read_body(pieces: &mut BodyPieces) -> Result<ReadBody, WorkerFailure> {
    let mut body = BytesMut::new();
    while let Some(piece) = pieces.next().await {
        body.extend_from_slice(&piece?);
        if body.len() > WHOLE_ANSWER_BYTES_MAX {
            return Ok(ReadBody::Part(body.freeze()));
        }
    }
    Ok(ReadBody::Whole(body.freeze()))
}
