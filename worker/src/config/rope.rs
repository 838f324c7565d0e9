//! Flags of rotary position encoding and of the model's metadata, named as in llama-server.
//!
//! Not here: their effect (the engine's `rope` and `metadata`), the fingerprint of the KV layout (`llama::layout`).

use clap::{Args, ValueEnum};

use super::ConfigError;
use crate::engine::{self, KEY_BYTES_MAX, MetadataOverride, MetadataValue, RopeSettings, TEXT_BYTES_MAX};

/// Prefixes of keys that are also read from the model's file without llama.cpp, by this program and by routers.
const READ_ELSEWHERE: [&str; 3] = ["tokenizer.", "general.architecture", "split."];

/// Flags of rotary position encoding and of the model's metadata.
#[derive(Debug, Clone, Args)]
pub struct RopeFlags {
    /// Method of scaling rotary position encoding (RoPE) [default: the model's].
    #[arg(long, env = "WARMPATH_ROPE_SCALING", value_name = "METHOD")]
    pub rope_scaling: Option<RopeScaling>,

    /// Factor by which RoPE scaling extends the context: 1 / --rope-freq-scale.
    #[arg(long, env = "WARMPATH_ROPE_SCALE", value_name = "N", conflicts_with = "rope_freq_scale")]
    pub rope_scale: Option<f32>,

    /// Base frequency of RoPE [default: the model's].
    #[arg(long, env = "WARMPATH_ROPE_FREQ_BASE", value_name = "N", allow_negative_numbers = true)]
    pub rope_freq_base: Option<f32>,

    /// Factor of RoPE's frequencies; 0.5 doubles the context [default: the model's].
    #[arg(long, env = "WARMPATH_ROPE_FREQ_SCALE", value_name = "N", allow_negative_numbers = true)]
    pub rope_freq_scale: Option<f32>,

    /// YaRN: original context, before the extension [default: the model's].
    #[arg(long, env = "WARMPATH_YARN_ORIG_CTX", value_name = "TOKENS")]
    pub yarn_orig_ctx: Option<u32>,

    /// YaRN: share of extrapolation; 0 is only interpolation [default: the model's].
    #[arg(long, env = "WARMPATH_YARN_EXT_FACTOR", value_name = "N", allow_negative_numbers = true)]
    pub yarn_ext_factor: Option<f32>,

    /// YaRN: factor of the attention's magnitude [default: the model's].
    #[arg(long, env = "WARMPATH_YARN_ATTN_FACTOR", value_name = "N", allow_negative_numbers = true)]
    pub yarn_attn_factor: Option<f32>,

    /// YaRN: number of rotations below which a dimension is scaled fully [default: the model's].
    #[arg(long, env = "WARMPATH_YARN_BETA_SLOW", value_name = "N", allow_negative_numbers = true)]
    pub yarn_beta_slow: Option<f32>,

    /// YaRN: number of rotations above which a dimension is not scaled [default: the model's].
    #[arg(long, env = "WARMPATH_YARN_BETA_FAST", value_name = "N", allow_negative_numbers = true)]
    pub yarn_beta_fast: Option<f32>,

    /// Replacement for a value of the model's metadata, of type int, float, bool or str; may be repeated.
    #[arg(long, env = "WARMPATH_OVERRIDE_KV", value_name = "KEY=TYPE:VALUE", value_delimiter = ',')]
    pub override_kv: Vec<String>,
}

/// Method of scaling RoPE, with llama-server's names.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum RopeScaling {
    /// No scaling.
    None,
    /// All frequencies by the same factor.
    Linear,
    /// High frequencies less than low ones.
    Yarn,
}

/// Returns the settings of the flags. As in llama-server, a frequency of 0 and a negative factor mean the model's own
/// value.
///
/// Errors: `Range`, naming the flag.
pub(super) fn settings(flags: &RopeFlags) -> Result<RopeSettings, ConfigError> {
    let refuse = |flag: &'static str, reason: &str| ConfigError::Range { flag: flag.into(), reason: reason.to_owned() };
    let frequency = |flag, value: Option<f32>| match value {
        Some(value) if !(value.is_finite() && value >= 0.0) => Err(refuse(flag, "must be a number of at least 0")),
        value => Ok(value.filter(|value| *value > 0.0)),
    };
    let factor = |flag, value: Option<f32>| match value {
        Some(value) if !value.is_finite() => Err(refuse(flag, "must be a number")),
        value => Ok(value.filter(|value| *value >= 0.0)),
    };
    let inverse = match flags.rope_scale {
        Some(scale) if !(scale.is_normal() && scale > 0.0) => {
            return Err(refuse("rope-scale", "must be a number above 0"));
        }
        scale => scale.map(|scale| 1.0 / scale),
    };
    Ok(RopeSettings {
        scaling: flags.rope_scaling.map(|scaling| match scaling {
            RopeScaling::None => engine::RopeScaling::None,
            RopeScaling::Linear => engine::RopeScaling::Linear,
            RopeScaling::Yarn => engine::RopeScaling::Yarn,
        }),
        freq_base: frequency("rope-freq-base", flags.rope_freq_base)?,
        freq_scale: inverse.or(frequency("rope-freq-scale", flags.rope_freq_scale)?),
        yarn_orig_ctx: flags.yarn_orig_ctx.filter(|tokens| *tokens > 0),
        yarn_ext_factor: factor("yarn-ext-factor", flags.yarn_ext_factor)?,
        yarn_attn_factor: factor("yarn-attn-factor", flags.yarn_attn_factor)?,
        yarn_beta_slow: factor("yarn-beta-slow", flags.yarn_beta_slow)?,
        yarn_beta_fast: factor("yarn-beta-fast", flags.yarn_beta_fast)?,
    })
}

/// Returns the replacements for values of the model's file.
///
/// Errors: `Range` for an invalid text, and for a key with one of the prefixes in `READ_ELSEWHERE`.
pub(super) fn metadata_overrides(flags: &RopeFlags) -> Result<Vec<MetadataOverride>, ConfigError> {
    let refuse = |reason| ConfigError::Range { flag: "override-kv".into(), reason };
    flags.override_kv.iter().map(|text| metadata_override(text).map_err(refuse)).collect()
}

fn metadata_override(text: &str) -> Result<MetadataOverride, String> {
    let form = || format!("must be KEY=TYPE:VALUE with int, float, bool or str, not {text}");
    let (key, typed) = text.split_once('=').ok_or_else(form)?;
    let (kind, value) = typed.split_once(':').ok_or_else(form)?;
    if key.is_empty() || key.len() > KEY_BYTES_MAX || text.contains('\0') {
        return Err(form());
    }
    if READ_ELSEWHERE.iter().any(|beginning| key.starts_with(beginning)) {
        return Err(format!("routers read {key} from the model's file, so it must be changed in the file"));
    }
    let none = || format!("{value} is not of type {kind}");
    let value = match kind {
        "int" => value.parse().map(MetadataValue::Int).map_err(|_| none())?,
        "float" => value.parse().map(MetadataValue::Float).map_err(|_| none())?,
        "bool" => value.parse().map(MetadataValue::Bool).map_err(|_| none())?,
        "str" if value.len() > TEXT_BYTES_MAX => return Err(format!("a text has at most {TEXT_BYTES_MAX} bytes")),
        "str" => MetadataValue::Str(value.to_owned()),
        _ => return Err(form()),
    };
    Ok(MetadataOverride { key: key.to_owned(), value })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::flags::Flags;

    fn of(flags: &str) -> RopeFlags {
        let line = format!("warmpath-worker -m a.gguf {flags}");
        Flags::from_command_line(line.split_whitespace().map(Into::into))
            .expect("the flags parse")
            .run()
            .expect("a run")
            .rope
    }

    #[test]
    fn absent_flags_mean_the_values_of_the_model() {
        let settings = |flags: &str| settings(&of(flags)).expect("the values are right");
        let base = RopeSettings::default();
        assert_eq!(settings(""), base);
        assert_eq!(settings("--rope-freq-base 0 --rope-freq-scale 0 --yarn-ext-factor -1 --yarn-orig-ctx 0"), base);
        assert_eq!(settings("--rope-scale 4").freq_scale, Some(0.25));
        let yarn = settings("--rope-scaling yarn --rope-freq-scale 0.5 --yarn-orig-ctx 4096 --yarn-beta-fast 32");
        assert_eq!((yarn.scaling, yarn.freq_scale), (Some(engine::RopeScaling::Yarn), Some(0.5)));
        assert_eq!((yarn.yarn_orig_ctx, yarn.yarn_beta_fast), (Some(4096), Some(32.0)));
    }

    #[test]
    fn metadata_is_replaced_by_values_of_each_type() {
        let overrides = |flags: &str| metadata_overrides(&of(flags)).expect("the values are right");
        let one = |key: &str, value| MetadataOverride { key: key.to_owned(), value };
        let given =
            overrides("--override-kv a.b=int:-7,c=float:0.5 --override-kv d=bool:true --override-kv e=str:x=y:z");
        assert_eq!(
            given,
            [
                one("a.b", MetadataValue::Int(-7)),
                one("c", MetadataValue::Float(0.5)),
                one("d", MetadataValue::Bool(true)),
                one("e", MetadataValue::Str("x=y:z".to_owned())),
            ]
        );
    }
}
