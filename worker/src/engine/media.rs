//! Media in the engine: their tokens, and the embeddings that the model reads in their place.
//!
//! A *projector* is a model of its own in a file beside the text model's. It encodes a medium into embeddings, which
//! are decoded like tokens. Encoding takes as long as hundreds of tokens, so a thread of its own does it, and only for
//! runs whose KV state is not reused.
//!
//! Not here: reading media from requests (`warmpath-prompt`), decoding embeddings (`llama`, `schedule`).

mod encoder;
mod projector;

use std::path::Path;

pub(crate) use encoder::{Encoder, Encoding};
pub use projector::Projector;
use warmpath_llama_chat::DeviceMemory;

use super::config::files::ProjectorConfig;

/// Attention among the tokens of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RunAttention {
    /// Each token attends to those before it.
    Causal,
    /// All tokens attend to each other, so they are computed in one step.
    NonCausal,
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
