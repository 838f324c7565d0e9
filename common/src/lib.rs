//! The types that Warmpath's router and workers share: ids, units, block hashes, the summary protocol, API types.
//!
//! Nothing here does IO, reads a clock or is async; rendering and tokenizing are in `warmpath-prompt`. Both sides
//! compute the same block hashes from the same tokens and exchange them by one protocol, so the types on which they
//! must agree are defined once.

mod api;
mod hash;
pub mod ids;
mod json;
pub mod lora;
pub mod model;
mod protocol;

pub use api::{
    cache_breakpoints, clean_text, dialects, embeddings, history, llama_server, media, names, openai, prompts, salt,
};
pub use hash::{block_hash, mix};
pub use json::{empty_maps, fields, whole};
pub use protocol::{cached_share, headers, host, journal, prefetch, summary};
