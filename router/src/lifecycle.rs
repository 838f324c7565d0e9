//! One request from its body to the end of its response, for all endpoints.
//!
//! A request is prepared once and then attempted: choose a worker, send, wait for the first byte. Until the first byte
//! of the response has reached the client, a failed attempt is retried at another worker. From then on the response is
//! relayed as it arrives. Keep-alive comments do not count as a byte of the response (`keepalive`).
//!
//! Not here: the body's fields (`prompt`), the choice (`warmpath-router-core`), endpoints (`http`).

pub mod attempt_target;
mod events;
mod failover;
mod headers;
mod hold;
pub mod journal;
mod keepalive;
mod kv_transfer;
mod prefix_break_header;
mod relay;
mod retry_state;
mod reuse;
mod upstream;
mod whole;

use std::sync::Arc;
use std::time::Instant;

use axum::body::Body;
use axum::http::{HeaderMap, Method};
use axum::response::Response;
use bytes::Bytes;
use warmpath_common::cached_share;
use warmpath_common::ids::RequestId;
use warmpath_router_core::diagnostics::decision_log::DecisionOutcome;
use warmpath_router_core::diagnostics::prefix_breaks::PromptFingerprint;
use warmpath_router_core::ledger::BACKOFF_POLL;
use warmpath_router_core::overload::admission_queue::{TenantKey, Waiter};
use warmpath_router_core::overload::retry::{Terms, WorkerFailure};
use warmpath_shell::body::{BodyRoom, Sender};
use warmpath_shell::event_stream;
use warmpath_shell::refusal::Refusal;
use warmpath_shell::trace::Span;

use crate::app::{App, RequestPlace};
use crate::error::RequestError;
use crate::fleet::members::Member;
use crate::keys::ApiKey;
use crate::metrics;
use crate::prompt::body::{Delivery, Purpose};
use crate::prompt::{EndpointKind, Prepared, PreparedPrompt, RawRequest, session_of_headers};
use crate::queue::{AdmitAt, Admitted, QueueRefusal, QueueRequest};
use crate::salt::Salt;

use attempt_target::{AttemptTarget, ask, choose, find_matches};
use failover::Failover;
use hold::Hold;
use keepalive::Keepalive;
use prefix_break_header::PrefixBreakHeader;
use relay::Relay;
use retry_state::RetryState;
use upstream::{AttemptError, Upstream, UpstreamResponse};

/// A request that has arrived whole.
pub struct IncomingRequest {
    /// Id of the request.
    pub id: RequestId,
    /// Its span, which ends with its response.
    pub span: Span,
    /// Time when its head arrived.
    pub at: Instant,
    /// Start of its time in the queue: its arrival, or the time at which its model was ready.
    pub queued_from: Instant,
    /// Method.
    pub method: Method,
    /// Path.
    pub path: String,
    /// Query after the path, sent to workers unchanged; `None` if there is none.
    pub query: Option<String>,
    /// Headers of the client.
    pub headers: HeaderMap,
    /// Body, with data in place of the URLs of images; sent to workers unchanged, except that a model name that no
    /// worker has may be replaced.
    pub body: Bytes,
    /// Kind of its endpoint.
    pub endpoint: EndpointKind,
    /// API key that it presented, if keys are required.
    pub key: Option<Arc<ApiKey>>,
    /// Sender of its body.
    pub sender: Sender,
    /// Salt in its headers.
    pub salt: Salt,
    /// Identity of its response, if the response may be continued at another worker.
    pub identity: Option<String>,
    /// Its place among the running requests.
    pub place: RequestPlace,
}

impl IncomingRequest {
    /// Returns the account of a request that presents a key which the router does not check; `None` without one.
    fn account(&self, app: &App) -> Option<TenantKey> {
        if self.key.is_some() { None } else { app.queue.account(&self.headers) }
    }
}

/// Returns the response to a request: a worker's, or an error.
///
/// Errors: any [`RequestError`] before the first byte of a response.
pub async fn answer(app: &App, mut arrival: IncomingRequest) -> Result<Response, RequestError> {
    arrival.identity = failover::identity(app, arrival.endpoint, &arrival.path);
    let (own, client) = (app.clone(), (arrival.endpoint, app.cut_off.clone()));
    let held = |comments| async move { answer_once_ready(&own, arrival, &comments).await };
    keepalive::answer(client, held).await
}

/// Returns the response to a request whose model may be loading; `held` are the comments until it is ready.
async fn answer_once_ready(
    app: &App,
    mut arrival: IncomingRequest,
    held: &Keepalive,
) -> Result<Response, RequestError> {
    let mut hold = Hold::new(app);
    let mut prepared = prepare(app, &mut arrival, &mut hold, held).await?;
    observe_phases(app, &prepared, arrival.endpoint);
    let diagnosis = PrefixBreakHeader::of(app, &arrival.headers, &mut prepared);
    let (own, client) = (app.clone(), (arrival.endpoint, app.cut_off.clone()));
    let delivery = prepared.delivery;
    let attempts = |comments: Keepalive| async move {
        comments.during(delivery, attempt_until_answered(&own, arrival, (prepared, hold), &comments)).await
    };
    // A stream that begins with comments has this header, too.
    let mut response = keepalive::answer(client, attempts).await?;
    diagnosis.add_to(app, &mut response);
    Ok(response)
}

/// Returns the request's prompt and other inputs of routing, once its model is ready.
///
/// Errors: those of `PromptPool::prepare`; `Refused` if there is no memory for a changed body; `ShuttingDown`.
async fn prepare(
    app: &App,
    arrival: &mut IncomingRequest,
    hold: &mut Hold,
    comments: &Keepalive,
) -> Result<Prepared, RequestError> {
    loop {
        let (endpoint, any_model_name) = (arrival.endpoint, app.requests.any_model_name);
        let reports_prefix = PrefixBreakHeader::is_wanted(&arrival.headers);
        let (body, salt) = (arrival.body.clone(), arrival.salt.clone());
        let session = session_of_headers(&arrival.headers);
        let draft = RawRequest { endpoint, body, salt, any_model_name, reports_prefix, session };
        let start = Instant::now();
        let prepared = app.preparing.prepare(&app.fleet, app.fleet.view(), draft).await;
        arrival.span.part("router.prepare", (start, Instant::now()), Vec::new());
        match prepared {
            Err(RequestError::Lookup(error)) => {
                let is_generation = endpoint.is_generation();
                let delivery = if is_generation { Delivery::of_body(&arrival.body) } else { Delivery::Whole };
                let changed = hold.until_changed(app, arrival, error.name());
                if !comments.during(delivery, changed).await? {
                    return Err(error.into());
                }
            }
            prepared => {
                let mut prepared = prepared?;
                if let Some(renamed) = prepared.renamed_body.take() {
                    // The changed body takes its place, also in the account of memory.
                    arrival.body = Bytes::new();
                    let renamed = BodyRoom::claimed(&app.bodies.room, &arrival.sender, renamed);
                    arrival.body = renamed.map_err(Refusal::from)?;
                }
                return Ok(prepared);
            }
        }
    }
}

fn observe_phases(app: &App, prepared: &Prepared, endpoint: EndpointKind) {
    let observe = |phase, took: std::time::Duration| {
        app.metrics.decision.with_label_values(&[phase]).observe(took.as_secs_f64());
    };
    observe("parse", prepared.phases.parse);
    match &prepared.prompt {
        PreparedPrompt::Known { .. } => {
            observe("prompt", prepared.phases.prompt);
            observe("hash", prepared.phases.hash);
        }
        PreparedPrompt::Estimated { .. } if !endpoint.is_generation() => {}
        PreparedPrompt::Estimated { cause, .. } => app.metrics.untokenized_prompts.with_label_values(&[cause]).inc(),
    }
}

async fn attempt_until_answered(
    app: &App,
    mut arrival: IncomingRequest,
    (prepared, mut hold): (Prepared, Hold),
    comments: &Keepalive,
) -> Result<Response, RequestError> {
    app.retries.deposit();
    back_off(app, &arrival, &prepared).await;
    let mut retry_state = RetryState::default();
    let attempts = Attempts { app, prepared: &prepared, comments, failover: None };
    let begun = attempts.run(&mut arrival, &mut hold, &mut retry_state).await;
    let failovers_header =
        begun.as_ref().ok().and_then(|(_, answer)| failover::failovers_header(retry_state.n_failovers, answer.head()));
    if failovers_header.is_some() {
        app.metrics.failovers.with_label_values(&[metrics::CONTINUED]).inc();
    } else if retry_state.n_failovers > 0 && begun.is_err() {
        app.metrics.failovers.with_label_values(&[metrics::FAILED]).inc();
    }
    let (choice, answer) = match begun {
        Ok(begun) => begun,
        Err(instead) => return *instead,
    };
    kv_transfer::observe(app, &choice, &answer.head().headers);
    // The tokens that a continuation reuses may include tokens of the response so far.
    if failovers_header.is_none() {
        reuse::observe(app, &choice, &prepared, &answer.head().headers);
    }
    remember(app, &prepared, choice.n_matched_blocks);
    // A worker that can count tokens may still be unable to generate, so such a response proves nothing.
    if answer.head().status.is_success() && !matches!(arrival.endpoint, EndpointKind::Passthrough(_)) {
        choice.in_flight.answered(&retry_state.failures);
    }
    let mut response = respond(app, (arrival, prepared), choice, answer);
    if let Some(failovers_header) = failovers_header {
        headers::set(response.headers_mut(), warmpath_common::headers::FAILOVERS, &failovers_header);
        // The body's usage has the number of the first worker. Metrics and records keep that of the last one.
        if let Some(cached_tokens) = retry_state.past.and_then(|past| past.cached_tokens) {
            let name = warmpath_common::headers::CACHED_TOKENS;
            headers::set(response.headers_mut(), name, &cached_tokens.to_string());
        }
    }
    Ok(response)
}

/// The attempts at one request, or at the rest of its response.
struct Attempts<'a> {
    app: &'a App,
    prepared: &'a Prepared,
    comments: &'a Keepalive,
    /// State of the stream that the request continues; `None` for a request from its start.
    failover: Option<&'a Failover>,
}

impl Attempts<'_> {
    /// Sends the request to workers until one begins to respond.
    ///
    /// Errors: the response or error that the client gets instead.
    async fn run(
        &self,
        arrival: &mut IncomingRequest,
        hold: &mut Hold,
        retry_state: &mut RetryState,
    ) -> Result<(AttemptTarget, UpstreamResponse), Box<Result<Response, RequestError>>> {
        let Self { app, prepared, failover, .. } = *self;
        loop {
            // A worker that failed the stream may have been restarted since.
            retry_state.excluded = failover.map(Failover::excluded).unwrap_or_default();
            let mut choice = match wait_for_capacity(app, arrival, prepared, retry_state).await {
                Ok(choice) => choice,
                Err(error @ (RequestError::NoWorker { .. } | RequestError::Paused { .. })) => {
                    let start = Instant::now();
                    let changed = hold.until_changed(app, arrival, prepared.model_name.as_deref()).await;
                    if !changed.map_err(|error| Box::new(Err(error)))? {
                        return Err(Box::new(retry_state.give_up().unwrap_or(Err(error))));
                    }
                    retry_state.waited += start.elapsed();
                    continue;
                }
                Err(error) => return Err(Box::new(Err(error))),
            };
            if retry_state.n_attempts > 0 {
                app.metrics.retries.inc();
            }
            let worker = choice.decision.worker;
            let member = app.fleet.member(worker);
            let upstream = self.upstream(&member, retry_state);
            let start = Instant::now();
            let AttemptError { failure, refusal, retry_after, past } = match upstream.attempt(arrival, &choice).await {
                Ok(answer) => return Ok((choice, answer)),
                Err(error) => error,
            };
            if failure != WorkerFailure::Full {
                // A slow attempt leaves the request as much time to wait as it had before.
                arrival.queued_from += start.elapsed();
            }
            if let Some(past) = past {
                // The rest of the response gets as much time as a request that has just arrived.
                arrival.queued_from = Instant::now();
                retry_state.n_failovers += 1;
                retry_state.past = Some(past);
            }
            // A server may announce the quota of the client's own key.
            let is_clients_key = member.stock.is_some() && !member.client.has_own_key() && retry_after.is_some();
            let account = arrival.account(app).filter(|_| is_clients_key);
            let terms = Terms { account, model_name: prepared.model_name.as_deref(), retry_after };
            // A Warmpath worker that counts the tokens of too many prompts still generates.
            let is_counting = matches!(arrival.endpoint, EndpointKind::Passthrough(_)) && member.stock.is_none();
            let is_full = failure == WorkerFailure::Full && !is_counting;
            match failure {
                WorkerFailure::Full if !is_full => {}
                WorkerFailure::Full | WorkerFailure::Unready => choice.in_flight.refused(failure, terms),
                _ => choice.in_flight.failed(failure),
            }
            note_failure(app, arrival, &mut choice, failure);
            if !is_full {
                retry_state.failures.push((worker, failure));
            }
            retry_state.failed(failure, refusal);
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
        let past = retry_state.past.as_ref().filter(|_| member.stock.is_none());
        let (limits, n_choices) = (&self.app.requests, self.prepared.n_sequences);
        Upstream { member, limits, comments: self.comments, past, n_choices }
    }
}

/// Records a failed attempt in the metrics, the trace and the log.
fn note_failure(app: &App, arrival: &IncomingRequest, choice: &mut AttemptTarget, failure: WorkerFailure) {
    choice.note.set_outcome(DecisionOutcome::Failed(failure));
    choice.span.fail(failure.label());
    app.metrics.failed_attempts.with_label_values(&[failure.label()]).inc();
    tracing::info!(
        request_id = %arrival.id,
        trace_id = arrival.span.trace_id(),
        worker = %app.fleet.member(choice.decision.worker).url,
        failure = failure.label(),
        "attempt failed"
    );
}

/// Waits until a worker can start the request, and records it there.
async fn wait_for_capacity(
    app: &App,
    arrival: &IncomingRequest,
    prepared: &Prepared,
    retry_state: &mut RetryState,
) -> Result<AttemptTarget, RequestError> {
    // The client of a response that has begun has waited already, and giving up would waste the work done for it.
    let queue_timeout = match retry_state.past {
        None => app.requests.queue_timeout,
        Some(_) => app.requests.queue_timeout.max(app.requests.response_timeout),
    };
    // Only stock servers have quotas of the clients' keys.
    let has_accounts = app.fleet.view().workers.iter().any(|worker| worker.stock.is_some());
    let account = arrival.account(app).filter(|_| has_accounts);
    let queue_request = QueueRequest {
        model: prepared.model.fingerprint,
        waiter: Waiter {
            tenant: app.queue.tenant(arrival.key.as_deref().map(ApiKey::tenant), &arrival.headers),
            needs: app.queue.needs((&prepared.model_name, account, prepared.wanted, retry_state.tried())),
            deadline: arrival.queued_from + queue_timeout,
            is_continuation: retry_state.past.is_some(),
        },
        admit_at: retry_state.admit_at,
        place: retry_state.place,
    };
    let start = Instant::now();
    // Called when it is the request's turn: chooses a worker and records the request there in one step.
    let admitted = app.queue.admit(queue_request, |awaited| {
        let choice = choose((app, arrival, prepared), retry_state, awaited)?;
        let service_ms = choice.decision.service_ms;
        Ok(Admitted { value: choice, service_ms })
    });
    let admitted = admitted.await;
    retry_state.waited += start.elapsed();
    let model = &prepared.model;
    let retry_after =
        || app.fleet.capacity_forecast(Some(model)).retry_after(app.queue.n_waiting(&model.fingerprint) + 1);
    match admitted {
        Ok((choice, place)) => {
            if place.is_some() {
                arrival.span.part("router.queue", (start, Instant::now()), Vec::new());
            }
            retry_state.place = place;
            Ok(choice)
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

/// Backs off for a moment if other routers may be routing requests at the same time.
async fn back_off(app: &App, arrival: &IncomingRequest, prepared: &Prepared) {
    let view = app.fleet.view();
    if !app.fleet.ledger().may_back_off(&view, &ask(&arrival.id, prepared, &[])) {
        return;
    }
    let matches = find_matches(app, prepared);
    let backoff = app.fleet.ledger().backoff(&view, &ask(&arrival.id, prepared, &matches), &mut rand::rng());
    if !backoff.is_zero() {
        let start = Instant::now();
        while let Some(left) = backoff.checked_sub(start.elapsed()).filter(|left| !left.is_zero()) {
            tokio::time::sleep(left.min(BACKOFF_POLL)).await;
            // A router that sees only its own requests has no peers.
            if !app.fleet.ledger().may_back_off(&view, &ask(&arrival.id, prepared, &[])) {
                break;
            }
        }
        app.metrics.backoff.observe(start.elapsed().as_secs_f64());
        arrival.span.part("router.backoff", (start, Instant::now()), Vec::new());
    }
}

/// Marks the matched blocks as used, so that the index evicts them late, and records the conversation, in the
/// background.
fn remember(app: &App, prepared: &Prepared, n_matched_blocks: u32) {
    let Prepared { prompt: PreparedPrompt::Known { root, keys, .. }, chat, tools, .. } = prepared else { return };
    if n_matched_blocks == 0 && chat.messages.is_empty() {
        return;
    }
    let app = app.clone();
    let (root, keys, chat, tools) = (*root, keys.clone(), chat.clone(), *tools);
    // This takes microseconds, less than moving it to the thread pool.
    tokio::spawn(async move {
        app.fleet.index().touch(&keys[..keys.len().min(n_matched_blocks as usize)]);
        app.conversations.observe(PromptFingerprint { root, chat, keys }, tools);
    });
}

/// Returns a worker's response with the router's headers; its body is relayed as it arrives.
fn respond(
    app: &App,
    (arrival, prepared): (IncomingRequest, Prepared),
    mut choice: AttemptTarget,
    answer: UpstreamResponse,
) -> Response {
    let cached_tokens = reuse::of_stock_server(&mut choice.in_flight, &answer);
    let head = answer.head();
    let status = head.status;
    let mut headers = headers::to_client(&head.headers);
    let member = app.fleet.member(choice.decision.worker);
    let name = member.shown_name();
    headers::describe(&mut headers, &choice, &name);
    if let Some(cached_tokens) = cached_tokens {
        headers::set(&mut headers, warmpath_common::headers::CACHED_TOKENS, &cached_tokens.to_string());
    }
    // Metrics and the log of decisions read the headers that the client gets, whichever server set them.
    let (ttft, cached_tokens) =
        (arrival.at.elapsed(), headers::number(&headers, warmpath_common::headers::CACHED_TOKENS));
    choice.note.set_outcome(DecisionOutcome::Answered {
        status: status.as_u16(),
        ttft_ms: ttft.as_secs_f64() * 1e3,
        cached_tokens,
    });
    let prompt_tokens = headers::number(&headers, warmpath_common::headers::PROMPT_TOKENS).or(choice.prompt_tokens);
    let share = cached_tokens.zip(prompt_tokens);
    let share = share.map_or(cached_share::UNKNOWN, |(cached, prompt)| cached_share::label(cached, prompt));
    let is_generation = status.is_success() && arrival.endpoint.is_generation();
    if is_generation && prepared.purpose == Purpose::Prewarm {
        app.metrics.prewarms.inc();
    }
    let is_timed = is_generation && prepared.purpose == Purpose::Response;
    if is_timed {
        app.metrics.ttfb.with_label_values(&[share]).observe(ttft.as_secs_f64());
    }
    let body = match answer {
        UpstreamResponse::Whole { body, .. } => {
            app.metrics.request.observe(arrival.at.elapsed().as_secs_f64());
            Body::from(body)
        }
        UpstreamResponse::Stream { first, rest, .. } => {
            if event_stream::is_event_stream(&headers) {
                event_stream::keep_flowing(&mut headers);
            }
            // The relay owns the request from here on: its guard, its span, and the inputs of a failover.
            let pace = is_timed.then(|| app.metrics.tpot.with_label_values(&[share]));
            let failover = Failover::of(app, prepared, (&rest, &headers));
            let relay = Relay::new(app, (arrival, failover), choice, name.to_string());
            Body::from_stream(relay.stream((first, rest), pace))
        }
    };
    let mut response = Response::new(body);
    *response.status_mut() = status;
    *response.headers_mut() = headers;
    response
}
