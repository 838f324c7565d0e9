//! GGUF files through ggml's own reader and writer: check a model before loading it, fingerprint it, extract its
//! vocabulary, write one.
//!
//! Models are run by the worker; the weights of generated models come from `warmpath-bench`.
//!
//! llama.cpp's loader trusts much of what it reads, so a user's file is checked first, with the same reader and without
//! reading tensor data. Names and vocabulary come from the same header.

mod check;
mod context;
mod error;
mod fingerprint;
mod scalar;
mod shards;
mod tokenizer;
mod vocabulary;
mod writer;

pub use check::{Header, TensorInfo};
pub use error::GgufError;
pub use fingerprint::fingerprint;
pub use scalar::MetadataValue;
pub use shards::{Model, check, model_name, shard_name, shard_path};
pub use tokenizer::{TOKEN_BYTES_MAX, TOKENS_MAX, TokenizerError};
pub use vocabulary::{TOOL_USE_TEMPLATE_KEY, VocabularyChanges, changed_vocabulary, vocabulary};
pub use writer::{TensorSink, TensorType, Value, Writer};

#[cfg(test)]
mod tests;
