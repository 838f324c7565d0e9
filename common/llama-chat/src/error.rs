//! Errors of llama.cpp's chat code.

/// Reason why a template, a format or an answer cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ChatError {
    /// llama.cpp threw an exception.
    #[error("{reason}")]
    Refused {
        /// Text of the exception.
        reason: String,
    },
    /// The output of llama.cpp does not have the expected form: this crate was written for another version of
    /// llama.cpp.
    #[error("llama.cpp's chat code gave an unexpected result: {reason}")]
    Strange {
        /// Description of the difference.
        reason: String,
    },
    /// A text is nested deeper than the limit.
    #[error("it is nested too deeply")]
    TooDeep,
}
