//! The index of the chunk store: the stored KV state with its tier, and the choice of the state to evict.
//!
//! The shell has the bytes and the files: it executes the orders and reports back. The contents of slots are in
//! `slot_table`, the start of a request in `slot_plan`.
//!
//! Chunks of whole blocks form a tree. Each chunk follows a block of its parent, and no chunk is stored without its
//! predecessors. A prompt is looked up by block hash, and the tokens of every block are compared.
//!
//! A chunk in RAM that also has a file leaves RAM without a loss. A chunk that is only in RAM or only on disk is
//! dropped only if it has no children. Chunks that are held, pinned or recently used stay; see [`ChunkIndex::insert`].
//!
//! A checkpoint needs the chunks before it, and the chunks behind the last checkpoint are of no use. So a chunk stays
//! as long as a checkpoint at one of its blocks, and leaves next after the last of them.

mod arc_target;
mod entry;
mod guards;
mod hot;
mod pins;
mod runs;
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
pub use entry::{CheckpointPlace, ChunkRecord, StateKind, StoreOrder};
pub use pins::{PIN_MAX, PinId, PinView, TooManyPins};
pub use runs::ChunkPart;
use tier_queue::TierQueue;
pub use tiers::{AdoptedFile, NewChunk, NotStored};
pub use views::{EntryView, Evicted, Reason, ShareTotals, ShareView, TierChange, Totals};

use crate::tenants::Tenant;

/// Time after its last use at which a tenant loses its share of RAM, and of the disk.
///
/// Source: pauses within a working day are mostly shorter than an hour, which is also how long API vendors keep a
/// prompt at most; the disk is for prompts that are sent again the next day.
const QUIET_AFTER_MS: (u64, u64) = (60 * 60 * 1000, 24 * 60 * 60 * 1000);

/// Identifier of a stored chunk or checkpoint; never reused while the worker's process lives.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ChunkId(pub u64);

/// Limits of a store and the sizes of its chunks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StoreLimits {
    /// Maximum number of bytes in RAM.
    pub ram_bytes: u64,
    /// Maximum number of bytes on disk; 0 for no disk tier.
    pub disk_bytes: u64,
    /// Time for which a chunk stays after its last use.
    pub min_hold_ms: u64,
    /// Maximum number of blocks of a chunk.
    pub chunk_blocks_max: usize,
    /// Number of tokens of a block.
    pub block_size_tokens: u32,
}

/// Prefix of a sequence to look up in the store: its hash chain and the tokens that the chain covers.
///
/// Tokens after the last whole block and blocks without a hash are ignored.
#[derive(Debug, Clone, Copy)]
pub struct Prefix<'a> {
    /// Root of the chain.
    pub root: BlockHash,
    /// Block hashes, from the first block on.
    pub chain: &'a [BlockHash],
    /// Tokens, from the first on.
    pub tokens: &'a [Token],
}

/// A chunk of which a sequence uses the first blocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct UsedChunk {
    /// The chunk.
    pub id: ChunkId,
    /// Number of blocks that are used.
    pub n_blocks: usize,
}

/// Longest stored prefix of a sequence.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct StoredPrefix {
    /// Chunks with the prefix, in order. The last block of the last chunk may match only partially.
    pub pieces: Vec<ChunkPiece>,
    /// Number of whole blocks.
    pub n_blocks: usize,
    /// Number of tokens: those of the whole blocks, and the matching first tokens of the next block in the last chunk.
    pub n_tokens: usize,
}

impl StoredPrefix {
    /// Returns the chunks with the first `n_blocks` blocks, in order.
    pub fn first(&self, n_blocks: usize) -> impl Iterator<Item = UsedChunk> {
        let mut n_left = n_blocks;
        self.pieces.iter().map_while(move |piece| {
            let n_used = n_left.min(piece.n_blocks);
            n_left -= n_used;
            (n_used > 0).then_some(UsedChunk { id: piece.chunk, n_blocks: n_used })
        })
    }

    /// Drops the first piece for which `is_absent` returns true, and all pieces after it.
    pub(crate) fn cut_before(&mut self, is_absent: impl Fn(&ChunkPiece) -> bool, block_size_tokens: usize) {
        let Some(n_pieces) = self.pieces.iter().position(is_absent) else { return };
        self.pieces.truncate(n_pieces);
        // Only the last piece can be used partially, and it was dropped.
        self.n_blocks = self.pieces.iter().map(|piece| piece.n_blocks).sum();
        self.n_tokens = self.n_blocks * block_size_tokens;
    }
}

/// One chunk's part of a stored prefix.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ChunkPiece {
    /// Identifier of the chunk.
    pub chunk: ChunkId,
    /// Number of used blocks, counted from the chunk's first; the last one may be used only partially.
    pub n_blocks: usize,
    /// Fastest tier that has the chunk.
    pub tier: Tier,
    /// Size of the whole chunk, which is read completely even if only a part is used.
    pub n_bytes: u64,
}

/// Checkpoint from which a sequence could resume.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StoredCheckpoint {
    /// Identifier of the checkpoint.
    pub chunk: ChunkId,
    /// Number of blocks before its position.
    pub n_blocks: usize,
    /// Fastest tier that has it.
    pub tier: Tier,
    /// Size.
    pub n_bytes: u64,
}

/// Index of everything that is stored.
#[derive(Debug, Clone)]
pub struct ChunkIndex {
    limits: StoreLimits,
    next_id: u64,
    chunks: HashMap<ChunkId, Chunk>,
    /// Chunk of each block, and the block's offset in it.
    blocks: HashMap<BlockHash, (ChunkId, usize)>,
    /// Checkpoint at the end of each block.
    checkpoints: HashMap<BlockHash, ChunkId>,
    ram: TierQueue,
    disk: TierQueue,
    /// Number of holds of each chunk, including removed chunks.
    holds: HashMap<ChunkId, u32>,
    /// Chunks that need a file and have none, parents first.
    unwritten: BTreeSet<(usize, ChunkId)>,
    disk_health: tiers::DiskHealth,
    orders: Vec<StoreOrder>,
    pins: pins::Pins,
    log: views::ChangeLog,
}

impl ChunkIndex {
    /// Returns an empty index. Panics: if the size of a block or chunk is 0.
    pub fn new(limits: StoreLimits) -> Self {
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
            pins: pins::Pins::default(),
            log: views::ChangeLog::default(),
        }
    }

    /// Returns an empty index whose tiers are plain LRUs, as other servers have them. Panics: as [`Self::new`].
    pub fn plain_lru(limits: StoreLimits) -> Self {
        let Self { ram, disk, .. } = Self::new(limits);
        Self { ram: ram.plain_lru(), disk: disk.plain_lru(), ..Self::new(limits) }
    }

    /// Returns the limits of the store and the sizes of its chunks.
    pub fn limits(&self) -> &StoreLimits {
        &self.limits
    }

    /// Returns the longest stored prefix of a sequence: whole blocks, and the matching tokens of the chunk's next
    /// block.
    ///
    /// The tokens of every block are compared, and every chunk must be the parent of the next. So neither a collision
    /// of block hashes nor one of roots returns the state of another sequence. Cost: O(blocks found), with one look-up
    /// for each chunk.
    pub fn find(&self, prefix: &Prefix<'_>) -> StoredPrefix {
        let mut stored_prefix = StoredPrefix::default();
        let mut previous_chunk = None;
        let mut blocks = prefix.chain.iter().zip(self.blocks_of(prefix)).peekable();
        while let Some((hash, _)) = blocks.peek() {
            // A chunk that follows is entered at its first block.
            let Some(&(id, 0)) = self.blocks.get(*hash) else { break };
            let chunk = &self.chunks[&id];
            let ChunkRecord { root, first_block, n_bytes, .. } = *chunk.record;
            if chunk.parent != previous_chunk || root != prefix.root || first_block != stored_prefix.n_blocks {
                break;
            }
            // Of this chunk, the blocks that the sequence has too. If that is not all of them, the next look-up fails.
            let mut n_blocks = 0;
            for held_hash in chunk.record.blocks.iter() {
                let is_same = |(hash, tokens): &(&BlockHash, &[Token])| {
                    *hash == held_hash && *tokens == self.tokens_at(chunk, n_blocks)
                };
                if blocks.next_if(is_same).is_none() {
                    break;
                }
                n_blocks += 1;
            }
            if n_blocks == 0 {
                break;
            }
            stored_prefix.pieces.push(ChunkPiece { chunk: id, n_blocks, tier: tier_of(chunk), n_bytes });
            stored_prefix.n_blocks += n_blocks;
            previous_chunk = Some(id);
        }
        self.find_rest(prefix, &mut stored_prefix);
        stored_prefix
    }

    /// Adds to `stored_prefix` the tokens that the last chunk's next block shares with the sequence.
    fn find_rest(&self, prefix: &Prefix<'_>, stored_prefix: &mut StoredPrefix) {
        stored_prefix.n_tokens = stored_prefix.n_blocks * self.limits.block_size_tokens as usize;
        let Some(last) = stored_prefix.pieces.last_mut() else { return };
        let chunk = &self.chunks[&last.chunk];
        if last.n_blocks == chunk.record.blocks.len() {
            return;
        }
        let tokens_left = &prefix.tokens[stored_prefix.n_tokens..];
        let chunk_tokens = self.tokens_at(chunk, last.n_blocks);
        let n_common =
            chunk_tokens.iter().zip(tokens_left).take_while(|(chunk_token, token)| chunk_token == token).count();
        last.n_blocks += usize::from(n_common > 0);
        stored_prefix.n_tokens += n_common;
    }

    /// Returns every stored checkpoint from which a sequence could resume, the shortest first.
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

    /// Returns how many blocks a sequence shares with another one that can resume behind them: there, they diverge.
    ///
    /// Only hashes are compared. Cost: O(log blocks) for each stored checkpoint.
    pub fn n_shared_with_checkpoints(&self, prefix: &Prefix<'_>) -> usize {
        let n_shared = |id: &ChunkId| {
            let blocks = &self.chunks[id].record.blocks;
            let (mut n_shared, mut n_most) = (0, blocks.len().min(prefix.chain.len()));
            // Equal hashes have equal hashes before them.
            while n_shared < n_most {
                let n = (n_shared + n_most).div_ceil(2);
                if blocks[n - 1] == prefix.chain[n - 1] { n_shared = n } else { n_most = n - 1 }
            }
            n_shared
        };
        self.checkpoints.values().map(n_shared).max().unwrap_or(0)
    }

    /// Returns how many of a sequence's first blocks are of use in the store if it can resume only at checkpoints.
    pub fn n_resumable(&self, prefix: &Prefix<'_>) -> usize {
        self.checkpoints(prefix).last().map_or(0, |checkpoint| checkpoint.n_blocks)
    }

    /// Returns the ranges of blocks that have to be stored, each as a new chunk, so that the whole sequence is stored.
    ///
    /// Ranges end at multiples of the maximum chunk length from the chain's start, so that sequences that diverge later
    /// share chunks. Blocks after a block whose hash is stored with other tokens cannot be stored and are omitted.
    pub fn missing(&self, prefix: &Prefix<'_>) -> Vec<Range<usize>> {
        let n_stored = self.find(prefix).n_blocks;
        let n_blocks = self.blocks_of(prefix).len().min(prefix.chain.len());
        let mut seen_hashes = HashSet::new();
        let is_free = |hash: &&BlockHash| !self.blocks.contains_key(*hash) && seen_hashes.insert(**hash);
        let end = n_stored + prefix.chain[n_stored..n_blocks].iter().take_while(is_free).count();
        let step = self.limits.chunk_blocks_max;
        let cuts = (n_stored / step + 1..).map(|multiple| multiple * step).take_while(|cut| *cut < end);
        let starts: Vec<usize> = std::iter::once(n_stored).chain(cuts).filter(|start| *start < end).collect();
        let ends = starts.iter().skip(1).copied().chain([end]);
        starts.iter().copied().zip(ends).map(|(start, end)| start..end).collect()
    }

    /// Returns the record of a chunk or checkpoint, `None` if it is no longer stored.
    pub fn record(&self, id: ChunkId) -> Option<&Arc<ChunkRecord>> {
        self.chunks.get(&id).map(|chunk| &chunk.record)
    }

    /// Returns the fastest tier that has a chunk, `None` if it is no longer stored.
    pub fn tier(&self, id: ChunkId) -> Option<Tier> {
        self.chunks.get(&id).and_then(Chunk::tier)
    }

    /// Records that a tenant's sequence starts from these chunks, in the order of the sequence. Chunks that are no
    /// longer stored are skipped. A checkpoint is always used as a whole, by a call of its own.
    ///
    /// If less than half of a chunk is used, the chunk keeps its age and is not protected: most of it belongs to
    /// another sequence, and all sequences have the template's text before the first message in common. It is not
    /// evicted as long as a stored chunk follows its used part. Cost: O(log n) for each.
    pub fn touch(&mut self, chunks: &[UsedChunk], tenant: Tenant, now_ms: u64) {
        for &UsedChunk { id, n_blocks } in chunks {
            let Some(chunk) = self.chunks.get_mut(&id) else { continue };
            chunk.n_hits += 1;
            if n_blocks.saturating_mul(2) < chunk.record.blocks.len() {
                continue;
            }
            chunk.last_used_ms = now_ms;
            chunk.is_spare = false;
            chunk.tenant = tenant;
            self.ram.touch(id, tenant, now_ms);
            self.disk.touch(id, tenant, now_ms);
        }
    }

    /// Records that a sequence resumes at a checkpoint, if it is still stored. Cost: O(log n).
    pub fn touch_checkpoint(&mut self, id: ChunkId, tenant: Tenant, now_ms: u64) {
        let Some(chunk) = self.chunks.get(&id) else { return };
        self.touch(&[UsedChunk { id, n_blocks: chunk.record.blocks.len() }], tenant, now_ms);
    }

    /// Protects a chunk from eviction until `release` has been called as often as `hold`.
    ///
    /// Only the loss of its file and `clear` remove a held chunk. Panics: if the chunk is not stored.
    pub fn hold(&mut self, id: ChunkId) {
        assert!(self.chunks.contains_key(&id), "chunk {} is held but not stored", id.0);
        *self.holds.entry(id).or_default() += 1;
        self.restand(id);
    }

    /// Ends one hold. Panics: if the chunk is not held.
    pub fn release(&mut self, id: ChunkId) {
        let n_holds = self.holds.get_mut(&id).unwrap_or_else(|| panic!("chunk {} is released but not held", id.0));
        *n_holds -= 1;
        if *n_holds == 0 {
            self.holds.remove(&id);
            self.restand(id);
        }
    }

    /// Returns whether a chunk is held.
    pub fn is_held(&self, id: ChunkId) -> bool {
        self.holds.contains_key(&id)
    }

    /// Returns the tokens of each whole block of a sequence.
    fn blocks_of<'a>(&self, prefix: &Prefix<'a>) -> std::slice::ChunksExact<'a, Token> {
        prefix.tokens.chunks_exact(self.limits.block_size_tokens as usize)
    }

    /// Returns the tokens of the block at an offset of a chunk.
    fn tokens_at<'a>(&self, chunk: &'a Chunk, offset: usize) -> &'a [Token] {
        let n = self.limits.block_size_tokens as usize;
        &chunk.record.tokens[offset * n..(offset + 1) * n]
    }
}

fn tier_of(chunk: &Chunk) -> Tier {
    chunk.tier().expect("a chunk without a tier is removed")
}

#[cfg(test)]
mod tests;
