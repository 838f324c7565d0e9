//! The rest of an answer: passes the worker's bytes on untouched, and tells the client if they break off.
//!
//! Not here: the first byte (`upstream`). The idea: the relay owns everything that the request holds, its booking and its
//! place; whoever ends it, worker or client, frees all of it by dropping the relay.

use std::sync::Arc;
use std::time::Instant;

use bytes::Bytes;
use futures::{Stream, StreamExt};
use prometheus::Histogram;

use super::Arrival;
use super::upstream::{BodyKind, Pieces};
use crate::fleet::Booking;
use crate::http::error::broken_stream_event;
use crate::http::state::{App, Place};
use crate::metrics::Metrics;
use crate::prompt::Shape;
use warmpath_common::ids::RequestId;
use warmpath_router_core::retry::Failure;
use warmpath_router_core::stock::usage::EventReader;
use warmpath_shell::trace::Span;

/// Says that an answer broke off; the connection to the client ends with it.
#[derive(Debug, thiserror::Error)]
#[error("the worker broke off its answer")]
pub(super) struct BrokenOff;

/// Is the way of one answer.
pub(super) struct Relay {
    metrics: Arc<Metrics>,
    request_id: RequestId,
    worker: String,
    arrived: Instant,
    booking: Booking,
    shape: Shape,
    /// Counts the events of a stream whose events are numbered.
    numbered: Option<EventReader>,
    /// Are the attempt's part of a trace and the request's, in the order in which they end.
    spans: (Span, Span),
    _place: Place,
    outcome: Outcome,
}

/// Says how an answer ended; as long as it has not, the client can still leave.
enum Outcome {
    Open,
    Complete,
    Broken,
}

impl Relay {
    /// Returns the relay of an answer that has begun; the request's body is no longer needed.
    pub(super) fn new(app: &App, arrival: Arrival, (booking, attempt): (Booking, Span), worker: String) -> Self {
        Self {
            metrics: Arc::clone(&app.metrics),
            request_id: arrival.id,
            worker,
            arrived: arrival.at,
            booking,
            shape: arrival.shape,
            numbered: (arrival.shape == Shape::Responses).then(EventReader::default),
            spans: (attempt, arrival.span),
            _place: arrival.place,
            outcome: Outcome::Open,
        }
    }

    /// Returns the body that the client gets; what a token of it takes goes into `pace`, if that is wanted.
    pub(super) fn stream(
        self,
        (first, rest): (Bytes, Pieces),
        kind: BodyKind,
        pace: Option<Histogram>,
    ) -> impl Stream<Item = Result<Bytes, BrokenOff>> + Send + 'static {
        let pieces = futures::stream::once(std::future::ready(Ok(first))).chain(rest).boxed();
        let pace = pace.filter(|_| kind == BodyKind::Events).map(Pace::new);
        let state = State { relay: self, pieces, tail: [0; 2], kind, pace };
        futures::stream::unfold(state, State::next)
    }
}

/// Measures how fast the events of an answer come.
struct Pace {
    histogram: Histogram,
    /// Is when the first and the last piece came; they are one at first.
    times: Option<(Instant, Instant)>,
    /// Counts the events behind the first piece, comments among them, which are rare.
    n_further: u32,
    last_byte: u8,
}

impl Pace {
    fn new(histogram: Histogram) -> Self {
        Self { histogram, times: None, n_further: 0, last_byte: 0 }
    }

    fn passed(&mut self, piece: &[u8]) {
        let now = Instant::now();
        let n_events: u32 = piece
            .iter()
            .map(|&byte| {
                let ends_event = byte == b'\n' && self.last_byte == b'\n';
                self.last_byte = byte;
                u32::from(ends_event)
            })
            .sum();
        match &mut self.times {
            None => self.times = Some((now, now)),
            Some((_, last)) => {
                *last = now;
                self.n_further += n_events;
            }
        }
    }

    fn completed(&self) {
        if let (Some((first, last)), 1..) = (self.times, self.n_further) {
            self.histogram.observe((last - first).as_secs_f64() / f64::from(self.n_further));
        }
    }
}

struct State {
    relay: Relay,
    pieces: Pieces,
    /// Is the last two bytes that were passed on: an event ends with an empty line.
    tail: [u8; 2],
    kind: BodyKind,
    pace: Option<Pace>,
}

impl State {
    async fn next(mut self) -> Option<(Result<Bytes, BrokenOff>, Self)> {
        if !matches!(self.relay.outcome, Outcome::Open) {
            return None;
        }
        match self.pieces.next().await {
            Some(Ok(piece)) => {
                if let Some(visit) = self.relay.booking.visit() {
                    visit.passed(&piece);
                }
                if let Some(reader) = &mut self.relay.numbered {
                    reader.read(&piece);
                }
                if let Some(pace) = &mut self.pace {
                    pace.passed(&piece);
                }
                for &byte in piece.iter().rev().take(2).rev() {
                    self.tail = [self.tail[1], byte];
                }
                Some((Ok(piece), self))
            }
            None => {
                self.relay.outcome = Outcome::Complete;
                if let Some(pace) = &self.pace {
                    pace.completed();
                }
                None
            }
            Some(Err(failure)) => Some((self.broken(failure), self)),
        }
    }

    /// Ends a stream of events with an event that says so; of anything else the client sees the connection break.
    fn broken(&mut self, failure: Failure) -> Result<Bytes, BrokenOff> {
        let relay = &mut self.relay;
        relay.outcome = Outcome::Broken;
        relay.metrics.broken_answers.inc();
        relay.booking.failed(failure);
        relay.spans.0.fail(failure.label());
        tracing::warn!(
            request_id = %relay.request_id,
            trace_id = relay.spans.1.trace_id(),
            worker = %relay.worker,
            failure = failure.label(),
            "answer broke off"
        );
        if self.kind == BodyKind::Other {
            return Err(BrokenOff);
        }
        let n_events = relay.numbered.as_ref().map_or(0, EventReader::n_events);
        let event = broken_stream_event(&relay.worker, relay.shape, n_events);
        let is_between_events = self.tail == *b"\n\n" || self.tail == [0; 2];
        Ok(Bytes::from(if is_between_events { event } else { format!("\n\n{event}") }))
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        self.metrics.request.observe(self.arrived.elapsed().as_secs_f64());
        if matches!(self.outcome, Outcome::Open) {
            self.metrics.abandoned_answers.inc();
        }
    }
}
