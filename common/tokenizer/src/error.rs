//! Reasons why a vocabulary is left to llama.cpp.

use warmpath_common::ids::Token;

/// Reason why a vocabulary's texts are not tokenized here.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum UnsupportedVocabulary {
    /// The pre-tokenizer is not known.
    #[error("its pre-tokenizer {pre:?} has no splitter here")]
    PreTokenizer {
        /// Its name.
        pre: String,
    },
    /// The file has no list of merges.
    #[error("it has no merges")]
    NoMerges,
    /// Two tokens have the same text.
    #[error("token {token} has the same text as one before it")]
    Alike {
        /// The second of them.
        token: Token,
    },
}
