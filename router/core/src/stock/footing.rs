//! On what footing a stock server stands in the fleet: with whose tokens its prompts are counted.
//!
//! Not here: the tokens themselves. The idea: a request is made into one prompt for all workers that serve its model. So a
//! stock server that serves a name which a Warmpath worker serves too takes that worker's word for what the model is; else
//! a vocabulary that the operator gives counts; and where there is none, the text itself.

use warmpath_common::block_hash::ChainRoot;
use warmpath_common::model::{Capability, Fingerprint, ModelInfo};

use super::{Residence, text};

/// Is what a stock server says of itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Declared {
    /// Models that it serves; none where it says that it serves nothing at the moment.
    pub models: Vec<Listed>,
    /// Is the number of requests that it runs at a time, as it says or as it is taken to.
    pub n_slots: u16,
    /// Models beyond the limit, which it lists as well.
    pub n_left_out: usize,
}

/// One model of a stock server, as the server lists it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Listed {
    /// Names of the model; at least one.
    pub names: Vec<String>,
    /// Longest sequence, as the server says or as it is taken to. Units: tokens.
    pub context_tokens: u32,
    /// What tells it from another model under the same name, as far as the server says.
    pub identity: String,
    /// Whether the server has it in memory.
    pub residence: Residence,
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

/// A model that is in the fleet already, under one of the names of a stock server's.
#[derive(Debug, Clone, Copy)]
pub struct Fellow<'a> {
    /// Model, as its worker declares it or is taken to.
    pub model: &'a ModelInfo,
    /// By whose tokens its prompts are cut.
    pub footing: Footing,
}

/// Returns the model that a stock server is taken to serve as its `nth`, and on what footing.
///
/// `fellows` is the models of Warmpath workers, and those of stock servers that have been placed: of one name all prompts are cut
/// alike. `given` is the vocabulary that the operator gives for the model, if that can be used.
pub fn place<'a>(
    (declared, nth): (&Declared, usize),
    fellows: impl IntoIterator<Item = Fellow<'a>>,
    given: Option<&ModelInfo>,
    counts: Counts,
) -> (ModelInfo, Footing) {
    let listed = &declared.models[nth];
    let shares_name = |fellow: &Fellow<'_>| fellow.model.names.iter().any(|name| listed.names.contains(name));
    let own = |model: &ModelInfo| ModelInfo {
        names: listed.names.clone(),
        n_slots: declared.n_slots,
        context_tokens: listed.context_tokens,
        capabilities: Capability::ALL.to_vec(),
        embedding: None,
        adapters: Vec::new(),
        adapter_in_force: None,
        ..model.clone()
    };
    match (fellows.into_iter().find(shares_name), given) {
        (Some(Fellow { model, footing: Footing::Vocabulary }), _) if counts == Counts::Differ => {
            (own(model), Footing::Load)
        }
        (Some(Fellow { model, footing }), _) => (own(model), footing),
        (None, Some(model)) if nth == 0 => (own(model), Footing::Vocabulary),
        (None, Some(model)) => {
            // Models of one server share no state, also where one vocabulary is given for all of them.
            let fingerprint = beside(model, &listed.names[0]);
            (ModelInfo { fingerprint, ..own(model) }, Footing::Vocabulary)
        }
        (None, None) => (text::model(listed, declared.n_slots), Footing::Text),
    }
}

/// Returns the fingerprint of a further model that a server has beside the one of a vocabulary that is given.
fn beside(model: &ModelInfo, name: &str) -> Fingerprint {
    let root = ChainRoot { model_fingerprint: &model.fingerprint.0, lora: name.as_bytes(), cache_salt: &[] };
    Fingerprint(root.hash().0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::model;

    fn listed(names: &[&str]) -> Listed {
        let names = names.iter().map(|&name| name.to_owned()).collect();
        Listed { names, context_tokens: 500, identity: String::new(), residence: Residence::Loaded }
    }

    #[test]
    fn a_warmpath_worker_of_the_same_name_counts_first_then_what_is_given_then_the_text() {
        let declared = Declared { models: vec![listed(&["m", "n"])], n_slots: 3, n_left_out: 0 };
        let given = ModelInfo { fingerprint: Fingerprint([9; 32]), ..model() };
        let stranger = ModelInfo { names: vec!["x".into()], ..model() };
        let check = |served: &[ModelInfo], given: Option<&ModelInfo>, counts, expected: (Fingerprint, Footing)| {
            let fellows = served.iter().map(|model| Fellow { model, footing: Footing::Vocabulary });
            let (model, footing) = place((&declared, 0), fellows, given, counts);
            assert_eq!((model.fingerprint, footing), expected);
            assert_eq!((model.names, model.n_slots, model.context_tokens), (vec!["m".into(), "n".into()], 3, 500));
        };
        let text = text::model(&declared.models[0], 3).fingerprint;
        let served = [stranger.clone(), model()];
        check(&served, Some(&given), Counts::Agree, (model().fingerprint, Footing::Vocabulary));
        check(&served, Some(&given), Counts::Differ, (model().fingerprint, Footing::Load));
        check(&[stranger], Some(&given), Counts::Agree, (given.fingerprint, Footing::Vocabulary));
        check(&[], None, Counts::Agree, (text, Footing::Text));
        check(&[], None, Counts::Differ, (text, Footing::Text));
    }

    #[test]
    fn models_of_one_server_share_no_root_and_one_name_has_one_root_at_all_servers() {
        let models = ["a", "b", "c"].map(|name| listed(&[name])).to_vec();
        let declared = Declared { models, n_slots: 1, n_left_out: 0 };
        let given = model();
        for given in [None, Some(&given)] {
            let roots = [0, 1, 2].map(|nth| place((&declared, nth), [], given, Counts::Agree).0.fingerprint);
            assert!(roots[0] != roots[1] && roots[1] != roots[2] && roots[2] != roots[0], "{given:?}");
        }
        // A server that calls it otherwise takes over how its fellow stands.
        let (first, footing) = place((&declared, 1), [], None, Counts::Agree);
        let other = Declared { models: vec![listed(&["d", "b"])], n_slots: 1, n_left_out: 0 };
        let (second, same) = place((&other, 0), [Fellow { model: &first, footing }], Some(&given), Counts::Differ);
        assert_eq!((second.fingerprint, same), (first.fingerprint, Footing::Text));
    }
}
