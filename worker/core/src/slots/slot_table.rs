//! The slots: the tokens in each slot's KV state, the root of their chain, and whether a sequence runs.
//!
//! The choice of slots is in `slot_plan`. This module updates `prefix_tree`, which has the blocks of all slots.
//!
//! A slot's held tokens are exactly the tokens that llama.cpp has KV state for, of the prompt and the response. A slot
//! is acquired for one sequence and released exactly once; in between tokens are only appended, except by shifts. State
//! after a shift differs from computed state, so it is never shared, stored or announced; only the *exact* tokens are.

use warmpath_common::block_hash::BlockHash;
use warmpath_common::ids::{SlotId, Token};
use warmpath_common::model::MemoryKind;
use warmpath_common::summary::Change;

use crate::slots::prefix_tree::{BlockHasher, PrefixTree};
use crate::store::chunk_index::TierChange;
use crate::tenants::TenantId;

/// All slots of a worker.
#[derive(Debug, Clone)]
pub struct SlotTable {
    slots: Vec<Slot>,
    tree: PrefixTree,
    memory: MemoryKind,
    context_tokens: u32,
    block_size_tokens: u32,
    /// Number of acquisitions and releases; orders slots by their last use.
    tick: u64,
}

/// Number and sizes of the slots.
#[derive(Debug, Clone, Copy)]
pub struct SlotSizes {
    /// Number of slots.
    pub n_slots: u16,
    /// Maximum number of tokens of one slot.
    pub context_tokens: u32,
    /// Number of tokens of a block.
    pub block_size_tokens: u32,
    /// Kind of memory, which determines the positions at which a sequence can resume.
    pub memory: MemoryKind,
    /// Hash function of blocks.
    pub hasher: BlockHasher,
}

/// One slot.
#[derive(Debug, Clone, Default)]
pub struct Slot {
    tokens: Vec<Token>,
    /// Number of the first tokens whose state is exact; all tokens unless there was a shift.
    n_exact: usize,
    /// Minimum number of tokens to which the state can be cut back.
    rewinds_to: usize,
    /// Whole prompt of the running sequence; empty while idle.
    prompt: Vec<Token>,
    /// Number of tokens of the last prompt.
    n_last_prompt: usize,
    /// Number of the first tokens that a later request has reused, here or in another slot.
    n_reused: usize,
    root: Option<BlockHash>,
    tenant: Option<TenantId>,
    state: SlotPhase,
    last_used: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
enum SlotPhase {
    #[default]
    Idle,
    Busy(AfterUse),
}

/// Treatment of a slot's tokens when its sequence ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AfterUse {
    /// Kept for later requests.
    Keep,
    /// Dropped, because the request leaves nothing in the cache.
    Forget,
}

/// Use of a slot by a new sequence.
#[derive(Debug, Clone, Copy)]
pub struct Acquire<'a> {
    /// Slot to use, idle.
    pub slot: SlotId,
    /// Whole prompt.
    pub prompt: &'a [Token],
    /// Number of the prompt's first tokens whose KV state is in the slot.
    pub n_start_tokens: u32,
    /// Minimum number of tokens to which the slot's state can be cut back; more than 0 if cells that a sliding window
    /// has passed were not copied.
    pub rewinds_to_tokens: u32,
    /// Root of the sequence's chain.
    pub root: BlockHash,
    /// Hashes of the prompt's full blocks, which are announced as being computed.
    pub prompt_chain: &'a [BlockHash],
    /// Treatment of the tokens when the sequence ends.
    pub after_use: AfterUse,
}

/// Tokens of a sequence that are dropped; the tokens after them move to the front.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Shift {
    /// Position of the first dropped token.
    pub from_token: u32,
    /// Number of dropped tokens.
    pub n_dropped: u32,
}

impl Slot {
    /// Returns the tokens in the slot's KV state.
    pub fn tokens(&self) -> &[Token] {
        &self.tokens
    }

    /// Returns the first tokens whose state is exact.
    pub fn exact_tokens(&self) -> &[Token] {
        &self.tokens[..self.n_exact]
    }

    /// Returns the minimum number of tokens to which the state can be cut back, for memory that can be rewound.
    pub fn rewinds_to(&self) -> usize {
        self.rewinds_to
    }

    /// Returns the root of the chain to which the tokens belong.
    pub fn root(&self) -> Option<&BlockHash> {
        self.root.as_ref()
    }

    /// Returns the tenant that the slot is charged to; `None` for a tenant without a share.
    pub fn tenant(&self) -> Option<TenantId> {
        self.tenant
    }

    /// Returns the number of tokens of the current or last prompt.
    pub fn n_last_prompt(&self) -> usize {
        self.n_last_prompt
    }

    /// Returns the number of the first tokens that a later request has reused, here or in another slot.
    pub fn n_reused(&self) -> usize {
        self.n_reused
    }

    /// Returns whether a sequence runs in the slot.
    pub fn is_busy(&self) -> bool {
        self.state != SlotPhase::Idle
    }

    /// Returns whether other sequences may reuse the slot's state.
    pub fn lends(&self) -> bool {
        self.state != SlotPhase::Busy(AfterUse::Forget)
    }

    /// Returns a number that orders slots by their last acquisition or release: larger is later, 0 is never.
    pub fn last_used(&self) -> u64 {
        self.last_used
    }

    /// Returns how many of the prompt's first tokens the slot has exact state for, with the same root.
    pub fn n_common(&self, prompt: &[Token], root: &BlockHash) -> usize {
        self.common(self.exact_tokens(), prompt, root)
    }

    /// Returns how many of the prompt's first tokens the slot will have state for once its running prompt is computed.
    pub fn n_coming(&self, prompt: &[Token], root: &BlockHash) -> usize {
        self.common(&self.prompt, prompt, root)
    }

    fn forget(&mut self) {
        self.tokens.clear();
        self.n_exact = 0;
        self.n_reused = 0;
        self.rewinds_to = 0;
        self.prompt = Vec::new();
    }

    fn common(&self, tokens: &[Token], prompt: &[Token], root: &BlockHash) -> usize {
        if self.root.as_ref() != Some(root) || !self.lends() {
            return 0;
        }
        tokens.iter().zip(prompt).take_while(|(a, b)| a == b).count()
    }
}

impl SlotTable {
    /// Returns empty slots.
    pub fn new(sizes: SlotSizes) -> Self {
        let SlotSizes { n_slots, context_tokens, block_size_tokens, memory, hasher } = sizes;
        Self {
            slots: vec![Slot::default(); usize::from(n_slots)],
            tree: PrefixTree::new(n_slots, block_size_tokens, memory, hasher),
            memory,
            context_tokens,
            block_size_tokens,
            tick: 0,
        }
    }

    /// Returns the maximum number of tokens of one slot.
    pub fn context_tokens(&self) -> u32 {
        self.context_tokens
    }

    /// Returns the number of tokens in a block.
    pub fn block_size_tokens(&self) -> u32 {
        self.block_size_tokens
    }

    /// Returns the tree of all blocks.
    pub fn tree(&self) -> &PrefixTree {
        &self.tree
    }

    /// Applies a change of one of the chunk index's chunks.
    pub fn apply(&mut self, news: TierChange) {
        self.tree.apply(news);
    }

    /// Returns the slots in the order of their ids.
    pub fn iter(&self) -> impl Iterator<Item = (SlotId, &Slot)> {
        (0..).map(SlotId).zip(&self.slots)
    }

    /// Returns one slot. Panics: if the table has no such slot.
    pub fn slot(&self, slot: SlotId) -> &Slot {
        &self.slots[usize::from(slot.0)]
    }

    /// Returns the number of tokens in a slot's KV state. Panics: if the table has no such slot.
    pub fn n_held(&self, slot: SlotId) -> u32 {
        u32::try_from(self.slot(slot).tokens.len()).expect("a slot holds at most a context, a u32")
    }

    /// Returns how far slots can be rewound.
    pub fn memory(&self) -> MemoryKind {
        self.memory
    }

    /// Returns the number of tokens in all slots.
    pub fn held_tokens(&self) -> u64 {
        self.slots.iter().map(|slot| slot.tokens.len() as u64).sum()
    }

    /// Returns the position at which a prompt diverges from a response in a slot; `None` if it does not, or if less
    /// than a block of the response follows.
    ///
    /// The slot with the longest common prefix is used. Cost: O(slots + tokens in common).
    pub fn left_answer_at(&self, prompt: &[Token], root: &BlockHash) -> Option<u32> {
        let common = |slot: &Slot| slot.tokens.iter().zip(prompt).take_while(|(a, b)| a == b).count();
        let same_root = self.slots.iter().filter(|slot| slot.root.as_ref() == Some(root) && !slot.is_busy());
        let (n_common, slot) = same_root.map(|slot| (common(slot), slot)).max_by_key(|(n_common, _)| *n_common)?;
        let goes_on = n_common < prompt.len() && n_common + self.block_size_tokens as usize <= slot.tokens.len();
        (goes_on && n_common >= slot.n_last_prompt).then(|| u32::try_from(n_common).unwrap_or(u32::MAX))
    }

    /// Returns the number of cells without a token; idle slots' tokens occupy cells, too.
    pub fn free_cells(&self) -> u64 {
        self.slots.len() as u64 * u64::from(self.context_tokens) - self.held_tokens()
    }

    /// Assigns an idle slot to a sequence whose first tokens are in the slot.
    ///
    /// Panics: if the slot is busy or no token would remain to be computed.
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
        slot.state = SlotPhase::Busy(acquire.after_use);
        slot.last_used = self.tick;
        let Acquire { slot, root, prompt_chain, .. } = acquire;
        let announced_chain = (acquire.after_use == AfterUse::Keep).then_some(prompt_chain);
        self.tree.acquire(slot, root, announced_chain, n_start, acquire.rewinds_to_tokens as usize);
    }

    /// Sets the tenant that a slot is charged to until it is acquired again; `None` for a tenant without a share.
    pub fn set_tenant(&mut self, slot: SlotId, tenant: Option<TenantId>) {
        self.slots[usize::from(slot.0)].tenant = tenant;
    }

    /// Records that a request reuses the first `n_tokens` of a slot, there or in another slot.
    pub fn lend(&mut self, slot: SlotId, n_tokens: u32) {
        let n_reused = &mut self.slots[usize::from(slot.0)].n_reused;
        *n_reused = (*n_reused).max(n_tokens as usize);
    }

    /// Returns how many of a slot's first tokens have been reused since the last call.
    pub fn take_reused(&mut self, slot: SlotId) -> u32 {
        let n_reused = std::mem::take(&mut self.slots[usize::from(slot.0)].n_reused);
        u32::try_from(n_reused).expect("a slot holds at most a context, a u32")
    }

    /// Sets the minimum number of tokens to which a slot's state can be cut back.
    pub fn set_rewinds_to(&mut self, slot: SlotId, n_tokens: u32) {
        self.slots[usize::from(slot.0)].rewinds_to = n_tokens as usize;
        self.tree.set_rewinds_to(slot, n_tokens as usize);
    }

    /// Adds tokens whose KV state a busy slot has just computed.
    ///
    /// Panics: if the slot is idle or would have more tokens than a context.
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

    /// Records that moved state will follow the first `n_tokens` of a busy slot's prompt. Neither that state nor any
    /// state after it is exact, so none of it is announced.
    ///
    /// Panics: if the slot is idle or has more tokens.
    pub fn expect_moved(&mut self, slot: SlotId, n_tokens: u32) {
        let entry = &mut self.slots[usize::from(slot.0)];
        assert!(entry.is_busy(), "slot {slot} is idle");
        assert!(entry.tokens.len() <= n_tokens as usize, "slot {slot} holds more than {n_tokens} tokens");
        entry.prompt.truncate(n_tokens as usize);
        self.tree.cut(slot, &entry.prompt);
    }

    /// Adds tokens of its prompt with moved state to a busy slot, after [`Self::expect_moved`]. Neither they nor later
    /// tokens are exact.
    ///
    /// Panics: if the slot is idle, no token of its prompt would remain to be computed, or the move was not recorded.
    pub fn extend_moved(&mut self, slot: SlotId, tokens: &[Token]) {
        let entry = &mut self.slots[usize::from(slot.0)];
        assert!(entry.is_busy(), "slot {slot} is idle");
        assert!(entry.prompt.len() <= entry.n_exact, "slot {slot} announces what will not be exact");
        entry.tokens.extend_from_slice(tokens);
        assert!(entry.tokens.len() < entry.n_last_prompt, "slot {slot} would have nothing to compute");
    }

    /// Drops tokens from the middle of a busy slot; the tokens after them are not exact from then on.
    ///
    /// Panics: if the slot is idle or has fewer tokens.
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
    /// Panics: if the slot is idle.
    #[must_use]
    pub fn release(&mut self, slot: SlotId) -> AfterUse {
        self.tick += 1;
        let entry = &mut self.slots[usize::from(slot.0)];
        let SlotPhase::Busy(after_use) = entry.state else { panic!("slot {slot} is released twice") };
        entry.state = SlotPhase::Idle;
        entry.last_used = self.tick;
        entry.prompt = Vec::new();
        if after_use == AfterUse::Forget {
            entry.forget();
        }
        self.tree.release(slot, entry.exact_tokens(), entry.rewinds_to);
        after_use
    }

    /// Removes a slot's tokens, for example after its KV state was lost; a busy slot stays busy.
    pub fn forget(&mut self, slot: SlotId) {
        self.slots[usize::from(slot.0)].forget();
        self.tree.forget(slot);
    }

    /// Returns the changes for routers since the last call, in order.
    pub fn take_changes(&mut self) -> Vec<Change> {
        self.tree.take_changes()
    }

    /// Checks that all parts are consistent, for tests. Panics: if they are not.
    pub fn check_invariants(&self) {
        for (id, slot) in self.iter() {
            assert!(slot.tokens.len() <= self.context_tokens as usize, "slot {id} overflows");
            assert!(slot.tokens.is_empty() || slot.root.is_some(), "slot {id} holds tokens of no chain");
            assert!(slot.last_used <= self.tick);
            assert!(slot.n_exact <= slot.tokens.len(), "slot {id} holds fewer tokens than are exact");
            assert!(slot.n_reused <= slot.n_exact, "slot {id} has lent tokens that it does not hold");
            let is_running = self.tree.check_slot(id, slot.exact_tokens(), slot.rewinds_to);
            assert_eq!(is_running, slot.is_busy(), "slot {id} is wrongly counted as running or idle");
        }
        self.tree.check_invariants();
    }
}

#[cfg(test)]
mod tests;
