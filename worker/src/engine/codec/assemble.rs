//! Assembles payloads into the state of one sequence, in the format that llama.cpp imports.
//!
//! The bytes are written once, into a buffer of the exact size; the rows of each layer are gathered from all blocks.
//! Not here: parsing such a state (`export`), joining parts of such states (`join`).

use super::layout::{Sections, StateLayout, ValueLayout};
use super::{CodecError, GROUP_BLOCKS, HEADER_BYTES, MAGIC, STREAMS_MAX, take, write};

/// Context and sequence of a state.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StateFrame {
    /// 1 if all sequences share one buffer, else the number of sequences.
    pub n_streams: u32,
    /// Sequence in the state's header; llama.cpp imports the state into any sequence.
    pub sequence: u32,
}

/// Consecutive blocks of a payload.
#[derive(Debug, Clone, Copy)]
pub struct PayloadPart<'a> {
    /// Payload, which may have further blocks after the wanted ones.
    pub payload: &'a [u8],
    /// Number of wanted tokens, counted from the payload's first one, in whole blocks.
    pub n_tokens: u32,
}

/// Tokens whose state is written, layer by layer.
pub(super) trait StateTokens {
    /// Returns the number of tokens.
    fn n_tokens(&self) -> usize;
    /// Writes each token's position, sequence and optional data.
    fn write_cells(&self, out: &mut &mut [u8], sequence: u32);
    /// Writes the keys of a layer.
    fn write_keys(&self, out: &mut &mut [u8], layer: usize);
    /// Writes the values of a layer with one row for each token.
    fn write_value_rows(&self, out: &mut &mut [u8], layer: usize);
    /// Writes the values of a layer with one column for each element.
    fn write_value_columns(&self, out: &mut &mut [u8], layer: usize);
}

impl StateLayout {
    /// Writes the state of a sequence with the pieces' tokens, from position 0 on; returns its size.
    ///
    /// `partial` is the part that cannot be cut, exported after the last of these tokens. `room` is called once, and
    /// returns a buffer of the state's size with any content.
    /// Cost: one copy of the state.
    /// Errors: `PayloadPart` if one is too short or not of whole blocks, `Partial`, `Empty`, `Impossible`.
    pub fn assemble<'b>(
        &self,
        frame: StateFrame,
        pieces: &[PayloadPart<'_>],
        partial: Option<&[u8]>,
        room: impl FnOnce(usize) -> &'b mut [u8],
    ) -> Result<usize, CodecError> {
        if frame.n_streams == 0 || frame.n_streams > STREAMS_MAX || frame.sequence >= STREAMS_MAX {
            return Err(CodecError::Impossible { what: "sequence or number of streams" });
        }
        let partial = self.partial_section(partial)?;
        let blocks = PayloadBlocks::of(self, pieces)?;
        if blocks.n_tokens() == 0 && self.sections != Sections::PartialOnly {
            return Err(CodecError::Empty);
        }
        let n_bytes = self.cut_bytes(frame, &blocks)? + partial.len();
        let out = &mut room(n_bytes);
        self.write_cut(out, frame, &blocks);
        write(out, partial);
        // The buffer may still contain another state.
        assert!(out.is_empty(), "the buffer has the exact size");
        Ok(n_bytes)
    }

    fn partial_section<'p>(&self, partial: Option<&'p [u8]>) -> Result<&'p [u8], CodecError> {
        match (self.sections, partial) {
            (Sections::AttentionOnly, None) => Ok(&[]),
            (Sections::AttentionOnly, Some(_)) | (_, None) => Err(CodecError::Partial),
            (_, Some(partial)) => match partial.split_at_checked(HEADER_BYTES) {
                Some((header, section)) if header.starts_with(&MAGIC.to_ne_bytes()) => Ok(section),
                Some(_) => Err(CodecError::Magic),
                None => Err(CodecError::Short),
            },
        }
    }

    /// Returns the size of a state without the part that cannot be cut. Units: bytes.
    pub(super) fn cut_bytes(&self, frame: StateFrame, source: &impl StateTokens) -> Result<usize, CodecError> {
        if self.sections == Sections::PartialOnly {
            return Ok(HEADER_BYTES);
        }
        let n_tokens = source.n_tokens();
        if i32::try_from(n_tokens).is_err() {
            return Err(CodecError::Impossible { what: "number of tokens" });
        }
        let headers = |layer: &super::layout::LayerLayout| 12 + if layer.value == ValueLayout::None { 0 } else { 12 };
        let header_bytes: usize = self.layers.iter().map(headers).sum();
        let cell_bytes = 4 + 4 * frame.n_streams as usize + n_tokens * 12 + 16;
        Ok(HEADER_BYTES + cell_bytes + header_bytes + n_tokens * self.token_bytes())
    }

    /// Writes a state without the part that cannot be cut.
    pub(super) fn write_cut(&self, out: &mut &mut [u8], frame: StateFrame, source: &impl StateTokens) {
        write_u32(out, MAGIC);
        write_u32(out, frame.sequence);
        if self.sections == Sections::PartialOnly {
            return;
        }
        write_u32(out, frame.n_streams);
        let own_stream = if frame.n_streams > 1 { frame.sequence.min(frame.n_streams - 1) } else { 0 };
        for stream in 0..frame.n_streams {
            if stream == own_stream {
                write_u32(out, source.n_tokens() as u32);
                source.write_cells(out, frame.sequence);
                self.write_tensors(out, source);
            } else {
                write_u32(out, 0);
            }
        }
    }

    fn write_tensors(&self, out: &mut &mut [u8], source: &impl StateTokens) {
        write_u32(out, u32::from(self.values_transposed));
        write_u32(out, self.layers.len() as u32);
        write_u32(out, self.n_rot_k);
        write_u32(out, self.n_rot_v);
        for (idx, layer) in self.layers.iter().enumerate() {
            write_u32(out, layer.key.kind as u32);
            write(out, &(layer.key.row_bytes as u64).to_ne_bytes());
            source.write_keys(out, idx);
        }
        for (idx, layer) in self.layers.iter().enumerate() {
            match layer.value {
                ValueLayout::None => {}
                ValueLayout::Rows(ref rows) => {
                    write_u32(out, rows.kind as u32);
                    write(out, &(rows.row_bytes as u64).to_ne_bytes());
                    source.write_value_rows(out, idx);
                }
                ValueLayout::Columns { kind, element_bytes, n_elements } => {
                    write_u32(out, kind as u32);
                    write_u32(out, element_bytes as u32);
                    write_u32(out, n_elements as u32);
                    source.write_value_columns(out, idx);
                }
            }
        }
    }
}

/// Blocks of payloads, at positions from 0 on.
struct PayloadBlocks<'p> {
    layout: &'p StateLayout,
    blocks: Vec<&'p [u8]>,
    /// Offsets of each layer's keys and values in a block.
    offsets: Vec<(usize, usize)>,
}

impl<'p> PayloadBlocks<'p> {
    /// Returns the pieces' blocks one by one.
    fn of(layout: &'p StateLayout, pieces: &[PayloadPart<'p>]) -> Result<Self, CodecError> {
        let block_tokens = layout.block_tokens as usize;
        let block_bytes = layout.payload_bytes(layout.block_tokens);
        let mut blocks = Vec::new();
        for &PayloadPart { payload, n_tokens } in pieces {
            let n_bytes = payload.len();
            let used = payload.get(..layout.payload_bytes(n_tokens));
            let used = used.filter(|_| n_tokens % layout.block_tokens == 0 && block_bytes > 0);
            let used = used.ok_or(CodecError::Piece { n_bytes, n_tokens })?;
            blocks.extend(used.chunks_exact(block_bytes));
        }
        let mut at = layout.extra_bytes * block_tokens;
        let offsets = layout.layers.iter().map(|layer| {
            let keys_at = at;
            at += layer.token_bytes() * block_tokens;
            (keys_at, keys_at + layer.key.row_bytes * block_tokens)
        });
        Ok(Self { layout, blocks, offsets: offsets.collect() })
    }

    fn block_tokens(&self) -> usize {
        self.layout.block_tokens as usize
    }
}

impl StateTokens for PayloadBlocks<'_> {
    fn n_tokens(&self) -> usize {
        self.blocks.len() * self.block_tokens()
    }

    fn write_cells(&self, out: &mut &mut [u8], sequence: u32) {
        let extra_bytes = self.layout.extra_bytes;
        let mut position = 0;
        for block in &self.blocks {
            for token in 0..self.block_tokens() {
                write_u32(out, position);
                write_u32(out, 1);
                write(out, &block[token * extra_bytes..][..extra_bytes]);
                write_u32(out, sequence);
                position += 1;
            }
        }
    }

    fn write_keys(&self, out: &mut &mut [u8], layer: usize) {
        let n_bytes = self.layout.layers[layer].key.row_bytes * self.block_tokens();
        write_parts(out, &self.blocks, self.offsets[layer].0, n_bytes);
    }

    fn write_value_rows(&self, out: &mut &mut [u8], layer: usize) {
        let n_bytes = self.layout.layers[layer].value.token_bytes() * self.block_tokens();
        write_parts(out, &self.blocks, self.offsets[layer].1, n_bytes);
    }

    fn write_value_columns(&self, out: &mut &mut [u8], layer: usize) {
        let ValueLayout::Columns { element_bytes, n_elements, .. } = self.layout.layers[layer].value else { return };
        let part_bytes = element_bytes * self.block_tokens();
        let columns = take(out, n_elements * part_bytes * self.blocks.len());
        write_columns(columns, &self.blocks, self.offsets[layer].1, part_bytes);
    }
}

/// Writes the same part of each block.
fn write_parts(out: &mut &mut [u8], blocks: &[&[u8]], at: usize, n_bytes: usize) {
    for block in blocks {
        write(out, &block[at..at + n_bytes]);
    }
}

/// Writes columns. A block has the columns' parts one after the other, from offset `at` on.
///
/// Shape: `[n_elements, n_blocks, part_bytes]`.
fn write_columns(columns: &mut [u8], blocks: &[&[u8]], at: usize, part_bytes: usize) {
    for (group, blocks_of_group) in blocks.chunks(GROUP_BLOCKS).enumerate() {
        let from = group * GROUP_BLOCKS * part_bytes;
        for (element, column) in columns.chunks_exact_mut(blocks.len() * part_bytes).enumerate() {
            let at = at + element * part_bytes;
            for (block, part) in blocks_of_group.iter().zip(column[from..].chunks_exact_mut(part_bytes)) {
                part.copy_from_slice(&block[at..at + part_bytes]);
            }
        }
    }
}

pub(super) fn write_u32(out: &mut &mut [u8], number: u32) {
    write(out, &number.to_ne_bytes());
}
