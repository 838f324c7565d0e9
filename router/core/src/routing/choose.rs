//! The choice: candidates in, one of them out, with the reason.
//!
//! Not here: who is a candidate and what was sent before (`ledger`), what a request costs (`cost`).
//! The idea: the smallest cost says how much of the prompt has to be held. Between the workers that hold nearly that much no hit
//! is lost, so what those lose that are computed there counts as well, and costs that differ by little are equal.
//! Of equals the worker wins that was given the least to compute of late, by any router, which spreads work and new state; then the one that
//! begins soonest, then the one with the most free cells, then one by lot, which hangs on what is new of the prompt: routers that
//! see all workers equal send what begins alike to one, and what does not to several. The same inputs always give the same choice.

use std::cmp::Reverse;
use std::fmt;
use std::str::FromStr;
use std::time::Instant;

use rand::{Rng, RngExt};
use warmpath_common::block_hash::BlockKey;
use warmpath_common::mix::mix;

use crate::WorkerIdx;
use crate::fleet::WorkerView;
use crate::index::Match;
use crate::routing::cost::{Cost, PrefillWork, PressureInputs, Speeds, WorkerLoad};
use warmpath_common::summary::Tier;

/// Is how much dearer than the cheapest a worker may be and still count as equal whatever goes on, as a part of the cheapest's
/// time to first token. Not of its cost: the charge is many times that, and would make seconds of waiting equal. It is also how
/// much more of a prompt may have to be computed: all chats of a model begin alike, and a new worker lacks that.
///
/// Source: own choice: prefill rates of one machine differ by a few percent from one request to the next.
const NEARLY_EQUAL: f64 = 0.05;

/// Is how many times the prompts of a worker, with the request that is weighed, may count there as the crowd.
///
/// Source: docs/decisions/0007-routing-cost.md: by simulation; with 1 + 2 n a worker that is idle for a moment costs conversations their hits,
/// with 3 (1 + n) and more an idle one gets too little while others have a line.
const CONCURRENCY_MULTIPLE_MAX: f64 = 2.0;

/// Says by what a worker is chosen.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Policy {
    /// By the cost: the predicted time to first token and what it takes from others.
    #[default]
    PredictedTtft,
    /// By the longest cached prefix, then by load.
    Prefix,
    /// By the least work ahead.
    LeastLoaded,
    /// In turn.
    RoundRobin,
    /// At random.
    Random,
    /// By the conversation: the same one always goes to the same worker, as long as that is there.
    ConsistentHash,
}

impl Policy {
    /// Lists every policy.
    pub const ALL: [Self; 6] =
        [Self::PredictedTtft, Self::Prefix, Self::LeastLoaded, Self::RoundRobin, Self::Random, Self::ConsistentHash];

    /// Returns the policy's name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::PredictedTtft => "predicted-ttft",
            Self::Prefix => "prefix",
            Self::LeastLoaded => "least-loaded",
            Self::RoundRobin => "round-robin",
            Self::Random => "random",
            Self::ConsistentHash => "consistent-hash",
        }
    }
}

impl fmt::Display for Policy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Policy {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        let known = || Self::ALL.map(Self::name).join(", ");
        Self::ALL
            .into_iter()
            .find(|policy| policy.name() == name)
            .ok_or_else(|| format!("no policy is called `{name}`; there is {}", known()))
    }
}

/// Says why a worker was chosen; its text is the value of `x-warmpath-route`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Reason {
    /// There was no other.
    Only,
    /// It holds the longest prefix of the prompt.
    Prefix,
    /// It is the soonest ready, although another holds more, or because the prompt is not known.
    Load,
    /// No worker holds any of the prompt.
    Cold,
    /// The policy in force does not look at prefixes and load together.
    Policy(Policy),
    /// Another worker was tried first and failed.
    Retry,
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Only => f.write_str("only"),
            Self::Prefix => f.write_str("prefix"),
            Self::Load => f.write_str("load"),
            Self::Cold => f.write_str("cold"),
            Self::Policy(policy) => write!(f, "policy:{policy}"),
            Self::Retry => f.write_str("retry"),
        }
    }
}

/// Is what is known of a prompt.
#[derive(Debug, Clone, Copy)]
pub enum PromptView<'a> {
    /// It was tokenized and hashed.
    Known {
        /// Is its length. Units: tokens.
        n_tokens: u32,
        /// Lists the keys of its full blocks.
        keys: &'a [BlockKey],
        /// Is what the workers hold of it.
        matches: &'a [Match],
    },
    /// It could not be tokenized here.
    Estimated {
        /// Is its guessed length. Units: tokens.
        n_tokens: u32,
    },
}

impl<'a> PromptView<'a> {
    /// Returns the same prompt with other matches, where there are any.
    pub fn with_matches(self, others: Option<&'a [Match]>) -> Self {
        match (self, others) {
            (Self::Known { n_tokens, keys, .. }, Some(matches)) => Self::Known { n_tokens, keys, matches },
            (same, _) => same,
        }
    }

    /// Returns the prompt's length. Units: tokens.
    pub fn n_tokens(&self) -> u32 {
        match *self {
            Self::Known { n_tokens, .. } | Self::Estimated { n_tokens } => n_tokens,
        }
    }

    /// Returns the first block that no worker holds, or the last one: prompts with one new prefix have the same.
    pub fn first_new_block(&self) -> u64 {
        let Self::Known { keys, matches, .. } = self else { return 0 };
        let n_held = matches.iter().map(|found| found.blocks).max().unwrap_or(0);
        keys.get(n_held as usize).or(keys.last()).map_or(0, |key| key.0)
    }

    /// Returns the keys of its full blocks; none where it is not known.
    pub fn keys(&self) -> &[BlockKey] {
        match *self {
            Self::Known { keys, .. } => keys,
            Self::Estimated { .. } => &[],
        }
    }
}

/// Is a worker that could take the request, with what it would cost there.
#[derive(Debug, Clone, Copy)]
pub struct Candidate<'a> {
    /// Is the worker.
    pub worker: &'a WorkerView,
    /// Is what it holds of the prompt.
    pub found: Option<Match>,
    /// Is how many blocks of it would be reused.
    pub cached_blocks: u32,
    /// Is what is asked of it.
    pub work: PrefillWork,
    /// Is what that would cost.
    pub cost: Cost,
    /// Is how busy and how fast the worker is.
    pub(crate) standing: WorkerLoad<'a>,
    /// Is the prompt tokens that the worker was given of late; who weighs sets it. Units: tokens.
    pub given_tokens: f64,
}

impl<'a> Candidate<'a> {
    /// Returns what the request would cost at `worker`.
    ///
    /// At least one prompt token is always computed, for its logits: a prompt that is cached to its end counts as cached
    /// up to the block before. `block_size_tokens` is that by which the prompt is cut.
    pub fn score(
        worker: &'a WorkerView,
        prompt: PromptView<'_>,
        block_size_tokens: u32,
        standing: WorkerLoad<'a>,
    ) -> Self {
        let n_tokens = prompt.n_tokens();
        let found = match prompt {
            PromptView::Known { matches, .. } => matches.iter().copied().find(|found| found.worker == worker.idx),
            PromptView::Estimated { .. } => None,
        };
        let blocks_max = n_tokens.saturating_sub(1) / block_size_tokens.max(1);
        let cached_blocks = found.map_or(0, |found| found.blocks.min(blocks_max));
        let tier = found.map_or(Tier::Resident, |found| found.tier);
        let work = PrefillWork { prompt_tokens: n_tokens, cached_tokens: cached_blocks * block_size_tokens, tier };
        Self { worker, found, cached_blocks, work, cost: Cost::of(work, standing), standing, given_tokens: 0.0 }
    }

    /// Orders by what was given, then by when it begins, then by how little new state displaces there, then by lot.
    fn tie_break(&self, turn: TieBreak) -> (u64, u64, Reverse<u64>, u64) {
        let jitter = mix(turn.first_new_block ^ self.worker.uid.map_or(u64::from(self.worker.idx.0), |uid| uid.0));
        (self.given_tokens as u64, self.standing.queue_delay_ms() as u64, Reverse(self.worker.load.free_cells), jitter)
    }
}

/// Adds to the cost of every candidate what the request takes from others there.
///
/// `worth` is what a stored token has been worth in this fleet: see [`PressureInputs`].
pub fn add_pressure(candidates: &mut [Candidate<'_>], worth: f64) {
    let crowd = crowd(candidates);
    let sum = |part: fn(&Candidate<'_>) -> f64| candidates.iter().map(part).sum::<f64>();
    let prefill_tokens_per_ms = mean(candidates, |candidate| candidate.standing.speeds.prefill_tokens_per_ms);
    let n_prefilling = sum(|candidate| candidate.standing.n_prefilling());
    let usual_ms = sum(|candidate| candidate.standing.ahead_ms()) / n_prefilling.max(1.0);
    for candidate in candidates {
        let (ahead_ms, n_own) = (candidate.standing.ahead_ms(), candidate.standing.n_prefilling());
        let n_beside = if usual_ms > 0.0 { ahead_ms / usual_ms } else { 0.0 };
        let excess = (n_beside.min(n_own) - crowd).max(0.0);
        let crowd = crowd.min(CONCURRENCY_MULTIPLE_MAX * (1.0 + n_own));
        let add_pressure = PressureInputs { crowd, excess, ahead_ms, worth, prefill_tokens_per_ms };
        candidate.cost.add_pressure(add_pressure, candidate.work, candidate.worker.load.free_cells);
        candidate.cost.interference_ms = n_beside * candidate.cost.prefill_ms;
    }
}

/// Returns how many prompts workers have on average.
fn crowd(candidates: &[Candidate<'_>]) -> f64 {
    mean(candidates, |candidate| candidate.standing.n_prefilling())
}

fn mean(candidates: &[Candidate<'_>], part: fn(&Candidate<'_>) -> f64) -> f64 {
    candidates.iter().map(part).sum::<f64>() / candidates.len().max(1) as f64
}

/// Is what decides where cost and load do not.
#[derive(Debug, Clone, Copy)]
pub struct TieBreak {
    /// Is the worker that was chosen last.
    pub last: Option<WorkerIdx>,
    /// Names the conversation.
    pub affinity: u64,
    /// Names what is new of the prompt: see [`PromptView::first_new_block`].
    pub first_new_block: u64,
}

/// Returns the candidate that gets the request, and why.
///
/// Shape: `candidates` `[n]` -> one of them; `None` where there are none.
pub fn choose<'c, 'a>(
    policy: Policy,
    candidates: &'c [Candidate<'a>],
    turn: TieBreak,
    rng: &mut impl Rng,
) -> Option<&'c Candidate<'a>> {
    match policy {
        Policy::PredictedTtft => cheapest(candidates, turn),
        Policy::Prefix => {
            let longest = candidates.iter().map(|candidate| candidate.cached_blocks).max()?;
            least_loaded(candidates.iter().filter(|candidate| candidate.cached_blocks == longest), turn)
        }
        Policy::LeastLoaded => least_loaded(candidates.iter(), turn),
        Policy::RoundRobin => {
            let next = candidates.iter().filter(|c| Some(c.worker.idx) > turn.last).min_by_key(|c| c.worker.idx);
            next.or_else(|| candidates.iter().min_by_key(|c| c.worker.idx))
        }
        Policy::Random if candidates.is_empty() => None,
        Policy::Random => candidates.get(rng.random_range(0..candidates.len())),
        Policy::ConsistentHash => candidates.iter().max_by_key(|c| rendezvous(turn.affinity, &c.worker.name)),
    }
}

/// Returns the candidate whose cost is the smallest.
pub(crate) fn of_least_cost<'c, 'a>(candidates: &'c [Candidate<'a>]) -> Option<&'c Candidate<'a>> {
    candidates.iter().min_by(|a, b| a.cost.total_ms().total_cmp(&b.cost.total_ms()))
}

/// Returns the cheapest candidate, or the one that was given the least of those that hold as much and cost nearly the same.
///
/// That a worker is slower is no passing thing, so its own part of a difference counts twice.
fn cheapest<'c, 'a>(candidates: &'c [Candidate<'a>], turn: TieBreak) -> Option<&'c Candidate<'a>> {
    let best = of_least_cost(candidates)?;
    let uncached_max = (1.0 + NEARLY_EQUAL) * best.work.uncached_tokens();
    let holders = || candidates.iter().filter(|c| c.work.uncached_tokens() <= uncached_max);
    let first = holders()
        .min_by(|a, b| a.cost.total_with_interference_ms().total_cmp(&b.cost.total_with_interference_ms()))?
        .cost;
    let excess_ms = |cost: &Cost| {
        cost.total_with_interference_ms() - first.total_with_interference_ms()
            + (cost.prefill_ms - first.prefill_ms).max(0.0)
    };
    let tie_margin_ms = tie_margin_ms(&best.cost, crowd(candidates));
    holders().filter(|c| excess_ms(&c.cost) <= tie_margin_ms).min_by_key(|c| c.tie_break(turn))
}

/// Returns by how much costs may differ and still be equal.
///
/// Time that is lost at a worker is lost (1 + n)^2 times by all together, n their crowd (see [`crate::routing::cost`]). As much as
/// costs all of them one prefill of the request is worth an even spread: all of it in an idle fleet, nothing in overload.
fn tie_margin_ms(cheapest: &Cost, crowd: f64) -> f64 {
    (NEARLY_EQUAL * cheapest.ttft_ms()).max(cheapest.prefill_ms / (1.0 + crowd).powi(2))
}

fn least_loaded<'c, 'a: 'c>(
    candidates: impl Iterator<Item = &'c Candidate<'a>>,
    turn: TieBreak,
) -> Option<&'c Candidate<'a>> {
    candidates.min_by(|a, b| {
        let tokens_ahead = a.standing.prefill_tokens_ahead().total_cmp(&b.standing.prefill_tokens_ahead());
        tokens_ahead
            .then_with(|| a.standing.n_requests().cmp(&b.standing.n_requests()))
            .then_with(|| a.tie_break(turn).cmp(&b.tie_break(turn)))
    })
}

/// Returns the weight of a worker for a conversation: the largest wins, so a worker's loss moves only its own.
///
/// Source: Thaler and Ravishankar, "A name-based mapping scheme for rendezvous" (1996); FNV-1a.
fn rendezvous(affinity: u64, name: &str) -> u64 {
    let fnv = name.bytes().fold(0xcbf2_9ce4_8422_2325_u64 ^ affinity, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
    });
    mix(fnv)
}

/// Returns why `chosen` was chosen among `candidates`.
pub fn reason(policy: Policy, candidates: &[Candidate<'_>], chosen: &Candidate<'_>, prompt: PromptView<'_>) -> Reason {
    if candidates.len() == 1 {
        return Reason::Only;
    }
    if !matches!(policy, Policy::PredictedTtft | Policy::Prefix) {
        return Reason::Policy(policy);
    }
    let longest = candidates.iter().map(|candidate| candidate.cached_blocks).max().unwrap_or(0);
    match prompt {
        PromptView::Estimated { .. } => Reason::Load,
        PromptView::Known { .. } if longest == 0 => Reason::Cold,
        PromptView::Known { .. } if chosen.cached_blocks == longest => Reason::Prefix,
        PromptView::Known { .. } => Reason::Load,
    }
}

/// Returns the standing of `worker` for [`Candidate::score`]; of its speed `assumed` says what it has not measured of late.
pub(crate) fn standing(
    worker: &WorkerView,
    unreported: crate::routing::cost::Unreported,
    assumed: Speeds,
    now: Instant,
) -> WorkerLoad<'_> {
    let age = now.saturating_duration_since(worker.measured_at);
    WorkerLoad {
        load: &worker.load,
        unreported,
        n_slots: worker.model.as_ref().map_or(1, |model| model.n_slots),
        speeds: Speeds::measured_or(&worker.load.rates, assumed).faded(assumed, age),
    }
}

#[cfg(test)]
mod tests;
