//! Keeping sequences' state in slots, in the store and across a restart.
//!
//! The state of an idle slot costs nothing until another sequence needs its cells. So it is exported late: when a plan
//! requires it, when the engine has been idle for some time, when it slows running sequences, and before the worker
//! ends.
//!
//! Not here: starting from it (`restoring`), the store itself (`store`).

use std::ops::Range;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use tracing::{info, warn};
use warmpath_common::ids::SlotId;
use warmpath_common::model::MemoryKind;
use warmpath_worker_core::slots::slot_shares::SlotShares;
use warmpath_worker_core::store::chunk_index::{CheckpointPlace, Prefix};

use super::store::SequenceState;
use super::{KvState, SlotOwner};

/// Idle time before the engine exports a slot in the background, as a multiple of the export's time.
///
/// Source: a request that arrives during the export waits for it, at most a twentieth of the time that the engine was
/// idle.
const IDLE_PER_EXPORT: f64 = 20.0;

/// Minimum idle time before the engine exports a slot in the background.
///
/// Source: requests of one burst arrive within this time, so no export delays them.
const IDLE_MIN: Duration = Duration::from_millis(250);

impl KvState<'_> {
    /// Exports the state of a slot and stores the part that is not stored yet.
    pub(super) fn save(&mut self, slot: SlotId) {
        self.unsaved.remove(&slot);
        self.save_blocks(slot, usize::MAX, u32::MAX);
    }

    /// Stores the missing ones of a slot's first `n_blocks` blocks, at most `n_tokens_max` tokens but at least one
    /// chunk; returns the number of stored tokens. State behind the last checkpoint is not stored, because no request
    /// can resume there.
    ///
    /// If every slot has its own buffer, llama.cpp exports the whole sequence even if most of it is stored.
    pub(super) fn save_blocks(&mut self, slot: SlotId, n_blocks: usize, n_tokens_max: u32) -> u32 {
        let contents = self.table.slot(slot);
        let (Some(root), tokens) = (contents.root().copied(), contents.exact_tokens()) else { return 0 };
        if self.table.memory() == MemoryKind::Recurrent || !contents.lends() {
            return 0;
        }
        let chain = self.table.tree().chain_of(&root, tokens);
        let prefix = Prefix { root, chain: &chain[..n_blocks.min(chain.len())], tokens };
        let n_useful = match self.table.memory().stored_state_rewinds() {
            true => prefix.chain.len(),
            false => self.cache.index().n_resumable(&prefix),
        };
        let prefix = Prefix { chain: &prefix.chain[..n_useful], ..prefix };
        let missing = self.cache.index().missing(&prefix);
        let Some(first) = missing.first() else { return 0 };
        let block_size = self.table.block_size_tokens();
        let fits = |blocks: &&Range<usize>| (blocks.end - first.start) as u32 * block_size <= n_tokens_max;
        let end = missing[missing.iter().take_while(fits).count().saturating_sub(1)].end;
        let prefix = Prefix { chain: &chain[..end], ..prefix };
        let positions = first.start as u32 * block_size..end as u32 * block_size;
        let n_exported = match self.table.memory().stored_state_rewinds() && self.llama.n_streams() == 1 {
            true => positions.end - positions.start,
            false => self.n_held(slot),
        };
        let began = Instant::now();
        let state = match self.table.memory().stored_state_rewinds() {
            true => self.llama.export_range(slot, positions),
            false => self.llama.export(slot),
        };
        let state = match state {
            Ok(state) => state,
            Err(error) => {
                warn!(%slot, %error, "the state of a slot cannot be exported");
                return 0;
            }
        };
        let SlotOwner { tenant, priority, .. } = self.owners[usize::from(slot.0)];
        let n_stored = self.cache.store(state, &SequenceState { prefix, tenant, priority });
        // A prefix that was reused while it was in a slot counts as used in the store.
        let stored_prefix = self.cache.index().find(&prefix);
        self.cache.touch(&stored_prefix, self.table.take_reused(slot), tenant);
        self.counters.saved(n_stored, began.elapsed());
        self.cache.learn(|costs| costs.learn_export(n_exported, began.elapsed().as_secs_f64() * 1e3));
        n_stored
    }

    /// Stores a checkpoint with the partial state of a slot.
    pub(crate) fn keep_checkpoint(&mut self, slot: SlotId, place: CheckpointPlace) {
        let contents = self.table.slot(slot);
        let (Some(root), tokens) = (contents.root().copied(), contents.exact_tokens()) else { return };
        let chain = self.table.tree().chain_of(&root, tokens);
        match self.llama.partial(slot) {
            Ok(partial) => {
                let prefix = Prefix { root, chain: &chain, tokens };
                let SlotOwner { tenant, priority, .. } = self.owners[usize::from(slot.0)];
                let sequence_state = SequenceState { prefix, tenant, priority };
                self.cache.store_checkpoint(partial.into(), &sequence_state, place);
                self.counters.checkpoints_made.fetch_add(1, Relaxed);
            }
            Err(error) => warn!(%slot, %error, "the partial state of a slot cannot be exported"),
        }
    }

    /// Returns the remaining idle time until the engine exports a slot in the background; `None` if no slot needs it.
    pub(crate) fn background_due_in(&self, idle_since: Instant) -> Option<Duration> {
        let slot = *self.unsaved.first()?;
        let export_ms = self.cache.costs().export_ms(self.n_held(slot) as usize)?;
        let after = Duration::from_secs_f64(export_ms * IDLE_PER_EXPORT / 1e3).max(IDLE_MIN);
        Some(after.saturating_sub(idle_since.elapsed()))
    }

    /// Exports one idle slot whose state is not stored completely.
    pub(crate) fn export_in_background(&mut self) {
        if let Some(slot) = self.unsaved.first().copied() {
            self.save(slot);
        }
    }

    /// Moves idle slots' state out of the buffer if there is too much of it or it slows running sequences.
    ///
    /// Every idle cell of a shared buffer adds time to a step. That time is summed for each slot since it became idle.
    /// Once it exceeds the time of an export and an import, the state is moved out. So the total cost is at most twice
    /// that of the best decision, as in the ski rental problem.
    pub(crate) fn move_out_costly(&mut self) {
        // Recurrent state has the same size for any number of tokens, and its end after the last checkpoint would be
        // lost.
        if self.table.memory() == MemoryKind::Recurrent {
            return;
        }
        let n_idle: u64 = self.idle_slots().map(|(_, n_held)| n_held).sum();
        if n_idle > self.rules.prefix_tokens_max
            && let Some(slot) = self.first_to_move_out()
        {
            self.move_out(slot);
            return;
        }
        let idle: Vec<(SlotId, u64)> = self.idle_slots().collect();
        for (slot, n_held) in idle {
            self.idle_ms[usize::from(slot.0)] += self.rules.idle_cell_ms * n_held as f64;
            let export_ms = self.cache.costs().export_ms(usize::try_from(n_held).unwrap_or(usize::MAX));
            // An import takes no longer than an export.
            if export_ms.is_some_and(|export_ms| self.idle_ms[usize::from(slot.0)] > 2.0 * export_ms) {
                self.move_out(slot);
                return;
            }
        }
    }

    /// Moves the least recently used idle slot's state out of the buffer; returns the slot, or `None` if no slot is
    /// idle.
    pub(crate) fn move_out_oldest(&mut self) -> Option<SlotId> {
        let slot = self.idle_slots().map(|(slot, _)| slot).min_by_key(|slot| self.table.slot(*slot).last_used())?;
        self.move_out(slot);
        Some(slot)
    }

    /// Returns the least recently used idle slot that is not within its tenant's fair share of the idle cells.
    fn first_to_move_out(&self) -> Option<SlotId> {
        let mut shares = SlotShares::new(self.rules.prefix_tokens_max);
        self.idle_slots().for_each(|(slot, n_held)| shares.add(self.table.slot(slot).tenant(), n_held));
        let order = |slot: &SlotId| {
            let contents = self.table.slot(*slot);
            (shares.keeps(contents.tenant()), contents.last_used())
        };
        self.idle_slots().map(|(slot, _)| slot).min_by_key(order)
    }

    fn idle_slots(&self) -> impl Iterator<Item = (SlotId, u64)> {
        let idle = self.table.iter().filter(|(_, slot)| !slot.is_busy() && !slot.tokens().is_empty());
        idle.map(|(id, slot)| (id, slot.tokens().len() as u64))
    }

    fn move_out(&mut self, slot: SlotId) {
        self.save(slot);
        self.clear_slot(slot);
        self.counters.moved_out.fetch_add(1, Relaxed);
    }

    /// Stores the state of the slots and waits until it is on disk, at most until `deadline`.
    pub(crate) fn save_all(&mut self, deadline: Instant) {
        if !self.cache.has_disk() {
            return;
        }
        let mut slots: Vec<SlotId> = self.unsaved.iter().copied().collect();
        slots.sort_by_key(|slot| std::cmp::Reverse(self.table.slot(*slot).last_used()));
        for slot in slots {
            if Instant::now() < deadline {
                self.save(slot);
            }
        }
        let n_left = self.cache.flush(deadline);
        if n_left > 0 {
            warn!(n_chunks = n_left, "some chunks were not written to disk before the deadline");
        } else {
            info!("stored state is on disk");
        }
    }
}
