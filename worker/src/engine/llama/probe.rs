//! Trials of a new context: its kind of memory, its window, the time of a token.
//!
//! Not here: the layout of its state (`kv::slot_state`), measuring all of a setting (`self_test`).

use std::hint::black_box;
use std::time::Instant;

use llama_cpp_2::model::LlamaModel;
use warmpath_common::ids::SlotId;
use warmpath_common::model::MemoryKind;

use super::window::Window;
use super::{Llama, Logits, StateError};

/// Number of measurements of one token; the fastest one counts. Source: the first one touches new pages, and one of
/// four more is rarely disturbed by other work.
const N_ONE_TOKEN_RUNS: u32 = 5;

impl Llama<'_> {
    /// Returns the kind of memory, determined by a trial with two tokens, which also warms the model up and settles
    /// whether there is a window.
    ///
    /// Errors: the reason if the model cannot decode at all. Source: llama.cpp's `common_context_can_seq_rm`.
    pub(in crate::engine) fn probe_memory(&mut self, model: &LlamaModel) -> Result<MemoryKind, String> {
        let slot = SlotId(0);
        for position in 0..2 {
            let logits = if position == 1 { Logits::Wanted } else { Logits::Unwanted };
            self.push(slot, position, 0, logits);
        }
        let result = self.decode();
        self.reset_batch();
        result.map_err(|error| format!("its first decode failed ({error})"))?;
        if self.last_position(slot) != Some(1) {
            return Err(
                "it has no KV cache or recurrent state, so it cannot generate text; --embedding serves it".to_owned()
            );
        }
        if let Ok(whole_bytes) = self.export(slot).map(<[u8]>::len)
            && let Ok(partial) = self.partial(slot)
        {
            self.correct_window(whole_bytes, partial.len());
        }
        let rewinds = !self.rollback.is_possible() && self.rewind(slot, 1);
        self.clear_all();
        Ok(match (rewinds, model.is_hybrid(), model.is_recurrent()) {
            (_, true, _) => MemoryKind::Hybrid,
            (false, ..) | (_, _, true) => MemoryKind::Recurrent,
            (true, ..) if self.window != Window::None => MemoryKind::Sliding,
            (true, ..) => MemoryKind::Full,
        })
    }

    /// Corrects the suggested window, given the sizes of a slot's whole state and of its part that cannot be cut. Full
    /// attention has no such part, and llama.cpp then exports the whole state.
    pub(in crate::engine) fn correct_window(&mut self, whole_bytes: usize, partial_bytes: usize) {
        self.window = match self.window {
            _ if partial_bytes >= whole_bytes => Window::None,
            Window::None => Window::UNKNOWN,
            suggested => suggested,
        };
    }

    /// Returns the shortest time of several decodes of one token in an empty context; `None` if llama.cpp fails.
    ///
    /// Units: milliseconds.
    pub(in crate::engine) fn one_token_ms(&mut self) -> Option<f64> {
        self.fastest_ms(|llama| llama.push(SlotId(0), 0, 0, Logits::Wanted))
    }

    /// Returns the same for draft heads.
    pub(in crate::engine) fn one_head_token_ms(&mut self) -> Option<f64> {
        let hidden = vec![0.0; self.hidden_width()];
        self.fastest_ms(|llama| llama.push_with_hidden(SlotId(0), 1, 0, &hidden, Logits::Wanted))
    }

    /// Returns the shortest time of several decodes of the token in the first slot that `push` puts into the batch.
    fn fastest_ms(&mut self, push: impl Fn(&mut Self) -> i32) -> Option<f64> {
        let mut fastest = None;
        for _ in 0..N_ONE_TOKEN_RUNS {
            let began = Instant::now();
            let idx = push(self);
            let result = self.decode();
            if result.is_ok() {
                // This waits for a GPU.
                black_box(self.logits(idx).first());
            }
            let took_ms = began.elapsed().as_secs_f64() * 1e3;
            self.reset_batch();
            self.clear(SlotId(0));
            result.ok()?;
            fastest = Some(fastest.map_or(took_ms, |fastest: f64| fastest.min(took_ms)));
        }
        fastest
    }

    /// Decodes `n_tokens` arbitrary tokens after those of a slot.
    ///
    /// Errors: [`StateError::Decode`].
    pub(in crate::engine) fn decode_any(
        &mut self,
        model: &LlamaModel,
        slot: SlotId,
        n_tokens: u32,
    ) -> Result<(), StateError> {
        let start = self.n_held(slot);
        let n_vocab = model.n_vocab().unsigned_abs().max(1);
        let positions: Vec<u32> = (start..start.saturating_add(n_tokens)).collect();
        for positions in positions.chunks(self.context.n_ubatch() as usize) {
            self.reset_batch();
            for &position in positions {
                self.push(slot, position, position.wrapping_mul(7919) % n_vocab, Logits::Unwanted);
            }
            let result = self.decode();
            self.reset_batch();
            result.map_err(|error| StateError::Decode { reason: error.to_string() })?;
        }
        Ok(())
    }

    /// Returns a sequence other than a slot's: another slot, the spare sequence, or the slot itself if there is none.
    pub(in crate::engine) fn other_sequence(&self, slot: SlotId) -> SlotId {
        if self.n_slots > 1 { SlotId(u16::from(slot.0 == 0)) } else { self.spare_slot().unwrap_or(slot) }
    }
}
