//! Names by which clients ask for a model: its own names, patterns with `*`, and either of them followed by an adapter.
//!
//! Router and worker call the same function, so a worker accepts the name by which a request was routed to it. A name
//! without `*` takes precedence over a pattern, and a long pattern over a short one.

use crate::lora::{AdapterInfo, SEPARATOR};
use crate::model::ModelInfo;

/// Character of a pattern that stands for any text, including an empty one.
const ANY: char = '*';

/// Meaning of a client's name for a model.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NameMatch<'a> {
    /// Name or pattern of the model that matches.
    pub model_name: &'a str,
    /// Index of the adapter whose name follows.
    pub adapter: Option<u16>,
}

impl NameMatch<'_> {
    /// Returns the rank of the match: a name without `*` ranks first, then the pattern with the most characters other
    /// than `*`.
    pub fn rank(&self) -> usize {
        if is_pattern(self.model_name) { self.model_name.len() } else { usize::MAX }
    }
}

/// Returns whether a model's name is a pattern, which lists of models leave out.
pub fn is_pattern(name: &str) -> bool {
    name.contains(ANY)
}

/// Returns whether a pattern, or a name without `*`, stands for `name`.
///
/// Cost: linear in the length of `name` for each piece of the pattern.
pub fn matches(pattern: &str, name: &str) -> bool {
    let Some((start, rest)) = pattern.split_once(ANY) else { return pattern == name };
    let Some(mut name) = name.strip_prefix(start) else { return false };
    let (middle, end) = rest.rsplit_once(ANY).unwrap_or(("", rest));
    for piece in middle.split(ANY) {
        // The first occurrence leaves the most text for the pieces behind it.
        let Some(place) = name.find(piece) else { return false };
        name = &name[place + piece.len()..];
    }
    name.ends_with(end)
}

impl ModelInfo {
    /// Returns the meaning of `name`; `None` if it is not a name of the model.
    pub fn meant(&self, name: &str) -> Option<NameMatch<'_>> {
        let written_out = || {
            self.names
                .iter()
                .find(|model_name| *model_name == name)
                .map(|model_name| NameMatch { model_name, adapter: None })
        };
        let with_adapter = || {
            let candidates = (0..).zip(&self.adapters).filter_map(|(idx, adapter)| {
                let model_name = self.best(before_adapter(name, adapter)?)?;
                Some(NameMatch { model_name, adapter: Some(idx) })
            });
            first_best(candidates)
        };
        let by_pattern = || self.best(name).map(|model_name| NameMatch { model_name, adapter: None });
        written_out().or_else(with_adapter).or_else(by_pattern)
    }

    /// Returns the index of the adapter in `name`, after one of the model's names.
    pub fn adapter_named(&self, name: &str) -> Option<u16> {
        self.meant(name)?.adapter
    }

    /// Returns whether a client may ask for the model, or for an adapter of it, by this name.
    pub fn answers_to(&self, name: &str) -> bool {
        self.meant(name).is_some()
    }

    /// Returns the model's own name or pattern that matches `name` best.
    fn best(&self, name: &str) -> Option<&str> {
        let met = self
            .names
            .iter()
            .filter(|model_name| matches(model_name, name))
            .map(|model_name| NameMatch { model_name, adapter: None });
        first_best(met).map(|meant| meant.model_name)
    }
}

/// Returns the text before the name of an adapter.
fn before_adapter<'n>(name: &'n str, adapter: &AdapterInfo) -> Option<&'n str> {
    name.strip_suffix(adapter.name.as_str())?.strip_suffix(SEPARATOR)
}

/// Returns the best match, the first one of several.
fn first_best<'a>(all: impl Iterator<Item = NameMatch<'a>>) -> Option<NameMatch<'a>> {
    all.reduce(|best, next| if next.rank() > best.rank() { next } else { best })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::lora::Scale;
    use crate::model::Fingerprint;

    fn model(names: &[&str]) -> ModelInfo {
        let adapter =
            |name: &str| AdapterInfo { name: name.to_owned(), fingerprint: Fingerprint([1; 32]), scale: Scale::ONE };
        ModelInfo {
            names: names.iter().map(|name| (*name).to_owned()).collect(),
            adapters: vec![adapter("poet"), adapter("clerk")],
            ..ModelInfo::text(Fingerprint([1; 32]), 32, 8192, 4, 1000)
        }
    }

    #[test]
    fn a_name_means_the_model_or_one_of_its_adapters() {
        let model = model(&["base", "org/base:7b"]);
        let check = |name: &str, expected: Option<(&str, Option<u16>)>| {
            assert_eq!(model.meant(name).map(|meant| (meant.model_name, meant.adapter)), expected, "{name}");
        };
        check("base", Some(("base", None)));
        check("org/base:7b", Some(("org/base:7b", None)));
        check("base:poet", Some(("base", Some(0))));
        check("org/base:7b:clerk", Some(("org/base:7b", Some(1))));
        for name in ["base:", ":poet", "poet", "base:other", "other:poet", "basepoet", "base:7b:poet", "*"] {
            check(name, None);
        }
    }

    #[test]
    fn patterns_stand_for_names_and_the_most_specific_one_counts() {
        let model = model(&["qwen", "claude-*", "claude-*-haiku-*", "gpt-4*mini"]);
        let check = |name: &str, expected: Option<(&str, Option<u16>)>| {
            assert_eq!(model.meant(name).map(|meant| (meant.model_name, meant.adapter)), expected, "{name}");
        };
        check("claude-sonnet-4-5", Some(("claude-*", None)));
        check("claude-3-5-haiku-20241022", Some(("claude-*-haiku-*", None)));
        check("claude-", Some(("claude-*", None)));
        check("claude-opus:poet", Some(("claude-*", Some(0))));
        check("claude-opus:other", Some(("claude-*", None)));
        check("qwen:clerk", Some(("qwen", Some(1))));
        check("gpt-4o-mini", Some(("gpt-4*mini", None)));
        check("gpt-4mini", Some(("gpt-4*mini", None)));
        for name in ["claude", "a claude-x", "gpt-4mi", "gpt-4o-minis", ""] {
            check(name, None);
        }
    }

    #[test]
    fn a_pattern_of_one_star_matches_every_name() {
        let model = model(&["qwen", "*"]);
        for (name, model_name) in [("gpt-4o", "*"), ("qwen", "qwen"), ("", "*"), ("a/b:c", "*")] {
            assert_eq!(model.meant(name).map(|meant| meant.model_name), Some(model_name), "{name}");
        }
    }

    /// A straightforward matcher of patterns.
    fn matches_naively(pattern: &[char], name: &[char]) -> bool {
        match pattern.split_first() {
            None => name.is_empty(),
            Some((&ANY, rest)) => (0..=name.len()).any(|n| matches_naively(rest, &name[n..])),
            Some((first, rest)) => {
                name.split_first().is_some_and(|(c, name)| c == first && matches_naively(rest, name))
            }
        }
    }

    proptest! {
        #[test]
        fn matches_like_a_naive_matcher(pattern in "[ab*]{0,8}", name in "[ab]{0,10}") {
            let (p, n): (Vec<char>, Vec<char>) = (pattern.chars().collect(), name.chars().collect());
            prop_assert_eq!(matches(&pattern, &name), matches_naively(&p, &n));
        }
    }
}
