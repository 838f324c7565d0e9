//! The outcome of a simulated run, and its figures.
//!
//! The run itself is in `world`, the cache that it is compared with in `lru`.

use std::time::Duration;

use super::trace::lru::LruHits;
use super::trace::{Trace, siblings};
use super::world::{History, Scene, Served};
use crate::output::figures::{Figures, Measure, Row, Sample, Unit};

/// Outcome of one run.
#[derive(Debug, Clone, PartialEq)]
pub struct Outcome {
    /// Name of the policy.
    pub policy: String,
    /// Number of requests.
    pub n_requests: usize,
    /// Number of requests that got a response.
    pub n_answered: usize,
    /// Reused blocks / all blocks.
    pub block_hit_ratio: f64,
    /// Reused prompt tokens / all prompt tokens.
    pub token_hit_ratio: f64,
    /// Reused blocks / those that one LRU cache of the same total size would reuse.
    pub lru_share: f64,
    /// Prompt tokens of which another worker sent the state / all prompt tokens.
    pub fetched_ratio: f64,
    /// Computed prompt tokens.
    pub computed_tokens: u64,
    /// Mean TTFT. Units: milliseconds.
    pub ttft_ms_mean: f64,
    /// Median TTFT. Units: milliseconds.
    pub ttft_ms_p50: f64,
    /// 99th percentile of the TTFT. Units: milliseconds.
    pub ttft_ms_p99: f64,
    /// Maximum / mean over the workers of the time for their computed prompt tokens at their rates.
    pub imbalance: f64,
    /// Used share of the workers' prefill capacity, until the last response.
    pub utilisation: f64,
    /// Responses per second whose first token arrived within the limit.
    pub goodput_per_s: f64,
    /// Share of the requests whose first token arrived within the limit.
    pub within_limit: f64,
    /// Share of the requests for which the router predicted another number of cached tokens than were reused.
    pub mispredicted: f64,
    /// Number of attempts that were lost with a worker.
    pub n_retries: usize,
    /// Number of responses that had begun when their worker died; a router continues them elsewhere.
    pub n_cut_off: usize,
    /// Follow-ups before, during and after the fleet's changes; absent if it does not change.
    pub follow_ups: Option<[FollowUps; 3]>,
    /// Largest number of workers that one burst of siblings was routed to; absent without bursts.
    pub workers_per_burst_max: Option<usize>,
    /// Share of the bursts that were routed to at most two workers; absent without bursts.
    pub bursts_within_two: Option<f64>,
}

/// Requests that follow an earlier turn of their session, in one part of a run.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct FollowUps {
    /// Number of requests.
    pub n_requests: usize,
    /// Reused blocks of the previous turn's prompt / all of its whole blocks.
    pub hit_ratio: f64,
}

/// Time after the last change that counts as part of the disturbance.
///
/// Source: one and a half times a chat's mean pause (`shapes`): most sessions that lost their cache come back within.
const DISTURBANCE: Duration = Duration::from_secs(60);

/// Returns the follow-ups before, during and after the fleet's changes; `None` if it does not change.
fn follow_ups(trace: &Trace, scene: &Scene, history: &History) -> Option<[FollowUps; 3]> {
    let (first, last) = (scene.changes.first()?.at, scene.changes.last()?.at + DISTURBANCE);
    let mut sums = [(0_usize, 0_u64, 0_u64); 3];
    for (request, response) in trace.requests.iter().zip(&history.served) {
        let Some(previous_blocks) = request.previous_blocks else { continue };
        let at = Duration::from_secs_f64(request.at_s);
        let (n_requests, n_hit, n_blocks) = &mut sums[usize::from(at >= first) + usize::from(at > last)];
        let cached_tokens = response.map_or(0, |response| response.cached_tokens);
        *n_requests += 1;
        *n_hit += u64::from(previous_blocks.min(cached_tokens / trace.block_tokens));
        *n_blocks += u64::from(previous_blocks);
    }
    let part = |(n_requests, n_hit, n_blocks): (usize, u64, u64)| FollowUps {
        n_requests,
        hit_ratio: ratio(n_hit as f64, n_blocks as f64),
    };
    Some(sums.map(part))
}

/// Returns the outcome of a run.
pub fn outcome(trace: &Trace, scene: &Scene, history: &History, lru: LruHits, ttft_limit: Duration) -> Outcome {
    let responses: Vec<Served> = history.served.iter().flatten().copied().collect();
    let n_blocks: usize = trace.requests.iter().map(|request| request.ids().len()).sum();
    let cached_tokens: u64 = responses.iter().map(|response| u64::from(response.cached_tokens)).sum();
    let hit_blocks = cached_tokens / u64::from(trace.block_tokens);
    // Work is the time of what was computed, so that a slow worker counts as busy with fewer tokens.
    let mut work_s = vec![0.0; scene.workers.len()];
    let mut computed_tokens = 0;
    for (request, maybe_response) in trace.requests.iter().zip(&history.served) {
        let Some(response) = maybe_response else { continue };
        let tokens = request.prompt_tokens - response.cached_tokens;
        computed_tokens += u64::from(tokens);
        work_s[response.worker] += f64::from(tokens) / scene.workers[response.worker].prefill_tokens_per_s;
    }
    let mut ttft_ms: Vec<f64> = responses.iter().map(|response| response.ttft.as_secs_f64() * 1e3).collect();
    ttft_ms.sort_unstable_by(f64::total_cmp);
    let n_within = responses.iter().filter(|response| response.ttft <= ttft_limit).count();
    let n_wrong = responses.iter().filter(|response| response.cached_tokens != response.predicted_tokens).count();
    let bursts = siblings::workers_per_burst(trace, history);
    let n_within_two = bursts.iter().filter(|n_workers| **n_workers <= 2).count();
    let mean_work_s = work_s.iter().sum::<f64>() / work_s.len() as f64;
    Outcome {
        policy: scene.policy.to_string(),
        n_requests: trace.requests.len(),
        n_answered: responses.len(),
        block_hit_ratio: hit_blocks as f64 / n_blocks as f64,
        token_hit_ratio: cached_tokens as f64 / trace.prompt_tokens() as f64,
        lru_share: ratio(hit_blocks as f64, lru.n_blocks as f64),
        fetched_ratio: responses.iter().map(|response| f64::from(response.fetched_tokens)).sum::<f64>()
            / trace.prompt_tokens() as f64,
        computed_tokens,
        ttft_ms_mean: ttft_ms.iter().sum::<f64>() / ttft_ms.len().max(1) as f64,
        ttft_ms_p50: quantile(&ttft_ms, 0.5),
        ttft_ms_p99: quantile(&ttft_ms, 0.99),
        imbalance: ratio(work_s.iter().copied().fold(0.0, f64::max), mean_work_s),
        utilisation: ratio(mean_work_s, history.ended.as_secs_f64()),
        goodput_per_s: ratio(n_within as f64, history.ended.as_secs_f64()),
        within_limit: ratio(n_within as f64, trace.requests.len() as f64),
        mispredicted: ratio(n_wrong as f64, responses.len() as f64),
        n_retries: responses.iter().map(|response| response.n_retries).sum(),
        n_cut_off: history.n_cut_off,
        follow_ups: follow_ups(trace, scene, history),
        workers_per_burst_max: bursts.iter().copied().max(),
        bursts_within_two: (!bursts.is_empty()).then(|| n_within_two as f64 / bursts.len() as f64),
    }
}

/// Returns the figures of several runs with the same number of routers.
pub fn figures(outcomes: &[Outcome], n_routers: usize) -> Figures {
    let mut figures = Figures::default();
    for outcome in outcomes {
        figures.add_samples(&Row::of_size("router", n_routers, outcome.policy.as_str()), outcome.samples());
    }
    figures
}

impl Outcome {
    fn samples(&self) -> Vec<Sample> {
        let (share, higher, lower) = (Unit::Share, Measure::higher, Measure::lower);
        let mut samples = vec![
            higher("answered", share).sample(ratio(self.n_answered as f64, self.n_requests as f64)),
            higher("prefix hit ratio", share).sample(self.token_hit_ratio),
            higher("blocks hit", share).sample(self.block_hit_ratio),
            higher("of one LRU cache", share).sample(self.lru_share),
            lower("TTFT mean", Unit::Ms).sample(self.ttft_ms_mean),
            lower("TTFT p50", Unit::Ms).sample(self.ttft_ms_p50),
            lower("TTFT p99", Unit::Ms).sample(self.ttft_ms_p99),
            higher("TTFT within limit", share).sample(self.within_limit),
            higher("goodput", Unit::RequestsPerS).sample(self.goodput_per_s),
            lower("computed", Unit::Tokens).sample(self.computed_tokens as f64),
            lower("imbalance", Unit::Ratio).sample(self.imbalance),
            lower("in use", share).sample(self.utilisation),
            lower("mispredicted", share).sample(self.mispredicted),
        ];
        // Figures that only some fleets and traces have.
        if self.fetched_ratio > 0.0 {
            samples.push(higher("fetched", share).sample(self.fetched_ratio));
        }
        if let (Some(within_two), Some(n_workers)) = (self.bursts_within_two, self.workers_per_burst_max) {
            samples.push(higher("bursts on <= 2 workers", share).sample(within_two));
            samples.push(lower("most workers of a burst", Unit::Count).sample(n_workers as f64));
        }
        if let Some(follow_ups) = self.follow_ups {
            let names = ["follow-ups hit before", "follow-ups hit during", "follow-ups hit after"];
            samples.extend(names.iter().zip(follow_ups).map(|(name, part)| higher(name, share).sample(part.hit_ratio)));
            samples.push(lower("retries", Unit::Count).sample(self.n_retries as f64));
            samples.push(lower("cut off", Unit::Count).sample(self.n_cut_off as f64));
        }
        samples
    }
}

pub(super) fn ratio(part: f64, total: f64) -> f64 {
    if total > 0.0 { part / total } else { 0.0 }
}

/// Returns the smallest value that at least a share `q` of the sorted values does not exceed.
pub(super) fn quantile(sorted_values: &[f64], q: f64) -> f64 {
    let rank = (q * sorted_values.len() as f64).ceil() as usize;
    sorted_values.get(rank.saturating_sub(1)).copied().unwrap_or(0.0)
}
