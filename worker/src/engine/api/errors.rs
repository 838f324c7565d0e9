//! Reasons why a submission is refused or cannot be completed.
//!
//! Not here: errors of the start (`config`), of the admin API (`cache`).

use warmpath_common::ids::Token;
use warmpath_common::model::MemoryKind;

/// Reason why no slot can run a prompt.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum PromptFault {
    /// The prompt is empty.
    #[error("it has no tokens")]
    Empty,
    /// The prompt leaves no room for a response.
    #[error("it has {n_tokens} tokens, a slot has room for {context_tokens}")]
    TooLong {
        /// Length of the prompt.
        n_tokens: usize,
        /// Context of one slot.
        context_tokens: u32,
    },
    /// The vocabulary lacks a token.
    #[error("token {token} is not in the vocabulary of {n_vocab}")]
    UnknownToken {
        /// The token.
        token: Token,
        /// Number of tokens of the vocabulary.
        n_vocab: u32,
    },
}

/// Reason why the engine could not accept or complete a submission.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum EngineError {
    /// Every place in the queue is taken.
    #[error("the worker's queue is full ({queue_max} requests wait)")]
    QueueFull {
        /// Number of places.
        queue_max: usize,
    },
    /// The worker is shutting down.
    #[error("the worker is shutting down")]
    Draining,
    /// No slot can run the prompt.
    #[error("the prompt cannot be run: {0}")]
    InvalidPrompt(PromptFault),
    /// The sampler cannot be built, for example for a grammar that does not parse, or no token may be chosen.
    #[error("the sampler refuses: {reason}")]
    Sampler {
        /// Reason, for the client.
        reason: String,
    },
    /// The request needs a shift that is not possible.
    #[error(transparent)]
    Shift(ShiftObstacle),
    /// llama.cpp failed to decode a batch, and the sequence's state was lost.
    #[error("the model failed to decode: {reason}")]
    Decode {
        /// llama.cpp's error.
        reason: String,
    },
    /// The prompt, or the response to it, gave logits that only wrong state gives.
    #[error("the model gives no finite logits for this prompt")]
    NotFinite,
    /// A medium of the prompt could not be encoded; contains the reason.
    #[error("an image or audio file could not be encoded: {0}")]
    Encode(String),
    /// The engine thread has ended.
    #[error("the engine has stopped")]
    Stopped,
}

/// Reason why a model's state cannot be moved to other positions.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum ShiftObstacle {
    /// The model does not have full attention.
    #[error("only a model with full attention can be shifted, and this one has {}", memory_words(*memory))]
    Memory {
        /// Kind of the model's memory.
        memory: MemoryKind,
    },
    /// llama.cpp cannot change positions in this model's state.
    #[error("llama.cpp cannot shift the positions of this model")]
    Positions,
    /// Shifting would round the keys of all slots again.
    #[error("keys can be shifted only with the cache types f32 and f16")]
    Keys,
    /// Shifting could cut a run of media tokens.
    #[error("a model that reads images or audio cannot be shifted")]
    Media,
    /// Shifting would scale the keys of all slots again.
    #[error("keys with scaled rotation, such as YaRN's, cannot be shifted")]
    Scaling,
}

fn memory_words(memory: MemoryKind) -> &'static str {
    match memory {
        MemoryKind::Full => "full attention",
        MemoryKind::Sliding => "a sliding window",
        MemoryKind::Recurrent => "recurrent state",
        MemoryKind::Hybrid => "attention and recurrent state",
    }
}
