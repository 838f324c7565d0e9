//! Moves of KV state within a slot: reuse at other positions of a prompt, and the context shift of a long response.
//!
//! The shell moves the state; `slot_table` records which tokens are exact afterwards.
//!
//! The position of a token's KV state can be changed. If a prompt diverges from a slot's text and has further parts of
//! that text later, their state is moved to its positions in the prompt. This happens when a client drops its oldest
//! messages, or when the same tools follow another system text. The prompt's tokens in between are computed. Moved
//! state was computed after other tokens than the prompt's, so it is close to the exact state but not equal.

mod runs;

use std::ops::Range;

use warmpath_common::ids::{SlotId, Token};

use crate::slots::slot_plan::{Reuse, SlotRequest};
use crate::slots::slot_table::{Shift, SlotTable};

/// Minimum length of a moved run if the request does not set it.
///
/// Units: tokens. Source: shorter runs are often the same only by chance.
pub const REUSE_TOKENS_DEFAULT: u32 = 32;

/// Minimum number of tokens after the kept ones in a context shift. Source: llama-server's `n_ctx - 4`.
const SHIFTED_TOKENS_MIN: u32 = 4;

/// Move of consecutive tokens of a slot to other positions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Move {
    /// Position of the first token.
    pub from_token: u32,
    /// New position of the first token, before or after the old one.
    pub to_token: u32,
    /// Number of tokens, at least 1.
    pub n_tokens: u32,
}

/// Start of a prompt from moved state.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reused {
    /// Slot with the state.
    pub slot: SlotId,
    /// Number of the prompt's first tokens that stay in place and are exact, at least 1.
    pub n_exact: u32,
    /// Moves in ascending order of both the old and the new positions. All other tokens are dropped, and the prompt's
    /// tokens between the moved ones are computed.
    pub moves: Vec<Move>,
}

impl Reused {
    /// Returns the number of the prompt's tokens that are not computed.
    pub fn n_tokens(&self) -> u32 {
        self.n_exact + self.n_moved()
    }

    /// Returns the number of moved tokens, which are not exact.
    pub fn n_moved(&self) -> u32 {
        self.moves.iter().map(|one| one.n_tokens).sum()
    }

    /// Returns the number of the slot's first tokens up to the last needed one.
    pub fn n_source_tokens(&self) -> u32 {
        self.moves.last().map_or(self.n_exact, |last| last.from_token + last.n_tokens)
    }

    /// Returns the number of the prompt's first tokens that need no computation before the first gap.
    pub fn n_in_place(&self) -> u32 {
        let follows = |range: &&Range<u32>| range.start == self.n_exact;
        self.ranges().first().filter(follows).map_or(self.n_exact, |range| range.end)
    }

    /// Returns the ranges of the prompt's moved tokens that come after tokens to be computed.
    pub fn behind_gaps(&self) -> Vec<Range<u32>> {
        let n_in_place = self.n_in_place();
        self.ranges().into_iter().filter(|range| range.start > n_in_place).collect()
    }

    /// Returns the ranges of the prompt's moved tokens; adjacent ranges are merged.
    fn ranges(&self) -> Vec<Range<u32>> {
        let mut ranges: Vec<Range<u32>> = Vec::new();
        for one in &self.moves {
            let end = one.to_token + one.n_tokens;
            match ranges.last_mut() {
                Some(last) if last.end == one.to_token => last.end = end,
                _ => ranges.push(one.to_token..end),
            }
        }
        ranges
    }
}

/// Returns the slot whose state covers the most of the prompt if runs of at least `n_run_min` tokens are moved.
///
/// `None` if no run can be moved or `n_run_min` is 0. Ties: the most recently used slot.
/// Cost: that of [`moves`] for each slot of the same root.
pub fn best(table: &SlotTable, request: &SlotRequest<'_>, n_run_min: u32) -> Option<Reused> {
    if n_run_min == 0 || request.reuse == Reuse::Forbidden {
        return None;
    }
    let ways = table.iter().filter_map(|(id, contents)| {
        let n_exact = contents.n_common(request.prompt, request.root).min(request.prompt.len() - 1);
        if n_exact == 0 {
            return None;
        }
        let moves = moves(contents.tokens(), request.prompt, n_exact, n_run_min as usize);
        let reuse = Reused { slot: id, n_exact: to_u32(n_exact), moves };
        (!reuse.moves.is_empty()).then_some((reuse, contents.last_used()))
    });
    ways.max_by_key(|(reuse, last_used)| (reuse.n_tokens(), *last_used)).map(|(reuse, _)| reuse)
}

/// Returns the runs of at least `n_run_min` tokens that slot and prompt have in the same order after their `n_common`
/// common first tokens. At least one token of the prompt remains to be computed.
///
/// Cost: O(n log n) for n tokens of slot and prompt, and 64 comparisons of them.
/// Source: llama-server's `--cache-reuse`, which skips tokens in the slot and never in the prompt.
pub fn moves(slot_tokens: &[Token], prompt: &[Token], n_common: usize, n_run_min: usize) -> Vec<Move> {
    let (slot_tokens, prompt_tokens) = (&slot_tokens[n_common..], &prompt[n_common..prompt.len() - 1]);
    let to_move = |run: &runs::CommonRun| Move {
        from_token: to_u32(n_common + run.from),
        to_token: to_u32(n_common + run.to),
        n_tokens: to_u32(run.n),
    };
    runs::in_common(slot_tokens, prompt_tokens, n_run_min.max(1)).iter().map(to_move).collect()
}

/// Returns the tokens to drop when a sequence of `n_held` tokens has filled its context: `n_discard` tokens after the
/// first `n_keep`, or half of the tokens after them if `n_discard` is `None`.
///
/// `None` if no token can be dropped. Source: llama-server's `--context-shift`.
pub fn context_shift(n_held: u32, n_keep: u32, n_discard: Option<u32>) -> Option<Shift> {
    let n_keep = n_keep.min(n_held.saturating_sub(SHIFTED_TOKENS_MIN));
    let n_left = n_held - n_keep;
    let n_dropped = n_discard.unwrap_or(n_left / 2).clamp(u32::from(n_left > 1), n_left.saturating_sub(1));
    (n_dropped > 0).then_some(Shift { from_token: n_keep, n_dropped })
}

fn to_u32(n_tokens: usize) -> u32 {
    u32::try_from(n_tokens).expect("a slot and a prompt are within a context, a u32")
}

#[cfg(test)]
mod tests;
