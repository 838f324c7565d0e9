//! What goes into the next batch: which sequences compute how many of their tokens.
//!
//! Not here: what of a batch goes through the model together (`runs`), the tokens themselves, decoding them (the shell).
//! The idea: every decoding sequence gets its one token in every batch. What room is left goes to prompts; while
//! anything decodes the whole batch is at most one micro-batch, so that no stream waits longer than that for a prompt,
//! however long. Prompts are computed one after the other, by their claim: the time that one has waited, and that of a usual
//! prompt, for each token that is left of it. So a short one passes a long one, because it would lose more by waiting than
//! it costs the other; but whoever waits gains on all who come later, and a long one's turn comes. A prompt that ends in a
//! batch gets its first token with the end of that batch, so another one joins it only where that saves those who
//! still wait more than it costs those who would be done: they save the fixed part of a batch's time.
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
}

/// Says what a sequence has to compute next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Work {
    /// The token that was chosen last.
    Decode,
    /// The rest of its prompt.
    Prefill {
        /// Is the prompt tokens still to be computed, at least 1.
        n_tokens: u32,
    },
}

/// Is the room in a batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Room {
    /// Is the most tokens of a batch.
    pub batch_tokens: u32,
    /// Is the most tokens of a batch while anything decodes; more than there are slots.
    pub ubatch_tokens: u32,
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
    let decode = pending.iter().filter(|sequence| sequence.work == Work::Decode);
    let mut shares: Vec<Share> = decode.map(|sequence| Share { slot: sequence.slot, n_tokens: 1 }).collect();
    let limit = if shares.is_empty() { room.batch_tokens } else { room.ubatch_tokens };
    let n_decoding = u32::try_from(shares.len()).unwrap_or(u32::MAX);
    let mut left = limit.saturating_sub(n_decoding);
    let mut prompts: Vec<Prompt> =
        pending.iter().filter_map(|sequence| Prompt::of(sequence, pace.usual_prompt)).collect();
    prompts.sort_unstable_by(Prompt::by_claim);
    let (mut n_ending, mut n_waiting) = (0, prompts.len() + n_queued);
    for Prompt { share, .. } in prompts {
        let n_tokens = share.n_tokens.min(left);
        if n_tokens == 0 || !pays(pace, n_tokens, (n_ending, n_waiting)) {
            break;
        }
        left -= n_tokens;
        n_ending += usize::from(n_tokens == share.n_tokens);
        n_waiting -= 1;
        shares.push(Share { n_tokens, ..share });
    }
    shares.sort_unstable_by_key(|share| share.slot);
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
    /// Is what it has waited, and the time of a usual prompt.
    time: Duration,
}

impl Prompt {
    fn of(sequence: &Pending, usual: Duration) -> Option<Self> {
        let Work::Prefill { n_tokens } = sequence.work else { return None };
        Some(Self { share: Share { slot: sequence.slot, n_tokens }, time: sequence.waited.saturating_add(usual) })
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
