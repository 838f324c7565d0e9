//! What the index knows about one chunk or checkpoint.
//!
//! Not here: its bytes (the shell), its place in the order of eviction (`tier_queue`).
//! The idea: a record is what never changes and what a file's header says, so that a restart can adopt it; the rest is
//! how it is linked, where it lies and how it is used.

use std::collections::BTreeSet;
use std::sync::Arc;

use warmpath_common::block_hash::BlockHash;
use warmpath_common::ids::Token;
use warmpath_common::summary::Tier;

use super::ChunkId;
use super::guards::Pinned;
use super::tier_queue::{Facts, Segment, Standing};
use crate::tenants::{Tenant, TenantId};

/// Says what kind of KV state is stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Kind {
    /// Whole blocks, usable up to any of them behind the blocks before.
    Chunk,
    /// The partial state at the end of its blocks, usable only there, in memory that does not rewind anywhere.
    Checkpoint,
}

/// Is what is stored, without its bytes: everything that the header of a file must say for a later life to adopt it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Record {
    /// Says what kind of state it is.
    pub kind: Kind,
    /// Is the root of the chain.
    pub root: BlockHash,
    /// Is the place of the first block in its chain; 0 for a checkpoint.
    pub first_block: usize,
    /// Is the hash of the block before the first; `None` if there is none.
    pub parent: Option<BlockHash>,
    /// Lists the blocks, at least one; for a checkpoint all from the chain's start.
    pub blocks: Arc<[BlockHash]>,
    /// Lists the tokens of the blocks.
    pub tokens: Arc<[Token]>,
    /// Is the size of the payload, at least one byte.
    pub n_bytes: u64,
    /// Is the priority of the request that left it; lower ones are evicted first.
    pub priority: i32,
    /// Tenant of that request; absent where it had no share.
    pub tenant: Option<TenantId>,
}

impl Record {
    /// Returns whether the record could be one of a store whose blocks have `block_size_tokens`.
    pub(super) fn is_well_formed(&self, block_size_tokens: usize) -> bool {
        let is_whole =
            self.n_bytes > 0 && !self.blocks.is_empty() && self.tokens.len() == self.blocks.len() * block_size_tokens;
        let is_linked = self.parent.is_some() == (self.first_block > 0);
        is_whole && is_linked && (self.kind == Kind::Chunk || self.first_block == 0)
    }

    /// Returns the block that says on which chains the record lies: a chunk's first, a checkpoint's last.
    pub(super) fn key_block(&self) -> (usize, BlockHash) {
        match self.kind {
            Kind::Chunk => (self.first_block, self.blocks[0]),
            Kind::Checkpoint => (self.blocks.len() - 1, self.blocks[self.blocks.len() - 1]),
        }
    }

    /// Returns the tokens of the key block.
    pub(super) fn key_tokens(&self) -> &[Token] {
        let block_size_tokens = self.tokens.len() / self.blocks.len();
        match self.kind {
            Kind::Chunk => &self.tokens[..block_size_tokens],
            Kind::Checkpoint => &self.tokens[self.tokens.len() - block_size_tokens..],
        }
    }
}

/// Says how a chunk's file fares.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum File {
    /// There is none.
    Absent,
    /// It is being written.
    Writing,
    /// It is there.
    Written,
}

/// Is one chunk or checkpoint as the index keeps it.
#[derive(Debug, Clone)]
pub(super) struct Chunk {
    pub record: Arc<Record>,
    /// Tenant for whom it counts: that of the request which left it or used it last.
    pub tenant: Tenant,
    pub parent: Option<ChunkId>,
    pub children: BTreeSet<ChunkId>,
    /// Counts the children that have a file, or are being written.
    pub n_filed_children: usize,
    pub in_ram: bool,
    pub file: File,
    pub n_hits: u64,
    /// Counts the uses in which nothing behind this chunk was used, halved now and then.
    pub n_ends: u32,
    pub n_named_pins: u32,
    pub n_automatic_pins: u32,
    pub created_ms: u64,
    pub last_used_ms: u64,
    /// Is the tier that was last announced.
    pub said: Option<Tier>,
    /// Says that the chunk is on the list of those about which there may be news.
    pub is_dirty: bool,
}

impl Chunk {
    pub(super) fn new(record: Arc<Record>, parent: Option<ChunkId>, (tenant, now_ms): (Tenant, u64)) -> Self {
        Self {
            record,
            tenant,
            parent,
            children: BTreeSet::new(),
            n_filed_children: 0,
            in_ram: false,
            file: File::Absent,
            n_hits: 0,
            n_ends: 0,
            n_named_pins: 0,
            n_automatic_pins: 0,
            created_ms: now_ms,
            last_used_ms: now_ms,
            said: None,
            is_dirty: false,
        }
    }

    /// Returns the fastest tier that has the chunk; none where it has just left the last.
    pub(super) fn tier(&self) -> Option<Tier> {
        match (self.in_ram, self.file) {
            (true, _) => Some(Tier::Ram),
            (false, File::Written) => Some(Tier::Disk),
            (false, _) => None,
        }
    }

    pub(super) fn pinned(&self) -> Pinned {
        match (self.n_named_pins, self.n_automatic_pins) {
            (0, 0) => Pinned::Not,
            (0, _) => Pinned::Automatic,
            _ => Pinned::Named,
        }
    }

    /// Returns whether the chunk may leave RAM: at no loss if it has a file, else only if nothing is stored behind it.
    pub(super) fn standing_in_ram(&self) -> Standing {
        match self.file {
            File::Written => Standing::Free,
            _ if !self.children.is_empty() => Standing::Fixed,
            File::Writing => Standing::Writing,
            File::Absent => Standing::Free,
        }
    }

    /// Returns whether the chunk's file may go: only if nothing is reached through it, in this life or the next.
    pub(super) fn standing_on_disk(&self) -> Standing {
        let n_behind = if self.in_ram { self.n_filed_children } else { self.children.len() };
        if self.file == File::Written && n_behind == 0 { Standing::Free } else { Standing::Fixed }
    }

    pub(super) fn facts(&self) -> Facts {
        Facts {
            name: self.record.key_block().1,
            tenant: self.tenant,
            n_bytes: self.record.n_bytes,
            n_tokens: self.record.tokens.len() as u64,
            priority: self.record.priority,
            first_block: self.record.first_block,
            last_used_ms: self.last_used_ms,
            segment: if self.n_hits > 0 { Segment::Protected } else { Segment::Probation },
            pinned: self.pinned(),
        }
    }
}
