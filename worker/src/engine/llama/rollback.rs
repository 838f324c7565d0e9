//! Rollback of recurrent state: removing the last tokens of the last computation, as after a rejected draft.
//!
//! llama.cpp can keep the states after each of the last tokens of a sequence's micro-batch. These states are valid
//! until the next computation, of any sequence: it overwrites or moves them. llama.cpp does not check this, and would
//! continue from a wrong state. So a rollback is allowed only in the sequence of the last batch, if that was alone in
//! it, by fewer tokens than the batch had, and once.
//!
//! Source: llama.cpp's `llama_memory_recurrent::seq_rm`, and `build_rs`, which moves only the current state of other
//! sequences.
//!
//! Not here: which batches have drafts (`schedule::batch`).

use llama_cpp_2::DecodeError;
use llama_cpp_2::context::LlamaContext;
use llama_cpp_sys_2 as sys;
use warmpath_common::ids::SlotId;

use super::{Llama, raw_context};
use crate::engine::config::EngineConfig;

/// Returns the number of tokens by which recurrent state is to be rolled back at most.
pub(super) fn tokens_wanted(config: &EngineConfig) -> u32 {
    // llama.cpp keeps the tokens in one micro-batch, with one more before them, and asserts that a micro-batch is
    // larger.
    let fits = config.ubatch_tokens.saturating_sub(2);
    config.speculation.map_or(0, |speculation| speculation.rollback_tokens()).min(fits)
}

/// Tokens by which recurrent state can be rolled back.
pub(super) struct Rollback {
    /// Number of states before the current one that llama.cpp keeps.
    n_states: u32,
    batch: BatchSlots,
    /// Rollback that is possible now; `None` if none is.
    possible: Option<Possible>,
}

/// Sequences of the batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum BatchSlots {
    None,
    One { slot: SlotId, n_tokens: u32 },
    Several,
}

struct Possible {
    slot: SlotId,
    tokens_max: u32,
}

impl Rollback {
    /// Returns the rollback of a context; not every architecture has it.
    pub(super) fn of(context: &LlamaContext<'_>) -> Self {
        // SAFETY: the context is borrowed.
        let n_states = unsafe { sys::llama_n_rs_seq(raw_context(context).as_ptr()) };
        Self { n_states, batch: BatchSlots::None, possible: None }
    }

    /// Returns whether the context keeps earlier states.
    pub(super) fn is_possible(&self) -> bool {
        self.n_states > 0
    }

    /// Records a token of the batch.
    pub(super) fn push(&mut self, slot: SlotId) {
        self.batch = match self.batch {
            BatchSlots::None => BatchSlots::One { slot, n_tokens: 1 },
            BatchSlots::One { slot: one, n_tokens } if one == slot => BatchSlots::One { slot, n_tokens: n_tokens + 1 },
            BatchSlots::One { .. } | BatchSlots::Several => BatchSlots::Several,
        };
    }

    /// Records that the batch is empty.
    pub(super) fn reset_batch(&mut self) {
        self.batch = BatchSlots::None;
    }

    /// Records the computation of the batch.
    pub(super) fn computed(&mut self, result: &Result<(), DecodeError>) {
        self.possible = match (self.batch, result) {
            (BatchSlots::One { slot, n_tokens }, Ok(())) => {
                Some(Possible { slot, tokens_max: self.n_states.min(n_tokens - 1) })
            }
            _ => None,
        };
    }

    /// Returns whether a slot's last `n_tokens` can be rolled back, and that this happens now.
    fn take(&mut self, slot: SlotId, n_tokens: u32) -> bool {
        self.possible.take().is_some_and(|possible| possible.slot == slot && n_tokens <= possible.tokens_max)
    }
}

impl Llama<'_> {
    /// Returns the maximum number of tokens by which recurrent state can be rolled back.
    pub(in crate::engine) fn rolls_back_max(&self) -> u32 {
        self.rollback.n_states
    }

    /// Removes a slot's tokens after the first `n_keep`; returns whether they could be removed.
    pub(in crate::engine) fn remove_after(&mut self, slot: SlotId, n_keep: u32) -> bool {
        let n_removed = self.n_held(slot).saturating_sub(n_keep);
        let is_rollback = self.has_recurrent && n_keep > 0 && n_removed > 0;
        if is_rollback && !self.rollback.take(slot, n_removed) {
            return false;
        }
        self.context.clear_kv_cache_seq(Some(u32::from(slot.0)), Some(n_keep), None) == Ok(true)
    }
}
