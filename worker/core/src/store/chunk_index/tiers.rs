//! Lifecycle of chunks: insertion, writing, reading, eviction, loss.
//!
//! The order of eviction is in `tier_queue`, look-ups are in `chunk_index`. A chunk is in RAM, in a file, or in both.
//! It is removed from the index when neither has it any more. Every change adds orders, which the shell must execute in
//! order.

use std::ops::Range;
use std::sync::Arc;

use hashbrown::HashSet;
use warmpath_common::block_hash::BlockHash;
use warmpath_common::summary::Tier;

use super::entry::{CheckpointPlace, Chunk, ChunkFile, ChunkRecord, Evictability, LruSegment, StateKind, StoreOrder};
use super::shares::Need;
use super::views::Reason;
use super::{ChunkId, ChunkIndex, Prefix};
use crate::tenants::{Tenant, TenantId};

/// Number of checkpoints at the end of a conversation that its next prompt may need.
///
/// Source: docs/decisions/0010-prompt-state-cache.md: a prompt has two, of which the next one needs one or the other.
const END_CHECKPOINTS: usize = 2;

/// A chunk or checkpoint to store.
#[derive(Debug, Clone)]
pub struct NewChunk<'a> {
    /// Sequence to which it belongs.
    pub prefix: Prefix<'a>,
    /// Range of its blocks in the chain; for a checkpoint from 0 to its position.
    pub blocks: Range<usize>,
    /// Size of its payload.
    pub n_bytes: u64,
    /// Priority of the request that stores it; lower ones are evicted first.
    pub priority: i32,
    /// Tenant of that request.
    pub tenant: Tenant,
    /// Current time.
    pub now_ms: u64,
}

/// A file that an earlier process wrote.
#[derive(Debug, Clone)]
pub struct AdoptedFile {
    /// Chunk or checkpoint in the file.
    pub record: ChunkRecord,
    /// Time of its last use.
    pub last_used_ms: u64,
}

/// Reason why a chunk or checkpoint was not stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum NotStored {
    /// The chunk alone exceeds the limit.
    #[error("the chunk alone is larger than its tier's limit")]
    TooLarge,
    /// No other chunk may be evicted.
    #[error("nothing can be evicted to make room for the chunk")]
    NoRoom,
    /// The block before the chunk's first one is not stored.
    #[error("the block before the chunk is not stored")]
    NoParent,
    /// One of its blocks is stored already, with the same tokens or, if hashes collide, with others.
    #[error("a block of the chunk is stored already")]
    Taken,
    /// Its fields are inconsistent.
    #[error("the chunk is not made of whole blocks of a chain")]
    Malformed,
}

/// Whether writing works. After a failure, one chunk is tried at each insertion until a write succeeds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum DiskHealth {
    Good,
    Failing { probe: Option<ChunkId> },
}

/// Bytes that must fit into a tier.
struct NeededSpace {
    tier: Tier,
    n_bytes: u64,
    tenant: Tenant,
    now_ms: u64,
    /// Chunk that must not be evicted for these bytes.
    spared: Option<ChunkId>,
}

impl ChunkIndex {
    /// Stores a chunk in RAM after the stored part of its sequence, and orders a write if there is a disk tier.
    ///
    /// Other chunks are evicted if there is no space, first those of the tenant furthest above an equal share
    /// (`shares`). A tenant's chunks are evicted in this order: lower priority first, then unused before used ones,
    /// then the least recently used. Held chunks, guarded pins, and chunks that others depend on are never evicted. A
    /// used chunk is not evicted during the minimum hold time, unless its tenant is above its share.
    /// Cost: O(blocks before it) to compare tokens, O(log n) for each eviction. Errors: see [`NotStored`].
    pub fn insert(&mut self, new: &NewChunk<'_>) -> Result<ChunkId, NotStored> {
        let record = self.chunk_record_of(new)?;
        let before = Prefix { chain: &new.prefix.chain[..record.first_block], ..new.prefix };
        let stored_prefix = self.find(&before);
        if stored_prefix.n_blocks < record.first_block {
            return Err(NotStored::NoParent);
        }
        self.admit(record, stored_prefix.pieces.last().map(|piece| piece.chunk), new.tenant, new.now_ms)
    }

    /// Stores a chunk like [`Self::insert`], behind the one that was stored for the same prefix just before. The tokens
    /// before it are not compared again, so that a long prompt costs O(chunks), not O(chunks x blocks).
    /// Errors: [`NotStored::NoParent`] if it does not follow `previous`; else see [`NotStored`].
    pub fn insert_after(&mut self, previous: ChunkId, new: &NewChunk<'_>) -> Result<ChunkId, NotStored> {
        let record = self.chunk_record_of(new)?;
        let follows = |chunk: &Chunk| {
            let ChunkRecord { root, first_block, blocks, .. } = &*chunk.record;
            let is_next = *root == record.root && first_block + blocks.len() == record.first_block;
            is_next && blocks.last() == record.parent.as_ref()
        };
        if !self.chunks.get(&previous).is_some_and(follows) {
            return Err(NotStored::NoParent);
        }
        self.admit(record, Some(previous), new.tenant, new.now_ms)
    }

    /// Stores a checkpoint at the end of `new.blocks`, which start at 0 and are all tokens of `new.prefix`, because a
    /// partial state cannot be cut back to them. The blocks need not be stored. Frees space like [`Self::insert`].
    ///
    /// Of the checkpoints of the same sequence, the last ones stay, and those where prompts diverge. The others leave
    /// before everything else of their tenant, because the conversation has gone on.
    /// Errors: see [`NotStored`].
    pub fn insert_checkpoint(&mut self, new: &NewChunk<'_>, place: CheckpointPlace) -> Result<ChunkId, NotStored> {
        let record = self.record_of(StateKind::Checkpoint, new)?;
        if record.tokens.len() != new.prefix.tokens.len() {
            return Err(NotStored::Malformed);
        }
        self.check_free(&record)?;
        let before = self.checkpoints(&new.prefix);
        for passed in &before[..before.len().saturating_sub(END_CHECKPOINTS - 1)] {
            let Chunk { place, n_hits, .. } = self.chunks[&passed.chunk];
            if place == CheckpointPlace::End && n_hits <= 1 {
                self.set_spare(passed.chunk);
            }
        }
        let id = self.admit(record, None, new.tenant, new.now_ms)?;
        self.chunk_mut(id).place = place;
        Ok(id)
    }

    /// Adopts the files of an earlier process, given in any order; returns an outcome
    /// for each. The shell must delete refused files; files that are evicted are deleted by orders.
    ///
    /// Panics: if the index has any chunk or pin.
    pub fn adopt(&mut self, files: &[AdoptedFile]) -> Vec<Result<ChunkId, NotStored>> {
        assert!(self.chunks.is_empty() && self.pins().is_empty(), "files are adopted into an empty index");
        let mut by_depth: Vec<usize> = (0..files.len()).collect();
        by_depth.sort_by_key(|idx| files[*idx].record.first_block);
        let mut outcomes = vec![Err(NotStored::Malformed); files.len()];
        let mut now_ms = 0;
        for idx in by_depth {
            let AdoptedFile { record, last_used_ms } = &files[idx];
            now_ms = now_ms.max(*last_used_ms);
            outcomes[idx] = self.adopt_one(record, *last_used_ms);
        }
        while !self.disk.has_room_for(0) {
            let need = Need { tenant: Tenant::without_share(TenantId(0)), n_bytes: 0, now_ms, min_hold_ms: 0 };
            let next = self.disk.next_to_leave(&need);
            let (id, reason) = next.expect("nothing adopted is held, pinned or being written");
            self.evict(id, reason, Tier::Disk);
        }
        outcomes
    }

    /// Returns the orders since the last call, to be executed in this order.
    pub fn take_orders(&mut self) -> Vec<StoreOrder> {
        std::mem::take(&mut self.orders)
    }

    /// Records that a chunk's file is complete. A chunk that was removed in the meantime is ignored.
    pub fn written(&mut self, id: ChunkId, now_ms: u64) {
        if let Some(chunk) = self.chunks.get_mut(&id).filter(|chunk| chunk.file == ChunkFile::Writing) {
            chunk.file = ChunkFile::Written;
            self.restand(id);
        }
        if self.disk_health == (DiskHealth::Failing { probe: Some(id) }) {
            self.disk_health = DiskHealth::Good;
            self.order_writes(now_ms);
        }
    }

    /// Records that a chunk could not be written and has no file; nothing is written until the next insertion.
    pub fn write_failed(&mut self, id: ChunkId) {
        match self.disk_health {
            DiskHealth::Failing { probe } if probe != Some(id) => {}
            _ => self.disk_health = DiskHealth::Failing { probe: None },
        }
        let Some(chunk) = self.chunks.get_mut(&id).filter(|chunk| chunk.file == ChunkFile::Writing) else { return };
        chunk.file = ChunkFile::Absent;
        self.unwritten.insert((chunk.record.first_block, id));
        self.disk.leave(id);
        self.note_filed_child(id, Filed::NoLonger);
        self.restand(id);
    }

    /// Records that a chunk's bytes have been read, and returns whether they may stay in RAM. They may not if the chunk
    /// was removed or no chunk can be evicted for it. Frees space like [`Self::insert`].
    pub fn read_back(&mut self, id: ChunkId, now_ms: u64) -> bool {
        let Some(chunk) = self.chunks.get(&id) else { return false };
        if chunk.in_ram {
            return true;
        }
        let (n_bytes, tenant) = (chunk.record.n_bytes, chunk.tenant);
        if !self.make_room(&NeededSpace { tier: Tier::Ram, n_bytes, tenant, now_ms, spared: None }) {
            return false;
        }
        self.enter_ram(id);
        self.restand(id);
        self.note_change(id);
        true
    }

    /// Records that a chunk's file cannot be used. A chunk that is not in RAM is removed with all its descendants.
    pub fn lost(&mut self, id: ChunkId) {
        let Some(chunk) = self.chunks.get(&id).filter(|chunk| chunk.file == ChunkFile::Written) else { return };
        if chunk.in_ram {
            self.unwritten.insert((chunk.record.first_block, id));
            self.drop_file(id, Reason::Lost);
            return;
        }
        self.discard(id);
    }

    /// Removes a chunk or checkpoint from all tiers, with all its descendants, because its state cannot be used.
    pub fn discard(&mut self, id: ChunkId) {
        if !self.chunks.contains_key(&id) {
            return;
        }
        let mut family = vec![id];
        let mut next = 0;
        while let Some(member) = family.get(next) {
            family.extend(&self.chunks[member].children);
            next += 1;
        }
        for member in family.into_iter().rev() {
            self.forget(member, Reason::Lost);
        }
    }

    /// Removes all stored chunks, including held and pinned ones; pins stay.
    pub fn clear(&mut self) {
        let mut ids: Vec<(usize, ChunkId)> =
            self.chunks.iter().map(|(id, chunk)| (chunk.record.first_block, *id)).collect();
        ids.sort_unstable_by(|a, b| b.cmp(a));
        for (_, id) in ids {
            self.forget(id, Reason::Cleared);
        }
    }

    fn chunk_record_of(&self, new: &NewChunk<'_>) -> Result<ChunkRecord, NotStored> {
        let is_short = |record: &ChunkRecord| record.blocks.len() <= self.limits.chunk_blocks_max;
        Some(self.record_of(StateKind::Chunk, new)?).filter(is_short).ok_or(NotStored::Malformed)
    }

    fn record_of(&self, kind: StateKind, new: &NewChunk<'_>) -> Result<ChunkRecord, NotStored> {
        let n = self.limits.block_size_tokens as usize;
        let Range { start, end } = new.blocks;
        let is_inside = start < end && end <= new.prefix.chain.len() && end <= new.prefix.tokens.len() / n;
        if !is_inside || new.n_bytes == 0 || (kind == StateKind::Checkpoint && start > 0) {
            return Err(NotStored::Malformed);
        }
        Ok(ChunkRecord {
            kind,
            root: new.prefix.root,
            first_block: start,
            parent: start.checked_sub(1).map(|before| new.prefix.chain[before]),
            blocks: new.prefix.chain[start..end].into(),
            tokens: new.prefix.tokens[start * n..end * n].into(),
            n_bytes: new.n_bytes,
            priority: new.priority,
            tenant: new.tenant.share_id(),
        })
    }

    fn admit(
        &mut self,
        record: ChunkRecord,
        parent: Option<ChunkId>,
        tenant: Tenant,
        now_ms: u64,
    ) -> Result<ChunkId, NotStored> {
        self.check_free(&record)?;
        if record.n_bytes > self.limits.ram_bytes {
            return Err(NotStored::TooLarge);
        }
        // A parent that is only in RAM and has no other children must not be evicted for its own child.
        let spared_parent = parent.filter(|parent| self.chunks[parent].file != ChunkFile::Written);
        if !self.make_room(&NeededSpace {
            tier: Tier::Ram,
            n_bytes: record.n_bytes,
            tenant,
            now_ms,
            spared: spared_parent,
        }) {
            return Err(NotStored::NoRoom);
        }
        let id = self.link(record, parent, tenant, now_ms);
        self.enter_ram(id);
        self.want_file(id);
        self.restand(id);
        self.note_change(id);
        if let DiskHealth::Good | DiskHealth::Failing { probe: None } = self.disk_health {
            self.order_writes(now_ms);
        }
        Ok(id)
    }

    fn adopt_one(&mut self, record: &ChunkRecord, last_used_ms: u64) -> Result<ChunkId, NotStored> {
        if !record.is_well_formed(self.limits.block_size_tokens as usize) {
            return Err(NotStored::Malformed);
        }
        if record.n_bytes > self.limits.disk_bytes {
            return Err(NotStored::TooLarge);
        }
        self.check_free(record)?;
        let parent =
            record.parent.map(|hash| self.parent_by_hash(record, &hash).ok_or(NotStored::NoParent)).transpose()?;
        let newcomer = || Tenant::without_share(TenantId::of_root(&record.root));
        let tenant = record.tenant.map_or_else(newcomer, Tenant::with_share);
        let id = self.link(record.clone(), parent, tenant, last_used_ms);
        self.enter_disk(id, ChunkFile::Written);
        self.restand(id);
        self.note_change(id);
        Ok(id)
    }

    /// Returns the chunk with the block right before `record`.
    fn parent_by_hash(&self, record: &ChunkRecord, hash: &BlockHash) -> Option<ChunkId> {
        let (id, offset) = *self.blocks.get(hash)?;
        let parent = &self.chunks[&id].record;
        (parent.root == record.root && parent.first_block + offset + 1 == record.first_block).then_some(id)
    }

    fn check_free(&self, record: &ChunkRecord) -> Result<(), NotStored> {
        let mut seen_hashes = HashSet::new();
        let is_taken = match record.kind {
            StateKind::Chunk => {
                record.blocks.iter().any(|hash| self.blocks.contains_key(hash) || !seen_hashes.insert(hash))
            }
            StateKind::Checkpoint => self.checkpoints.contains_key(&record.key_block().1),
        };
        if is_taken { Err(NotStored::Taken) } else { Ok(()) }
    }

    fn link(&mut self, record: ChunkRecord, parent: Option<ChunkId>, tenant: Tenant, now_ms: u64) -> ChunkId {
        let id = ChunkId(self.next_id);
        self.next_id += 1;
        let mut n_checkpoints = 0;
        match record.kind {
            StateKind::Chunk => {
                self.blocks.extend(record.blocks.iter().enumerate().map(|(offset, hash)| (*hash, (id, offset))));
                n_checkpoints = record.blocks.iter().filter(|hash| self.checkpoints.contains_key(*hash)).count();
            }
            StateKind::Checkpoint => {
                let last = record.key_block().1;
                self.checkpoints.insert(last, id);
                if let Some((holder, _)) = self.blocks.get(&last).copied() {
                    self.chunk_mut(holder).n_checkpoints += 1;
                    self.set_needed(holder);
                }
            }
        }
        let mut chunk = Chunk::new(Arc::new(record), parent, tenant, now_ms);
        chunk.n_pins = self.pins.count_on(&chunk.record);
        chunk.n_checkpoints = n_checkpoints;
        self.chunks.insert(id, chunk);
        if let Some(parent) = parent {
            self.chunk_mut(parent).children.insert(id);
            self.set_needed(parent);
        }
        id
    }

    /// Evicts chunks until a tier has space; returns whether it has.
    fn make_room(&mut self, room: &NeededSpace) -> bool {
        if let Some(id) = room.spared {
            self.hold(id);
        }
        let &NeededSpace { tenant, n_bytes, now_ms, .. } = room;
        let need = Need { tenant, n_bytes, now_ms, min_hold_ms: self.limits.min_hold_ms };
        let has_room = loop {
            let queue = if room.tier == Tier::Disk { &mut self.disk } else { &mut self.ram };
            if queue.has_room_for(n_bytes) {
                break true;
            }
            let may_fit = n_bytes <= queue.limit_bytes();
            let Some((id, reason)) = queue.next_to_leave(&need).filter(|_| may_fit) else { break false };
            self.evict(id, reason, room.tier);
        };
        if let Some(id) = room.spared {
            self.release(id);
        }
        has_room
    }

    fn evict(&mut self, id: ChunkId, reason: Reason, tier: Tier) {
        match tier {
            Tier::Disk => {
                self.disk.note_evicted(id);
                self.drop_file(id, reason);
            }
            Tier::Ram | Tier::Resident => {
                self.ram.note_evicted(id);
                self.drop_ram(id, reason);
            }
        }
    }

    fn enter_ram(&mut self, id: ChunkId) {
        let chunk = self.chunk_mut(id);
        chunk.in_ram = true;
        let stats = chunk.stats();
        self.ram.enter(id, stats);
    }

    fn enter_disk(&mut self, id: ChunkId, file: ChunkFile) {
        let chunk = self.chunk_mut(id);
        chunk.file = file;
        let stats = chunk.stats();
        self.disk.enter(id, stats);
        self.note_filed_child(id, Filed::Newly);
    }

    /// Removes a chunk from RAM, and from the index if it has no complete file.
    fn drop_ram(&mut self, id: ChunkId, reason: Reason) {
        self.chunk_mut(id).in_ram = false;
        let stats = self.ram.leave(id);
        self.log.count(Tier::Ram, reason, &stats);
        self.orders.push(StoreOrder::DropRam(id));
        if self.chunks[&id].file == ChunkFile::Writing {
            self.drop_file(id, reason);
        } else {
            self.update_or_remove(id);
        }
    }

    /// Removes a chunk's file, and the chunk from the index if it is not in RAM.
    fn drop_file(&mut self, id: ChunkId, reason: Reason) {
        self.chunk_mut(id).file = ChunkFile::Absent;
        let stats = self.disk.leave(id);
        self.log.count(Tier::Disk, reason, &stats);
        self.orders.push(StoreOrder::DropFile(id, Arc::clone(&self.chunks[&id].record)));
        if self.disk_health == (DiskHealth::Failing { probe: Some(id) }) {
            self.disk_health = DiskHealth::Failing { probe: None };
        }
        self.note_filed_child(id, Filed::NoLonger);
        self.update_or_remove(id);
    }

    /// Removes a chunk from all tiers; its children must be removed before.
    fn forget(&mut self, id: ChunkId, reason: Reason) {
        if self.chunks[&id].file != ChunkFile::Absent {
            self.drop_file(id, reason);
        }
        if self.chunks.contains_key(&id) {
            self.drop_ram(id, reason);
        }
    }

    /// Updates a chunk that has left RAM or lost its file, or removes it from the index.
    fn update_or_remove(&mut self, id: ChunkId) {
        if self.chunks[&id].tier().is_some() {
            self.restand(id);
            self.note_change(id);
            return;
        }
        let chunk = self.chunks.remove(&id).expect("looked at above");
        debug_assert!(chunk.children.is_empty(), "children are removed before their parent");
        self.unwritten.remove(&(chunk.record.first_block, id));
        match chunk.record.kind {
            StateKind::Chunk => {
                for hash in chunk.record.blocks.iter() {
                    self.blocks.remove(hash);
                }
            }
            StateKind::Checkpoint => {
                let last = chunk.record.key_block().1;
                self.checkpoints.remove(&last);
                if let Some((holder, _)) = self.blocks.get(&last).copied() {
                    self.chunk_mut(holder).n_checkpoints -= 1;
                    self.restand(holder);
                    self.set_spare_if_useless(holder);
                }
            }
        }
        if let Some(parent) = chunk.parent {
            self.chunk_mut(parent).children.remove(&id);
            self.restand(parent);
            if chunk.is_spare {
                self.set_spare_if_useless(parent);
            }
        }
        self.log.note_gone(&chunk);
    }

    /// Lets a chunk leave next if the last checkpoint at its blocks or behind them has left.
    fn set_spare_if_useless(&mut self, id: ChunkId) {
        if self.chunks[&id].children.len() + self.chunks[&id].n_checkpoints == 0 {
            self.set_spare(id);
        }
    }

    fn set_spare(&mut self, id: ChunkId) {
        self.chunk_mut(id).is_spare = true;
        self.ram.reassign(id, LruSegment::Spare);
        self.disk.reassign(id, LruSegment::Spare);
    }

    /// Records that another chunk or checkpoint depends on a chunk.
    fn set_needed(&mut self, id: ChunkId) {
        if std::mem::take(&mut self.chunk_mut(id).is_spare) {
            self.ram.reassign(id, LruSegment::Probation);
            self.disk.reassign(id, LruSegment::Probation);
        }
        self.restand(id);
    }

    /// Marks a chunk, and its ancestors without a file, as needing a file.
    fn want_file(&mut self, id: ChunkId) {
        let mut next = Some(id);
        while let Some(id) = next
            && self.limits.disk_bytes > 0
        {
            let chunk = &self.chunks[&id];
            if chunk.file != ChunkFile::Absent || !self.unwritten.insert((chunk.record.first_block, id)) {
                return;
            }
            next = chunk.parent;
        }
    }

    /// Orders writes as far as there is space, and only one write while writing fails.
    fn order_writes(&mut self, now_ms: u64) {
        while let Some((depth, id)) = self.unwritten.first().copied() {
            let chunk = &self.chunks[&id];
            let (n_bytes, tenant, parent) = (chunk.record.n_bytes, chunk.tenant, chunk.parent);
            let is_reachable = parent.is_none_or(|parent| self.chunks[&parent].file != ChunkFile::Absent);
            if !is_reachable || n_bytes > self.limits.disk_bytes {
                self.unwritten.remove(&(depth, id));
                continue;
            }
            if !self.make_room(&NeededSpace { tier: Tier::Disk, n_bytes, tenant, now_ms, spared: parent }) {
                return;
            }
            self.unwritten.remove(&(depth, id));
            self.enter_disk(id, ChunkFile::Writing);
            self.restand(id);
            self.orders.push(StoreOrder::Write(id));
            if let DiskHealth::Failing { probe } = &mut self.disk_health {
                *probe = Some(id);
                return;
            }
        }
    }

    fn note_filed_child(&mut self, id: ChunkId, file_change: Filed) {
        let Some(parent) = self.chunks[&id].parent else { return };
        let n_filed = &mut self.chunk_mut(parent).n_filed_children;
        match file_change {
            Filed::Newly => *n_filed += 1,
            Filed::NoLonger => *n_filed -= 1,
        }
        self.restand(parent);
    }

    /// Updates in both tiers whether a chunk may be evicted.
    pub(super) fn restand(&mut self, id: ChunkId) {
        let Some(chunk) = self.chunks.get(&id) else { return };
        let is_held = self.is_held(id);
        let unless_held = |evictability| if is_held { Evictability::Fixed } else { evictability };
        self.ram.set_evictability(id, unless_held(chunk.evictability_in_ram()));
        self.disk.set_evictability(id, unless_held(chunk.evictability_on_disk()));
    }

    pub(super) fn chunk_mut(&mut self, id: ChunkId) -> &mut Chunk {
        self.chunks.get_mut(&id).expect("links refer to stored chunks")
    }
}

/// Change of a child that has a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Filed {
    Newly,
    NoLonger,
}
