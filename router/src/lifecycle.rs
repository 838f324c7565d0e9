//! One request from its body to the end of its response, for all endpoints.
//!
//! A request is prepared once and then attempted: choose a worker, send, wait for the first byte. Until the first byte
//! of the response has reached the client, a failed attempt is retried at another worker. From then on the response is
//! relayed as it arrives. Keep-alive comments do not count as a byte of the response (`keepalive`).
//!
//! Not here: the body's fields (`prompt`), the choice (`warmpath-router-core`), endpoints (`http`).

mod attempt_target;
mod attempts;
mod choice;
mod events;
mod failover;
mod headers;
mod hold;
pub mod journal;
mod keepalive;
mod kv_transfer;
mod partial_response;
mod prefix_break_header;
mod relay;
mod request;
mod retry_state;
mod reuse;
mod upstream;
mod upstream_response;
mod whole;

use std::time::Instant;

use axum::body::Body;
use axum::response::Response;
use bytes::Bytes;
use warmpath_common::cached_share;
use warmpath_router_core::diagnostics::decision_log::DecisionOutcome;
use warmpath_router_core::diagnostics::prefix_breaks::PromptFingerprint;
use warmpath_router_core::fleet::LookupError;
use warmpath_shell::body::BodyRoom;
use warmpath_shell::event_stream;
use warmpath_shell::refusal::Refusal;

use crate::app::App;
use crate::endpoint::EndpointKind;
use crate::error::RequestError;
use crate::metrics;
use crate::prompt::body::{Delivery, Purpose};
use crate::prompt::{Prepared, PreparedPrompt, RawRequest, session_of_headers};

use attempt_target::AttemptTarget;
use attempts::Attempts;
use failover::Failover;
use hold::Hold;
pub use hold::ModelWait;
use keepalive::Keepalive;
use prefix_break_header::PrefixBreakHeader;
use relay::Relay;
pub use request::IncomingRequest;
use retry_state::{FailedBoots, RetryState};
use upstream_response::UpstreamResponse;

/// Returns the response to a request: a worker's, or an error.
///
/// Errors: any [`RequestError`] before the first byte of a response.
pub async fn answer(app: &App, mut request: IncomingRequest) -> Result<Response, RequestError> {
    request.identity = failover::identity(app, request.endpoint, &request.path);
    let (app, endpoint, cut_off) = (app.clone(), request.endpoint, app.cut_off.clone());
    let attempts = |comments: Keepalive| async move { respond(&app, request, &comments).await };
    keepalive::answer(endpoint, cut_off, attempts).await
}

/// Returns the response to a request whose client gets comments meanwhile.
async fn respond(app: &App, mut request: IncomingRequest, comments: &Keepalive) -> Result<Response, RequestError> {
    // The prompt, once the model is ready.
    let mut hold = Hold::new(app, comments);
    let mut prepared_request = prepare(app, &mut request, &mut hold, comments).await?;
    observe_phases(app, &prepared_request, request.endpoint);
    let prefix_break = PrefixBreakHeader::of(app, &request.headers, &mut prepared_request);
    prefix_break.announce(comments);
    // The attempts, until a worker begins to respond.
    let delivery = prepared_request.delivery;
    let attempts = attempt_until_answered(app, request, prepared_request, hold, comments);
    let mut response = comments.during(delivery, attempts).await?;
    prefix_break.add_to(app, &mut response);
    Ok(response)
}

/// Returns the request's prompt and other inputs of routing, once its model is ready.
///
/// Errors: those of `PromptPool::prepare`; `Refused` if there is no memory for a changed body; `ShuttingDown`.
async fn prepare(
    app: &App,
    request: &mut IncomingRequest,
    hold: &mut Hold,
    comments: &Keepalive,
) -> Result<Prepared, RequestError> {
    loop {
        let (endpoint, any_model_name) = (request.endpoint, app.requests.any_model_name);
        let reports_prefix = PrefixBreakHeader::is_wanted(&request.headers);
        let (body, salt) = (request.body.clone(), request.salt.clone());
        let session = session_of_headers(&request.headers);
        let raw_request =
            RawRequest { endpoint, body, salt, any_model_name, reports_prefix, session, key: request.key.clone() };
        let start = Instant::now();
        let prepared_request = app.preparing.prepare(&app.fleet, app.fleet.view(), raw_request).await;
        request.span.part("router.prepare", start, Instant::now(), Vec::new());
        match prepared_request {
            Err(RequestError::Lookup(error)) => {
                let is_generation = endpoint.is_generation();
                let delivery = if is_generation { Delivery::of_body(&request.body) } else { Delivery::Whole };
                let change = hold.until_changed(app, request, error.name(), delivery, |_| Vec::new());
                if !comments.during(delivery, change).await? {
                    let refusal = Hold::refusal(app, request, error.name()).map(LookupError::from);
                    return Err(refusal.unwrap_or(error).into());
                }
            }
            prepared_request => {
                let mut prepared_request = prepared_request?;
                if let Some(changed_body) = prepared_request.changed_body.take() {
                    // The changed body takes its place, also in the account of memory.
                    request.body = Bytes::new();
                    let changed_body = BodyRoom::claimed(&app.bodies.room, &request.sender, changed_body);
                    request.body = changed_body.map_err(Refusal::from)?;
                }
                return Ok(prepared_request);
            }
        }
    }
}

fn observe_phases(app: &App, prepared_request: &Prepared, endpoint: EndpointKind) {
    let observe = |phase, took: std::time::Duration| {
        app.metrics.decision.with_label_values(&[phase]).observe(took.as_secs_f64());
    };
    observe("parse", prepared_request.phases.parse);
    match &prepared_request.prompt {
        PreparedPrompt::Known { .. } => {
            observe("prompt", prepared_request.phases.prompt);
            observe("hash", prepared_request.phases.hash);
        }
        PreparedPrompt::Estimated { .. } if !endpoint.is_generation() => {}
        PreparedPrompt::Estimated { cause, .. } => app.metrics.untokenized_prompts.with_label_values(&[cause]).inc(),
    }
}

async fn attempt_until_answered(
    app: &App,
    mut request: IncomingRequest,
    prepared_request: Prepared,
    mut hold: Hold,
    comments: &Keepalive,
) -> Result<Response, RequestError> {
    app.retries.deposit();
    choice::back_off(app, &request, &prepared_request).await;
    let mut retry_state = RetryState::default();
    let failed_boots = FailedBoots::default();
    let attempts = Attempts { app, prepared_request: &prepared_request, comments, failed_boots: &failed_boots };
    let result = attempts.run(&mut request, &mut hold, &mut retry_state).await;
    let failovers_header =
        result.as_ref().ok().and_then(|(_, answer)| failover::failovers_header(retry_state.n_failovers, answer.head()));
    if failovers_header.is_some() {
        app.metrics.failovers.with_label_values(&[metrics::CONTINUED]).inc();
    } else if retry_state.n_failovers > 0 && result.is_err() {
        app.metrics.failovers.with_label_values(&[metrics::FAILED]).inc();
    }
    let (target, answer) = match result {
        Ok(result) => result,
        Err(response) => return *response,
    };
    // What the response says about the prediction, the prompt and the worker.
    kv_transfer::observe(app, &target, &answer.head().headers);
    // The tokens that a continuation reuses may include tokens of the response so far.
    if failovers_header.is_none() {
        reuse::observe(app, &target, &prepared_request, &answer.head().headers);
    }
    remember(app, &prepared_request, target.n_matched_blocks);
    // A worker that can count tokens may still be unable to generate, so such a response proves nothing.
    if answer.head().status.is_success() && !matches!(request.endpoint, EndpointKind::Passthrough(_)) {
        target.in_flight.answered(&retry_state.failures);
    }
    let mut response = relayed(app, request, prepared_request, target, answer);
    if let Some(failovers_header) = failovers_header {
        headers::set(response.headers_mut(), warmpath_common::headers::FAILOVERS, &failovers_header);
        // The body's usage has the number of the first worker. Metrics and records keep that of the last one.
        if let Some(cached_tokens) =
            retry_state.partial_response.and_then(|partial_response| partial_response.cached_tokens)
        {
            let name = warmpath_common::headers::CACHED_TOKENS;
            headers::set(response.headers_mut(), name, &cached_tokens.to_string());
        }
    }
    Ok(response)
}

/// Marks the matched blocks as used, so that the index evicts them late, and records the conversation, in the
/// background.
fn remember(app: &App, prepared_request: &Prepared, n_matched_blocks: u32) {
    let Prepared { prompt: PreparedPrompt::Known { root, keys, .. }, chat, tools, .. } = prepared_request else {
        return;
    };
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
fn relayed(
    app: &App,
    request: IncomingRequest,
    prepared_request: Prepared,
    mut target: AttemptTarget,
    upstream_response: UpstreamResponse,
) -> Response {
    let cached_tokens = reuse::of_stock_server(&mut target.in_flight, &upstream_response);
    let head = upstream_response.head();
    let status = head.status;
    let mut headers = headers::to_client(&head.headers);
    let member = app.fleet.member(target.decision.worker);
    let name = member.shown_name();
    headers::describe(&mut headers, &target, &name);
    if let Some(cached_tokens) = cached_tokens {
        headers::set(&mut headers, warmpath_common::headers::CACHED_TOKENS, &cached_tokens.to_string());
    }
    // Metrics and the log of decisions read the headers that the client gets, whichever server set them.
    let (ttft, cached_tokens) =
        (request.at.elapsed(), headers::number(&headers, warmpath_common::headers::CACHED_TOKENS));
    target.note.set_outcome(DecisionOutcome::Answered {
        status: status.as_u16(),
        ttft_ms: ttft.as_secs_f64() * 1e3,
        cached_tokens,
    });
    let prompt_tokens = headers::number(&headers, warmpath_common::headers::PROMPT_TOKENS).or(target.prompt_tokens);
    let share = cached_tokens.zip(prompt_tokens);
    let share = share.map_or(cached_share::UNKNOWN, |(cached, prompt)| cached_share::label(cached, prompt));
    let is_generation = status.is_success() && request.endpoint.is_generation();
    if is_generation && prepared_request.purpose == Purpose::Prewarm {
        app.metrics.prewarms.inc();
    }
    let is_timed = is_generation && prepared_request.purpose == Purpose::Response;
    if is_timed {
        app.metrics.ttfb.with_label_values(&[share]).observe(ttft.as_secs_f64());
    }
    let body = match upstream_response {
        UpstreamResponse::Whole { body, .. } => {
            app.metrics.request.observe(request.at.elapsed().as_secs_f64());
            Body::from(body)
        }
        UpstreamResponse::Stream { first, rest, .. } => {
            if event_stream::is_event_stream(&headers) {
                event_stream::keep_flowing(&mut headers);
            }
            // The relay owns the request from here on: its guard, its span, and the inputs of a failover.
            let pace = is_timed.then(|| app.metrics.tpot.with_label_values(&[share]));
            let failover = Failover::of(app, prepared_request, &rest, &headers);
            let relay = Relay::new(app, request, failover, target, name.to_string());
            Body::from_stream(relay.stream(first, rest, pace))
        }
    };
    let mut response = Response::new(body);
    *response.status_mut() = status;
    *response.headers_mut() = headers;
    response
}
