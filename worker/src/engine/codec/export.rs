//! Parses an export and cuts it into blocks.
//!
//! The parser keeps slices of each layer's keys and values. Cells are in the buffer's order, which may differ from the
//! order of positions in a shared buffer; runs map consecutive positions to consecutive cells. Not here: writing a
//! state (`assemble`).

use std::ops::Range;

use super::layout::{LayerLayout, Rows, Sections, StateLayout, ValueLayout};
use super::reader::ByteReader;
use super::{CodecError, GROUP_BLOCKS, HEADER_BYTES, MAGIC, STREAMS_MAX, write};

/// Size of a cell's optional data besides position and sequence. Source: `llama_kv_cell_ext`.
const EXTRA_BYTES: usize = 12;
/// Size of a cell's record without optional data: position, number of sequences, sequence.
pub(super) const CELL_BYTES: usize = 12;
/// Offset of the optional data in a cell's record.
const EXTRA_AT: usize = 8;

/// One sequence's state, parsed but not copied.
#[derive(Debug, Clone)]
pub struct ParsedState<'a> {
    layout: StateLayout,
    pub(crate) first_position: u32,
    n_tokens: u32,
    runs: Vec<CellRun>,
    pub(super) cells: &'a [u8],
    /// Keys and values of each layer. Shape: `[n_layers]`.
    pub(super) tensors: Vec<(&'a [u8], &'a [u8])>,
    sequence: i32,
    /// Bytes of the part that cannot be cut; empty if the layout has none.
    pub(crate) partial: &'a [u8],
}

/// Consecutive positions in consecutive cells.
#[derive(Debug, Clone, Copy)]
struct CellRun {
    /// Position of its first token, counted from the export's first position.
    token: usize,
    cell: usize,
    n: usize,
}

/// Variant of the attention's format.
#[derive(Debug, Clone, Copy)]
struct Variant {
    extra_bytes: usize,
    has_values: bool,
}

const VARIANTS: [Variant; 4] = [
    Variant { extra_bytes: 0, has_values: true },
    Variant { extra_bytes: EXTRA_BYTES, has_values: true },
    Variant { extra_bytes: 0, has_values: false },
    Variant { extra_bytes: EXTRA_BYTES, has_values: false },
];

impl<'a> ParsedState<'a> {
    /// Parses llama.cpp's export of one sequence, to be cut into blocks of `block_tokens`.
    ///
    /// Cost: linear in the cells; no state is copied.
    /// Errors: if the bytes are not a state of these sections, or its positions are not consecutive.
    pub fn parse(bytes: &'a [u8], sections: Sections, block_tokens: u32) -> Result<Self, CodecError> {
        let export = Self::parse_with_gaps(bytes, sections, block_tokens)?;
        if export.runs.last().is_some_and(|run| run.token + run.n != export.n_tokens as usize) {
            return Err(CodecError::Positions);
        }
        Ok(export)
    }

    fn parse_with_gaps(bytes: &'a [u8], sections: Sections, block_tokens: u32) -> Result<Self, CodecError> {
        if block_tokens == 0 {
            return Err(CodecError::Impossible { what: "block size" });
        }
        let mut reader = ByteReader::new(bytes);
        if reader.u32()? != MAGIC {
            return Err(CodecError::Magic);
        }
        let sequence = reader.i32()?;
        if sections == Sections::PartialOnly {
            return Ok(Self::of_partial(reader.rest(), sequence, block_tokens));
        }
        let mut first_error = None;
        for variant in VARIANTS {
            let mut reader = reader.clone();
            let result = Self::attention(&mut reader, sequence, variant);
            match result.and_then(|export| export.with_rest(reader.rest(), sections, block_tokens)) {
                Ok(export) => return Ok(export),
                Err(error) => first_error = first_error.or(Some(error)),
            }
        }
        Err(first_error.unwrap_or(CodecError::Empty))
    }

    /// Returns the layout of the tokens' state.
    pub fn layout(&self) -> &StateLayout {
        &self.layout
    }

    /// Returns the number of tokens; 0 if the whole state is one part that cannot be cut.
    pub fn n_tokens(&self) -> u32 {
        self.n_tokens
    }

    /// Returns the part that cannot be cut, as llama.cpp exports it alone; empty if the layout has none.
    pub fn partial(&self) -> Vec<u8> {
        if self.layout.sections == Sections::AttentionOnly {
            return Vec::new();
        }
        let mut partial = Vec::with_capacity(HEADER_BYTES + self.partial.len());
        partial.extend_from_slice(&MAGIC.to_ne_bytes());
        partial.extend_from_slice(&self.sequence.to_ne_bytes());
        partial.extend_from_slice(self.partial);
        partial
    }

    /// Writes the payload of the blocks at these positions to `payload`, block after block.
    ///
    /// Cost: one copy of the payload.
    /// Errors: `Range` if tokens are missing or not whole blocks, `Piece` if `payload` has another size.
    pub fn cut(&self, positions: Range<u32>, payload: &mut [u8]) -> Result<(), CodecError> {
        let error = CodecError::Range { start: positions.start, end: positions.end };
        let end = self.first_position.saturating_add(self.n_tokens);
        let n_tokens = positions.end.checked_sub(positions.start).ok_or(error.clone())?;
        if positions.start < self.first_position || positions.end > end || n_tokens % self.layout.block_tokens != 0 {
            return Err(error);
        }
        if payload.len() != self.layout.payload_bytes(n_tokens) {
            return Err(CodecError::Piece { n_bytes: payload.len(), n_tokens });
        }
        let start = (positions.start - self.first_position) as usize;
        // A state without any bytes has no blocks to write.
        let block_bytes = self.layout.payload_bytes(self.layout.block_tokens).max(1);
        let group_tokens = GROUP_BLOCKS * self.layout.block_tokens as usize;
        for (group, blocks) in payload.chunks_mut(GROUP_BLOCKS * block_bytes).enumerate() {
            self.cut_group(start + group * group_tokens, blocks.chunks_exact_mut(block_bytes));
        }
        Ok(())
    }

    /// Writes consecutive blocks, which start at token `first`.
    ///
    /// Each tensor is read once for the whole group: a column has few bytes of one block, and those of a group fill
    /// whole cache lines.
    fn cut_group<'p>(&self, first: usize, blocks: impl Iterator<Item = &'p mut [u8]>) {
        let block = self.layout.block_tokens as usize;
        let starts = (first..).step_by(block);
        let block_writer = |(start, unwritten): (usize, &'p mut [u8])| {
            let cells = self.cells_of(start..start + block);
            OpenBlock { cells, unwritten }
        };
        let mut blocks: Vec<OpenBlock<'p>> = starts.zip(blocks).map(block_writer).collect();
        if self.layout.extra_bytes > 0 {
            blocks.iter_mut().for_each(|block| block.write_extra(self.cells, self.layout.extra_bytes));
        }
        for (layer, (keys, values)) in self.layout.layers.iter().zip(&self.tensors) {
            blocks.iter_mut().for_each(|block| block.write_rows(keys, layer.key.row_bytes));
            match &layer.value {
                ValueLayout::None => {}
                ValueLayout::Rows(rows) => blocks.iter_mut().for_each(|block| block.write_rows(values, rows.row_bytes)),
                ValueLayout::Columns { element_bytes, .. } => {
                    for column in values.chunks_exact(self.n_tokens as usize * element_bytes) {
                        blocks.iter_mut().for_each(|block| block.write_rows(column, *element_bytes));
                    }
                }
            }
        }
        // The buffer may still contain another prompt's state.
        assert!(blocks.iter().all(|block| block.unwritten.is_empty()), "a block's tokens all have their cells");
    }

    /// Returns the cells of the tokens at these positions.
    ///
    /// Errors: `Range` if some are missing.
    pub(super) fn cells_at(&self, positions: &Range<u32>) -> Result<Vec<Range<usize>>, CodecError> {
        let error = CodecError::Range { start: positions.start, end: positions.end };
        let start = positions.start.checked_sub(self.first_position).ok_or(error.clone())? as usize;
        let cells = self.cells_of(start..start + positions.len());
        if cells.iter().map(ExactSizeIterator::len).sum::<usize>() == positions.len() { Ok(cells) } else { Err(error) }
    }

    /// Returns the cells of tokens, counted from the first position.
    fn cells_of(&self, tokens: Range<usize>) -> Vec<Range<usize>> {
        let from = self.runs.partition_point(|run| run.token + run.n <= tokens.start);
        let within = self.runs[from..].iter().take_while(|run| run.token < tokens.end);
        within
            .map(|run| {
                let start = tokens.start.max(run.token) - run.token;
                let end = tokens.end.min(run.token + run.n) - run.token;
                run.cell + start..run.cell + end
            })
            .collect()
    }

    fn of_partial(partial: &'a [u8], sequence: i32, block_tokens: u32) -> Self {
        let layout = StateLayout {
            sections: Sections::PartialOnly,
            block_tokens,
            extra_bytes: 0,
            values_transposed: false,
            n_rot_k: 0,
            n_rot_v: 0,
            layers: Vec::new(),
        };
        Self {
            layout,
            first_position: 0,
            n_tokens: 0,
            runs: Vec::new(),
            cells: &[],
            tensors: Vec::new(),
            sequence,
            partial,
        }
    }

    fn with_rest(mut self, after: &'a [u8], sections: Sections, block_tokens: u32) -> Result<Self, CodecError> {
        if sections == Sections::AttentionOnly && !after.is_empty() {
            return Err(CodecError::Trailing { n_bytes: after.len() });
        }
        self.layout.sections = sections;
        self.layout.block_tokens = block_tokens;
        self.partial = after;
        Ok(self)
    }

    /// Parses the attention's section, in which only one stream has cells.
    fn attention(reader: &mut ByteReader<'a>, sequence: i32, variant: Variant) -> Result<Self, CodecError> {
        let n_streams = reader.u32()?;
        if n_streams == 0 || n_streams > STREAMS_MAX {
            return Err(CodecError::Impossible { what: "number of streams" });
        }
        let mut state = None;
        for _ in 0..n_streams {
            let n_cells = reader.u32()?;
            if n_cells > 0 && state.is_some() {
                return Err(CodecError::Impossible { what: "second stream" });
            }
            if n_cells > 0 {
                state = Some(Self::stream(reader, n_cells, sequence, variant)?);
            }
        }
        state.ok_or(CodecError::Empty)
    }

    fn stream(reader: &mut ByteReader<'a>, n_cells: u32, sequence: i32, variant: Variant) -> Result<Self, CodecError> {
        let n = n_cells as usize;
        let cells = reader.rows(n, CELL_BYTES + variant.extra_bytes)?;
        let (first_position, runs) = runs(&positions(cells, variant.extra_bytes, sequence)?)?;
        let values_transposed = match reader.u32()? {
            0 => false,
            1 => true,
            _ => return Err(CodecError::Impossible { what: "transposition of values" }),
        };
        let n_layers = reader.u32()?;
        let (n_rot_k, n_rot_v) = (reader.u32()?, reader.u32()?);
        // No capacity is reserved: the number of layers comes from untrusted bytes.
        let (mut layers, mut tensors) = (Vec::new(), Vec::new());
        for _ in 0..n_layers {
            let (key, keys) = rows(reader, n)?;
            layers.push(LayerLayout { key, value: ValueLayout::None });
            tensors.push((keys, &[][..]));
        }
        if variant.has_values {
            for (layer, (_, values)) in layers.iter_mut().zip(&mut tensors) {
                (layer.value, *values) = if values_transposed { columns(reader, n)? } else { value_rows(reader, n)? };
            }
        }
        let layout = StateLayout {
            sections: Sections::AttentionOnly,
            block_tokens: 1,
            extra_bytes: variant.extra_bytes,
            values_transposed,
            n_rot_k,
            n_rot_v,
            layers,
        };
        Ok(Self { layout, first_position, n_tokens: n_cells, runs, cells, tensors, sequence, partial: &[] })
    }
}

impl StateLayout {
    /// Parses an export that must have this layout.
    ///
    /// Errors: like [`ParsedState::parse`], and `Changed` if the layout differs.
    pub fn parse<'a>(&self, bytes: &'a [u8]) -> Result<ParsedState<'a>, CodecError> {
        self.expect(ParsedState::parse(bytes, self.sections, self.block_tokens)?)
    }

    /// Parses an export that must have this layout and whose positions may have gaps, to be joined.
    ///
    /// Errors: like [`Self::parse`].
    pub fn parse_with_gaps<'a>(&self, bytes: &'a [u8]) -> Result<ParsedState<'a>, CodecError> {
        self.expect(ParsedState::parse_with_gaps(bytes, self.sections, self.block_tokens)?)
    }

    fn expect<'a>(&self, export: ParsedState<'a>) -> Result<ParsedState<'a>, CodecError> {
        if export.layout == *self { Ok(export) } else { Err(CodecError::Changed { what: "layout" }) }
    }
}

fn rows<'a>(reader: &mut ByteReader<'a>, n: usize) -> Result<(Rows, &'a [u8]), CodecError> {
    let kind = reader.i32()?;
    let row_bytes = usize::try_from(reader.u64()?).map_err(|_| CodecError::Short)?;
    Ok((Rows { kind, row_bytes }, reader.rows(n, row_bytes)?))
}

fn value_rows<'a>(reader: &mut ByteReader<'a>, n: usize) -> Result<(ValueLayout, &'a [u8]), CodecError> {
    rows(reader, n).map(|(rows, bytes)| (ValueLayout::Rows(rows), bytes))
}

fn columns<'a>(reader: &mut ByteReader<'a>, n: usize) -> Result<(ValueLayout, &'a [u8]), CodecError> {
    let kind = reader.i32()?;
    let (element_bytes, n_elements) = (reader.u32()? as usize, reader.u32()? as usize);
    if element_bytes == 0 {
        return Err(CodecError::Impossible { what: "element size" });
    }
    let token_bytes = element_bytes.checked_mul(n_elements).ok_or(CodecError::Short)?;
    Ok((ValueLayout::Columns { kind, element_bytes, n_elements }, reader.rows(n, token_bytes)?))
}

/// Returns the cells' positions.
fn positions(cells: &[u8], extra_bytes: usize, sequence: i32) -> Result<Vec<u32>, CodecError> {
    let position = |record: &[u8]| {
        let mut reader = ByteReader::new(record);
        let position = u32::try_from(reader.i32()?).map_err(|_| CodecError::Positions)?;
        let n_sequences = reader.u32()?;
        reader.take(extra_bytes)?;
        if n_sequences != 1 || reader.i32()? != sequence {
            return Err(CodecError::Cell);
        }
        Ok(position)
    };
    cells.chunks_exact(CELL_BYTES + extra_bytes).map(position).collect()
}

/// Returns the first position and the runs of all positions, which may have gaps.
fn runs(positions: &[u32]) -> Result<(u32, Vec<CellRun>), CodecError> {
    let mut order: Vec<usize> = (0..positions.len()).collect();
    if !positions.is_sorted() {
        order.sort_unstable_by_key(|&cell| positions[cell]);
    }
    let first = order.first().map_or(0, |&cell| positions[cell]);
    let mut runs: Vec<CellRun> = Vec::new();
    for cell in order {
        let token = (positions[cell] - first) as usize;
        match runs.last_mut() {
            Some(run) if token < run.token + run.n => return Err(CodecError::Positions),
            Some(run) if (run.token + run.n, run.cell + run.n) == (token, cell) => run.n += 1,
            _ => runs.push(CellRun { token, cell, n: 1 }),
        }
    }
    Ok((first, runs))
}

/// A block that is being written.
struct OpenBlock<'p> {
    /// Cells of its tokens.
    cells: Vec<Range<usize>>,
    unwritten: &'p mut [u8],
}

impl OpenBlock<'_> {
    /// Appends the rows of its cells.
    fn write_rows(&mut self, rows: &[u8], row_bytes: usize) {
        for cells in &self.cells {
            write(&mut self.unwritten, &rows[cells.start * row_bytes..cells.end * row_bytes]);
        }
    }

    /// Appends the optional data of its cells.
    fn write_extra(&mut self, records: &[u8], extra_bytes: usize) {
        for cell in self.cells.iter().cloned().flatten() {
            let record = &records[cell * (CELL_BYTES + extra_bytes)..];
            write(&mut self.unwritten, &record[EXTRA_AT..][..extra_bytes]);
        }
    }
}
