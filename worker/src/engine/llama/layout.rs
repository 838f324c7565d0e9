//! The fingerprint of the KV layout: all settings, besides the model's files, that decide the meaning of the bytes of
//! KV state.
//!
//! Stored state is used only with the same fingerprint. Settings that only change rounding (threads, batches, kernels)
//! are excluded; docs/cache.md has the whole list.
//!
//! Not here: the fingerprint of the model (`warmpath-gguf`), adapters and salts (the root of a chain).

use llama_cpp_2::model::LlamaModel;
use warmpath_common::model::Fingerprint;
use warmpath_gguf::Model;

use crate::engine::config::EngineConfig;
use crate::engine::config::metadata::MetadataOverride;
use crate::engine::config::rope::RopeSettings;

/// Variable that disables llama.cpp's rotation of quantized keys and values.
///
/// Source: llama.cpp's `llama-kv-cache.cpp`.
const ROTATION_OFF: &str = "LLAMA_ATTN_ROT_DISABLE";

/// Suffix of the names of the tensors with a model's rope factors for long contexts.
const LONG_FACTORS: &str = "rope_factors_long.weight";

/// RoPE factors of a model, which may depend on the context, as with LongRoPE.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::engine) enum RopeFactors {
    /// The same factors for every context.
    Alike,
    /// Other factors if a sequence can have more than this many cells.
    ByContext { short_cells_max: u64 },
}

impl RopeFactors {
    /// Returns the factors of a model's files and a configuration.
    pub(in crate::engine) fn of(files: &Model, config: &EngineConfig) -> Self {
        if !files.tensors().any(|tensor| tensor.name.ends_with(LONG_FACTORS)) {
            return Self::Alike;
        }
        let header = files.header();
        let file = |key: &str| match key {
            "general.architecture" => Some(header.architecture().to_owned()),
            number => header.unsigned(number).map(|number| number.to_string()),
        };
        let metadata = config.metadata(&file);
        let number = |key: &str| metadata.number(key);
        // Source: llama.cpp's `get_rope_factors`.
        let short_cells_max = number("rope.scaling.original_context_length").or_else(|| number("context_length"));
        Self::ByContext { short_cells_max: short_cells_max.unwrap_or(0).into() }
    }

    /// Returns the name of the factors for a sequence with this many cells; `None` if there is only one set.
    pub(in crate::engine) fn chosen(self, sequence_cells: u32) -> Option<&'static str> {
        match self {
            Self::Alike => None,
            Self::ByContext { short_cells_max } if u64::from(sequence_cells) > short_cells_max => Some("long"),
            Self::ByContext { .. } => Some("short"),
        }
    }
}

/// Returns the fingerprint of a loaded model's layout under a configuration.
pub(in crate::engine) fn fingerprint(
    model: &LlamaModel,
    config: &EngineConfig,
    rope_factors: Option<&'static str>,
) -> Fingerprint {
    let mut rope: Vec<String> = (0..model.meta_count())
        .filter_map(|idx| model.meta_key_by_index(idx).ok())
        .filter(|key| key.contains(".rope."))
        .map(|key| format!("{key}={}", model.meta_val_str(&key).unwrap_or_default()))
        .collect();
    rope.sort();
    let shape = format!("layers={} heads_kv={} {}", model.n_layer(), model.n_head_kv(), rope.join(" "));
    let is_quantized = config.cache_type_k.is_quantized() || config.cache_type_v.is_quantized();
    let no_rotation = is_quantized && std::env::var(ROTATION_OFF).is_ok_and(|value| value.trim() != "0");
    name(config, &shape, rope_factors, no_rotation.then_some("off"))
}

/// Returns the fingerprint of the settings. Default values are omitted, so that a new setting does not invalidate
/// stored state.
fn name(config: &EngineConfig, shape: &str, rope_factors: Option<&str>, rotation: Option<&str>) -> Fingerprint {
    let (k, v) = (config.cache_type_k, config.cache_type_v);
    let mut layout = format!("k={k:?} v={v:?} flash_attn={} {shape}", config.uses_flash_attn());
    if let Some(factors) = rope_factors {
        layout.push_str(&format!(" rope_factors={factors}"));
    }
    if let Some(rotation) = rotation {
        layout.push_str(&format!(" rotation={rotation}"));
    }
    if config.rope != RopeSettings::default() {
        layout.push_str(&format!(" rope={:?}", config.rope));
    }
    for MetadataOverride { key, value } in &config.metadata_overrides {
        layout.push_str(&format!(" {key}={value:?}"));
    }
    Fingerprint(blake3::derive_key("warmpath 2026 kv layout v1", layout.as_bytes()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::config::metadata::MetadataValue;
    use crate::engine::config::rope::RopeScaling;
    use crate::engine::config::{CacheType, Switch};

    #[test]
    fn every_setting_that_changes_the_bytes_of_state_changes_the_fingerprint() {
        let base = EngineConfig { flash_attn: Switch::Off, ..EngineConfig::default() };
        let of = |config: &EngineConfig| name(config, "layers=2", None, None);
        let rope = |rope: RopeSettings| of(&EngineConfig { rope, ..base.clone() });
        let (one, plain) = (Some(1.5), RopeSettings::default());
        let replaced = |key: &str, value| {
            let metadata_overrides = vec![MetadataOverride { key: key.to_owned(), value }];
            of(&EngineConfig { metadata_overrides, ..base.clone() })
        };
        let names = [
            of(&base),
            of(&EngineConfig { cache_type_k: CacheType::Q8_0, ..base.clone() }),
            of(&EngineConfig { cache_type_v: CacheType::F32, ..base.clone() }),
            of(&EngineConfig { flash_attn: Switch::On, ..base.clone() }),
            name(&base, "layers=2 llama.rope.freq_base=1", None, None),
            name(&base, "layers=2", Some("short"), None),
            name(&base, "layers=2", Some("long"), None),
            name(&base, "layers=2", None, Some("off")),
            rope(RopeSettings { scaling: Some(RopeScaling::None), ..plain }),
            rope(RopeSettings { scaling: Some(RopeScaling::Yarn), ..plain }),
            rope(RopeSettings { freq_base: one, ..plain }),
            rope(RopeSettings { freq_scale: one, ..plain }),
            rope(RopeSettings { yarn_orig_ctx: Some(1), ..plain }),
            rope(RopeSettings { yarn_ext_factor: one, ..plain }),
            rope(RopeSettings { yarn_attn_factor: one, ..plain }),
            rope(RopeSettings { yarn_beta_slow: one, ..plain }),
            rope(RopeSettings { yarn_beta_fast: one, ..plain }),
            replaced("llama.expert_used_count", MetadataValue::Int(1)),
            replaced("llama.expert_used_count", MetadataValue::Int(2)),
            replaced("llama.attention.scale", MetadataValue::Int(1)),
        ];
        for (idx, name) in names.iter().enumerate() {
            assert!(!names[..idx].contains(name), "{idx}");
        }
        let rounding = EngineConfig { threads: 7, ubatch_tokens: 32, n_slots: 2, ..base.clone() };
        assert_eq!(of(&rounding), of(&base), "settings that only change rounding are excluded");
    }

    #[test]
    fn long_factors_are_chosen_beyond_the_original_context() {
        assert_eq!(RopeFactors::Alike.chosen(u32::MAX), None);
        let factors = RopeFactors::ByContext { short_cells_max: 4096 };
        assert_eq!((factors.chosen(4096), factors.chosen(4097)), (Some("short"), Some("long")));
    }
}
