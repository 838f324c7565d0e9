//! llama.cpp's exported state of one sequence, cut into blocks of tokens and assembled from blocks again.
//!
//! An export has, layer by layer, the rows of all its tokens. Cutting rearranges them block by block into payloads,
//! which all prompts with the same prefix can share. Assembling puts the rows of a prompt's blocks into one export
//! again.
//! Source: `state_write` of llama.cpp's `llama-kv-cache.cpp`, `llama-kv-cache-iswa.cpp` and `llama-memory-hybrid.cpp`.
//!
//! Not here: the calls that export and import these bytes (`llama::state`), the choice of blocks
//! (`warmpath_worker_core`).

mod assemble;
mod export;
mod join;
mod layout;
mod reader;

#[cfg(test)]
mod tests;

pub use assemble::{PayloadPart, StateFrame};
pub use export::ParsedState;
pub use join::{ExportPart, join};
pub use layout::{Sections, StateLayout};

/// First bytes of every export. Source: `io_magic` in `llama-context.cpp`.
const MAGIC: u32 = 0xAF14_3CD8;

/// Bytes before the first section: the magic number and the sequence.
const HEADER_BYTES: usize = 8;

/// Maximum number of sequences and streams of a context. Source: `LLAMA_MAX_SEQ`.
const STREAMS_MAX: u32 = 256;

/// Number of blocks that are cut or assembled together if values are transposed.
///
/// A column has only a few bytes of each block, by default half a cache line, and the bytes of a group are consecutive.
/// Source: the default number of blocks of a chunk.
const GROUP_BLOCKS: usize = 16;

/// Writes bytes at the front of a buffer, and shortens the buffer to the rest.
///
/// Panics: if the buffer is shorter.
fn write(buffer: &mut &mut [u8], bytes: &[u8]) {
    take(buffer, bytes.len()).copy_from_slice(bytes);
}

/// Takes bytes from the front of a buffer, and shortens the buffer to the rest.
fn take<'b>(buffer: &mut &'b mut [u8], n_bytes: usize) -> &'b mut [u8] {
    let (taken, rest) = std::mem::take(buffer).split_at_mut(n_bytes);
    *buffer = rest;
    taken
}

/// Error of parsing, cutting or assembling an exported state.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CodecError {
    /// More bytes were announced than there are.
    #[error("the state ends too early")]
    Short,
    /// The first bytes are not llama.cpp's.
    #[error("the state does not begin as llama.cpp's states do")]
    Magic,
    /// The state has no tokens.
    #[error("the state holds no token")]
    Empty,
    /// A number is out of range for this layout.
    #[error("the state has an impossible {what}")]
    Impossible {
        /// Name of the number.
        what: &'static str,
    },
    /// A cell belongs to no sequence or also to another one.
    #[error("a cell of the state is not its sequence's alone")]
    Cell,
    /// The tokens' positions have gaps or duplicates.
    #[error("the state's positions are not consecutive")]
    Positions,
    /// Bytes follow the last section.
    #[error("{n_bytes} bytes follow the state")]
    Trailing {
        /// Number of the bytes.
        n_bytes: usize,
    },
    /// Some of the requested tokens are missing, or they are not whole blocks.
    #[error("tokens {start} to {end} are not whole blocks of the state")]
    Range {
        /// Position of the first token.
        start: u32,
        /// Position after the last token.
        end: u32,
    },
    /// A piece is too short for its tokens or does not have whole blocks.
    #[error("a piece of {n_bytes} bytes does not hold {n_tokens} tokens in whole blocks")]
    Piece {
        /// Length of the piece.
        n_bytes: usize,
        /// Expected number of tokens.
        n_tokens: u32,
    },
    /// The layout has a partial state and none was given, or the reverse.
    #[error("a partial state is missing or not wanted")]
    Partial,
    /// Two states that must have the same layout differ.
    #[error("a state came back with another {what}")]
    Changed {
        /// Description of the difference.
        what: &'static str,
    },
}
