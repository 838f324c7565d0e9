//! A request at a stock server: records its progress and the usage in its response.
//!
//! It is a guard: when it is dropped, the request has left the server. Not here: relaying the response (`lifecycle`),
//! conclusions from the usage (the core's `stock`).

use std::cmp::Ordering;
use std::sync::Arc;
use std::time::Instant;

use warmpath_common::ids::RequestId;
use warmpath_router_core::event_stream::StreamState;
use warmpath_router_core::overload::retry::WorkerFailure;
use warmpath_router_core::stock::usage::Usage;
use warmpath_router_core::stock::{ResponseEnd, ReuseReport, SentRequest, ServerRequestId};

use super::Stock;
use crate::metrics::Metrics;

/// A request at a stock server, until this is dropped.
pub struct ServerRequest {
    stock: Arc<Stock>,
    metrics: Arc<Metrics>,
    id: ServerRequestId,
    /// State that a streamed response has reported so far.
    state: StreamState,
    /// Usage in a whole response.
    whole: Option<Usage>,
    has_begun: bool,
}

impl ServerRequest {
    /// Records a request that is sent to `stock`.
    pub fn new(stock: &Arc<Stock>, metrics: &Arc<Metrics>, request_id: &RequestId, sending: SentRequest) -> Self {
        let id = stock.server().sent(request_id, sending, Instant::now());
        stock.news.notify_one();
        Self {
            stock: Arc::clone(stock),
            metrics: Arc::clone(metrics),
            id,
            state: StreamState::default(),
            whole: None,
            has_begun: false,
        }
    }

    /// Records that the response has begun.
    pub fn begun(&mut self) {
        self.has_begun = true;
        self.stock.server().begun(self.id, Instant::now());
        self.stock.news.notify_one();
    }

    /// Records the state that a streamed response has reported so far.
    pub fn streamed(&mut self, state: StreamState) {
        self.state = state;
    }

    /// Reads a whole response; returns the number of reused prompt tokens that it reports.
    pub fn whole(&mut self, body: &[u8]) -> Option<u32> {
        let mut usage = Usage::default();
        usage.read(body);
        self.whole = Some(usage);
        usage.reuse().map(|(_, cached)| cached)
    }

    /// Records that the server failed the request.
    pub fn failed(&self, failure: WorkerFailure) {
        match failure {
            // It shows nothing about the server, and a poll would meet the same shortage.
            WorkerFailure::Shortage => return,
            WorkerFailure::Connect => {
                self.stock.server().lost();
                self.stock.news.notify_one();
            }
            // The request itself may have broken the connection; the next poll shows whether the server is lost.
            _ => {}
        }
        self.stock.suspicion.notify_one();
    }
}

impl Drop for ServerRequest {
    fn drop(&mut self) {
        let ending = self.has_begun.then(|| ResponseEnd {
            usage: self.whole.unwrap_or(self.state.usage),
            is_complete: self.whole.is_some() || self.state.is_complete,
            n_events: self.state.n_events,
            at: Instant::now(),
        });
        let report = self.stock.server().ended(self.id, ending);
        self.stock.news.notify_one();
        match report {
            Some(report) => count(&self.metrics, report),
            None if self.has_begun => self.metrics.stock_predictions.with_label_values(&["unchecked"]).inc(),
            None => {}
        }
    }
}

fn count(metrics: &Metrics, report: ReuseReport) {
    metrics.prompt_tokens.inc_by(u64::from(report.prompt_tokens));
    metrics.cached_tokens.inc_by(u64::from(report.cached_tokens));
    metrics.predicted_cached_tokens.inc_by(u64::from(report.predicted_tokens));
    let outcome = match report.outcome {
        Ordering::Less => "less",
        Ordering::Equal => "exact",
        Ordering::Greater => "more",
    };
    metrics.stock_predictions.with_label_values(&[outcome]).inc();
}
