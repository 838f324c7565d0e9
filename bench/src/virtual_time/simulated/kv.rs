//! The KV state of a simulated engine: the production slot table, slot plan and chunk index, beside the tokens that
//! llama.cpp's cells and the store would hold.
//!
//! Production code makes all decisions: where a prompt starts, which request waits for which, what is kept, evicted and
//! announced. The cells only execute its plans, so wrong reuse shows as wrong cells. A stored block counts as one byte.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::ops::Range;
use std::time::Duration;

use warmpath_common::block_hash::{BlockHash, BlockKey, block_chain, block_hash};
use warmpath_common::ids::{SlotId, Token};
use warmpath_common::model::MemoryKind;
use warmpath_common::prefetch::{HotPrefix, LIST_TOKENS_MAX};
use warmpath_common::summary::{Change, Tier};
use warmpath_worker_core::slots::checkpoints::{CheckpointNeed, CheckpointPolicy, CheckpointStop};
use warmpath_worker_core::slots::slot_plan::{
    self, PlanInputs, PrefixSource, Reuse, SlotDecision, SlotPlan, SlotRequest,
};
use warmpath_worker_core::slots::slot_table::{Acquire, AfterUse, SlotSizes, SlotTable};
use warmpath_worker_core::store::chunk_index::{
    CheckpointPlace, ChunkId, ChunkIndex, NewChunk, Prefix, StoreLimits, StoreOrder, UsedChunk,
};
use warmpath_worker_core::store::restore_costs::Costs;
use warmpath_worker_core::tenants::{Tenant, TenantId};

use super::disk::{Disk, DiskShape};

/// Tenant of every request.
const TENANT: Tenant = Tenant::with_share(TenantId(0));

/// Prompt with its hash chain.
#[derive(Debug, Clone, PartialEq)]
pub struct Prompt {
    /// Content of its cells.
    pub tokens: Vec<Token>,
    /// Hashes of its blocks.
    pub chain: Vec<BlockHash>,
    /// Root of the chain.
    pub root: BlockHash,
}

impl Prompt {
    /// Returns the keys of its blocks.
    pub fn keys(&self) -> impl Iterator<Item = BlockKey> {
        self.chain.iter().map(BlockHash::key)
    }

    fn slot_request(&self) -> SlotRequest<'_> {
        SlotRequest {
            prompt: &self.tokens,
            chain: &self.chain,
            root: &self.root,
            tenant: TENANT.share_id(),
            reuse: Reuse::Allowed,
            wanted: None,
            media: &[],
        }
    }

    /// Returns the first `n_blocks` of it.
    fn first(&self, n_blocks: usize, block_cells: usize) -> Prefix<'_> {
        let tokens = &self.tokens[..n_blocks * block_cells];
        Prefix { root: self.root, chain: &self.chain[..n_blocks], tokens }
    }
}

/// Place of a sequence's state after its end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EndedState {
    /// The slot keeps it, and the store gets a copy of the prompt's state.
    StaysInSlot,
    /// Only the store has it, as in a worker with `--prefix-cache-max-tokens 0`.
    MovesToStore,
}

/// Sizes of the KV state.
#[derive(Debug, Clone, Copy)]
pub struct KvSizes {
    /// Number of slots.
    pub n_slots: u16,
    /// Cells of one slot.
    pub slot_cells: u32,
    /// Cells of one block.
    pub block_cells: u32,
    /// Maximum number of blocks of the store in RAM.
    pub store_blocks: u64,
    /// Disk tier of the store, if there is one.
    pub disk: Option<DiskShape>,
    /// Order in which the store evicts.
    pub eviction: Eviction,
    /// Maximum number of blocks of one stored chunk.
    pub chunk_blocks_max: usize,
    /// Time for which a chunk stays after its last use. Units: milliseconds.
    pub min_hold_ms: u64,
    /// Place of a sequence's state after its end.
    pub ended: EndedState,
    /// Size of a checkpoint, for a model that resumes only at checkpoints. Units: blocks of state.
    pub checkpoint_blocks: Option<u64>,
    /// Number of tokens that a cell stands for.
    pub cell_tokens: u32,
}

/// Order in which a store evicts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Eviction {
    /// The worker's: a segmented LRU whose border is learnt.
    Arc,
    /// The least recently used chunk first, as in other servers.
    Lru,
}

/// Content of a stored chunk.
#[derive(Debug)]
struct Chunk {
    cells: Vec<Token>,
    keys: Vec<BlockKey>,
}

/// KV state of one engine, and the changes that it must announce.
#[derive(Debug)]
pub struct Kv {
    table: SlotTable,
    index: ChunkIndex,
    costs: Costs,
    disk: Disk,
    /// Chunks that were read from disk for a request and have no room in RAM.
    at_hand: HashSet<ChunkId>,
    block_cells: usize,
    ended: EndedState,
    checkpoint_blocks: Option<u64>,
    cell_tokens: u32,
    /// Checkpoints that each slot's sequence has yet to make, by ascending position.
    checkpoints: Vec<Vec<CheckpointStop>>,
    /// Cells of each slot.
    cells: Vec<Vec<Token>>,
    chunks: BTreeMap<ChunkId, Chunk>,
}

impl Kv {
    /// Returns empty state; computing and restoring a cell take these times.
    pub fn new(sizes: KvSizes, prefill_ms_per_cell: f64, restore_ms_per_cell: f64) -> Self {
        let limits = StoreLimits {
            ram_bytes: sizes.store_blocks,
            disk_bytes: sizes.disk.map_or(0, |disk| disk.n_blocks_max),
            min_hold_ms: sizes.min_hold_ms,
            chunk_blocks_max: sizes.chunk_blocks_max,
            block_size_tokens: sizes.block_cells,
        };
        let slots = SlotSizes {
            n_slots: sizes.n_slots,
            context_tokens: sizes.slot_cells,
            block_size_tokens: sizes.block_cells,
            memory: if sizes.checkpoint_blocks.is_some() { MemoryKind::Hybrid } else { MemoryKind::Full },
            hasher: block_hash,
        };
        let costs = Costs {
            prefill_ms_per_token: prefill_ms_per_cell,
            copy_ms_per_token: Some(restore_ms_per_cell),
            export_ms_per_token: Some(restore_ms_per_cell),
            import_ms_per_byte: restore_ms_per_cell * f64::from(sizes.block_cells),
            read_ms_per_byte: sizes.disk.map_or(0.0, |disk| disk.ms_per_block),
            suffix_rounding: None,
        };
        Self {
            table: SlotTable::new(slots),
            index: match sizes.eviction {
                Eviction::Arc => ChunkIndex::new(limits),
                Eviction::Lru => ChunkIndex::plain_lru(limits),
            },
            costs,
            disk: sizes.disk.map(Disk::new).unwrap_or_default(),
            at_hand: HashSet::new(),
            block_cells: sizes.block_cells as usize,
            ended: sizes.ended,
            checkpoint_blocks: sizes.checkpoint_blocks,
            cell_tokens: sizes.cell_tokens,
            checkpoints: vec![Vec::new(); usize::from(sizes.n_slots)],
            cells: vec![Vec::new(); usize::from(sizes.n_slots)],
            chunks: BTreeMap::new(),
        }
    }

    /// Returns what happens next to a waiting request.
    pub fn plan(&self, prompt: &Prompt) -> SlotDecision {
        slot_plan::plan(&self.inputs(), &prompt.slot_request())
    }

    /// Returns how many of the prompt's first cells will not have to be computed once it starts.
    pub fn n_usable(&self, prompt: &Prompt) -> u32 {
        slot_plan::best_usable(&self.inputs(), &prompt.slot_request())
    }

    /// Starts a request in the slot of its plan, with the state of the plan.
    pub fn start(&mut self, prompt: &Prompt, plan: &SlotPlan, now_ms: u64) {
        let n_start = plan.start.n_tokens() as usize;
        self.checkpoints[usize::from(plan.slot.0)] = self.stops(prompt, plan.start.n_tokens());
        if let Some(checkpoint) = plan.checkpoint {
            self.index.touch_checkpoint(checkpoint, TENANT, now_ms);
        }
        let (chunks, n_stored) = self.touch(prompt, n_start.div_ceil(self.block_cells), now_ms);
        let source = match plan.start {
            PrefixSource::Cold => Vec::new(),
            PrefixSource::Keep { .. } => self.cells(plan.slot).to_vec(),
            PrefixSource::Copy { from, n_tokens } => {
                if n_stored * self.block_cells < n_start {
                    self.table.lend(from, n_tokens);
                }
                self.cells(from).to_vec()
            }
            PrefixSource::Import { .. } => {
                let cells = |chunk: &UsedChunk| &self.chunks[&chunk.id].cells[..chunk.n_blocks * self.block_cells];
                chunks.iter().flat_map(cells).copied().collect()
            }
        };
        assert!(source.len() >= n_start, "{:?} takes {n_start} cells where {} are", plan.start, source.len());
        self.cells[usize::from(plan.slot.0)] = source[..n_start].to_vec();
        self.table.acquire(Acquire {
            slot: plan.slot,
            prompt: &prompt.tokens,
            n_start_tokens: plan.start.n_tokens(),
            rewinds_to_tokens: 0,
            root: prompt.root,
            prompt_chain: &prompt.chain,
            after_use: AfterUse::Keep,
        });
    }

    /// Appends cells that a sequence has computed, and makes the checkpoints that it has passed.
    pub fn extend(&mut self, slot: SlotId, tokens: &[Token], now_ms: u64) {
        self.cells[usize::from(slot.0)].extend_from_slice(tokens);
        self.table.extend(slot, tokens);
        let n_cells = self.cells(slot).len() as u32;
        let stops = &mut self.checkpoints[usize::from(slot.0)];
        let n_passed = stops.iter().take_while(|stop| stop.n_tokens <= n_cells).count();
        for stop in stops.drain(..n_passed).collect::<Vec<_>>() {
            self.keep_checkpoint(slot, stop, now_ms);
        }
    }

    /// Lets the sequence of a slot make a checkpoint for a request that waits for it.
    pub fn want_checkpoint(&mut self, slot: SlotId, n_tokens: u32) {
        let stops = &mut self.checkpoints[usize::from(slot.0)];
        if let Err(idx) = stops.binary_search_by_key(&n_tokens, |stop| stop.n_tokens) {
            stops.insert(idx, CheckpointStop { n_tokens, place: CheckpointPlace::Shared });
        }
    }

    /// Returns the cells of a slot.
    pub fn cells(&self, slot: SlotId) -> &[Token] {
        &self.cells[usize::from(slot.0)]
    }

    /// Ends a sequence and stores its prompt, as far as it is computed.
    pub fn end(&mut self, prompt: &Prompt, slot: SlotId, now_ms: u64) {
        assert_eq!(self.table.release(slot), AfterUse::Keep);
        let n_blocks = self.cells(slot).len().min(prompt.tokens.len()) / self.block_cells;
        let n_blocks = match self.checkpoint_blocks {
            Some(_) => self.index.n_resumable(&prompt.first(n_blocks, self.block_cells)),
            None => n_blocks,
        };
        let cells = self.cells(slot)[..n_blocks * self.block_cells].to_vec();
        self.store(prompt.first(n_blocks, self.block_cells), &cells, now_ms);
        if self.ended == EndedState::MovesToStore {
            // Blocks that others started from in the slot count as used in the store.
            let n_reused = self.table.take_reused(slot) as usize;
            self.touch(prompt, n_reused.div_ceil(self.block_cells), now_ms);
        }
        self.take_orders(now_ms);
        if self.ended == EndedState::MovesToStore {
            self.table.forget(slot);
            self.cells[usize::from(slot.0)].clear();
        }
    }

    /// Stores a prompt's first `n_blocks`, which another worker has sent; the returned chunks stay in place until
    /// [`Kv::release`].
    pub fn bring(&mut self, prompt: &Prompt, n_blocks: usize, now_ms: u64) -> Vec<ChunkId> {
        let prefix = prompt.first(n_blocks, self.block_cells);
        self.store(prefix, prefix.tokens, now_ms);
        self.take_orders(now_ms);
        let chunks: Vec<ChunkId> = self.index.find(&prefix).first(n_blocks).map(|chunk| chunk.id).collect();
        chunks.iter().for_each(|id| self.index.hold(*id));
        chunks
    }

    /// Begins to read chunks from disk, which then stay in place until [`Kv::release`]; returns when all are read.
    pub fn fetch(&mut self, chunks: &[ChunkId], now: Duration) -> Duration {
        let read = |id: &ChunkId| {
            self.index.hold(*id);
            self.disk.read(*id, self.chunks[id].keys.len(), now)
        };
        chunks.iter().map(read).max().unwrap_or(now)
    }

    /// Applies the reads and writes of the disk that have ended.
    pub fn take_disk_events(&mut self, now: Duration) {
        let now_ms = now.as_millis() as u64;
        while let Some(id) = self.disk.next_written(now) {
            self.index.written(id, now_ms);
        }
        while let Some(id) = self.disk.next_read(now) {
            if !self.index.read_back(id, now_ms) && self.index.is_held(id) {
                self.at_hand.insert(id);
            }
        }
        self.take_orders(now_ms);
    }

    /// Returns the numbers of blocks that were read from disk and written to it.
    pub fn n_disk_blocks(&self) -> [u64; 2] {
        self.disk.n_moved()
    }

    /// Lets chunks of [`Kv::bring`] or [`Kv::fetch`] be evicted again.
    pub fn release(&mut self, chunks: Vec<ChunkId>) {
        for id in chunks {
            self.index.release(id);
            if !self.index.is_held(id) {
                self.at_hand.remove(&id);
            }
        }
    }

    /// Returns the stored prefixes, the most valuable ones first.
    pub fn hot_prefixes(&self) -> Vec<HotPrefix> {
        let prefixes = self.index.hot_prefixes(LIST_TOKENS_MAX, &mut HashSet::new());
        prefixes.into_iter().map(|(root, tokens)| HotPrefix { root, tokens }).collect()
    }

    /// Returns how many of a prefix's first blocks are stored.
    pub fn n_stored(&self, prefix: &HotPrefix) -> usize {
        let chain = self.chain_of(prefix);
        self.index.find(&Prefix { root: prefix.root, chain: &chain, tokens: &prefix.tokens }).n_blocks
    }

    /// Stores a prefix that another worker has sent before a request needs it.
    pub fn bring_ahead(&mut self, prefix: &HotPrefix, now_ms: u64) {
        let chain = self.chain_of(prefix);
        self.store(Prefix { root: prefix.root, chain: &chain, tokens: &prefix.tokens }, &prefix.tokens, now_ms);
        self.take_orders(now_ms);
    }

    /// Takes the changes for routers.
    pub fn take_changes(&mut self) -> Vec<Change> {
        self.table.take_changes()
    }

    /// Returns how many more blocks the store takes before it evicts one.
    pub fn free_store_blocks(&self) -> u64 {
        self.index.limits().ram_bytes.saturating_sub(self.index.totals(Tier::Ram).n_bytes)
    }

    /// Returns the number of cells that are free where ended sequences leave their state.
    pub fn free_cells(&self) -> u64 {
        match self.ended {
            EndedState::StaysInSlot => self.table.free_cells(),
            EndedState::MovesToStore => self.free_store_blocks() * self.block_cells as u64,
        }
    }

    /// Returns every block in slots and store. No sequence may run.
    pub fn blocks(&self) -> BTreeSet<BlockKey> {
        let slots = self.table.iter().flat_map(|(slot, _)| self.table.tree().chain(slot)).map(BlockHash::key);
        slots.chain(self.chunks.values().flat_map(|chunk| &chunk.keys).copied()).collect()
    }

    /// Checks that all parts agree, and that the table describes the cells.
    pub fn check(&self) {
        self.table.check_invariants();
        self.index.check_invariants();
        for (id, slot) in self.table.iter() {
            assert_eq!(slot.tokens(), self.cells(id), "the cells of slot {id}");
        }
    }

    /// Returns the checkpoints of a prompt, of which the first `n_cached` cells are cached, in cells.
    fn stops(&self, prompt: &Prompt, n_cached: u32) -> Vec<CheckpointStop> {
        let block_size_tokens = self.block_cells as u32 * self.cell_tokens;
        let need = if self.checkpoint_blocks.is_some() { CheckpointNeed::Needed } else { CheckpointNeed::None };
        let n_shared = self.index.n_shared_with_checkpoints(&prompt.slot_request().prefix());
        let diverged = n_shared as u32 * block_size_tokens;
        let [first, end] = [n_cached, prompt.tokens.len() as u32].map(|n_cells| n_cells * self.cell_tokens);
        let stops = CheckpointPolicy { block_size_tokens, need }.stops(first..end, [diverged]);
        let in_cells = |stop: CheckpointStop| CheckpointStop { n_tokens: stop.n_tokens / self.cell_tokens, ..stop };
        stops.into_iter().map(in_cells).collect()
    }

    fn keep_checkpoint(&mut self, slot: SlotId, stop: CheckpointStop, now_ms: u64) {
        let (Some(n_bytes), Some(root)) = (self.checkpoint_blocks, self.table.slot(slot).root().copied()) else {
            return;
        };
        let tokens = self.cells(slot)[..stop.n_tokens as usize].to_vec();
        let chain = self.table.tree().chain(slot)[..tokens.len() / self.block_cells].to_vec();
        let prefix = Prefix { root, chain: &chain, tokens: &tokens };
        let new = NewChunk { prefix, blocks: 0..chain.len(), n_bytes, priority: 0, tenant: TENANT, now_ms };
        // A checkpoint may be there already, or too large.
        let _stored = self.index.insert_checkpoint(&new, stop.place);
        self.take_orders(now_ms);
    }

    fn chain_of(&self, prefix: &HotPrefix) -> Vec<BlockHash> {
        block_chain(&prefix.root, &prefix.tokens, self.block_cells as u32)
    }

    /// Stores the blocks of a prefix that are not stored; `cells` is its state.
    fn store(&mut self, prefix: Prefix<'_>, cells: &[Token], now_ms: u64) {
        let mut previous = None;
        for blocks in self.index.missing(&prefix) {
            let n_bytes = blocks.len() as u64;
            let new = NewChunk { prefix, blocks: blocks.clone(), n_bytes, priority: 0, tenant: TENANT, now_ms };
            let admission = match previous {
                Some(previous) => self.index.insert_after(previous, &new),
                None => self.index.insert(&new),
            };
            let Ok(id) = admission else { break };
            previous = Some(id);
            let Range { start, end } = blocks.clone();
            let cells = cells[start * self.block_cells..end * self.block_cells].to_vec();
            let keys = prefix.chain[blocks].iter().map(BlockHash::key).collect();
            self.chunks.insert(id, Chunk { cells, keys });
        }
    }

    /// Applies the store's decisions on written, kept and evicted chunks. A chunk's cells stay while any tier has it.
    fn take_orders(&mut self, now_ms: u64) {
        for order in self.index.take_orders() {
            match order {
                StoreOrder::Write(id) => {
                    let n_blocks = self.chunks.get(&id).map_or(0, |chunk| chunk.keys.len());
                    self.disk.write(id, n_blocks, Duration::from_millis(now_ms));
                }
                StoreOrder::DropRam(id) | StoreOrder::DropFile(id, _) => {
                    if self.index.record(id).is_none() {
                        self.chunks.remove(&id);
                    }
                }
            }
        }
        for change in self.index.take_changes() {
            self.table.apply(change);
        }
    }

    /// Records a use of the prompt's first `n_blocks`; returns the chunks with them, and how many of the prompt's
    /// blocks are stored.
    fn touch(&mut self, prompt: &Prompt, n_blocks: usize, now_ms: u64) -> (Vec<UsedChunk>, usize) {
        let stored_prefix = self.index.find(&prompt.slot_request().prefix());
        let chunks: Vec<UsedChunk> = stored_prefix.first(n_blocks).collect();
        self.index.touch(&chunks, TENANT, now_ms);
        (chunks, stored_prefix.n_blocks)
    }

    fn inputs(&self) -> PlanInputs<'_> {
        let Self { table, index, at_hand, costs, .. } = self;
        PlanInputs { table, index, at_hand, costs, is_disk_late: false }
    }
}
