//! The slots: which tokens' KV state each holds, under which chain root, and whether it runs a sequence.
//!
//! Not here: who gets which slot (`slot_plan`), who holds which blocks (`prefix_tree`, which this drives).
//! The idea: a slot's held tokens are exactly the tokens whose KV state llama.cpp has for it, prompt and answer alike. A
//! slot is acquired for one sequence and released exactly once; between the two its tokens only grow, unless they are
//! shifted. State behind a shift is not what computing the tokens would give, so it is never lent, kept or announced:
//! only the *exact* tokens are.

use warmpath_common::block_hash::BlockHash;
use warmpath_common::ids::{SlotId, Token};
use warmpath_common::model::MemoryKind;
use warmpath_common::summary::Change;

use crate::chunk_index::News;
use crate::prefix_tree::{BlockHasher, PrefixTree};
use crate::tenants::TenantId;

/// Is every slot of a worker.
#[derive(Debug, Clone)]
pub struct SlotTable {
    slots: Vec<Slot>,
    tree: PrefixTree,
    memory: MemoryKind,
    context_tokens: u32,
    block_size_tokens: u32,
    /// Counts acquisitions and releases; orders slots by their last use.
    tick: u64,
}

/// Says how many slots there are and how large everything is.
#[derive(Debug, Clone, Copy)]
pub struct Shape {
    /// Is the number of slots.
    pub n_slots: u16,
    /// Is the most tokens of one slot.
    pub context_tokens: u32,
    /// Is the number of tokens in a block.
    pub block_size_tokens: u32,
    /// Says where a sequence can be resumed.
    pub memory: MemoryKind,
    /// Hashes blocks.
    pub hasher: BlockHasher,
}

/// Is one slot.
#[derive(Debug, Clone, Default)]
pub struct Slot {
    tokens: Vec<Token>,
    /// Counts the first tokens whose state is what computing them gives; all of them unless there was a shift.
    n_exact: usize,
    /// Is the fewest tokens that the state can be cut back to.
    rewinds_to: usize,
    /// Is the whole prompt of the running sequence; empty while idle.
    prompt: Vec<Token>,
    /// Counts the tokens of the prompt that ran last.
    n_last_prompt: usize,
    /// Counts the first tokens from which a later request has started, here or in another slot.
    n_reused: usize,
    root: Option<BlockHash>,
    tenant: Option<TenantId>,
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
    /// Is the whole prompt.
    pub prompt: &'a [Token],
    /// Says how many of the prompt's first tokens have their KV state in the slot, however it got there.
    pub n_start_tokens: u32,
    /// Is the fewest tokens that the slot's state can be cut back to: more than 0 where a sliding window's past was not
    /// brought along.
    pub rewinds_to_tokens: u32,
    /// Is the root of the sequence's chain.
    pub root: BlockHash,
    /// Lists the hashes of the whole prompt's full blocks, announced as being filled.
    pub prompt_chain: &'a [BlockHash],
    /// Says what becomes of the tokens afterwards.
    pub after_use: AfterUse,
}

/// Says that tokens of a sequence were dropped and those behind them moved to the front.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Shift {
    /// Is the first token that was dropped.
    pub from_token: u32,
    /// Is how many were.
    pub n_dropped: u32,
}

impl Slot {
    /// Returns the tokens whose KV state the slot holds.
    pub fn tokens(&self) -> &[Token] {
        &self.tokens
    }

    /// Returns the first of the tokens, those whose state is what computing them gives.
    pub fn exact_tokens(&self) -> &[Token] {
        &self.tokens[..self.n_exact]
    }

    /// Returns the fewest tokens that the state can be cut back to, where the memory rewinds at all.
    pub fn rewinds_to(&self) -> usize {
        self.rewinds_to
    }

    /// Returns the root of the chain that the tokens belong to.
    pub fn root(&self) -> Option<&BlockHash> {
        self.root.as_ref()
    }

    /// Returns the tenant for whom the slot counts; `None` for one that has no share.
    pub fn tenant(&self) -> Option<TenantId> {
        self.tenant
    }

    /// Returns how many tokens the prompt had that runs or ran last.
    pub fn n_last_prompt(&self) -> usize {
        self.n_last_prompt
    }

    /// Returns whether a sequence runs in the slot.
    pub fn is_busy(&self) -> bool {
        self.state != State::Idle
    }

    /// Returns whether others may start from what the slot holds.
    pub fn lends(&self) -> bool {
        self.state != State::Busy(AfterUse::Forget)
    }

    /// Returns when the slot was last acquired or released: larger is later, 0 is never.
    pub fn last_used(&self) -> u64 {
        self.last_used
    }

    /// Returns how many of the prompt's first tokens the slot holds, exactly as computing them gives, under one root.
    pub fn n_common(&self, prompt: &[Token], root: &BlockHash) -> usize {
        self.common(self.exact_tokens(), prompt, root)
    }

    /// Returns how many of the prompt's first tokens the slot will hold once the running prompt is computed.
    pub fn n_coming(&self, prompt: &[Token], root: &BlockHash) -> usize {
        self.common(&self.prompt, prompt, root)
    }

    fn common(&self, held: &[Token], prompt: &[Token], root: &BlockHash) -> usize {
        if self.root.as_ref() != Some(root) || !self.lends() {
            return 0;
        }
        held.iter().zip(prompt).take_while(|(held, wanted)| held == wanted).count()
    }
}

impl SlotTable {
    /// Returns empty slots.
    pub fn new(shape: Shape) -> Self {
        let Shape { n_slots, context_tokens, block_size_tokens, memory, hasher } = shape;
        Self {
            slots: vec![Slot::default(); usize::from(n_slots)],
            tree: PrefixTree::new(n_slots, block_size_tokens, memory, hasher),
            memory,
            context_tokens,
            block_size_tokens,
            tick: 0,
        }
    }

    /// Returns the number of tokens in a block.
    pub fn block_size_tokens(&self) -> u32 {
        self.block_size_tokens
    }

    /// Returns who holds which blocks.
    pub fn tree(&self) -> &PrefixTree {
        &self.tree
    }

    /// Takes note of what the chunk index says of one of its chunks.
    pub fn apply(&mut self, news: News) {
        self.tree.apply(news);
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

    /// Gives an idle slot to a sequence, which starts from the first tokens of its prompt.
    ///
    /// Panics: when the slot is busy or nothing would be left to compute.
    pub fn acquire(&mut self, acquire: Acquire<'_>) {
        self.tick += 1;
        let slot = &mut self.slots[usize::from(acquire.slot.0)];
        let n_start = acquire.n_start_tokens as usize;
        assert!(!slot.is_busy(), "slot {} is busy", acquire.slot);
        assert!(n_start < acquire.prompt.len(), "slot {} would have nothing to compute", acquire.slot);
        slot.n_reused = slot.n_reused.min(slot.common(slot.exact_tokens(), &acquire.prompt[..n_start], &acquire.root));
        slot.tokens.clear();
        slot.tokens.extend_from_slice(&acquire.prompt[..n_start]);
        slot.n_exact = n_start;
        slot.rewinds_to = acquire.rewinds_to_tokens as usize;
        slot.prompt = acquire.prompt.to_vec();
        slot.n_last_prompt = acquire.prompt.len();
        slot.root = Some(acquire.root);
        slot.tenant = None;
        slot.state = State::Busy(acquire.after_use);
        slot.last_used = self.tick;
        self.tree.acquire(acquire.slot, &acquire, n_start);
    }

    /// Lets a slot count for a tenant, or for none that has a share, until it is acquired again.
    pub fn set_tenant(&mut self, slot: SlotId, tenant: Option<TenantId>) {
        self.slots[usize::from(slot.0)].tenant = tenant;
    }

    /// Takes note that a request starts from so many of a slot's first tokens, there or in another slot.
    pub fn lend(&mut self, slot: SlotId, n_tokens: u32) {
        let n_reused = &mut self.slots[usize::from(slot.0)].n_reused;
        *n_reused = (*n_reused).max(n_tokens as usize);
    }

    /// Returns how many of a slot's first tokens were started from since this was last asked.
    pub fn take_reused(&mut self, slot: SlotId) -> u32 {
        let n_reused = std::mem::take(&mut self.slots[usize::from(slot.0)].n_reused);
        u32::try_from(n_reused).expect("a slot holds at most a context, a u32")
    }

    /// Takes note of the fewest tokens that a slot's state can be cut back to.
    pub fn set_rewinds_to(&mut self, slot: SlotId, n_tokens: u32) {
        self.slots[usize::from(slot.0)].rewinds_to = n_tokens as usize;
    }

    /// Adds tokens whose KV state a busy slot has just computed.
    ///
    /// Panics: when the slot is idle or would hold more than a context.
    pub fn extend(&mut self, slot: SlotId, tokens: &[Token]) {
        let entry = &mut self.slots[usize::from(slot.0)];
        assert!(entry.is_busy(), "slot {slot} is idle");
        let was_exact = entry.n_exact == entry.tokens.len();
        entry.tokens.extend_from_slice(tokens);
        assert!(entry.tokens.len() <= self.context_tokens as usize, "slot {slot} holds more than a context");
        if was_exact {
            entry.n_exact = entry.tokens.len();
            self.tree.extend(slot, &entry.tokens);
        }
    }

    /// Adds tokens of its prompt to a busy slot whose state was computed elsewhere in a text and moved here: neither they nor
    /// what follows is exact.
    ///
    /// Panics: when the slot is idle or would hold more than its prompt.
    pub fn extend_moved(&mut self, slot: SlotId, tokens: &[Token]) {
        let entry = &mut self.slots[usize::from(slot.0)];
        assert!(entry.is_busy(), "slot {slot} is idle");
        entry.tokens.extend_from_slice(tokens);
        assert!(entry.tokens.len() < entry.n_last_prompt, "slot {slot} would have nothing to compute");
        entry.prompt.truncate(entry.n_exact);
        self.tree.cut(slot, entry.exact_tokens());
    }

    /// Drops tokens of a busy slot from its middle; what is behind them is no longer exact.
    ///
    /// Panics: when the slot is idle or holds fewer tokens.
    pub fn shift(&mut self, slot: SlotId, shift: Shift) {
        let entry = &mut self.slots[usize::from(slot.0)];
        assert!(entry.is_busy(), "slot {slot} is idle");
        let from = shift.from_token as usize;
        entry.tokens.drain(from..from + shift.n_dropped as usize);
        if entry.n_exact > from {
            entry.n_exact = from;
            entry.n_reused = entry.n_reused.min(from);
            entry.prompt.truncate(from);
            self.tree.cut(slot, entry.exact_tokens());
        }
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
        entry.prompt = Vec::new();
        match after_use {
            AfterUse::Keep => self.tree.release(slot, entry.exact_tokens()),
            AfterUse::Forget => self.forget(slot),
        }
        after_use
    }

    /// Forgets what a slot holds, as after its KV state was lost; a busy slot stays busy.
    pub fn forget(&mut self, slot: SlotId) {
        let entry = &mut self.slots[usize::from(slot.0)];
        entry.tokens.clear();
        entry.n_exact = 0;
        entry.n_reused = 0;
        entry.rewinds_to = 0;
        entry.prompt = Vec::new();
        self.tree.forget(slot);
    }

    /// Returns what has changed for routers since the last call, in order.
    pub fn take_changes(&mut self) -> Vec<Change> {
        self.tree.take_changes()
    }

    /// Checks that everything agrees with everything; for tests. Panics: when something does not.
    pub fn check_invariants(&self) {
        for (id, slot) in self.iter() {
            assert!(slot.tokens.len() <= self.context_tokens as usize, "slot {id} overflows");
            assert!(slot.tokens.is_empty() || slot.root.is_some(), "slot {id} holds tokens of no chain");
            assert!(slot.last_used <= self.tick);
            assert!(slot.n_exact <= slot.tokens.len(), "slot {id} holds fewer tokens than are exact");
            assert!(slot.n_reused <= slot.n_exact, "slot {id} has lent tokens that it does not hold");
        }
        self.tree.check_invariants(self);
    }
}

#[cfg(test)]
mod tests;
