//! llama.cpp's state of one sequence as bytes: cut into blocks of tokens, and assembled from blocks again.
//!
//! An export has, layer by layer, the rows of all its tokens. Cut block by block it becomes payloads that every prompt
//! with the same prefix can share. Their rows, put side by side again, are the export of that prompt.
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

pub use assemble::{Frame, Piece};
pub use export::Export;
pub use join::join;
pub use layout::{Layout, Sections};

/// First bytes of every export. Source: `io_magic` in `llama-context.cpp`.
const MAGIC: u32 = 0xAF14_3CD8;

/// Bytes before the first section: the magic number and the sequence.
const HEADER_BYTES: usize = 8;

/// Most sequences and streams of a context. Source: `LLAMA_MAX_SEQ`.
const STREAMS_MAX: u32 = 256;

/// Blocks that are cut or assembled at a time, if values are transposed.
///
/// A column has a few bytes of each block, by default half a cache line. Those of a group are consecutive in a state,
/// and each block is written or read from its front to its end.
/// Source: own choice: as many blocks as a chunk has by default.
const GROUP_BLOCKS: usize = 16;

/// Writes bytes at the front of a buffer, which becomes the rest.
///
/// Panics: if the buffer is shorter.
fn write(buffer: &mut &mut [u8], bytes: &[u8]) {
    take(buffer, bytes.len()).copy_from_slice(bytes);
}

/// Takes bytes from the front of a buffer, which becomes the rest.
fn take<'b>(buffer: &mut &'b mut [u8], n_bytes: usize) -> &'b mut [u8] {
    let (taken, rest) = std::mem::take(buffer).split_at_mut(n_bytes);
    *buffer = rest;
    taken
}

/// Reason why bytes are not the state of a sequence, or why a state cannot be cut or assembled as requested.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CodecError {
    /// More bytes were announced than there are.
    #[error("the state ends too early")]
    Short,
    /// The first bytes are not llama.cpp's.
    #[error("the state does not begin as llama.cpp's states do")]
    Magic,
    /// There is no token.
    #[error("the state holds no token")]
    Empty,
    /// A number is impossible in this layout.
    #[error("the state has an impossible {what}")]
    Impossible {
        /// Name of the number.
        what: &'static str,
    },
    /// A cell belongs to another sequence, too, or to none.
    #[error("a cell of the state is not its sequence's alone")]
    Cell,
    /// The tokens' positions have a gap or occur twice.
    #[error("the state's positions are not consecutive")]
    Positions,
    /// There are bytes after the last section.
    #[error("{n_bytes} bytes follow the state")]
    Trailing {
        /// Their number.
        n_bytes: usize,
    },
    /// The requested tokens are not all there or are not whole blocks.
    #[error("tokens {start} to {end} are not whole blocks of the state")]
    Range {
        /// Position of the first token.
        start: u32,
        /// Position after the last token.
        end: u32,
    },
    /// A piece is shorter than its tokens need or is not of whole blocks.
    #[error("a piece of {n_bytes} bytes does not hold {n_tokens} tokens in whole blocks")]
    Piece {
        /// Length of the piece.
        n_bytes: usize,
        /// Tokens that it should have.
        n_tokens: u32,
    },
    /// A partial state is missing although the layout has one, or present although it has none.
    #[error("a partial state is missing or not wanted")]
    Partial,
    /// Two states that should agree do not.
    #[error("a state came back with another {what}")]
    Changed {
        /// Description of the difference.
        what: &'static str,
    },
}
