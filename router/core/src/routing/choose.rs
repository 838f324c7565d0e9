//! The choice: which of the candidates gets the request, and why.
//!
//! Which workers are candidates is decided in `ledger`, their costs in `cost`. The cheapest worker sets how much of the
//! prompt must be cached at the chosen one. Between workers that hold about that much no hit is lost, so costs that
//! differ by little tie. Ties go to the worker with the least recent work from all routers, which spreads work and new
//! state; then to the one that can start first; then to the one with the most free cells; then by a hash of the
//! prompt's first new block. So if all workers are equal, all routers send prompts with the same new prefix to the same
//! worker, and prompts with different ones to several. The same inputs always give the same choice.

use std::cmp::Reverse;
use std::fmt;
use std::ops::Range;
use std::str::FromStr;
use std::time::Instant;

use warmpath_common::block_hash::BlockKey;
use warmpath_common::mix::mix;

use crate::WorkerIdx;
use crate::fleet::WorkerView;
use crate::index::Match;
use crate::routing::cost::{Cost, FleetMeans, PrefillWork, Speeds, Unreported, WorkerLoad, concurrency};
use crate::routing::transfer::{Transfer, TransferGap, TransferPeer};

/// Difference in cost up to which workers are always equal, as a part of the cheapest worker's time to first token. The
/// cost itself is no measure: its pressure is many times larger, so waits that differ by seconds would tie. Also the
/// difference in uncached tokens up to which workers count as holding the same part of a prompt: all chats of a model
/// start with the same tokens, which a new worker lacks.
///
/// Source: own choice: prefill rates of one machine differ by a few percent from one request to the next.
const NEARLY_EQUAL: f64 = 0.05;

/// Rule by which a worker is chosen.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Policy {
    /// By the cost: the predicted time to first token and the time that other requests lose.
    #[default]
    PredictedTtft,
    /// The least queued work.
    LeastLoaded,
    /// Each worker in turn.
    RoundRobin,
}

impl Policy {
    /// All policies.
    pub const ALL: [Self; 3] = [Self::PredictedTtft, Self::LeastLoaded, Self::RoundRobin];

    /// Returns the policy's name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::PredictedTtft => "predicted-ttft",
            Self::LeastLoaded => "least-loaded",
            Self::RoundRobin => "round-robin",
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
        let names = || Self::ALL.map(Self::name).join(", ");
        Self::ALL
            .into_iter()
            .find(|policy| policy.name() == name)
            .ok_or_else(|| format!("no policy is called `{name}`; the policies are {}", names()))
    }
}

/// Reason why a worker was chosen; its text is the value of `x-warmpath-route`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ChoiceReason {
    /// No other worker was available.
    Only,
    /// The worker holds the longest prefix of the prompt.
    Prefix,
    /// The worker is ready first, although another one holds more, or the prompt is not tokenized.
    Load,
    /// The worker is ready first with state that it fetches from another one.
    Transfer,
    /// No worker has any of the prompt cached.
    Cold,
    /// The policy does not compare prefixes and load together.
    Policy(Policy),
    /// Another worker was tried first and failed.
    Retry,
}

impl fmt::Display for ChoiceReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Only => f.write_str("only"),
            Self::Prefix => f.write_str("prefix"),
            Self::Load => f.write_str("load"),
            Self::Transfer => f.write_str("transfer"),
            Self::Cold => f.write_str("cold"),
            Self::Policy(policy) => write!(f, "policy:{policy}"),
            Self::Retry => f.write_str("retry"),
        }
    }
}

/// A prompt, as far as it is known.
#[derive(Debug, Clone, Copy)]
pub enum PromptView<'a> {
    /// Tokenized and hashed.
    Known {
        /// Length. Units: tokens.
        n_tokens: u32,
        /// Keys of its full blocks.
        keys: &'a [BlockKey],
        /// Cached prefixes at the workers.
        matches: &'a [Match],
        /// Places of its media tokens, in their order.
        media: &'a [Range<u32>],
    },
    /// Not tokenized here.
    Estimated {
        /// Estimated length. Units: tokens.
        n_tokens: u32,
    },
}

impl<'a> PromptView<'a> {
    /// Returns the prompt with other matches, if there are any.
    pub fn with_matches(self, others: Option<&'a [Match]>) -> Self {
        match (self, others) {
            (Self::Known { n_tokens, keys, media, .. }, Some(matches)) => {
                Self::Known { n_tokens, keys, matches, media }
            }
            (same, _) => same,
        }
    }

    /// Returns the prompt's length. Units: tokens.
    pub fn n_tokens(&self) -> u32 {
        match *self {
            Self::Known { n_tokens, .. } | Self::Estimated { n_tokens } => n_tokens,
        }
    }

    /// Returns the key of the first block that no worker holds, or of the last block. Prompts with the same new prefix
    /// have the same key.
    pub fn first_new_block(&self) -> u64 {
        let Self::Known { keys, matches, .. } = self else { return 0 };
        let n_held = matches.iter().map(|prefix_match| prefix_match.blocks).max().unwrap_or(0);
        keys.get(n_held as usize).or(keys.last()).map_or(0, |key| key.0)
    }

    /// Returns the tokens of the media that are not within its first tokens as a whole.
    fn media_tokens_behind(&self, n_tokens: u32) -> u32 {
        let Self::Known { media, .. } = self else { return 0 };
        // No medium is resumed within.
        let behind = media.iter().filter(|medium| medium.end > n_tokens);
        behind.map(|medium| medium.end.saturating_sub(medium.start)).fold(0, u32::saturating_add)
    }

    /// Returns the keys of its full blocks; none if it is not tokenized.
    pub fn keys(&self) -> &[BlockKey] {
        match *self {
            Self::Known { keys, .. } => keys,
            Self::Estimated { .. } => &[],
        }
    }
}

/// A worker that could take the request, with the cost there.
#[derive(Debug, Clone, Copy)]
pub struct Candidate<'a> {
    /// Worker.
    pub worker: &'a WorkerView,
    /// Cached prefix of the prompt.
    pub found: Option<Match>,
    /// Number of its blocks that would be reused.
    pub cached_blocks: u32,
    /// State that the worker would fetch from another one; `None` if it would compute the rest.
    pub transfer: Option<Transfer>,
    /// Prompt tokens: cached, fetched and computed.
    pub work: PrefillWork,
    /// Cost there.
    pub cost: Cost,
    /// Load of the worker, with what it has not reported yet.
    pub load: WorkerLoad<'a>,
    /// Prompt tokens that the worker got to compute recently; set by the caller of [`Candidate::score`].
    pub recent_tokens: f64,
}

impl<'a> Candidate<'a> {
    /// Returns the candidate with the cost of the request at `worker`.
    ///
    /// At least one prompt token is always computed, for its logits: a prompt that is cached to its end counts as
    /// cached up to the block before. `block_size_tokens` is the block size by which the prompt is hashed.
    pub fn score(worker: &'a WorkerView, prompt: PromptView<'_>, block_size_tokens: u32, load: WorkerLoad<'a>) -> Self {
        let n_tokens = prompt.n_tokens();
        let prefix_match = match prompt {
            PromptView::Known { matches, .. } => {
                matches.iter().copied().find(|prefix_match| prefix_match.worker == worker.idx)
            }
            PromptView::Estimated { .. } => None,
        };
        let blocks_max = n_tokens.saturating_sub(1) / block_size_tokens.max(1);
        let cached_blocks = prefix_match.map_or(0, |prefix_match| prefix_match.blocks.min(blocks_max));
        let cached_tokens = cached_blocks * block_size_tokens;
        let encoded_tokens = prompt.media_tokens_behind(cached_tokens);
        let work = PrefillWork { prompt_tokens: n_tokens, cached_tokens, fetched_tokens: 0, encoded_tokens };
        let cost = Cost::of(work, load);
        Self { worker, found: prefix_match, cached_blocks, transfer: None, work, cost, load, recent_tokens: 0.0 }
    }

    /// Returns the candidate with the transfer that saves it most time, if one does.
    pub(crate) fn with_transfer(
        self,
        prompt: PromptView<'_>,
        block_size_tokens: u32,
        peers: &[TransferPeer],
        bytes_per_ms: impl Fn(WorkerIdx) -> f64,
    ) -> Self {
        let gap = TransferGap {
            own_blocks: self.cached_blocks,
            blocks_max: self.work.prompt_tokens.saturating_sub(1) / block_size_tokens.max(1),
            block_size_tokens,
            prefill_tokens_per_ms: self.load.speeds.prefill_tokens_per_ms,
        };
        let Some(transfer) = Transfer::best(self.worker, gap, peers, bytes_per_ms) else { return self };
        let fetched_tokens = (transfer.blocks - self.cached_blocks) * block_size_tokens;
        let encoded_tokens = prompt.media_tokens_behind(self.work.cached_tokens + fetched_tokens);
        let work = PrefillWork { fetched_tokens, encoded_tokens, ..self.work };
        let cost = Cost { transfer_ms: transfer.ms, ..Cost::of(work, self.load) };
        Self { transfer: Some(transfer), work, cost, ..self }
    }

    /// Returns the sort key of ties: recent tokens, then queue delay, then free cells, then a hash.
    fn tie_break(&self, ties: TieBreak) -> (u64, u64, Reverse<u64>, u64) {
        let jitter = mix(ties.first_new_block ^ self.worker.uid.map_or(u64::from(self.worker.idx.0), |uid| uid.0));
        (self.recent_tokens as u64, self.load.queue_delay_ms() as u64, Reverse(self.worker.load.free_cells), jitter)
    }
}

/// Adds to the cost of every candidate the time that other requests lose there.
///
/// `reuse_ratio` is the tokens reused in this fleet for each token computed.
pub fn add_pressure(candidates: &mut [Candidate<'_>], reuse_ratio: f64) {
    let fleet = FleetMeans::of(candidates.iter().map(|candidate| &candidate.load), reuse_ratio);
    for Candidate { cost, work, load, .. } in candidates {
        cost.add_pressure(*work, load, &fleet);
    }
}

/// Inputs of the choice between workers of equal cost.
#[derive(Debug, Clone, Copy)]
pub struct TieBreak {
    /// Worker that was chosen last.
    pub last: Option<WorkerIdx>,
    /// Key of the new part of the prompt: see [`PromptView::first_new_block`].
    pub first_new_block: u64,
}

/// Returns the candidate that gets the request.
///
/// Shape: `candidates` `[n]` -> one of them; `None` if there are none.
pub fn choose<'c, 'a>(policy: Policy, candidates: &'c [Candidate<'a>], ties: TieBreak) -> Option<&'c Candidate<'a>> {
    match policy {
        Policy::PredictedTtft => cheapest(candidates, ties),
        Policy::LeastLoaded => least_loaded(candidates, ties),
        Policy::RoundRobin => {
            let next = candidates.iter().filter(|c| Some(c.worker.idx) > ties.last).min_by_key(|c| c.worker.idx);
            next.or_else(|| candidates.iter().min_by_key(|c| c.worker.idx))
        }
    }
}

/// Returns the candidate with the lowest cost.
pub(crate) fn of_least_cost<'c, 'a>(candidates: &'c [Candidate<'a>]) -> Option<&'c Candidate<'a>> {
    candidates.iter().min_by(|a, b| a.cost.total_ms().total_cmp(&b.cost.total_ms()))
}

/// Returns the candidate with the least recent work among those that tie with the cheapest in cost and cached part.
///
/// A slower worker stays slower, so the difference in prefill time counts twice.
fn cheapest<'c, 'a>(candidates: &'c [Candidate<'a>], ties: TieBreak) -> Option<&'c Candidate<'a>> {
    let best = of_least_cost(candidates)?;
    let uncached_max = (1.0 + NEARLY_EQUAL) * best.work.uncached_tokens();
    let above_ms =
        |cost: &Cost| cost.total_ms() - best.cost.total_ms() + (cost.prefill_ms - best.cost.prefill_ms).max(0.0);
    let tie_margin_ms = tie_margin_ms(&best.cost, concurrency(candidates.iter().map(|candidate| &candidate.load)));
    let is_equal = |c: &&Candidate<'_>| c.work.uncached_tokens() <= uncached_max && above_ms(&c.cost) <= tie_margin_ms;
    candidates.iter().filter(is_equal).min_by_key(|c| c.tie_break(ties))
}

/// Returns the difference in cost up to which candidates tie.
///
/// With n prompts per worker, all requests together lose (1 + n)^2 times the time that is added at a worker (see
/// `cost`). An even spread may cost them one prefill of the request in total. That is a whole prefill in an idle fleet,
/// and next to nothing in overload.
fn tie_margin_ms(cheapest: &Cost, concurrency: f64) -> f64 {
    (NEARLY_EQUAL * cheapest.ttft_ms()).max(cheapest.prefill_ms / (1.0 + concurrency).powi(2))
}

fn least_loaded<'c, 'a>(candidates: &'c [Candidate<'a>], ties: TieBreak) -> Option<&'c Candidate<'a>> {
    candidates.iter().min_by(|a, b| {
        let tokens_ahead = a.load.prefill_tokens_ahead().total_cmp(&b.load.prefill_tokens_ahead());
        tokens_ahead
            .then_with(|| a.load.n_requests().cmp(&b.load.n_requests()))
            .then_with(|| a.tie_break(ties).cmp(&b.tie_break(ties)))
    })
}

/// Returns the reason why `winner` was chosen among `candidates`.
pub fn reason(
    policy: Policy,
    candidates: &[Candidate<'_>],
    winner: &Candidate<'_>,
    prompt: PromptView<'_>,
) -> ChoiceReason {
    if candidates.len() == 1 {
        return ChoiceReason::Only;
    }
    if policy != Policy::PredictedTtft {
        return ChoiceReason::Policy(policy);
    }
    let longest = candidates.iter().map(|candidate| candidate.cached_blocks).max().unwrap_or(0);
    match prompt {
        PromptView::Estimated { .. } => ChoiceReason::Load,
        PromptView::Known { .. } if winner.transfer.is_some() => ChoiceReason::Transfer,
        PromptView::Known { .. } if longest == 0 => ChoiceReason::Cold,
        PromptView::Known { .. } if winner.cached_blocks == longest => ChoiceReason::Prefix,
        PromptView::Known { .. } => ChoiceReason::Load,
    }
}

/// Returns the load of `worker` for [`Candidate::score`], with `assumed_speeds` in place of those that it has not
/// measured recently.
pub(crate) fn worker_load(
    worker: &WorkerView,
    unreported_work: Unreported,
    assumed_speeds: Speeds,
    now: Instant,
) -> WorkerLoad<'_> {
    let age = now.saturating_duration_since(worker.measured_at);
    WorkerLoad {
        load: &worker.load,
        unreported: unreported_work,
        n_slots: worker.model.as_ref().map_or(1, |model| model.n_slots),
        speeds: Speeds::measured_or(&worker.load.rates, assumed_speeds).faded(assumed_speeds, age),
    }
}

#[cfg(test)]
mod tests;
