//! What goes into the next batch: which sequences compute how many of their tokens.
//!
//! Not here: what of a batch goes through the model together (`runs`), its cuts (`micro_batches`), decoding it (the shell).
//! The idea: between two tokens of a stream at most one micro-batch of prompts is computed, however long they are.
//!
//! - Where prompts and single tokens go through the model in one pass, every batch has a token of each stream, and what room
//!   is left goes to prompts.
//! - Where they go in passes of their own, they take turns, for what a batch computes is known at its end: side by side, a
//!   prompt would wait for the streams' pass. First go the prompts that end within a micro-batch, or that much of a longer
//!   one, then the streams (docs/decisions/0039-what-goes-together.md).
//!
//! Prompts are computed one after the other, by their claim: the time that one has waited, and that of a usual prompt, for
//! each token that is left of it. So a short one passes a long one, because it would lose more by waiting than it costs
//! the other; but whoever waits gains on all who come later, and a long one's turn comes. A prompt that ends in a batch
//! gets its first token with the end of that batch, so another one joins it only where that saves those who still wait
//! more than it costs those who would be done: they save the fixed part of a batch's time.
//!
//! Source: van Mieghem, "Dynamic scheduling with convex delay costs: the generalized c-mu rule" (1995): where a wait t costs
//! t^2 / 2 + ut, it costs least under heavy load to serve the largest (t + u) / work left. Without u a short one that
//! comes would first have to wait; docs/decisions/0036-batch-plan.md has what was tried.

use std::cmp::Ordering;
use std::time::Duration;

use warmpath_common::ids::SlotId;

/// Is one running sequence, as far as a batch cares.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Pending {
    /// Names its slot.
    pub slot: SlotId,
    /// Says what it has to compute.
    pub work: Work,
    /// Is the time since it came.
    pub waited: Duration,
    /// Is the prompt tokens of others that were computed since its last token; not used of a prompt.
    pub passed_tokens: u32,
}

/// Says what a sequence has to compute next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Work {
    /// The token that was chosen last.
    Decode,
    /// Its prompt, to the end or to a place where something is to be done.
    Prefill {
        /// Is the prompt tokens still to be computed, at least 1.
        n_tokens: u32,
        /// Says that the prompt ends there; false has it go step by step, each a turn of its own.
        ends: bool,
    },
}

/// Is the room in a batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Room {
    /// Most tokens of a batch, which is computed in micro-batches.
    pub batch_tokens: u32,
    /// Most tokens of a micro-batch, and of a batch while anything decodes; more than there are slots.
    pub ubatch_tokens: u32,
    /// Says how prompts and single tokens go through the model.
    pub passes: Passes,
}

/// Says how the prompts and the single tokens of one batch go through the model.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Passes {
    /// In one pass, as where slots share their cells.
    Together,
    /// In a pass each, as where every slot has its own cells: see [`crate::runs`].
    Apart,
}

/// Is how fast this worker is, as far as it was measured; what was not is zero.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Pace {
    /// Is the time that a usual prompt takes to compute.
    pub usual_prompt: Duration,
    /// Is the time that each batch takes, however small it is.
    pub batch: Duration,
    /// Is the time that each token of a batch takes besides.
    pub token: Duration,
}

/// Is one sequence's part of a batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Share {
    /// Names the slot.
    pub slot: SlotId,
    /// Is the number of its next tokens to compute.
    pub n_tokens: u32,
}

/// Returns the shares of the next batch in the order of their slots.
///
/// Only a share that reaches the end of what is known of its sequence needs logits, those of its last token. `n_queued` requests
/// wait for a slot.
pub fn plan(pending: &[Pending], room: Room, pace: Pace, n_queued: usize) -> Vec<Share> {
    let streams = pending.iter().filter(|sequence| sequence.work == Work::Decode);
    let mut prompts: Vec<Prompt> =
        pending.iter().filter_map(|sequence| Prompt::of(sequence, pace.usual_prompt)).collect();
    prompts.sort_unstable_by(Prompt::by_claim);
    let n_waiting = prompts.len() + n_queued;
    let is_apart = room.passes == Passes::Apart;
    let (mut shares, left) = match streams.clone().map(|stream| stream.passed_tokens).max() {
        None => (Vec::new(), room.batch_tokens),
        Some(n_passed)
            if is_apart && prompts.first().is_some_and(|prompt| prompt.passes(n_passed, room.ubatch_tokens)) =>
        {
            (Vec::new(), room.ubatch_tokens - n_passed)
        }
        Some(_) => {
            prompts.retain(|prompt| !is_apart || prompt.share.n_tokens == 1);
            let shares: Vec<Share> = streams.map(|stream| Share { slot: stream.slot, n_tokens: 1 }).collect();
            let left = room.ubatch_tokens.saturating_sub(u32::try_from(shares.len()).unwrap_or(u32::MAX));
            (shares, left)
        }
    };
    shares.extend(begin(&prompts, left, pace, n_waiting));
    shares.sort_unstable_by_key(|share| share.slot);
    shares
}

/// Returns the shares of the prompts, which are in their order, that go into so much room together.
fn begin(prompts: &[Prompt], mut left: u32, pace: Pace, mut n_waiting: usize) -> Vec<Share> {
    let (mut shares, mut n_ending) = (Vec::new(), 0);
    for Prompt { share, ends, .. } in prompts {
        let n_tokens = share.n_tokens.min(left);
        if n_tokens == 0 || !pays(pace, n_tokens, (n_ending, n_waiting)) {
            break;
        }
        left -= n_tokens;
        n_ending += usize::from(*ends && n_tokens == share.n_tokens);
        n_waiting -= 1;
        shares.push(Share { n_tokens, ..*share });
    }
    shares
}

/// Returns whether so many tokens of another prompt cost those that end in this batch less than it saves those still waiting.
fn pays(pace: Pace, n_tokens: u32, (n_ending, n_waiting): (usize, usize)) -> bool {
    let costs = pace.token.as_nanos() * u128::from(n_tokens) * n_ending as u128;
    costs <= pace.batch.as_nanos() * n_waiting as u128
}

/// Is a prompt with what is left of it.
struct Prompt {
    share: Share,
    ends: bool,
    /// Is what it has waited, and the time of a usual prompt.
    time: Duration,
}

impl Prompt {
    fn of(sequence: &Pending, usual: Duration) -> Option<Self> {
        let Work::Prefill { n_tokens, ends } = sequence.work else { return None };
        let share = Share { slot: sequence.slot, n_tokens };
        Some(Self { share, ends, time: sequence.waited.saturating_add(usual) })
    }

    /// Returns whether it is computed before the streams, which have let `n_passed` tokens pass since their last: it is the first
    /// to pass, or it ends within their micro-batch. A single token goes with theirs.
    fn passes(&self, n_passed: u32, ubatch_tokens: u32) -> bool {
        let n_tokens = self.share.n_tokens;
        n_tokens > 1 && (n_passed == 0 || self.ends && n_passed.saturating_add(n_tokens) <= ubatch_tokens)
    }

    /// Orders by the time for each token that is left, the most first; then the shortest goes first, then the first slot.
    fn by_claim(&self, other: &Self) -> Ordering {
        // Cross-multiplied, so that nothing is rounded.
        let claim = self.time.as_nanos().saturating_mul(u128::from(other.share.n_tokens));
        let others = other.time.as_nanos().saturating_mul(u128::from(self.share.n_tokens));
        others
            .cmp(&claim)
            .then_with(|| (self.share.n_tokens, self.share.slot).cmp(&(other.share.n_tokens, other.share.slot)))
    }
}

#[cfg(test)]
mod tests;
