//! llama.cpp's state of one sequence as bytes: cut into blocks of tokens, and put together from blocks again.
//!
//! Not here: the calls that give and take these bytes (`llama::state`), which blocks are kept (`warmpath_worker_core`).
//! The idea: an export holds, layer by layer, the rows of all its tokens. Cut block by block it becomes payloads that every
//! prompt with the same prefix can share; their rows, put side by side again, are the export of that prompt.
//! Source: `state_write` of llama.cpp's `llama-kv-cache.cpp`, `llama-kv-cache-iswa.cpp` and `llama-memory-hybrid.cpp`.

mod assemble;
mod export;
mod layout;
mod reader;

#[cfg(test)]
mod tests;

pub use assemble::{Frame, Piece};
pub use export::Export;
pub use layout::{Layout, Sections};

/// Is what every export begins with. Source: `io_magic` in `llama-context.cpp`.
const MAGIC: u32 = 0xAF14_3CD8;

/// Is the bytes before the first section: the magic number and the sequence.
const HEADER_BYTES: usize = 8;

/// Is the most sequences and streams of a context. Source: `LLAMA_MAX_SEQ`.
const STREAMS_MAX: u32 = 256;

/// Says why bytes are not the state of a sequence, or why a state cannot be cut or put together as asked.
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
    /// A number is not one that this layout can have.
    #[error("the state has an impossible {what}")]
    Impossible {
        /// Names the number.
        what: &'static str,
    },
    /// A cell belongs to another sequence, too, or to none.
    #[error("a cell of the state is not its sequence's alone")]
    Cell,
    /// The tokens' positions have a gap or are there twice.
    #[error("the state's positions are not consecutive")]
    Positions,
    /// There are bytes behind the last section.
    #[error("{n_bytes} bytes follow the state")]
    Trailing {
        /// Is how many.
        n_bytes: usize,
    },
    /// The tokens asked for are not all there or are not whole blocks.
    #[error("tokens {start} to {end} are not whole blocks of the state")]
    Range {
        /// Is the first token's position.
        start: u32,
        /// Is the position behind the last token.
        end: u32,
    },
    /// A piece is shorter than its tokens need or is not of whole blocks.
    #[error("a piece of {n_bytes} bytes does not hold {n_tokens} tokens in whole blocks")]
    Piece {
        /// Is the piece's length.
        n_bytes: usize,
        /// Is the tokens that it should hold.
        n_tokens: u32,
    },
    /// A partial state is missing where the layout has one, or there where it has none.
    #[error("a partial state is missing or not wanted")]
    Partial,
    /// Two states that should agree do not.
    #[error("a state came back with another {what}")]
    Changed {
        /// Names what differs.
        what: &'static str,
    },
}
