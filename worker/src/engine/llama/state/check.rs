//! The start-up check that states can be cut and put together as this program believes.
//!
//! Not here: the codec (`engine::kv_codec`).
//! The idea: two blocks of tokens go the whole way: decoded, exported, cut, assembled, imported into another sequence, and from
//! there back again. What comes back must be what went out, byte by byte; then the layout is known, too.

use llama_cpp_2::model::LlamaModel;
use warmpath_common::ids::SlotId;

use super::super::{Llama, Logits};
use super::StateError;
use crate::engine::kv_codec::{CodecError, Export, Layout, Piece, Sections};

/// Is the length of the check. Units: blocks.
const N_BLOCKS: u32 = 2;

impl Llama<'_> {
    /// Returns the layout of this context's states, cut into blocks of `block_tokens`, having tried it out.
    ///
    /// Every slot is empty afterwards. Cost: a prefill of two blocks.
    /// Errors: says why states cannot be cut; they can then only be moved as a whole.
    pub(in crate::engine) fn check_codec(
        &mut self,
        model: &LlamaModel,
        block_tokens: u32,
    ) -> Result<Layout, StateError> {
        let layout = self.round_trip(model, block_tokens);
        self.context.clear_kv_cache();
        layout
    }

    /// Returns the layout that a state of this context seems to have, without trying it out.
    ///
    /// Every slot is empty afterwards. Cost: a decode of one token.
    /// Errors: as [`Self::check_codec`].
    pub(in crate::engine) fn look_at_layout(
        &mut self,
        model: &LlamaModel,
        block_tokens: u32,
    ) -> Result<Layout, StateError> {
        let slot = SlotId(0);
        self.decode_any(model, slot, 1)?;
        let state = self.export(slot)?.to_vec();
        let partial = self.partial(slot)?;
        self.context.clear_kv_cache();
        Ok(read(&state, &partial, block_tokens)?.layout().clone())
    }

    /// Decodes `n_tokens` of no meaning behind what a slot holds.
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

    fn round_trip(&mut self, model: &LlamaModel, block_tokens: u32) -> Result<Layout, StateError> {
        let home = SlotId(0);
        // Without a second sequence the state comes back to where it was, which import empties first.
        let away = if self.n_slots > 1 { SlotId(1) } else { self.spare_slot().unwrap_or(home) };
        self.decode_any(model, home, block_tokens.saturating_mul(N_BLOCKS))?;
        let state = self.export(home)?.to_vec();
        let partial = self.partial(home)?;
        let layout = read(&state, &partial, block_tokens)?.layout().clone();
        self.pass(home, away, &layout)?;
        self.pass(away, home, &layout)?;
        // Sections that are not cut name their sequence, so only at home are they the same.
        if self.export(home)? != state {
            return Err(CodecError::Changed { what: "content" }.into());
        }
        Ok(layout)
    }

    /// Brings the state of one slot into another, block by block, as chunks come.
    fn pass(&mut self, from: SlotId, to: SlotId, layout: &Layout) -> Result<(), StateError> {
        let n_tokens = self.n_held(from);
        let export = layout.parse(self.export(from)?)?;
        let payload = export.cut(0..export.n_tokens())?;
        let pieces = payload.chunks(layout.payload_bytes(layout.block_tokens()).max(1));
        let pieces: Vec<_> = pieces.map(|payload| Piece { payload, n_tokens: layout.block_tokens() }).collect();
        let partial = match layout.sections() {
            Sections::AttentionOnly => None,
            Sections::AttentionAndPartial | Sections::PartialOnly => Some(self.partial(from)?),
        };
        self.clear(from);
        let state = layout.assemble(self.frame(to), &pieces, partial.as_deref())?;
        self.import(to, &state, n_tokens)
    }
}

/// Reads a state whose sections are not known yet; `partial` is what llama.cpp exports as the part that cannot be cut.
fn read<'s>(state: &'s [u8], partial: &[u8], block_tokens: u32) -> Result<Export<'s>, CodecError> {
    let whole = Export::parse(state, Sections::AttentionOnly, block_tokens);
    let Err(error) = whole else { return whole };
    for sections in [Sections::AttentionAndPartial, Sections::PartialOnly] {
        match Export::parse(state, sections, block_tokens) {
            Ok(export) if export.partial() == partial => return Ok(export),
            _ => {}
        }
    }
    Err(error)
}
