//! Files that are loaded beside the model: LoRA adapters and the projector of media.
//!
//! Not here: the draft model (`draft_model`), loading them (`llama::adapters`, `media`).

use std::path::PathBuf;

use warmpath_common::lora::Scale;

/// An adapter to load.
#[derive(Debug, Clone, PartialEq)]
pub struct AdapterFile {
    /// Name, which clients append to the model's.
    pub name: String,
    /// Path of the GGUF file.
    pub path: PathBuf,
    /// Scale for requests that name it.
    pub scale: Scale,
}

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

/// Whether an engine starts if its projector cannot be used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ProjectorNeed {
    /// The engine does not start, because a flag names the projector.
    Required,
    /// The engine reads only text, with a warning, because the projector merely lies beside the model.
    Optional,
}
