//! The engine's chunk store: the index of chunks, and their bytes in memory.
//!
//! State goes into the store in chunks, and is assembled again for a slot. Methods that change the index execute its
//! orders before they return.
//!
//! Not here: requests to the disk thread (`disk_tier`), eviction (the core's `chunk_index`), the files
//! (`crate::store`), the format of state (`codec`).

mod clock;
mod disk_tier;

use std::collections::{HashMap, HashSet};
use std::ops::Range;
use std::sync::Arc;
use std::time::Instant;

use bytes::Bytes;
use tracing::{debug, info, warn};
use warmpath_common::model::MemoryKind;
use warmpath_worker_core::slots::slot_plan::{PrefixSource, SlotPlan};
use warmpath_worker_core::store::chunk_index::{
    AdoptedFile, CheckpointPlace, ChunkId, ChunkIndex, NewChunk, Prefix, StoreLimits, StoredPrefix, TierChange,
    UsedChunk,
};
use warmpath_worker_core::store::disk_reads::DiskReads;
use warmpath_worker_core::store::restore_costs::Costs;
use warmpath_worker_core::tenants::Tenant;

use clock::{Clock, past_ms};
pub(crate) use disk_tier::Disk;

use crate::engine::api::CachedTokens;
use crate::engine::codec::{PayloadPart, StateFrame, StateLayout};
use crate::engine::config::CostSource;
use crate::pages::{PagePool, PooledPages};
use crate::store::StoredFile;
use crate::store::exchange::Received;

/// Store of one engine.
pub(crate) struct Cache {
    index: ChunkIndex,
    /// Payloads of the chunks in RAM, and of those that were read for a request and do not fit into the RAM tier.
    payloads: HashMap<ChunkId, Bytes>,
    /// Buffers of evicted payloads.
    pages: PagePool,
    /// Chunks whose payload is in memory although the index has them only on disk.
    passing: HashSet<ChunkId>,
    /// Reads that the disk has not finished, of chunks whose payload is not in memory.
    reads: DiskReads,
    /// Whether a read was late when the disk's events were last taken: at the start of this step.
    is_disk_late: bool,
    disk: Option<Disk>,
    codec: Option<Codec>,
    costs: Costs,
    costs_at_first: Costs,
    cost_source: CostSource,
    /// Time of the last decay of costs above the initial estimate.
    faded_at: Instant,
    clock: Clock,
}

/// Layout by which this context's state is cut and assembled.
pub(crate) struct Codec {
    pub layout: StateLayout,
    /// 1 if all slots share one buffer, else the number of sequences.
    pub n_streams: u32,
    pub memory: MemoryKind,
}

/// A sequence whose state is to be stored.
pub(crate) struct SequenceState<'a> {
    pub prefix: Prefix<'a>,
    pub tenant: Tenant,
    pub priority: i32,
}

impl Cache {
    /// Returns a store with nothing in memory. Without a codec nothing is ever stored.
    pub(crate) fn new(limits: StoreLimits, codec: Option<Codec>, costs: Costs, cost_source: CostSource) -> Self {
        Self {
            index: ChunkIndex::new(limits),
            payloads: HashMap::new(),
            pages: PagePool::default(),
            passing: HashSet::new(),
            reads: DiskReads::default(),
            is_disk_late: false,
            disk: None,
            codec,
            costs,
            costs_at_first: costs,
            cost_source,
            faded_at: Instant::now(),
            clock: Clock::start(),
        }
    }

    /// Adds the files that an earlier process left on disk.
    pub(crate) fn adopt(&mut self, disk: Disk, files: Vec<StoredFile>) {
        let now_ms = self.clock.now_ms();
        let adopted_file = |file: &StoredFile| AdoptedFile {
            record: file.record.clone(),
            last_used_ms: past_ms(file.used_at, now_ms),
        };
        let adopted_files: Vec<AdoptedFile> = files.iter().map(adopted_file).collect();
        let n_bytes: u64 = files.iter().map(|file| file.record.n_bytes).sum();
        let mut n_adopted = 0;
        for (file, outcome) in files.into_iter().zip(self.index.adopt(&adopted_files)) {
            match outcome {
                Ok(_) => n_adopted += 1,
                Err(reason) => {
                    debug!(%reason, "a stored chunk cannot be used");
                    disk.store.delete(ChunkId(u64::MAX), Arc::new(file.record));
                }
            }
        }
        info!(n_chunks = n_adopted, mib = n_bytes >> 20, folder = %disk.store.folder().display(), "found stored state");
        self.disk = Some(disk);
        self.execute_orders();
    }

    /// Returns the layout of a token's state; `None` if it cannot be cut.
    pub(crate) fn layout(&self) -> Option<&StateLayout> {
        self.codec.as_ref().map(|codec| &codec.layout)
    }

    pub(crate) fn index(&self) -> &ChunkIndex {
        &self.index
    }

    pub(crate) fn index_mut(&mut self) -> &mut ChunkIndex {
        &mut self.index
    }

    pub(crate) fn costs(&self) -> &Costs {
        &self.costs
    }

    /// Updates the costs by a measurement, if costs are measured.
    pub(crate) fn learn(&mut self, update: impl FnOnce(&mut Costs)) {
        if self.cost_source == CostSource::Measured {
            let elapsed_time = self.faded_at.elapsed();
            self.faded_at += elapsed_time;
            self.costs.fade(&self.costs_at_first, elapsed_time.as_secs_f64());
            update(&mut self.costs);
        }
    }

    /// Returns whether there is a tier for stored state.
    pub(crate) fn stores(&self) -> bool {
        self.codec.is_some() && self.costs.export_ms_per_token.is_some()
    }

    pub(crate) fn now_ms(&self) -> u64 {
        self.clock.now_ms()
    }

    /// Returns the chunks in memory that the index has only on disk.
    pub(crate) fn passing(&self) -> &HashSet<ChunkId> {
        &self.passing
    }

    /// Returns a chunk's bytes if they are in memory.
    pub(crate) fn payload(&self, id: ChunkId) -> Option<Bytes> {
        self.payloads.get(&id).cloned()
    }

    /// Stores the missing part of a sequence whose whole state was exported, and returns its number of tokens.
    pub(crate) fn store(&mut self, state: &[u8], sequence_state: &SequenceState<'_>) -> u32 {
        let Some(codec) = &self.codec else { return 0 };
        let missing = self.index.missing(&sequence_state.prefix);
        let export = match codec.layout.parse(state) {
            Ok(export) => export,
            Err(error) => {
                warn!(%error, "the layout of an exported state differs from that of the first one; it is not stored");
                return 0;
            }
        };
        let block_tokens = codec.layout.block_tokens();
        let (mut n_stored, mut previous) = (0, None);
        for blocks in missing {
            let tokens = blocks.start as u32 * block_tokens..blocks.end as u32 * block_tokens;
            let n_tokens = tokens.end - tokens.start;
            let mut payload = self.pages.take(export.layout().payload_bytes(n_tokens));
            if export.cut(tokens, &mut payload).is_err() {
                break;
            }
            previous = self.insert(blocks, payload.freeze(), sequence_state, previous);
            if previous.is_none() {
                break;
            }
            n_stored += n_tokens;
            self.execute_orders();
        }
        self.execute_orders();
        n_stored
    }

    /// Stores received state of a sequence's last blocks, whose other blocks are stored already; returns the new
    /// chunks, which are not evicted before [`Self::release`].
    pub(crate) fn store_received(
        &mut self,
        received_run: &Received,
        sequence_state: &SequenceState<'_>,
    ) -> Vec<ChunkId> {
        let block_bytes = received_run.payload.len() / received_run.n_blocks.max(1);
        let mut stored_ids = Vec::new();
        for blocks in self.index.missing(&sequence_state.prefix) {
            let Some(first) = blocks.start.checked_sub(received_run.first_block) else { break };
            let bytes = first * block_bytes..(first + blocks.len()) * block_bytes;
            let payload = match received_run.payload.get(bytes) {
                None => break,
                Some(all) if all.len() == received_run.payload.len() => received_run.payload.clone(),
                // A slice would keep the whole buffer in memory.
                Some(part) => Bytes::copy_from_slice(part),
            };
            let previous = stored_ids.last().copied();
            let Some(id) = self.insert(blocks, payload, sequence_state, previous) else { break };
            self.index.hold(id);
            stored_ids.push(id);
            self.execute_orders();
        }
        self.execute_orders();
        stored_ids
    }

    /// Adds a chunk with these blocks of a sequence, behind the `previous` one that was added for it; `None` if the
    /// index refuses it.
    fn insert(
        &mut self,
        blocks: Range<usize>,
        payload: Bytes,
        sequence_state: &SequenceState<'_>,
        previous: Option<ChunkId>,
    ) -> Option<ChunkId> {
        let new = NewChunk {
            prefix: sequence_state.prefix,
            blocks,
            n_bytes: payload.len() as u64,
            priority: sequence_state.priority,
            tenant: sequence_state.tenant,
            now_ms: self.clock.now_ms(),
        };
        let inserted = match previous {
            Some(previous) => self.index.insert_after(previous, &new),
            None => self.index.insert(&new),
        };
        match inserted {
            Ok(id) => {
                self.payloads.insert(id, payload);
                Some(id)
            }
            Err(reason) => {
                debug!(%reason, "a chunk is not stored");
                None
            }
        }
    }

    /// Stores the partial state at the end of a sequence of whole blocks.
    pub(crate) fn store_checkpoint(
        &mut self,
        partial: Bytes,
        sequence_state: &SequenceState<'_>,
        place: CheckpointPlace,
    ) {
        let new = NewChunk {
            prefix: sequence_state.prefix,
            blocks: 0..sequence_state.prefix.chain.len(),
            n_bytes: partial.len() as u64,
            priority: sequence_state.priority,
            tenant: sequence_state.tenant,
            now_ms: self.clock.now_ms(),
        };
        match self.index.insert_checkpoint(&new, place) {
            Ok(id) => drop(self.payloads.insert(id, partial)),
            Err(reason) => debug!(%reason, "a checkpoint is not stored"),
        }
        self.execute_orders();
    }

    /// Assembles a prompt's first whole blocks in a buffer from `room`; returns the size and the number of tokens.
    pub(crate) fn state<'b>(
        &self,
        prefix: &StoredPrefix,
        n_tokens: u32,
        checkpoint: Option<ChunkId>,
        room: impl FnOnce(usize) -> &'b mut [u8],
    ) -> Option<(usize, u32)> {
        let codec = self.codec.as_ref()?;
        let block_tokens = codec.layout.block_tokens();
        let pieces = self
            .used_chunks(prefix, n_tokens)
            .map(|chunk| Some((self.payload(chunk.id)?, u32::try_from(chunk.n_blocks).ok()? * block_tokens)));
        let pieces: Vec<(Bytes, u32)> = pieces.collect::<Option<_>>()?;
        let pieces: Vec<_> = pieces.iter().map(|(payload, n)| PayloadPart { payload, n_tokens: *n }).collect();
        let n_whole: u32 = pieces.iter().map(|piece| piece.n_tokens).sum();
        let n_bytes = match checkpoint {
            None => codec.assemble(&pieces, None, room)?,
            Some(checkpoint) => codec.assemble(&pieces, Some(&*self.payload(checkpoint)?), room)?,
        };
        Some((n_bytes, if codec.memory == MemoryKind::Recurrent { n_tokens } else { n_whole }))
    }

    /// Returns the first tokens of another slot's exported state.
    pub(crate) fn first_tokens(&self, state: &[u8], n_tokens: u32) -> Option<PooledPages> {
        let export = self.codec.as_ref()?.layout.parse(state).ok()?;
        let mut payload = self.pages.take(export.layout().payload_bytes(n_tokens));
        export.cut(0..n_tokens, &mut payload).ok()?;
        Some(payload)
    }

    /// Assembles the state of tokens that end at a checkpoint in a buffer from `room`; returns its size.
    pub(crate) fn state_at<'b>(
        &self,
        checkpoint: ChunkId,
        piece: PayloadPart<'_>,
        room: impl FnOnce(usize) -> &'b mut [u8],
    ) -> Option<usize> {
        let partial = self.payload(checkpoint)?;
        self.codec.as_ref()?.assemble(&[piece], Some(&*partial), room)
    }

    /// Returns the size of one token's state without the part that cannot be cut; 0 if nothing can be stored.
    pub(crate) fn token_bytes(&self) -> u64 {
        self.codec.as_ref().map_or(0, |codec| codec.layout.token_bytes() as u64)
    }

    /// Returns the size of a prompt's first tokens in the store, including a checkpoint.
    pub(crate) fn payload_bytes(&self, prefix: &StoredPrefix, n_tokens: u32, checkpoint: Option<ChunkId>) -> u64 {
        let n_blocks: usize = self.used_chunks(prefix, n_tokens).map(|chunk| chunk.n_blocks).sum();
        let block_bytes = self.token_bytes() * u64::from(self.index.limits().block_size_tokens);
        n_blocks as u64 * block_bytes
            + checkpoint.and_then(|id| self.payload(id)).map_or(0, |payload| payload.len() as u64)
    }

    /// Returns the chunks with a prompt's first tokens.
    fn used_chunks(&self, prefix: &StoredPrefix, n_tokens: u32) -> impl Iterator<Item = UsedChunk> {
        let needs_tokens = self.codec.as_ref().is_some_and(|codec| codec.memory != MemoryKind::Recurrent);
        let n_blocks = n_tokens.div_ceil(self.index.limits().block_size_tokens) as usize;
        prefix.first(if needs_tokens { n_blocks } else { 0 })
    }

    /// Protects the chunks of a plan from eviction until [`Self::release`].
    pub(crate) fn hold(&mut self, prefix: &StoredPrefix, plan: &SlotPlan) -> Vec<ChunkId> {
        let n_imported = match plan.start {
            PrefixSource::Import { n_tokens } => n_tokens,
            PrefixSource::Cold | PrefixSource::Keep { .. } | PrefixSource::Copy { .. } => 0,
        };
        let imported_chunks = self.used_chunks(prefix, n_imported).map(|chunk| chunk.id);
        let chunks: Vec<ChunkId> = imported_chunks.chain(plan.checkpoint).collect();
        for id in &chunks {
            self.index.hold(*id);
        }
        chunks
    }

    pub(crate) fn release(&mut self, chunks: &[ChunkId]) {
        for id in chunks {
            self.index.release(*id);
            if !self.index.is_held(*id) && self.passing.remove(id) {
                self.payloads.remove(id);
            }
        }
    }

    /// Records that a tenant's request starts from a prompt's first stored tokens.
    pub(crate) fn touch(&mut self, prefix: &StoredPrefix, n_tokens: u32, tenant: Tenant) {
        let chunks: Vec<UsedChunk> = self.used_chunks(prefix, n_tokens).collect();
        self.index.touch(&chunks, tenant, self.clock.now_ms());
    }

    pub(crate) fn touch_checkpoint(&mut self, checkpoint: ChunkId, tenant: Tenant) {
        self.index.touch_checkpoint(checkpoint, tenant, self.clock.now_ms());
    }

    /// Returns the tiers of a prompt's first tokens; `fetched_chunks` has the chunks that were read from disk for it.
    pub(crate) fn origin(
        &self,
        prefix: &StoredPrefix,
        n_tokens: u32,
        checkpoint: Option<ChunkId>,
        fetched_chunks: &[ChunkId],
    ) -> CachedTokens {
        let mut cached_tokens = CachedTokens::default();
        let mut n_left = n_tokens;
        // Recurrent state has no chunks of tokens: all its tokens come with the checkpoint.
        let block_tokens = self.index.limits().block_size_tokens as usize;
        let chunks = self.used_chunks(prefix, n_tokens).map(|chunk| (chunk.id, chunk.n_blocks * block_tokens));
        for (id, n) in chunks.chain(checkpoint.map(|id| (id, n_tokens as usize))) {
            let n = n_left.min(u32::try_from(n).unwrap_or(u32::MAX));
            n_left -= n;
            match fetched_chunks.contains(&id) {
                true => cached_tokens.disk += n,
                false => cached_tokens.ram += n,
            }
        }
        cached_tokens
    }

    /// Removes chunks and checkpoints whose state cannot be used, with all that follows them.
    pub(crate) fn discard(&mut self, ids: &[ChunkId]) {
        ids.iter().for_each(|id| self.index.discard(*id));
        self.execute_orders();
    }

    /// Removes all stored state.
    pub(crate) fn clear(&mut self) {
        self.index.clear();
        self.execute_orders();
    }

    /// Returns the changes of stored blocks since the last call, in order, for routers.
    pub(crate) fn take_changes(&mut self) -> Vec<TierChange> {
        self.index.take_changes()
    }
}

impl Codec {
    fn assemble<'b>(
        &self,
        pieces: &[PayloadPart<'_>],
        partial: Option<&[u8]>,
        room: impl FnOnce(usize) -> &'b mut [u8],
    ) -> Option<usize> {
        let frame = StateFrame { n_streams: self.n_streams, sequence: 0 };
        let result = self.layout.assemble(frame, pieces, partial, room);
        result.map_err(|error| warn!(%error, "stored state cannot be assembled")).ok()
    }
}

#[cfg(test)]
mod tests;
