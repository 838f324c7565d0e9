//! The outcome of a run of agents' sessions, and its figures.

use std::time::Duration;

use super::super::outcome::{quantile, ratio};
use super::super::worker;
use super::super::world::{History, Served};
use super::Sessions;
use crate::output::figures::{Figures, Measure, Row, Unit};

/// Outcome of one run.
#[derive(Debug, Clone, PartialEq)]
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
        let answers = || range.clone().filter_map(|request| Some((request, history.served[request]?)));
        let ttft: Duration = answers().map(|(_, response)| response.ttft).sum();
        ratio(ttft.as_secs_f64() * 1e3, answers().map(|(request, _)| alone_ms(request)).sum())
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
    }
}

fn sorted(values: impl Iterator<Item = f64>) -> Vec<f64> {
    let mut values: Vec<f64> = values.collect();
    values.sort_unstable_by(f64::total_cmp);
    values
}

/// Returns the figures of several runs with the same number of routers.
pub(super) fn figures(outcomes: &[SessionsOutcome], n_routers: usize) -> Figures {
    let mut figures = Figures::default();
    let state = |name, bytes: u64| Measure::lower(name, Unit::Terabytes).sample(bytes as f64 / 1e12);
    for outcome in outcomes {
        let row = Row::of_size("router", n_routers, outcome.policy.as_str());
        let answered_share = ratio(outcome.n_answered as f64, outcome.n_requests as f64);
        let samples = [
            Measure::higher("answered", Unit::Share).sample(answered_share),
            Measure::lower("computed of new", Unit::Share).sample(outcome.computed_per_new),
            Measure::lower("TTFT p50", Unit::Ms).sample(outcome.ttft_ms_p50),
            Measure::lower("TTFT p95", Unit::Ms).sample(outcome.ttft_ms_p95),
            Measure::lower("TTFT p99", Unit::Ms).sample(outcome.ttft_ms_p99),
            Measure::lower("slow-down p50", Unit::Ratio).sample(outcome.slowdown_p50),
            Measure::lower("slow-down p95", Unit::Ratio).sample(outcome.slowdown_p95),
            state("to slots", outcome.restored_bytes),
            state("fetched", outcome.fetched_bytes),
            state("read", outcome.read_bytes),
            state("written", outcome.written_bytes),
        ];
        figures.add_samples(&row, samples);
    }
    figures
}
