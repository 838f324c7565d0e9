//! Media in the engine: their tokens, and the embeddings that the model reads in their place.
//!
//! A *projector* is a model of its own in a file beside the text model's. It encodes a medium into embeddings, which
//! are decoded like tokens. Encoding takes as long as hundreds of tokens, so a thread of its own does it, and only for
//! runs whose KV state is not reused.
//!
//! Not here: reading media from requests (`warmpath-prompt`), decoding embeddings (`llama`, `schedule`).

mod encoder;
mod projector;

use std::path::{Path, PathBuf};

pub(crate) use encoder::{Encoder, Encoding};
pub use projector::Projector;
use warmpath_llama_chat::DeviceMemory;

/// A projector to load.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProjectorConfig {
    /// Path of its GGUF file.
    pub path: PathBuf,
    /// Whether the engine starts without it.
    pub need: ProjectorNeed,
    /// Whether it is computed on a GPU, if there is one.
    pub offload: bool,
    /// Minimum number of tokens of a medium, if the projector's number of tokens depends on the medium's size; `None`
    /// for the file's minimum.
    pub min_tokens: Option<u32>,
    /// Maximum number of tokens of a medium; `None` for the file's maximum.
    pub max_tokens: Option<u32>,
}

/// Attention among the tokens of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RunAttention {
    /// Each token attends to those before it.
    Causal,
    /// All tokens attend to each other, so they are computed in one step.
    NonCausal,
}

/// Whether an engine starts if its projector cannot be used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ProjectorNeed {
    /// The engine does not start, because a flag names the projector.
    Required,
    /// The engine reads only text, with a warning, because the projector merely lies beside the model.
    Optional,
}

/// Returns the memory that reading media takes of the machine, kept embeddings included, and of each device as
/// weights. Units: bytes.
///
/// Cost: reads the projector's metadata.
pub(super) fn memory(config: &ProjectorConfig) -> (u64, Vec<DeviceMemory>) {
    let (host, devices) = Projector::memory(config);
    (host.saturating_add(encoder::KEPT_BYTES_MAX), devices)
}

/// Warns that the model reads only text because the projector beside it cannot be used.
pub(crate) fn warn_of_text_only(path: &Path, reason: &str) {
    tracing::warn!(
        projector = %path.display(),
        reason,
        "the projector of the model's repository cannot be used, so the model reads only text (--no-mmproj leaves it out)"
    );
}
