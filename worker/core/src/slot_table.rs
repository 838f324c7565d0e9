//! The slots: which tokens' KV state each holds, under which chain root, and whether it runs a sequence.
//!
//! Not here: who gets which slot (`slot_plan`), what is said about it to routers (`holdings`, which this drives).
//! The idea: a slot's held tokens are exactly the tokens whose KV state llama.cpp has for it, prompt and answer alike. A
//! slot is acquired for one sequence and released exactly once; between the two its tokens only grow.

use warmpath_common::block_hash::BlockHash;
use warmpath_common::ids::{SlotId, Token};
use warmpath_common::model::MemoryKind;
use warmpath_common::summary::Change;

use crate::holdings::Holdings;
use crate::slot_plan::Start;

/// Is every slot of a worker.
#[derive(Debug, Clone)]
pub struct SlotTable {
    slots: Vec<Slot>,
    holdings: Holdings,
    memory: MemoryKind,
    context_tokens: u32,
    /// Counts acquisitions and releases; orders slots by their last use.
    tick: u64,
}

/// Is one slot.
#[derive(Debug, Clone, Default)]
pub struct Slot {
    tokens: Vec<Token>,
    root: Option<BlockHash>,
    state: State,
    last_used: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
enum State {
    #[default]
    Idle,
    Busy(AfterUse),
}

/// Says what becomes of a slot's tokens once its sequence is over.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AfterUse {
    /// They stay for later requests.
    Keep,
    /// They go: the request wanted nothing left behind.
    Forget,
}

/// Says what a sequence does with the slot that it gets.
#[derive(Debug, Clone, Copy)]
pub struct Acquire<'a> {
    /// Names the slot, idle.
    pub slot: SlotId,
    /// Says how many of its tokens stay.
    pub start: Start,
    /// Is the root of the sequence's chain.
    pub root: BlockHash,
    /// Lists the hashes of the whole prompt's full blocks, announced as being filled.
    pub prompt_chain: &'a [BlockHash],
    /// Says what becomes of the tokens afterwards.
    pub after_use: AfterUse,
}

impl Slot {
    /// Returns the tokens whose KV state the slot holds.
    pub fn tokens(&self) -> &[Token] {
        &self.tokens
    }

    /// Returns whether a sequence runs in the slot.
    pub fn is_busy(&self) -> bool {
        self.state != State::Idle
    }

    /// Returns when the slot was last acquired or released: larger is later, 0 is never.
    pub fn last_used(&self) -> u64 {
        self.last_used
    }

    /// Returns how many tokens of `prompt` the slot could keep, were it idle; one token is always left to compute.
    pub fn usable(&self, prompt: &[Token], root: &BlockHash, memory: MemoryKind) -> u32 {
        if self.root.as_ref() != Some(root) {
            return 0;
        }
        let n_common = self.tokens.iter().zip(prompt).take_while(|(held, wanted)| held == wanted).count();
        let n_usable = if memory.rewinds_anywhere() {
            n_common.min(prompt.len().saturating_sub(1))
        } else if n_common == self.tokens.len() && n_common < prompt.len() {
            n_common
        } else {
            0
        };
        u32::try_from(n_usable).expect("a slot holds at most the context's tokens, a u32")
    }
}

impl SlotTable {
    /// Returns `n_slots` empty slots.
    pub fn new(n_slots: u16, context_tokens: u32, block_size_tokens: u32, memory: MemoryKind) -> Self {
        Self {
            slots: vec![Slot::default(); usize::from(n_slots)],
            holdings: Holdings::new(n_slots, block_size_tokens, memory),
            memory,
            context_tokens,
            tick: 0,
        }
    }

    /// Returns the slots in the order of their ids.
    pub fn iter(&self) -> impl Iterator<Item = (SlotId, &Slot)> {
        (0..).map(SlotId).zip(&self.slots)
    }

    /// Returns one slot. Panics: when `slot` is not one of the table's.
    pub fn slot(&self, slot: SlotId) -> &Slot {
        &self.slots[usize::from(slot.0)]
    }

    /// Returns how far slots can be rewound.
    pub fn memory(&self) -> MemoryKind {
        self.memory
    }

    /// Returns the number of tokens that all slots hold.
    pub fn held_tokens(&self) -> u64 {
        self.slots.iter().map(|slot| slot.tokens.len() as u64).sum()
    }

    /// Returns the number of cells that no slot holds a token in, idle slots' tokens counted as held.
    pub fn free_cells(&self) -> u64 {
        self.slots.len() as u64 * u64::from(self.context_tokens) - self.held_tokens()
    }

    /// Gives an idle slot to a sequence and cuts its tokens back to those that the sequence keeps.
    ///
    /// Panics: when the slot is busy or holds fewer tokens than are to be kept.
    pub fn acquire(&mut self, acquire: Acquire<'_>) {
        self.tick += 1;
        let slot = &mut self.slots[usize::from(acquire.slot.0)];
        let n_keep = acquire.start.n_kept() as usize;
        assert!(!slot.is_busy(), "slot {} is busy", acquire.slot);
        assert!(n_keep <= slot.tokens.len(), "slot {} holds fewer than {n_keep} tokens", acquire.slot);
        assert!(n_keep == 0 || slot.root == Some(acquire.root), "slot {} has another root", acquire.slot);
        slot.tokens.truncate(n_keep);
        slot.root = Some(acquire.root);
        slot.state = State::Busy(acquire.after_use);
        slot.last_used = self.tick;
        self.holdings.acquire(acquire.slot, &acquire, n_keep);
    }

    /// Adds tokens whose KV state a busy slot has just computed.
    ///
    /// Panics: when the slot is idle or would hold more than a context.
    pub fn extend(&mut self, slot: SlotId, tokens: &[Token]) {
        let entry = &mut self.slots[usize::from(slot.0)];
        assert!(entry.is_busy(), "slot {slot} is idle");
        entry.tokens.extend_from_slice(tokens);
        assert!(entry.tokens.len() <= self.context_tokens as usize, "slot {slot} holds more than a context");
        self.holdings.extend(slot, &entry.tokens);
    }

    /// Ends a slot's sequence and returns whether its KV state must be cleared.
    ///
    /// Panics: when the slot is idle.
    #[must_use]
    pub fn release(&mut self, slot: SlotId) -> AfterUse {
        self.tick += 1;
        let entry = &mut self.slots[usize::from(slot.0)];
        let State::Busy(after_use) = entry.state else { panic!("slot {slot} is released twice") };
        entry.state = State::Idle;
        entry.last_used = self.tick;
        match after_use {
            AfterUse::Keep => self.holdings.release(slot, &entry.tokens),
            AfterUse::Forget => self.forget(slot),
        }
        after_use
    }

    /// Forgets what a slot holds, as after its KV state was lost; a busy slot stays busy.
    pub fn forget(&mut self, slot: SlotId) {
        let entry = &mut self.slots[usize::from(slot.0)];
        entry.tokens.clear();
        self.holdings.forget(slot);
    }

    /// Returns what has changed for routers since the last call, in order.
    pub fn take_changes(&mut self) -> Vec<Change> {
        self.holdings.take_changes()
    }

    /// Checks that everything agrees with everything; for tests. Panics: when something does not.
    pub fn check_invariants(&self) {
        for (id, slot) in self.iter() {
            assert!(slot.tokens.len() <= self.context_tokens as usize, "slot {id} overflows");
            assert!(slot.tokens.is_empty() || slot.root.is_some(), "slot {id} holds tokens of no chain");
            assert!(slot.last_used <= self.tick);
        }
        self.holdings.check_invariants(self);
    }
}

#[cfg(test)]
mod tests;
