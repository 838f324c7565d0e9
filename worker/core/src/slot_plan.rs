//! Where a request starts: which slot it gets and what it finds there.
//!
//! Not here: doing it (the shell), the batch that computes the rest (`batch_plan`).
//! The idea: of the idle slots, one (the *affine* slot) keeps the most of the prompt, and one (the *victim*) is worth
//! least: it is empty or was used longest ago. The affine slot is taken if what that saves, compared with the victim, is
//! at least what it destroys: the tokens behind the kept prefix, which some conversation may still want. So a request
//! that only shares a system prompt with a long conversation leaves it alone, and one that goes on with a conversation,
//! or goes back in it, finds its slot. No request waits for a busy slot while another is idle.

use warmpath_common::block_hash::BlockHash;
use warmpath_common::ids::{SlotId, Token};

use crate::slot_table::{Slot, SlotTable};

/// Is what a request wants of a slot.
#[derive(Debug, Clone, Copy)]
pub struct Wish<'a> {
    /// Is the prompt, at least one token.
    pub prompt: &'a [Token],
    /// Is the root of its chain.
    pub root: &'a BlockHash,
    /// Says whether it may start from what a slot holds.
    pub reuse: Reuse,
    /// Names the slot that the sender would like; only decides between slots that are equally good.
    pub wanted: Option<SlotId>,
}

/// Says whether a request may start from KV state that is there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reuse {
    /// It may.
    Allowed,
    /// It computes everything.
    Forbidden,
}

/// Says how the first tokens of a prompt get into its slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Start {
    /// None do: the slot is cleared and the whole prompt computed.
    Cold,
    /// The slot's own first tokens stay.
    KeepPrefix {
        /// Is their number, at least 1 and less than the prompt's.
        n_tokens: u32,
    },
}

impl Start {
    /// Returns the number of the slot's own tokens that stay.
    pub fn n_kept(self) -> u32 {
        match self {
            Self::Cold => 0,
            Self::KeepPrefix { n_tokens } => n_tokens,
        }
    }
}

/// Is where a request starts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SlotPlan {
    /// Names the slot.
    pub slot: SlotId,
    /// Says how its prompt's first tokens get there.
    pub start: Start,
}

/// Is one idle slot seen with one prompt.
#[derive(Debug, Clone, Copy)]
struct Offer {
    slot: SlotId,
    /// Is the tokens that the prompt would keep.
    n_usable: u32,
    /// Is the tokens that the prompt would destroy.
    n_lost: u32,
    last_used: u64,
    is_wanted: bool,
}

/// Returns where a request starts, or `None` while every slot is busy.
///
/// Cost: O(slots x common prefix). Deterministic.
pub fn plan(table: &SlotTable, wish: &Wish<'_>) -> Option<SlotPlan> {
    let idle = table.iter().filter(|(_, slot)| !slot.is_busy());
    let offers: Vec<Offer> = idle.map(|(id, slot)| offer(table, wish, (id, slot))).collect();
    let affine = offers.iter().copied().min_by_key(|offer| {
        (u32::MAX - offer.n_usable, offer.n_lost > 0, !offer.is_wanted, offer.last_used, offer.slot)
    })?;
    let victim = offers.iter().copied().min_by_key(|offer| {
        let is_empty = offer.n_usable + offer.n_lost == 0;
        ((!is_empty).then_some(offer.last_used), !offer.is_wanted, offer.slot)
    })?;
    let n_saved = affine.n_usable.saturating_sub(victim.n_usable);
    let chosen = if affine.n_usable > 0 && n_saved >= affine.n_lost { affine } else { victim };
    let start = match chosen.n_usable {
        0 => Start::Cold,
        n_tokens => Start::KeepPrefix { n_tokens },
    };
    Some(SlotPlan { slot: chosen.slot, start })
}

/// Returns the most tokens of the prompt that any slot, idle or busy, would let a request keep: an estimate of what a
/// waiting request will find.
pub fn best_usable(table: &SlotTable, wish: &Wish<'_>) -> u32 {
    table.iter().map(|(_, slot)| usable(table, wish, slot)).max().unwrap_or(0)
}

fn usable(table: &SlotTable, wish: &Wish<'_>, slot: &Slot) -> u32 {
    match wish.reuse {
        Reuse::Allowed => slot.usable(wish.prompt, wish.root, table.memory()),
        Reuse::Forbidden => 0,
    }
}

fn offer(table: &SlotTable, wish: &Wish<'_>, (id, slot): (SlotId, &Slot)) -> Offer {
    let n_held = u32::try_from(slot.tokens().len()).expect("a slot holds at most the context's tokens, a u32");
    let n_usable = usable(table, wish, slot);
    Offer {
        slot: id,
        n_usable,
        n_lost: n_held - n_usable,
        last_used: slot.last_used(),
        is_wanted: wish.wanted == Some(id),
    }
}

#[cfg(test)]
mod tests;
