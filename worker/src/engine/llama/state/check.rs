//! The start-up check that states can be cut into blocks and assembled from them.
//!
//! Two blocks of tokens are decoded, exported, cut, assembled, imported into another sequence, and moved back in the
//! same way. The result must equal the original byte by byte. This also determines the layout. Not here: the codec
//! (`engine::codec`).

use llama_cpp_2::model::LlamaModel;
use warmpath_common::ids::SlotId;

use super::super::{Llama, Logits};
use super::StateError;
use crate::engine::codec::{CodecError, ParsedState, PayloadPart, Sections, StateLayout};

/// Number of blocks of the check. Source: two have a boundary between them.
const N_BLOCKS: u32 = 2;

impl Llama<'_> {
    /// Returns the layout of this context's states, cut into blocks of `block_tokens`, after a trial.
    ///
    /// Every slot is empty afterwards. Cost: a prefill of two blocks.
    /// Errors: the reason why states cannot be cut, so that they can only be moved as a whole.
    pub(in crate::engine) fn check_codec(
        &mut self,
        model: &LlamaModel,
        block_tokens: u32,
    ) -> Result<StateLayout, StateError> {
        let layout = self.round_trip(model, block_tokens);
        self.context.clear_kv_cache();
        layout
    }

    /// Returns the layout of this context's states, without the trial.
    ///
    /// Every slot is empty afterwards. Cost: a decode of one token.
    /// Errors: like [`Self::check_codec`].
    pub(in crate::engine) fn look_at_layout(
        &mut self,
        model: &LlamaModel,
        block_tokens: u32,
    ) -> Result<StateLayout, StateError> {
        let slot = SlotId(0);
        self.decode_any(model, slot, 1)?;
        let state = self.export(slot)?.to_vec();
        let partial = self.partial(slot)?;
        self.settle_window((state.len(), partial.len()));
        self.context.clear_kv_cache();
        Ok(read(&state, &partial, block_tokens)?.layout().clone())
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
                self.push(slot, (position, position.wrapping_mul(7919) % n_vocab), Logits::Unwanted);
            }
            let decoded = self.decode();
            self.reset_batch();
            decoded.map_err(|error| StateError::Decode { reason: error.to_string() })?;
        }
        Ok(())
    }

    fn round_trip(&mut self, model: &LlamaModel, block_tokens: u32) -> Result<StateLayout, StateError> {
        let home = SlotId(0);
        // Without a second sequence the state is imported into the same one, which the import empties first.
        let away = if self.n_slots > 1 { SlotId(1) } else { self.spare_slot().unwrap_or(home) };
        self.decode_any(model, home, block_tokens.saturating_mul(N_BLOCKS))?;
        let state = self.export(home)?.to_vec();
        let partial = self.partial(home)?;
        let layout = read(&state, &partial, block_tokens)?.layout().clone();
        self.pass(home, away, &layout)?;
        self.pass(away, home, &layout)?;
        // Partial states contain the number of their sequence, so they are equal only in the same slot.
        if self.export(home)? != state {
            return Err(CodecError::Changed { what: "content" }.into());
        }
        Ok(layout)
    }

    /// Moves the state of one slot into another, block by block, as chunks are moved.
    fn pass(&mut self, from: SlotId, to: SlotId, layout: &StateLayout) -> Result<(), StateError> {
        let n_tokens = self.n_held(from);
        let export = layout.parse(self.export(from)?)?;
        let mut payload = vec![0; layout.payload_bytes(export.n_tokens())];
        export.cut(0..export.n_tokens(), &mut payload)?;
        let pieces = payload.chunks(layout.payload_bytes(layout.block_tokens()).max(1));
        let pieces: Vec<_> = pieces.map(|payload| PayloadPart { payload, n_tokens: layout.block_tokens() }).collect();
        let partial = match layout.sections() {
            Sections::AttentionOnly => None,
            Sections::AttentionAndPartial | Sections::PartialOnly => Some(self.partial(from)?),
        };
        self.clear(from);
        let frame = self.frame(to);
        let n_bytes = layout.assemble(frame, (&pieces, partial.as_deref()), |n_bytes| self.room(n_bytes))?;
        self.import_written(to, n_bytes, n_tokens)
    }
}

/// Parses a state whose sections are not known yet; `partial` is llama.cpp's export of the part that cannot be cut.
fn read<'s>(state: &'s [u8], partial: &[u8], block_tokens: u32) -> Result<ParsedState<'s>, CodecError> {
    let whole = ParsedState::parse(state, Sections::AttentionOnly, block_tokens);
    let Err(error) = whole else { return whole };
    for sections in [Sections::AttentionAndPartial, Sections::PartialOnly] {
        match ParsedState::parse(state, sections, block_tokens) {
            Ok(export) if export.partial() == partial => return Ok(export),
            _ => {}
        }
    }
    Err(error)
}
