//! Joins parts of exported states into the state of one sequence, in the format that llama.cpp imports.
//!
//! Unlike the blocks of payloads, parts have any length and keep their positions, with possible gaps between them. Not
//! here: parsing the exports (`export`), the order of the bytes (`assemble`).

use std::ops::Range;

use super::assemble::{StateFrame, StateTokens, write_u32};
use super::export::{CELL_BYTES, ParsedState};
use super::layout::{Sections, ValueLayout};
use super::{CodecError, write};

/// Tokens of an export that are joined with others.
#[derive(Debug, Clone)]
pub struct ExportPart<'e> {
    /// The export.
    pub export: &'e ParsedState<'e>,
    /// Positions of the tokens.
    pub positions: Range<u32>,
}

/// Tokens of exports.
struct Joined<'e>(Vec<JoinedPart<'e>>);

/// Tokens of one export.
struct JoinedPart<'e> {
    export: &'e ParsedState<'e>,
    /// Cells of the tokens, in the order of their positions.
    cells: Vec<Range<usize>>,
}

/// Returns the state of a sequence with the tokens at these positions of the exports.
///
/// Cost: one copy of the state.
/// Errors: `Range` if an export lacks a token, `Empty` if there is none, `Changed` if the exports have different
/// layouts, `Partial` if they have a part that cannot be cut, `Impossible` if there are too many tokens.
pub fn join(frame: StateFrame, parts: &[ExportPart<'_>]) -> Result<Vec<u8>, CodecError> {
    let layout = parts.first().ok_or(CodecError::Empty)?.export.layout();
    if layout.sections() != Sections::AttentionOnly {
        return Err(CodecError::Partial);
    }
    if parts.iter().any(|part| part.export.layout() != layout) {
        return Err(CodecError::Changed { what: "layout" });
    }
    let parts = parts.iter().map(JoinedPart::of);
    let joined_tokens = Joined(parts.collect::<Result<_, _>>()?);
    if joined_tokens.n_tokens() == 0 {
        return Err(CodecError::Empty);
    }
    let mut state = vec![0; layout.cut_bytes(frame, &joined_tokens)?];
    let out = &mut &mut state[..];
    layout.write_cut(out, frame, &joined_tokens);
    assert!(out.is_empty(), "the buffer has the exact size");
    Ok(state)
}

impl<'e> JoinedPart<'e> {
    fn of(part: &ExportPart<'e>) -> Result<Self, CodecError> {
        Ok(Self { export: part.export, cells: part.export.cells_at(&part.positions)? })
    }
}

impl StateTokens for Joined<'_> {
    fn n_tokens(&self) -> usize {
        self.0.iter().flat_map(|part| &part.cells).map(ExactSizeIterator::len).sum()
    }

    fn write_cells(&self, out: &mut &mut [u8], sequence: u32) {
        for JoinedPart { export, cells } in &self.0 {
            let record_bytes = CELL_BYTES + export.layout().extra_bytes;
            for cell in cells.iter().cloned().flatten() {
                let record = &export.cells[cell * record_bytes..][..record_bytes];
                let (content, _sequence) = record.split_at(record_bytes - size_of::<u32>());
                write(out, content);
                write_u32(out, sequence);
            }
        }
    }

    fn write_keys(&self, out: &mut &mut [u8], layer: usize) {
        for JoinedPart { export, cells } in &self.0 {
            let (keys, _) = export.tensors[layer];
            write_rows(out, keys, export.layout().layers[layer].key.row_bytes, cells);
        }
    }

    fn write_value_rows(&self, out: &mut &mut [u8], layer: usize) {
        for JoinedPart { export, cells } in &self.0 {
            let (_, values) = export.tensors[layer];
            write_rows(out, values, export.layout().layers[layer].value.token_bytes(), cells);
        }
    }

    fn write_value_columns(&self, out: &mut &mut [u8], layer: usize) {
        let Some(ValueLayout::Columns { element_bytes, n_elements, .. }) =
            self.0.first().map(|part| &part.export.layout().layers[layer].value)
        else {
            return;
        };
        for element in 0..*n_elements {
            for JoinedPart { export, cells } in &self.0 {
                let (_, values) = export.tensors[layer];
                let column_bytes = export.n_tokens() as usize * element_bytes;
                let column = &values[element * column_bytes..][..column_bytes];
                write_rows(out, column, *element_bytes, cells);
            }
        }
    }
}

/// Writes the rows of cells.
fn write_rows(out: &mut &mut [u8], rows: &[u8], row_bytes: usize, cells: &[Range<usize>]) {
    for cells in cells {
        write(out, &rows[cells.start * row_bytes..cells.end * row_bytes]);
    }
}
