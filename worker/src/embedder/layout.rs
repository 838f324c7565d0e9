//! Form of the output and length of the batches for texts, according to the model's file and the flags.
//!
//! Not here: contexts of these sizes (`compute`), their memory (`footprint`).

use warmpath_common::model::Pooling;

use super::{EmbedConfig, TEXT_TOKENS_DEFAULT_MAX};
use crate::engine::Metadata;

/// Form of the output for a text, and the length of batches. Units: tokens.
#[derive(Debug, Clone, Copy)]
pub(super) struct EmbeddingLayout {
    pub(super) pooling: Pooling,
    pub(super) text_tokens_max: u32,
    pub(super) batch_tokens: u32,
    pub(super) ubatch_tokens: u32,
}

impl EmbeddingLayout {
    /// Returns the layout of a model. The default pooling is the one in the file, or none, like in llama.cpp.
    pub(super) fn new(model: &Metadata<'_>, config: &EmbedConfig) -> Self {
        let of_file = || match model.of_architecture("pooling_type").as_deref() {
            Some("1") => Pooling::Mean,
            Some("2") => Pooling::Cls,
            Some("3") => Pooling::Last,
            Some("4") => Pooling::Rank,
            _ => Pooling::None,
        };
        let pooling = config.pooling.unwrap_or_else(of_file);
        let trained_tokens = match config.engine.rope.extended(model) {
            0 => u32::MAX,
            trained_tokens => trained_tokens,
        };
        let tokens = match config.engine.context_tokens_total {
            0 => TEXT_TOKENS_DEFAULT_MAX,
            given => given,
        };
        let text_tokens_max = tokens.min(trained_tokens);
        // llama.cpp first tries a full batch. Unless its size is a multiple of the number of sequences, mean pooling
        // aborts the process.
        let batch_tokens =
            text_tokens_max.max(config.engine.ubatch_tokens).next_multiple_of(u32::from(config.engine.n_slots));
        // Only pooling of the last token allows pieces.
        let is_causal = model.of_architecture("attention.causal").as_deref() != Some("false");
        let may_split = matches!(pooling, Pooling::Last | Pooling::Rank) && is_causal;
        let ubatch_tokens = if may_split { config.engine.ubatch_tokens.min(batch_tokens) } else { batch_tokens };
        Self { pooling, text_tokens_max, batch_tokens, ubatch_tokens }
    }

    /// Returns the maximum length of a piece of a text; `None` if texts must not be split.
    pub(super) fn piece_tokens(self) -> Option<u32> {
        (self.ubatch_tokens < self.batch_tokens).then_some(self.ubatch_tokens)
    }

    /// Returns the layout without pieces.
    pub(super) fn unsplit(self) -> Self {
        Self { ubatch_tokens: self.batch_tokens, ..self }
    }
}
