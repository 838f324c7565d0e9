//! The next batch: the number of tokens that each sequence computes.
//!
//! `adapter_schedule` chooses the sequences, `decode_groups` determines which shares go through the model together,
//! `micro_batches` splits the batch, and the shell decodes it.
//!
//! Between two tokens of a stream, at most one micro-batch of prompts is computed, whatever their lengths.
//!
//! - If prompts and single tokens go through the model in one pass, every batch has one token of each stream, and
//!   prompts get the remaining space.
//! - If they go in separate passes, batches of prompts and batches of streams alternate. In a common batch, a prompt
//!   that ends would have to wait for the streams' pass, because a batch returns its results only at its end. A
//!   batch of prompts has the prompts that end within a micro-batch, or one micro-batch of a longer prompt
//!   (docs/decisions/0039-what-goes-together.md).
//!
//! Prompts are computed one after the other, by priority. The priority is the time that a prompt has waited plus the
//! time of an average prompt, divided by its remaining tokens. So a short prompt overtakes a long one, which loses less
//! by waiting. The priority grows with the wait, so long prompts get their turn, too. A prompt that ends in a batch
//! gets its first token at the end of that batch. Another prompt in the batch delays that first token, but saves every
//! waiting prompt the fixed time of a batch. So it joins only if it saves more time than it costs.
//!
//! Source: van Mieghem, "Dynamic scheduling with convex delay costs: the generalized c-mu rule" (1995): if a wait t
//! costs t^2 / 2 + ut, serving the largest (t + u) / work left costs least under heavy load. Without u, a new short
//! prompt would have to wait first; docs/decisions/0036-batch-plan.md has the alternatives that were measured.

use std::cmp::Ordering;
use std::time::Duration;

use warmpath_common::ids::SlotId;

/// A running sequence, with the properties on which a batch depends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RunningSequence {
    /// Slot of the sequence.
    pub slot: SlotId,
    /// Next work.
    pub work: Work,
    /// Time since the request arrived.
    pub waited: Duration,
    /// Prompt tokens of other sequences for which it has waited since its last token ([`passed_tokens`]); unused for a
    /// prompt.
    pub passed_tokens: u32,
}

/// Next work of a sequence.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Work {
    /// The token that was chosen last.
    Decode,
    /// Its prompt, up to the end or to a position at which the shell must act.
    Prefill {
        /// Number of prompt tokens to compute, at least 1.
        n_tokens: u32,
        /// Whether the prompt ends there; otherwise it continues in later pieces.
        ends: bool,
    },
}

/// Limits of a batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BatchLimits {
    /// Maximum number of tokens of a batch, which is computed in micro-batches.
    pub batch_tokens: u32,
    /// Maximum number of tokens of a micro-batch, and of a batch while any sequence decodes; more than the slots.
    pub ubatch_tokens: u32,
    /// Passes of prompts and single tokens through the model.
    pub passes: Passes,
}

/// Passes of the prompts and single tokens of one batch through the model.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Passes {
    /// In one pass, if slots share their cells.
    Together,
    /// In separate passes, if every slot has its own cells: see [`crate::batches::decode_groups`].
    Apart,
}

/// Measured speed of this worker; values without a measurement are zero.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct BatchTiming {
    /// Time to compute a prompt of average length.
    pub usual_prompt: Duration,
    /// Fixed time of each batch.
    pub batch: Duration,
    /// Additional time of each token of a batch.
    pub token: Duration,
}

/// One sequence's part of a batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Share {
    /// Slot of the sequence.
    pub slot: SlotId,
    /// Number of the sequence's next tokens to compute.
    pub n_tokens: u32,
}

/// Returns the shares of the next batch in the order of their slots.
///
/// A share needs logits only for its last token, and only if it reaches the end of its sequence's known tokens.
/// `n_queued` is the number of requests that wait for a slot.
pub fn plan(pending: &[RunningSequence], room: BatchLimits, timing: BatchTiming, n_queued: usize) -> Vec<Share> {
    let streams = pending.iter().filter(|sequence| sequence.work == Work::Decode);
    let mut prompts: Vec<PromptRest> =
        pending.iter().filter_map(|sequence| PromptRest::of(sequence, timing.usual_prompt)).collect();
    prompts.sort_unstable_by(PromptRest::by_claim);
    let n_waiting = prompts.len() + n_queued;
    // With streams, a prompt is computed either before them or in what their pass has left.
    let is_apart = room.passes == Passes::Apart;
    let (mut shares, tokens_max) = match streams.clone().map(|stream| stream.passed_tokens).max() {
        None => (Vec::new(), room.batch_tokens),
        Some(n_passed)
            if is_apart && prompts.first().is_some_and(|prompt| prompt.passes(n_passed, room.ubatch_tokens)) =>
        {
            (Vec::new(), room.ubatch_tokens - n_passed)
        }
        Some(_) => {
            prompts.retain(|prompt| !is_apart || prompt.share.n_tokens == 1);
            let shares: Vec<Share> = streams.map(|stream| Share { slot: stream.slot, n_tokens: 1 }).collect();
            let tokens_max = room.ubatch_tokens.saturating_sub(u32::try_from(shares.len()).unwrap_or(u32::MAX));
            (shares, tokens_max)
        }
    };
    shares.extend(begin(&prompts, tokens_max, timing, n_waiting));
    shares.sort_unstable_by_key(|share| share.slot);
    shares
}

/// Returns the number of a micro-batch's prompt tokens for which a stream waits, whatever its adapter.
///
/// In separate passes, prompt tokens beside streams are single ones in the streams' own pass, and do not count.
/// Otherwise the streams of two adapters could always have waited for each other's single tokens, and longer prompts
/// would never get a turn.
pub fn passed_tokens(passes: Passes, n_prefill: u32, n_decode: u32) -> u32 {
    if passes == Passes::Apart && n_decode > 0 { 0 } else { n_prefill }
}

/// Returns the shares of the prompts that are computed together within `tokens_max` tokens; `prompts` are ordered by
/// priority.
fn begin(prompts: &[PromptRest], mut tokens_max: u32, timing: BatchTiming, mut n_waiting: usize) -> Vec<Share> {
    let (mut shares, mut n_ending) = (Vec::new(), 0);
    for PromptRest { share, ends, .. } in prompts {
        let n_tokens = share.n_tokens.min(tokens_max);
        if n_tokens == 0 || !pays(timing, n_tokens, n_ending, n_waiting) {
            break;
        }
        tokens_max -= n_tokens;
        n_ending += usize::from(*ends && n_tokens == share.n_tokens);
        n_waiting -= 1;
        shares.push(Share { n_tokens, ..*share });
    }
    shares
}

/// Returns whether `n_tokens` of another prompt delay the prompts that end in this batch by less than they save the
/// waiting ones.
fn pays(timing: BatchTiming, n_tokens: u32, n_ending: usize, n_waiting: usize) -> bool {
    let costs = timing.token.as_nanos() * u128::from(n_tokens) * n_ending as u128;
    costs <= timing.batch.as_nanos() * n_waiting as u128
}

/// A prompt with its remaining tokens.
pub(crate) struct PromptRest {
    /// Slot of the prompt, and its remaining tokens.
    pub(crate) share: Share,
    ends: bool,
    /// Time that it has waited, plus the time of an average prompt.
    time: Duration,
}

impl PromptRest {
    /// Returns the rest of a prompt; `None` for a stream.
    pub(crate) fn of(sequence: &RunningSequence, usual: Duration) -> Option<Self> {
        let Work::Prefill { n_tokens, ends } = sequence.work else { return None };
        let share = Share { slot: sequence.slot, n_tokens };
        Some(Self { share, ends, time: sequence.waited.saturating_add(usual) })
    }

    /// Returns whether the prompt is computed before the streams: it is the first one since their last token, or it
    /// ends within the same micro-batch. `n_passed` is the number of prompt tokens for which a stream has waited since
    /// that token ([`passed_tokens`]). A prompt of a single token is computed with the streams.
    fn passes(&self, n_passed: u32, ubatch_tokens: u32) -> bool {
        let n_tokens = self.share.n_tokens;
        n_tokens > 1 && (n_passed == 0 || self.ends && n_passed.saturating_add(n_tokens) <= ubatch_tokens)
    }

    /// Orders by the waiting time per remaining token, longest first. Ties: the shortest prompt, then the lowest slot.
    pub(crate) fn by_claim(&self, other: &Self) -> Ordering {
        // Cross-multiplied, so that there is no rounding.
        let claim = self.time.as_nanos().saturating_mul(u128::from(other.share.n_tokens));
        let others = other.time.as_nanos().saturating_mul(u128::from(self.share.n_tokens));
        others
            .cmp(&claim)
            .then_with(|| (self.share.n_tokens, self.share.slot).cmp(&(other.share.n_tokens, other.share.slot)))
    }
}

#[cfg(test)]
mod tests;
