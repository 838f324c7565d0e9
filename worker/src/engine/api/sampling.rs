//! The sampler chain of a request, with llama-server's names and letters, and its parameters.
//!
//! Not here: the effect of samplers (llama.cpp and `warmpath_worker_output::infill`).

use schemars::JsonSchema;
use serde::Serialize;
use warmpath_common::ids::Token;

/// A sampler: one step of choosing a token.
///
/// Source: names, letters and other spellings as in `common_sampler_types_from_names` and `_from_chars` of llama.cpp.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum SamplerKind {
    /// Repetition, presence and frequency penalties.
    Penalties,
    /// DRY.
    Dry,
    /// Top-nσ: the tokens with logits near the largest one.
    TopNSigma,
    /// The most likely tokens.
    TopK,
    /// Locally typical sampling.
    #[serde(rename = "typ_p")]
    Typical,
    /// The most likely tokens up to a sum of probabilities.
    TopP,
    /// Tokens with a minimum probability relative to the most likely one.
    MinP,
    /// Exclusion of the top choices.
    Xtc,
    /// Temperature, fixed or dynamic.
    Temperature,
    /// Fill-in-the-middle sampling.
    Infill,
    /// Sampling near a target probability. Not supported: it must be off, by a negative target.
    AdaptiveP,
}

impl SamplerKind {
    /// All samplers, the default ones first in their order.
    ///
    /// Source: `common_params_sampling` of llama.cpp.
    const ALL: [Self; 11] = [
        Self::Penalties,
        Self::Dry,
        Self::TopNSigma,
        Self::TopK,
        Self::Typical,
        Self::TopP,
        Self::MinP,
        Self::Xtc,
        Self::Temperature,
        Self::Infill,
        Self::AdaptiveP,
    ];

    /// Samplers of a request that names none.
    pub const DEFAULT: &[Self] = Self::ALL.split_at(9).0;

    /// Returns the sampler with a name, in upper or lower case, with underscores, hyphens or neither.
    pub fn of_name(name: &str) -> Option<Self> {
        let name = name.to_ascii_lowercase();
        let is_meant = |kind: &Self| {
            let kind_name = kind.name();
            name == kind_name || name == kind_name.replace('_', "-") || name == kind_name.replace('_', "")
        };
        let other = match name.as_str() {
            "nucleus" => Some(Self::TopP),
            "temp" => Some(Self::Temperature),
            "typ" => Some(Self::Typical),
            _ => None,
        };
        other.or_else(|| Self::ALL.into_iter().find(is_meant))
    }

    /// Returns the sampler with a letter.
    pub fn of_letter(letter: char) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.letter() == letter)
    }

    fn name(self) -> &'static str {
        match self {
            Self::Penalties => "penalties",
            Self::Dry => "dry",
            Self::TopNSigma => "top_n_sigma",
            Self::TopK => "top_k",
            Self::Typical => "typ_p",
            Self::TopP => "top_p",
            Self::MinP => "min_p",
            Self::Xtc => "xtc",
            Self::Temperature => "temperature",
            Self::Infill => "infill",
            Self::AdaptiveP => "adaptive_p",
        }
    }

    fn letter(self) -> char {
        match self {
            Self::Penalties => 'e',
            Self::Dry => 'd',
            Self::TopNSigma => 's',
            Self::TopK => 'k',
            Self::Typical => 'y',
            Self::TopP => 'p',
            Self::MinP => 'm',
            Self::Xtc => 'x',
            Self::Temperature => 't',
            Self::Infill => 'i',
            Self::AdaptiveP => 'a',
        }
    }
}

/// Parameters of the sampler chain, with llama-server's names and defaults.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub struct Sampling {
    /// Samplers in their order; a random draw follows. Mirostat is used instead of them.
    pub samplers: Vec<SamplerKind>,
    /// Minimum number of tokens that `typ_p`, `top_p`, `min_p` and `xtc` leave; 0 for no minimum.
    pub min_keep: u32,
    /// Random seed; `None` means a fresh one.
    pub seed: Option<u32>,
    /// Flattens (above 1) or sharpens the distribution; 0 or less chooses the most likely token.
    pub temperature: f32,
    /// Range of the dynamic temperature; 0 turns it off.
    pub dynatemp_range: f32,
    /// Exponent of the dynamic temperature.
    pub dynatemp_exponent: f32,
    /// Keeps the k most likely tokens; 0 or less keeps all.
    pub top_k: i32,
    /// Keeps the most likely tokens whose probabilities add up to p; 1 keeps all.
    pub top_p: f32,
    /// Keeps tokens at least p times as likely as the most likely one; 0 keeps all.
    pub min_p: f32,
    /// Probability mass of locally typical sampling; 1 turns it off.
    pub typical_p: f32,
    /// Drops logits more than n standard deviations below the largest; 0 or less turns it off.
    pub top_n_sigma: f32,
    /// Probability of dropping the top choices by XTC; 0 turns it off.
    pub xtc_probability: f32,
    /// Threshold of XTC.
    pub xtc_threshold: f32,
    /// Number of last tokens that the penalties consider; -1 means the whole context, 0 none.
    pub repeat_last_n: i32,
    /// Penalises repeated tokens by division; 1 turns it off.
    pub repeat_penalty: f32,
    /// Penalises tokens that occurred.
    pub presence_penalty: f32,
    /// Penalises tokens by how often they occurred.
    pub frequency_penalty: f32,
    /// Strength of DRY; 0 turns it off.
    pub dry_multiplier: f32,
    /// Base of DRY.
    pub dry_base: f32,
    /// Length of a repetition that DRY still allows.
    pub dry_allowed_length: i32,
    /// Number of last tokens that DRY considers; -1 means the whole context.
    pub dry_penalty_last_n: i32,
    /// Texts that break a repetition for DRY.
    pub dry_sequence_breakers: Vec<String>,
    /// 0 for no mirostat, 1 or 2 for its version.
    pub mirostat: u8,
    /// Target entropy of mirostat.
    pub mirostat_tau: f32,
    /// Learning rate of mirostat.
    pub mirostat_eta: f32,
    /// Numbers to add to the logits of tokens.
    pub logit_bias: Vec<(Token, f32)>,
    /// GBNF grammar that the response must follow.
    pub grammar: Option<String>,
}

impl Default for Sampling {
    fn default() -> Self {
        Self {
            samplers: SamplerKind::DEFAULT.to_vec(),
            min_keep: 0,
            seed: None,
            temperature: 0.8,
            dynatemp_range: 0.0,
            dynatemp_exponent: 1.0,
            top_k: 40,
            top_p: 0.95,
            min_p: 0.05,
            typical_p: 1.0,
            top_n_sigma: -1.0,
            xtc_probability: 0.0,
            xtc_threshold: 0.1,
            repeat_last_n: 64,
            repeat_penalty: 1.0,
            presence_penalty: 0.0,
            frequency_penalty: 0.0,
            dry_multiplier: 0.0,
            dry_base: 1.75,
            dry_allowed_length: 2,
            dry_penalty_last_n: -1,
            dry_sequence_breakers: ["\n", ":", "\"", "*"].map(str::to_owned).to_vec(),
            mirostat: 0,
            mirostat_tau: 5.0,
            mirostat_eta: 0.1,
            logit_bias: Vec::new(),
            grammar: None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_sampler_is_found_by_all_spellings_of_its_name() {
        for kind in SamplerKind::ALL {
            let name = kind.name();
            for spelled in [name.to_owned(), name.to_uppercase(), name.replace('_', "-"), name.replace('_', "")] {
                assert_eq!(SamplerKind::of_name(&spelled), Some(kind), "{spelled}");
            }
            assert_eq!(SamplerKind::of_letter(kind.letter()), Some(kind));
            assert_eq!(serde_json::to_value(kind).expect("a name"), name);
        }
        assert_eq!(SamplerKind::of_name("Nucleus"), Some(SamplerKind::TopP));
        assert_eq!((SamplerKind::of_name("tfs_z"), SamplerKind::of_letter('K')), (None, None));
    }
}
