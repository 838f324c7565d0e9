//! Grammars of clients over a model's vocabulary: whether a token may come next, and which ones may.
//!
//! Not here: what a grammar means (`grammar` of the core), how a token is chosen (`sampler`), tool calls (`call_grammar`).
//! The idea: a token that the model would choose anyway is looked at alone, which costs as many steps as it has bytes. All
//! tokens are looked at where that one is refused, by a walk over the trie of the vocabulary. Both have their work limited.

use std::sync::Arc;

use llama_cpp_2::model::LlamaModel;
use llguidance::toktrie::{Recognizer, SimpleVob, TokEnv, TokTrie};
use warmpath_common::ids::Token;
use warmpath_worker_core::grammar::{ByName, Exhausted, Follower, Grammar, Place, Tokens};

/// Is the work that taking a token may need. Source: docs/decisions/0032; some 4 ms.
const TOKEN_FUEL: u64 = 500_000;

/// Is the work that looking at all tokens may need. Source: as above; a vocabulary of 150,000 tokens takes a third of it
/// where all of it is allowed.
const MASK_FUEL: u64 = 1_500_000;

/// Is how many masks an answer keeps. Source: a JSON document comes back to as many places; one has 19 kB for 150,000 tokens.
const MASKS_MAX: usize = 8;

/// Follows one answer's grammar.
pub(super) struct Followed {
    follower: Follower,
    vocabulary: TokEnv,
    /// Holds what may come at the places that were looked at last, the latest at the end.
    masks: Vec<(Vec<Place>, SimpleVob)>,
    /// Says since when these places are the same.
    n_trimmed: u32,
}

impl Followed {
    /// Returns a grammar at the start of an answer, or what is wrong with it, fit for the client.
    ///
    /// Cost: some 20 ms for the largest.
    pub(super) fn begin(model: &LlamaModel, vocabulary: &TokEnv, text: &str) -> Result<Self, String> {
        let named = |name: &str| match model.vocab().tokenize(name.as_bytes(), false, true).as_slice() {
            [token] => Some(token.0.unsigned_abs()),
            _ => None,
        };
        let tokens = Tokens { n_vocab: model.n_vocab().unsigned_abs(), named: &named };
        let grammar = Grammar::new(text, tokens).map_err(|error| format!("the grammar does not parse: {error}"))?;
        let follower = Follower::new(&Arc::new(grammar), MASK_FUEL).map_err(described)?;
        Ok(Self { follower, vocabulary: Arc::clone(vocabulary), masks: Vec::new(), n_trimmed: 0 })
    }

    /// Returns whether a token may come next.
    ///
    /// Errors: that takes too much.
    pub(super) fn allows(&mut self, token: Token) -> Result<bool, Exhausted> {
        let trie = self.vocabulary.tok_trie();
        if trie.eos_tokens().contains(&token) {
            return Ok(self.follower.accepts());
        }
        self.follower.refuel(TOKEN_FUEL);
        self.follower.allows(token, trie.token(token))
    }

    /// Returns which tokens may come next; those that end an answer are among them where it may end.
    ///
    /// Errors: that takes too much.
    pub(super) fn allowed(&mut self) -> Result<&SimpleVob, Exhausted> {
        if std::mem::replace(&mut self.n_trimmed, self.follower.n_trimmed()) != self.n_trimmed {
            self.masks.clear();
        }
        let places = self.follower.places();
        if let Some(idx) = self.masks.iter().position(|(known, _)| known == places) {
            let known = self.masks.remove(idx);
            self.masks.push(known);
        } else {
            let places = places.to_vec();
            let mask = self.mask(&places)?;
            self.masks.drain(..(self.masks.len() + 1).saturating_sub(MASKS_MAX));
            self.masks.push((places, mask));
        }
        self.masks.last().map(|(_, mask)| mask).ok_or(Exhausted)
    }

    fn mask(&mut self, places: &[Place]) -> Result<SimpleVob, Exhausted> {
        let trie = self.vocabulary.tok_trie();
        let mut mask = trie.alloc_token_set();
        self.follower.refuel(MASK_FUEL);
        for place in places {
            let mut walk = Walk { follower: &mut self.follower, places: vec![*place], is_exhausted: false };
            trie.add_bias(&mut walk, &mut mask, &[]);
            if walk.is_exhausted {
                return Err(Exhausted);
            }
        }
        for by_name in self.follower.by_name() {
            allow(&mut mask, by_name, trie);
        }
        let ends = trie.eos_token_set();
        if self.follower.accepts() {
            mask.or(&ends);
        } else {
            mask.sub(&ends);
        }
        Ok(mask)
    }

    /// Takes the token that was chosen among those allowed; one that ends the answer changes nothing.
    ///
    /// Errors: why the answer cannot go on, fit for the client.
    pub(super) fn take(&mut self, token: Token) -> Result<(), String> {
        let trie = self.vocabulary.tok_trie();
        if trie.eos_tokens().contains(&token) {
            return Ok(());
        }
        self.follower.refuel(TOKEN_FUEL);
        match self.follower.take(token, trie.token(token)) {
            Ok(true) => Ok(()),
            Ok(false) => Err("the grammar refuses the token that was chosen".to_owned()),
            Err(exhausted) => Err(described(exhausted)),
        }
    }
}

/// Says that a grammar takes too much, fit for the client.
pub(super) fn described(exhausted: Exhausted) -> String {
    exhausted.to_string()
}

fn allow(mask: &mut SimpleVob, by_name: ByName, trie: &TokTrie) {
    let n_vocab = Token::try_from(trie.vocab_size()).expect("tokens are numbered by a u32");
    match by_name {
        ByName::Only(token) => mask.allow_token(token),
        ByName::Except(token) => {
            for range in [0..token, token + 1..n_vocab].into_iter().filter(|range| !range.is_empty()) {
                mask.allow_range(range.start..=range.end - 1);
            }
        }
    }
}

/// Is a walk over the vocabulary's trie.
struct Walk<'a> {
    follower: &'a mut Follower,
    /// Lists the places behind the bytes from the trie's root to where the walk is.
    places: Vec<Place>,
    is_exhausted: bool,
}

impl Recognizer for Walk<'_> {
    fn pop_bytes(&mut self, num: usize) {
        self.places.truncate(self.places.len() - num);
    }

    fn collapse(&mut self) {
        self.places.drain(..self.places.len() - 1);
    }

    fn trie_finished(&mut self) {
        self.places.truncate(1);
    }

    fn try_push_byte(&mut self, byte: u8) -> bool {
        if self.is_exhausted {
            return false;
        }
        let place = self.places[self.places.len() - 1];
        match self.follower.push(place, byte) {
            Ok(Some(next)) => self.places.push(next),
            Ok(None) => return false,
            Err(Exhausted) => self.is_exhausted = true,
        }
        !self.is_exhausted
    }
}
