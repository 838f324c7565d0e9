//! The state of a slot in the codec's terms: its layout, found by a trial, and runs of tokens that are taken out of a
//! slot and appended later.
//!
//! The trial decodes two blocks of tokens, exports, cuts and assembles them, imports them into another sequence, and
//! moves them back in the same way. The result must equal the original byte by byte.
//!
//! Not here: the codec (`codec`), the calls that move bytes (`llama::state`).

#[cfg(test)]
mod speed;
#[cfg(test)]
mod tests;

use std::ops::Range;

use llama_cpp_2::model::LlamaModel;
use warmpath_common::ids::SlotId;

use crate::engine::codec::{CodecError, ExportPart, ParsedState, PayloadPart, Sections, StateFrame, StateLayout, join};
use crate::engine::llama::{Llama, StateError};

/// Number of blocks of the trial. Source: two have a boundary between them.
const N_BLOCKS: u32 = 2;

/// Error of moving a slot's state in parts.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum SlotStateError {
    /// The state could not be moved.
    #[error(transparent)]
    Move(#[from] StateError),
    /// The bytes do not have the known layout.
    #[error("the state does not have the known layout")]
    Codec(#[from] CodecError),
}

/// Returns the context and sequence of a state for this slot.
pub(crate) fn frame(llama: &Llama<'_>, slot: SlotId) -> StateFrame {
    StateFrame { n_streams: llama.n_streams(), sequence: u32::from(slot.0) }
}

/// Returns the layout of a context's states, cut into blocks of `block_tokens`, after a trial.
///
/// Every slot is empty afterwards. Cost: a prefill of two blocks.
/// Errors: the reason why states cannot be cut, so that they can only be moved as a whole.
pub(crate) fn check_layout(
    llama: &mut Llama<'_>,
    model: &LlamaModel,
    block_tokens: u32,
) -> Result<StateLayout, SlotStateError> {
    let layout = round_trip(llama, model, block_tokens);
    llama.clear_all();
    layout
}

/// Returns the layout of a context's states, without the trial.
///
/// Every slot is empty afterwards. Cost: a decode of one token.
/// Errors: like [`check_layout`].
pub(crate) fn look_at_layout(
    llama: &mut Llama<'_>,
    model: &LlamaModel,
    block_tokens: u32,
) -> Result<StateLayout, SlotStateError> {
    let slot = SlotId(0);
    llama.decode_any(model, slot, 1)?;
    let state = llama.export(slot)?.to_vec();
    let partial = llama.partial(slot)?;
    llama.correct_window(state.len(), partial.len());
    llama.clear_all();
    Ok(parse_unknown(&state, &partial, block_tokens)?.layout().clone())
}

fn round_trip(llama: &mut Llama<'_>, model: &LlamaModel, block_tokens: u32) -> Result<StateLayout, SlotStateError> {
    let home = SlotId(0);
    // Without a second sequence the state is imported into the same one, which the import empties first.
    let away = llama.other_sequence(home);
    llama.decode_any(model, home, block_tokens.saturating_mul(N_BLOCKS))?;
    let state = llama.export(home)?.to_vec();
    let partial = llama.partial(home)?;
    let layout = parse_unknown(&state, &partial, block_tokens)?.layout().clone();
    move_in_blocks(llama, home, away, &layout)?;
    move_in_blocks(llama, away, home, &layout)?;
    // Partial states contain the number of their sequence, so they are equal only in the same slot.
    if llama.export(home)? != state {
        return Err(CodecError::Changed { what: "content" }.into());
    }
    Ok(layout)
}

/// Moves the state of one slot into another, block by block, as chunks are moved.
fn move_in_blocks(llama: &mut Llama<'_>, from: SlotId, to: SlotId, layout: &StateLayout) -> Result<(), SlotStateError> {
    let n_tokens = llama.n_held(from);
    let export = layout.parse(llama.export(from)?)?;
    let mut payload = vec![0; layout.payload_bytes(export.n_tokens())];
    export.cut(0..export.n_tokens(), &mut payload)?;
    let pieces = payload.chunks(layout.payload_bytes(layout.block_tokens()).max(1));
    let pieces: Vec<_> = pieces.map(|payload| PayloadPart { payload, n_tokens: layout.block_tokens() }).collect();
    let partial = match layout.sections() {
        Sections::AttentionOnly => None,
        Sections::AttentionAndPartial | Sections::PartialOnly => Some(llama.partial(from)?),
    };
    llama.clear(from);
    let frame = frame(llama, to);
    let n_bytes = layout.assemble(frame, &pieces, partial.as_deref(), |n_bytes| llama.room(n_bytes))?;
    Ok(llama.import_written(to, n_bytes, n_tokens)?)
}

/// Parses a state whose sections are not known yet; `partial` is llama.cpp's export of the part that cannot be cut.
fn parse_unknown<'s>(state: &'s [u8], partial: &[u8], block_tokens: u32) -> Result<ParsedState<'s>, CodecError> {
    let whole_state = ParsedState::parse(state, Sections::AttentionOnly, block_tokens);
    let Err(error) = whole_state else { return whole_state };
    for sections in [Sections::AttentionAndPartial, Sections::PartialOnly] {
        match ParsedState::parse(state, sections, block_tokens) {
            Ok(export) if export.partial() == partial => return Ok(export),
            _ => {}
        }
    }
    Err(error)
}

/// Removes all tokens after the first `n_kept` from a slot; returns a state of each of these ranges, for [`append`].
///
/// Cost: an export: of the removed tokens in a shared buffer, otherwise of all tokens.
/// Errors: `Move`, `Codec`; the slot is then empty.
pub(crate) fn take_out(
    llama: &mut Llama<'_>,
    slot: SlotId,
    n_kept: u32,
    ranges: &[Range<u32>],
    layout: &StateLayout,
) -> Result<Vec<Vec<u8>>, SlotStateError> {
    let n_held = llama.n_held(slot);
    let frame = frame(llama, slot);
    let exported_state = llama.export_range(slot, n_kept..n_held).map_err(SlotStateError::from);
    let parked_runs = exported_state.and_then(|state| {
        let export = layout.parse_with_gaps(state)?;
        let states =
            ranges.iter().map(|range| join(frame, &[ExportPart { export: &export, positions: range.clone() }]));
        Ok(states.collect::<Result<Vec<_>, _>>()?)
    });
    if parked_runs.is_err() {
        llama.clear(slot);
    }
    let parked_runs = parked_runs?;
    llama.cut_back(slot, n_kept)?;
    Ok(parked_runs)
}

/// Appends a state to the tokens of a slot; its positions continue theirs.
///
/// Cost: an import of the state in a shared buffer, otherwise an export and import of the whole sequence.
/// Errors: `Move`, `Codec`; the slot is then empty.
pub(crate) fn append(
    llama: &mut Llama<'_>,
    slot: SlotId,
    state: &[u8],
    positions: Range<u32>,
    layout: &StateLayout,
) -> Result<(), SlotStateError> {
    if llama.spare_slot().is_some() {
        return Ok(llama.append_shared(slot, state, positions)?);
    }
    let frame = frame(llama, slot);
    let exported_state = llama.export(slot).map_err(SlotStateError::from);
    let joined_state = exported_state.and_then(|bytes| {
        let (head, tail) = (layout.parse(bytes)?, layout.parse(state)?);
        let parts = [
            ExportPart { export: &head, positions: 0..positions.start },
            ExportPart { export: &tail, positions: positions.clone() },
        ];
        Ok(join(frame, &parts)?)
    });
    if joined_state.is_err() {
        llama.clear(slot);
    }
    Ok(llama.import(slot, &joined_state?, positions.end)?)
}
