//! The flags of speculative decoding.
//!
//! Not here: what is drafted (`warmpath_worker_core::drafting`).

use std::str::FromStr;

use super::flags::Flags;
use crate::engine::SpeculationConfig;
use warmpath_worker_core::drafting::DraftLimits;

/// llama-server's names for drafts from text.
const NGRAM_TYPES: [&str; 5] = ["ngram-simple", "ngram-map-k", "ngram-map-k4v", "ngram-mod", "ngram-cache"];

/// How answers are drafted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SpecType {
    /// They are not.
    None,
    /// From the sequence and from earlier answers, as long as that pays.
    Auto,
}

impl FromStr for SpecType {
    type Err = String;

    /// Reads a list of types, separated by commas, as llama-server has them.
    fn from_str(types: &str) -> Result<Self, String> {
        let mut read = Self::None;
        for name in types.split(',').map(str::trim) {
            match name {
                "none" => {}
                "auto" => read = Self::Auto,
                _ if NGRAM_TYPES.contains(&name) => read = Self::Auto,
                _ if name.starts_with("draft-") => {
                    return Err(format!("there are no draft models, which `{name}` needs; auto drafts from text"));
                }
                _ => return Err(format!("`{name}` is neither none nor auto")),
            }
        }
        Ok(read)
    }
}

/// Returns how answers are drafted; `None` if they are not.
pub(super) fn config(flags: &Flags) -> Option<SpeculationConfig> {
    let limits = DraftLimits { n_max: flags.spec_draft_n_max, n_min: flags.spec_draft_n_min };
    (flags.spec_type == SpecType::Auto).then_some(SpeculationConfig { limits, ..SpeculationConfig::default() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn llama_server_s_types_are_read_and_those_of_draft_models_refused() {
        let check = |types: &str, expected| assert_eq!(types.parse::<SpecType>(), expected, "{types}");
        check("none", Ok(SpecType::None));
        check("auto", Ok(SpecType::Auto));
        check("none,ngram-simple", Ok(SpecType::Auto));
        NGRAM_TYPES.iter().for_each(|name| check(name, Ok(SpecType::Auto)));
        check(
            "ngram-simple,draft-mtp",
            Err("there are no draft models, which `draft-mtp` needs; auto drafts from text".to_owned()),
        );
        check("", Err("`` is neither none nor auto".to_owned()));
    }
}
