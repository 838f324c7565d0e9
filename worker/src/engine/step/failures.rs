//! Failures of llama.cpp: which sequences end, and which state is removed.
//!
//! llama.cpp refuses some batches before it changes anything; only their sequences end. After a failed computation, and
//! after logits that only wrong state gives, no cell can be trusted, so all sequences end and every cell is cleared
//! with its data. Nothing of this state is stored, sent or reused. Routers continue the sequences at other workers,
//! except the one whose prompt gives such logits, which would end the sequences there, too. Computing them again here
//! would take as long, and failures are too rare for a second path.
//!
//! Not here: state that cannot be moved or cut (`kv`), the end of a worker that is broken (`thread`).

use std::sync::atomic::Ordering::Relaxed;

use llama_cpp_2::DecodeError;
use tracing::{error, warn};
use warmpath_common::ids::SlotId;

use super::EngineState;
use crate::engine::api::EngineError;
use crate::engine::schedule::batch::Batch;

/// Number of consecutive failed computations after which the context is regarded as broken.
///
/// Source: after one failed command buffer, llama.cpp's Metal backend fails every computation until it is created again
/// (`has_error` in `ggml-metal-context.m`). Two more computations show whether the failure has passed.
const FAILED_DECODES_MAX: u32 = 3;

impl EngineState<'_> {
    /// Returns whether llama.cpp can be assumed to compute nothing any more.
    pub(in crate::engine) fn is_broken(&self) -> bool {
        self.n_failed_decodes >= FAILED_DECODES_MAX
    }

    /// Computes the batch and returns whether its state and logits can be used; otherwise the sequences that cannot
    /// continue have ended.
    ///
    /// The logits are checked before the batch's tokens are recorded, so wrong state is never a checkpoint.
    pub(super) fn decode(&mut self, batch: &Batch) -> bool {
        let (cause, faulty) = match self.kv.llama.decode() {
            Ok(()) => {
                self.n_failed_decodes = 0;
                if batch.outputs.iter().all(|output| self.kv.llama.is_state_finite(output.row)) {
                    return true;
                }
                let faulty = self.faulty_sequence(batch);
                self.discard_stored(batch, faulty);
                ("the logits are not finite".to_owned(), faulty)
            }
            Err(DecodeError::NoKvCacheSlot) => {
                self.schedule.give_up();
                self.make_room(batch);
                return false;
            }
            // llama.cpp checks a batch before it changes its memory.
            Err(error @ DecodeError::NTokensZero) => {
                self.fail_batch(batch, &error.to_string());
                return false;
            }
            Err(error @ DecodeError::Unknown(_)) => {
                self.n_failed_decodes += 1;
                (error.to_string(), None)
            }
        };
        self.fail_context(&cause, faulty);
        false
    }

    /// Fails all running sequences if llama.cpp has failed to compute a copy or shift of state.
    pub(super) fn check_moves(&mut self) {
        if self.kv.llama.take_failed_move() {
            self.n_failed_decodes += 1;
            self.fail_context("llama.cpp failed to compute a copy or shift of KV state", None);
        }
    }

    /// Returns the sequence whose state is not finite; `None` if it may be one of several.
    ///
    /// If slots share their cells, a prompt may spoil the streams before its own logits are computed.
    fn faulty_sequence(&self, batch: &Batch) -> Option<SlotId> {
        let outputs = |slot: SlotId| batch.outputs.iter().filter(move |output| output.slot == slot);
        let is_broken = |slot: SlotId| outputs(slot).any(|output| !self.kv.llama.is_state_finite(output.row));
        let is_in_batch = |slot: SlotId| batch.shares.iter().any(|share| share.slot == slot);
        let is_unseen = |slot: SlotId| {
            let has_state = is_in_batch(slot) || self.kv.n_held(slot) > 0;
            has_state && !self.is_stream(slot) && outputs(slot).next().is_none()
        };
        let mut slots = self.schedule.running.slots();
        slots.retain(|slot| is_broken(*slot) || is_unseen(*slot));
        let (streams, prompts): (Vec<SlotId>, Vec<SlotId>) = slots.into_iter().partition(|slot| self.is_stream(*slot));
        match (&prompts[..], &streams[..]) {
            ([prompt], _) if is_in_batch(*prompt) => Some(*prompt),
            ([], [stream]) => Some(*stream),
            _ => None,
        }
    }

    /// Removes the stored state from which the faulty sequence started, or any sequence of the batch.
    fn discard_stored(&mut self, batch: &Batch, faulty: Option<SlotId>) {
        for slot in batch.shares.iter().map(|share| share.slot) {
            let is_suspect = faulty.is_none_or(|faulty| faulty == slot);
            if is_suspect && self.schedule.running.in_slot(slot).n_cached > 0 {
                self.kv.discard_stored(slot);
            }
        }
    }

    /// Clears an idle slot if the buffer has no free cells; without an idle slot, ends the youngest sequence.
    ///
    /// Every slot has a limited number of tokens, so this happens only if llama.cpp needs more than one cell per token.
    fn make_room(&mut self, batch: &Batch) {
        if let Some(slot) = self.kv.move_out_oldest() {
            warn!(%slot, "the KV buffer is full; cleared an idle slot");
            return;
        }
        let order = |slot: &SlotId| self.schedule.running.in_slot(*slot).order;
        let youngest = batch.shares.iter().map(|share| share.slot).max_by_key(order);
        if let Some(slot) = youngest {
            warn!(%slot, "the KV buffer is full; ended the youngest sequence");
            self.abort(slot, "the KV buffer is full");
        }
    }

    /// Fails the sequences of a batch that was refused before it changed any state.
    pub(super) fn fail_batch(&mut self, batch: &Batch, cause: &str) {
        error!(error = cause, n_sequences = batch.shares.len(), "llama.cpp refused a batch");
        self.counters().decode_failures.fetch_add(1, Relaxed);
        for share in &batch.shares {
            self.abort(share.slot, cause);
        }
    }

    /// Fails all running sequences and removes the state of all slots. The faulty sequence, if known, is not continued
    /// at another worker.
    ///
    /// A failure reaches sequences outside the batch. Before a computation, llama.cpp gives recurrent state of other
    /// sequences new cells, and only the computation moves the state there. NaN in a cell spoils every sequence that
    /// reads the cell, although it is masked. And a device that has failed may export wrong bytes.
    /// Source: `llama_memory_recurrent::find_slot`; `Llama::clear_all`.
    fn fail_context(&mut self, cause: &str, faulty: Option<SlotId>) {
        let n_sequences = self.schedule.running.iter().count();
        error!(error = cause, n_sequences, "a batch failed; ended all sequences and removed the state of all slots");
        self.counters().decode_failures.fetch_add(1, Relaxed);
        self.kv.clear_all();
        if let Some(slot) = faulty {
            self.fail(slot, &EngineError::NotFinite);
        }
        self.fail_running(&EngineError::Decode { reason: cause.to_owned() });
    }

    /// Fails a sequence whose KV state cannot be trusted.
    pub(super) fn abort(&mut self, slot: SlotId, reason: &str) {
        self.kv.clear_slot(slot);
        self.fail(slot, &EngineError::Decode { reason: reason.to_owned() });
    }
}
