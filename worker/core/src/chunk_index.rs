//! The index of the chunk store: which KV state is stored, in which tier, and what leaves when room is needed.
//!
//! Not here: the bytes and the files (the shell, which does what the orders say and reports back), what slots hold
//! (`slot_table`), which start a request gets (`slot_plan`).
//! The idea: chunks of whole blocks form a tree in which every chunk stands behind a block of its parent and no chunk is
//! stored without what is before it. A prompt walks down by block hash, and every block's tokens are compared on the way.
//!
//! A chunk in RAM that also has a file leaves RAM at no loss; one without a file, or with nothing but a file, is dropped
//! only when nothing is stored behind it. Held, guarded and freshly used chunks stay; see [`ChunkIndex::insert`].

mod balance;
mod entry;
mod guards;
mod pins;
mod shares;
mod tier_queue;
mod tiers;
mod views;

use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::Arc;

use hashbrown::{HashMap, HashSet};
use warmpath_common::block_hash::BlockHash;
use warmpath_common::ids::Token;
use warmpath_common::summary::Tier;

use entry::Chunk;
pub use entry::{Kind, Record};
pub use pins::{PIN_MAX, PinId, PinView, TooManyPins};
use tier_queue::TierQueue;
pub use tiers::{NewChunk, Order, Refused};
pub use views::{EntryView, Evicted, News, Reason, ShareTotals, ShareView, Totals};

use crate::tenants::Tenant;

/// Time after its last use from which a tenant has no share of a tier any more, in RAM and on disk.
///
/// Source: own choice: pauses within a day's work are shorter than an hour, the longest time for which an API vendor keeps a
/// prompt; the disk is for what comes back the next day.
const QUIET_AFTER_MS: (u64, u64) = (60 * 60 * 1000, 24 * 60 * 60 * 1000);

/// Names a stored chunk or checkpoint; never used twice in one life of a worker.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ChunkId(pub u64);

/// Is what a store may take and how it is cut.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Is the most bytes in RAM.
    pub ram_bytes: u64,
    /// Is the most bytes on disk; 0 for no disk tier.
    pub disk_bytes: u64,
    /// Is how long a chunk stays after its last use.
    pub min_hold_ms: u64,
    /// Is the number of chains that are pinned because they are used most.
    pub pin_top: usize,
    /// Is the most blocks in a chunk.
    pub chunk_blocks_max: usize,
    /// Is the number of tokens in a block.
    pub block_size_tokens: u32,
}

/// Is the start of a sequence as the store is asked about it: its chain and the tokens that the chain names.
///
/// A last token without a whole block, or a block without its hash, is not looked at.
#[derive(Debug, Clone, Copy)]
pub struct Prefix<'a> {
    /// Is the root of the chain.
    pub root: BlockHash,
    /// Lists the block hashes from the first block on.
    pub chain: &'a [BlockHash],
    /// Lists the tokens from the first on.
    pub tokens: &'a [Token],
}

/// Is the longest stored start of a sequence.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Found {
    /// Lists the chunks that hold it, in order; of the last one's blocks the last may be the sequence's in part only.
    pub pieces: Vec<Piece>,
    /// Counts its whole blocks.
    pub n_blocks: usize,
    /// Counts its tokens: those of the whole blocks, and the first ones of the block behind them where its chunk has
    /// them.
    pub n_tokens: usize,
}

impl Found {
    /// Returns the chunks that hold its first `n_blocks` blocks, in order, each with the number of its blocks that are
    /// among them.
    pub fn first(&self, n_blocks: usize) -> impl Iterator<Item = (ChunkId, usize)> {
        let mut n_left = n_blocks;
        self.pieces.iter().map_while(move |piece| {
            let n_used = n_left.min(piece.n_blocks);
            n_left -= n_used;
            (n_used > 0).then_some((piece.chunk, n_used))
        })
    }
}

/// Is one chunk's part in a sequence's start.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Piece {
    /// Names the chunk.
    pub chunk: ChunkId,
    /// Counts the blocks that are used, from the chunk's first; the last may be used in part.
    pub n_blocks: usize,
    /// Is the fastest tier that has the chunk.
    pub tier: Tier,
    /// Is the size of the whole chunk, all of which is read even where not all is used.
    pub n_bytes: u64,
}

/// Is one checkpoint at which a sequence could go on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StoredCheckpoint {
    /// Names the checkpoint.
    pub chunk: ChunkId,
    /// Counts the blocks before its position.
    pub n_blocks: usize,
    /// Is the fastest tier that has it.
    pub tier: Tier,
    /// Is its size.
    pub n_bytes: u64,
}

/// Is everything that is stored.
#[derive(Debug, Clone)]
pub struct ChunkIndex {
    limits: Limits,
    next_id: u64,
    chunks: HashMap<ChunkId, Chunk>,
    /// Says which chunk has a block, and at which place in it.
    blocks: HashMap<BlockHash, (ChunkId, usize)>,
    /// Says which checkpoint stands behind a block.
    checkpoints: HashMap<BlockHash, ChunkId>,
    ram: TierQueue,
    disk: TierQueue,
    /// Counts who uses a chunk, also one that was forgotten meanwhile.
    holds: HashMap<ChunkId, u32>,
    /// Holds the chunks that want a file and have none, parents first.
    unwritten: BTreeSet<(usize, ChunkId)>,
    disk_health: tiers::DiskHealth,
    orders: Vec<Order>,
    pins: pins::Pins,
    log: views::Log,
}

impl ChunkIndex {
    /// Returns an index of nothing. Panics: when a block or a chunk would be of no size.
    pub fn new(limits: Limits) -> Self {
        assert!(limits.block_size_tokens > 0 && limits.chunk_blocks_max > 0, "a chunk has at least one token");
        Self {
            limits,
            next_id: 0,
            chunks: HashMap::new(),
            blocks: HashMap::new(),
            checkpoints: HashMap::new(),
            ram: TierQueue::new(limits.ram_bytes, QUIET_AFTER_MS.0),
            disk: TierQueue::new(limits.disk_bytes, QUIET_AFTER_MS.1),
            holds: HashMap::new(),
            unwritten: BTreeSet::new(),
            disk_health: tiers::DiskHealth::Good,
            orders: Vec::new(),
            pins: pins::Pins::new(limits.pin_top),
            log: views::Log::default(),
        }
    }

    /// Returns what the store may take and how it is cut.
    pub fn limits(&self) -> &Limits {
        &self.limits
    }

    /// Returns the longest stored start of a sequence, in whole blocks, and how far the chunk goes on with it.
    ///
    /// Every block's tokens are compared, and every chunk must stand behind the one before, so that neither a collision
    /// of hashes nor one of roots gives another sequence's state. Cost: O(blocks found).
    pub fn find(&self, prefix: &Prefix<'_>) -> Found {
        let mut found = Found::default();
        let mut before = None;
        for (hash, tokens) in prefix.chain.iter().zip(self.blocks_of(prefix)) {
            let Some(&(id, offset)) = self.blocks.get(hash) else { break };
            let chunk = &self.chunks[&id];
            let follows = if offset == 0 { chunk.parent == before } else { before == Some(id) };
            let is_here = follows && chunk.record.root == prefix.root;
            if !is_here
                || chunk.record.first_block + offset != found.n_blocks
                || self.tokens_at(chunk, offset) != tokens
            {
                break;
            }
            if offset == 0 {
                let n_bytes = chunk.record.n_bytes;
                found.pieces.push(Piece { chunk: id, n_blocks: 0, tier: tier_of(chunk), n_bytes });
            }
            let piece = found.pieces.last_mut().expect("a chunk is entered at its first block");
            piece.n_blocks += 1;
            found.n_blocks += 1;
            before = Some(id);
        }
        self.find_rest(prefix, &mut found);
        found
    }

    /// Adds to what was found the tokens that the last chunk's next block shares with the sequence.
    fn find_rest(&self, prefix: &Prefix<'_>, found: &mut Found) {
        found.n_tokens = found.n_blocks * self.limits.block_size_tokens as usize;
        let Some(last) = found.pieces.last_mut() else { return };
        let chunk = &self.chunks[&last.chunk];
        if last.n_blocks == chunk.record.blocks.len() {
            return;
        }
        let rest = &prefix.tokens[found.n_tokens..];
        let stored = self.tokens_at(chunk, last.n_blocks);
        let n_common = stored.iter().zip(rest).take_while(|(stored, wanted)| stored == wanted).count();
        last.n_blocks += usize::from(n_common > 0);
        found.n_tokens += n_common;
    }

    /// Returns every stored checkpoint from which a sequence could go on, the shortest first.
    ///
    /// All tokens before its position are compared. Cost: O(blocks), and O(tokens) for each checkpoint.
    pub fn checkpoints(&self, prefix: &Prefix<'_>) -> Vec<StoredCheckpoint> {
        let n_blocks = self.blocks_of(prefix).len().min(prefix.chain.len());
        let checkpoint = |(depth, hash): (usize, &BlockHash)| {
            let id = *self.checkpoints.get(hash)?;
            let chunk = &self.chunks[&id];
            let n_blocks = chunk.record.blocks.len();
            let n_bytes = chunk.record.n_bytes;
            let is_here = n_blocks == depth + 1 && chunk.record.root == prefix.root;
            (is_here && prefix.tokens.starts_with(&chunk.record.tokens)).then(|| StoredCheckpoint {
                chunk: id,
                n_blocks,
                tier: tier_of(chunk),
                n_bytes,
            })
        };
        prefix.chain[..n_blocks].iter().enumerate().filter_map(checkpoint).collect()
    }

    /// Returns the ranges of blocks that are to be stored, each as a new chunk, for all of a sequence to be stored.
    ///
    /// Cuts fall on multiples of the largest chunk from the chain's start, so that sequences that part later share
    /// chunks. What stands behind a block whose hash other tokens have taken cannot be stored and is left out.
    pub fn missing(&self, prefix: &Prefix<'_>) -> Vec<Range<usize>> {
        let n_stored = self.find(prefix).n_blocks;
        let n_blocks = self.blocks_of(prefix).len().min(prefix.chain.len());
        let mut seen = HashSet::new();
        let is_free = |hash: &&BlockHash| !self.blocks.contains_key(*hash) && seen.insert(**hash);
        let end = n_stored + prefix.chain[n_stored..n_blocks].iter().take_while(is_free).count();
        let step = self.limits.chunk_blocks_max;
        let cuts = (n_stored / step + 1..).map(|multiple| multiple * step).take_while(|cut| *cut < end);
        let starts: Vec<usize> = std::iter::once(n_stored).chain(cuts).filter(|start| *start < end).collect();
        let ends = starts.iter().skip(1).copied().chain([end]);
        starts.iter().copied().zip(ends).map(|(start, end)| start..end).collect()
    }

    /// Returns what is stored under an id, `None` when it is gone.
    pub fn record(&self, id: ChunkId) -> Option<&Arc<Record>> {
        self.chunks.get(&id).map(|chunk| &chunk.record)
    }

    /// Returns the fastest tier that has a chunk, `None` when it is gone.
    pub fn tier(&self, id: ChunkId) -> Option<Tier> {
        self.chunks.get(&id).and_then(Chunk::tier)
    }

    /// Notes that a tenant's sequence starts from these chunks, given in the order in which they stand in it, each with the
    /// number of its blocks that are used; those that are gone are passed over. A checkpoint is used whole, by a call of
    /// its own.
    ///
    /// A chunk of which less than half is used becomes no younger and is not protected: most of it belongs to another
    /// sequence, and every sequence begins with what the template puts before the first message. While something is
    /// stored behind its used part it stays anyway. The use ends at the last that is used by half or more.
    /// Cost: O(log n) for each, and O(`pin_top`).
    pub fn touch(&mut self, used: &[(ChunkId, usize)], (tenant, now_ms): (Tenant, u64)) {
        let mut end = None;
        for (id, n_blocks) in used {
            let Some(chunk) = self.chunks.get_mut(id) else { continue };
            chunk.n_hits += 1;
            if n_blocks.saturating_mul(2) < chunk.record.blocks.len() {
                continue;
            }
            chunk.last_used_ms = now_ms;
            chunk.tenant = tenant;
            self.ram.touch(*id, (tenant, now_ms));
            self.disk.touch(*id, (tenant, now_ms));
            end = Some(*id);
        }
        if let Some(end) = end {
            self.count_end(end);
        }
    }

    /// Notes that a sequence resumes at a checkpoint, if it is still stored. Cost: O(log n + `pin_top`).
    pub fn touch_checkpoint(&mut self, id: ChunkId, by: (Tenant, u64)) {
        let Some(chunk) = self.chunks.get(&id) else { return };
        self.touch(&[(id, chunk.record.blocks.len())], by);
    }

    /// Keeps a chunk, in the tiers that have it, until it is let go as often as it was held.
    ///
    /// Only the loss of its file and `clear` make the index forget a held chunk. Panics: when the chunk is not stored.
    pub fn hold(&mut self, id: ChunkId) {
        assert!(self.chunks.contains_key(&id), "chunk {} is held but not stored", id.0);
        *self.holds.entry(id).or_default() += 1;
        self.restand(id);
    }

    /// Ends one hold. Panics: when the chunk is not held.
    pub fn let_go(&mut self, id: ChunkId) {
        let n_holds = self.holds.get_mut(&id).unwrap_or_else(|| panic!("chunk {} is let go but not held", id.0));
        *n_holds -= 1;
        if *n_holds == 0 {
            self.holds.remove(&id);
            self.restand(id);
        }
    }

    /// Returns whether anybody holds a chunk.
    pub fn is_held(&self, id: ChunkId) -> bool {
        self.holds.contains_key(&id)
    }

    /// Returns the tokens of each whole block of a sequence.
    fn blocks_of<'a>(&self, prefix: &Prefix<'a>) -> std::slice::ChunksExact<'a, Token> {
        prefix.tokens.chunks_exact(self.limits.block_size_tokens as usize)
    }

    /// Returns the tokens of one of a chunk's blocks.
    fn tokens_at<'a>(&self, chunk: &'a Chunk, offset: usize) -> &'a [Token] {
        let n = self.limits.block_size_tokens as usize;
        &chunk.record.tokens[offset * n..(offset + 1) * n]
    }
}

fn tier_of(chunk: &Chunk) -> Tier {
    chunk.tier().expect("a chunk that no tier has is forgotten")
}

#[cfg(test)]
mod tests;
