//! The prefix tree: the slots and stored chunks that hold each block, and what of it is announced to routers.
//!
//! The tokens are in `slot_table`, which drives this module, and stored state is in `chunk_index`; the shell sends the
//! changes.
//!
//! A block's chained hash names the whole prefix that ends with it. So a radix tree whose digits are blocks fits into
//! one flat hash map. Every slot holds a path from the root, every stored chunk a part of a path, and each block knows
//! its holders. A look-up walks the prompt's chain until the next block has no holder.
//!
//! A block is announced with its best holder and withdrawn when the last one loses it. Applying the changes in order to
//! an empty map gives what is held. If a sequence can be rewound to any token, the whole prompt is announced as filling
//! when its request gets the slot, and each block as ready once it is computed. If only the exact end or a checkpoint
//! can be resumed (recurrent and hybrid models), a running slot announces nothing, because no request can start from
//! it. When its sequence ends, its whole blocks are announced with the last as the resume point. A prompt with those
//! blocks resumes there unless it differs in the few tokens behind the last whole block. The announcement can be wrong
//! for that one continuation only.

use std::cmp::Reverse;
use std::sync::Arc;

use hashbrown::HashMap;
use hashbrown::hash_map::Entry;
use warmpath_common::block_hash::{BlockHash, BlockKey};
use warmpath_common::ids::{SlotId, Token};
use warmpath_common::model::MemoryKind;
use warmpath_common::summary::{Change, Resume, Run, RunState, Tier};

use crate::chunk_index::{Kind, News};
use crate::slot_table::{Acquire, AfterUse, SlotTable};

/// Function that hashes one block behind its parent, as [`warmpath_common::block_hash::block_hash`] does; tests may use
/// a worse one.
pub type BlockHasher = fn(&BlockHash, &[Token]) -> BlockHash;

/// Holders of all blocks, and what has been announced about them.
#[derive(Debug, Clone)]
pub struct PrefixTree {
    block_size_tokens: u32,
    resume: Resume,
    stored_state_rewinds: bool,
    hasher: BlockHasher,
    held: HashMap<Holder, Held>,
    /// Every held block, with its position in the chain.
    blocks: HashMap<Place, Block>,
    changes: Vec<Change>,
}

/// Identity of a block: its depth in every chain that has it, and its hash.
type Place = (usize, BlockHash);

/// Holder of a block.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
enum Holder {
    Slot(SlotId),
    /// The chunk or checkpoint whose last block is this one.
    Stored(BlockHash),
}

impl Holder {
    fn slot(self) -> Option<SlotId> {
        match self {
            Self::Slot(slot) => Some(slot),
            Self::Stored(_) => None,
        }
    }
}

/// Part of one chain that one holder holds.
#[derive(Debug, Clone)]
struct Held {
    root: Option<BlockHash>,
    /// Depth of the first block: 0 except for stored chunks.
    first_block: usize,
    chain: Arc<Vec<BlockHash>>,
    /// Number of the chain's blocks that are computed.
    n_ready: usize,
    /// Whether the slot's sequence asked to leave nothing in the cache, so that nothing is announced.
    is_secret: bool,
    tier: Tier,
}

impl Default for Held {
    fn default() -> Self {
        let chain = Arc::default();
        Self { root: None, first_block: 0, chain, n_ready: 0, is_secret: false, tier: Tier::Resident }
    }
}

/// A block that has at least one holder.
#[derive(Debug, Clone)]
struct Block {
    holders: Vec<Holder>,
    /// State that was last announced; absent before the first announcement.
    said: Option<View>,
}

/// Announced state of a block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct View {
    quality: Quality,
    slot: Option<SlotId>,
}

/// Rank of a holder of a block; larger is better.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Quality {
    is_ready: bool,
    is_resume_point: bool,
    tier: Reverse<Tier>,
}

impl PrefixTree {
    /// Returns the tree of `n_slots` empty slots and nothing stored.
    pub fn new(n_slots: u16, block_size_tokens: u32, memory: MemoryKind, hasher: BlockHasher) -> Self {
        Self {
            block_size_tokens,
            resume: if memory.rewinds_anywhere() { Resume::EveryBlock } else { Resume::LastBlock },
            stored_state_rewinds: memory.stored_state_rewinds(),
            hasher,
            held: (0..n_slots).map(|slot| (Holder::Slot(SlotId(slot)), Held::default())).collect(),
            blocks: HashMap::new(),
            changes: Vec::new(),
        }
    }

    /// Returns how many of the chain's first blocks each slot has computed; slots without any are left out.
    ///
    /// Cost: O(blocks held x their holders). Blocks are compared by their hashes alone.
    pub fn slots_with(&self, chain: &[BlockHash]) -> Vec<(SlotId, usize)> {
        let mut found: Vec<(SlotId, usize)> = Vec::new();
        for (depth, hash) in chain.iter().enumerate() {
            let Some(block) = self.blocks.get(&(depth, *hash)) else { break };
            let is_ready = |holder: &&Holder| depth < self.held[*holder].n_ready;
            for slot in block.holders.iter().filter(is_ready).filter_map(|holder| holder.slot()) {
                match found.iter_mut().find(|(known, _)| *known == slot) {
                    Some((_, n_blocks)) => *n_blocks = depth + 1,
                    None => found.push((slot, depth + 1)),
                }
            }
        }
        found
    }

    /// Returns the hashes of all whole blocks that an idle slot holds. For a running slot, the blocks of its prompt are
    /// included, unless it announces nothing while it runs.
    pub fn chain(&self, slot: SlotId) -> &[BlockHash] {
        self.held.get(&Holder::Slot(slot)).map_or(&[], |held| &held.chain)
    }

    /// Returns the hashes of all whole blocks of `tokens` under a root.
    pub fn chain_of(&self, root: &BlockHash, tokens: &[Token]) -> Vec<BlockHash> {
        chain_of(self.hasher, (root, tokens), self.block_size_tokens)
    }

    /// Returns the changes since the last call, in order.
    pub fn take_changes(&mut self) -> Vec<Change> {
        std::mem::take(&mut self.changes)
    }

    /// Applies a change of one of the chunk index's chunks.
    ///
    /// If only checkpoints can be resumed, other chunks are useless alone and are not announced. Stored state is not
    /// announced either if slots can be rewound and stored state cannot: one chain cannot be announced with two kinds
    /// of resume points.
    pub fn apply(&mut self, news: News) {
        let is_of_use = match self.resume {
            Resume::EveryBlock => self.stored_state_rewinds,
            Resume::LastBlock | Resume::Nowhere => news.kind == Kind::Checkpoint,
        };
        if !is_of_use {
            return;
        }
        let Some(last) = news.blocks.last() else { return };
        let holder = Holder::Stored(*last);
        let chain = if news.tier.is_some() { Arc::new(news.blocks.to_vec()) } else { Arc::default() };
        let held = Held {
            root: None,
            first_block: news.first_block,
            n_ready: chain.len(),
            chain,
            is_secret: false,
            tier: news.tier.unwrap_or(Tier::Resident),
        };
        self.set(holder, held);
    }

    pub(crate) fn acquire(&mut self, slot: SlotId, acquire: &Acquire<'_>, n_keep_tokens: usize) {
        let is_secret = acquire.after_use == AfterUse::Forget;
        let announces = !is_secret && self.resume == Resume::EveryBlock;
        let chain = if announces { acquire.prompt_chain.to_vec() } else { Vec::new() };
        let n_ready = (n_keep_tokens / self.block_size_tokens as usize).min(chain.len());
        let held = Held { root: Some(acquire.root), chain: Arc::new(chain), n_ready, is_secret, ..Held::default() };
        self.set(Holder::Slot(slot), held);
    }

    pub(crate) fn extend(&mut self, slot: SlotId, tokens: &[Token]) {
        let n_whole = tokens.len() / self.block_size_tokens as usize;
        let held = &self.held[&Holder::Slot(slot)];
        if held.is_secret || self.resume == Resume::LastBlock || n_whole == held.n_ready {
            return;
        }
        let Some(root) = held.root else { return };
        let mut held = held.clone();
        self.lengthen(Arc::make_mut(&mut held.chain), &root, tokens);
        held.n_ready = n_whole;
        self.set(Holder::Slot(slot), held);
    }

    pub(crate) fn release(&mut self, slot: SlotId, tokens: &[Token]) {
        let mut held = self.held[&Holder::Slot(slot)].clone();
        let Some(root) = held.root else { return };
        let chain = Arc::make_mut(&mut held.chain);
        self.lengthen(chain, &root, tokens);
        chain.truncate(tokens.len() / self.block_size_tokens as usize);
        held.n_ready = chain.len();
        self.set(Holder::Slot(slot), held);
    }

    /// Records that only the first tokens of a running slot are still exact, and that its prompt will add no more.
    pub(crate) fn cut(&mut self, slot: SlotId, exact: &[Token]) {
        let mut held = self.held[&Holder::Slot(slot)].clone();
        Arc::make_mut(&mut held.chain).truncate(exact.len() / self.block_size_tokens as usize);
        held.n_ready = held.n_ready.min(held.chain.len());
        self.set(Holder::Slot(slot), held);
    }

    pub(crate) fn forget(&mut self, slot: SlotId) {
        let held = &self.held[&Holder::Slot(slot)];
        let held = Held { root: held.root, is_secret: held.is_secret, ..Held::default() };
        self.set(Holder::Slot(slot), held);
    }

    /// Appends the hashes of the tokens' whole blocks that a chain lacks.
    fn lengthen(&self, chain: &mut Vec<BlockHash>, root: &BlockHash, tokens: &[Token]) {
        lengthen(self.hasher, chain, (root, tokens), self.block_size_tokens);
    }

    /// Replaces a holder's part of a chain and adds the changes that follow.
    fn set(&mut self, holder: Holder, new: Held) {
        let old = self.held.get(&holder).cloned().unwrap_or_default();
        let is_same_place = old.first_block == new.first_block && old.tier == new.tier;
        let is_same = |(old_hash, new_hash): &(&BlockHash, &BlockHash)| {
            old.first_block == new.first_block && old_hash == new_hash
        };
        let n_common = old.chain.iter().zip(&*new.chain).take_while(is_same).count();
        let n_settled = if is_same_place { n_common.min(old.n_ready).min(new.n_ready) } else { 0 };
        for (idx, hash) in new.chain.iter().enumerate().skip(n_common) {
            let fresh = || Block { holders: Vec::new(), said: None };
            self.blocks.entry((new.first_block + idx, *hash)).or_insert_with(fresh).holders.push(holder);
        }
        let (first_block, touched) = (new.first_block, Arc::clone(&new.chain));
        if new.chain.is_empty() && holder.slot().is_none() {
            self.held.remove(&holder);
        } else {
            self.held.insert(holder, new);
        }
        let dropped = places(old.first_block, &old.chain).skip(n_common);
        let removed: Vec<BlockKey> = dropped.filter_map(|place| self.drop_holder(place, holder)).collect();
        if !removed.is_empty() {
            self.changes.push(Change::Removed(removed));
        }
        self.say((old.first_block, &old.chain), n_common);
        // The new chain may contain the resume point that another chain was announced with, so its last settled block
        // counts too.
        self.say((first_block, &touched), n_settled.saturating_sub(1));
    }

    /// Removes a holder from a block. Returns the block's key if it was the last holder and the block was announced.
    fn drop_holder(&mut self, place: Place, holder: Holder) -> Option<BlockKey> {
        let Entry::Occupied(mut entry) = self.blocks.entry(place) else { return None };
        let holders = &mut entry.get_mut().holders;
        if let Some(idx) = holders.iter().position(|other| *other == holder) {
            holders.swap_remove(idx);
        }
        let is_gone = holders.is_empty();
        (is_gone && entry.remove().said.is_some()).then(|| place.1.key())
    }

    /// Announces the blocks of a part of a chain, except its first `n_skipped`, whose announced state is outdated.
    fn say(&mut self, (first_block, chain): (usize, &[BlockHash]), n_skipped: usize) {
        for (idx, hash) in chain.iter().enumerate().skip(n_skipped) {
            let place = (first_block + idx, *hash);
            let Some(view) = self.news(&place) else { continue };
            let run = match self.resume {
                Resume::EveryBlock => self.stretch((place.0, &chain[idx..]), view),
                Resume::LastBlock | Resume::Nowhere => self.segment(&place),
            };
            self.changes.push(Change::Stored(run));
        }
    }

    /// Returns the run of blocks, from the first of `chain` on, that have to be announced with the same state.
    fn stretch(&mut self, (first_block, chain): (usize, &[BlockHash]), view: View) -> Run {
        let n = places(first_block, chain).take_while(|place| self.news(place) == Some(view)).count();
        for place in places(first_block, &chain[..n]) {
            self.remember(&place, view);
        }
        self.run(&chain[..n], view)
    }

    /// Returns the run that ends with the first resume point at or behind a block and starts behind the previous one.
    fn segment(&mut self, place: &Place) -> Run {
        let depth = place.0;
        let chain = Arc::clone(&self.held[&self.blocks[place].holders[0]].chain);
        let views: Vec<View> = places(0, &chain).map(|place| self.best(place.0, &self.blocks[&place])).collect();
        let is_end = |idx: &usize| views[*idx].quality.is_resume_point;
        let end = (depth..chain.len()).find(is_end).expect("a chain ends with a resume point");
        let start = (0..depth).rev().find(is_end).map_or(0, |idx| idx + 1);
        let (slot, tier) = (views[end].slot, views[end].quality.tier);
        for idx in start..=end {
            let quality = Quality { tier, ..views[idx].quality };
            self.remember(&(idx, chain[idx]), View { slot, quality });
        }
        self.run(&chain[start..=end], views[end])
    }

    fn run(&self, chain: &[BlockHash], view: View) -> Run {
        Run {
            keys: chain.iter().map(BlockHash::key).collect(),
            tier: view.quality.tier.0,
            state: if view.quality.is_ready { RunState::Ready } else { RunState::Filling },
            resume: self.resume,
            slot: view.slot,
        }
    }

    fn remember(&mut self, place: &Place, view: View) {
        if let Some(block) = self.blocks.get_mut(place) {
            block.said = Some(view);
        }
    }

    /// Returns the state to announce for a block, if it has a holder and its announced state is outdated.
    ///
    /// Between resume points it does not matter which holder a block was announced with, as long as that one has it.
    fn news(&self, place: &Place) -> Option<View> {
        let block = self.blocks.get(place)?;
        let best = self.best(place.0, block);
        let counts = |quality: Quality| {
            let decides = self.resume == Resume::EveryBlock || quality.is_resume_point;
            (quality.is_ready, quality.is_resume_point, decides.then_some(quality.tier))
        };
        let still_true = block.said.is_some_and(|said| {
            let holds = |holder: &Holder| holder.slot() == said.slot && self.tier(*holder) == said.quality.tier;
            let said_holders = block.holders.iter().filter(|holder| holds(holder));
            let mut qualities = said_holders.map(|holder| counts(self.quality(place.0, *holder)));
            counts(said.quality) == counts(best.quality) && qualities.any(|quality| quality == counts(best.quality))
        });
        (!still_true).then_some(best)
    }

    /// Returns a block's best holder; ties go to the lowest.
    fn best(&self, depth: usize, block: &Block) -> View {
        let best = block.holders.iter().max_by_key(|holder| (self.quality(depth, **holder), Reverse(**holder)));
        let holder = *best.expect("a block without holders is removed");
        View { quality: self.quality(depth, holder), slot: holder.slot() }
    }

    fn tier(&self, holder: Holder) -> Reverse<Tier> {
        Reverse(self.held[&holder].tier)
    }

    fn quality(&self, depth: usize, holder: Holder) -> Quality {
        let held = &self.held[&holder];
        let is_last = depth + 1 == held.first_block + held.chain.len();
        Quality {
            is_ready: depth < held.first_block + held.n_ready,
            is_resume_point: self.resume == Resume::EveryBlock || is_last,
            tier: Reverse(held.tier),
        }
    }

    pub(crate) fn check_invariants(&self, table: &SlotTable) {
        for (id, slot) in table.iter() {
            let held = &self.held[&Holder::Slot(id)];
            let n_whole = slot.exact_tokens().len() / self.block_size_tokens as usize;
            let is_silent = slot.is_busy() && (held.is_secret || self.resume == Resume::LastBlock);
            if is_silent {
                assert!(held.chain.is_empty(), "slot {id} announces what nobody can use");
            } else if let Some(root) = &held.root {
                let chain = self.chain_of(root, slot.exact_tokens());
                assert_eq!(held.chain[..n_whole], chain, "slot {id} announces other blocks than it holds");
                assert_eq!(held.n_ready, n_whole, "slot {id} counts its ready blocks wrong");
                assert!(slot.is_busy() || held.chain.len() == n_whole, "slot {id} announces blocks that never come");
            }
        }
        let n_held: usize = self.held.values().map(|held| held.chain.len()).sum();
        let n_holders: usize = self.blocks.values().map(|block| block.holders.len()).sum();
        assert_eq!(n_held, n_holders, "a block's holders are counted wrong");
        for place in self.blocks.keys() {
            assert_eq!(self.news(place), None, "a block at depth {} was announced wrong", place.0);
        }
    }
}

/// Returns the hashes of all whole blocks of `tokens` under a root.
pub fn chain_of(hasher: BlockHasher, (root, tokens): (&BlockHash, &[Token]), block_size_tokens: u32) -> Vec<BlockHash> {
    let mut chain = Vec::with_capacity(tokens.len() / block_size_tokens as usize);
    lengthen(hasher, &mut chain, (root, tokens), block_size_tokens);
    chain
}

/// Appends the hashes of the tokens' whole blocks that a chain lacks.
fn lengthen(
    hasher: BlockHasher,
    chain: &mut Vec<BlockHash>,
    (root, tokens): (&BlockHash, &[Token]),
    block_size_tokens: u32,
) {
    for block in tokens.chunks_exact(block_size_tokens as usize).skip(chain.len()) {
        let hash = hasher(chain.last().unwrap_or(root), block);
        chain.push(hash);
    }
}

/// Returns the identities of the blocks of a part of a chain.
fn places(first_block: usize, chain: &[BlockHash]) -> impl Iterator<Item = Place> {
    (first_block..).zip(chain.iter().copied())
}
