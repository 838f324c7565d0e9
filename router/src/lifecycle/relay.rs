//! The rest of a response: passes the worker's bytes on unchanged, and tells the client if they break off.
//!
//! The relay owns everything that the request holds, such as its place and its record as in flight. Whether the worker
//! or the client ends the response, dropping the relay frees all of it. Only a failover needs the request's body. So
//! the body is dropped where new bodies need its memory, and the response cannot be continued then. Not here: the first
//! byte (`upstream`), whole events (`events`).

use std::pin::Pin;
use std::sync::Arc;
use std::time::Instant;

use axum::http::HeaderMap;
use bytes::Bytes;
use futures::future::BoxFuture;
use futures::{Stream, StreamExt};
use prometheus::Histogram;
use tokio_util::sync::WaitForCancellationFutureOwned;

use super::attempt_target::AttemptTarget;
use super::failover::{ContinuedStream, Failover};
use super::keepalive::COMMENT;
use super::request::IncomingRequest;
use super::upstream_response::RestOfBody;
use crate::app::App;
use crate::config::COMMENT_INTERVAL;
use crate::endpoint::EndpointKind;
use crate::error::RequestError;
use crate::error::response::{broken_stream_event, error_event};
use crate::fleet::InFlightGuard;
use crate::metrics::{FAILED, Metrics};
use warmpath_common::ids::RequestId;
use warmpath_router_core::WorkerIdx;
use warmpath_router_core::event_stream::StreamState;
use warmpath_router_core::overload::retry::WorkerFailure;
use warmpath_shell::body::{BodyRoom, RetainedBody};
use warmpath_shell::trace::Span;

/// A response that broke off; the connection to the client ends with it.
#[derive(Debug, thiserror::Error)]
#[error("the worker ended its response early")]
pub(super) struct BrokenOff;

/// The relay of one response.
pub(super) struct Relay {
    metrics: Arc<Metrics>,
    /// Name of the worker for the client.
    worker: String,
    in_flight: InFlightGuard,
    /// Index of the worker.
    worker_idx: WorkerIdx,
    /// Span of the attempt, which ends before that of the request.
    attempt: Span,
    properties: RelayedRequest,
    /// The request without its body; `None` during the search for another worker.
    request: Option<IncomingRequest>,
    /// State for a failover; `None` if the response cannot be continued, and during the search for another worker.
    failover: Option<Failover>,
    /// The request's body; `None` if the response cannot be continued, and during the search for another worker.
    body: Option<RetainedBody>,
    /// Memory of all bodies.
    room: Arc<BodyRoom>,
    /// Number of events that the client has from earlier workers.
    n_events_before: u32,
    /// End of the time in which running responses may finish.
    cut_off: Pin<Box<WaitForCancellationFutureOwned>>,
    outcome: RelayEnd,
}

/// Properties of the request, for the log, the metrics and the last event.
struct RelayedRequest {
    id: RequestId,
    trace_id: Option<String>,
    endpoint: EndpointKind,
    at: Instant,
}

/// End of a response. A response without one was ended by its client.
enum RelayEnd {
    Open,
    Complete,
    Broken,
}

impl Relay {
    /// Returns the relay of a response that has begun.
    pub(super) fn new(
        app: &App,
        request: IncomingRequest,
        failover: Option<Failover>,
        target: AttemptTarget,
        worker: String,
    ) -> Self {
        let mut relay = Self {
            metrics: Arc::clone(&app.metrics),
            worker,
            worker_idx: target.decision.worker,
            in_flight: target.in_flight,
            attempt: target.span,
            properties: RelayedRequest {
                id: request.id.clone(),
                trace_id: request.span.trace_id(),
                endpoint: request.endpoint,
                at: request.at,
            },
            request: None,
            failover: None,
            body: None,
            room: Arc::clone(&app.bodies.room),
            n_events_before: 0,
            cut_off: Box::pin(app.cut_off.clone().cancelled_owned()),
            outcome: RelayEnd::Open,
        };
        relay.keep_request(request, failover);
        relay
    }

    /// Keeps the request; what only a failover needs is dropped if there can be none.
    fn keep_request(&mut self, mut request: IncomingRequest, failover: Option<Failover>) {
        let body = std::mem::take(&mut request.body);
        self.failover = failover.filter(Failover::may_go_on);
        if self.failover.is_some() {
            self.body = Some(RetainedBody::new(&self.room, request.sender.clone(), body));
        } else {
            request.headers = HeaderMap::new();
        }
        self.request = Some(request);
    }

    /// Takes the request with its body for a failover; `None` if new bodies needed the body's memory.
    fn take_request(&mut self) -> Option<(IncomingRequest, Failover)> {
        let Some(body) = self.body.take().and_then(RetainedBody::take) else {
            self.metrics.failovers.with_label_values(&[FAILED]).inc();
            tracing::warn!(request_id = %self.properties.id, "no failover: other requests needed the memory of the body");
            return None;
        };
        let (mut request, failover) = (self.request.take()?, self.failover.take()?);
        request.body = body;
        Some((request, failover))
    }

    /// Returns the body for the client; the time per token is recorded in `event_rate`, if wanted.
    pub(super) fn stream(
        self,
        first: Bytes,
        rest: RestOfBody,
        event_rate: Option<Histogram>,
    ) -> impl Stream<Item = Result<Bytes, BrokenOff>> + Send + 'static {
        let event_rate = event_rate
            .filter(|_| matches!(rest, RestOfBody::Events(_)))
            .map(|histogram| EventRate { histogram, times: None });
        let state = RelayState { relay: self, first: Some(first), rest, event_rate, search: None };
        futures::stream::unfold(state, RelayState::next).fuse()
    }
}

/// Measures the rate of a response's events.
struct EventRate {
    histogram: Histogram,
    /// Arrival of the first and the last piece, and the number of events in the stream by then.
    times: Option<[(Instant, u32); 2]>,
}

impl EventRate {
    fn passed(&mut self, n_events: u32) {
        let now = (Instant::now(), n_events);
        self.times = Some([self.times.map_or(now, |[first, _]| first), now]);
    }

    fn completed(&self) {
        let Some([(began, n_first), (ended, n_events)]) = self.times else { return };
        if n_events > n_first {
            self.histogram.observe((ended - began).as_secs_f64() / f64::from(n_events - n_first));
        }
    }
}

/// A response on its way to its client.
struct RelayState {
    relay: Relay,
    /// The part that has arrived already.
    first: Option<Bytes>,
    rest: RestOfBody,
    event_rate: Option<EventRate>,
    /// Search for a worker that continues the response, after this failure.
    search: Option<(WorkerFailure, Search)>,
}

/// Search for another worker; it returns the request and the failover state.
type Search = BoxFuture<'static, SearchResult>;

/// Result of a search.
struct SearchResult {
    request: IncomingRequest,
    failover: Failover,
    /// Absent if there is no other worker.
    continued: Option<ContinuedStream>,
}

/// Reason why a response breaks off.
enum Break {
    /// The worker failed.
    Failed(WorkerFailure),
    /// The worker failed, which is recorded, and no other worker could continue.
    Stranded(WorkerFailure),
    /// The router's time to finish responses is over.
    CutOff,
}

impl RestOfBody {
    async fn next(&mut self) -> Option<Result<Bytes, WorkerFailure>> {
        match self {
            Self::Events(events) => events.next().await.map(|piece| piece.map(|piece| piece.bytes)),
            Self::Other(pieces) => pieces.next().await,
        }
    }

    /// Returns whether a comment can follow what the client has so far.
    fn may_have_comment(&self) -> bool {
        matches!(self, Self::Events(events) if !events.is_within_event())
    }

    fn state(&self) -> StreamState {
        match self {
            Self::Events(events) => events.state(),
            Self::Other(_) => StreamState::default(),
        }
    }
}

impl RelayState {
    async fn next(mut self) -> Option<(Result<Bytes, BrokenOff>, Self)> {
        if !matches!(self.relay.outcome, RelayEnd::Open) {
            return None;
        }
        if let Some((failure, search)) = &mut self.search {
            let found = tokio::select! {
                biased;
                () = &mut self.relay.cut_off => Err(Break::CutOff),
                found = search => Ok(found),
                // A comment keeps the client's connection alive while it waits.
                () = tokio::time::sleep(COMMENT_INTERVAL) => return Some((Ok(Bytes::from_static(COMMENT)), self)),
            };
            let failure = *failure;
            self.search = None;
            if let Err(cause) = found.and_then(|found| self.go_on(found).ok_or(Break::Stranded(failure))) {
                return Some((self.broken(&cause), self));
            }
        }
        let next = match self.first.take() {
            Some(first) => Some(Ok(first)),
            None => tokio::select! {
                biased;
                () = &mut self.relay.cut_off => Some(Err(Break::CutOff)),
                next = self.rest.next() => next.map(|piece| piece.map_err(Break::Failed)),
                // A stock server may be silent for minutes, for example while it buffers a call.
                () = tokio::time::sleep(COMMENT_INTERVAL), if self.rest.may_have_comment() => {
                    return Some((Ok(Bytes::from_static(COMMENT)), self));
                }
            },
        };
        match next {
            Some(Err(Break::Failed(failure))) if self.relay.failover.is_some() => {
                self.relay.in_flight.failed(failure);
                self.relay.attempt.fail(failure.label());
                match self.begin_search(failure) {
                    Some(search) => self.search = Some((failure, search)),
                    None => return Some((self.broken(&Break::Stranded(failure)), self)),
                }
                Some((Ok(Bytes::from_static(COMMENT)), self))
            }
            Some(Ok(piece)) => {
                let state = self.rest.state();
                if let Some(server_request) = self.relay.in_flight.server_request() {
                    server_request.streamed(state);
                }
                if let Some(event_rate) = &mut self.event_rate {
                    event_rate.passed(state.n_events);
                }
                Some((Ok(piece), self))
            }
            None => {
                self.relay.outcome = RelayEnd::Complete;
                if let Some(event_rate) = &self.event_rate {
                    event_rate.completed();
                }
                None
            }
            Some(Err(cause)) => Some((self.broken(&cause), self)),
        }
    }

    /// Begins the search for a worker that continues the response; `None` if it cannot be continued.
    fn begin_search(&mut self, failure: WorkerFailure) -> Option<Search> {
        let Self { relay, rest: RestOfBody::Events(events), .. } = self else { return None };
        let (lines, n_ended_choices) = events.take_lines()?;
        let (mut request, mut failover) = relay.take_request()?;
        let worker = relay.worker_idx;
        Some(Box::pin(async move {
            let continued = failover.go_on(&mut request, worker, failure, lines, n_ended_choices).await;
            SearchResult { request, failover, continued }
        }))
    }

    /// Continues the response at the worker that was found; returns `None` if there is none.
    fn go_on(&mut self, found: SearchResult) -> Option<()> {
        let SearchResult { request, failover, continued } = found;
        let relay = &mut self.relay;
        relay.keep_request(request, Some(failover));
        let continued = continued?;
        relay.n_events_before += self.rest.state().n_events;
        relay.worker = continued.name;
        relay.worker_idx = continued.target.decision.worker;
        relay.in_flight = continued.target.in_flight;
        relay.attempt = continued.target.span;
        (self.first, self.rest, self.event_rate) = (Some(continued.first), continued.rest, None);
        Some(())
    }

    /// Ends an event stream with an error event; for any other response the client sees the connection break.
    fn broken(&mut self, cause: &Break) -> Result<Bytes, BrokenOff> {
        let relay = &mut self.relay;
        relay.outcome = RelayEnd::Broken;
        relay.metrics.broken_responses.inc();
        let label = match cause {
            Break::Failed(failure) => {
                relay.in_flight.failed(*failure);
                failure.label()
            }
            Break::Stranded(failure) => failure.label(),
            Break::CutOff => "cut_off",
        };
        relay.attempt.fail(label);
        tracing::warn!(
            request_id = %relay.properties.id,
            trace_id = relay.properties.trace_id,
            worker = %relay.worker,
            failure = label,
            "response broke off"
        );
        // An error event fits only between two events. Within one, and in any other body, the connection must break.
        match &self.rest {
            RestOfBody::Events(events) if !events.is_within_event() => {
                let n_events = relay.n_events_before + events.state().n_events;
                let endpoint = relay.properties.endpoint;
                let event = match cause {
                    Break::Failed(_) | Break::Stranded(_) => match events.last_words() {
                        Some(words) => return Ok(words),
                        None => broken_stream_event(&relay.worker, endpoint, n_events),
                    },
                    Break::CutOff => error_event(&RequestError::ShuttingDown, endpoint, n_events),
                };
                Ok(Bytes::from(event))
            }
            RestOfBody::Events(_) | RestOfBody::Other(_) => Err(BrokenOff),
        }
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        self.metrics.request.observe(self.properties.at.elapsed().as_secs_f64());
        if matches!(self.outcome, RelayEnd::Open) {
            self.metrics.abandoned_responses.inc();
        }
    }
}
