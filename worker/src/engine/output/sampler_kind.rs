//! The samplers that a request may list, by llama-server's names and letters.
//!
//! Not here: their effect (llama.cpp and `warmpath_worker_output::infill`), their parameters (`Sampling`).

use schemars::JsonSchema;
use serde::Serialize;

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
            let own = kind.name();
            name == own || name == own.replace('_', "-") || name == own.replace('_', "")
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
