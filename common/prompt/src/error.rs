//! Errors on the way from a model file and a request to a prompt.
//!
//! The variant shows whether the client or the model is at fault.

use std::fmt;
use std::path::PathBuf;

/// Reason why a model's vocabulary or chat template cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// llama.cpp refused the file; its log has details.
    #[error("cannot load the vocabulary of {}: {reason}", path.display())]
    Load {
        /// The file.
        path: PathBuf,
        /// llama.cpp's error.
        reason: String,
    },
    /// The vocabulary would make llama.cpp abort.
    #[error("the vocabulary of {} cannot be used: {reason}", path.display())]
    Vocabulary {
        /// The file.
        path: PathBuf,
        /// Description of the missing part.
        reason: String,
    },
    /// The chat template, the model's or the one that replaces it, does not compile or is too long.
    #[error("the chat template of {} cannot be used: {source}", path.display())]
    Template {
        /// The file.
        path: PathBuf,
        /// Position and reason.
        source: Box<PromptError>,
    },
    /// The default variables of the chat template in the file cannot be used.
    #[error("the default variables of the chat template in {}: {reason}", path.display())]
    TemplateKwargs {
        /// The file.
        path: PathBuf,
        /// Reason.
        reason: String,
    },
    /// Tools cannot be rendered in front of the system text.
    #[error("the chat template of {} cannot render tools first: {reason}", path.display())]
    ToolsFirst {
        /// The file.
        path: PathBuf,
        /// Reason.
        reason: String,
    },
}

/// Reason why a request has no prompt.
#[derive(Debug, thiserror::Error)]
pub enum PromptError {
    /// The chat template called `raise_exception`.
    #[error("{message}")]
    Refused {
        /// The template's own message, meant for the client.
        message: String,
    },
    /// The chat template cannot render this request.
    #[error("the chat template failed: {reason}")]
    Template {
        /// Reason, and the line of the template.
        reason: String,
    },
    /// The model's own chat template does not compile.
    #[error("this model's chat template cannot be used: {reason}")]
    BadTemplate {
        /// Position and reason.
        reason: String,
    },
    /// A message has a form that no template accepts.
    #[error("messages[{index}]: {reason}")]
    Messages {
        /// Index of the message in the list.
        index: usize,
        /// Reason.
        reason: String,
    },
    /// A tool cannot be offered.
    #[error("tools[{index}]: {reason}")]
    Tool {
        /// Index of the tool in the list.
        index: usize,
        /// Reason.
        reason: String,
    },
    /// Another field of the request cannot be used.
    #[error("{field}: {reason}")]
    Field {
        /// Name of the field.
        field: &'static str,
        /// Reason.
        reason: String,
    },
    /// The prompt exceeds the maximum number of tokens.
    #[error(transparent)]
    TooManyTokens(#[from] TooManyTokens),
    /// The rendered prompt, or the template itself, exceeds its limit.
    #[error("{what} is longer than {bytes_max} bytes")]
    TooLong {
        /// Description of the text that is too long.
        what: &'static str,
        /// The limit.
        bytes_max: usize,
    },
}

/// Number of a prompt's tokens, exact or as a lower bound.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TokenCount {
    /// The exact number.
    Exactly(usize),
    /// A lower bound: the prompt was too long to be counted to its end.
    AtLeast(usize),
}

impl TokenCount {
    /// Returns the number that was counted.
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

/// A prompt exceeds the maximum number of tokens, and was not tokenized to its end.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the prompt has at least {n_tokens_min} tokens")]
pub struct TooManyTokens {
    /// Lower bound of its tokens.
    pub n_tokens_min: usize,
}

impl From<TooManyTokens> for TokenCount {
    fn from(TooManyTokens { n_tokens_min }: TooManyTokens) -> Self {
        Self::AtLeast(n_tokens_min)
    }
}
