//! What the slots hold, as routers see it: blocks, each announced once however many slots hold it.
//!
//! Not here: the tokens themselves (`slot_table`, which drives this), sending (the shell).
//! The idea: every slot has a chain of blocks; a block is announced with its best holder and withdrawn when the last one
//! loses it. Applying the changes in order to an empty map gives what is held.
//!
//! Where a sequence rewinds to any token, the whole prompt is announced as filling when its request gets the slot, and
//! each block as ready once it is computed. Where only the exact end can be resumed (recurrent and hybrid models), a
//! running slot announces nothing, because nobody can start from it; when its sequence ends, its whole blocks are
//! announced with the last as the resume point. A prompt that has those blocks goes on from there unless it differs in
//! the few tokens behind the last whole block, so the announcement can be wrong by one continuation, never by a kind.

use hashbrown::HashMap;
use hashbrown::hash_map::Entry;
use warmpath_common::block_hash::{BlockHash, BlockKey, block_chain, block_hash};
use warmpath_common::ids::{SlotId, Token};
use warmpath_common::model::MemoryKind;
use warmpath_common::summary::{Change, Resume, Run, RunState, Tier};

use crate::slot_table::{Acquire, AfterUse, SlotTable};

/// Is the blocks of every slot and what has been said about them.
#[derive(Debug, Clone)]
pub struct Holdings {
    block_size_tokens: u32,
    resume: Resume,
    slots: Vec<Held>,
    blocks: HashMap<BlockHash, Block>,
    changes: Vec<Change>,
}

/// Is what one slot holds.
#[derive(Debug, Clone, Default)]
struct Held {
    root: Option<BlockHash>,
    chain: Vec<BlockHash>,
    /// Counts the blocks of the chain that are computed.
    n_ready: usize,
    /// Says that the sequence in the slot leaves nothing behind, so nothing is announced.
    is_secret: bool,
}

/// Is one block that some slot holds.
#[derive(Debug, Clone)]
struct Block {
    /// Is the block's place in every chain that has it.
    depth: usize,
    holders: Vec<SlotId>,
    /// Is what was last said; absent before anything was.
    said: Option<View>,
}

/// Is what is said about a block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct View {
    quality: Quality,
    slot: SlotId,
}

/// Is how good a holder is for a block; larger is better.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Quality {
    is_ready: bool,
    is_resume_point: bool,
}

impl Holdings {
    /// Returns the holdings of `n_slots` empty slots.
    pub fn new(n_slots: u16, block_size_tokens: u32, memory: MemoryKind) -> Self {
        let resume = if memory.rewinds_anywhere() { Resume::EveryBlock } else { Resume::LastBlock };
        Self {
            block_size_tokens,
            resume,
            slots: vec![Held::default(); usize::from(n_slots)],
            blocks: HashMap::new(),
            changes: Vec::new(),
        }
    }

    /// Returns the changes since the last call, in order.
    pub fn take_changes(&mut self) -> Vec<Change> {
        std::mem::take(&mut self.changes)
    }

    pub(crate) fn acquire(&mut self, slot: SlotId, acquire: &Acquire<'_>, n_keep_tokens: usize) {
        let held = &mut self.slots[usize::from(slot.0)];
        held.root = Some(acquire.root);
        held.is_secret = acquire.after_use == AfterUse::Forget;
        let announces = !held.is_secret && self.resume == Resume::EveryBlock;
        let chain = if announces { acquire.prompt_chain.to_vec() } else { Vec::new() };
        let n_ready = (n_keep_tokens / self.block_size_tokens as usize).min(chain.len());
        self.set(slot, chain, n_ready);
    }

    pub(crate) fn extend(&mut self, slot: SlotId, tokens: &[Token]) {
        let block_size = self.block_size_tokens as usize;
        let n_whole = tokens.len() / block_size;
        let held = &self.slots[usize::from(slot.0)];
        if held.is_secret || self.resume == Resume::LastBlock || n_whole == held.n_ready {
            return;
        }
        let Some(root) = held.root else { return };
        let mut chain = held.chain.clone();
        while chain.len() < n_whole {
            let parent = chain.last().unwrap_or(&root);
            let start = chain.len() * block_size;
            chain.push(block_hash(parent, &tokens[start..start + block_size]));
        }
        self.set(slot, chain, n_whole);
    }

    pub(crate) fn release(&mut self, slot: SlotId, tokens: &[Token]) {
        let held = &self.slots[usize::from(slot.0)];
        let Some(root) = held.root else { return };
        let n_whole = tokens.len() / self.block_size_tokens as usize;
        let chain = match self.resume {
            Resume::EveryBlock => held.chain[..n_whole].to_vec(),
            Resume::LastBlock => block_chain(&root, tokens, self.block_size_tokens),
        };
        self.set(slot, chain, n_whole);
    }

    pub(crate) fn forget(&mut self, slot: SlotId) {
        self.set(slot, Vec::new(), 0);
    }

    /// Gives a slot another chain and says what that changes.
    fn set(&mut self, slot: SlotId, chain: Vec<BlockHash>, n_ready: usize) {
        let held = &mut self.slots[usize::from(slot.0)];
        let n_common = held.chain.iter().zip(&chain).take_while(|(old, new)| old == new).count();
        let n_settled = n_common.min(held.n_ready).min(n_ready);
        let dropped = held.chain.split_off(n_common);
        held.n_ready = n_ready;
        held.chain = chain;
        for (depth, hash) in self.slots[usize::from(slot.0)].chain.iter().enumerate().skip(n_common) {
            let fresh = || Block { depth, holders: Vec::new(), said: None };
            self.blocks.entry(*hash).or_insert_with(fresh).holders.push(slot);
        }
        let removed: Vec<BlockKey> = dropped.iter().filter_map(|hash| self.drop_holder(hash, slot)).collect();
        if !removed.is_empty() {
            self.changes.push(Change::Removed(removed));
        }
        // The chain may hold at its end what another chain was said to end with, so its last settled block counts too.
        let touched = self.slots[usize::from(slot.0)].chain[n_settled.saturating_sub(1)..].to_vec();
        self.say(&dropped);
        self.say(&touched);
    }

    /// Takes a slot from a block's holders and returns the block's key if it was the last one and was announced.
    fn drop_holder(&mut self, hash: &BlockHash, slot: SlotId) -> Option<BlockKey> {
        let Entry::Occupied(mut entry) = self.blocks.entry(*hash) else { return None };
        let holders = &mut entry.get_mut().holders;
        if let Some(idx) = holders.iter().position(|holder| *holder == slot) {
            holders.swap_remove(idx);
        }
        let is_gone = holders.is_empty();
        (is_gone && entry.remove().said.is_some()).then(|| hash.key())
    }

    /// Announces those of some consecutive blocks of a chain about which something else is true than was said.
    fn say(&mut self, chain: &[BlockHash]) {
        for idx in 0..chain.len() {
            let Some(view) = self.news(&chain[idx]) else { continue };
            let run = match self.resume {
                Resume::EveryBlock => self.stretch(&chain[idx..], view),
                Resume::LastBlock => self.segment(&chain[idx]),
            };
            self.changes.push(Change::Stored(run));
        }
    }

    /// Returns the run of blocks from the first of `chain` on about which there is the same news.
    fn stretch(&mut self, chain: &[BlockHash], view: View) -> Run {
        let n = chain.iter().take_while(|hash| self.news(hash) == Some(view)).count();
        for hash in &chain[..n] {
            self.remember(hash, view);
        }
        self.run(&chain[..n], view)
    }

    /// Returns the run that ends with the first resume point at or behind `hash` and starts behind the one before.
    fn segment(&mut self, hash: &BlockHash) -> Run {
        let block = &self.blocks[hash];
        let chain = self.slots[usize::from(block.holders[0].0)].chain.clone();
        let views: Vec<View> = chain.iter().map(|hash| self.best(&self.blocks[hash])).collect();
        let is_end = |idx: &usize| views[*idx].quality.is_resume_point;
        let end = (block.depth..chain.len()).find(is_end).expect("a chain ends with a resume point");
        let start = (0..block.depth).rev().find(is_end).map_or(0, |idx| idx + 1);
        let slot = views[end].slot;
        for idx in start..=end {
            self.remember(&chain[idx], View { slot, ..views[idx] });
        }
        self.run(&chain[start..=end], views[end])
    }

    fn run(&self, chain: &[BlockHash], view: View) -> Run {
        Run {
            keys: chain.iter().map(BlockHash::key).collect(),
            tier: Tier::Resident,
            state: if view.quality.is_ready { RunState::Ready } else { RunState::Filling },
            resume: self.resume,
            slot: Some(view.slot),
        }
    }

    fn remember(&mut self, hash: &BlockHash, view: View) {
        if let Some(block) = self.blocks.get_mut(hash) {
            block.said = Some(view);
        }
    }

    /// Returns what must be said about a block, if it is held and what was said is no longer the best truth.
    fn news(&self, hash: &BlockHash) -> Option<View> {
        let block = self.blocks.get(hash)?;
        let best = self.best(block);
        let still_true = block.said.is_some_and(|said| {
            let holds = block.holders.contains(&said.slot);
            holds && said.quality == best.quality && self.quality(block, said.slot) == best.quality
        });
        (!still_true).then_some(best)
    }

    /// Returns a block's best holder; of equals the lowest.
    fn best(&self, block: &Block) -> View {
        let views = block.holders.iter().map(|slot| View { quality: self.quality(block, *slot), slot: *slot });
        let best = views.max_by_key(|view| (view.quality, std::cmp::Reverse(view.slot)));
        best.expect("a block without holders is removed")
    }

    fn quality(&self, block: &Block, slot: SlotId) -> Quality {
        let held = &self.slots[usize::from(slot.0)];
        let is_last = block.depth + 1 == held.chain.len();
        Quality { is_ready: block.depth < held.n_ready, is_resume_point: self.resume == Resume::EveryBlock || is_last }
    }

    pub(crate) fn check_invariants(&self, table: &SlotTable) {
        for (id, slot) in table.iter() {
            let held = &self.slots[usize::from(id.0)];
            let n_whole = slot.tokens().len() / self.block_size_tokens as usize;
            let is_silent = slot.is_busy() && (held.is_secret || self.resume == Resume::LastBlock);
            if is_silent {
                assert!(held.chain.is_empty(), "slot {id} announces what nobody can use");
            } else if let Some(root) = &held.root {
                let chain = block_chain(root, slot.tokens(), self.block_size_tokens);
                assert_eq!(held.chain[..n_whole], chain, "slot {id} announces other blocks than it holds");
                assert_eq!(held.n_ready, n_whole, "slot {id} counts its ready blocks wrong");
                assert!(slot.is_busy() || held.chain.len() == n_whole, "slot {id} announces blocks that never come");
            }
        }
        let n_held: usize = self.slots.iter().map(|held| held.chain.len()).sum();
        let n_holders: usize = self.blocks.values().map(|block| block.holders.len()).sum();
        assert_eq!(n_held, n_holders, "a block's holders are counted wrong");
        for (hash, block) in &self.blocks {
            assert_eq!(self.news(hash), None, "a block at depth {} was announced wrong", block.depth);
        }
    }
}
