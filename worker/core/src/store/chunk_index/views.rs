//! Views of the store: entries, totals, evictions, and changes for routers.
//!
//! The shell shows them in `/cache`, metrics and the summary.
//!
//! A change has the state of a chunk at the time of the call, not the steps in between. All changes since the start,
//! applied in order to an empty map, give the stored chunks.

use std::collections::BTreeMap;
use std::sync::Arc;

use warmpath_common::block_hash::BlockHash;
use warmpath_common::summary::Tier;

use super::entry::{Chunk, ChunkFile, EntryStats, StateKind};
use super::guards::Pinned;
use super::{ChunkId, ChunkIndex};
use crate::tenants::TenantId;

/// Number and size of chunks and checkpoints.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Totals {
    /// Number of chunks and checkpoints.
    pub n_chunks: u64,
    /// Number of their tokens; for a checkpoint all tokens before it.
    pub n_tokens: u64,
    /// Number of their bytes.
    pub n_bytes: u64,
}

impl Totals {
    pub(super) fn add(&mut self, n_tokens: u64, n_bytes: u64) {
        self.n_chunks += 1;
        self.n_tokens += n_tokens;
        self.n_bytes += n_bytes;
    }

    pub(super) fn subtract(&mut self, n_tokens: u64, n_bytes: u64) {
        self.n_chunks -= 1;
        self.n_tokens -= n_tokens;
        self.n_bytes -= n_bytes;
    }
}

/// Reason why a chunk or checkpoint left a tier.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Reason {
    /// Its space was needed.
    Capacity,
    /// Another tenant needed the space, and the chunk's tenant was above its share.
    OverShare,
    /// Its file or its state, or that of a chunk before it, could not be used.
    Lost,
    /// The whole store was cleared.
    Cleared,
}

impl Reason {
    /// Returns the name of the reason in responses and metrics.
    pub fn name(self) -> &'static str {
        match self {
            Self::Capacity => "capacity",
            Self::OverShare => "over_share",
            Self::Lost => "lost",
            Self::Cleared => "cleared",
        }
    }
}

/// Chunks and checkpoints that have left one tier for one reason since the index was created.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Evicted {
    /// Tier.
    pub tier: Tier,
    /// Reason.
    pub reason: Reason,
    /// Number and size.
    pub totals: Totals,
}

/// Division of one tier among tenants, without guarded bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ShareTotals {
    /// Number of tenants that have a share and any bytes.
    pub n_tenants: u64,
    /// Bytes of the largest of these tenants.
    pub largest_bytes: u64,
}

/// Bytes of one tenant, without guarded ones.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ShareView {
    /// Identity.
    pub tenant: TenantId,
    /// Bytes in RAM.
    pub ram_bytes: u64,
    /// Bytes on disk.
    pub disk_bytes: u64,
}

/// A stored chunk or checkpoint, as shown to an operator.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EntryView {
    /// Identifier.
    pub chunk: ChunkId,
    /// Kind of state.
    pub kind: StateKind,
    /// Fastest tier that has it.
    pub tier: Tier,
    /// Whether its file is complete.
    pub is_on_disk: bool,
    /// Position of its first token.
    pub first_token: u64,
    /// Number of its tokens.
    pub n_tokens: u64,
    /// Size.
    pub n_bytes: u64,
    /// Number of uses.
    pub n_hits: u64,
    /// Time at which it was stored.
    pub created_ms: u64,
    /// Time of its last use.
    pub last_used_ms: u64,
    /// Whether a pin covers it.
    pub is_pinned: bool,
}

/// Change of a chunk's or checkpoint's tier.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TierChange {
    /// Kind of state.
    pub kind: StateKind,
    /// Root of its chain.
    pub root: BlockHash,
    /// Index of its first block in the chain.
    pub first_block: usize,
    /// Hashes of its blocks.
    pub blocks: Arc<[BlockHash]>,
    /// Fastest tier that has it; `None` if it was removed.
    pub tier: Option<Tier>,
}

impl TierChange {
    fn new(chunk: &Chunk, tier: Option<Tier>) -> Self {
        let record = &chunk.record;
        let blocks = Arc::clone(&record.blocks);
        Self { kind: record.kind, root: record.root, first_block: record.first_block, blocks, tier }
    }
}

/// Changes since the last call, and all evictions.
#[derive(Debug, Clone, Default)]
pub(super) struct ChangeLog {
    pending: Vec<Pending>,
    evicted: BTreeMap<(Tier, Reason), Totals>,
}

/// One possible change.
#[derive(Debug, Clone)]
enum Pending {
    /// The chunk's tier may differ from the announced one.
    Changed(ChunkId),
    /// An announced chunk was removed.
    Gone(TierChange),
}

impl ChangeLog {
    pub(super) fn count(&mut self, tier: Tier, reason: Reason, stats: &EntryStats) {
        self.evicted.entry((tier, reason)).or_default().add(stats.n_tokens, stats.n_bytes);
    }

    pub(super) fn note_gone(&mut self, chunk: &Chunk) {
        if chunk.announced.is_some() {
            self.pending.push(Pending::Gone(TierChange::new(chunk, None)));
        }
    }
}

impl ChunkIndex {
    /// Returns the stored chunks and checkpoints, in the order in which they were stored. Cost: O(n log n).
    pub fn entries(&self) -> Vec<EntryView> {
        let mut entries: Vec<EntryView> = self.chunks.iter().map(|(id, chunk)| self.entry(*id, chunk)).collect();
        entries.sort_unstable_by_key(|entry| entry.chunk);
        entries
    }

    /// Returns the totals of a tier; files that are being written count as on disk.
    pub fn totals(&self, tier: Tier) -> Totals {
        match tier {
            Tier::Resident => Totals::default(),
            Tier::Ram => self.ram.totals(),
            Tier::Disk => self.disk.totals(),
        }
    }

    /// Returns the division of a tier among tenants.
    pub fn share_totals(&self, tier: Tier) -> ShareTotals {
        let (n_tenants, largest_bytes) = match tier {
            Tier::Resident => (0, 0),
            Tier::Ram => self.ram.shares().totals(),
            Tier::Disk => self.disk.shares().totals(),
        };
        ShareTotals { n_tenants: n_tenants as u64, largest_bytes }
    }

    /// Returns the bytes of each tenant, in the order of their identities. Cost: O(tenants).
    pub fn shares(&self) -> Vec<ShareView> {
        let mut shares: BTreeMap<TenantId, ShareView> = BTreeMap::new();
        let no_share = |tenant| ShareView { tenant, ram_bytes: 0, disk_bytes: 0 };
        for (tenant, n_bytes) in self.ram.shares().iter() {
            shares.entry(tenant).or_insert(no_share(tenant)).ram_bytes = n_bytes;
        }
        for (tenant, n_bytes) in self.disk.shares().iter() {
            shares.entry(tenant).or_insert(no_share(tenant)).disk_bytes = n_bytes;
        }
        shares.into_values().collect()
    }

    /// Returns the evictions from each tier, by reason.
    pub fn evicted(&self) -> Vec<Evicted> {
        let evictions = self.log.evicted.iter();
        evictions.map(|((tier, reason), totals)| Evicted { tier: *tier, reason: *reason, totals: *totals }).collect()
    }

    /// Returns the changes since the last call, at most one for each chunk, in order.
    pub fn take_changes(&mut self) -> Vec<TierChange> {
        let pending = std::mem::take(&mut self.log.pending);
        let news = |pending| match pending {
            Pending::Gone(news) => Some(news),
            Pending::Changed(id) => {
                let chunk = self.chunks.get_mut(&id)?;
                chunk.is_dirty = false;
                let tier = chunk.tier();
                let was = std::mem::replace(&mut chunk.announced, tier);
                (was != tier).then(|| TierChange::new(chunk, tier))
            }
        };
        pending.into_iter().filter_map(news).collect()
    }

    /// Marks a chunk as possibly changed.
    pub(super) fn note_change(&mut self, id: ChunkId) {
        let chunk = self.chunk_mut(id);
        if !std::mem::replace(&mut chunk.is_dirty, true) {
            self.log.pending.push(Pending::Changed(id));
        }
    }

    fn entry(&self, id: ChunkId, chunk: &Chunk) -> EntryView {
        let record = &chunk.record;
        EntryView {
            chunk: id,
            kind: record.kind,
            tier: super::tier_of(chunk),
            is_on_disk: chunk.file == ChunkFile::Written,
            first_token: record.first_block as u64 * u64::from(self.limits.block_size_tokens),
            n_tokens: record.tokens.len() as u64,
            n_bytes: record.n_bytes,
            n_hits: chunk.n_hits,
            created_ms: chunk.created_ms,
            last_used_ms: chunk.last_used_ms,
            is_pinned: chunk.pinned() == Pinned::Yes,
        }
    }

    /// Checks that all parts are consistent, for tests. Panics: if they are not.
    pub fn check_invariants(&self) {
        self.ram.check_invariants();
        self.disk.check_invariants();
        self.check_pins();
        // Each map has what the chunks say.
        let n_blocks: usize = self.of_kind(StateKind::Chunk).map(|(_, chunk)| chunk.record.blocks.len()).sum();
        assert_eq!(n_blocks, self.blocks.len(), "the map of blocks does not match the chunks");
        assert_eq!(self.of_kind(StateKind::Checkpoint).count(), self.checkpoints.len());
        let n_in_ram = self.chunks.values().filter(|chunk| chunk.in_ram).count();
        assert_eq!(n_in_ram as u64, self.ram.totals().n_chunks, "a chunk in RAM is not in its queue");
        let has_file = |chunk: &&Chunk| chunk.file != ChunkFile::Absent;
        assert_eq!(self.chunks.values().filter(has_file).count() as u64, self.disk.totals().n_chunks);
        // Each chunk has a place, and its children know it.
        for (id, chunk) in &self.chunks {
            assert!(chunk.tier().is_some(), "chunk {} is neither in RAM nor on disk", id.0);
            assert!(
                chunk.file != ChunkFile::Writing || chunk.in_ram,
                "chunk {} is being written without bytes in RAM",
                id.0
            );
            for child in &chunk.children {
                assert_eq!(self.chunks[child].parent, Some(*id), "a child has another parent");
            }
            let filed_children = chunk.children.iter().map(|child| &self.chunks[child]).filter(has_file);
            assert_eq!(filed_children.count(), chunk.n_filed_children, "the number of children with files is wrong");
            let is_chunk = chunk.record.kind == StateKind::Chunk;
            let checkpoints = chunk.record.blocks.iter().filter(|hash| self.checkpoints.contains_key(*hash));
            let n_checkpoints = if is_chunk { checkpoints.count() } else { 0 };
            assert_eq!(chunk.n_checkpoints, n_checkpoints, "the number of a chunk's checkpoints is wrong");
            self.check_parent(*id, chunk);
        }
        for (depth, id) in &self.unwritten {
            let chunk = &self.chunks[id];
            assert!(chunk.file == ChunkFile::Absent && chunk.in_ram && chunk.record.first_block == *depth);
        }
    }

    pub(super) fn of_kind(&self, kind: StateKind) -> impl Iterator<Item = (&ChunkId, &Chunk)> {
        self.chunks.iter().filter(move |(_, chunk)| chunk.record.kind == kind)
    }

    fn check_parent(&self, id: ChunkId, chunk: &Chunk) {
        let record = &chunk.record;
        let Some(parent) = chunk.parent else {
            assert_eq!(record.first_block, 0, "chunk {} has no parent", id.0);
            return;
        };
        let parent = &self.chunks[&parent];
        assert!(parent.children.contains(&id), "the parent lacks its child {}", id.0);
        let offset = record.first_block - parent.record.first_block - 1;
        assert_eq!(record.parent, Some(parent.record.blocks[offset]), "chunk {} follows another block", id.0);
        assert_eq!(record.root, parent.record.root);
    }
}
