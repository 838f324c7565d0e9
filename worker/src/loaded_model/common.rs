//! The state that every loaded worker has, whether it generates or embeds.

use std::path::PathBuf;

use bytes::Bytes;
use warmpath_common::model::ModelInfo;
use warmpath_prompt::PromptMaker;

use crate::engine::MemoryUse;
use crate::error::RequestError;
use crate::prompt_pools::PromptPools;
use crate::summary::SummaryPublisher;

/// State common to every loaded worker.
pub struct CommonState {
    /// Declaration of the model for routers.
    pub model: ModelInfo,
    /// Tokenizer and templates.
    pub prompts: PromptMaker,
    /// Publisher of the cached blocks and the load.
    pub publisher: SummaryPublisher,
    /// The model's metadata for routers.
    pub vocabulary: VocabularyFile,
    /// File of the model.
    pub model_path: PathBuf,
    /// Time of loading. Units: seconds since 1970.
    pub loaded_at_s: u64,
    /// Pools for the work before the model.
    pub pools: PromptPools,
    /// Description of the model.
    pub description: String,
    /// Number of the model's parameters.
    pub n_params: u64,
    /// Size of the model's tensors.
    pub model_bytes: u64,
    /// Memory that the model takes; `None` if unknown.
    pub memory: Option<MemoryUse>,
}

/// A GGUF file of the model's metadata without tensors.
#[derive(Debug, Clone)]
pub struct VocabularyFile {
    /// Content of the file.
    pub bytes: Bytes,
    /// HTTP entity tag of the file, quotes included.
    pub etag: String,
}

/// Checks that `model_name`, if a request names a model, is a name of `model`. An empty name counts as absent:
/// llama.vim sends it.
///
/// Errors: `ModelUnknown`.
pub fn check_model(model: &ModelInfo, model_name: Option<&str>) -> Result<(), RequestError> {
    match model_name {
        Some(model_name) if !model_name.is_empty() && !model.answers_to(model_name) => {
            Err(RequestError::ModelUnknown { model: model_name.to_owned(), names: model.all_names().collect() })
        }
        _ => Ok(()),
    }
}
