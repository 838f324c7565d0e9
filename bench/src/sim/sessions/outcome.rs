//! The outcome of a run of agents' sessions, as figures and as rows of a table.

use std::time::Duration;

use serde::Serialize;

use super::super::outcome::{quantile, ratio, seconds};
use super::super::worker;
use super::super::world::{History, Served};
use super::Sessions;
use crate::figures::{Figures, Measure, Row, Unit};
use crate::table::Table;

/// Outcome of one run.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct SessionsOutcome {
    /// Names of the policy and of the order of eviction.
    pub policy: String,
    /// Number of requests.
    pub n_requests: usize,
    /// Number of requests that got a response.
    pub n_answered: usize,
    /// Prompt tokens that no request before has.
    pub new_tokens: u64,
    /// Computed prompt tokens.
    pub computed_tokens: u64,
    /// Computed / new prompt tokens; 1 is perfect.
    pub computed_per_new: f64,
    /// Median TTFT. Units: milliseconds.
    pub ttft_ms_p50: f64,
    /// 95th percentile of the TTFT. Units: milliseconds.
    pub ttft_ms_p95: f64,
    /// 99th percentile of the TTFT. Units: milliseconds.
    pub ttft_ms_p99: f64,
    /// Median over the sessions of the slow-down: the session's TTFTs / those of a worker that it has for itself and
    /// that keeps everything.
    pub slowdown_p50: f64,
    /// 95th percentile of the slow-down.
    pub slowdown_p95: f64,
    /// State that was brought into slots. Units: bytes.
    pub restored_bytes: u64,
    /// State that another worker sent. Units: bytes.
    pub fetched_bytes: u64,
    /// State that was read from disk. Units: bytes.
    pub read_bytes: u64,
    /// State that was written to disk. Units: bytes.
    pub written_bytes: u64,
    /// Simulated time. Units: seconds.
    pub duration_s: f64,
}

/// Returns the outcome of a run on workers of one shape; a token's state has `kv_token_bytes`.
pub(super) fn outcome(
    policy: String,
    sessions: &Sessions,
    worker: &worker::Shape,
    kv_token_bytes: u64,
    history: &History,
) -> SessionsOutcome {
    let Sessions { trace, ranges, new_tokens } = sessions;
    let responses: Vec<Served> = history.served.iter().flatten().copied().collect();
    let bytes = |tokens: fn(&Served) -> u32| -> u64 {
        responses.iter().map(|response| u64::from(tokens(response)) * kv_token_bytes).sum()
    };
    let [read_bytes, written_bytes] =
        history.n_disk_blocks.map(|n_blocks| n_blocks * u64::from(trace.block_tokens) * kv_token_bytes);
    let new_sum: u64 = new_tokens.iter().map(|n| u64::from(*n)).sum();
    let computed = trace.requests.iter().zip(&history.served).filter_map(|(request, maybe_response)| {
        maybe_response.map(|response| u64::from(request.prompt_tokens - response.cached_tokens))
    });
    let computed_tokens: u64 = computed.sum();
    // The shortest possible TTFT of a request: alone, with all its known tokens in RAM.
    let engine = worker.engine(trace.block_tokens);
    let alone_ms = |request: usize| {
        let n_known = trace.requests[request].prompt_tokens - new_tokens[request];
        f64::from(n_known) * worker.restore_ms_per_token + engine.prefill_ms(n_known, new_tokens[request])
    };
    let slowdown = |range: &std::ops::Range<usize>| {
        let answered = || range.clone().filter_map(|request| Some((request, history.served[request]?)));
        let ttft: Duration = answered().map(|(_, response)| response.ttft).sum();
        ratio(ttft.as_secs_f64() * 1e3, answered().map(|(request, _)| alone_ms(request)).sum())
    };
    let ttft_ms = sorted(responses.iter().map(|response| response.ttft.as_secs_f64() * 1e3));
    let slowdowns = sorted(ranges.iter().map(slowdown));
    SessionsOutcome {
        policy,
        n_requests: trace.requests.len(),
        n_answered: responses.len(),
        new_tokens: new_sum,
        computed_tokens,
        computed_per_new: ratio(computed_tokens as f64, new_sum as f64),
        ttft_ms_p50: quantile(&ttft_ms, 0.5),
        ttft_ms_p95: quantile(&ttft_ms, 0.95),
        ttft_ms_p99: quantile(&ttft_ms, 0.99),
        slowdown_p50: quantile(&slowdowns, 0.5),
        slowdown_p95: quantile(&slowdowns, 0.95),
        restored_bytes: bytes(|response| response.cached_tokens),
        fetched_bytes: bytes(|response| response.fetched_tokens),
        read_bytes,
        written_bytes,
        duration_s: history.ended.as_secs_f64(),
    }
}

fn sorted(values: impl Iterator<Item = f64>) -> Vec<f64> {
    let mut values: Vec<f64> = values.collect();
    values.sort_unstable_by(f64::total_cmp);
    values
}

/// Returns the table of several runs.
pub(super) fn table(outcomes: &[SessionsOutcome]) -> Table {
    let mut table = Table::new(&[
        "policy, eviction",
        "answered",
        "computed/new",
        "TTFT p50 s",
        "p95 s",
        "p99 s",
        "slow-down p50",
        "p95",
        "to slots TB",
        "fetched",
        "read",
        "written",
    ]);
    let terabytes = |bytes: u64| format!("{:.2}", bytes as f64 / 1e12);
    for outcome in outcomes {
        table.add([
            outcome.policy.clone(),
            format!("{}/{}", outcome.n_answered, outcome.n_requests),
            format!("{:.3}", outcome.computed_per_new),
            seconds(outcome.ttft_ms_p50),
            seconds(outcome.ttft_ms_p95),
            seconds(outcome.ttft_ms_p99),
            format!("{:.2}", outcome.slowdown_p50),
            format!("{:.2}", outcome.slowdown_p95),
            terabytes(outcome.restored_bytes),
            terabytes(outcome.fetched_bytes),
            terabytes(outcome.read_bytes),
            terabytes(outcome.written_bytes),
        ]);
    }
    table
}

/// Returns the figures of several runs with the same number of routers.
pub(super) fn figures(outcomes: &[SessionsOutcome], n_routers: usize) -> Figures {
    let mut figures = Figures::default();
    for outcome in outcomes {
        let row = Row::of_size("router", n_routers, outcome.policy.as_str());
        let moved_bytes = outcome.restored_bytes + outcome.fetched_bytes + outcome.read_bytes + outcome.written_bytes;
        let samples = [
            Measure::lower("computed of new", Unit::Share).sample(outcome.computed_per_new),
            Measure::lower("TTFT p50", Unit::Ms).sample(outcome.ttft_ms_p50),
            Measure::lower("TTFT p95", Unit::Ms).sample(outcome.ttft_ms_p95),
            Measure::lower("TTFT p99", Unit::Ms).sample(outcome.ttft_ms_p99),
            Measure::lower("slow-down p50", Unit::Share).sample(outcome.slowdown_p50),
            Measure::lower("slow-down p95", Unit::Share).sample(outcome.slowdown_p95),
            Measure::lower("KV state moved", Unit::Bytes).sample(moved_bytes as f64),
        ];
        figures.add_samples(&row, samples);
    }
    figures
}
