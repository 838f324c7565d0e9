//! Vocabularies given by the operator for stock servers, which do not serve theirs.
//!
//! They are read once at the start, so an invalid file is reported at once. A complete model file works as well as one
//! without tensors. If a Warmpath worker serves the same model file, both have the same block keys.
//!
//! Not here: vocabularies of Warmpath workers (`vocabulary`).

use std::path::{Path, PathBuf};
use std::sync::Arc;

use warmpath_common::block_hash::{BLOCK_SIZE_TOKENS_DEFAULT, HASH_VERSION};
use warmpath_common::model::{MemoryKind, ModelInfo};
use warmpath_prompt::{PromptMaker, PromptOptions};
use warmpath_router_core::stock::StockModel;

use super::vocabulary::{TemplateUse, Vocabulary};
use crate::config::VocabularyFile;

/// Reason why a given vocabulary cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum VocabularyFileError {
    /// The file is no GGUF file, or cannot be read.
    #[error("--vocab {path}: it cannot be read", path = .path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// Reason.
        #[source]
        source: warmpath_gguf::GgufError,
    },
    /// The file has no usable vocabulary.
    #[error("--vocab {path}: its vocabulary cannot be used", path = .path.display())]
    Vocabulary {
        /// The file.
        path: PathBuf,
        /// Reason.
        #[source]
        source: warmpath_prompt::OpenError,
    },
}

/// A vocabulary given by the operator.
#[derive(Debug)]
pub struct LoadedVocabulary {
    /// Name of the model that it is for; `None` for every model.
    name: Option<String>,
    /// The model, without the fields that each server declares itself.
    pub model: ModelInfo,
    /// Tokenizer and templates.
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
            // The KV layout of a stock server is unknown; the fingerprint of the vocabulary takes its place.
            kv_fingerprint: fingerprint,
            chat_template_fingerprint: maker.chat_template_fingerprint(),
            chat_template_kwargs: maker.chat_template_kwargs().to_json(),
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
            kv_transfer: None,
            media: None,
        };
        let vocabulary = Arc::new(Vocabulary { maker, template: TemplateUse::Known });
        Ok(Self { name: file.name.clone(), model, vocabulary })
    }

    /// Returns whether the vocabulary is for a model that a server lists.
    pub fn is_for(&self, listed: &StockModel) -> bool {
        self.name.as_ref().is_none_or(|name| listed.names.contains(name))
    }

    /// Returns whether this vocabulary tokenizes the prompts of a model in the fleet.
    pub fn cuts(&self, model: &ModelInfo) -> bool {
        let is_file = [model.fingerprint, model.kv_fingerprint].contains(&self.model.fingerprint);
        // Only a worker's own vocabulary shows which tokens a medium has.
        is_file && model.media.is_none() && model.chat_template_fingerprint == self.model.chat_template_fingerprint
    }
}

fn open(path: &Path) -> Result<PromptMaker, warmpath_prompt::OpenError> {
    PromptMaker::open(path, PromptOptions::default())
}
