//! The KV state of a simulated worker: the production slot table, slot plan and chunk index, beside a model of the
//! cells.
//!
//! The cells stand for the contents of llama.cpp's buffer and of the store. Production code decides which cells are
//! copied to which slot. Answers are computed from the cells, so wrong reuse gives a wrong answer.

use std::collections::{BTreeMap, BTreeSet, HashSet};

use warmpath_common::block_hash::{BlockHash, BlockKey, block_chain, block_hash};
use warmpath_common::ids::{SlotId, Token};
use warmpath_common::model::MemoryKind;
use warmpath_common::summary::Change;
use warmpath_worker_core::chunk_index::{ChunkId, ChunkIndex, NewChunk, Prefix, StoreLimits, StoreOrder};
use warmpath_worker_core::restore_costs::Costs;
use warmpath_worker_core::slot_plan::{self, PlanInputs, PrefixSource, Reuse, SlotDecision, SlotPlan, Wish};
use warmpath_worker_core::slot_table::{Acquire, AfterUse, SlotSizes, SlotTable};
use warmpath_worker_core::tenants::{Tenant, TenantId};

use super::model::{Build, CONTEXT_TOKENS};

/// Capacity of the store: small, so that it evicts often. Units: blocks.
const STORE_BLOCKS: u64 = 60;
const TENANT: Tenant = Tenant::with_share(TenantId(0));

/// A prompt with its hash chain.
#[derive(Debug, Clone)]
pub struct Prompt {
    /// Tokens.
    pub tokens: Vec<Token>,
    /// Hashes of its whole blocks.
    pub chain: Vec<BlockHash>,
    root: BlockHash,
}

impl Prompt {
    /// Returns a prompt for a build.
    pub fn new(tokens: Vec<Token>, build: &Build) -> Self {
        let root = build.root();
        Self { chain: block_chain(&root, &tokens, build.block_size_tokens), tokens, root }
    }

    fn wish(&self) -> Wish<'_> {
        Wish {
            prompt: &self.tokens,
            chain: &self.chain,
            root: &self.root,
            tenant: TENANT.share_id(),
            reuse: Reuse::Allowed,
            wanted: None,
            media: &[],
        }
    }
}

/// KV state of one worker.
pub struct Kv {
    table: SlotTable,
    index: ChunkIndex,
    costs: Costs,
    /// Chunks read from disk; empty, since there is no disk.
    at_hand: HashSet<ChunkId>,
    block_size: usize,
    /// Cells of each slot.
    cells: Vec<Vec<Token>>,
    /// Cells of each stored chunk, and its blocks.
    chunks: BTreeMap<ChunkId, (Vec<Token>, Vec<BlockKey>)>,
}

impl Kv {
    /// Returns empty state.
    pub fn new(build: &Build) -> Self {
        let limits = StoreLimits {
            ram_bytes: STORE_BLOCKS,
            disk_bytes: 0,
            min_hold_ms: 0,
            chunk_blocks_max: 3,
            block_size_tokens: build.block_size_tokens,
        };
        let sizes = SlotSizes {
            n_slots: build.n_slots,
            context_tokens: CONTEXT_TOKENS,
            block_size_tokens: build.block_size_tokens,
            memory: MemoryKind::Full,
            hasher: block_hash,
        };
        let costs = Costs {
            prefill_ms_per_token: 1.0,
            copy_ms_per_token: Some(0.01),
            export_ms_per_token: Some(0.01),
            import_ms_per_byte: 0.04,
            read_ms_per_byte: 0.0,
            suffix_rounding: None,
        };
        Self {
            table: SlotTable::new(sizes),
            index: ChunkIndex::new(limits),
            costs,
            at_hand: HashSet::new(),
            block_size: build.block_size_tokens as usize,
            cells: vec![Vec::new(); usize::from(build.n_slots)],
            chunks: BTreeMap::new(),
        }
    }

    /// Returns the next step of a waiting request.
    pub fn plan(&self, prompt: &Prompt) -> SlotDecision {
        slot_plan::plan(&self.inputs(), &prompt.wish())
    }

    /// Returns an upper estimate of the prompt tokens that need not be computed.
    pub fn n_usable(&self, prompt: &Prompt) -> u32 {
        slot_plan::best_usable(&self.inputs(), &prompt.wish())
    }

    /// Starts a request in the slot of its plan, with the KV state of the plan.
    pub fn start(&mut self, prompt: &Prompt, plan: &SlotPlan, now_ms: u64) {
        let n_start = plan.start.n_tokens() as usize;
        let held = match plan.start {
            PrefixSource::Cold => Vec::new(),
            PrefixSource::Keep { .. } => self.cells[usize::from(plan.slot.0)].clone(),
            PrefixSource::Copy { from, n_tokens } => {
                self.table.lend(from, n_tokens);
                self.cells[usize::from(from.0)].clone()
            }
            PrefixSource::Import { .. } => {
                let found = self.index.find(&prompt.wish().prefix());
                let used: Vec<_> = found.pieces.iter().map(|piece| (piece.chunk, piece.n_blocks)).collect();
                self.index.touch(&used, TENANT, now_ms);
                let part = |(id, n_blocks): &(ChunkId, usize)| &self.chunks[id].0[..n_blocks * self.block_size];
                used.iter().flat_map(part).copied().collect()
            }
        };
        assert!(held.len() >= n_start, "{:?} takes {n_start} tokens where {} are", plan.start, held.len());
        self.cells[usize::from(plan.slot.0)] = held[..n_start].to_vec();
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

    /// Appends tokens that a sequence has computed.
    pub fn extend(&mut self, slot: SlotId, tokens: &[Token]) {
        self.cells[usize::from(slot.0)].extend_from_slice(tokens);
        self.table.extend(slot, tokens);
    }

    /// Returns the cells of a slot.
    pub fn cells(&self, slot: SlotId) -> &[Token] {
        &self.cells[usize::from(slot.0)]
    }

    /// Ends a sequence and stores its prompt, as far as it is computed; the slot keeps its state.
    pub fn end(&mut self, prompt: &Prompt, slot: SlotId, now_ms: u64) {
        assert_eq!(self.table.release(slot), AfterUse::Keep);
        let n_blocks = (self.cells(slot).len().min(prompt.tokens.len())) / self.block_size;
        let cells = self.cells(slot).to_vec();
        let n_tokens = n_blocks * self.block_size;
        let prefix = Prefix { root: prompt.root, chain: &prompt.chain[..n_blocks], tokens: &prompt.tokens[..n_tokens] };
        for blocks in self.index.missing(&prefix) {
            let of_blocks = &cells[blocks.start * self.block_size..blocks.end * self.block_size];
            let keys = prefix.chain[blocks.clone()].iter().map(BlockHash::key).collect();
            let n_bytes = blocks.len() as u64;
            let new = NewChunk { prefix, blocks, n_bytes, priority: 0, tenant: TENANT, now_ms };
            let Ok(id) = self.index.insert(&new) else { break };
            self.chunks.insert(id, (of_blocks.to_vec(), keys));
        }
        for order in self.index.take_orders() {
            match order {
                StoreOrder::DropRam(id) => drop(self.chunks.remove(&id)),
                other => panic!("{other:?} without a disk"),
            }
        }
        self.index.take_changes().into_iter().for_each(|change| self.table.apply(change));
    }

    /// Takes the changes for routers.
    pub fn take_changes(&mut self) -> Vec<Change> {
        self.table.take_changes()
    }

    /// Returns the number of free cells.
    pub fn free_cells(&self) -> u64 {
        self.table.free_cells()
    }

    /// Returns every block that the worker holds. No sequence may run.
    pub fn held(&self) -> BTreeSet<BlockKey> {
        let slots = self.table.iter().flat_map(|(slot, _)| self.table.tree().chain(slot)).map(BlockHash::key);
        slots.chain(self.chunks.values().flat_map(|(_, keys)| keys).copied()).collect()
    }

    /// Checks that all parts agree, and that the table describes the cells.
    pub fn check(&self) {
        self.table.check_invariants();
        self.index.check_invariants();
        for (id, slot) in self.table.iter() {
            assert_eq!(slot.tokens(), self.cells(id), "the cells of slot {id}");
        }
    }

    fn inputs(&self) -> PlanInputs<'_> {
        let Self { table, index, at_hand, costs, .. } = self;
        PlanInputs { table, index, at_hand, costs, is_disk_late: false }
    }
}
