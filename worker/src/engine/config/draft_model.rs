//! Settings of the draft model.
//!
//! Not here: flags (`crate::config::speculation`), its use (`output::draft_model`).

use std::path::PathBuf;

use super::placement::Placement;
use super::{CacheType, EngineConfig, StoreConfig, Switch};

/// Settings of the draft model, as far as they are its own.
#[derive(Debug, Clone, PartialEq)]
pub struct DraftModelConfig {
    /// Path of the GGUF file.
    pub path: PathBuf,
    /// Devices of the model, and how its file is read.
    pub placement: Placement,
    /// Threads that compute a pass with one token per sequence; 0 means one per processor.
    pub threads: u16,
    /// Threads that compute a pass with more; 0 means the same as `threads`.
    pub threads_batch: u16,
    /// Type of the keys in its KV cache.
    pub cache_type_k: CacheType,
    /// Type of the values in its KV cache.
    pub cache_type_v: CacheType,
    /// Probability below which it drafts no token.
    pub p_min: f32,
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
            p_min: 0.0,
        }
    }
}

impl EngineConfig {
    /// Returns the settings with which a draft model is loaded and gets its context: of as many slots, each with
    /// `slot_tokens` cells, or as many as the draft model was trained for.
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
            // Slots that do not draft cost a pass nothing.
            kv_unified: Switch::Off,
            store: StoreConfig { ram_bytes: 0, ..StoreConfig::default() },
            adapters: Vec::new(),
            speculation: None,
            draft_model: None,
            ..self.clone()
        }
    }
}
