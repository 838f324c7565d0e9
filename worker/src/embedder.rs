//! The embedder: one OS thread that owns the model and computes vectors or scores of texts.
//!
//! A text is computed once, as a whole, and no state of it is kept. So there are no slots and no cache, only batches. A
//! worker has either an embedder or an engine.
//!
//! Not here: HTTP, post-processing of a vector (`vector`), the texts of a batch
//! (`warmpath_worker_core::batches::embedding_batch`).

mod compute;
mod footprint;
mod handle;
mod layout;
mod thread;
pub mod vector;

use tokio::sync::mpsc;
use warmpath_common::model::{EmbeddingInfo, Fingerprint, Pooling};

pub use footprint::{plan_memory, project_memory, with_devices};
pub use handle::{EmbedHandle, TextFault};

use crate::engine::{EngineConfig, EngineUpdate, StartError};

/// Default of the longest text.
///
/// Units: tokens. Source: llama-server's own presets for embedding models (`common/arg.cpp`, `--embd-gemma-default`): a
/// text for a model that is not causal is computed in one micro-batch, whose attention takes memory with the square of
/// its length.
pub const TEXT_TOKENS_DEFAULT_MAX: u32 = 2048;

/// Default number of texts per batch. Source: as above.
pub const TEXTS_PER_BATCH_DEFAULT: u16 = 32;

/// Settings of the model and all sizes.
#[derive(Debug, Clone)]
pub struct EmbedConfig {
    /// Settings shared with the engine: slots are the texts of a batch, the context is that of one text.
    pub engine: EngineConfig,
    /// Pooling of a text's tokens; `None` for the one in the model's file.
    pub pooling: Option<Pooling>,
}

/// Properties of the loaded model.
#[derive(Debug, Clone, PartialEq)]
pub struct EmbedFacts {
    /// Longest text. Units: tokens.
    pub text_tokens_max: u32,
    /// Maximum number of texts of a batch.
    pub n_sequences: u16,
    /// Size of the vocabulary.
    pub n_vocab: u32,
    /// Context size in training; 0 if the file does not have it.
    pub n_ctx_train: u32,
    /// Form of the output for a text.
    pub embedding: EmbeddingInfo,
    /// Fingerprint of the model file.
    pub model_fingerprint: Fingerprint,
    /// Description of the model.
    pub description: String,
    /// Number of the model's parameters.
    pub n_params: u64,
    /// Size of the model's tensors.
    pub model_bytes: u64,
}

/// Result for one text.
#[derive(Debug, Clone, PartialEq)]
pub struct Embedded {
    /// Length of the text. Units: tokens.
    pub n_tokens: u32,
    /// Vectors from the model: one, or one for each token without pooling.
    pub vectors: Vec<Vec<f32>>,
}

/// Loads the model and starts the thread; blocks until it is ready.
///
/// `progress` and `updates` are like the engine's. Errors: every [`StartError`].
pub fn start(
    config: EmbedConfig,
    progress: impl FnMut(f32) -> bool + Send + 'static,
    updates: mpsc::UnboundedSender<EngineUpdate>,
) -> Result<EmbedHandle, StartError> {
    thread::start(config, Box::new(progress), updates)
}
