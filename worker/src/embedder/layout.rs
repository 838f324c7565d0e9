//! What a model's file and the flags make of texts, and how long batches of them are.
//!
//! Not here: contexts of these sizes (`compute`), what memory they take (`footprint`).

use warmpath_common::model::Pooling;

use super::{EmbedConfig, TEXT_TOKENS_DEFAULT_MAX};
use crate::engine::Metadata;

/// What is made of texts, and how long batches are. Units: tokens.
#[derive(Debug, Clone, Copy)]
pub(super) struct Layout {
    pub(super) pooling: Pooling,
    pub(super) text_tokens_max: u32,
    pub(super) batch_tokens: u32,
    pub(super) ubatch_tokens: u32,
}

impl Layout {
    /// Returns the layout of a model; without pooling asked for, that of the file counts, or none, as llama.cpp has it.
    pub(super) fn new(model: &Metadata<'_>, config: &EmbedConfig) -> Self {
        let own = || match model.of_architecture("pooling_type").as_deref() {
            Some("1") => Pooling::Mean,
            Some("2") => Pooling::Cls,
            Some("3") => Pooling::Last,
            Some("4") => Pooling::Rank,
            _ => Pooling::None,
        };
        let pooling = config.pooling.unwrap_or_else(own);
        let trained = match config.engine.rope.extended(model) {
            0 => u32::MAX,
            trained => trained,
        };
        let wanted = match config.engine.context_tokens_total {
            0 => TEXT_TOKENS_DEFAULT_MAX,
            given => given,
        };
        let text_tokens_max = wanted.min(trained);
        // llama.cpp tries a batch of a multiple of the sequences first; with another size, pooling by mean aborts the process.
        let batch_tokens =
            text_tokens_max.max(config.engine.ubatch_tokens).next_multiple_of(u32::from(config.engine.n_slots));
        // Only what looks at the last token can be computed in pieces.
        let is_causal = model.of_architecture("attention.causal").as_deref() != Some("false");
        let may_split = matches!(pooling, Pooling::Last | Pooling::Rank) && is_causal;
        let ubatch_tokens = if may_split { config.engine.ubatch_tokens.min(batch_tokens) } else { batch_tokens };
        Self { pooling, text_tokens_max, batch_tokens, ubatch_tokens }
    }

    /// Returns the longest piece of a text that is computed at once; absent where texts must not be cut.
    pub(super) fn piece_tokens(self) -> Option<u32> {
        (self.ubatch_tokens < self.batch_tokens).then_some(self.ubatch_tokens)
    }

    /// Returns the layout whose batches are computed at once.
    pub(super) fn unsplit(self) -> Self {
        Self { ubatch_tokens: self.batch_tokens, ..self }
    }
}
