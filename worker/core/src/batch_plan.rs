//! What goes into the next batch: which sequences compute how many of their tokens.
//!
//! Not here: the tokens themselves, decoding them (the shell).
//! The idea: every decoding sequence gets its one token in every batch. What room is left goes to prompts; while
//! anything decodes the whole batch is at most one micro-batch, so that no stream waits longer than that for a prompt,
//! however long. Of the prompts, the one that came first gets half the room, so that it always moves on; the rest of
//! the room goes to the shortest remainders first, because a short prompt that waits behind a long one loses more time
//! to first token than it costs the long one.

use warmpath_common::ids::SlotId;

/// Is one running sequence, as far as a batch cares.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Pending {
    /// Names its slot.
    pub slot: SlotId,
    /// Says what it has to compute.
    pub work: Work,
    /// Orders the sequences by their arrival: smaller came first.
    pub order: u64,
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
/// The order matters: where every slot has its own cells, llama.cpp computes only sequences with consecutive ids together
/// (`llama_batch_allocr::split_equal`); in another order each would go through the model alone.
/// Only a share that reaches the end of what is known of its sequence needs logits, those of its last token.
pub fn plan(pending: &[Pending], room: Room) -> Vec<Share> {
    let mut arrived = pending.to_vec();
    arrived.sort_unstable_by_key(|sequence| (sequence.order, sequence.slot));
    let mut shares: Vec<Share> = Vec::with_capacity(arrived.len());
    shares.extend(arrived.iter().filter(|s| s.work == Work::Decode).map(|s| Share { slot: s.slot, n_tokens: 1 }));
    let limit = if shares.is_empty() { room.batch_tokens } else { room.ubatch_tokens };
    let n_decoding = u32::try_from(shares.len()).unwrap_or(u32::MAX);
    shares.extend(share_out(&prompts(&arrived), limit.saturating_sub(n_decoding)));
    shares.sort_unstable_by_key(|share| share.slot);
    shares
}

fn prompts(arrived: &[Pending]) -> Vec<Share> {
    let prompt = |sequence: &Pending| match sequence.work {
        Work::Decode => None,
        Work::Prefill { n_tokens } => Some(Share { slot: sequence.slot, n_tokens }),
    };
    arrived.iter().filter_map(prompt).collect()
}

/// Divides `room` among `wanted`, which is in the order of arrival.
fn share_out(wanted: &[Share], room: u32) -> Vec<Share> {
    let mut left = room;
    let mut given = vec![0; wanted.len()];
    let mut give = |idx: usize, n_most: u32, given: &mut Vec<u32>| {
        let n: u32 = (wanted[idx].n_tokens - given[idx]).min(n_most).min(left);
        given[idx] += n;
        left -= n;
    };
    if !wanted.is_empty() {
        give(0, room.div_ceil(2), &mut given);
    }
    let mut shortest_first: Vec<usize> = (0..wanted.len()).collect();
    shortest_first.sort_by_key(|idx| wanted[*idx].n_tokens);
    for idx in shortest_first {
        give(idx, u32::MAX, &mut given);
    }
    let shares = wanted.iter().zip(given).map(|(share, n_tokens)| Share { slot: share.slot, n_tokens });
    shares.filter(|share| share.n_tokens > 0).collect()
}

#[cfg(test)]
mod tests;
