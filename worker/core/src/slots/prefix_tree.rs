//! The prefix tree: the slots and stored chunks that hold each block, and the announcements of blocks to routers.
//!
//! The tokens are in `slot_table`, which updates this tree, and stored state is in `chunk_index`; the shell sends the
//! changes.
//!
//! A block's chained hash names the whole prefix up to the block's end. So one flat hash map is enough for a radix tree
//! over blocks. Every slot holds a path from the root and every stored chunk a part of a path, and each block has a
//! list of its holders. A look-up follows the prompt's chain until the next block has no holder.
//!
//! A block is announced with its best holder, and withdrawn when its last holder loses it. All changes, applied in
//! order to an empty map, give the held blocks. The whole prompt is announced as filling when its request gets the
//! slot, and each block as ready once it is computed.
//!
//! The announcement of a block includes whether a request can resume at the block's end:
//!
//! - Full attention: always.
//! - Sliding window: in a slot, at any position to which its state can be cut back; elsewhere at checkpoints.
//! - Hybrid: at checkpoints, and at the end of an idle slot.
//! - Recurrent: the same, and a running slot announces nothing, because no request can resume there.
//!
//! A checkpoint needs the state of the tokens before it, in a slot or in the store, except for recurrent models.
//!
//! An idle slot that cannot be rewound is announced as a resume point at the end of its last whole block, although it
//! also has the few tokens after that block. The announcement is wrong only for a prompt that differs in these tokens.

use std::cmp::Reverse;
use std::sync::Arc;

use hashbrown::HashMap;
use hashbrown::hash_map::Entry;
use warmpath_common::block_hash::{BlockHash, BlockKey};
use warmpath_common::ids::{SlotId, Token};
use warmpath_common::model::MemoryKind;
use warmpath_common::summary::{Change, Resume, Run, RunState, Tier};

use crate::store::chunk_index::{StateKind, TierChange};

/// Function that hashes a block and its parent's hash, like [`warmpath_common::block_hash::block_hash`]; tests may use
/// a worse one.
pub type BlockHasher = fn(&BlockHash, &[Token]) -> BlockHash;

/// Holders and announcements of all blocks.
#[derive(Debug, Clone)]
pub struct PrefixTree {
    block_size_tokens: u32,
    memory: MemoryKind,
    hasher: BlockHasher,
    by_holder: HashMap<Holder, HeldBlocks>,
    /// Every held block, with its position in the chain.
    blocks: HashMap<BlockId, Block>,
    changes: Vec<Change>,
}

/// Identity of a block: its depth in the chain, and its hash.
type BlockId = (usize, BlockHash);

/// Holder of a block.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
enum Holder {
    Slot(SlotId),
    /// Chunk, named by its last block.
    Chunk(BlockHash),
    /// Checkpoint at the end of this block. It holds only this block, or the whole chain if it needs no other state.
    Checkpoint(BlockHash),
}

impl Holder {
    fn slot(self) -> Option<SlotId> {
        match self {
            Self::Slot(slot) => Some(slot),
            Self::Chunk(_) | Self::Checkpoint(_) => None,
        }
    }
}

/// Blocks of one chain that one holder has.
#[derive(Debug, Clone)]
struct HeldBlocks {
    root: Option<BlockHash>,
    /// Depth of the first block: 0 for slots.
    first_block: usize,
    chain: Arc<Vec<BlockHash>>,
    /// Number of the chain's blocks that are computed.
    n_ready: usize,
    /// Whether the slot's request leaves nothing in the cache, so that nothing is announced.
    is_secret: bool,
    /// Whether the slot runs a sequence.
    is_running: bool,
    /// Minimum number of tokens to which the slot's state can be cut back, for memory that can be rewound.
    rewinds_to: usize,
    tier: Tier,
}

impl Default for HeldBlocks {
    fn default() -> Self {
        let chain = Arc::default();
        Self {
            root: None,
            first_block: 0,
            chain,
            n_ready: 0,
            is_secret: false,
            is_running: false,
            rewinds_to: 0,
            tier: Tier::Resident,
        }
    }
}

/// A block that has at least one holder.
#[derive(Debug, Clone)]
struct Block {
    holders: Vec<Holder>,
    /// Announced state; `None` if the block is not announced.
    announced: Option<BlockView>,
}

/// Announced state of a block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct BlockView {
    quality: Quality,
    slot: Option<SlotId>,
}

/// Rank of a holder of a block; larger is better.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Quality {
    is_resume_point: bool,
    is_ready: bool,
    tier: Reverse<Tier>,
}

impl PrefixTree {
    /// Returns the tree of `n_slots` empty slots and an empty store.
    pub fn new(n_slots: u16, block_size_tokens: u32, memory: MemoryKind, hasher: BlockHasher) -> Self {
        Self {
            block_size_tokens,
            memory,
            hasher,
            by_holder: (0..n_slots).map(|slot| (Holder::Slot(SlotId(slot)), HeldBlocks::default())).collect(),
            blocks: HashMap::new(),
            changes: Vec::new(),
        }
    }

    /// Returns how many of the chain's first blocks each slot has computed, without slots that have none.
    ///
    /// Cost: O(held blocks of the chain x their holders). Blocks are compared only by their hashes.
    pub fn slots_with(&self, chain: &[BlockHash]) -> Vec<(SlotId, usize)> {
        let mut slots_found: Vec<(SlotId, usize)> = Vec::new();
        for (depth, hash) in chain.iter().enumerate() {
            let Some(block) = self.blocks.get(&(depth, *hash)) else { break };
            let is_ready = |holder: &&Holder| depth < self.by_holder[*holder].n_ready;
            for slot in block.holders.iter().filter(is_ready).filter_map(|holder| holder.slot()) {
                match slots_found.iter_mut().find(|(known, _)| *known == slot) {
                    Some((_, n_blocks)) => *n_blocks = depth + 1,
                    None => slots_found.push((slot, depth + 1)),
                }
            }
        }
        slots_found
    }

    /// Returns the hashes of all whole blocks that an idle slot holds. For a running slot, the blocks of its prompt are
    /// included, unless it announces nothing while it runs.
    pub fn chain(&self, slot: SlotId) -> &[BlockHash] {
        self.by_holder.get(&Holder::Slot(slot)).map_or(&[], |blocks| &blocks.chain)
    }

    /// Returns the hashes of all whole blocks of `tokens` under a root.
    pub fn chain_of(&self, root: &BlockHash, tokens: &[Token]) -> Vec<BlockHash> {
        chain_of(self.hasher, root, tokens, self.block_size_tokens)
    }

    /// Returns the changes since the last call, in order.
    pub fn take_changes(&mut self) -> Vec<Change> {
        std::mem::take(&mut self.changes)
    }

    /// Applies a change of one of the chunk index's chunks.
    pub fn apply(&mut self, news: TierChange) {
        let Some(last) = news.blocks.last() else { return };
        let needs_others = news.kind == StateKind::Checkpoint && self.memory != MemoryKind::Recurrent;
        let n_skipped = if needs_others { news.blocks.len() - 1 } else { 0 };
        let holder = match news.kind {
            StateKind::Chunk => Holder::Chunk(*last),
            StateKind::Checkpoint => Holder::Checkpoint(*last),
        };
        let blocks = news.tier.map(|tier| HeldBlocks {
            first_block: news.first_block + n_skipped,
            n_ready: news.blocks.len() - n_skipped,
            chain: Arc::new(news.blocks[n_skipped..].to_vec()),
            tier,
            ..HeldBlocks::default()
        });
        self.set(holder, blocks.unwrap_or_default());
    }

    /// Announces the blocks of a prompt that a slot starts to compute, of which the first `n_start_tokens` are there.
    /// `prompt_chain` is `None` if the sequence leaves nothing in the cache, so that none of its blocks are announced.
    pub(crate) fn acquire(
        &mut self,
        slot: SlotId,
        root: BlockHash,
        prompt_chain: Option<&[BlockHash]>,
        n_start_tokens: usize,
        rewinds_to: usize,
    ) {
        let is_secret = prompt_chain.is_none();
        let announced_chain = prompt_chain.filter(|_| self.memory != MemoryKind::Recurrent);
        let chain = announced_chain.map_or(Vec::new(), <[BlockHash]>::to_vec);
        let n_ready = (n_start_tokens / self.block_size_tokens as usize).min(chain.len());
        let blocks = HeldBlocks {
            root: Some(root),
            chain: Arc::new(chain),
            n_ready,
            is_secret,
            is_running: true,
            rewinds_to,
            ..HeldBlocks::default()
        };
        self.set(Holder::Slot(slot), blocks);
    }

    pub(crate) fn extend(&mut self, slot: SlotId, tokens: &[Token]) {
        let n_whole = tokens.len() / self.block_size_tokens as usize;
        let blocks = &self.by_holder[&Holder::Slot(slot)];
        if blocks.is_secret || self.memory == MemoryKind::Recurrent || n_whole == blocks.n_ready {
            return;
        }
        let Some(root) = blocks.root else { return };
        let mut blocks = blocks.clone();
        self.lengthen(Arc::make_mut(&mut blocks.chain), &root, tokens);
        blocks.n_ready = n_whole;
        self.set(Holder::Slot(slot), blocks);
    }

    /// Records the tokens that a slot keeps after its sequence, all of them exact.
    pub(crate) fn release(&mut self, slot: SlotId, tokens: &[Token], rewinds_to: usize) {
        let mut blocks = self.by_holder[&Holder::Slot(slot)].clone();
        let Some(root) = blocks.root else { return };
        let chain = Arc::make_mut(&mut blocks.chain);
        self.lengthen(chain, &root, tokens);
        chain.truncate(tokens.len() / self.block_size_tokens as usize);
        blocks.n_ready = chain.len();
        blocks.is_running = false;
        blocks.rewinds_to = rewinds_to;
        self.set(Holder::Slot(slot), blocks);
    }

    /// Records the minimum number of tokens to which a slot's state can be cut back.
    pub(crate) fn set_rewinds_to(&mut self, slot: SlotId, n_tokens: usize) {
        let blocks = &self.by_holder[&Holder::Slot(slot)];
        if blocks.rewinds_to != n_tokens {
            let blocks = HeldBlocks { rewinds_to: n_tokens, ..blocks.clone() };
            self.set(Holder::Slot(slot), blocks);
        }
    }

    /// Records that only the first tokens of a running slot are exact, and that its prompt will add no more exact ones.
    pub(crate) fn cut(&mut self, slot: SlotId, exact: &[Token]) {
        let mut blocks = self.by_holder[&Holder::Slot(slot)].clone();
        Arc::make_mut(&mut blocks.chain).truncate(exact.len() / self.block_size_tokens as usize);
        blocks.n_ready = blocks.n_ready.min(blocks.chain.len());
        self.set(Holder::Slot(slot), blocks);
    }

    pub(crate) fn forget(&mut self, slot: SlotId) {
        let HeldBlocks { root, is_secret, is_running, .. } = self.by_holder[&Holder::Slot(slot)];
        let blocks = HeldBlocks { root, is_secret, is_running, ..HeldBlocks::default() };
        self.set(Holder::Slot(slot), blocks);
    }

    /// Extends a chain by the hashes of the whole blocks of `tokens` that it lacks.
    fn lengthen(&self, chain: &mut Vec<BlockHash>, root: &BlockHash, tokens: &[Token]) {
        lengthen(self.hasher, chain, root, tokens, self.block_size_tokens);
    }

    /// Replaces a holder's part of a chain and records the resulting changes.
    fn set(&mut self, holder: Holder, new: HeldBlocks) {
        let old = self.by_holder.get(&holder).cloned().unwrap_or_default();
        let is_full = self.memory == MemoryKind::Full;
        let form =
            |blocks: &HeldBlocks| (blocks.first_block, blocks.tier, !is_full && blocks.is_running, blocks.rewinds_to);
        let is_same = |(old_hash, new_hash): &(&BlockHash, &BlockHash)| {
            old.first_block == new.first_block && old_hash == new_hash
        };
        // Blocks that stay the holder's, and among them those of which nothing changes.
        let n_common = old.chain.iter().zip(&*new.chain).take_while(is_same).count();
        let n_settled = if form(&old) == form(&new) { n_common.min(old.n_ready).min(new.n_ready) } else { 0 };
        for (idx, hash) in new.chain.iter().enumerate().skip(n_common) {
            let new_block = || Block { holders: Vec::new(), announced: None };
            self.blocks.entry((new.first_block + idx, *hash)).or_insert_with(new_block).holders.push(holder);
        }
        let (new_first_block, new_chain) = (new.first_block, Arc::clone(&new.chain));
        if new.chain.is_empty() && holder.slot().is_none() {
            self.by_holder.remove(&holder);
        } else {
            self.by_holder.insert(holder, new);
        }
        // Then the changes: a removal of what nobody holds any more precedes what is held otherwise now.
        let dropped_places = places(old.first_block, &old.chain).skip(n_common);
        let removed_keys: Vec<BlockKey> = dropped_places.filter_map(|place| self.drop_holder(place, holder)).collect();
        if !removed_keys.is_empty() {
            self.changes.push(Change::Removed(removed_keys));
        }
        self.announce(old.first_block, &old.chain, n_common);
        // The end of a growing slot moves. The block that was announced as the end must be checked again.
        self.announce(new_first_block, &new_chain, n_settled.saturating_sub(1));
    }

    /// Removes a holder from a block. Returns the block's key if it was announced and no other holder has its state.
    fn drop_holder(&mut self, place: BlockId, holder: Holder) -> Option<BlockKey> {
        let Entry::Occupied(mut entry) = self.blocks.entry(place) else { return None };
        let block = entry.get_mut();
        if let Some(idx) = block.holders.iter().position(|other| *other == holder) {
            block.holders.swap_remove(idx);
        }
        let is_held = block.holders.iter().any(|holder| has_state(self.memory, *holder));
        let was_announced = if is_held { false } else { block.announced.take().is_some() };
        if block.holders.is_empty() {
            entry.remove();
        }
        was_announced.then(|| place.1.key())
    }

    /// Announces the blocks of a part of a chain whose announced state is outdated, except the first `n_skipped`.
    fn announce(&mut self, first_block: usize, chain: &[BlockHash], n_skipped: usize) {
        let mut idx = n_skipped;
        while idx < chain.len() {
            let (announced_views, resume) = self.stretch(places(first_block + idx, &chain[idx..]));
            idx += announced_views.len().max(1);
            if let Some((_, view)) = announced_views.first().copied() {
                let keys = announced_views.iter().map(|((_, hash), _)| hash.key()).collect();
                let state = if view.quality.is_ready { RunState::Ready } else { RunState::Filling };
                let run = Run { keys, tier: view.quality.tier.0, state, resume, slot: view.slot };
                self.changes.push(Change::Stored(run));
            }
            for (place, view) in announced_views {
                self.remember(&place, view);
            }
        }
    }

    /// Returns the first blocks that can be announced as one run, and the resume points in it; no blocks if the first
    /// one needs no announcement.
    fn stretch(&self, places: impl Iterator<Item = BlockId>) -> (Vec<(BlockId, BlockView)>, Resume) {
        let mut views = places.map_while(|place| Some((place, self.new_view(&place)?)));
        let Some(first) = views.next() else { return (Vec::new(), Resume::Nowhere) };
        let form = |view: &BlockView| (view.quality.is_ready, view.quality.tier, view.slot);
        let mut run = vec![first];
        for (place, view) in views.take_while(|(_, view)| form(view) == form(&first.1)) {
            match (first.1.quality.is_resume_point, view.quality.is_resume_point) {
                (true, false) => break,
                (false, true) => {
                    run.push((place, view));
                    return (run, Resume::LastBlock);
                }
                (true, true) | (false, false) => run.push((place, view)),
            }
        }
        (run, if first.1.quality.is_resume_point { Resume::EveryBlock } else { Resume::Nowhere })
    }

    fn remember(&mut self, place: &BlockId, view: BlockView) {
        if let Some(block) = self.blocks.get_mut(place) {
            block.announced = Some(view);
        }
    }

    /// Returns the state to announce for a block; `None` if no holder has it or the announced state is up to date.
    ///
    /// For a block that is not a resume point, any holder is acceptable: the announced one stays as long as it has the
    /// block.
    fn new_view(&self, place: &BlockId) -> Option<BlockView> {
        let block = self.blocks.get(place)?;
        let best = self.best(place.0, block)?;
        let counts = |quality: Quality| {
            let tier = quality.is_resume_point.then_some(quality.tier);
            (quality.is_ready, quality.is_resume_point, tier)
        };
        let still_true = block.announced.is_some_and(|announced_view| {
            let is_announced =
                |view: &BlockView| (view.slot, view.quality.tier) == (announced_view.slot, announced_view.quality.tier);
            let mut announced_views = self.views(place.0, block).filter(is_announced);
            counts(announced_view.quality) == counts(best.quality)
                && announced_views.any(|view| counts(view.quality) == counts(best.quality))
        });
        (!still_true).then_some(best)
    }

    /// Returns the state of a block's best holder; `None` if no holder has its state. Ties: the lowest holder.
    fn best(&self, depth: usize, block: &Block) -> Option<BlockView> {
        let order = |view: &BlockView| (view.quality, view.slot.is_some(), Reverse(view.slot));
        self.views(depth, block).max_by_key(order)
    }

    /// Returns the state of a block at each of its holders.
    fn views(&self, depth: usize, block: &Block) -> impl Iterator<Item = BlockView> {
        let checkpoints = block.holders.iter().filter(|holder| matches!(holder, Holder::Checkpoint(_)));
        let mut checkpoints = checkpoints.map(|holder| &self.by_holder[holder]);
        let checkpoint =
            checkpoints.find(|blocks| depth + 1 == blocks.first_block + blocks.chain.len()).map(|blocks| blocks.tier);
        let holders = block.holders.iter().filter(|holder| has_state(self.memory, **holder));
        holders.map(move |holder| BlockView { quality: self.quality(depth, *holder, checkpoint), slot: holder.slot() })
    }

    /// Returns the rank of a holder of a block; `checkpoint` is the tier of the checkpoint at the block's end.
    fn quality(&self, depth: usize, holder: Holder, checkpoint: Option<Tier>) -> Quality {
        let blocks = &self.by_holder[&holder];
        let is_ready = depth < blocks.first_block + blocks.n_ready;
        let is_last = depth + 1 == blocks.first_block + blocks.chain.len();
        let (resumes_alone, takes_checkpoint) = match (holder, self.memory) {
            (Holder::Slot(_), MemoryKind::Full | MemoryKind::Sliding) => {
                let n_tokens = (depth + 1) * self.block_size_tokens as usize;
                (n_tokens >= blocks.rewinds_to, !blocks.is_running)
            }
            (Holder::Slot(_), MemoryKind::Hybrid) => (is_last && !blocks.is_running, is_ready),
            (Holder::Slot(_), MemoryKind::Recurrent) => (is_last, !blocks.is_running),
            (Holder::Chunk(_), memory) => (memory.stored_state_rewinds(), true),
            (Holder::Checkpoint(_), _) => (is_last, false),
        };
        let laid = checkpoint.filter(|_| takes_checkpoint && !resumes_alone);
        Quality {
            is_resume_point: resumes_alone || laid.is_some(),
            is_ready,
            tier: Reverse(blocks.tier.max(laid.unwrap_or(Tier::Resident))),
        }
    }

    /// Checks that a slot's announced blocks are those of its exact tokens, for tests; returns whether the slot counts
    /// as running. Panics: if they are not.
    pub(crate) fn check_slot(&self, slot: SlotId, exact_tokens: &[Token], rewinds_to: usize) -> bool {
        let blocks = &self.by_holder[&Holder::Slot(slot)];
        let n_whole = exact_tokens.len() / self.block_size_tokens as usize;
        let is_busy = blocks.is_running;
        assert_eq!(blocks.rewinds_to, rewinds_to, "slot {slot} is announced with another place to rewind to");
        let is_silent = is_busy && (blocks.is_secret || self.memory == MemoryKind::Recurrent);
        if is_silent {
            assert!(blocks.chain.is_empty(), "slot {slot} announces blocks that no request can use");
        } else if let Some(root) = &blocks.root {
            let chain = self.chain_of(root, exact_tokens);
            assert_eq!(blocks.chain[..n_whole], chain, "slot {slot} announces other blocks than it holds");
            assert_eq!(blocks.n_ready, n_whole, "slot {slot} has a wrong number of ready blocks");
            let is_exact = is_busy || blocks.chain.len() == n_whole;
            assert!(is_exact, "idle slot {slot} announces blocks that it does not hold");
        }
        is_busy
    }

    /// Checks that all parts are consistent, for tests. Panics: if they are not.
    pub(crate) fn check_invariants(&self) {
        let n_held: usize = self.by_holder.values().map(|blocks| blocks.chain.len()).sum();
        let n_holders: usize = self.blocks.values().map(|block| block.holders.len()).sum();
        assert_eq!(n_held, n_holders, "the number of a block's holders is wrong");
        for place in self.blocks.keys() {
            assert_eq!(self.new_view(place), None, "the announcement of a block at depth {} is outdated", place.0);
        }
    }
}

/// Returns the hashes of all whole blocks of `tokens` under a root.
pub fn chain_of(hasher: BlockHasher, root: &BlockHash, tokens: &[Token], block_size_tokens: u32) -> Vec<BlockHash> {
    let mut chain = Vec::with_capacity(tokens.len() / block_size_tokens as usize);
    lengthen(hasher, &mut chain, root, tokens, block_size_tokens);
    chain
}

/// Extends a chain by the hashes of the whole blocks of `tokens` that it lacks.
fn lengthen(
    hasher: BlockHasher,
    chain: &mut Vec<BlockHash>,
    root: &BlockHash,
    tokens: &[Token],
    block_size_tokens: u32,
) {
    for block in tokens.chunks_exact(block_size_tokens as usize).skip(chain.len()) {
        let hash = hasher(chain.last().unwrap_or(root), block);
        chain.push(hash);
    }
}

/// Returns whether a holder of a block has the state of all tokens up to its end.
fn has_state(memory: MemoryKind, holder: Holder) -> bool {
    memory == MemoryKind::Recurrent || !matches!(holder, Holder::Checkpoint(_))
}

/// Returns the identities of the blocks of a part of a chain.
fn places(first_block: usize, chain: &[BlockHash]) -> impl Iterator<Item = BlockId> + Clone {
    (first_block..).zip(chain.iter().copied())
}
