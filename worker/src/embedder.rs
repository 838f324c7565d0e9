//! The embedder: one OS thread that owns the model and makes vectors or scores of texts.
//!
//! Not here: HTTP, what is done to a vector afterwards (`vector`), which texts share a batch (`warmpath_worker_core::embed_plan`).
//! The idea: a text is computed once, as a whole, and nothing of it is kept; so there are no slots, no cache and no plan but the
//! batch's. It stands where the engine stands in a worker that generates.

mod compute;
mod footprint;
mod handle;
mod layout;
mod thread;
pub mod vector;

use tokio::sync::mpsc;
use warmpath_common::model::{EmbeddingInfo, Fingerprint, Pooling};

pub use footprint::{plan_memory, settle};
pub use handle::{EmbedHandle, TextFault};

use crate::engine::{EngineConfig, EngineUpdate, StartError};

/// Is the longest text where the size is not given.
///
/// Units: tokens. Source: llama-server's own presets for embedding models (`common/arg.cpp`, `--embd-gemma-default`): what is not
/// causal is computed in one micro-batch, whose attention takes memory with the square of its length.
pub const TEXT_TOKENS_DEFAULT_MAX: u32 = 2048;

/// Is the texts of a batch where their number is not given. Source: as above.
pub const TEXTS_PER_BATCH_DEFAULT: u16 = 32;

/// Says how to load the model and how large everything is.
#[derive(Debug, Clone)]
pub struct EmbedConfig {
    /// Is what embedder and engine have in common: the slots are the texts of a batch, the context is one text's.
    pub engine: EngineConfig,
    /// Says what is made of a text's tokens; absent for what the model's file says.
    pub pooling: Option<Pooling>,
}

/// Is what the loaded model turned out to be.
#[derive(Debug, Clone, PartialEq)]
pub struct EmbedFacts {
    /// Is the longest text. Units: tokens.
    pub text_tokens_max: u32,
    /// Is the most texts of a batch.
    pub n_sequences: u16,
    /// Is the size of the vocabulary.
    pub n_vocab: u32,
    /// Is the context that the model was trained on; 0 where its file does not say.
    pub n_ctx_train: u32,
    /// Says what is made of a text.
    pub embedding: EmbeddingInfo,
    /// Names the model file.
    pub model_fingerprint: Fingerprint,
    /// Is the model in words.
    pub description: String,
    /// Is the number of the model's parameters.
    pub n_params: u64,
    /// Is the size of the model's tensors.
    pub model_bytes: u64,
}

/// Is what was made of one text.
#[derive(Debug, Clone, PartialEq)]
pub struct Embedded {
    /// Is the text's length. Units: tokens.
    pub n_tokens: u32,
    /// Lists its vectors, as the model gives them: one, or without pooling one for each token.
    pub vectors: Vec<Vec<f32>>,
}

/// Loads the model and starts the thread; blocks until it is ready.
///
/// `progress` and `updates` are as the engine's. Errors: every [`StartError`].
pub fn start(
    config: EmbedConfig,
    progress: impl FnMut(f32) -> bool + Send + 'static,
    updates: mpsc::UnboundedSender<EngineUpdate>,
) -> Result<EmbedHandle, StartError> {
    thread::start(config, Box::new(progress), updates)
}
