//! Moving the state of sequences: export, import, and copies.
//!
//! In a shared buffer a prefix is shared by marking its cells, and a range is exported through a spare sequence. If
//! every slot has its own buffer, a whole sequence is exported and imported, at the speed of memory. llama.cpp's copy
//! of a whole buffer is only used for sliding windows, because an export lacks the cells that the window has passed.
//! This copy also includes unused cells, and is made only at the next decode.
//!
//! Not here: the meaning of the bytes (`codec`), the choice of state (`warmpath_worker_core`).

use std::ops::Range;

use llama_cpp_2::DecodeError;
use llama_cpp_2::context::session::LlamaStateSeqFlags;
use llama_cpp_2::llama_batch::LlamaBatch;
use llama_cpp_2::token::LlamaToken;
use warmpath_common::ids::SlotId;

use super::window::Window;
use super::{Llama, SpareSequence};

/// Error of moving a sequence's state.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum StateError {
    /// The slot does not have the tokens.
    #[error("slot {slot} does not hold tokens {start} to {end}")]
    Range {
        /// The slot.
        slot: SlotId,
        /// First requested position.
        start: u32,
        /// Position after the last requested one.
        end: u32,
    },
    /// llama.cpp wrote no state.
    #[error("llama.cpp did not export the state of slot {slot}")]
    Export {
        /// The slot.
        slot: SlotId,
    },
    /// llama.cpp refused a state, for example for lack of cells; the slot is empty.
    #[error("llama.cpp did not import a state of {n_tokens} tokens into slot {slot}")]
    Import {
        /// The slot.
        slot: SlotId,
        /// Tokens that the state should have had.
        n_tokens: u32,
    },
    /// The sequence's memory cannot be cut back to these tokens; the slot is empty.
    #[error("slot {slot} cannot be cut back to {n_tokens} tokens")]
    Rewind {
        /// The slot.
        slot: SlotId,
        /// Tokens that should have stayed.
        n_tokens: u32,
    },
    /// llama.cpp could not decode.
    #[error("llama.cpp did not decode: {reason}")]
    Decode {
        /// Reason.
        reason: String,
    },
}

impl Llama<'_> {
    /// Returns the whole state of a slot's sequence.
    ///
    /// Cost: one copy of the state; the bytes stay valid until the next export.
    /// Errors: [`StateError::Export`] if the slot is empty.
    pub(in crate::engine) fn export(&mut self, slot: SlotId) -> Result<&[u8], StateError> {
        self.export_sequence(slot, LlamaStateSeqFlags::empty())
    }

    /// Returns a state with the slot's tokens at `positions`; it has no other tokens if the slots share a buffer.
    ///
    /// Cost: like [`Self::export`]: of the range in a shared buffer, otherwise of the whole sequence.
    /// Errors: `Range`, `Export`.
    pub(in crate::engine) fn export_range(&mut self, slot: SlotId, positions: Range<u32>) -> Result<&[u8], StateError> {
        self.check_held(slot, &positions)?;
        let Some(spare_slot) = self.spare_slot() else { return self.export(slot) };
        let _ = self.context.clear_kv_cache_seq(Some(u32::from(spare_slot.0)), None, None);
        self.share(slot, spare_slot, positions);
        let n_bytes = self.export_sequence(spare_slot, LlamaStateSeqFlags::empty()).map(<[u8]>::len);
        let _ = self.context.clear_kv_cache_seq(Some(u32::from(spare_slot.0)), None, None);
        let n_bytes = n_bytes.map_err(|_| StateError::Export { slot })?;
        Ok(self.staging.written(n_bytes))
    }

    /// Imports a state of `n_tokens`, from position 0 on, into a slot; the slot's former state is lost, even after an
    /// error.
    ///
    /// Errors: [`StateError::Import`]; the slot is then empty.
    pub(in crate::engine) fn import(&mut self, slot: SlotId, state: &[u8], n_tokens: u32) -> Result<(), StateError> {
        self.clear(slot);
        self.import_sequence(slot, state, LlamaStateSeqFlags::empty());
        self.expect_tokens(slot, n_tokens)
    }

    /// Returns room in the staging buffer for a state of `n_bytes`, which [`Self::import_written`] takes from there.
    ///
    /// The last export is overwritten.
    pub(in crate::engine) fn room(&mut self, n_bytes: usize) -> &mut [u8] {
        self.staging.room(n_bytes)
    }

    /// Imports the state in the staging buffer into a slot, like [`Self::import`]: a state that was written into
    /// [`Self::room`], or the last export.
    pub(in crate::engine) fn import_written(
        &mut self,
        slot: SlotId,
        n_bytes: usize,
        n_tokens: u32,
    ) -> Result<(), StateError> {
        let staging = std::mem::take(&mut self.staging);
        let result = self.import(slot, staging.written(n_bytes), n_tokens);
        self.staging = staging;
        result
    }

    /// Appends a state to the tokens of a slot in a shared buffer with a spare sequence; its positions continue theirs.
    ///
    /// Cost: an import of the state.
    /// Errors: `Import`; the slot is then empty. Panics: without a spare sequence.
    pub(in crate::engine) fn append_shared(
        &mut self,
        slot: SlotId,
        state: &[u8],
        positions: Range<u32>,
    ) -> Result<(), StateError> {
        let spare_slot = self.spare_slot().expect("the caller has checked that there is a spare sequence");
        self.import_sequence(spare_slot, state, LlamaStateSeqFlags::empty());
        self.share(spare_slot, slot, positions.clone());
        let _ = self.context.clear_kv_cache_seq(Some(u32::from(spare_slot.0)), None, None);
        self.expect_tokens(slot, positions.end)
    }

    /// Gives a slot the first `n_tokens` of another, which stays unchanged; the slot's former state is lost.
    ///
    /// A recurrent part is always copied as a whole. If the other slot has more than `n_tokens`, a hybrid model's copy
    /// in a shared buffer is valid only after [`Self::restore_partial`], and with separate buffers the copy is refused.
    /// Cost: none in a shared buffer, otherwise an export and an import.
    /// Errors: `Range`, `Export`, `Import`, `Rewind`, `Decode`; the slot is then empty.
    pub(in crate::engine) fn copy_prefix(&mut self, from: SlotId, to: SlotId, n_tokens: u32) -> Result<(), StateError> {
        self.check_held(from, &(0..n_tokens))?;
        self.clear(to);
        if self.kv_unified {
            self.share(from, to, 0..n_tokens);
            for slot in [from, to] {
                let n_shared = &mut self.n_shared[usize::from(slot.0)];
                *n_shared = n_tokens.max(*n_shared);
            }
            // llama.cpp shares the last computed state, also after a rollback from it; an export has the right one.
            if self.rollback.is_possible() && self.n_held(from) == n_tokens {
                let partial = self.partial(from)?;
                return self.restore_partial(to, &partial, n_tokens);
            }
            return self.expect_tokens(to, n_tokens);
        }
        if self.window != Window::None && !self.has_recurrent {
            return self.copy_stream(from, to, n_tokens);
        }
        let n_held = self.n_held(from);
        if self.has_recurrent && n_tokens < n_held {
            return Err(StateError::Rewind { slot: to, n_tokens });
        }
        let n_bytes = self.export(from)?.len();
        self.import_written(to, n_bytes, n_held)?;
        self.cut_back(to, n_tokens)
    }

    /// Returns the part of a slot's state that cannot be cut; models with only full attention have none.
    ///
    /// Errors: [`StateError::Export`] if the slot is empty.
    pub(in crate::engine) fn partial(&mut self, slot: SlotId) -> Result<Vec<u8>, StateError> {
        self.export_sequence(slot, LlamaStateSeqFlags::PARTIAL_ONLY).map(<[u8]>::to_vec)
    }

    /// Cuts a slot back to `n_tokens`, given the partial state that it had after them.
    ///
    /// The slot must have at least these tokens, with any partial state; a purely recurrent one may be empty.
    /// Errors: `Import`, `Rewind`; the slot is then empty.
    pub(in crate::engine) fn restore_partial(
        &mut self,
        slot: SlotId,
        partial: &[u8],
        n_tokens: u32,
    ) -> Result<(), StateError> {
        self.import_sequence(slot, partial, LlamaStateSeqFlags::PARTIAL_ONLY);
        self.cut_back(slot, n_tokens)
    }

    /// Returns the spare sequence without a slot, for moving ranges of a shared buffer; `None` if there is none.
    pub(in crate::engine) fn spare_slot(&self) -> Option<SlotId> {
        (self.spare_sequence == SpareSequence::One).then_some(SlotId(self.n_slots))
    }

    fn check_held(&self, slot: SlotId, positions: &Range<u32>) -> Result<(), StateError> {
        let n_held = self.n_held(slot);
        match positions.start < positions.end && positions.end <= n_held {
            true => Ok(()),
            false => Err(StateError::Range { slot, start: positions.start, end: positions.end }),
        }
    }

    /// Marks cells of one sequence as also belonging to another one.
    fn share(&mut self, from: SlotId, to: SlotId, positions: Range<u32>) {
        let (from, to) = (i32::from(from.0), i32::from(to.0));
        let result = self.context.kv_cache_seq_cp(from, to, Some(positions.start), Some(positions.end));
        debug_assert!(result.is_ok(), "positions fit into an i32");
    }

    /// Copies a slot's whole buffer, including the past of a sliding window.
    ///
    /// llama.cpp only records the copy and makes it at the next decode. An export before that would read wrong bytes,
    /// and an import would be overwritten. So one token is decoded immediately.
    fn copy_stream(&mut self, from: SlotId, to: SlotId, n_tokens: u32) -> Result<(), StateError> {
        let copy_result = self.context.kv_cache_seq_cp(i32::from(from.0), i32::from(to.0), None, None);
        debug_assert!(copy_result.is_ok(), "no position was given");
        let cut = self.cut_back(to, n_tokens);
        let execution = self.execute_recorded(to, if cut.is_ok() { n_tokens } else { 0 });
        cut.and(execution)
    }

    /// Makes llama.cpp execute recorded copies and shifts, by decoding one token after a slot's `n_tokens`, which is
    /// then dropped.
    ///
    /// Errors: `Decode`, `Rewind`, `Import`; the slot is then empty.
    pub(in crate::engine::llama) fn execute_recorded(&mut self, slot: SlotId, n_tokens: u32) -> Result<(), StateError> {
        let mut batch = LlamaBatch::new(1, 1);
        let position = i32::try_from(n_tokens).expect("a position is below the context's size, an i32");
        let result = batch.add(LlamaToken(0), position, &[i32::from(slot.0)], false);
        result.expect("the batch has room for one token");
        if let Err(error) = self.context.decode(&mut batch) {
            self.has_failed_move |= matches!(error, DecodeError::Unknown(_));
            self.clear(slot);
            return Err(StateError::Decode { reason: error.to_string() });
        }
        self.cut_back(slot, n_tokens)
    }

    /// Returns whether llama.cpp has failed to compute a copy or shift since the last call.
    pub(in crate::engine) fn take_failed_move(&mut self) -> bool {
        std::mem::take(&mut self.has_failed_move)
    }

    /// Returns the number of tokens in a slot's sequence.
    pub(in crate::engine) fn n_held(&self, slot: SlotId) -> u32 {
        self.last_position(slot).map_or(0, |last| last + 1)
    }

    /// Checks that a slot has exactly these tokens; with a sliding window, that it has the tokens that the next one
    /// attends to.
    fn expect_tokens(&mut self, slot: SlotId, n_tokens: u32) -> Result<(), StateError> {
        if self.n_held(slot) == n_tokens && self.resumes(slot, n_tokens) {
            return Ok(());
        }
        self.clear(slot);
        Err(StateError::Import { slot, n_tokens })
    }

    /// Removes the tokens after the first `n_tokens`.
    ///
    /// Errors: `Rewind`, `Import`; the slot is then empty.
    pub(in crate::engine) fn cut_back(&mut self, slot: SlotId, n_tokens: u32) -> Result<(), StateError> {
        if !self.remove_after(slot, n_tokens) {
            self.clear(slot);
            return Err(StateError::Rewind { slot, n_tokens });
        }
        self.expect_tokens(slot, n_tokens)
    }

    fn export_sequence(&mut self, slot: SlotId, flags: LlamaStateSeqFlags) -> Result<&[u8], StateError> {
        let sequence = i32::from(slot.0);
        if self.last_position(slot).is_none() {
            return Err(StateError::Export { slot });
        }
        let n_bytes = self.context.state_seq_get_size_ext(sequence, flags);
        let buffer = self.staging.room(n_bytes).as_mut_ptr();
        // SAFETY: the buffer has the size that llama.cpp has just returned, and nothing was decoded since.
        let n_written = unsafe { self.context.state_seq_get_data_ext(buffer, sequence, flags) };
        if n_written != n_bytes || n_bytes == 0 {
            return Err(StateError::Export { slot });
        }
        Ok(self.staging.written(n_bytes))
    }

    fn import_sequence(&mut self, slot: SlotId, state: &[u8], flags: LlamaStateSeqFlags) {
        // SAFETY: llama.cpp reads at most the slice and checks its content; if it refuses, the sequence is empty, which
        // the callers see.
        let is_imported = unsafe { self.context.state_seq_set_data_ext(state, i32::from(slot.0), flags) };
        if !is_imported {
            self.clear(slot);
        }
    }
}
