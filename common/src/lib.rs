//! The types that Warmpath's router and workers share: ids, units, block hashes, the summary protocol, API types.
//!
//! Nothing here does IO, reads a clock or is async; rendering and tokenizing are in `warmpath-prompt`. Both sides
//! compute the same block hashes from the same tokens and exchange them by one protocol, so the types on which they
//! must agree are defined once.

pub mod block_hash;
pub mod cache_breakpoints;
pub mod cached_share;
pub mod dialects;
pub mod embeddings;
pub mod empty_maps;
pub mod fields;
mod fingerprint;
pub mod headers;
mod hex;
pub mod history;
pub mod ids;
pub mod journal;
pub mod llama_server;
pub mod lora;
pub mod media;
pub mod mix;
pub mod model;
pub mod names;
pub mod openai;
pub mod prefetch;
pub mod prompts;
pub mod salt;
pub mod summary;
pub mod whole;
