//! Hashes: of blocks of tokens, of files and layouts, as text, and the mixing of bits.

pub mod block_hash;
pub(crate) mod fingerprint;
pub(crate) mod hex;
pub mod mix;
