//! Moves of KV state within a slot: text that the prompt has further on, and the context shift of a long answer.
//!
//! The shell moves the state; which tokens are exact afterwards is in `slot_table`.
//!
//! The KV state of a token can be given another position. If a prompt diverges from the text in a slot and continues it
//! later, as when a client drops its oldest messages, the state of the common text moves to its position in the prompt.
//! That state was computed behind other tokens than the prompt's, so it is close to the exact state and not equal to
//! it.

use warmpath_common::ids::{SlotId, Token};

use crate::slot_plan::{Reuse, Wish};
use crate::slot_table::{Shift, SlotTable};

/// Shortest run that is moved if the request asks for moves without a length.
///
/// Units: tokens. Source: a choice: shorter runs are often chance.
pub const REUSE_TOKENS_DEFAULT: u32 = 32;

/// Fewest tokens behind the kept ones when a context shifts. Source: llama-server's `n_ctx - 4`.
const SHIFTED_TOKENS_MIN: u32 = 4;

/// Move of consecutive tokens of a slot to other positions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Move {
    /// Position of the first token.
    pub from_token: u32,
    /// New position of the first token: at most `from_token`.
    pub to_token: u32,
    /// Number of tokens, at least 1.
    pub n_tokens: u32,
}

/// Start of a prompt from moved state.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reused {
    /// Slot to use, idle.
    pub slot: SlotId,
    /// Number of the prompt's first tokens that stay in place and are exact, at least 1.
    pub n_exact: u32,
    /// Moves in the order in which they are made. Each goes to the position at which the one before ended, the first
    /// one right behind the exact tokens; all other tokens are dropped.
    pub moves: Vec<Move>,
}

impl Reused {
    /// Returns the number of the prompt's tokens that are present afterwards.
    pub fn n_tokens(&self) -> u32 {
        self.n_exact + self.n_moved()
    }

    /// Returns the number of the present tokens that are not exact.
    pub fn n_moved(&self) -> u32 {
        self.moves.iter().map(|one| one.n_tokens).sum()
    }
}

/// Returns the idle slot whose state covers the most of the prompt once runs of at least `n_run_min` tokens are moved.
///
/// `None` if nothing can be moved or `n_run_min` is 0. Ties go to the slot used last.
/// Cost: O(held tokens x `n_run_min`).
pub fn best(table: &SlotTable, wish: &Wish<'_>, n_run_min: u32) -> Option<Reused> {
    if n_run_min == 0 || wish.reuse == Reuse::Forbidden {
        return None;
    }
    let idle = table.iter().filter(|(_, slot)| !slot.is_busy());
    let ways = idle.filter_map(|(id, held)| {
        let n_exact = held.n_common(wish.prompt, wish.root).min(wish.prompt.len() - 1);
        let moves = moves(held.tokens(), wish.prompt, (n_exact, n_run_min as usize));
        let reused = Reused { slot: id, n_exact: to_u32(n_exact), moves };
        (n_exact > 0 && !reused.moves.is_empty()).then_some((reused, held.last_used()))
    });
    ways.max_by_key(|(reused, last_used)| (reused.n_tokens(), *last_used)).map(|(reused, _)| reused)
}

/// Returns the runs of at least `n_run_min` held tokens that continue the prompt one after another, behind the
/// `n_common` tokens that prompt and slot share; at least one token of the prompt is left to compute.
///
/// Source: llama-server's `--cache-reuse`: tokens that do not match are skipped in the slot, never in the prompt.
pub fn moves(held: &[Token], prompt: &[Token], (n_common, n_run_min): (usize, usize)) -> Vec<Move> {
    let prompt = &prompt[..prompt.len() - 1];
    let (mut from, mut to) = (n_common, n_common);
    let mut moves = Vec::new();
    while from < held.len() && to < prompt.len() {
        let n_run = held[from..].iter().zip(&prompt[to..]).take_while(|(held, wanted)| held == wanted).count();
        if n_run < n_run_min.max(1) {
            from += 1;
            continue;
        }
        moves.push(Move { from_token: to_u32(from), to_token: to_u32(to), n_tokens: to_u32(n_run) });
        from += n_run;
        to += n_run;
    }
    moves
}

/// Returns the tokens that are dropped when a sequence of `n_held` tokens has filled its context and continues:
/// `n_discard` tokens behind the first `n_keep`, or half of those behind them if it is `None`.
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
