//! On what footing a stock server stands in the fleet: with whose tokens its prompts are counted.
//!
//! Not here: the tokens themselves. The idea: a request is made into one prompt for all workers that serve its model. So a
//! stock server that serves a name which a Warmpath worker serves too takes that worker's word for what the model is; else
//! a vocabulary that the operator gives counts; and where there is none, the text itself.

use warmpath_common::model::{Capability, ModelInfo};

use super::text;

/// Is what a stock server says of itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Declared {
    /// Lists the names under which it serves its model; at least one.
    pub names: Vec<String>,
    /// Is the number of requests that it runs at a time, as it says or as it is taken to.
    pub n_slots: u16,
    /// Is the longest sequence of one of them, as it says or as it is taken to.
    pub context_tokens: u32,
}

/// Says with whose tokens a stock server's prompts are counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Footing {
    /// With those of a vocabulary: a Warmpath worker's, or one that the operator gives.
    Vocabulary,
    /// With its text.
    Text,
    /// With those of Warmpath workers that serve the same name and count otherwise: nothing is remembered of it.
    Load,
}

impl Footing {
    /// Returns a short name for people.
    pub fn label(self) -> &'static str {
        match self {
            Self::Vocabulary => "vocabulary",
            Self::Text => "text",
            Self::Load => "load",
        }
    }
}

/// Says whether a server's own counts of tokens agree with the vocabulary.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Counts {
    /// They do, or have not been compared yet.
    Agree,
    /// They do not.
    Differ,
}

/// Returns the model that a stock server is taken to serve, and on what footing.
///
/// `served` is the models of Warmpath workers; `given` the vocabulary that the operator gives for it, if that can be used.
pub fn place<'a>(
    declared: &Declared,
    served: impl IntoIterator<Item = &'a ModelInfo>,
    given: Option<&ModelInfo>,
    counts: Counts,
) -> (ModelInfo, Footing) {
    let shares_name = |model: &&ModelInfo| model.names.iter().any(|name| declared.names.contains(name));
    let own = |model: &ModelInfo| ModelInfo {
        names: declared.names.clone(),
        n_slots: declared.n_slots,
        context_tokens: declared.context_tokens,
        capabilities: Capability::ALL.to_vec(),
        embedding: None,
        adapters: Vec::new(),
        adapter_in_force: None,
        ..model.clone()
    };
    let fellow = served.into_iter().find(shares_name);
    match (fellow, given) {
        (Some(model), _) if counts == Counts::Differ => (own(model), Footing::Load),
        (Some(model), _) => (own(model), Footing::Vocabulary),
        (None, Some(model)) => (own(model), Footing::Vocabulary),
        (None, None) => (text::model(declared), Footing::Text),
    }
}

#[cfg(test)]
mod tests {
    use warmpath_common::model::Fingerprint;

    use super::*;
    use crate::testing::model;

    #[test]
    fn a_warmpath_worker_of_the_same_name_counts_first_then_what_is_given_then_the_text() {
        let declared = Declared { names: vec!["m".into(), "n".into()], n_slots: 3, context_tokens: 500 };
        let given = ModelInfo { fingerprint: Fingerprint([9; 32]), ..model() };
        let stranger = ModelInfo { names: vec!["x".into()], ..model() };
        let check = |served: &[ModelInfo], given: Option<&ModelInfo>, counts, expected: (Fingerprint, Footing)| {
            let (model, footing) = place(&declared, served, given, counts);
            assert_eq!((model.fingerprint, footing), expected);
            assert_eq!((model.names, model.n_slots, model.context_tokens), (declared.names.clone(), 3, 500));
        };
        let text = text::model(&declared).fingerprint;
        let served = [stranger.clone(), model()];
        check(&served, Some(&given), Counts::Agree, (model().fingerprint, Footing::Vocabulary));
        check(&served, Some(&given), Counts::Differ, (model().fingerprint, Footing::Load));
        check(&[stranger], Some(&given), Counts::Agree, (given.fingerprint, Footing::Vocabulary));
        check(&[], None, Counts::Agree, (text, Footing::Text));
        check(&[], None, Counts::Differ, (text, Footing::Text));
    }
}
