//! KV state: in slots, in the store, and exchanged with other workers.
//!
//! [`KvState`] owns llama.cpp's context, the table of what its slots hold, and the store, and moves state between them.
//! The table records which slot holds the state of which tokens, and every method here keeps it up to date. State that
//! cannot be trusted is cleared before the slot is used again.
//!
//! What waits for other workers, the disk or an operator has its own owner, which uses [`KvState`]: `receiving`,
//! `sending`, `saved_slot` and `contents`.
//!
//! Not here: which sequence runs (`schedule`), choosing its tokens (`output`).

pub(crate) mod contents;
pub(crate) mod receiving;
pub(crate) mod restoring;
pub(crate) mod saved_slot;
mod saving;
pub(crate) mod sending;
pub(crate) mod shifts;
pub(crate) mod slot_state;
pub(crate) mod store;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tracing::warn;
use warmpath_common::ids::{SlotId, Token};
use warmpath_common::model::MemoryKind;
use warmpath_common::summary::Change;
use warmpath_worker_core::slots::checkpoints::CheckpointPolicy;
use warmpath_worker_core::slots::slot_plan::{PlanInputs, Reuse, SlotRequest};
use warmpath_worker_core::slots::slot_table::{AfterUse, SlotTable};
use warmpath_worker_core::store::chunk_index::{ChunkId, Prefix};
use warmpath_worker_core::tenants::{Tenant, TenantId};

use crate::engine::config::{PrefixCache, ShiftConfig};
use crate::engine::counters::Counters;
use crate::engine::llama::Llama;
use crate::engine::sequence::admission::Admission;
use store::Cache;

/// Time from the start of a slot's last request until the idle slot no longer counts towards its tenant's share.
///
/// Source: the same time as for a tenant's share of the store in RAM (`warmpath_worker_core::store::chunk_index`).
const QUIET_AFTER: Duration = Duration::from_hours(1);

/// State of slots and of the store.
pub(crate) struct KvState<'m> {
    pub(crate) llama: Llama<'m>,
    pub(crate) table: SlotTable,
    pub(crate) cache: Cache,
    rules: KvPolicy,
    /// Owner of each slot's state.
    owners: Vec<SlotOwner>,
    /// Idle slots whose state may not be stored completely.
    unsaved: BTreeSet<SlotId>,
    /// Time that each idle slot's cells have added to steps since the slot became idle. Units: milliseconds.
    idle_ms: Vec<f64>,
    counters: Arc<Counters>,
}

/// Settings that decide which state is kept, and where.
pub(crate) struct KvPolicy {
    pub prefix_cache: PrefixCache,
    pub checkpoints: CheckpointPolicy,
    pub shifts: ShiftConfig,
    /// Maximum number of tokens that idle slots keep in the buffer.
    pub prefix_tokens_max: u64,
    /// Time that one idle cell adds to a step; 0 if slots do not share a buffer. Units: milliseconds.
    pub idle_cell_ms: f64,
}

/// Owner of a slot's state, from the last request in the slot.
#[derive(Debug, Clone, Copy)]
struct SlotOwner {
    tenant: Tenant,
    priority: i32,
    /// Start of the request.
    since: Instant,
}

impl SlotOwner {
    /// Returns the owner of a slot that no request has used.
    fn nobody() -> Self {
        Self { tenant: Tenant::without_share(TenantId(0)), priority: 0, since: Instant::now() }
    }
}

impl<'m> KvState<'m> {
    /// Returns empty slots with a store.
    pub(crate) fn new(
        llama: Llama<'m>,
        table: SlotTable,
        cache: Cache,
        rules: KvPolicy,
        counters: Arc<Counters>,
    ) -> Self {
        let n_slots = table.iter().count();
        Self {
            llama,
            table,
            cache,
            rules,
            owners: vec![SlotOwner::nobody(); n_slots],
            unsaved: BTreeSet::new(),
            idle_ms: vec![0.0; n_slots],
            counters,
        }
    }

    /// Changes the time that a cached cell of an idle slot adds to a step. Units: milliseconds.
    pub(crate) fn set_idle_cell_ms(&mut self, idle_cell_ms: f64) {
        self.rules.idle_cell_ms = idle_cell_ms;
    }
}

impl KvState<'_> {
    /// Returns the number of tokens in a slot's KV state.
    pub(crate) fn n_held(&self, slot: SlotId) -> u32 {
        self.table.n_held(slot)
    }

    /// Returns the maximum number of tokens that idle slots keep.
    pub(crate) fn resident_tokens_max(&self) -> u64 {
        self.rules.prefix_tokens_max
    }

    /// Returns the state on which the start of a request depends.
    pub(crate) fn outlook(&self) -> PlanInputs<'_> {
        PlanInputs {
            table: &self.table,
            index: self.cache.index(),
            at_hand: self.cache.passing(),
            costs: self.cache.costs(),
            is_disk_late: self.cache.is_disk_late(),
        }
    }

    /// Returns the properties of a request on which its start depends.
    pub(crate) fn slot_request<'a>(&self, admission: &'a Admission) -> SlotRequest<'a> {
        let submission = &admission.submission;
        SlotRequest {
            prompt: &submission.prompt,
            chain: &admission.chain,
            root: &submission.chain_root,
            tenant: admission.tenant.share_id(),
            reuse: self.reusable(admission),
            wanted: submission.wanted_slot,
            media: &admission.media,
        }
    }

    /// Returns whether a request may reuse cached state. It may not if log probabilities of its prompt are wanted,
    /// because cached state has no logits.
    pub(crate) fn reusable(&self, admission: &Admission) -> Reuse {
        let needs_logits = admission.submission.prompt_probabilities().is_some();
        if needs_logits || self.leaves_nothing(admission) { Reuse::Forbidden } else { Reuse::Allowed }
    }

    /// Returns whether a request leaves nothing in the cache.
    fn leaves_nothing(&self, admission: &Admission) -> bool {
        !admission.submission.cache_prompt || self.rules.prefix_cache == PrefixCache::Disabled
    }

    /// Records tokens whose state a batch has just computed.
    pub(crate) fn extend(&mut self, slot: SlotId, tokens: &[Token]) {
        self.table.extend(slot, tokens);
    }

    /// Frees a slot and keeps or clears its state, as its request demands.
    pub(crate) fn release(&mut self, slot: SlotId) {
        match self.table.release(slot) {
            AfterUse::Keep => drop(self.unsaved.insert(slot)),
            AfterUse::Forget => self.llama.clear(slot),
        }
        self.idle_ms[usize::from(slot.0)] = 0.0;
    }

    /// Removes a slot's state; a busy slot stays busy.
    pub(crate) fn clear_slot(&mut self, slot: SlotId) {
        self.llama.clear(slot);
        self.table.forget(slot);
        self.unsaved.remove(&slot);
        self.idle_ms[usize::from(slot.0)] = 0.0;
    }

    /// Removes the stored state of a slot's tokens, which may be as wrong as the slot's state.
    pub(crate) fn discard_stored(&mut self, slot: SlotId) {
        let contents = self.table.slot(slot);
        let (Some(root), tokens) = (contents.root().copied(), contents.exact_tokens()) else { return };
        let chain = self.table.tree().chain_of(&root, tokens);
        let prefix = Prefix { root, chain: &chain, tokens };
        let index = self.cache.index();
        let first = index.find(&prefix).pieces.first().map(|piece| piece.chunk);
        let checkpoints = index.checkpoints(&prefix);
        let wrong: Vec<ChunkId> = checkpoints.iter().map(|checkpoint| checkpoint.chunk).chain(first).collect();
        self.cache.discard(&wrong);
    }

    /// Removes the state of all slots with the data of every cell; busy slots stay busy.
    pub(crate) fn clear_all(&mut self) {
        let slots: Vec<SlotId> = self.table.iter().map(|(slot, _)| slot).collect();
        slots.into_iter().for_each(|slot| self.clear_slot(slot));
        self.llama.clear_all();
    }

    /// Removes the state of rejected draft tokens; returns whether the remaining state is complete.
    pub(crate) fn drop_rejected(&mut self, slot: SlotId) -> bool {
        let is_cut = self.rewind(slot, self.n_held(slot));
        if !is_cut {
            warn!(%slot, "the state of rejected tokens cannot be removed");
        }
        is_cut
    }

    /// Cuts a slot's state back; returns whether the state to keep is complete.
    fn rewind(&mut self, slot: SlotId, n_tokens: u32) -> bool {
        self.llama.last_position(slot) == n_tokens.checked_sub(1) || self.llama.rewind(slot, n_tokens)
    }

    /// Records how far slots can be cut back: llama.cpp reuses the cells that a sliding window has passed.
    pub(crate) fn record_windows(&mut self) {
        if self.table.memory() == MemoryKind::Sliding {
            for slot in (0..self.table.iter().count()).map(|idx| SlotId(idx as u16)) {
                self.table.set_rewinds_to(slot, self.llama.rewinds_to(slot));
            }
        }
    }

    /// Ends the fair shares of tenants without recent requests, so that their slots are taken first.
    pub(crate) fn end_shares(&mut self) {
        let quiet: Vec<SlotId> = self
            .table
            .iter()
            .filter(|(slot, contents)| {
                !contents.is_busy() && self.owners[usize::from(slot.0)].since.elapsed() > QUIET_AFTER
            })
            .map(|(slot, _)| slot)
            .collect();
        quiet.into_iter().for_each(|slot| self.table.set_tenant(slot, None));
    }

    /// Returns the changes of cached blocks since the last call, in order, for routers.
    pub(crate) fn take_changes(&mut self) -> Vec<Change> {
        self.record_windows();
        for change in self.cache.take_changes() {
            self.table.apply(change);
        }
        self.table.take_changes()
    }

    /// Returns the tenant that a slot's state is charged to.
    pub(crate) fn tenant(&self, slot: SlotId) -> TenantId {
        self.owners[usize::from(slot.0)].tenant.id
    }
}
