//! Assembles payloads to the state of one sequence, in the format that llama.cpp reads.
//!
//! The bytes are written once, front to back, into a buffer of the exact size; each layer's rows are gathered from the
//! blocks one after another. Not here: parsing such a state (`export`).

use super::layout::{Layout, Sections, Value};
use super::{CodecError, HEADER_BYTES, MAGIC, STREAMS_MAX};

/// Context and sequence of a state.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Frame {
    /// 1 if all sequences share one buffer, else the number of sequences.
    pub n_streams: u32,
    /// Sequence that the state is written for; llama.cpp imports it into any.
    pub sequence: u32,
}

/// Consecutive blocks of a payload.
#[derive(Debug, Clone, Copy)]
pub struct Piece<'a> {
    /// The payload, which may have more blocks after the wanted ones.
    pub payload: &'a [u8],
    /// Number of wanted tokens, from the payload's first on, in whole blocks.
    pub n_tokens: u32,
}

impl Layout {
    /// Returns the state of a sequence whose tokens, from position 0 on, are those of the pieces.
    ///
    /// `partial` is the part that cannot be cut, exported alone after the last of these tokens.
    /// Cost: one copy of the state.
    /// Errors: `Piece` if one is too short or not of whole blocks, `Partial`, `Empty`, `Impossible`.
    pub fn assemble(&self, frame: Frame, pieces: &[Piece<'_>], partial: Option<&[u8]>) -> Result<Vec<u8>, CodecError> {
        if frame.n_streams == 0 || frame.n_streams > STREAMS_MAX || frame.sequence >= STREAMS_MAX {
            return Err(CodecError::Impossible { what: "sequence or number of streams" });
        }
        let partial = self.partial_section(partial)?;
        let blocks = self.blocks(pieces)?;
        let n_tokens = blocks.len() * self.block_tokens as usize;
        let n_tokens = i32::try_from(n_tokens).map_err(|_| CodecError::Impossible { what: "number of tokens" })?;
        let n_bytes = HEADER_BYTES + self.attention_bytes(frame, n_tokens) + partial.len();
        let mut out = Vec::with_capacity(n_bytes);
        push_u32(&mut out, MAGIC);
        push_u32(&mut out, frame.sequence);
        if self.sections != Sections::PartialOnly {
            if blocks.is_empty() {
                return Err(CodecError::Empty);
            }
            self.push_streams(&mut out, frame, &blocks);
        }
        out.extend_from_slice(partial);
        debug_assert_eq!(out.len(), n_bytes, "the buffer has the exact size");
        Ok(out)
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

    /// Returns the pieces' blocks one by one.
    fn blocks<'p>(&self, pieces: &[Piece<'p>]) -> Result<Vec<&'p [u8]>, CodecError> {
        let block_bytes = self.payload_bytes(self.block_tokens);
        let mut blocks = Vec::new();
        for &Piece { payload, n_tokens } in pieces {
            let n_bytes = payload.len();
            let used = payload.get(..self.payload_bytes(n_tokens));
            let used = used.filter(|_| n_tokens % self.block_tokens == 0 && block_bytes > 0);
            let used = used.ok_or(CodecError::Piece { n_bytes, n_tokens })?;
            blocks.extend(used.chunks_exact(block_bytes));
        }
        Ok(blocks)
    }

    fn attention_bytes(&self, frame: Frame, n_tokens: i32) -> usize {
        if self.sections == Sections::PartialOnly {
            return 0;
        }
        let n_tokens = n_tokens.unsigned_abs() as usize;
        let headers = |layer: &super::layout::Layer| 12 + if layer.value == Value::None { 0 } else { 12 };
        let header_bytes: usize = self.layers.iter().map(headers).sum();
        4 + 4 * frame.n_streams as usize + n_tokens * 12 + 16 + header_bytes + n_tokens * self.token_bytes()
    }

    fn push_streams(&self, out: &mut Vec<u8>, frame: Frame, blocks: &[&[u8]]) {
        push_u32(out, frame.n_streams);
        let own = if frame.n_streams > 1 { frame.sequence.min(frame.n_streams - 1) } else { 0 };
        for stream in 0..frame.n_streams {
            if stream == own {
                self.push_cells(out, frame.sequence, blocks);
                self.push_tensors(out, blocks);
            } else {
                push_u32(out, 0);
            }
        }
    }

    fn push_cells(&self, out: &mut Vec<u8>, sequence: u32, blocks: &[&[u8]]) {
        let block_tokens = self.block_tokens as usize;
        push_u32(out, (blocks.len() * block_tokens) as u32);
        let mut position = 0;
        for block in blocks {
            for token in 0..block_tokens {
                push_u32(out, position);
                push_u32(out, 1);
                out.extend_from_slice(&block[token * self.extra_bytes..][..self.extra_bytes]);
                push_u32(out, sequence);
                position += 1;
            }
        }
    }

    fn push_tensors(&self, out: &mut Vec<u8>, blocks: &[&[u8]]) {
        let block_tokens = self.block_tokens as usize;
        push_u32(out, u32::from(self.values_transposed));
        push_u32(out, self.layers.len() as u32);
        push_u32(out, self.n_rot_k);
        push_u32(out, self.n_rot_v);
        let mut at = self.extra_bytes * block_tokens;
        let mut value_at = Vec::with_capacity(self.layers.len());
        for layer in &self.layers {
            push_u32(out, layer.key.kind as u32);
            out.extend_from_slice(&(layer.key.row_bytes as u64).to_ne_bytes());
            let key_bytes = layer.key.row_bytes * block_tokens;
            push_parts(out, blocks, (at, key_bytes));
            value_at.push(at + key_bytes);
            at += layer.token_bytes() * block_tokens;
        }
        for (layer, at) in self.layers.iter().zip(value_at) {
            match layer.value {
                Value::None => {}
                Value::Rows(ref rows) => {
                    push_u32(out, rows.kind as u32);
                    out.extend_from_slice(&(rows.row_bytes as u64).to_ne_bytes());
                    push_parts(out, blocks, (at, rows.row_bytes * block_tokens));
                }
                Value::Columns { kind, element_bytes, n_elements } => {
                    push_u32(out, kind as u32);
                    push_u32(out, element_bytes as u32);
                    push_u32(out, n_elements as u32);
                    let part_bytes = element_bytes * block_tokens;
                    for element in 0..n_elements {
                        push_parts(out, blocks, (at + element * part_bytes, part_bytes));
                    }
                }
            }
        }
    }
}

/// Appends the same part of each block.
fn push_parts(out: &mut Vec<u8>, blocks: &[&[u8]], (at, n_bytes): (usize, usize)) {
    for block in blocks {
        out.extend_from_slice(&block[at..at + n_bytes]);
    }
}

fn push_u32(out: &mut Vec<u8>, number: u32) {
    out.extend_from_slice(&number.to_ne_bytes());
}
