//! The KV state of a simulated worker: the production slot table, slot plan and chunk index, with one token per block
//! of the trace.
//!
//! Not here: the times at which blocks are computed (`worker`). Production code makes all decisions: where a prompt
//! starts, which request waits for which, what is kept, evicted and announced. A payload is a number of bytes, one per
//! block. Computed blocks of a running sequence are in its slot, from which other sequences can start as well. When the
//! sequence ends, they move to the store immediately, as in a worker with `--prefix-cache-max-tokens 0`, so the state
//! of ended sequences is limited in blocks.

use std::collections::HashSet;
use std::ops::Range;

use warmpath_common::block_hash::{BlockHash, block_chain, block_hash};
use warmpath_common::ids::SlotId;
use warmpath_common::model::MemoryKind;
use warmpath_common::prefetch::{HotPrefix, LIST_TOKENS_MAX};
use warmpath_common::summary::{Change, Tier};
use warmpath_worker_core::chunk_index::{ChunkId, ChunkIndex, NewChunk, Prefix, StoreLimits, StoreOrder};
use warmpath_worker_core::restore_costs::Costs;
use warmpath_worker_core::slot_plan::{self, PlanInputs, PrefixSource, Reuse, SlotDecision, SlotPlan, Wish};
use warmpath_worker_core::slot_table::{self, Acquire, AfterUse, SlotTable};
use warmpath_worker_core::tenants::{Tenant, TenantId};

use super::super::trace::Request;
use super::{RESTORE_MS_PER_TOKEN, Shape};

/// Length of a stored chunk. Units: tokens.
///
/// Source: the glossary: a chunk is up to 256 tokens.
const CHUNK_TOKENS: u32 = 256;
/// Time for which a chunk stays after its last use. Units: milliseconds.
///
/// Source: `StoreConfig::default` of the worker's engine.
const MIN_HOLD_MS: u64 = 10_000;
/// Root of every chain: the traces have one model and one tenant.
const ROOT: BlockHash = BlockHash([0; 32]);
/// Tenant of every request.
const TENANT: Tenant = Tenant::with_share(TenantId(0));

/// State that one worker holds, and the changes that it must announce.
#[derive(Debug)]
pub(super) struct Cache {
    table: SlotTable,
    index: ChunkIndex,
    costs: Costs,
    /// Chunks read from disk; empty, since there is no disk.
    at_hand: HashSet<ChunkId>,
}

impl Cache {
    pub(super) fn new(shape: Shape, block_tokens: u32) -> Self {
        let limits = StoreLimits {
            ram_bytes: shape.n_blocks_max,
            disk_bytes: 0,
            min_hold_ms: MIN_HOLD_MS,
            chunk_blocks_max: (CHUNK_TOKENS / block_tokens).max(1) as usize,
            block_size_tokens: 1,
        };
        let table = slot_table::SlotSizes {
            n_slots: shape.n_slots,
            context_tokens: u32::MAX,
            block_size_tokens: 1,
            memory: MemoryKind::Full,
            hasher: block_hash,
        };
        let restore_ms = RESTORE_MS_PER_TOKEN * f64::from(block_tokens);
        let costs = Costs {
            prefill_ms_per_token: 1e3 / shape.prefill_tokens_per_s * f64::from(block_tokens),
            copy_ms_per_token: Some(restore_ms),
            export_ms_per_token: Some(restore_ms),
            import_ms_per_byte: restore_ms,
            read_ms_per_byte: 0.0,
            suffix_rounding: None,
        };
        Self { table: SlotTable::new(table), index: ChunkIndex::new(limits), costs, at_hand: HashSet::new() }
    }

    /// Returns how many of the prompt's leading blocks will not have to be computed once it starts.
    pub(super) fn n_usable(&self, request: &Request) -> usize {
        slot_plan::best_usable(&self.outlook(), &wish(request)) as usize
    }

    /// Returns what happens next to a waiting request.
    pub(super) fn plan(&self, request: &Request) -> SlotDecision {
        slot_plan::plan(&self.outlook(), &wish(request))
    }

    /// Gives a request the slot of its plan.
    pub(super) fn start(&mut self, request: &Request, plan: &SlotPlan, now_ms: u64) {
        let n_blocks = plan.start.n_tokens();
        let n_stored = self.touch(request, n_blocks, now_ms);
        if let PrefixSource::Copy { from, .. } = plan.start
            && n_stored < n_blocks as usize
        {
            self.table.lend(from, n_blocks);
        }
        self.table.acquire(Acquire {
            slot: plan.slot,
            prompt: &request.ids,
            n_start_tokens: n_blocks,
            rewinds_to_tokens: 0,
            root: ROOT,
            prompt_chain: &request.chain,
            after_use: AfterUse::Keep,
        });
    }

    /// Records that a sequence has computed the prompt's blocks `done`.
    pub(super) fn extend(&mut self, request: &Request, slot: SlotId, done: Range<usize>) {
        self.table.extend(slot, &request.ids[done]);
    }

    /// Stores the blocks of a sequence that has ended.
    pub(super) fn end(&mut self, request: &Request, slot: SlotId, now_ms: u64) {
        let _ = self.table.release(slot);
        self.store(prefix(request), now_ms);
        // Blocks that others started from in the slot count as used in the store.
        let n_reused = self.table.take_reused(slot);
        self.touch(request, n_reused, now_ms);
        self.take_orders();
        self.table.forget(slot);
    }

    /// Stores a request's first `n_blocks`, which another worker has sent; the returned chunks stay in place until
    /// [`Cache::let_go`].
    pub(super) fn bring(&mut self, request: &Request, n_blocks: usize, now_ms: u64) -> Vec<ChunkId> {
        let whole = prefix(request);
        let first = Prefix { chain: &whole.chain[..n_blocks], tokens: &whole.tokens[..n_blocks], ..whole };
        self.store(first, now_ms);
        self.take_orders();
        let held: Vec<ChunkId> = self.index.find(&first).first(n_blocks).map(|(id, _)| id).collect();
        held.iter().for_each(|id| self.index.hold(*id));
        held
    }

    /// Returns the stored prefixes, the ones most worth having first.
    pub(super) fn hot_prefixes(&self) -> Vec<HotPrefix> {
        let prefixes = self.index.hot_prefixes(LIST_TOKENS_MAX, &mut HashSet::new());
        prefixes.into_iter().map(|(root, tokens)| HotPrefix { root, tokens }).collect()
    }

    /// Returns how many of a prefix's leading blocks are stored.
    pub(super) fn n_stored(&self, prefix: &HotPrefix) -> usize {
        let chain = block_chain(&prefix.root, &prefix.tokens, 1);
        self.index.find(&Prefix { root: prefix.root, chain: &chain, tokens: &prefix.tokens }).n_blocks
    }

    /// Stores a prefix that another worker has sent before a request needs it.
    pub(super) fn bring_ahead(&mut self, prefix: &HotPrefix, now_ms: u64) {
        let chain = block_chain(&prefix.root, &prefix.tokens, 1);
        self.store(Prefix { root: prefix.root, chain: &chain, tokens: &prefix.tokens }, now_ms);
        self.take_orders();
    }

    /// Lets chunks of [`Cache::bring`] be evicted again.
    pub(super) fn let_go(&mut self, held: Vec<ChunkId>) {
        held.into_iter().for_each(|id| self.index.release(id));
    }

    fn store(&mut self, prefix: Prefix<'_>, now_ms: u64) {
        for blocks in self.index.missing(&prefix) {
            let n_bytes = blocks.len() as u64;
            let new = NewChunk { prefix, blocks, n_bytes, priority: 0, tenant: TENANT, now_ms };
            if self.index.insert(&new).is_err() {
                break;
            }
        }
    }

    /// Applies the store's decisions on kept and evicted chunks.
    fn take_orders(&mut self) {
        for order in self.index.take_orders() {
            debug_assert!(matches!(order, StoreOrder::DropRam(_)), "there is no disk");
        }
        for change in self.index.take_changes() {
            self.table.apply(change);
        }
    }

    /// Takes the changes that must be announced to routers.
    pub(super) fn take_changes(&mut self) -> Vec<Change> {
        self.table.take_changes()
    }

    /// Returns how many more blocks fit before one is evicted.
    pub(super) fn free_blocks(&self) -> u64 {
        self.index.limits().ram_bytes.saturating_sub(self.index.totals(Tier::Ram).n_bytes)
    }

    /// Records a use of the prompt's first `n_blocks`; returns how many of its blocks are stored.
    fn touch(&mut self, request: &Request, n_blocks: u32, now_ms: u64) -> usize {
        let found = self.index.find(&prefix(request));
        let used: Vec<(ChunkId, usize)> = found.first(n_blocks as usize).collect();
        self.index.touch(&used, TENANT, now_ms);
        found.n_blocks
    }

    fn outlook(&self) -> PlanInputs<'_> {
        let Self { table, index, at_hand, costs, .. } = self;
        PlanInputs { table, index, at_hand, costs, is_disk_late: false }
    }
}

fn prefix(request: &Request) -> Prefix<'_> {
    wish(request).prefix()
}

fn wish(request: &Request) -> Wish<'_> {
    Wish {
        prompt: &request.ids,
        chain: &request.chain,
        root: &ROOT,
        tenant: TENANT.share_id(),
        reuse: Reuse::Allowed,
        wanted: None,
        media: &[],
    }
}
