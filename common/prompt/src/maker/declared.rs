//! Opening a vocabulary that declares what llama.cpp would say of it, in two steps: the tokenizer, which is safe with
//! any file, and the chat templates, which a router first tries in another process.

use std::path::{Path, PathBuf};

use super::{PromptMaker, PromptOptions};
use crate::error::OpenError;
use crate::vocabulary::Vocabulary;

/// A vocabulary that is open without llama.cpp.
#[derive(Debug)]
pub struct DeclaredVocabulary {
    vocabulary: Vocabulary,
    path: PathBuf,
}

impl DeclaredVocabulary {
    /// Opens the vocabulary of the GGUF file at `path`; `None` if the file does not declare what llama.cpp would say of
    /// it.
    ///
    /// Nothing in the file can end or block the process: its templates are not used. Cost: 20-150 ms. Errors: `Load`,
    /// `Vocabulary`, `TemplateKwargs`, as of [`PromptMaker::open`].
    pub fn open(path: &Path) -> Result<Option<Self>, OpenError> {
        let vocabulary = Vocabulary::open_declared(path)?;
        Ok(vocabulary.map(|vocabulary| Self { vocabulary, path: path.to_owned() }))
    }
}

impl PromptMaker {
    /// Makes a maker from a vocabulary that was opened without llama.cpp.
    ///
    /// Its chat templates are compiled and rendered. Errors: `Template` and `ToolsFirst`, as of [`Self::open`].
    pub fn of_declared(vocabulary: DeclaredVocabulary, options: PromptOptions) -> Result<Self, OpenError> {
        let DeclaredVocabulary { vocabulary, path } = vocabulary;
        Self::of(vocabulary, &path, options)
    }

    /// Returns the declaration with which [`DeclaredVocabulary::open`] opens a vocabulary made of the file at `gguf`,
    /// from which this maker was opened; `None` if it needs llama.cpp.
    ///
    /// Cost: that of reading the file's header, and of each token's text.
    pub fn declaration(&self, gguf: &Path) -> Option<String> {
        self.vocabulary.declaration(gguf)
    }
}
