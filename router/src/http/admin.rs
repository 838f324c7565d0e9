//! The endpoints for operators: metrics, and the fleet as this router sees it.

use std::time::Instant;

use axum::Json;
use axum::extract::State;
use axum::http::header;
use axum::response::IntoResponse;
use serde_json::{Value, json};
use warmpath_router_core::WorkerIdx;
use warmpath_router_core::fleet::{ConnectionState, WorkerView};
use warmpath_router_core::hosts::agreement::OtherFile;
use warmpath_router_core::hosts::{HostLink, HostView, HostsView};
use warmpath_router_core::overload::breaker::BreakerState;
use warmpath_shell::metrics::{raise, server_text};

use crate::app::App;

/// All states of a worker, so that each has its metric from the start.
const STATES: &[&str] =
    &["ready", "connecting", "down", "refused", "loading", "stale", "excluded", "draining", "leaving", "failing"];

/// Responds with every metric in Prometheus' text format.
pub async fn metrics(State(app): State<App>) -> impl IntoResponse {
    let _scraping = app.metrics.begin_scrape();
    copy_fleet(&app);
    let of_server = server_text("warmpath_router", &app.resources.connections, &app.bodies.room, &app.tracer);
    ([(header::CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")], app.metrics.encode() + &of_server)
}

/// Responds with each worker's state as this router sees it.
pub async fn fleet(State(app): State<App>) -> Json<Value> {
    let view = app.fleet.view();
    let workers: Vec<Value> = view.workers.iter().map(|worker| describe(&app, worker)).collect();
    let vocabularies: Vec<Value> = app
        .fleet
        .vocabularies()
        .iter()
        .map(|(key, state)| {
            let (state, reason) = (state.label(), state.reason());
            json!({"fingerprint": key.fingerprint, "chat_template": key.chat_template, "state": state, "reason": reason})
        })
        .collect();
    let index = app.fleet.index();
    Json(json!({
        "ready": app.unready().is_none(),
        "unready_reason": app.unready().map(|unready| unready.for_operators),
        "version": env!("CARGO_PKG_VERSION"),
        "started_s": app.started_s,
        "in_flight": app.metrics.in_flight.get(),
        "waiting": app.metrics.queue_requests.get(),
        "workers": workers,
        "hosts": view.hosts.hosts.iter().map(|host| describe_host(host)).collect::<Vec<_>>(),
        "host_models_excluded": excluded_models(&view.hosts),
        "vocabularies": vocabularies,
        "index": {"blocks": index.n_blocks(), "bytes": index.bytes(), "shed_claims": app.fleet.n_shed()},
    }))
}

fn describe_host(host: &HostView) -> Value {
    json!({
        "url": host.name,
        "name": host.summary.as_ref().map(|summary| &summary.host),
        "state": host_state(host),
        "trouble": host.trouble.as_deref(),
        "memory": host.summary.as_ref().map(|summary| &summary.memory),
        "models": host.summary.as_ref().map(|summary| &summary.models),
    })
}

/// Returns the models that no request loads at a host because of their files.
fn excluded_models(hosts: &HostsView) -> Vec<Value> {
    let describe = |other: OtherFile| {
        let reason = other.to_string();
        json!({"url": hosts.hosts[other.host_idx].name, "model": other.model, "reason": reason})
    };
    hosts.other_files(Instant::now()).into_iter().map(describe).collect()
}

fn host_state(host: &HostView) -> &'static str {
    match host.link {
        HostLink::Connecting => "connecting",
        HostLink::Live => "live",
        HostLink::Lost { .. } => "lost",
    }
}

fn describe(app: &App, worker: &WorkerView) -> Value {
    let ledger = app.fleet.ledger();
    let unreported = ledger.sent.unreported(worker.idx);
    let n_in_flight = ledger.sent.n_in_flight(worker.idx);
    let breaker = breaker_name(ledger.health.breaker(worker.idx, Instant::now()));
    drop(ledger);
    let stale_s = worker.link.stale_since().map(|since| since.elapsed().as_secs_f64());
    let member = app.fleet.member(worker.idx);
    let blocks = &worker.blocks;
    json!({
        "url": worker.name,
        "name": *member.shown_name(),
        "uid": worker.uid,
        "mode": mode(worker),
        "state": state(app, worker),
        "trouble": worker.trouble.as_deref(),
        "excluded": worker.excluded.as_ref().map(ToString::to_string),
        "stale_seconds": stale_s,
        "age_seconds": app.fleet.age(&member).map(|age| age.as_secs_f64()),
        "model": worker.model.as_deref(),
        "awaited_models": worker.awaited,
        "further_models": worker.further.iter().map(|model| &model.names).collect::<Vec<_>>(),
        "load": worker.load,
        "blocks": blocks.n_blocks,
        "blocks_digest": blocks.digest.map(|digest| digest.hex()),
        "blocks_current": blocks.is_current,
        "breaker": breaker,
        "in_flight": n_in_flight,
        "unreported": {"requests": unreported.n_requests, "prefill_tokens": unreported.prefill_tokens},
    })
}

/// Returns the source of a worker's blocks: its summary, or the assumptions about a stock server.
pub(super) fn mode(worker: &WorkerView) -> &'static str {
    worker.stock.map_or("summary", |tokenizer_source| tokenizer_source.label())
}

fn state(app: &App, worker: &WorkerView) -> &'static str {
    let now = Instant::now();
    match worker.unavailable(now) {
        Some(why) => why.label(),
        None if matches!(worker.link, ConnectionState::Stale { .. }) => "stale",
        None if app.fleet.ledger().health.breaker(worker.idx, now) == BreakerState::Open => "failing",
        None => "ready",
    }
}

fn breaker_name(state: BreakerState) -> &'static str {
    match state {
        BreakerState::Closed => "closed",
        BreakerState::HalfOpen => "half_open",
        BreakerState::Open => "open",
    }
}

/// Copies the fleet's state into its metrics.
fn copy_fleet(app: &App) {
    let (fleet, metrics) = (&app.fleet, &app.metrics);
    let view = fleet.view();
    let states: Vec<&str> = view.workers.iter().map(|worker| state(app, worker)).collect();
    for name in STATES {
        let n = states.iter().filter(|state| *state == name).count();
        metrics.workers.with_label_values(&[name]).set(gauge(n));
    }
    let now = Instant::now();
    metrics.forget_workers();
    for worker in &view.workers {
        let label = &[worker.name.as_str()];
        let member = fleet.member(worker.idx);
        metrics.worker_info.with_label_values(&[worker.name.as_str(), member.shown_name().as_str()]).set(1);
        if let Some(age) = fleet.age(&member) {
            metrics.summary_age.with_label_values(label).set(age.as_secs_f64());
        }
        metrics.worker_blocks.with_label_values(label).set(gauge(worker.blocks.n_blocks));
        metrics.worker_in_flight.with_label_values(label).set(i64::from(n_in_flight(app, worker.idx)));
        let breaker = match fleet.ledger().health.breaker(worker.idx, now) {
            BreakerState::Closed => 0,
            BreakerState::HalfOpen => 1,
            BreakerState::Open => 2,
        };
        metrics.breaker.with_label_values(label).set(breaker);
    }
    metrics.model_waiting.set(gauge(fleet.hosts().n_waiting()));
    for name in ["connecting", "live", "lost"] {
        let n = view.hosts.hosts.iter().filter(|host| host_state(host) == name).count();
        metrics.hosts.with_label_values(&[name]).set(gauge(n));
    }
    metrics.host_models_excluded.set(gauge(view.hosts.other_files(now).len()));
    metrics.stale_blocks.set(gauge(fleet.ledger().stale_blocks.n_stale()));
    metrics.index_blocks.set(gauge(fleet.index().n_blocks()));
    metrics.index_bytes.set(gauge(fleet.index().bytes()));
    raise(&metrics.index_evicted, fleet.n_shed());
    metrics.info.with_label_values(&[env!("CARGO_PKG_VERSION")]).set(1);
}

fn n_in_flight(app: &App, worker: WorkerIdx) -> u32 {
    app.fleet.ledger().sent.n_in_flight(worker)
}

fn gauge(n: usize) -> i64 {
    i64::try_from(n).unwrap_or(i64::MAX)
}
