//! The attempts at one request: choose a worker, send, and retry elsewhere until a worker begins to respond.
//!
//! Not here: the choice (`choice`), one attempt (`upstream`), how many may follow (`retry_state`).

use std::time::Instant;

use axum::response::Response;
use warmpath_router_core::diagnostics::decision_log::DecisionOutcome;
use warmpath_router_core::fleet::{FleetView, LookupError};
use warmpath_router_core::overload::retry::{Terms, WorkerFailure};

use super::attempt_target::AttemptTarget;
use super::choice;
use super::hold::Hold;
use super::keepalive::Keepalive;
use super::request::IncomingRequest;
use super::retry_state::{FailedBoots, RetryState};
use super::upstream::{AttemptError, Upstream};
use super::upstream_response::UpstreamResponse;
use crate::app::App;
use crate::endpoint::EndpointKind;
use crate::error::RequestError;
use crate::fleet::members::Member;
use crate::prompt::Prepared;
use crate::queue::AdmitAt;

/// The attempts at one request, or at the rest of its response.
pub(super) struct Attempts<'a> {
    pub(super) app: &'a App,
    pub(super) prepared_request: &'a Prepared,
    pub(super) comments: &'a Keepalive,
    /// Workers that failed the stream which the request continues; none for a request from its start.
    pub(super) failed_boots: &'a FailedBoots,
}

impl Attempts<'_> {
    /// Sends the request to workers until one begins to respond.
    ///
    /// Errors: the response or error that the client gets instead.
    pub(super) async fn run(
        &self,
        request: &mut IncomingRequest,
        hold: &mut Hold,
        retry_state: &mut RetryState,
    ) -> Result<(AttemptTarget, UpstreamResponse), Box<Result<Response, RequestError>>> {
        let Self { app, prepared_request, failed_boots, .. } = *self;
        loop {
            // The choice, once a worker has capacity. A worker that failed the stream may have been restarted since.
            retry_state.excluded = failed_boots.excluded(&app.fleet.view());
            let mut target = match choice::choose_when_possible(app, request, prepared_request, retry_state).await {
                Ok(target) => target,
                Err(error @ (RequestError::NoWorker { .. } | RequestError::Paused { .. })) => {
                    let start = Instant::now();
                    let (name, tried) =
                        (prepared_request.model_name.as_deref(), |view: &FleetView| retry_state.tried(view));
                    let change = hold.until_changed(app, request, name, prepared_request.delivery, tried).await;
                    if !change.map_err(|error| Box::new(Err(error)))? {
                        let refusal =
                            Hold::refusal(app, request, name).map(|refusal| Err(LookupError::from(refusal).into()));
                        return Err(Box::new(refusal.or_else(|| retry_state.give_up()).unwrap_or(Err(error))));
                    }
                    retry_state.waited += start.elapsed();
                    continue;
                }
                Err(error) => return Err(Box::new(Err(error))),
            };
            // The attempt.
            if retry_state.n_attempts > 0 {
                app.metrics.retries.inc();
            }
            let worker = target.decision.worker;
            let member = app.fleet.member(worker);
            let upstream = self.upstream(&member, retry_state);
            let start = Instant::now();
            let AttemptError { failure, refusal, retry_after, partial_response } =
                match upstream.attempt(request, &target).await {
                    Ok(response) => return Ok((target, response)),
                    Err(error) => error,
                };
            // What its failure leaves to the request: its time to wait, and the response so far.
            if failure != WorkerFailure::Full {
                // A slow attempt leaves the request as much time to wait as it had before.
                request.queued_from += start.elapsed();
            }
            if let Some(partial_response) = partial_response {
                // The rest of the response gets as much time as a request that has just arrived.
                request.queued_from = Instant::now();
                retry_state.n_failovers += 1;
                retry_state.partial_response = Some(partial_response);
            }
            // What it says about the worker. A server may announce the quota of the client's own key.
            let is_clients_key = member.stock.is_some() && !member.client.has_own_key() && retry_after.is_some();
            let account = request.account(app).filter(|_| is_clients_key);
            let terms = Terms { account, model_name: prepared_request.model_name.as_deref(), retry_after };
            // A Warmpath worker that counts the tokens of too many prompts still generates.
            let is_counting = matches!(request.endpoint, EndpointKind::Passthrough(_)) && member.stock.is_none();
            let is_full = failure == WorkerFailure::Full && !is_counting;
            match failure {
                WorkerFailure::Full if !is_full => {}
                WorkerFailure::Full | WorkerFailure::Unready => target.in_flight.refused(failure, terms),
                _ => target.in_flight.failed(failure),
            }
            note_failure(app, request, &mut target, failure);
            if !is_full {
                retry_state.add_failure(&app.fleet.view(), worker, failure);
            }
            retry_state.failed(failure, refusal);
            // Whether another attempt follows.
            let may_repeat = retry_state.may_repeat(app, failure);
            if !may_repeat && !is_full {
                let none = || Err(RequestError::Internal { reason: "no attempt was made".to_owned() });
                return Err(Box::new(retry_state.give_up().unwrap_or_else(none)));
            }
            // A full worker is not a failure: a request that has no retry left waits in the queue.
            retry_state.admit_at = if may_repeat { AdmitAt::AtOnce } else { AdmitAt::AfterPause };
        }
    }

    /// Returns the client of a worker for the next attempt.
    fn upstream<'b>(&'b self, member: &'b Member, retry_state: &'b RetryState) -> Upstream<'b> {
        // Only Warmpath workers take a journal.
        let partial_response = retry_state.partial_response.as_ref().filter(|_| member.stock.is_none());
        let (limits, n_choices) = (&self.app.requests, self.prepared_request.n_sequences);
        Upstream { member, limits, comments: self.comments, partial_response, n_choices }
    }
}

/// Records a failed attempt in the metrics, the trace and the log.
fn note_failure(app: &App, request: &IncomingRequest, target: &mut AttemptTarget, failure: WorkerFailure) {
    target.note.set_outcome(DecisionOutcome::Failed(failure));
    target.span.fail(failure.label());
    app.metrics.failed_attempts.with_label_values(&[failure.label()]).inc();
    tracing::info!(
        request_id = %request.id,
        trace_id = request.span.trace_id(),
        worker = %app.fleet.member(target.decision.worker).url,
        failure = failure.label(),
        "attempt failed"
    );
}
