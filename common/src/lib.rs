//! The vocabulary that Warmpath's router and workers share: ids, units, block hashes, the summary protocol, wire types.
//!
//! Not here: anything with IO, a clock or async; rendering and tokenizing (`warmpath-prompt`).
//! The idea: both sides compute the same block hashes from the same tokens and speak one protocol about them, so the
//! types that must agree are written once.

pub mod block_hash;
pub mod cached_share;
pub mod dialects;
pub mod embeddings;
pub mod fields;
pub mod headers;
pub mod ids;
pub mod lora;
pub mod mix;
pub mod model;
pub mod openai;
pub mod prompts;
pub mod salt;
pub mod summary;
