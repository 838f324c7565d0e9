//! The flags of an embedding worker, checked.

use warmpath_common::model::Pooling;

use super::flags::Flags;
use super::{ConfigError, EmbeddingConfig, values};
use crate::embedder::vector::Norm;

/// Returns the settings of embeddings; `None` for a worker that generates text.
///
/// Errors: `Range`, naming the flag.
pub(super) fn embedding_config(flags: &Flags) -> Result<Option<EmbeddingConfig>, ConfigError> {
    let range = |flag: &'static str, reason: &str| ConfigError::Range { flag: flag.into(), reason: reason.to_owned() };
    let pooling = flags.pooling.map(pooling);
    if !flags.embeds() {
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

fn pooling(pooling: values::Pooling) -> Pooling {
    match pooling {
        values::Pooling::None => Pooling::None,
        values::Pooling::Mean => Pooling::Mean,
        values::Pooling::Cls => Pooling::Cls,
        values::Pooling::Last => Pooling::Last,
        values::Pooling::Rank => Pooling::Rank,
    }
}
