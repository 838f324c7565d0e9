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

use super::KvState;
use crate::engine::api::{CachedTokens, ShiftWish};
use crate::engine::llama::StateError;

impl KvState<'_> {
    /// Returns how a request starts from moved state, if it may and that saves more than its plan does.
    pub(super) fn reuse(&self, wish: &Wish<'_>, plan: &SlotPlan, shifts: ShiftWish) -> Option<Reused> {
        let n_run_min = shifts.cache_reuse_tokens.unwrap_or(self.rules.shifts.cache_reuse_tokens);
        let reused = shift_plan::best(&self.table, wish, n_run_min);
        reused.filter(|reused| reused.n_tokens() > plan.start.n_tokens())
    }

    /// Moves the tokens of a slot to their positions in a prompt and returns what was reached.
    pub(super) fn prepare_moved(&mut self, reused: &Reused) -> CachedTokens {
        let slot = reused.slot;
        self.save(slot);
        match self.llama.shift(slot, reused.n_exact, &reused.moves) {
            Ok(()) => {
                debug!(%slot, n_exact = reused.n_exact, n_moved = reused.n_moved(), "moved state within a slot");
                CachedTokens { resident: reused.n_exact, shifted: reused.n_moved(), ..CachedTokens::default() }
            }
            Err(error) => {
                warn!(%slot, %error, "state cannot be moved within the slot; computing the prompt");
                self.counters.failed_starts.fetch_add(1, Relaxed);
                self.llama.clear(slot);
                CachedTokens::default()
            }
        }
    }

    /// Drops tokens from the middle of a full slot and moves those behind them forward; returns whether it did.
    ///
    /// Errors: a description of the failure; the slot is then empty.
    pub(crate) fn shift_context(&mut self, slot: SlotId, wish: ShiftWish) -> Result<bool, StateError> {
        let n_held = self.n_held(slot);
        let Some(shift) = shift_plan::context_shift(n_held, wish.n_keep, wish.n_discard) else { return Ok(false) };
        self.save(slot);
        let from_token = shift.from_token + shift.n_dropped;
        let rest = Move { from_token, to_token: shift.from_token, n_tokens: n_held - from_token };
        self.llama.shift(slot, shift.from_token, &[rest])?;
        debug!(%slot, n_kept = shift.from_token, n_dropped = shift.n_dropped, "shifted a full context");
        self.table.shift(slot, shift);
        self.counters.context_shifts.fetch_add(1, Relaxed);
        Ok(true)
    }
}
