//! Settings of the draft model.
//!
//! Not here: flags (`crate::config::speculation`), its use (`output::draft_model`).

use std::path::PathBuf;

use super::placement::Placement;
use super::{CacheType, EngineConfig, StoreConfig, Switch};

/// Settings that the draft model does not share with the served model.
#[derive(Debug, Clone, PartialEq)]
pub struct DraftModelConfig {
    /// Path of the GGUF file.
    pub path: PathBuf,
    /// Devices of the model, and the way of reading its file.
    pub placement: Placement,
    /// Threads that compute a pass with one token per sequence; 0 means one per processor.
    pub threads: u16,
    /// Threads that compute a pass with more tokens; 0 means the same as `threads`.
    pub threads_batch: u16,
    /// Type of the keys in its KV cache.
    pub cache_type_k: CacheType,
    /// Type of the values in its KV cache.
    pub cache_type_v: CacheType,
}

impl Default for DraftModelConfig {
    fn default() -> Self {
        Self {
            path: PathBuf::new(),
            placement: Placement::default(),
            threads: 0,
            threads_batch: 0,
            cache_type_k: CacheType::F16,
            cache_type_v: CacheType::F16,
        }
    }
}

impl EngineConfig {
    /// Returns the settings for loading a draft model and creating its context. The context has the same number of
    /// slots, each with `slot_tokens` cells or with the draft model's trained context, whichever is smaller.
    pub(crate) fn with_draft_model(&self, draft: &DraftModelConfig, slot_tokens: u32) -> Self {
        let draft = draft.clone();
        Self {
            model: draft.path,
            context_tokens_total: 0,
            slot_tokens_max: slot_tokens,
            fit: None,
            threads: draft.threads,
            threads_batch: draft.threads_batch,
            placement: draft.placement,
            metadata_overrides: Vec::new(),
            batch_tokens: self.ubatch_tokens,
            cache_type_k: draft.cache_type_k,
            cache_type_v: draft.cache_type_v,
            flash_attn: if draft.cache_type_v.is_quantized() { Switch::On } else { self.flash_attn },
            // With separate buffers, slots that do not draft add no time to a pass.
            kv_unified: Switch::Off,
            store: StoreConfig { ram_bytes: 0, ..StoreConfig::default() },
            adapters: Vec::new(),
            speculation: None,
            draft_model: None,
            ..self.clone()
        }
    }
}
