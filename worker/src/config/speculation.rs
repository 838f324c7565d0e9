//! The flags of speculative decoding, named as in llama-server.
//!
//! Not here: drafting (`warmpath_worker_core::drafting`).

use std::path::PathBuf;
use std::str::FromStr;

use clap::Args;

use super::values::CacheType;
use super::{ConfigError, cache_type, placement};
use crate::engine::{DraftModelConfig, GpuLayers, HeadUse, Placement, SpeculationConfig};
use warmpath_worker_core::drafting::DraftLimits;

/// llama-server's names for drafts from text.
const NGRAM_TYPES: [&str; 5] = ["ngram-simple", "ngram-map-k", "ngram-map-k4v", "ngram-mod", "ngram-cache"];

/// Flags of speculative decoding.
#[derive(Debug, Clone, Args)]
pub struct SpeculationFlags {
    /// Speculative decoding, which computes several drafted tokens in one step. none turns it off. auto drafts from the
    /// sequence, from earlier responses, and with the draft model or else the model's own draft heads, if there are
    /// any, and stops when drafts do not pay. draft-simple is auto with a draft model, draft-mtp auto with draft heads;
    /// llama-server's n-gram types are auto without either. The default is auto with a draft model, otherwise none.
    #[arg(long, env = "WARMPATH_SPEC_TYPE", value_name = "TYPES")]
    pub spec_type: Option<SpecType>,

    /// Maximum length of a draft.
    #[arg(long, env = "WARMPATH_SPEC_DRAFT_N_MAX", value_name = "N", default_value_t = 31)]
    pub spec_draft_n_max: usize,

    /// Minimum length of a draft; shorter drafts are not computed.
    #[arg(long, env = "WARMPATH_SPEC_DRAFT_N_MIN", value_name = "N", default_value_t = 0)]
    pub spec_draft_n_min: usize,

    /// GGUF file of a draft model (-md): a much smaller model with the same vocabulary.
    #[arg(long, visible_alias = "model-draft", env = "WARMPATH_SPEC_DRAFT_MODEL", value_name = "FILE")]
    #[arg(conflicts_with_all = ["embedding", "rerank"])]
    pub spec_draft_model: Option<PathBuf>,

    /// Minimum probability of a token that the draft model or the draft heads draft.
    #[arg(long, visible_alias = "draft-p-min", env = "WARMPATH_SPEC_DRAFT_P_MIN", value_name = "P")]
    #[arg(default_value_t = 0.0)]
    pub spec_draft_p_min: f32,

    /// Layers of the draft model in GPU memory (-ngld), like --n-gpu-layers.
    #[arg(long, visible_aliases = ["gpu-layers-draft", "n-gpu-layers-draft"], env = "WARMPATH_SPEC_DRAFT_NGL")]
    #[arg(value_name = "N", default_value = "auto", allow_negative_numbers = true)]
    pub spec_draft_ngl: GpuLayers,

    /// Devices that layers of the draft model may be offloaded to (-devd), or none [default: every GPU].
    #[arg(long, visible_alias = "device-draft", env = "WARMPATH_SPEC_DRAFT_DEVICE", value_name = "NAME")]
    #[arg(value_delimiter = ',')]
    pub spec_draft_device: Vec<String>,

    /// Threads of the draft model (-td). The default is --threads.
    #[arg(long, visible_alias = "threads-draft", env = "WARMPATH_SPEC_DRAFT_THREADS", value_name = "N")]
    pub spec_draft_threads: Option<u16>,

    /// Threads of the draft model for processing prompts (-tbd). The default is --spec-draft-threads, or else
    /// --threads-batch.
    #[arg(long, visible_alias = "threads-batch-draft", env = "WARMPATH_SPEC_DRAFT_THREADS_BATCH", value_name = "N")]
    pub spec_draft_threads_batch: Option<u16>,

    /// Type of the keys in the draft model's KV cache (-ctkd).
    #[arg(long, visible_alias = "cache-type-k-draft", env = "WARMPATH_SPEC_DRAFT_TYPE_K", value_name = "TYPE")]
    #[arg(default_value = "f16")]
    pub spec_draft_type_k: CacheType,

    /// Type of the values in the draft model's KV cache (-ctvd).
    #[arg(long, visible_alias = "cache-type-v-draft", env = "WARMPATH_SPEC_DRAFT_TYPE_V", value_name = "TYPE")]
    #[arg(default_value = "f16")]
    pub spec_draft_type_v: CacheType,
}

/// Sources of drafts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum SpecType {
    /// No drafts.
    None,
    /// The sequence and earlier responses.
    Text,
    /// The same, and the draft model or the draft heads if there are any.
    Auto,
    /// The same, and the draft model, which must be configured.
    Model,
    /// The same, and the draft heads, which the model must have.
    Heads,
}

impl FromStr for SpecType {
    type Err = String;

    /// Parses a list of llama-server's types, separated by commas.
    fn from_str(types: &str) -> Result<Self, String> {
        let mut types_read = Self::None;
        for name in types.split(',').map(str::trim) {
            let named_type = match name {
                "none" => Self::None,
                "auto" => Self::Auto,
                "draft-simple" => Self::Model,
                "draft-mtp" => Self::Heads,
                _ if NGRAM_TYPES.contains(&name) => Self::Text,
                _ if name.starts_with("draft-") => {
                    return Err(format!(
                        "`{name}` is not supported; the types with a draft are draft-simple and draft-mtp"
                    ));
                }
                _ => {
                    return Err(format!(
                        "`{name}` is unknown; the types are none, auto, draft-simple, draft-mtp and the n-gram types"
                    ));
                }
            };
            types_read = types_read.max(named_type);
        }
        Ok(types_read)
    }
}

impl SpeculationFlags {
    fn settled_type(&self) -> SpecType {
        let by_model = if self.spec_draft_model.is_some() { SpecType::Auto } else { SpecType::None };
        self.spec_type.unwrap_or(by_model)
    }
}

/// Returns the settings of speculative decoding; `None` if it is off.
///
/// Errors: `Range` for a missing draft model, and for a number that is not a probability.
pub(super) fn config(flags: &SpeculationFlags) -> Result<Option<SpeculationConfig>, ConfigError> {
    if flags.settled_type() == SpecType::Model && flags.spec_draft_model.is_none() {
        let reason = "draft-simple needs a draft model: --spec-draft-model FILE".to_owned();
        return Err(ConfigError::Range { flag: "spec-type".into(), reason });
    }
    if flags.settled_type() == SpecType::Heads && flags.spec_draft_model.is_some() {
        let reason = "draft-mtp drafts with the model's own heads, not with a draft model".to_owned();
        return Err(ConfigError::Range { flag: "spec-type".into(), reason });
    }
    if !(0.0..=1.0).contains(&flags.spec_draft_p_min) {
        let reason = "must be a probability, from 0 to 1".to_owned();
        return Err(ConfigError::Range { flag: "spec-draft-p-min".into(), reason });
    }
    let limits = DraftLimits { n_max: flags.spec_draft_n_max, n_min: flags.spec_draft_n_min };
    let heads = match flags.settled_type() {
        SpecType::None | SpecType::Text | SpecType::Model => HeadUse::Off,
        SpecType::Auto => HeadUse::IfPresent,
        SpecType::Heads => HeadUse::Required,
    };
    let p_min = flags.spec_draft_p_min;
    let config = SpeculationConfig { limits, heads, p_min, ..SpeculationConfig::default() };
    Ok((flags.settled_type() > SpecType::None).then_some(config))
}

/// Returns the settings of the draft model; `None` if it is not used. The default numbers of threads are those of the
/// served model.
pub(super) fn draft_model(
    flags: &SpeculationFlags,
    threads: u16,
    threads_batch: Option<u16>,
) -> Option<DraftModelConfig> {
    let is_used = matches!(flags.settled_type(), SpecType::Auto | SpecType::Model);
    let path = flags.spec_draft_model.clone().filter(|_| is_used)?;
    let own_threads = flags.spec_draft_threads.unwrap_or(threads);
    let own_batch = flags.spec_draft_threads_batch.or(flags.spec_draft_threads).or(threads_batch);
    Some(DraftModelConfig {
        path,
        placement: Placement {
            n_gpu_layers: flags.spec_draft_ngl,
            devices: placement::devices(&flags.spec_draft_device),
            ..Placement::default()
        },
        threads: own_threads,
        threads_batch: own_batch.unwrap_or(own_threads),
        cache_type_k: cache_type(flags.spec_draft_type_k),
        cache_type_v: cache_type(flags.spec_draft_type_v),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::flags::Flags;
    use crate::engine::CacheType;

    fn flags(line: &str) -> SpeculationFlags {
        let line = format!("warmpath-worker -m a.gguf {line}");
        let flags = Flags::from_command_line(line.split_whitespace().map(Into::into));
        flags.expect("the flags parse").run().expect("a run").speculation
    }

    #[test]
    fn accepts_the_supported_types_of_llama_server_and_refuses_others() {
        let check = |types: &str, expected| assert_eq!(types.parse::<SpecType>(), expected, "{types}");
        check("none", Ok(SpecType::None));
        check("auto", Ok(SpecType::Auto));
        check("none,ngram-simple", Ok(SpecType::Text));
        check("draft-simple, ngram-mod", Ok(SpecType::Model));
        NGRAM_TYPES.iter().for_each(|name| check(name, Ok(SpecType::Text)));
        check("ngram-simple,draft-mtp", Ok(SpecType::Heads));
        let eagle = "`draft-eagle3` is not supported; the types with a draft are draft-simple and draft-mtp";
        check("draft-eagle3", Err(eagle.to_owned()));
        let unknown = "`` is unknown; the types are none, auto, draft-simple, draft-mtp and the n-gram types";
        check("", Err(unknown.to_owned()));
    }

    #[test]
    fn the_type_decides_whether_the_draft_model_is_used() {
        let used = |line: &str| {
            let flags = flags(line);
            (config(&flags).map(|config| config.is_some()).ok(), draft_model(&flags, 2, None).is_some())
        };
        assert_eq!(used(""), (Some(false), false));
        assert_eq!(used("--spec-type auto"), (Some(true), false));
        assert_eq!(used("-md d.gguf"), (Some(true), true));
        assert_eq!(used("--model-draft d.gguf --spec-type draft-simple"), (Some(true), true));
        assert_eq!(used("--spec-draft-model d.gguf --spec-type ngram-mod"), (Some(true), false));
        assert_eq!(used("-md d.gguf --spec-type none"), (Some(false), false));
        assert_eq!(used("--spec-type draft-simple").0, None, "the model is missing");
        assert_eq!(used("-md d.gguf --draft-p-min 1.5").0, None);
        assert_eq!(used("-md d.gguf --spec-type draft-mtp").0, None, "there are two kinds of drafts");
    }

    #[test]
    fn the_type_decides_whether_draft_heads_are_used() {
        let heads = |line: &str| config(&flags(line)).expect("a configuration").map(|config| config.heads);
        assert_eq!(heads("--spec-type auto"), Some(HeadUse::IfPresent));
        assert_eq!(heads("--spec-type draft-mtp,ngram-mod"), Some(HeadUse::Required));
        assert_eq!(heads("--spec-type ngram-mod"), Some(HeadUse::Off));
        let p_min = config(&flags("--spec-type draft-mtp --spec-draft-p-min 0.5")).expect("a configuration");
        assert_eq!(p_min.map(|config| config.p_min), Some(0.5));
    }

    #[test]
    fn the_draft_model_has_its_own_settings() {
        let settings = |line: &str| draft_model(&flags(&format!("-md d.gguf {line}")), 3, Some(5)).expect("a model");
        let plain = settings("");
        assert_eq!(
            plain,
            DraftModelConfig { path: "d.gguf".into(), threads: 3, threads_batch: 5, ..Default::default() }
        );
        let own = settings("-ngld 7 -devd none -td 2 -ctkd q8_0 -ctvd f32");
        assert_eq!(own.placement.n_gpu_layers, GpuLayers::Count(7));
        assert_eq!((own.placement.devices, own.threads, own.threads_batch), (Some(Vec::new()), 2, 2));
        assert_eq!((own.cache_type_k, own.cache_type_v), (CacheType::Q8_0, CacheType::F32));
        assert_eq!(settings("-td 2 -tbd 4").threads_batch, 4);
    }
}
