//! What can go wrong in llama.cpp's chat code.

/// Says why a template, a format or an answer cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ChatError {
    /// llama.cpp threw an exception.
    #[error("{reason}")]
    Refused {
        /// Is what the exception says.
        reason: String,
    },
    /// What llama.cpp said is not what this crate expects: the two do not belong together.
    #[error("llama.cpp's chat code answered strangely: {reason}")]
    Strange {
        /// Says what was strange.
        reason: String,
    },
    /// A text nests deeper than is read.
    #[error("it nests too deep")]
    TooDeep,
}
