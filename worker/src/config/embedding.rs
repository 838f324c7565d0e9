//! The flags of an embedding worker, checked.

use warmpath_common::model::Pooling;

use super::flags::{self, Flags};
use super::{ConfigError, EmbeddingConfig};
use crate::embedder::vector::Norm;

/// Returns whether the worker embeds texts instead of generating.
pub(super) fn is_asked_for(flags: &Flags) -> bool {
    flags.embedding || flags.rerank
}

/// Returns the settings of embeddings; `None` for a worker that generates text.
///
/// Errors: `Range`, naming the flag.
pub(super) fn embedding_config(flags: &Flags) -> Result<Option<EmbeddingConfig>, ConfigError> {
    let range = |flag: &'static str, reason: &str| ConfigError::Range { flag: flag.into(), reason: reason.to_owned() };
    let pooling = flags.pooling.map(pooling);
    if !is_asked_for(flags) {
        return if pooling.is_none() { Ok(None) } else { Err(range("pooling", "needs --embedding")) };
    }
    if !flags.lora.is_empty() || !flags.lora_scaled.is_empty() {
        return Err(range("lora", "cannot be combined with --embedding"));
    }
    if flags.rerank && pooling.is_some_and(|pooling| pooling != Pooling::Rank) {
        return Err(range("pooling", "must be rank with --rerank"));
    }
    let norm = Norm::of_number(flags.embd_normalize);
    let norm = norm.ok_or_else(|| range("embd-normalize", "must be -1, 0 or the p of a p-norm"))?;
    Ok(Some(EmbeddingConfig { pooling: if flags.rerank { Some(Pooling::Rank) } else { pooling }, norm }))
}

fn pooling(pooling: flags::Pooling) -> Pooling {
    match pooling {
        flags::Pooling::None => Pooling::None,
        flags::Pooling::Mean => Pooling::Mean,
        flags::Pooling::Cls => Pooling::Cls,
        flags::Pooling::Last => Pooling::Last,
        flags::Pooling::Rank => Pooling::Rank,
    }
}
