//! What a request would cost at a worker, in milliseconds.
//!
//! Not here: who is asked and how ties break (`choose`).
//!
//! The cost is a sum of five times. The first three are what the request itself feels until its first token:
//!
//! - **wait**: the prompt tokens that are computed before its own, at the worker's prefill rate; and, where every slot is
//!   taken, the time until one is free: an answer's typical time, shared by the slots, for each request ahead. A worker
//!   computes first who has waited longest for each token that is left (`worker/core/src/batch_plan.rs`), so a request waits
//!   in proportion to its own prefill: for each request ahead at most the time that this takes, three times.
//! - **restore**: bringing the reused blocks from where they lie.
//! - **prefill**: the uncached part of the prompt, at the worker's prefill rate.
//!
//! The other two are what others feel:
//!
//! - **pressure**: a multiple, the [`PressureInputs`], of the time that the uncached part takes at the fleet's mean prefill rate.
//!   Uncached work delays those who are computed beside and behind it, and takes the cache of someone who would have come back.
//!   Without it prefixes are spread thin. The rate is the same for all, or the multiple would make a large difference of a small one
//!   between two measured rates; that a worker is slow the request itself feels.
//! - **slowdown**: each stream that decodes there waits one more step while this one joins it.
//!
//! A sixth is compared only between workers that hold as much of the prompt (`choose`), where moving a request loses no hit:
//!
//! - **company**: who is being computed there waits one prefill more. Their number is counted by work: the time of all that
//!   is ahead there, over the time that a prompt which is being computed takes in this fleet. Compared with workers that
//!   hold less, it would move conversations away from whoever holds them, and a hit that is lost so is lost there and then
//!   (docs/decisions/0036-batch-plan.md).
//!
//! The charge is what the fleet measures, no number to be set. It has three parts (docs/decisions/0007-routing-cost.md):
//!
//! - **crowd**: how many requests n have their prompts computed at a worker at a time, on average now. Where prompts share a worker's
//!   time, a utilisation u makes that n = u / (1 - u), and all of them together lose dn / du = (1 + n)^2 of the time that is added;
//!   1 + n of it the one that adds it feels itself, n (1 + n) are left for the others, those to come included. Their time weighs more
//!   than that of one who has just come, as in the batch plan, where a wait t costs t^2 / 2 + ut, u the time of a usual prompt: a
//!   second more costs t + u, and they have waited n u, so 1 + n times as much. That makes n (1 + n)^2: near 0 in an idle fleet, and
//!   without bound in overload, where only reuse helps. But what goes to an idle worker delays nobody, however long the lines of
//!   others are: n counts at most as twice the worker's own prompts, this one with them.
//! - **excess**: a worker that has e prompts more than n delays these as well, which makes e (1 + n) on top, and no more than what is
//!   ahead there. It has only as many as both their number and their work say: one long prompt is no crowd, nor are many
//!   remainders that are soon done.
//! - **worth**: the tokens that the fleet has reused for each that it computed. That is what a stored token has been worth
//!   before it left the cache, so what is lost with each token that the new ones displace. Nothing where there is room.

use std::time::Duration;

use warmpath_common::summary::{Load, Rates, Tier};

/// Is the time to bring one token's KV state from RAM. Units: milliseconds.
///
/// Source: docs/decisions/0000-measured-before.md: 2,048 tokens in 2-3 ms.
pub const RESTORE_RAM_MS_PER_TOKEN: f64 = 0.0015;

/// Is the time to bring one token's KV state from disk. Units: milliseconds.
///
/// Source: docs/decisions/0000-measured-before.md: 12.6 MB for 2,048 tokens, read at 0.5 GB/s.
pub const RESTORE_DISK_MS_PER_TOKEN: f64 = 0.0125;

/// Is the most prefills of its own that a request waits for each one ahead.
///
/// Source: docs/decisions/0007-routing-cost.md, by simulation: with 2 the p99 is higher, with 4 and more hits are lost.
const WAIT_PREFILLS_PER_REQUEST_MAX: f64 = 3.0;

/// Is how fast a worker is taken to be of which nothing is known, nor of any other.
///
/// Source: docs/decisions/0000-measured-before.md: 900-2,600 tokens/s prefill, 34 ms for a step of 8 sequences, on a 2-core machine.
pub const SPEEDS_DEFAULT: Speeds = Speeds { prefill_tokens_per_ms: 1.0, decode_step_ms: 30.0, answer_tokens: 256.0 };

/// Time for which a measured prefill rate counts in full while its worker computes no prompts.
///
/// Source: own choice: a worker with traffic computes prompts more often, so its own measurement counts.
const RATE_FRESH: Duration = Duration::from_secs(30);

/// Time after that in which a measured prefill rate comes half as close to the best rate of the fleet.
///
/// Source: own choice: a worker of a sixth of the best rate is tried again after a minute without prompts, and one that is as slow
/// as it was then gets one request for each such pause.
const RATE_HALF_LIFE: Duration = Duration::from_secs(30);

/// Is how fast a worker is, every part known or assumed.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Speeds {
    /// Units: prompt tokens per millisecond, all sequences together.
    pub prefill_tokens_per_ms: f64,
    /// Units: milliseconds of a step that decodes only.
    pub decode_step_ms: f64,
    /// Units: answer tokens of a request.
    pub answer_tokens: f64,
}

impl Speeds {
    /// Returns what a worker has measured, and where it has not yet, what is assumed.
    pub fn measured_or(rates: &Rates, assumed: Speeds) -> Self {
        Self {
            prefill_tokens_per_ms: rates
                .prefill_tokens_per_s
                .map_or(assumed.prefill_tokens_per_ms, |rate| f64::from(rate) / 1000.0),
            decode_step_ms: rates.decode_step_ms.map_or(assumed.decode_step_ms, f64::from),
            answer_tokens: rates.answer_tokens.map_or(assumed.answer_tokens, f64::from),
        }
    }

    /// Returns the same where the prefill rate was measured so long ago: the older, the nearer to what is assumed.
    ///
    /// A rate that a burst has left behind says little of an idle worker, which would never measure another one.
    pub fn faded(self, assumed: Speeds, age: Duration) -> Self {
        let half_lives = age.saturating_sub(RATE_FRESH).as_secs_f64() / RATE_HALF_LIFE.as_secs_f64();
        let faded = 1.0 - 0.5_f64.powf(half_lives);
        let lacking = assumed.prefill_tokens_per_ms - self.prefill_tokens_per_ms;
        Self { prefill_tokens_per_ms: self.prefill_tokens_per_ms + faded * lacking, ..self }
    }

    /// Returns what to assume of a worker that has measured nothing: the best that any of `fleet` has measured.
    ///
    /// Hope, so that a worker that has just joined a fast fleet is tried, and measures.
    pub fn assumed<'a>(fleet: impl Iterator<Item = &'a Rates>) -> Self {
        let mut best = [None::<f32>; 3];
        for rates in fleet {
            best[0] = rates.prefill_tokens_per_s.into_iter().chain(best[0]).reduce(f32::max);
            best[1] = rates.decode_step_ms.into_iter().chain(best[1]).reduce(f32::min);
            best[2] = rates.answer_tokens.into_iter().chain(best[2]).reduce(f32::min);
        }
        let best = Rates { prefill_tokens_per_s: best[0], decode_step_ms: best[1], answer_tokens: best[2] };
        Self::measured_or(&best, SPEEDS_DEFAULT)
    }
}

/// Is what the router has sent to a worker and the worker has not yet counted in its load.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Unreported {
    /// Is the number of requests.
    pub n_requests: u32,
    /// Is their uncached prompt tokens.
    pub prefill_tokens: u64,
}

/// Is how busy and how fast a worker is.
#[derive(Debug, Clone, Copy)]
pub struct WorkerLoad<'a> {
    /// Is what it reported.
    pub load: &'a Load,
    /// Is what it has not reported yet.
    pub unreported: Unreported,
    /// Is the number of its slots.
    pub n_slots: u16,
    /// Is how fast it is.
    pub speeds: Speeds,
}

/// Is what a request would ask of a worker.
#[derive(Debug, Clone, Copy)]
pub struct PrefillWork {
    /// Is the prompt's length. Units: tokens.
    pub prompt_tokens: u32,
    /// Is how much of it the worker is expected to reuse. Units: tokens.
    pub cached_tokens: u32,
    /// Says where the reused part lies.
    pub tier: Tier,
}

impl PrefillWork {
    /// Returns how much of the prompt has to be computed.
    pub fn uncached_tokens(self) -> f64 {
        f64::from(self.prompt_tokens.saturating_sub(self.cached_tokens))
    }
}

/// Is what uncached work costs others at a worker.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct PressureInputs {
    /// Is the number of requests whose prompts are computed at a worker at a time: the fleet's mean, bounded by this worker's own.
    pub crowd: f64,
    /// Is by how many of them this worker has more now.
    pub excess: f64,
    /// Is the time that all takes which is ahead there. Units: milliseconds.
    pub ahead_ms: f64,
    /// Is the tokens of reuse that are lost with each token that is displaced.
    pub worth: f64,
    /// Is the fleet's mean prefill rate. Units: prompt tokens per millisecond.
    pub prefill_tokens_per_ms: f64,
}

/// Is what a request would cost at a worker, in its parts. Units: milliseconds.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Cost {
    /// Is the time before its prefill begins.
    pub wait_ms: f64,
    /// Is the time to bring the reused blocks.
    pub restore_ms: f64,
    /// Is the time to compute the rest of the prompt.
    pub prefill_ms: f64,
    /// Is the charge for what that takes from others.
    pub pressure_ms: f64,
    /// Is what the streams lose that it joins.
    pub slowdown_ms: f64,
    /// Is what the prompts lose that are computed there; not in the sum.
    pub interference_ms: f64,
}

impl Cost {
    /// Returns the cost of `work` at a worker that stands so, without the pressure, which depends on the whole fleet.
    pub fn of(work: PrefillWork, standing: WorkerLoad<'_>) -> Self {
        let WorkerLoad { load, speeds, .. } = standing;
        let uncached = work.uncached_tokens();
        let prefill_ms = uncached / speeds.prefill_tokens_per_ms;
        let restore_ms_per_token = match work.tier {
            Tier::Resident => 0.0,
            Tier::Ram => RESTORE_RAM_MS_PER_TOKEN,
            Tier::Disk => RESTORE_DISK_MS_PER_TOKEN,
        };
        Self {
            wait_ms: standing.prefill_wait_ms(prefill_ms) + standing.slot_wait_ms(),
            restore_ms: f64::from(work.cached_tokens) * restore_ms_per_token,
            prefill_ms,
            pressure_ms: 0.0,
            slowdown_ms: f64::from(load.n_decoding) * speeds.decode_step_ms,
            interference_ms: 0.0,
        }
    }

    /// Adds what `work` takes from others at a worker with `free_cells` to store it in.
    pub fn add_pressure(&mut self, add_pressure: PressureInputs, work: PrefillWork, free_cells: u64) {
        let uncached = work.uncached_tokens();
        let displaced = if uncached > 0.0 { (1.0 - free_cells as f64 / uncached).max(0.0) } else { 0.0 };
        let own_ms = uncached / add_pressure.prefill_tokens_per_ms;
        let weight = 1.0 + add_pressure.crowd;
        let usual = add_pressure.crowd * weight * weight + add_pressure.worth * displaced;
        self.pressure_ms = usual * own_ms + (add_pressure.excess * own_ms).min(add_pressure.ahead_ms) * weight;
    }

    /// Returns what the request itself feels until its first token.
    pub fn ttft_ms(&self) -> f64 {
        self.wait_ms + self.restore_ms + self.prefill_ms
    }

    /// Returns the sum.
    pub fn total_ms(&self) -> f64 {
        self.ttft_ms() + self.pressure_ms + self.slowdown_ms
    }

    /// Returns what is compared between workers that hold as much of the prompt.
    pub fn total_with_interference_ms(&self) -> f64 {
        self.total_ms() + self.interference_ms
    }
}

impl WorkerLoad<'_> {
    /// Returns the prompt tokens that stand before a new request. Sums of remote numbers, hence floating.
    pub fn prefill_tokens_ahead(&self) -> f64 {
        self.load.queued_prefill_tokens as f64
            + self.load.running_prefill_tokens as f64
            + self.unreported.prefill_tokens as f64
    }

    /// Returns the requests that run, wait or are on their way.
    pub fn n_requests(&self) -> u64 {
        self.load.busy_slots.len() as u64 + u64::from(self.load.n_queued) + u64::from(self.unreported.n_requests)
    }

    /// Returns the requests whose prompts are being computed or are to be.
    pub fn n_prefilling(&self) -> f64 {
        self.n_requests().saturating_sub(u64::from(self.load.n_decoding)) as f64
    }

    /// Returns when the worker can begin a request that comes now, whatever its length: what it has is computed first,
    /// unless a slot is free. What waits in its queue is all of it ahead, which the choice, that compares, need not say.
    pub fn queue_delay_ms(&self) -> f64 {
        let has_slot = self.n_requests() < u64::from(self.n_slots);
        if has_slot { 0.0 } else { self.ahead_ms() + self.slot_wait_ms() }
    }

    /// Returns the time that all which stands before a new request takes to compute.
    pub fn ahead_ms(&self) -> f64 {
        self.prefill_tokens_ahead() / self.speeds.prefill_tokens_per_ms
    }

    /// Returns what the requests ahead cost one that is computed beside them.
    fn prefill_wait_ms(&self, prefill_ms: f64) -> f64 {
        self.ahead_ms().min(WAIT_PREFILLS_PER_REQUEST_MAX * self.n_prefilling().max(1.0) * prefill_ms)
    }

    /// Returns how many requests must leave before one more gets a slot.
    fn n_before_a_slot(&self) -> f64 {
        (self.n_requests() + 1).saturating_sub(u64::from(self.n_slots.max(1))) as f64
    }

    /// Slots become free one by one, `n_slots` of them in the time of an answer.
    fn slot_wait_ms(&self) -> f64 {
        let answer_ms = self.speeds.answer_tokens * self.speeds.decode_step_ms;
        self.n_before_a_slot() * answer_ms / f64::from(self.n_slots.max(1))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use warmpath_common::ids::SlotId;

    use super::*;
    use crate::testing::idle;

    const SPEEDS: Speeds = Speeds { prefill_tokens_per_ms: 1.0, decode_step_ms: 10.0, answer_tokens: 100.0 };

    fn cost(work: PrefillWork, load: &Load, unreported: Unreported) -> Cost {
        Cost::of(work, standing(load, unreported))
    }

    fn standing(load: &Load, unreported: Unreported) -> WorkerLoad<'_> {
        WorkerLoad { load, unreported, n_slots: 4, speeds: SPEEDS }
    }

    const CHARGE: PressureInputs =
        PressureInputs { crowd: 2.0, excess: 0.0, ahead_ms: 1e6, worth: 0.5, prefill_tokens_per_ms: 1.0 };
    const COLD: PrefillWork = PrefillWork { prompt_tokens: 1000, cached_tokens: 0, tier: Tier::Resident };

    #[test]
    fn an_idle_worker_in_an_idle_fleet_costs_its_prefill() {
        let expected = Cost { prefill_ms: 1000.0, ..Cost::default() };
        assert_eq!(cost(COLD, &idle(), Unreported::default()), expected);
        assert_eq!(expected.total_ms(), 1000.0);
    }

    #[test]
    fn uncached_work_is_charged_for_whom_it_delays_and_for_what_it_displaces() {
        let charged = |free_cells| {
            let mut cost = cost(COLD, &idle(), Unreported::default());
            cost.add_pressure(CHARGE, COLD, free_cells);
            cost.pressure_ms
        };
        assert_eq!(charged(0), 18_500.0);
        assert_eq!(charged(500), 18_250.0, "half of it has room");
        assert_eq!(charged(5000), 18_000.0);
        let mut nothing = Cost::default();
        nothing.add_pressure(CHARGE, PrefillWork { cached_tokens: 1000, ..COLD }, 0);
        assert_eq!(nothing.pressure_ms, 0.0);
    }

    #[test]
    fn a_worker_with_more_prompts_than_others_is_charged_more_and_a_slow_one_is_not() {
        let charged = |excess, ahead_ms, prefill_ms| {
            let mut cost = Cost { prefill_ms, ..Cost::default() };
            cost.add_pressure(PressureInputs { excess, ahead_ms, ..CHARGE }, COLD, 5000);
            cost.pressure_ms
        };
        assert_eq!(charged(0.0, 1e6, 1000.0), 18_000.0);
        assert_eq!(charged(2.0, 1e6, 1000.0), 24_000.0);
        assert_eq!(charged(2.0, 700.0, 1000.0), 20_100.0, "no more can be delayed than is there");
        assert_eq!(charged(0.0, 1e6, 3000.0), 18_000.0);
    }

    #[test]
    fn what_is_ahead_costs_no_more_than_three_of_the_requests_own_prefills_for_each() {
        let busy = Load { running_prefill_tokens: 60_000, busy_slots: vec![SlotId(0), SlotId(1)], ..idle() };
        assert_eq!(cost(COLD, &busy, Unreported::default()).wait_ms, 6000.0);
        let hit = PrefillWork { cached_tokens: 900, ..COLD };
        assert_eq!(cost(hit, &busy, Unreported::default()).wait_ms, 600.0);
        let little = Load { running_prefill_tokens: 150, ..busy };
        assert_eq!(cost(COLD, &little, Unreported::default()).wait_ms, 150.0);
    }

    #[test]
    fn what_is_cached_is_not_computed_but_restored() {
        let work = |tier| PrefillWork { cached_tokens: 800, tier, ..COLD };
        let of = |tier| cost(work(tier), &idle(), Unreported::default());
        assert_eq!(of(Tier::Resident).prefill_ms, 200.0);
        assert_eq!(of(Tier::Resident).restore_ms, 0.0);
        assert!(of(Tier::Ram).restore_ms > 0.0);
        assert!(of(Tier::Disk).restore_ms > of(Tier::Ram).restore_ms);
        assert!(of(Tier::Disk).total_ms() < of(Tier::Resident).total_ms() + 200.0, "disk still beats computing");
    }

    #[test]
    fn what_was_sent_but_not_reported_waits_as_what_is_queued() {
        let queued = Load { queued_prefill_tokens: 300, n_queued: 1, ..idle() };
        let unreported = Unreported { n_requests: 1, prefill_tokens: 300 };
        assert_eq!(cost(COLD, &queued, Unreported::default()), cost(COLD, &idle(), unreported));
        assert_eq!(cost(COLD, &idle(), unreported).wait_ms, 300.0);
    }

    #[test]
    fn without_a_free_slot_it_waits_for_one() {
        let busy = |n: u16| Load { busy_slots: (0..n).map(SlotId).collect(), n_decoding: u32::from(n), ..idle() };
        assert_eq!(cost(COLD, &busy(3), Unreported::default()).wait_ms, 0.0);
        assert_eq!(cost(COLD, &busy(4), Unreported::default()).wait_ms, 250.0, "a quarter of an answer of 1 s");
        let one_ahead = Load { n_queued: 1, ..busy(4) };
        assert_eq!(cost(COLD, &one_ahead, Unreported::default()).wait_ms, 500.0);
        assert_eq!(cost(COLD, &busy(4), Unreported::default()).slowdown_ms, 40.0);
    }

    #[test]
    fn a_full_worker_begins_after_all_that_it_has_and_the_choice_counts_a_part_of_that() {
        let full =
            Load { running_prefill_tokens: 60_000, n_queued: 1, busy_slots: (0..4).map(SlotId).collect(), ..idle() };
        assert_eq!(standing(&full, Unreported::default()).queue_delay_ms(), 60_500.0);
        let hit = PrefillWork { cached_tokens: 900, ..COLD };
        assert_eq!(cost(hit, &full, Unreported::default()).wait_ms, 2000.0, "five beside it and two slots");
        let sent = Unreported { n_requests: 3, prefill_tokens: 5000 };
        assert_eq!(standing(&idle(), sent).queue_delay_ms(), 0.0);
        let one_more = Unreported { n_requests: 4, ..sent };
        assert_eq!(standing(&idle(), one_more).queue_delay_ms(), 5250.0);
    }

    #[test]
    fn numbers_beyond_reason_do_not_overflow() {
        let load =
            Load { queued_prefill_tokens: u64::MAX, running_prefill_tokens: u64::MAX, n_queued: u32::MAX, ..idle() };
        let unreported = Unreported { n_requests: u32::MAX, prefill_tokens: u64::MAX };
        assert!(cost(COLD, &load, unreported).total_ms().is_finite());
    }

    #[test]
    fn the_unmeasured_is_taken_for_as_fast_as_the_best() {
        let rates = |rate| Rates { prefill_tokens_per_s: rate, decode_step_ms: None, answer_tokens: Some(10.0) };
        let fleet = [rates(Some(500.0)), rates(None), rates(Some(4000.0))];
        let assumed = Speeds::assumed(fleet.iter());
        assert_eq!(
            Speeds::measured_or(&Rates::default(), assumed),
            Speeds { prefill_tokens_per_ms: 4.0, decode_step_ms: 30.0, answer_tokens: 10.0 }
        );
        assert_eq!(Speeds::measured_or(&fleet[0], assumed).prefill_tokens_per_ms, 0.5);
        assert_eq!(Speeds::assumed([].iter()), SPEEDS_DEFAULT);
    }

    proptest! {
        #[test]
        fn an_old_rate_fades_towards_the_best_and_a_fresh_one_does_not(
            own in 0.01f64..10.0,
            more in 0.0f64..10.0,
            ages in [0u64..1_000_000, 0u64..1_000_000],
        ) {
            let speeds = |prefill_tokens_per_ms| Speeds { prefill_tokens_per_ms, ..SPEEDS_DEFAULT };
            let best = own + more;
            let at = |age| speeds(own).faded(speeds(best), Duration::from_millis(age)).prefill_tokens_per_ms;
            let [earlier, later] = [ages[0].min(ages[1]), ages[0].max(ages[1])].map(at);
            prop_assert!(own <= earlier && earlier <= later && later <= best + 1e-9);
            prop_assert_eq!(at(30_000), own);
            prop_assert!((at(60_000) - (own + best) / 2.0).abs() < 1e-9);
            prop_assert!(best - at(1_000_000) < 1e-6);
        }
    }
}
