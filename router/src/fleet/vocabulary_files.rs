//! The vocabularies that the operator gives for stock servers, which have none to fetch.
//!
//! Not here: those that Warmpath workers serve (`vocabulary`). The idea: read once at the start, so that a wrong file is said
//! at once; a model file works as well as one without tensors, and where a Warmpath worker serves the same model file, both
//! have the same block keys.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use warmpath_common::block_hash::{BLOCK_SIZE_TOKENS_DEFAULT, HASH_VERSION};
use warmpath_common::model::{MemoryKind, ModelInfo};
use warmpath_prompt::{PromptMaker, PromptOptions};
use warmpath_router_core::stock::Listed;

use super::vocabulary::{TemplateUse, Vocabulary};
use crate::config::VocabularyFile;

/// Says why a vocabulary that was given cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum VocabularyFileError {
    /// The file is no GGUF file, or cannot be read.
    #[error("--vocab {path}: it cannot be read", path = .path.display())]
    File {
        /// Is the file.
        path: PathBuf,
        /// Says why.
        #[source]
        source: warmpath_gguf::GgufError,
    },
    /// It has no vocabulary that can be used.
    #[error("--vocab {path}: its vocabulary cannot be used", path = .path.display())]
    Vocabulary {
        /// Is the file.
        path: PathBuf,
        /// Says why.
        #[source]
        source: warmpath_prompt::OpenError,
    },
}

/// Is a vocabulary that the operator gives.
#[derive(Debug)]
pub struct LoadedVocabulary {
    /// Is the name of the model that it is for; absent where it is for every one.
    name: Option<String>,
    /// Is the model, but for what each server declares itself.
    pub model: ModelInfo,
    /// Tokenizes and renders.
    pub vocabulary: Arc<Vocabulary>,
}

impl LoadedVocabulary {
    /// Reads a file.
    ///
    /// Cost: 30-700 ms. Errors: every [`VocabularyFileError`].
    pub fn open(file: &VocabularyFile) -> Result<Self, VocabularyFileError> {
        let path = || file.path.clone();
        let fingerprint = warmpath_gguf::fingerprint(&file.path)
            .map_err(|source| VocabularyFileError::File { path: path(), source })?;
        let maker = open(&file.path).map_err(|source| VocabularyFileError::Vocabulary { path: path(), source })?;
        let info = maker.vocabulary();
        let model = ModelInfo {
            names: Vec::new(),
            fingerprint,
            // The layout of a stock server's state is not known; what its prompts are cut by stands in its place.
            kv_fingerprint: fingerprint,
            chat_template_fingerprint: maker.chat_template_fingerprint(),
            hash_version: HASH_VERSION,
            block_size_tokens: BLOCK_SIZE_TOKENS_DEFAULT,
            add_bos: info.add_bos,
            add_eos: info.add_eos,
            context_tokens: 0,
            n_ctx_train: None,
            n_slots: 0,
            memory: MemoryKind::Full,
            n_vocab: info.n_vocab,
            capabilities: Vec::new(),
            embedding: None,
            adapters: Vec::new(),
            adapter_in_force: None,
        };
        let vocabulary = Arc::new(Vocabulary { maker, template: TemplateUse::Known });
        Ok(Self { name: file.name.clone(), model, vocabulary })
    }

    /// Returns whether it is for a model that a server lists so.
    pub fn is_for(&self, listed: &Listed) -> bool {
        self.name.as_ref().is_none_or(|name| listed.names.contains(name))
    }

    /// Returns whether prompts of a model that is in the fleet are cut by it.
    pub fn cuts(&self, model: &ModelInfo) -> bool {
        let is_file = [model.fingerprint, model.kv_fingerprint].contains(&self.model.fingerprint);
        is_file && model.chat_template_fingerprint == self.model.chat_template_fingerprint
    }
}

fn open(path: &Path) -> Result<PromptMaker, warmpath_prompt::OpenError> {
    PromptMaker::open(path, PromptOptions::default())
}
