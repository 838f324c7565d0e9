//! Actual reuse of a prompt, compared with the router's prediction.
//!
//! Not here: the prediction (`choice`), blocks that a worker announces and does not reuse (the core's
//! `stale_blocks`).

use axum::http::HeaderMap;
use warmpath_router_core::ledger::stale_blocks::PredictionOutcome;

use super::attempt_target::AttemptTarget;
use super::headers;
use super::upstream_response::UpstreamResponse;
use crate::app::App;
use crate::fleet::InFlightGuard;
use crate::prompt::body::Purpose;
use crate::prompt::{Prepared, PreparedPrompt};

/// Compares actual with predicted reuse, in whole blocks, if both are known.
pub(super) fn observe(app: &App, target: &AttemptTarget, prepared_request: &Prepared, headers: &HeaderMap) {
    let actual: Option<u32> = headers::number(headers, warmpath_common::headers::CACHED_TOKENS);
    let (PreparedPrompt::Known { n_tokens, keys, .. }, Some(actual), true) =
        (&prepared_request.prompt, actual, target.has_one_prompt)
    else {
        return;
    };
    let n_tokens = *n_tokens;
    let predicted_tokens = target.decision.cached_tokens;
    // One token is computed even of a fully cached prompt, so its last block does not count.
    let held_blocks = target.n_matched_blocks.min(n_tokens.saturating_sub(1) / target.block_size_tokens.max(1));
    // A worker reuses more if it waits for a prefix that another request computes, or if a part of a block is cached.
    let cacheable_tokens = (held_blocks * target.block_size_tokens).max(actual);
    // The reuse of a request that only fills the cache serves nobody yet.
    if prepared_request.purpose == Purpose::Response {
        app.metrics.prompt_tokens.inc_by(u64::from(n_tokens));
        app.metrics.cacheable_tokens.inc_by(u64::from(cacheable_tokens));
        app.metrics.predicted_cached_tokens.inc_by(u64::from(predicted_tokens));
        app.metrics.cached_tokens.inc_by(u64::from(actual));
    }
    let blocks = |tokens: u32| tokens / target.block_size_tokens.max(1);
    let outcome = PredictionOutcome {
        worker: target.decision.worker,
        keys,
        expected_blocks: blocks(predicted_tokens),
        fetched_blocks: blocks(target.decision.fetched_tokens),
        actual_blocks: blocks(actual),
    };
    app.metrics.prediction_error.observe(f64::from(outcome.actual_blocks) - f64::from(outcome.expected_blocks));
    app.metrics.predictions.with_label_values(&[outcome.label()]).inc();
    if app.fleet.ledger().stale_blocks.observe(outcome) {
        tracing::warn!(
            worker = %app.fleet.member(outcome.worker).url,
            expected_blocks = outcome.expected_blocks,
            actual_blocks = outcome.actual_blocks,
            "a worker did not reuse blocks that it announced"
        );
    }
}

/// Reads a stock server's response; returns the number of reused prompt tokens if the response already reports it.
pub(super) fn of_stock_server(in_flight: &mut InFlightGuard, response: &UpstreamResponse) -> Option<u32> {
    let server_request = in_flight.server_request().filter(|_| response.head().status.is_success())?;
    server_request.begun();
    match response {
        UpstreamResponse::Whole { body, .. } => server_request.whole(body),
        UpstreamResponse::Stream { .. } => None,
    }
}
