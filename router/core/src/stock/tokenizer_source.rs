//! The source of a stock server's token counts: which vocabulary its prompts are tokenized with, if any.
//!
//! Tokenizing is done elsewhere. A request becomes one prompt for all workers of its model. So if a stock server's
//! model has the same name as a Warmpath worker's model, it is assumed to be that model. Otherwise the vocabulary that
//! the operator configured is used; without one, the text itself.

use warmpath_common::block_hash::ChainRoot;
use warmpath_common::model::{Capability, Fingerprint, ModelInfo};

use super::server_info::ServerInfo;
use super::text_blocks;

/// Source of a stock server's token counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TokenizerSource {
    /// A vocabulary: a Warmpath worker's, or one that the operator configured.
    Vocabulary,
    /// The text of the prompt.
    Text,
    /// The vocabulary of Warmpath workers with the same model name, although the server counts differently; no blocks
    /// are assumed.
    Load,
}

impl TokenizerSource {
    /// Returns a short name for people.
    pub fn label(self) -> &'static str {
        match self {
            Self::Vocabulary => "vocabulary",
            Self::Text => "text",
            Self::Load => "load",
        }
    }
}

/// Whether a server's own token counts agree with the vocabulary.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Counts {
    /// They agree, or have not been compared yet.
    Agree,
    /// They differ.
    Differ,
}

/// A model already in the fleet that shares a name with a stock server's model.
#[derive(Debug, Clone, Copy)]
pub struct PeerServer<'a> {
    /// The model, as its worker declares it or as it is assumed to be.
    pub model: &'a ModelInfo,
    /// Source of the token counts of its prompts.
    pub tokenizer_source: TokenizerSource,
}

/// Returns the model that a stock server is assumed to serve as its `nth`, and the source of its token counts.
///
/// `fellows` are the models of Warmpath workers and of stock servers that have been placed already: all prompts of one
/// name are tokenized in the same way. `given` is the vocabulary that the operator configured for the model, if it can
/// be used.
pub fn place<'a>(
    server: &ServerInfo,
    nth: usize,
    fellows: impl IntoIterator<Item = PeerServer<'a>>,
    configured_model: Option<&ModelInfo>,
    counts: Counts,
) -> (ModelInfo, TokenizerSource) {
    let stock_model = &server.models[nth];
    let shares_name = |fellow: &PeerServer<'_>| fellow.model.names.iter().any(|name| stock_model.names.contains(name));
    let own_model = |model: &ModelInfo| ModelInfo {
        names: stock_model.names.clone(),
        n_slots: server.n_slots,
        context_tokens: stock_model.context_tokens,
        capabilities: Capability::ALL.to_vec(),
        embedding: None,
        adapters: Vec::new(),
        adapter_in_force: None,
        kv_transfer: None,
        media: None,
        ..model.clone()
    };
    match (fellows.into_iter().find(shares_name), configured_model) {
        (Some(PeerServer { model, tokenizer_source: TokenizerSource::Vocabulary }), _) if counts == Counts::Differ => {
            (own_model(model), TokenizerSource::Load)
        }
        (Some(PeerServer { model, tokenizer_source }), _) => (own_model(model), tokenizer_source),
        (None, Some(model)) if nth == 0 => (own_model(model), TokenizerSource::Vocabulary),
        (None, Some(model)) => {
            // Models of one server share no state, even if one vocabulary is configured for all of them.
            let fingerprint = beside(model, &stock_model.names[0]);
            (ModelInfo { fingerprint, ..own_model(model) }, TokenizerSource::Vocabulary)
        }
        (None, None) => (text_blocks::model(stock_model, server.n_slots), TokenizerSource::Text),
    }
}

/// Returns the fingerprint of a further model of a server, derived from the configured vocabulary's fingerprint and the
/// model's name.
fn beside(model: &ModelInfo, name: &str) -> Fingerprint {
    let root = ChainRoot { model_fingerprint: &model.fingerprint.0, lora: name.as_bytes(), cache_salt: &[] };
    Fingerprint(root.hash().0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stock::server_info::{Residence, StockModel};
    use crate::testing::model;

    fn listed(names: &[&str]) -> StockModel {
        let names = names.iter().map(|&name| name.to_owned()).collect();
        StockModel { names, context_tokens: 500, identity: String::new(), residence: Residence::Loaded }
    }

    #[test]
    fn a_worker_s_vocabulary_precedes_a_given_one_and_that_precedes_text_blocks() {
        let declared = ServerInfo { models: vec![listed(&["m", "n"])], n_slots: 3, n_left_out: 0 };
        let given = ModelInfo { fingerprint: Fingerprint([9; 32]), ..model() };
        let stranger = ModelInfo { names: vec!["x".into()], ..model() };
        let check =
            |served: &[ModelInfo], given: Option<&ModelInfo>, counts, expected: (Fingerprint, TokenizerSource)| {
                let fellows =
                    served.iter().map(|model| PeerServer { model, tokenizer_source: TokenizerSource::Vocabulary });
                let (model, tokenizer_source) = place(&declared, 0, fellows, given, counts);
                assert_eq!((model.fingerprint, tokenizer_source), expected);
                assert_eq!((model.names, model.n_slots, model.context_tokens), (vec!["m".into(), "n".into()], 3, 500));
            };
        let text = text_blocks::model(&declared.models[0], 3).fingerprint;
        let served = [stranger.clone(), model()];
        check(&served, Some(&given), Counts::Agree, (model().fingerprint, TokenizerSource::Vocabulary));
        check(&served, Some(&given), Counts::Differ, (model().fingerprint, TokenizerSource::Load));
        check(&[stranger], Some(&given), Counts::Agree, (given.fingerprint, TokenizerSource::Vocabulary));
        check(&[], None, Counts::Agree, (text, TokenizerSource::Text));
        check(&[], None, Counts::Differ, (text, TokenizerSource::Text));
    }

    #[test]
    fn models_of_one_server_share_no_root_and_one_name_has_one_root_at_all_servers() {
        let models = ["a", "b", "c"].map(|name| listed(&[name])).to_vec();
        let declared = ServerInfo { models, n_slots: 1, n_left_out: 0 };
        let given = model();
        for given in [None, Some(&given)] {
            let roots = [0, 1, 2].map(|nth| place(&declared, nth, [], given, Counts::Agree).0.fingerprint);
            assert!(roots[0] != roots[1] && roots[1] != roots[2] && roots[2] != roots[0], "{given:?}");
        }
        // A server with another list of names takes over the model of the one that shares a name with it.
        let (first, tokenizer_source) = place(&declared, 1, [], None, Counts::Agree);
        let other = ServerInfo { models: vec![listed(&["d", "b"])], n_slots: 1, n_left_out: 0 };
        let (second, same) =
            place(&other, 0, [PeerServer { model: &first, tokenizer_source }], Some(&given), Counts::Differ);
        assert_eq!((second.fingerprint, same), (first.fingerprint, TokenizerSource::Text));
    }
}
