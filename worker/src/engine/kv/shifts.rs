//! Context shifts: a prompt's tokens reused from other positions of a slot, and a response that outgrows its context.
//!
//! Both happen only on request, because state after a shift is approximate. Exact state that a shift would destroy is
//! stored first. The slot table offers inexact state to no other request.
//!
//! llama.cpp can only append tokens to a sequence. So moved state with tokens to compute before it is *parked*: it is
//! exported at its new positions, and imported again once those tokens are computed.
//!
//! Not here: the moves (`warmpath_worker_core::slots::shift_plan`), llama.cpp's calls (`llama`).

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::atomic::Ordering::Relaxed;

use tracing::{debug, warn};
use warmpath_common::ids::{SlotId, Token};
use warmpath_worker_core::slots::shift_plan::{self, Move, Reused};
use warmpath_worker_core::slots::slot_plan::{self, SlotPlan, SlotRequest};

use super::KvState;
use super::slot_state::{self, SlotStateError};
use crate::engine::api::{CachedTokens, ShiftOptions};

/// Moved state that waits until the prompt's tokens before it are computed.
pub(crate) struct ParkedRun {
    /// Positions in the prompt.
    pub(crate) positions: Range<u32>,
    /// The state as llama.cpp exports it.
    state: Vec<u8>,
}

impl KvState<'_> {
    /// Returns how a request starts from moved state, and in which slot; `None` if it may not, or if its plan reuses
    /// more.
    ///
    /// A prompt that only omits text of an idle slot continues the same conversation, so it takes that slot. Any other
    /// prompt may belong to another conversation, so the slot's state is copied.
    pub(super) fn reuse(
        &self,
        request: &SlotRequest<'_>,
        plan: &SlotPlan,
        shifts: ShiftOptions,
    ) -> Option<(Reused, SlotId)> {
        let n_run_min = shifts.cache_reuse_tokens.unwrap_or(self.rules.shifts.cache_reuse_tokens);
        let reuse = shift_plan::best(&self.table, request, n_run_min)?;
        let has_gaps = !reuse.behind_gaps().is_empty();
        if reuse.n_tokens() <= plan.start.n_tokens() || has_gaps && self.cache.layout().is_none() {
            return None;
        }
        let slot = match has_gaps || self.table.slot(reuse.slot).is_busy() {
            true => slot_plan::least_valuable(&self.outlook(), request)?,
            false => reuse.slot,
        };
        Some((reuse, slot))
    }

    /// Moves tokens in this slot to their positions in a prompt; returns the cached tokens and the parked state.
    pub(super) fn prepare_moved(&mut self, reuse: &Reused, slot: SlotId) -> (CachedTokens, VecDeque<ParkedRun>) {
        self.save(slot);
        match self.move_tokens(reuse, slot) {
            Ok(parked_runs) => {
                let (n_exact, n_moved) = (reuse.n_exact, reuse.n_moved());
                debug!(%slot, from = %reuse.slot, n_exact, n_moved, n_parked_runs = parked_runs.len(), "moved state");
                (CachedTokens { resident: n_exact, shifted: n_moved, ..CachedTokens::default() }, parked_runs)
            }
            Err(error) => {
                warn!(%slot, from = %reuse.slot, %error, "state cannot be moved; computing the prompt");
                self.counters.failed_starts.fetch_add(1, Relaxed);
                self.llama.clear(slot);
                (CachedTokens::default(), VecDeque::new())
            }
        }
    }

    fn move_tokens(&mut self, reuse: &Reused, slot: SlotId) -> Result<VecDeque<ParkedRun>, SlotStateError> {
        if slot != reuse.slot {
            self.llama.copy_prefix(reuse.slot, slot, reuse.n_source_tokens())?;
            self.table.lend(reuse.slot, reuse.n_exact);
        }
        self.llama.shift(slot, reuse.n_exact, &reuse.moves)?;
        let ranges = reuse.behind_gaps();
        let Some(layout) = self.cache.layout().filter(|_| !ranges.is_empty()) else { return Ok(VecDeque::new()) };
        let states = slot_state::take_out(&mut self.llama, slot, reuse.n_in_place(), &ranges, layout)?;
        Ok(ranges.into_iter().zip(states).map(|(positions, state)| ParkedRun { positions, state }).collect())
    }

    /// Appends parked state to a slot whose prompt has been computed up to it.
    ///
    /// Errors: a description of the failure; the slot is then empty.
    pub(crate) fn append_parked(
        &mut self,
        slot: SlotId,
        run: &ParkedRun,
        prompt: &[Token],
    ) -> Result<(), SlotStateError> {
        let layout = self.cache.layout().expect("state is parked only if it can be cut");
        slot_state::append(&mut self.llama, slot, &run.state, run.positions.clone(), layout)?;
        self.table.extend_moved(slot, &prompt[run.positions.start as usize..run.positions.end as usize]);
        Ok(())
    }

    /// Drops tokens from the middle of a full slot and moves the tokens after them to the front; returns whether the
    /// slot was shifted.
    ///
    /// Errors: a description of the failure; the slot is then empty.
    pub(crate) fn shift_context(&mut self, slot: SlotId, options: ShiftOptions) -> Result<bool, SlotStateError> {
        let n_held = self.n_held(slot);
        let Some(shift) = shift_plan::context_shift(n_held, options.n_keep, options.n_discard) else {
            return Ok(false);
        };
        self.save(slot);
        let from_token = shift.from_token + shift.n_dropped;
        let move_behind = Move { from_token, to_token: shift.from_token, n_tokens: n_held - from_token };
        self.llama.shift(slot, shift.from_token, &[move_behind])?;
        debug!(%slot, n_kept = shift.from_token, n_dropped = shift.n_dropped, "shifted a full context");
        self.table.shift(slot, shift);
        self.counters.context_shifts.fetch_add(1, Relaxed);
        Ok(true)
    }
}
