//! Grammars over a model's vocabulary: whether a given token may come next, and which tokens may.
//!
//! The token that the model would choose is checked alone, which takes one step per byte. Only if it is refused, all
//! tokens are checked by a walk over the vocabulary's trie. The work of both is limited.
//!
//! Not here: parsing and matching text (`gbnf`), choosing a token (the engine), when a grammar applies (`rule`).

use std::collections::BTreeMap;
use std::sync::Arc;

use llguidance::toktrie::{Recognizer, SimpleVob, TokEnv, TokTrie};
use warmpath_common::ids::Token;

use crate::arguments::{ArgumentsExtent, BegunArguments, FollowedArguments, FollowedValue};
use crate::compiler::CompiledSchema;
use crate::gbnf::{ByName, Exhausted, Grammar, GrammarMatcher, GrammarPosition};

/// Maximum work for adding a token. Source: docs/decisions/0032; some 4 ms.
const TOKEN_FUEL: u64 = 500_000;

/// Maximum work for checking all tokens. Source: as above; a vocabulary of 150,000 tokens takes a third of it if all
/// tokens are allowed.
const MASK_FUEL: u64 = 1_500_000;

/// Number of masks that a response caches. Source: the grammar of a JSON document has about as many recurring
/// positions; a mask for 150,000 tokens takes 19 kB.
const MASKS_MAX: usize = 8;

/// Control tokens that are part of the response's text, with their spelling.
#[derive(Default)]
pub struct SpelledTokens(BTreeMap<Token, Vec<u8>>);

impl SpelledTokens {
    /// Returns control tokens with their spelling.
    pub fn new(tokens: BTreeMap<Token, Vec<u8>>) -> Self {
        Self(tokens)
    }

    fn of(&self, token: Token) -> Option<&[u8]> {
        self.0.get(&token).map(Vec::as_slice)
    }
}

/// Grammar state of one response.
pub struct FollowedGrammar {
    follower: GrammarMatcher,
    vocabulary: TokEnv,
    spelled: SpelledTokens,
    arguments: FollowedArguments,
    /// Masks of recently checked positions, the latest at the end.
    masks: Vec<(Vec<GrammarPosition>, SimpleVob)>,
    /// Number of the matcher's trims at which these positions are valid.
    n_trimmed: u32,
    /// Last computed mask of a position where a single argument may begin.
    value_mask: Option<SimpleVob>,
}

impl FollowedGrammar {
    /// Returns a grammar at the start of a response; `spelled` has control tokens that the grammar may name by their
    /// spelling.
    ///
    /// Errors: the message that the grammar takes too much work, for the client.
    pub fn begin(
        grammar: &Arc<Grammar>,
        vocabulary: &TokEnv,
        spelled: SpelledTokens,
        arguments: FollowedArguments,
    ) -> Result<Self, String> {
        let follower = GrammarMatcher::new(grammar, MASK_FUEL).map_err(described)?;
        let vocabulary = Arc::clone(vocabulary);
        Ok(Self { follower, vocabulary, spelled, arguments, masks: Vec::new(), n_trimmed: 0, value_mask: None })
    }

    /// Advances by text that the prompt already has; returns whether the grammar allows it.
    ///
    /// Errors: the message that the grammar takes too much work, for the client.
    pub fn take_text(&mut self, text: &[u8]) -> Result<bool, String> {
        self.follower.refuel(MASK_FUEL);
        self.follower.take_text(text).map_err(described)
    }

    /// Advances by the last part of a token that was chosen before the grammar applied; returns whether it is allowed.
    pub fn take_part(&mut self, token: Token, bytes: &[u8]) -> bool {
        let is_end = self.vocabulary.tok_trie().eos_tokens().contains(&token);
        !is_end && (bytes.is_empty() || self.go_on(token, bytes) == Ok(true))
    }

    /// Returns whether a token may come next.
    ///
    /// Errors: the grammar takes too much work.
    pub fn allows(&mut self, token: Token) -> Result<bool, String> {
        let vocabulary = Arc::clone(&self.vocabulary);
        let trie = vocabulary.tok_trie();
        self.look_for_value();
        if let Some(value) = &mut self.arguments.value
            && (value.is_begun || !trie.eos_tokens().contains(&token))
        {
            let is_allowed = value.allows(token, self.spelled.of(token))?;
            if is_allowed || value.is_begun {
                return Ok(is_allowed);
            }
        }
        if trie.eos_tokens().contains(&token) {
            return Ok(self.follower.accepts());
        }
        self.follower.refuel(TOKEN_FUEL);
        let bytes = self.spelled.of(token).unwrap_or(trie.token(token));
        if !self.follower.allows(token, bytes).map_err(described)? {
            return Ok(false);
        }
        match &mut self.arguments.begun {
            Some(argument) => argument.allows(token, bytes),
            None => self.may_begin(trie.token(token)),
        }
    }

    /// Records the single argument that may begin here, if any.
    fn look_for_value(&mut self) {
        if self.arguments.value.is_some() || self.arguments.schemas.schemas.is_empty() {
            return;
        }
        let tokens = self.follower.places().iter().flat_map(|place| self.follower.named_at(*place));
        let schemas = &self.arguments.schemas;
        let mut starts = tokens.filter_map(|token| Some((token, schemas.value(token)?)));
        self.arguments.value = starts.next().map(|(token, schema)| FollowedValue::at_start(token, schema));
    }

    /// Returns the tokens that may come next at a position where a single argument may begin or continue; `None` at
    /// other positions.
    ///
    /// Errors: the grammar takes too much work.
    fn allowed_of_value(&mut self) -> Result<Option<SimpleVob>, String> {
        self.look_for_value();
        let Some(value) = &mut self.arguments.value else { return Ok(None) };
        let mut mask = value.allowed()?.clone();
        let control = self.spelled.0.iter().filter(|(_, bytes)| value.fits(bytes));
        control.for_each(|(token, _)| mask.allow_token(*token));
        if !value.is_begun {
            let places = self.follower.places().to_vec();
            mask.or(&self.grammar_mask(&places).map_err(described)?);
        }
        Ok(Some(mask))
    }

    /// Continues or begins a single argument with these bytes; returns whether they belong to one.
    ///
    /// Errors: the message that the grammar takes too much work, for the client.
    fn go_on_in_value(&mut self, token: Token, bytes: &[u8]) -> Result<bool, String> {
        self.look_for_value();
        let Some(value) = &mut self.arguments.value else { return Ok(false) };
        let is_whole = self.vocabulary.tok_trie().token(token) == bytes;
        let fits = if is_whole { value.allows(token, None)? } else { value.fits(bytes) };
        if !fits && !value.is_begun {
            self.arguments.value = None;
            return Ok(false);
        }
        if !fits {
            return Err("the grammar refuses the token that was chosen".to_owned());
        }
        if value.take(is_whole.then_some(token), bytes)? {
            let token_named = value.named;
            self.arguments.value = None;
            self.follower.refuel(TOKEN_FUEL);
            self.follower.take(token_named, &[]).map_err(described)?;
        }
        Ok(true)
    }

    /// Returns whether the schema allows the start of arguments in these bytes; true if no arguments begin there.
    ///
    /// Errors: the grammar takes too much work.
    fn may_begin(&mut self, bytes: &[u8]) -> Result<bool, String> {
        let Some((start, schema)) = self.beginning(bytes).map_err(described)? else { return Ok(true) };
        Ok(BegunArguments::with(&schema, &bytes[start..]).is_ok())
    }

    /// Returns where arguments begin in the next bytes, and their schema; `None` if no arguments begin there.
    fn beginning(&mut self, bytes: &[u8]) -> Result<Option<(usize, CompiledSchema)>, Exhausted> {
        let schemas = &self.arguments.schemas;
        if schemas.schemas.is_empty() || schemas.extent != ArgumentsExtent::Object || !bytes.contains(&b'{') {
            return Ok(None);
        }
        for idx in 0..self.follower.places().len() {
            let mut place = self.follower.places()[idx];
            for (start, byte) in bytes.iter().enumerate() {
                let mut tokens = self.follower.named_at(place);
                if *byte == b'{'
                    && let Some(schema) = tokens.find_map(|token| self.arguments.schemas.object(token))
                {
                    return Ok(Some((start, schema.clone())));
                }
                drop(tokens);
                match self.follower.push(place, *byte)? {
                    Some(next) => place = next,
                    None => break,
                }
            }
        }
        Ok(None)
    }

    /// Returns the tokens that may come next, including those that end a response if it may end.
    ///
    /// Errors: the grammar takes too much work.
    pub fn allowed(&mut self) -> Result<&SimpleVob, String> {
        if let Some(mask) = self.allowed_of_value()? {
            return Ok(self.value_mask.insert(mask));
        }
        if self.arguments.begun.is_some() {
            self.permit_closing_tokens()?;
            let argument = self.arguments.begun.as_mut().ok_or_else(String::new)?;
            return argument.allowed().map(|mask| &*mask);
        }
        if std::mem::replace(&mut self.n_trimmed, self.follower.n_trimmed()) != self.n_trimmed {
            self.masks.clear();
        }
        let places = self.follower.places();
        if let Some(idx) = self.masks.iter().position(|(of_mask, _)| of_mask == places) {
            let mask = self.masks.remove(idx);
            self.masks.push(mask);
        } else {
            let places = places.to_vec();
            let mask = self.mask(&places)?;
            self.masks.drain(..(self.masks.len() + 1).saturating_sub(MASKS_MAX));
            self.masks.push((places, mask));
        }
        self.masks.last().map(|(_, mask)| mask).ok_or_else(|| described(Exhausted))
    }

    /// Adds the tokens that close the arguments and continue in the grammar to the mask of the arguments' schema.
    fn permit_closing_tokens(&mut self) -> Result<(), String> {
        let (vocabulary, bracket_tokens) = (Arc::clone(&self.vocabulary), Arc::clone(&self.arguments.bracketed));
        let Some(argument) = &mut self.arguments.begun else { return Ok(()) };
        self.follower.refuel(MASK_FUEL);
        for token in bracket_tokens.iter().copied() {
            let bytes = vocabulary.tok_trie().token(token);
            if argument.own_part(bytes).is_some()
                && self.follower.allows(token, bytes).map_err(described)?
                && argument.allows(token, bytes)?
            {
                argument.allowed()?.allow_token(token);
            }
        }
        Ok(())
    }

    fn mask(&mut self, places: &[GrammarPosition]) -> Result<SimpleVob, String> {
        let mut mask = self.grammar_mask(places).map_err(described)?;
        let schemas = &self.arguments.schemas;
        if schemas.schemas.is_empty() || schemas.extent != ArgumentsExtent::Object {
            return Ok(mask);
        }
        let vocabulary = Arc::clone(&self.vocabulary);
        let bracket_tokens = Arc::clone(&self.arguments.bracketed);
        self.follower.refuel(MASK_FUEL);
        for token in bracket_tokens.iter().copied() {
            if mask.is_allowed(token) && !self.may_begin(vocabulary.tok_trie().token(token))? {
                mask.disallow_token(token);
            }
        }
        Ok(mask)
    }

    fn n_vocab(&self) -> Token {
        Token::try_from(self.vocabulary.tok_trie().vocab_size()).expect("tokens are numbered by a u32")
    }

    fn grammar_mask(&mut self, places: &[GrammarPosition]) -> Result<SimpleVob, Exhausted> {
        let trie = self.vocabulary.tok_trie();
        let mut mask = trie.alloc_token_set();
        self.follower.refuel(MASK_FUEL);
        for place in places {
            let mut walk = TrieWalk { follower: &mut self.follower, places: vec![*place], is_exhausted: false };
            trie.add_bias(&mut walk, &mut mask, &[]);
            if walk.is_exhausted {
                return Err(Exhausted);
            }
        }
        for (token, bytes) in &self.spelled.0 {
            if self.follower.allows(*token, bytes)? {
                mask.allow_token(*token);
            }
        }
        // The placeholder of arguments is no token.
        let n_vocab = self.n_vocab();
        let is_token = |by_name: &ByName| !matches!(by_name, ByName::Only(token) if *token >= n_vocab);
        for by_name in self.follower.by_name().filter(is_token) {
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

    /// Advances by a chosen token that is allowed; one that ends the response changes nothing.
    ///
    /// Errors: the reason why the response cannot continue, for the client.
    pub fn take(&mut self, token: Token) -> Result<(), String> {
        let trie = self.vocabulary.tok_trie();
        if trie.eos_tokens().contains(&token) {
            return Ok(());
        }
        let bytes = self.spelled.of(token).unwrap_or(trie.token(token)).to_vec();
        match self.go_on(token, &bytes) {
            Ok(true) => Ok(()),
            Ok(false) => Err("the grammar refuses the token that was chosen".to_owned()),
            Err(reason) => Err(reason),
        }
    }

    /// Advances by a token; returns whether the grammar and the arguments' schema allow it.
    ///
    /// Errors: the message that the grammar takes too much work, for the client.
    fn go_on(&mut self, token: Token, bytes: &[u8]) -> Result<bool, String> {
        if self.go_on_in_value(token, bytes)? {
            return Ok(true);
        }
        self.follower.refuel(TOKEN_FUEL);
        // Arguments may begin within this token: their schema is known only before the grammar advances.
        let begins = match self.arguments.begun {
            Some(_) => None,
            None => self.beginning(bytes).map_err(described)?,
        };
        if !self.follower.take(token, bytes).map_err(described)? {
            return Ok(false);
        }
        if let Some(argument) = &mut self.arguments.begun {
            if argument.take(token, bytes)? {
                self.arguments.begun = None;
            }
        } else if let Some((start, schema)) = begins {
            match BegunArguments::with(&schema, &bytes[start..]) {
                Ok(argument) => self.arguments.begun = argument,
                Err(_) => return Ok(false),
            }
        }
        Ok(true)
    }
}

/// Returns the client's message for a grammar that takes too much work.
pub fn described(exhausted: Exhausted) -> String {
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

/// A walk over the vocabulary's trie.
struct TrieWalk<'a> {
    follower: &'a mut GrammarMatcher,
    /// Positions in the grammar after the bytes from the trie's root to the current node.
    places: Vec<GrammarPosition>,
    is_exhausted: bool,
}

impl Recognizer for TrieWalk<'_> {
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
