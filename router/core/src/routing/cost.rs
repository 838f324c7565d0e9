//! The cost of a request at a worker, in milliseconds: all of the formula (docs/routing-cost.md has it on one page).
//!
//! Which workers are compared, and how ties break, is decided in `choose`. The cost is a sum of six times. The
//! request itself waits for four of them:
//!
//! - **wait**: the prompt tokens that the worker computes first, and, if every slot is taken, the time until one is
//!   free. Workers compute short remainders beside long prompts (`worker/core/src/batches/batch_plan.rs`), so a request
//!   waits in proportion to its own prefill: at most three times that for each request ahead of it.
//! - **transfer**: the part of the prompt that the worker fetches from another one (`transfer`).
//! - **encode**: the media that it does not reuse, at the time that the worker takes for each of their tokens. A
//!   thread of its own encodes them, while other requests go on.
//! - **prefill**: the part that it computes, neither cached nor fetched, at the worker's prefill rate.
//!
//! Other requests wait for the other two:
//!
//! - **pressure**: a multiple of the time that the uncached part takes at the fleet's mean prefill rate. What is
//!   computed delays the requests beside and behind it; what is computed or fetched evicts cached tokens that would
//!   have been reused. Without this term prefixes spread over all workers. The rate is the fleet's, because the
//!   multiple would magnify small differences between two measured rates. A slow worker's own prefill time is in the
//!   sum already.
//! - **slowdown**: each stream that decodes there waits for one more step.
//!
//! The multiple of the pressure follows from measurements (docs/decisions/0007-routing-cost.md). With n prompts in
//! computation per worker on average, it has two parts:
//!
//! - **concurrency**: if prompts share a worker, a utilisation u makes n = u / (1 - u), so all prompts together lose dn
//!   / du = (1 + n)^2 of the added time. The new request itself takes 1 + n of it. The other requests, later ones
//!   included, lose n (1 + n). They have waited longer than the new request, and each second costs them 1 + n times as
//!   much, as in the batch plan. That makes n (1 + n)^2: near 0 in an idle fleet, without bound in overload, where only
//!   reuse helps. An idle worker delays few requests, however busy the others are, so n is at most twice the number of
//!   the worker's own prompts, the new one included.
//! - **reuse ratio**: the tokens reused for each token computed. A stored token is reused that many times, on average,
//!   before its eviction. So each token that the new ones evict costs that many computed tokens; free cells cost
//!   nothing. For a fetched token the charge is the time to compute the evicted ones again, concurrency included,
//!   because a copy adds no state to the fleet.

use std::time::Duration;

use warmpath_common::summary::{Load, Rates};

/// Maximum wait for each request ahead, in prefill times of the request itself.
///
/// Source: docs/decisions/0007-routing-cost.md, by simulation: with 2 the p99 is higher, with 4 and more hits are lost.
const WAIT_PREFILLS_PER_REQUEST_MAX: f64 = 3.0;

/// Maximum concurrency that counts at a worker, in prompts of its own with the new one.
///
/// Source: docs/decisions/0007-routing-cost.md, by simulation. With 1 + 2 n, conversations lose hits at a worker that
/// is idle for a moment. With 3 (1 + n) and more, an idle worker gets too few requests while others have queues.
const CONCURRENCY_MULTIPLE_MAX: f64 = 2.0;

/// Assumed speeds of a worker while no worker of the fleet has measured any.
///
/// Source: docs/decisions/0000-measured-before.md: 900-2,600 tokens/s prefill, 34 ms for a step of 8 sequences, on a
/// 2-core machine. To encode a medium's token takes a processor as long as to compute one, or longer.
pub const SPEEDS_DEFAULT: Speeds =
    Speeds { prefill_tokens_per_ms: 1.0, decode_step_ms: 30.0, answer_tokens: 256.0, encode_ms_per_token: 1.0 };

/// Time for which a measured rate counts in full while its worker computes no prompt (or fetches nothing).
///
/// Source: own choice: a worker with traffic computes prompts more often, so its own measurement counts.
const RATE_FRESH: Duration = Duration::from_secs(30);

/// Half-life, after [`RATE_FRESH`], of the difference between a measured rate and the assumed one.
///
/// Source: own choice: a worker with a sixth of the best rate is tried again after a minute without prompts. If it is
/// still slow, it gets one request per such pause.
const RATE_HALF_LIFE: Duration = Duration::from_secs(30);

/// Speeds of a worker, each measured or assumed.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Speeds {
    /// Prefill rate of all sequences together. Units: prompt tokens per millisecond.
    pub prefill_tokens_per_ms: f64,
    /// Time of a step that only decodes. Units: milliseconds.
    pub decode_step_ms: f64,
    /// Tokens that a request generates.
    pub answer_tokens: f64,
    /// Time to encode a medium, for each of its tokens. Units: milliseconds.
    pub encode_ms_per_token: f64,
}

impl Speeds {
    /// Returns a worker's measured speeds, with assumed ones in place of those it has not measured.
    pub fn measured_or(rates: &Rates, assumed_speeds: Speeds) -> Self {
        Self {
            prefill_tokens_per_ms: rates
                .prefill_tokens_per_s
                .map_or(assumed_speeds.prefill_tokens_per_ms, |rate| f64::from(rate) / 1000.0),
            decode_step_ms: rates.decode_step_ms.map_or(assumed_speeds.decode_step_ms, f64::from),
            answer_tokens: rates.answer_tokens.map_or(assumed_speeds.answer_tokens, f64::from),
            encode_ms_per_token: rates.encode_ms_per_token.map_or(assumed_speeds.encode_ms_per_token, f64::from),
        }
    }

    /// Returns the speeds with a prefill rate and a time to encode that approach the assumed ones as the measurement
    /// ages.
    ///
    /// An idle worker measures nothing, so a low rate from its last burst would keep requests away from it forever.
    pub fn faded(self, assumed_speeds: Speeds, age: Duration) -> Self {
        let faded_speed = |measured_speed: f64, assumed_speed: f64| {
            measured_speed + faded_share(age) * (assumed_speed - measured_speed)
        };
        Self {
            prefill_tokens_per_ms: faded_speed(self.prefill_tokens_per_ms, assumed_speeds.prefill_tokens_per_ms),
            encode_ms_per_token: faded_speed(self.encode_ms_per_token, assumed_speeds.encode_ms_per_token),
            ..self
        }
    }

    /// Returns the speeds to assume of a worker that has measured nothing: the best that any of `fleet` has measured.
    ///
    /// A lower assumption would keep requests from a new worker, which then would measure nothing.
    pub fn assumed<'a>(fleet: impl Iterator<Item = &'a Rates>) -> Self {
        let mut best = [None::<f32>; 4];
        for rates in fleet {
            best[0] = rates.prefill_tokens_per_s.into_iter().chain(best[0]).reduce(f32::max);
            best[1] = rates.decode_step_ms.into_iter().chain(best[1]).reduce(f32::min);
            best[2] = rates.answer_tokens.into_iter().chain(best[2]).reduce(f32::min);
            best[3] = rates.encode_ms_per_token.into_iter().chain(best[3]).reduce(f32::min);
        }
        let [prefill_tokens_per_s, decode_step_ms, answer_tokens, encode_ms_per_token] = best;
        let best =
            Rates { prefill_tokens_per_s, decode_step_ms, answer_tokens, encode_ms_per_token, processor_wait: None };
        Self::measured_or(&best, SPEEDS_DEFAULT)
    }
}

/// Returns the share of a measured rate that has given way to the assumed one, 0 to 1, by the age of the measurement.
pub(crate) fn faded_share(age: Duration) -> f64 {
    let half_lives = age.saturating_sub(RATE_FRESH).as_secs_f64() / RATE_HALF_LIFE.as_secs_f64();
    1.0 - 0.5_f64.powf(half_lives)
}

/// Requests that the router has sent to a worker and that the worker's reported load does not include yet.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Unreported {
    /// Number of requests.
    pub n_requests: u32,
    /// Uncached prompt tokens of these requests.
    pub prefill_tokens: u64,
}

/// Load and speed of a worker.
#[derive(Debug, Clone, Copy)]
pub struct WorkerLoad<'a> {
    /// Load as the worker reported it.
    pub load: &'a Load,
    /// Requests that the load does not include yet.
    pub unreported: Unreported,
    /// Number of slots.
    pub n_slots: u16,
    /// Measured and assumed speeds.
    pub speeds: Speeds,
}

/// Work that a request would be for a worker.
#[derive(Debug, Clone, Copy)]
pub struct PrefillWork {
    /// Length of the prompt.
    pub prompt_tokens: u32,
    /// Part of the prompt that the worker has cached.
    pub cached_tokens: u32,
    /// Part that it fetches from another worker.
    pub fetched_tokens: u32,
    /// Tokens of the media that it encodes: those that it neither has cached nor fetches whole.
    pub encoded_tokens: u32,
}

impl PrefillWork {
    /// Returns the part of the prompt that the worker does not have, and computes or fetches.
    pub fn uncached_tokens(self) -> f64 {
        f64::from(self.prompt_tokens.saturating_sub(self.cached_tokens))
    }

    /// Returns the part of the prompt that the worker computes.
    pub fn computed_tokens(self) -> u32 {
        self.prompt_tokens.saturating_sub(self.reused_tokens())
    }

    /// Returns the part of the prompt that is reused, wherever it was cached.
    pub fn reused_tokens(self) -> u32 {
        self.cached_tokens.saturating_add(self.fetched_tokens)
    }
}

/// Averages over the workers that a request could go to.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct FleetMeans {
    /// Requests per worker whose prompts are not computed yet.
    pub concurrency: f64,
    /// Prefill rate. Units: prompt tokens per millisecond.
    pub prefill_tokens_per_ms: f64,
    /// Tokens reused for each token computed.
    pub reuse_ratio: f64,
}

impl FleetMeans {
    /// Returns the averages of `workers`, 0 without any. `reuse_ratio` is [`FleetMeans::reuse_ratio`].
    pub fn of<'a>(workers: impl ExactSizeIterator<Item = &'a WorkerLoad<'a>> + Clone, reuse_ratio: f64) -> Self {
        let n_workers = workers.len().max(1) as f64;
        Self {
            concurrency: concurrency(workers.clone()),
            prefill_tokens_per_ms: workers.map(|worker| worker.speeds.prefill_tokens_per_ms).sum::<f64>() / n_workers,
            reuse_ratio,
        }
    }
}

/// Returns the mean number of requests per worker whose prompts are not computed yet; 0 without workers.
pub fn concurrency<'a>(workers: impl ExactSizeIterator<Item = &'a WorkerLoad<'a>>) -> f64 {
    let n_workers = workers.len().max(1) as f64;
    workers.map(|worker| worker.n_prefilling()).sum::<f64>() / n_workers
}

/// Cost of a request at a worker, by term. Units: milliseconds.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Cost {
    /// Time before its prefill starts.
    pub wait_ms: f64,
    /// Time to fetch a part of the prompt from another worker.
    pub transfer_ms: f64,
    /// Time to encode its media.
    pub encode_ms: f64,
    /// Time to compute the rest.
    pub prefill_ms: f64,
    /// Time that other requests lose because of the uncached part.
    pub pressure_ms: f64,
    /// Time that the worker's streams lose.
    pub slowdown_ms: f64,
}

impl Cost {
    /// Returns the cost of `work` at a worker, without the transfer and the terms that depend on the whole fleet
    /// ([`Cost::add_pressure`]).
    pub fn of(work: PrefillWork, worker: WorkerLoad<'_>) -> Self {
        let WorkerLoad { load, speeds, .. } = worker;
        let prefill_ms = f64::from(work.computed_tokens()) / speeds.prefill_tokens_per_ms;
        Self {
            wait_ms: worker.prefill_wait_ms(prefill_ms) + worker.slot_wait_ms(),
            transfer_ms: 0.0,
            encode_ms: f64::from(work.encoded_tokens) * speeds.encode_ms_per_token,
            prefill_ms,
            pressure_ms: 0.0,
            slowdown_ms: f64::from(load.n_decoding) * speeds.decode_step_ms,
        }
    }

    /// Adds the time that other requests lose.
    pub fn add_pressure(&mut self, work: PrefillWork, worker: &WorkerLoad<'_>, fleet: &FleetMeans) {
        let concurrency = fleet.concurrency.min(CONCURRENCY_MULTIPLE_MAX * (1.0 + worker.n_prefilling()));
        let (computed, uncached) = (f64::from(work.computed_tokens()), work.uncached_tokens());
        let own_ms = computed / fleet.prefill_tokens_per_ms;
        let fetched_ms = f64::from(work.fetched_tokens) / fleet.prefill_tokens_per_ms;
        let free_cells = worker.load.free_cells as f64;
        let evicting = if uncached > 0.0 { (1.0 - free_cells / uncached).max(0.0) } else { 0.0 };
        let multiple = concurrency * (1.0 + concurrency).powi(2);
        self.pressure_ms = multiple * own_ms + fleet.reuse_ratio * evicting * (own_ms + (1.0 + multiple) * fetched_ms);
    }

    /// Returns the predicted time to first token.
    pub fn ttft_ms(&self) -> f64 {
        self.wait_ms + self.transfer_ms + self.encode_ms + self.prefill_ms
    }

    /// Returns the sum of all terms.
    pub fn total_ms(&self) -> f64 {
        self.ttft_ms() + self.pressure_ms + self.slowdown_ms
    }
}

impl WorkerLoad<'_> {
    /// Returns the prompt tokens ahead of a new request; a float, since remote numbers could overflow an integer.
    pub fn prefill_tokens_ahead(&self) -> f64 {
        self.load.queued_prefill_tokens as f64
            + self.load.running_prefill_tokens as f64
            + self.unreported.prefill_tokens as f64
    }

    /// Returns the number of requests that run, wait or are on their way.
    pub fn n_requests(&self) -> u64 {
        self.load.busy_slots.len() as u64 + u64::from(self.load.n_queued) + u64::from(self.unreported.n_requests)
    }

    /// Returns the number of requests whose prompts are not computed yet.
    pub fn n_prefilling(&self) -> f64 {
        self.n_requests().saturating_sub(u64::from(self.load.n_decoding)) as f64
    }

    /// Returns the time until the worker can start a new request of any length: none if a slot is free, else all work
    /// ahead of it.
    ///
    /// Not part of the cost, which counts only the part of that work that delays the request itself.
    pub fn queue_delay_ms(&self) -> f64 {
        let has_slot = self.n_requests() < u64::from(self.n_slots);
        if has_slot { 0.0 } else { self.ahead_ms() + self.slot_wait_ms() }
    }

    /// Returns the time to compute all prompt tokens ahead of a new request.
    pub fn ahead_ms(&self) -> f64 {
        self.prefill_tokens_ahead() / self.speeds.prefill_tokens_per_ms
    }

    /// Returns the time that a request waits for the prompts ahead, which are computed beside it.
    fn prefill_wait_ms(&self, prefill_ms: f64) -> f64 {
        self.ahead_ms().min(WAIT_PREFILLS_PER_REQUEST_MAX * self.n_prefilling().max(1.0) * prefill_ms)
    }

    /// Returns the number of requests that must end before one more gets a slot.
    fn n_before_a_slot(&self) -> f64 {
        (self.n_requests() + 1).saturating_sub(u64::from(self.n_slots.max(1))) as f64
    }

    /// Returns the time until a slot is free: slots become free one by one, `n_slots` of them in the time of an answer.
    fn slot_wait_ms(&self) -> f64 {
        let answer_ms = self.speeds.answer_tokens * self.speeds.decode_step_ms;
        self.n_before_a_slot() * answer_ms / f64::from(self.n_slots.max(1))
    }
}

#[cfg(test)]
mod tests;
