//! The start of a request in a slot, with the cached part of its prompt.
//!
//! A plan is executed step by step and checked at the end. If the slot's state does not end where the plan says, the
//! slot is cleared and the whole prompt computed.
//!
//! Not here: the decision (`warmpath_worker_core::slots::slot_plan`), the store (`store`), computing the rest (`step`).

use std::collections::VecDeque;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use tracing::warn;
use warmpath_worker_core::slots::checkpoints::CheckpointStop;
use warmpath_worker_core::slots::slot_plan::{PrefixSource, Save, SlotPlan};
use warmpath_worker_core::slots::slot_table::{Acquire, AfterUse};
use warmpath_worker_core::store::chunk_index::{ChunkId, StoredPrefix};

use super::shifts::ParkedRun;
use super::{KvState, SlotOwner};
use crate::engine::api::{CachedTokens, Started};
use crate::engine::codec::PayloadPart;
use crate::engine::sequence::admission::Admission;

/// Start of a request in its slot, with the actions that are due while its prompt is computed.
pub(crate) struct SlotStart {
    pub(crate) started: Started,
    /// Checkpoints of the prompt, by ascending position.
    pub(crate) checkpoints: Vec<CheckpointStop>,
    /// Moved state that continues the prompt once the tokens before it are computed, in their order.
    pub(crate) parked: VecDeque<ParkedRun>,
}

impl KvState<'_> {
    /// Gives a request the slot of its plan, with the reusable state.
    ///
    /// `fetched_chunks` has the chunks that were read from disk for the request.
    pub(crate) fn start(&mut self, admission: &Admission, plan: &SlotPlan, fetched_chunks: &[ChunkId]) -> SlotStart {
        let began = Instant::now();
        let submission = &admission.submission;
        let left_answer_at = self.table.left_answer_at(&submission.prompt, &submission.chain_root);
        let (slot, (cached, parked)) = match self.reuse(&self.slot_request(admission), plan, submission.shifts) {
            Some((reused, slot)) => (slot, self.prepare_moved(&reused, slot)),
            None => (plan.slot, (self.prepare(admission, fetched_chunks, plan), VecDeque::new())),
        };
        let restore_time = began.elapsed();
        let rewinds_to_tokens = if cached.total() > 0 { plan.rewinds_to(&self.table) } else { 0 };
        self.table.acquire(Acquire {
            slot,
            prompt: &submission.prompt,
            n_start_tokens: cached.exact(),
            rewinds_to_tokens,
            root: submission.chain_root,
            prompt_chain: &admission.chain,
            after_use: if self.leaves_nothing(admission) { AfterUse::Forget } else { AfterUse::Keep },
        });
        let n_parked: usize = parked.iter().map(|run| run.positions.len()).sum();
        let in_place = cached.exact() as usize..cached.total() as usize - n_parked;
        if !in_place.is_empty() {
            self.table.expect_moved(slot, cached.exact());
            self.table.extend_moved(slot, &submission.prompt[in_place]);
        } else if let Some(run) = parked.front() {
            self.table.expect_moved(slot, run.positions.start);
        }
        self.unsaved.remove(&slot);
        self.table.set_tenant(slot, admission.tenant.share_id());
        let owner = SlotOwner { tenant: admission.tenant, priority: submission.priority, since: Instant::now() };
        self.owners[usize::from(slot.0)] = owner;
        let slot_start = Started { slot, cached, left_answer_at, restored: restore_time, fetched: None };
        let checkpoints = self.checkpoint_stops(admission, cached.total());
        SlotStart { started: slot_start, checkpoints, parked }
    }

    /// Returns a prompt's checkpoints; none if the request leaves nothing in the cache.
    fn checkpoint_stops(&self, admission: &Admission, n_cached: u32) -> Vec<CheckpointStop> {
        if self.leaves_nothing(admission) {
            return Vec::new();
        }
        let submission = &admission.submission;
        let n_prompt = u32::try_from(submission.prompt.len()).unwrap_or(u32::MAX);
        let n_shared = self.cache.index().n_shared_with_checkpoints(&self.slot_request(admission).prefix());
        let diverged = u32::try_from(n_shared).unwrap_or(u32::MAX).saturating_mul(self.table.block_size_tokens());
        let shared = submission.breakpoints.iter().copied().chain([diverged]);
        self.rules.checkpoints.stops(n_cached..n_prompt, shared)
    }

    /// Brings the slot's KV state to the start of the plan and returns the cached tokens.
    ///
    /// `fetched_chunks` has the chunks that were read from disk for the request.
    fn prepare(&mut self, admission: &Admission, fetched_chunks: &[ChunkId], plan: &SlotPlan) -> CachedTokens {
        let prefix = self.cache.index().find(&self.slot_request(admission).prefix());
        let chunks = self.cache.hold(&prefix, plan);
        if plan.save == Save::First {
            self.save(plan.slot);
        }
        let n_tokens = plan.start.n_tokens();
        let began = Instant::now();
        let brought = n_tokens > 0 && self.bring(plan, &prefix);
        self.cache.release(&chunks);
        if !brought || self.llama.last_position(plan.slot) != n_tokens.checked_sub(1) {
            if n_tokens > 0 {
                warn!(slot = %plan.slot, start = ?plan.start, "the KV state cannot be restored; computing the prompt");
                self.counters.failed_starts.fetch_add(1, Relaxed);
            }
            self.llama.clear(plan.slot);
            return CachedTokens::default();
        }
        self.learn(plan, &prefix, began.elapsed());
        if let Some(checkpoint) = plan.checkpoint {
            self.counters.checkpoint_uses.fetch_add(1, Relaxed);
            self.cache.touch_checkpoint(checkpoint, admission.tenant);
        }
        self.cache.touch(&prefix, n_tokens, admission.tenant);
        if prefix.n_tokens < n_tokens as usize {
            self.lend(plan);
        }
        match plan.start {
            PrefixSource::Import { .. } => self.cache.origin(&prefix, n_tokens, plan.checkpoint, fetched_chunks),
            PrefixSource::Cold | PrefixSource::Keep { .. } | PrefixSource::Copy { .. } => {
                CachedTokens { resident: n_tokens, ..CachedTokens::default() }
            }
        }
    }

    /// Records that a plan reuses the state of a slot.
    fn lend(&mut self, plan: &SlotPlan) {
        match plan.start {
            PrefixSource::Keep { n_tokens } => self.table.lend(plan.slot, n_tokens),
            PrefixSource::Copy { from, n_tokens } => self.table.lend(from, n_tokens),
            PrefixSource::Cold | PrefixSource::Import { .. } => {}
        }
    }

    /// Moves the state that a plan starts from; returns whether that succeeded.
    fn bring(&mut self, plan: &SlotPlan, prefix: &StoredPrefix) -> bool {
        let slot = plan.slot;
        let n_tokens = plan.start.n_tokens();
        match plan.start {
            PrefixSource::Cold => false,
            PrefixSource::Keep { .. } => match plan.checkpoint.map(|checkpoint| self.cache.payload(checkpoint)) {
                None => self.rewind(slot, n_tokens),
                Some(partial) => partial.is_some_and(|p| self.llama.restore_partial(slot, &p, n_tokens).is_ok()),
            },
            PrefixSource::Copy { from, .. } => match plan.checkpoint {
                None => self.llama.copy_prefix(from, slot, n_tokens).is_ok(),
                Some(checkpoint) => {
                    let exported_state = self.llama.export(from).ok();
                    let payload = exported_state.and_then(|state| self.cache.first_tokens(state, n_tokens));
                    let bytes_written = payload.and_then(|payload| {
                        let piece = PayloadPart { payload: &payload, n_tokens };
                        self.cache.state_at(checkpoint, piece, |n_bytes| self.llama.room(n_bytes))
                    });
                    bytes_written.is_some_and(|n_bytes| self.llama.import_written(slot, n_bytes, n_tokens).is_ok())
                }
            },
            PrefixSource::Import { .. } => {
                let stored_state =
                    self.cache.state(prefix, n_tokens, plan.checkpoint, |n_bytes| self.llama.room(n_bytes));
                stored_state.is_some_and(|(n_bytes, n_whole)| self.llama.import_written(slot, n_bytes, n_whole).is_ok())
                    && self.rewind(slot, n_tokens)
            }
        }
    }

    /// Updates the measured cost of restoring state into a slot.
    fn learn(&mut self, plan: &SlotPlan, prefix: &StoredPrefix, took: Duration) {
        let ms = took.as_secs_f64() * 1e3;
        match plan.start {
            PrefixSource::Cold | PrefixSource::Keep { .. } => return,
            PrefixSource::Copy { from, .. } => {
                let n_held = self.n_held(from);
                self.cache.learn(|costs| costs.learn_copy(n_held, ms));
            }
            PrefixSource::Import { n_tokens } => {
                let n_bytes = self.cache.payload_bytes(prefix, n_tokens, plan.checkpoint);
                self.cache.learn(|costs| costs.learn_import(n_bytes, ms));
            }
        }
        self.counters.restored(took);
    }
}
