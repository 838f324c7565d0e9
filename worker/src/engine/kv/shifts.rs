//! State at other positions: a prompt's tokens found elsewhere in a slot, and a response that outgrows its context.
//!
//! Both happen only on request, because state after a shift is only approximate. Exact state that is about to be lost
//! is stored before; the slot table offers inexact state to no other request.
//!
//! Not here: the moves (`warmpath_worker_core::shift_plan`), llama.cpp's calls (`llama`).

use std::sync::atomic::Ordering::Relaxed;

use tracing::{debug, warn};
use warmpath_common::ids::SlotId;
use warmpath_worker_core::shift_plan::{self, Move, Reused};
use warmpath_worker_core::slot_plan::{SlotPlan, Wish};

use crate::engine::api::{CachedTokens, ShiftWish};
use crate::engine::config::AtContextEnd;
use crate::engine::sequence::Sequence;
use crate::engine::step::Scheduler;

impl Scheduler<'_> {
    /// Returns how a request starts from moved state, if it may and that saves more than its plan does.
    pub(crate) fn reuse(&self, wish: &Wish<'_>, plan: &SlotPlan, shifts: ShiftWish) -> Option<Reused> {
        let n_run_min = shifts.cache_reuse_tokens.unwrap_or(self.shifts.cache_reuse_tokens);
        let reused = shift_plan::best(&self.table, wish, n_run_min);
        reused.filter(|reused| reused.n_tokens() > plan.start.n_tokens())
    }

    /// Moves the tokens of a slot to their positions in a prompt and returns what was reached.
    pub(crate) fn prepare_moved(&mut self, reused: &Reused) -> CachedTokens {
        let slot = reused.slot;
        self.save(slot);
        match self.llama.shift(slot, reused.n_exact, &reused.moves) {
            Ok(()) => {
                debug!(%slot, n_exact = reused.n_exact, n_moved = reused.n_moved(), "moved state within a slot");
                CachedTokens { resident: reused.n_exact, shifted: reused.n_moved(), ..CachedTokens::default() }
            }
            Err(error) => {
                warn!(%slot, %error, "state cannot be moved within the slot; computing the prompt");
                self.view.counters.failed_starts.fetch_add(1, Relaxed);
                self.llama.clear(slot);
                CachedTokens::default()
            }
        }
    }

    /// Returns how many more tokens the sequence in a slot may have.
    pub(crate) fn room_tokens(&self, slot: SlotId) -> u32 {
        let sequence = self.running[usize::from(slot.0)].as_ref();
        sequence.map_or(0, |sequence| self.room_of(sequence, self.n_held(slot)))
    }

    /// Returns how many more tokens a sequence may have once `n_held` are in its context.
    pub(crate) fn room_of(&self, sequence: &Sequence, n_held: u32) -> u32 {
        match (self.shifts.at_context_end, sequence.submission.generation.max_tokens) {
            (AtContextEnd::Stop, _) => self.context_tokens.saturating_sub(n_held),
            (AtContextEnd::Shift, Some(_)) => u32::MAX,
            // Nothing else ends a response that neither the client nor the model ends.
            (AtContextEnd::Shift, None) => self.unasked_tokens_max.saturating_sub(sequence.n_generated + 1),
        }
    }

    /// Makes room in the slots whose sequences have filled their context and continue.
    pub(crate) fn shift_full(&mut self) {
        if self.shifts.at_context_end == AtContextEnd::Stop {
            return;
        }
        for slot in self.busy_slots() {
            if self.n_held(slot) >= self.context_tokens {
                self.shift_context(slot);
            }
        }
    }

    fn shift_context(&mut self, slot: SlotId) {
        let n_held = self.n_held(slot);
        let Some(sequence) = &mut self.running[usize::from(slot.0)] else { return };
        let wish = sequence.submission.shifts;
        let Some(shift) = shift_plan::context_shift(n_held, wish.n_keep, wish.n_discard) else { return };
        sequence.truncated = true;
        self.save(slot);
        let from_token = shift.from_token + shift.n_dropped;
        let rest = Move { from_token, to_token: shift.from_token, n_tokens: n_held - from_token };
        match self.llama.shift(slot, shift.from_token, &[rest]) {
            Ok(()) => {
                debug!(%slot, n_kept = shift.from_token, n_dropped = shift.n_dropped, "shifted a full context");
                self.table.shift(slot, shift);
                self.view.counters.context_shifts.fetch_add(1, Relaxed);
            }
            Err(error) => self.abort(slot, &error.to_string()),
        }
    }
}
