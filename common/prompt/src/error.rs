//! What can go wrong between a model file or a request and a prompt.
//!
//! Not here: HTTP status codes. The idea: the variant says whose fault it was.

use std::fmt;
use std::path::PathBuf;

/// Says why a model's vocabulary or chat template cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// llama.cpp refused the file; its log says more.
    #[error("cannot load the vocabulary of {}: {reason}", path.display())]
    Load {
        /// Is the file.
        path: PathBuf,
        /// Says what llama.cpp said.
        reason: String,
    },
    /// The vocabulary would make llama.cpp abort.
    #[error("the vocabulary of {} cannot be used: {reason}", path.display())]
    Vocabulary {
        /// Is the file.
        path: PathBuf,
        /// Says what is missing.
        reason: String,
    },
    /// The chat template, the model's or the one given instead, does not compile or is too long.
    #[error("the chat template of {} cannot be used: {source}", path.display())]
    Template {
        /// Is the file.
        path: PathBuf,
        /// Says where the template is wrong.
        source: Box<PromptError>,
    },
}

/// Says why a request has no prompt.
#[derive(Debug, thiserror::Error)]
pub enum PromptError {
    /// The chat template called `raise_exception`.
    #[error("{message}")]
    Refused {
        /// Is the template's own message, meant for the client.
        message: String,
    },
    /// The chat template cannot render this request.
    #[error("the chat template failed: {reason}")]
    Template {
        /// Says what failed, and in which line of the template.
        reason: String,
    },
    /// The model's own chat template does not compile.
    #[error("this model's chat template cannot be used: {reason}")]
    BadTemplate {
        /// Says where the template is wrong.
        reason: String,
    },
    /// A message has a shape that no template can be given.
    #[error("messages[{index}]: {reason}")]
    Messages {
        /// Is the message's place in the list.
        index: usize,
        /// Says what is wrong with it.
        reason: String,
    },
    /// A tool cannot be offered.
    #[error("tools[{index}]: {reason}")]
    Tool {
        /// Is the tool's place in the list.
        index: usize,
        /// Says what is wrong with it.
        reason: String,
    },
    /// Another field of the request cannot be used.
    #[error("{field}: {reason}")]
    Field {
        /// Names the field.
        field: &'static str,
        /// Says what is wrong with it.
        reason: String,
    },
    /// The prompt has more tokens than it may have.
    #[error(transparent)]
    TooManyTokens(#[from] TooManyTokens),
    /// The rendered prompt, or the template itself, is longer than its limit.
    #[error("{what} is longer than {bytes_max} bytes")]
    TooLong {
        /// Says what is too long.
        what: &'static str,
        /// Is the limit.
        bytes_max: usize,
    },
}

/// Number of a prompt's tokens, as far as it has been counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TokenCount {
    /// All of them.
    Exactly(usize),
    /// These, and perhaps more: it was far too long to be counted to its end.
    AtLeast(usize),
}

impl TokenCount {
    /// Returns the tokens that were counted.
    pub fn number(self) -> usize {
        let (Self::Exactly(n) | Self::AtLeast(n)) = self;
        n
    }
}

impl fmt::Display for TokenCount {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Exactly(n) => write!(f, "{n}"),
            Self::AtLeast(n) => write!(f, "at least {n}"),
        }
    }
}

/// A prompt has more tokens than it may have, and was not tokenized to its end.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the prompt has at least {n_tokens_min} tokens")]
pub struct TooManyTokens {
    /// Number of tokens that it has at least.
    pub n_tokens_min: usize,
}

impl From<TooManyTokens> for TokenCount {
    fn from(TooManyTokens { n_tokens_min }: TooManyTokens) -> Self {
        Self::AtLeast(n_tokens_min)
    }
}

impl PromptError {
    /// Returns whether another request could succeed where this one failed: false where the model is at fault.
    pub fn is_client_fault(&self) -> bool {
        !matches!(self, Self::BadTemplate { .. })
    }
}
