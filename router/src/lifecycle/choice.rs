//! The choice of a worker for one attempt: the backoff before it, the wait for capacity, the choice, and its records.
//!
//! Not here: the decision (`warmpath-router-core`), the order of waiting requests (`queue`), the attempts (`attempts`).

use std::sync::Arc;
use std::time::Instant;

use warmpath_router_core::WorkerIdx;
use warmpath_router_core::diagnostics::decision_log::LoggedChoice;
use warmpath_router_core::ledger::{BACKOFF_POLL, Decision, NoWorker, RouteRequest};
use warmpath_router_core::overload::admission_queue::Waiter;
use warmpath_router_core::routing::choose::ChoiceReason;
use warmpath_router_core::stock::SentRequest;
use warmpath_shell::trace::SpanKind;

use super::attempt_target::AttemptTarget;
use super::kv_transfer;
use super::request::IncomingRequest;
use super::retry_state::RetryState;
use crate::app::App;
use crate::error::RequestError;
use crate::keys::ApiKey;
use crate::prompt::{Prepared, PreparedPrompt};
use crate::queue::{Admitted, QueueRefusal, QueueRequest};

/// Chooses a worker and records the request there, as soon as one has capacity for it.
///
/// Errors: `NoWorker`, `Paused`, `QueueFull`, `QueueLate`.
pub(super) async fn choose_when_possible(
    app: &App,
    request: &IncomingRequest,
    prepared_request: &Prepared,
    retry_state: &mut RetryState,
) -> Result<AttemptTarget, RequestError> {
    // The client of a response that has begun has waited already, and giving up would waste the work done for it.
    let queue_timeout = match retry_state.partial_response {
        None => app.requests.queue_timeout,
        Some(_) => app.requests.queue_timeout.max(app.requests.response_timeout),
    };
    // Only stock servers have quotas of the clients' keys.
    let has_accounts = app.fleet.view().workers.iter().any(|worker| worker.stock.is_some());
    let account = request.account(app).filter(|_| has_accounts);
    let queue_request = QueueRequest {
        model: prepared_request.model.fingerprint,
        waiter: Waiter {
            tenant: app.queue.tenant(request.key.as_deref().map(ApiKey::tenant), &request.headers),
            needs: app.queue.needs((
                &prepared_request.model_name,
                account,
                prepared_request.wanted,
                retry_state.tried(&app.fleet.view()),
            )),
            deadline: request.queued_from + queue_timeout,
            is_continuation: retry_state.partial_response.is_some(),
        },
        admit_at: retry_state.admit_at,
        place: retry_state.place,
    };
    // The wait. When it is the request's turn, a worker is chosen and the request recorded there in one step.
    let start = Instant::now();
    let admitted = app.queue.admit(queue_request, |awaited| {
        let target = choose(app, request, prepared_request, retry_state, awaited)?;
        let service_ms = target.decision.service_ms;
        Ok(Admitted { value: target, service_ms })
    });
    let admitted = admitted.await;
    retry_state.waited += start.elapsed();
    let model = &prepared_request.model;
    let retry_after =
        || app.fleet.capacity_forecast(Some(model)).retry_after(app.queue.n_waiting(&model.fingerprint) + 1);
    match admitted {
        Ok((target, place)) => {
            if place.is_some() {
                request.span.part("router.queue", start, Instant::now(), Vec::new());
            }
            retry_state.place = place;
            Ok(target)
        }
        Err(QueueRefusal::NoWorker(refusal)) => {
            // The time for which workers have refused requests is more exact than the forecast.
            let retry_after = refusal.pause.unwrap_or_else(retry_after);
            let is_paused = refusal.is_overload();
            Err(if is_paused {
                RequestError::Paused { retry_after }
            } else {
                RequestError::NoWorker { refusal, retry_after }
            })
        }
        Err(QueueRefusal::Full) => {
            Err(RequestError::QueueFull { waiting_max: app.requests.queue_max, retry_after: retry_after() })
        }
        Err(QueueRefusal::Late) => {
            let seconds = queue_timeout.as_secs_f64();
            Err(RequestError::QueueLate { seconds, retry_after: retry_after() })
        }
    }
}

/// Chooses a worker and records the request there. Earlier requests wait for the `awaited` workers.
///
/// Errors: [`NoWorker`], with the reasons.
fn choose(
    app: &App,
    request: &IncomingRequest,
    prepared_request: &Prepared,
    retry_state: &RetryState,
    awaited: &[WorkerIdx],
) -> Result<AttemptTarget, NoWorker> {
    // The cached prefixes.
    let start = Instant::now();
    let matches = prepared_request.matches(app.fleet.index());
    if matches!(prepared_request.prompt, PreparedPrompt::Known { .. }) {
        app.metrics.decision.with_label_values(&["match"]).observe(start.elapsed().as_secs_f64());
    }
    // The choice. It and its record happen under one lock, so the next request already counts this one.
    let start = Instant::now();
    let view = app.fleet.view();
    let tried_workers = retry_state.tried(&view);
    let account = request.account(app);
    let first_attempt = prepared_request.route_request(&request.id, &matches);
    let route_request = RouteRequest { account, tried: &tried_workers, awaited, now: start, ..first_attempt };
    let (mut decision, ticket) = app.fleet.ledger().choose(&view, &route_request)?;
    let mut in_flight = app.fleet.in_flight(decision.worker, ticket);
    in_flight.watch(&request.id, || sent_request(prepared_request, &decision));
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
    let prompt_tokens = match prepared_request.prompt {
        PreparedPrompt::Known { n_tokens, .. } => Some(n_tokens),
        PreparedPrompt::Estimated { .. } => None,
    };
    tracing::debug!(
        request_id = %request.id,
        trace_id = request.span.trace_id(),
        worker = %app.fleet.member(decision.worker).url,
        reason = %decision.reason,
        prompt_tokens,
        predicted_cached_tokens = decision.cached_tokens,
        kv_peer,
        cost_ms = decision.cost.total_ms(),
        "chose worker"
    );
    let mut span = request.span.child("router.attempt", SpanKind::Client);
    span.name("warmpath.worker", app.fleet.member(decision.worker).name());
    span.name("warmpath.route", decision.reason.to_string());
    if let Some(n_tokens) = prompt_tokens {
        span.count("warmpath.prompt_tokens", n_tokens);
        span.count("warmpath.predicted_cached_tokens", decision.cached_tokens);
    }
    Ok(AttemptTarget {
        note: app.recent.write(logged_choice(app, request, prepared_request, &decision)),
        kv_peer,
        decision,
        in_flight,
        span,
        prompt_tokens,
        predicted_cached_tokens: prompt_tokens.map(|_| decision.cached_tokens),
        n_matched_blocks: matches.first().map_or(0, |longest| longest.blocks),
        has_one_prompt: prepared_request.n_sequences == 1,
        model: prepared_request.wanted.map(|_| prepared_request.model.fingerprint),
        block_size_tokens: prepared_request.model.block_size_tokens,
    })
}

/// Returns the log entry of a decision.
fn logged_choice(
    app: &App,
    request: &IncomingRequest,
    prepared_request: &Prepared,
    decision: &Decision,
) -> LoggedChoice {
    let (prompt_tokens, predicted_cached_tokens) = match prepared_request.prompt {
        PreparedPrompt::Known { n_tokens, .. } => (n_tokens, Some(decision.cached_tokens)),
        PreparedPrompt::Estimated { n_tokens, .. } => (n_tokens, None),
    };
    LoggedChoice {
        at_ms: app.recent.now_ms(),
        request_id: request.id.clone(),
        model: Arc::clone(&prepared_request.model),
        worker: app.fleet.member(decision.worker).name(),
        reason: decision.reason,
        kv_peer: decision.transfer.map(|transfer| app.fleet.member(transfer.peer).name()),
        prompt_tokens,
        predicted_cached_tokens,
    }
}

/// Returns the record of a request that is sent to a stock server.
fn sent_request(prepared_request: &Prepared, decision: &Decision) -> SentRequest {
    let (keys, n_tokens) = match &prepared_request.prompt {
        PreparedPrompt::Known { keys, n_tokens, .. } => (keys.clone(), *n_tokens),
        PreparedPrompt::Estimated { n_tokens, .. } => (Vec::new(), *n_tokens),
    };
    SentRequest {
        model: prepared_request.model.fingerprint,
        keys,
        n_tokens,
        block_size_tokens: prepared_request.model.block_size_tokens,
        cached_tokens: decision.cached_tokens,
        is_countable: prepared_request.n_sequences == 1
            && matches!(prepared_request.prompt, PreparedPrompt::Known { .. }),
    }
}

/// Backs off for a moment if other routers may be routing requests at the same time.
pub(super) async fn back_off(app: &App, request: &IncomingRequest, prepared_request: &Prepared) {
    let view = app.fleet.view();
    if !app.fleet.ledger().may_back_off(&view, &prepared_request.route_request(&request.id, &[])) {
        return;
    }
    let matches = prepared_request.matches(app.fleet.index());
    let backoff =
        app.fleet.ledger().backoff(&view, &prepared_request.route_request(&request.id, &matches), &mut rand::rng());
    if !backoff.is_zero() {
        let start = Instant::now();
        while let Some(time_left) = backoff.checked_sub(start.elapsed()).filter(|time_left| !time_left.is_zero()) {
            tokio::time::sleep(time_left.min(BACKOFF_POLL)).await;
            // A router that sees only its own requests has no peers.
            if !app.fleet.ledger().may_back_off(&view, &prepared_request.route_request(&request.id, &[])) {
                break;
            }
        }
        app.metrics.backoff.observe(start.elapsed().as_secs_f64());
        request.span.part("router.backoff", start, Instant::now(), Vec::new());
    }
}
