//! Recent activity in JSON: the last decisions, and the counters of the last hour. The fleet page reads it.
//!
//! It contains no text of prompts or responses. Not here: the storage (`decision_history`), the page (`pages`).

use std::time::Duration;

use axum::Json;
use axum::extract::rejection::QueryRejection;
use axum::extract::{Query, State};
use serde::Deserialize;
use serde_json::{Value, json};
use warmpath_router_core::diagnostics::decision_log::{DecisionEntry, DecisionOutcome};
use warmpath_router_core::diagnostics::history::HistoryTotals;
use warmpath_shell::metrics::REQUEST_BUCKETS;

use crate::app::App;
use crate::config::{DECISIONS_KEPT, HISTORY_NOTES, HISTORY_PAUSE};
use crate::error::RequestError;

/// Length of a history if the query does not give it. Units: seconds.
///
/// Source: own choice: the default range of the fleet page.
const WINDOW_DEFAULT_S: u32 = 300;

/// Responds with the last decisions, the latest first.
pub async fn decisions(State(app): State<App>) -> Json<Value> {
    let decisions: Vec<Value> = app.recent.decisions().iter().map(describe).collect();
    Json(json!({"now_ms": app.recent.now_ms(), "kept_max": DECISIONS_KEPT, "decisions": decisions}))
}

fn describe(entry: &DecisionEntry) -> Value {
    let choice = &entry.chosen;
    let (outcome, status, failure) = match entry.outcome {
        DecisionOutcome::Open => ("open", None, None),
        DecisionOutcome::Answered { status, .. } => ("answered", Some(status), None),
        DecisionOutcome::Failed(failure) => ("failed", None, Some(failure.label())),
        DecisionOutcome::Left => ("left", None, None),
    };
    let (ttft_ms, cached_tokens) = match entry.outcome {
        DecisionOutcome::Answered { ttft_ms, cached_tokens, .. } => (Some(ttft_ms), cached_tokens),
        DecisionOutcome::Open | DecisionOutcome::Failed(_) | DecisionOutcome::Left => (None, None),
    };
    json!({
        "at_ms": choice.at_ms,
        "request_id": choice.request_id,
        "model": choice.model.names.first(),
        "worker": choice.worker,
        "reason": choice.reason.to_string(),
        "kv_peer": choice.kv_peer,
        "prompt_tokens": choice.prompt_tokens,
        "predicted_cached_tokens": choice.predicted_cached_tokens,
        "cached_tokens": cached_tokens,
        "outcome": outcome,
        "status": status,
        "failure": failure,
        "ttft_ms": ttft_ms,
    })
}

/// Query of a history.
#[derive(Deserialize)]
pub struct HistoryQuery {
    /// Length of the history.
    window_s: Option<u32>,
}

/// Responds with the counters, per sample and in total, for the requested time as far as it is known.
pub async fn history(
    State(app): State<App>,
    query: Result<Query<HistoryQuery>, QueryRejection>,
) -> Result<Json<Value>, RequestError> {
    let Query(query) = query.map_err(|error| RequestError::field("window_s", error.body_text()))?;
    let window = Duration::from_secs(query.window_s.unwrap_or(WINDOW_DEFAULT_S).into());
    let (stretches, sum) = app.recent.within(window, &app.metrics);
    let points: Vec<Value> = stretches
        .iter()
        .map(|stretch| {
            let mut point = counted(&stretch.counted);
            point["end_ms"] = app.recent.time_ms(stretch.end).into();
            point
        })
        .collect();
    Ok(Json(json!({
        "pause_s": HISTORY_PAUSE.as_secs(),
        "notes_max": HISTORY_NOTES,
        "points": points,
        "sum": counted(&sum),
    })))
}

fn counted(totals: &HistoryTotals) -> Value {
    json!({
        "seconds": totals.at.as_secs_f64(),
        "requests": totals.requests,
        "failures": totals.failures,
        "prompt_tokens": totals.prompt_tokens,
        "held_tokens": totals.held_tokens,
        "predicted_cached_tokens": totals.predicted_cached_tokens,
        "cached_tokens": totals.cached_tokens,
        "fetched_tokens": totals.fetched_tokens,
        "ttft_p50_s": totals.ttft_quantile(0.5, REQUEST_BUCKETS),
        "ttft_p95_s": totals.ttft_quantile(0.95, REQUEST_BUCKETS),
    })
}
