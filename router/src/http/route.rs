//! The dry run: the worker that would get a request now, and its cost at every worker. Nothing is sent or recorded.
//!
//! Not here: the choice (the core's `ledger::dry_run`), real requests (`completions`).

use axum::Json;
use axum::body::Bytes;
use axum::extract::{Query, Request, State};
use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::{Value, json};
use warmpath_router_core::index::Match;
use warmpath_router_core::ledger::Scored;
use warmpath_router_core::routing::cost::Cost;
use warmpath_shell::refusal::Refusal;

use super::admin::mode;
use super::context::sender;
use crate::app::App;
use crate::endpoint::EndpointKind;
use crate::error::RequestError;
use crate::fleet::fresh_request_id;
use crate::prompt::{PreparedPrompt, RawRequest};
use crate::salt::Salt;

/// The field that distinguishes a chat from a completion.
#[derive(Default, Deserialize)]
#[serde(default)]
struct Peek {
    messages: Option<IgnoredAny>,
}

/// Query of a dry run.
#[derive(Deserialize)]
struct RouteQuery {
    /// Path of the request; absent for a chat or a completion, which the body distinguishes.
    path: Option<String>,
}

/// Responds with the worker that would get a request now, and the reason.
pub async fn route(State(app): State<App>, request: Request) -> Result<Json<Value>, RequestError> {
    let (mut parts, body) = request.into_parts();
    let query = Query::<RouteQuery>::try_from_uri(&parts.uri);
    let Query(query) = query.map_err(|error| RequestError::field("path", error.body_text()))?;
    let sender = sender(&parts, None);
    let body = app.bodies.read(&mut parts.headers, body, sender.clone()).await.map_err(Refusal::from)?;
    let salt = Salt::of(&parts.headers, None)?;
    let (endpoint, any_model_name) = (endpoint_of(query.path.as_deref(), &body), app.requests.any_model_name);
    let body = app.with_images(body, endpoint, &sender).await?;
    let draft = RawRequest { endpoint, body, salt, any_model_name, reports_prefix: false, session: None, key: None };
    let view = app.fleet.view();
    let prepared_request = app.preparing.prepare(&app.fleet, view.clone(), draft).await?;
    let matches = prepared_request.matches(app.fleet.index());
    let request_id = fresh_request_id();
    let dry_run = app.fleet.ledger().dry_run(&view, &prepared_request.route_request(&request_id, &matches));
    let workers: Vec<Value> =
        dry_run.workers.iter().map(|scored_worker| describe(&app, scored_worker, &matches)).collect();
    let choice = dry_run
        .choice
        .as_ref()
        .ok()
        .map(|(worker, reason)| json!({"worker": app.fleet.member(*worker).name(), "reason": reason.to_string()}));
    let prompt = match &prepared_request.prompt {
        PreparedPrompt::Known { n_tokens, keys, .. } => {
            json!({"tokens": n_tokens, "blocks": keys.len(), "estimated": null})
        }
        PreparedPrompt::Estimated { n_tokens, cause } => {
            json!({"tokens": n_tokens, "blocks": null, "estimated": cause})
        }
    };
    Ok(Json(json!({
        "model": prepared_request.model.names.first(),
        "block_size_tokens": prepared_request.model.block_size_tokens,
        "prompt": prompt,
        "choice": choice,
        "refusal": dry_run.choice.as_ref().err().map(ToString::to_string),
        "listen_ms_max": dry_run.backoff_max.as_secs_f64() * 1e3,
        "waiting": app.queue.n_waiting(&prepared_request.model.fingerprint),
        "workers": workers,
    })))
}

fn endpoint_of(path: Option<&str>, body: &Bytes) -> EndpointKind {
    match path.map(|path| path.split_once('?').map_or(path, |(path, _)| path)) {
        Some("/v1/messages") => return EndpointKind::Messages,
        Some("/v1/responses") => return EndpointKind::Responses,
        Some("/v1/embeddings") => return EndpointKind::Embeddings,
        Some("/v1/rerank") => return EndpointKind::Rerank,
        _ => {}
    }
    let peek: Peek = serde_json::from_slice(body).unwrap_or_default();
    if peek.messages.is_some() { EndpointKind::Chat } else { EndpointKind::Completion }
}

fn describe(app: &App, scored_worker: &Scored<'_>, matches: &[Match]) -> Value {
    let candidate = &scored_worker.candidate;
    let worker = candidate.worker;
    let Cost { wait_ms, transfer_ms, encode_ms, prefill_ms, pressure_ms, slowdown_ms } = candidate.cost;
    let stale_seconds = worker.link.stale_since().map(|since| since.elapsed().as_secs_f64());
    let claimed_blocks = matches.iter().find(|found| found.worker == worker.idx).map_or(0, |found| found.blocks);
    json!({
        "url": worker.name,
        "mode": mode(worker),
        "unavailable": scored_worker.unavailable.map(|why| why.label()),
        "has_room": scored_worker.has_capacity,
        "claimed_blocks": claimed_blocks,
        "matched_blocks": candidate.found.map_or(0, |found| found.blocks),
        "cached_tokens": candidate.work.reused_tokens(),
        "transfer": candidate.transfer.map(|transfer| json!({
            "peer": app.fleet.member(transfer.peer).name(),
            "tokens": candidate.work.fetched_tokens,
        })),
        "tier": candidate.found.map(|found| found.tier),
        "state": candidate.found.map(|found| found.state),
        "slot": candidate.found.and_then(|found| found.slot),
        "stale_seconds": stale_seconds,
        "age_seconds": app.fleet.age(&app.fleet.member(worker.idx)).map(|age| age.as_secs_f64()),
        "cost_ms": {
            "wait": wait_ms,
            "transfer": transfer_ms,
            "encode": encode_ms,
            "prefill": prefill_ms,
            "pressure": pressure_ms,
            "slowdown": slowdown_ms,
            "total": candidate.cost.total_ms(),
        },
    })
}
