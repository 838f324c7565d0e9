//! Failover of a stream whose worker fails: another worker continues the response after the tokens in the stream's
//! journal.
//!
//! The request is sent again with the journal behind its body. The other worker replays the tokens and sends, under the
//! same id, what the client has not received. Only Warmpath workers send and accept a journal. Not here: removing the
//! journal from a stream (`journal`), the relay that continues (`relay`), responses in one piece, which the next
//! attempt continues (`lifecycle`, `whole`).

use std::time::{Instant, SystemTime, UNIX_EPOCH};

use axum::http::HeaderMap;
use bytes::Bytes;
use warmpath_common::headers::JOURNAL;
use warmpath_router_core::WorkerIdx;
use warmpath_router_core::diagnostics::decision_log::DecisionOutcome;
use warmpath_router_core::ledger::health::FailedAttempt;
use warmpath_router_core::overload::retry::WorkerFailure;

use super::attempt_target::AttemptTarget;
use super::attempts::Attempts;
use super::events::end_mark;
use super::hold::Hold;
use super::keepalive::Keepalive;
use super::partial_response::PartialResponse;
use super::request::IncomingRequest;
use super::retry_state::{FailedBoots, RetryState};
use super::upstream_response::{ResponseHead, RestOfBody, UpstreamResponse};
use super::{headers, kv_transfer};
use crate::app::App;
use crate::endpoint::EndpointKind;
use crate::metrics;
use crate::prompt::Prepared;

/// State with which a stream can be continued at another worker.
pub(super) struct Failover {
    app: App,
    prepared_request: Prepared,
    cached_tokens: Option<u32>,
    /// Workers that failed this stream.
    failed_boots: FailedBoots,
    /// Number of continuations so far.
    n_done: u32,
}

/// A stream that continues at another worker.
pub(super) struct ContinuedStream {
    pub(super) target: AttemptTarget,
    pub(super) first: Bytes,
    pub(super) rest: RestOfBody,
    /// Name of the new worker for the client.
    pub(super) name: String,
}

/// Returns the identity of a request's response, from which its ids are derived; `None` if the response would not be
/// continued elsewhere.
pub(super) fn identity(app: &App, endpoint: EndpointKind, path: &str) -> Option<String> {
    end_mark(endpoint, path, 1).filter(|_| app.requests.failover_max > 0)?;
    let now_s = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
    Some(format!("{}.{now_s}", uuid::Uuid::new_v4().simple()))
}

impl Failover {
    /// Returns the state with which the stream of this worker can be continued; `None` if it has no journal.
    pub(super) fn of(app: &App, prepared_request: Prepared, rest: &RestOfBody, head: &HeaderMap) -> Option<Self> {
        let has_journal = matches!(rest, RestOfBody::Events(events) if events.has_journal());
        has_journal.then(|| Self {
            app: app.clone(),
            prepared_request,
            cached_tokens: headers::number(head, warmpath_common::headers::CACHED_TOKENS),
            failed_boots: FailedBoots::default(),
            n_done: 0,
        })
    }

    /// Returns whether the stream may be continued once more.
    pub(super) fn may_go_on(&self) -> bool {
        self.n_done < self.app.requests.failover_max
    }

    /// Continues a stream that failed at a worker, after these lines of its journal and so many choices that have
    /// ended; `None` if no worker could.
    pub(super) async fn go_on(
        &mut self,
        request: &mut IncomingRequest,
        worker: WorkerIdx,
        failure: WorkerFailure,
        lines: Vec<u8>,
        n_ended_choices: u32,
    ) -> Option<ContinuedStream> {
        let start = Instant::now();
        self.n_done += 1;
        self.failed_boots.add(&self.app.fleet.view(), worker);
        // The continuation gets as much time as a request that has just arrived.
        request.queued_from = start;
        let partial_response = PartialResponse { lines, n_ended_choices, cached_tokens: self.cached_tokens };
        let continued = self.attempt(request, partial_response, worker, failure, start).await;
        request.span.part("router.failover", start, Instant::now(), Vec::new());
        let result = if continued.is_some() { metrics::CONTINUED } else { metrics::FAILED };
        self.app.metrics.failovers.with_label_values(&[result]).inc();
        continued
    }

    async fn attempt(
        &self,
        request: &mut IncomingRequest,
        partial_response: PartialResponse,
        worker: WorkerIdx,
        failure: WorkerFailure,
        start: Instant,
    ) -> Option<ContinuedStream> {
        let app = &self.app;
        let mut retry_state = RetryState { partial_response: Some(partial_response), ..RetryState::default() };
        let (comments, _receiver) = tokio::sync::mpsc::channel(1);
        let comments = Keepalive::new(comments);
        let attempts = Attempts {
            app,
            prepared_request: &self.prepared_request,
            comments: &comments,
            failed_boots: &self.failed_boots,
        };
        let (mut target, response) =
            attempts.run(request, &mut Hold::new(app, &comments), &mut retry_state).await.ok()?;
        let head = response.head();
        kv_transfer::observe(app, &target, &head.headers);
        let (status, ttft_ms) = (head.status.as_u16(), start.elapsed().as_secs_f64() * 1e3);
        let cached_tokens = headers::number(&head.headers, warmpath_common::headers::CACHED_TOKENS);
        target.note.set_outcome(DecisionOutcome::Answered { status, ttft_ms, cached_tokens });
        match response {
            UpstreamResponse::Stream { head, first, rest } if head.headers.contains_key(JOURNAL) => {
                // Earlier failures have been proven by earlier continuations.
                target.in_flight.answered(&[FailedAttempt { worker, failure }]);
                let member = app.fleet.member(target.decision.worker);
                tracing::info!(request_id = %request.id, worker = %member.url, "answer continues at another worker");
                let name = member.shown_name().to_string();
                let exactness = headers::text(&head.headers, JOURNAL).unwrap_or_default();
                let first = [&self.comment(exactness), &first[..]].concat().into();
                Some(ContinuedStream { target, first, rest, name })
            }
            _ => None,
        }
    }

    /// Returns the comment that tells a client how often its stream was continued. A header would be too late.
    fn comment(&self, exactness: &str) -> Vec<u8> {
        format!(": {}: {}; {exactness}\n\n", warmpath_common::headers::FAILOVERS, self.n_done).into_bytes()
    }
}

/// Returns how often a response in one piece was continued, and how exactly; `None` if it was not.
pub(super) fn failovers_header(n_failovers: u32, head: &ResponseHead) -> Option<String> {
    let exactness = headers::text(&head.headers, JOURNAL).filter(|_| n_failovers > 0)?;
    Some(format!("{n_failovers}; {exactness}"))
}
