//! The choice of a worker for one attempt: its inputs, and the records of its result.
//!
//! Not here: the decision (`warmpath-router-core`), when and how often it is made (the module above).

use std::sync::Arc;
use std::time::Instant;

use warmpath_common::ids::RequestId;
use warmpath_common::model::Fingerprint;
use warmpath_router_core::WorkerIdx;
use warmpath_router_core::diagnostics::decision_log::LoggedChoice;
use warmpath_router_core::index::Match;
use warmpath_router_core::ledger::{Decision, NoWorker, RouteRequest};
use warmpath_router_core::routing::choose::{ChoiceReason, PromptView};
use warmpath_router_core::stock::SentRequest;
use warmpath_shell::trace::{Span, SpanKind};

use super::{IncomingRequest, RetryState, kv_transfer};
use crate::app::App;
use crate::decision_history::DecisionHandle;
use crate::fleet::InFlightGuard;
use crate::prompt::{Prepared, PreparedPrompt};

/// Target of an attempt, and the predictions for it.
pub(super) struct AttemptTarget {
    pub(super) decision: Decision,
    pub(super) in_flight: InFlightGuard,
    /// Its entry in the log of decisions.
    pub(super) note: DecisionHandle,
    /// Span of the attempt, which ends with its response.
    pub(super) span: Span,
    /// Prompt tokens; `None` if the prompt is not known.
    pub(super) prompt_tokens: Option<u32>,
    /// Predicted reuse; `None` if the prompt is not known.
    pub(super) predicted_cached_tokens: Option<u32>,
    /// Hint for the worker: a peer from which it can fetch state.
    pub(super) kv_peer: Option<String>,
    /// Longest match of any worker.
    pub(super) n_matched_blocks: u32,
    /// Whether the request has one prompt and one choice, so that actual reuse can be compared with the prediction.
    pub(super) has_one_prompt: bool,
    /// Fingerprint of the model for which the worker was chosen; `None` if any worker of the name will do.
    pub(super) model: Option<Fingerprint>,
    pub(super) block_size_tokens: u32,
}

/// Returns the cached prefixes of a prompt; none if the prompt is not known.
pub fn find_matches(app: &App, prepared: &Prepared) -> Vec<Match> {
    match &prepared.prompt {
        PreparedPrompt::Known { keys, .. } => app.fleet.index().matches(keys),
        PreparedPrompt::Estimated { .. } => Vec::new(),
    }
}

/// Returns a request's input to the decision at its first attempt.
pub fn ask<'a>(request_id: &'a RequestId, prepared: &'a Prepared, matches: &'a [Match]) -> RouteRequest<'a> {
    RouteRequest {
        request_id,
        model_name: prepared.model_name.as_deref(),
        account: None,
        model: &prepared.model,
        wanted: prepared.wanted,
        prompt: prompt_view(prepared, matches),
        tried: &[],
        awaited: &[],
        n_sequences: prepared.n_sequences,
        now: Instant::now(),
    }
}

/// Returns the decision's view of a prompt.
fn prompt_view<'a>(prepared: &'a Prepared, matches: &'a [Match]) -> PromptView<'a> {
    match &prepared.prompt {
        PreparedPrompt::Known { n_tokens, keys, media, .. } => {
            PromptView::Known { n_tokens: *n_tokens, keys, matches, media }
        }
        PreparedPrompt::Estimated { n_tokens, .. } => PromptView::Estimated { n_tokens: *n_tokens },
    }
}

/// Chooses a worker and records the request there. Earlier requests wait for the `awaited` workers.
///
/// Errors: [`NoWorker`], with the reasons.
pub(super) fn choose(
    (app, arrival, prepared): (&App, &IncomingRequest, &Prepared),
    retry_state: &RetryState,
    awaited: &[WorkerIdx],
) -> Result<AttemptTarget, NoWorker> {
    let start = Instant::now();
    let matches = find_matches(app, prepared);
    if matches!(prepared.prompt, PreparedPrompt::Known { .. }) {
        app.metrics.decision.with_label_values(&["match"]).observe(start.elapsed().as_secs_f64());
    }
    // The choice and its record happen under one lock, so the next request already counts this one.
    let start = Instant::now();
    let view = app.fleet.view();
    let tried = retry_state.tried();
    let account = arrival.account(app);
    let first = ask(&arrival.id, prepared, &matches);
    let ask = RouteRequest { account, tried: &tried, awaited, now: start, ..first };
    let (mut decision, ticket) = app.fleet.ledger().choose(&view, &ask)?;
    let mut in_flight = app.fleet.in_flight(decision.worker, ticket);
    in_flight.watch(&arrival.id, || sending(prepared, &decision));
    if retry_state.n_attempts > 0 {
        decision.reason = ChoiceReason::Retry;
    }
    app.metrics.decision.with_label_values(&["choose"]).observe(start.elapsed().as_secs_f64());
    app.metrics.routes.with_label_values(&[&decision.reason.to_string()]).inc();
    // The rest only reports the decision: to the worker, the log, the trace and the fleet page.
    let kv_peer = decision.transfer.map(|transfer| kv_transfer::hint(app, transfer));
    if kv_peer.is_some() {
        app.metrics.kv_transfer_hints.inc();
    }
    let known = match ask.prompt {
        PromptView::Known { n_tokens, .. } => Some(n_tokens),
        PromptView::Estimated { .. } => None,
    };
    tracing::debug!(
        request_id = %arrival.id,
        trace_id = arrival.span.trace_id(),
        worker = %app.fleet.member(decision.worker).url,
        reason = %decision.reason,
        prompt_tokens = known,
        predicted_cached_tokens = decision.cached_tokens,
        kv_peer,
        cost_ms = decision.cost.total_ms(),
        "chose worker"
    );
    let mut span = arrival.span.child("router.attempt", SpanKind::Client);
    span.name("warmpath.worker", app.fleet.member(decision.worker).name());
    span.name("warmpath.route", decision.reason.to_string());
    if let Some(n_tokens) = known {
        span.count("warmpath.prompt_tokens", n_tokens);
        span.count("warmpath.predicted_cached_tokens", decision.cached_tokens);
    }
    Ok(AttemptTarget {
        note: app.recent.write(chosen(app, arrival, prepared, &decision)),
        kv_peer,
        decision,
        in_flight,
        span,
        prompt_tokens: known,
        predicted_cached_tokens: known.map(|_| decision.cached_tokens),
        n_matched_blocks: matches.first().map_or(0, |longest| longest.blocks),
        has_one_prompt: prepared.n_sequences == 1,
        model: prepared.wanted.map(|_| prepared.model.fingerprint),
        block_size_tokens: prepared.model.block_size_tokens,
    })
}

/// Returns the log entry of a decision.
fn chosen(app: &App, arrival: &IncomingRequest, prepared: &Prepared, decision: &Decision) -> LoggedChoice {
    let (prompt_tokens, predicted_cached_tokens) = match prepared.prompt {
        PreparedPrompt::Known { n_tokens, .. } => (n_tokens, Some(decision.cached_tokens)),
        PreparedPrompt::Estimated { n_tokens, .. } => (n_tokens, None),
    };
    LoggedChoice {
        at_ms: app.recent.now_ms(),
        request_id: arrival.id.clone(),
        model: Arc::clone(&prepared.model),
        worker: app.fleet.member(decision.worker).name(),
        reason: decision.reason,
        kv_peer: decision.transfer.map(|transfer| app.fleet.member(transfer.peer).name()),
        prompt_tokens,
        predicted_cached_tokens,
    }
}

/// Returns the record of a request that is sent to a stock server.
fn sending(prepared: &Prepared, decision: &Decision) -> SentRequest {
    let (keys, n_tokens) = match &prepared.prompt {
        PreparedPrompt::Known { keys, n_tokens, .. } => (keys.clone(), *n_tokens),
        PreparedPrompt::Estimated { n_tokens, .. } => (Vec::new(), *n_tokens),
    };
    SentRequest {
        model: prepared.model.fingerprint,
        keys,
        n_tokens,
        block_size_tokens: prepared.model.block_size_tokens,
        cached_tokens: decision.cached_tokens,
        is_countable: prepared.n_sequences == 1 && matches!(prepared.prompt, PreparedPrompt::Known { .. }),
    }
}
