//! Entry of the index for one chunk or checkpoint.
//!
//! The shell has its bytes; its position in the order of eviction is in `tier_queue`.
//!
//! A record never changes and is what a file's header contains, so that a restart can adopt the file. The rest of the
//! entry records the chunk's links, tiers and uses.

use std::collections::BTreeSet;
use std::sync::Arc;

use warmpath_common::block_hash::BlockHash;
use warmpath_common::ids::Token;
use warmpath_common::summary::Tier;

use super::ChunkId;
use super::guards::Pinned;
use crate::tenants::{Tenant, TenantId};

/// Kind of stored KV state.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum StateKind {
    /// Whole blocks, usable up to the end of any of them if the state of the blocks before is available.
    Chunk,
    /// Partial state of memory that cannot be rewound everywhere, usable only at the end of its blocks.
    Checkpoint,
}

/// Place of a checkpoint, which decides how long it stays.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CheckpointPlace {
    /// End of a prompt, where its conversation goes on. It is not needed once the conversation has gone on.
    End,
    /// Place where several prompts diverge.
    Shared,
}

/// A chunk or checkpoint without its bytes: all that a file's header must contain so that a later process can adopt it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ChunkRecord {
    /// Kind of state.
    pub kind: StateKind,
    /// Root of the chain.
    pub root: BlockHash,
    /// Index of the first block in its chain; 0 for a checkpoint.
    pub first_block: usize,
    /// Hash of the block before the first; `None` if there is none.
    pub parent: Option<BlockHash>,
    /// Hashes of the blocks, at least one; for a checkpoint all from the chain's start.
    pub blocks: Arc<[BlockHash]>,
    /// Tokens of the blocks.
    pub tokens: Arc<[Token]>,
    /// Size of the payload, at least one byte.
    pub n_bytes: u64,
    /// Priority of the request that stored it; lower ones are evicted first.
    pub priority: i32,
    /// Tenant of that request; `None` if it had no share.
    pub tenant: Option<TenantId>,
}

/// Order to the shell.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum StoreOrder {
    /// Write a chunk's bytes, which are in RAM, to a file; report `written` or `write_failed`.
    Write(ChunkId),
    /// Drop a chunk's bytes from RAM.
    DropRam(ChunkId),
    /// Delete a chunk's file, even if it is still being written. The index may have removed the chunk already.
    DropFile(ChunkId, Arc<ChunkRecord>),
}

impl ChunkRecord {
    /// Returns whether the record is valid in a store whose blocks have `block_size_tokens`.
    pub(super) fn is_well_formed(&self, block_size_tokens: usize) -> bool {
        let is_whole =
            self.n_bytes > 0 && !self.blocks.is_empty() && self.tokens.len() == self.blocks.len() * block_size_tokens;
        let is_linked = self.parent.is_some() == (self.first_block > 0);
        is_whole && is_linked && (self.kind == StateKind::Chunk || self.first_block == 0)
    }

    /// Returns the block that decides whether the record is on a chain: a chunk's first, a checkpoint's last.
    pub(super) fn key_block(&self) -> (usize, BlockHash) {
        match self.kind {
            StateKind::Chunk => (self.first_block, self.blocks[0]),
            StateKind::Checkpoint => (self.blocks.len() - 1, self.blocks[self.blocks.len() - 1]),
        }
    }

    /// Returns the tokens of the key block.
    pub(super) fn key_tokens(&self) -> &[Token] {
        let block_size_tokens = self.tokens.len() / self.blocks.len();
        match self.kind {
            StateKind::Chunk => &self.tokens[..block_size_tokens],
            StateKind::Checkpoint => &self.tokens[self.tokens.len() - block_size_tokens..],
        }
    }
}

/// State of a chunk's file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ChunkFile {
    /// No file.
    Absent,
    /// The file is being written.
    Writing,
    /// The file is complete.
    Written,
}

/// Whether a chunk may be evicted from its tier.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Evictability {
    /// The chunk may be evicted.
    Free,
    /// The chunk may be evicted if there is no free one. It is being written, and will be free without a loss soon.
    Writing,
    /// The chunk must stay, because it is in use or another one would become unreachable.
    Fixed,
}

/// Properties of a chunk that enters a tier.
#[derive(Debug, Clone, Copy)]
pub(super) struct EntryStats {
    /// Name of the chunk, the same each time that the chunk is stored.
    pub name: BlockHash,
    /// Tenant to which it is charged.
    pub tenant: Tenant,
    pub n_bytes: u64,
    pub n_tokens: u64,
    pub priority: i32,
    pub first_block: usize,
    pub last_used_ms: u64,
    pub segment: LruSegment,
    pub pinned: Pinned,
}

/// Whether a chunk was used after it was stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum LruSegment {
    /// No later prompt is expected to need the chunk.
    Spare,
    /// The chunk was not used, or not recently.
    Probation,
    /// The chunk was used recently.
    Protected,
}

/// A chunk or checkpoint in the index.
#[derive(Debug, Clone)]
pub(super) struct Chunk {
    pub record: Arc<ChunkRecord>,
    /// Tenant to which it is charged: that of the request that stored it or used it last.
    pub tenant: Tenant,
    pub parent: Option<ChunkId>,
    pub children: BTreeSet<ChunkId>,
    /// Number of children whose file is complete or being written.
    pub n_filed_children: usize,
    pub in_ram: bool,
    pub file: ChunkFile,
    pub n_hits: u64,
    /// Whether no later prompt is expected to need it.
    pub is_spare: bool,
    /// Place of a checkpoint; `End` for one that an earlier process made.
    pub place: CheckpointPlace,
    /// Number of checkpoints at the ends of its blocks.
    pub n_checkpoints: usize,
    pub n_pins: u32,
    pub created_ms: u64,
    pub last_used_ms: u64,
    /// Tier that was last announced.
    pub announced: Option<Tier>,
    /// Whether the chunk is in the list of possible changes.
    pub is_dirty: bool,
}

impl Chunk {
    pub(super) fn new(record: Arc<ChunkRecord>, parent: Option<ChunkId>, tenant: Tenant, now_ms: u64) -> Self {
        Self {
            record,
            tenant,
            parent,
            children: BTreeSet::new(),
            n_filed_children: 0,
            in_ram: false,
            file: ChunkFile::Absent,
            n_hits: 0,
            is_spare: false,
            place: CheckpointPlace::End,
            n_checkpoints: 0,
            n_pins: 0,
            created_ms: now_ms,
            last_used_ms: now_ms,
            announced: None,
            is_dirty: false,
        }
    }

    /// Returns the fastest tier that has the chunk; `None` if no tier has it any more.
    pub(super) fn tier(&self) -> Option<Tier> {
        match (self.in_ram, self.file) {
            (true, _) => Some(Tier::Ram),
            (false, ChunkFile::Written) => Some(Tier::Disk),
            (false, _) => None,
        }
    }

    pub(super) fn pinned(&self) -> Pinned {
        if self.n_pins > 0 { Pinned::Yes } else { Pinned::No }
    }

    /// Returns whether the chunk may be evicted from RAM: freely if it has a file, otherwise only if it has no
    /// children and no checkpoint needs it.
    pub(super) fn evictability_in_ram(&self) -> Evictability {
        match self.file {
            ChunkFile::Written => Evictability::Free,
            _ if self.children.len() + self.n_checkpoints > 0 => Evictability::Fixed,
            ChunkFile::Writing => Evictability::Writing,
            ChunkFile::Absent => Evictability::Free,
        }
    }

    /// Returns whether the chunk's file may be deleted: only if no child or checkpoint depends on it, now or after a
    /// restart.
    pub(super) fn evictability_on_disk(&self) -> Evictability {
        let n_children = if self.in_ram { self.n_filed_children } else { self.children.len() };
        if self.file == ChunkFile::Written && n_children + self.n_checkpoints == 0 {
            Evictability::Free
        } else {
            Evictability::Fixed
        }
    }

    pub(super) fn stats(&self) -> EntryStats {
        EntryStats {
            name: self.record.key_block().1,
            tenant: self.tenant,
            n_bytes: self.record.n_bytes,
            n_tokens: self.record.tokens.len() as u64,
            priority: self.record.priority,
            first_block: self.record.first_block,
            last_used_ms: self.last_used_ms,
            segment: match self.n_hits {
                _ if self.is_spare => LruSegment::Spare,
                0 => LruSegment::Probation,
                _ => LruSegment::Protected,
            },
            pinned: self.pinned(),
        }
    }
}
