//! Matcher of one response against a grammar, token by token: the tokens that may come next, and the positions after
//! them.
//!
//! The engine has the tokens' bytes and walks over the whole vocabulary.
//!
//! A position is a row and possibly the first bytes of a character. Most grammars have one position at a time. A
//! grammar that names tokens may accept the same token both by its text and by its name. It may then have two
//! positions, one within a character and one after a whole character.

use std::sync::Arc;

use warmpath_common::ids::Token;

use super::callers::Exhausted;
use super::charset::{Decoded, PartialChar};
use super::earley::{Automaton, RowId};
use super::lower::Grammar;
use super::parser::Symbol;

/// Position of a response in its grammar.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GrammarPosition {
    row: RowId,
    partial: Option<PartialChar>,
}

/// Matcher of one response.
#[derive(Debug, Clone)]
pub struct GrammarMatcher {
    automaton: Automaton,
    places: Vec<GrammarPosition>,
}

/// Tokens that may come next by their name, regardless of their text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ByName {
    /// Only this token.
    Only(Token),
    /// Any except this one.
    Except(Token),
}

impl GrammarMatcher {
    /// Returns a matcher at the start of a response; the work of its first step is limited to `fuel`.
    ///
    /// Errors: the start takes more work.
    pub fn new(grammar: &Arc<Grammar>, fuel: u64) -> Result<Self, Exhausted> {
        let (automaton, row) = Automaton::new(grammar, fuel)?;
        Ok(Self { automaton, places: vec![GrammarPosition { row, partial: None }] })
    }

    /// Sets the limit of work until the next call. Units: characters of cached rows, some 5 ns each.
    pub fn refuel(&mut self, fuel: u64) {
        self.automaton.refuel(fuel);
    }

    /// Returns whether the response may end.
    pub fn accepts(&self) -> bool {
        self.whole().any(|row| self.automaton.accepts(row))
    }

    /// Returns how often rows were dropped to free memory. As long as this number stays the same, the same positions
    /// allow the same tokens.
    pub fn n_trimmed(&self) -> u32 {
        self.automaton.n_trimmed
    }

    /// Returns the possible positions of the response.
    pub fn places(&self) -> &[GrammarPosition] {
        &self.places
    }

    /// Returns the tokens that may come next by their name.
    pub fn by_name(&self) -> impl Iterator<Item = ByName> {
        self.whole().flat_map(|row| self.automaton.awaited(row)).filter_map(|symbol| match symbol {
            Symbol::Token(token) => Some(ByName::Only(token)),
            Symbol::OtherToken(token) => Some(ByName::Except(token)),
            _ => None,
        })
    }

    /// Returns the tokens that the grammar names at a position.
    pub fn named_at(&self, place: GrammarPosition) -> impl Iterator<Item = Token> {
        let symbols = place.partial.is_none().then(|| self.automaton.awaited(place.row));
        symbols.into_iter().flatten().filter_map(|symbol| match symbol {
            Symbol::Token(token) => Some(token),
            _ => None,
        })
    }

    /// Returns the position after a byte of text; `None` if the grammar does not allow it.
    pub fn push(&mut self, place: GrammarPosition, byte: u8) -> Result<Option<GrammarPosition>, Exhausted> {
        let GrammarPosition { row, partial } = place;
        let decoded = match partial {
            None => PartialChar::begin(byte),
            Some(partial) => partial.push(byte),
        };
        match decoded {
            None => Ok(None),
            Some(Decoded::Whole(c)) => {
                Ok(self.automaton.step(row, c)?.map(|row| GrammarPosition { row, partial: None }))
            }
            Some(Decoded::Begun(partial)) => {
                let (first, last) = partial.range();
                let is_allowed = self.automaton.allows_one_of(row, first, last)?;
                Ok(is_allowed.then_some(GrammarPosition { row, partial: Some(partial) }))
            }
        }
    }

    /// Returns whether a token with these bytes may come next; a token without bytes may only come by its name.
    pub fn allows(&mut self, token: Token, bytes: &[u8]) -> Result<bool, Exhausted> {
        Ok(!self.behind(token, bytes)?.is_empty())
    }

    /// Advances by a token with these bytes if the grammar allows it; returns whether it does.
    pub fn take(&mut self, token: Token, bytes: &[u8]) -> Result<bool, Exhausted> {
        let behind = self.behind(token, bytes)?;
        self.go_on(&behind)
    }

    /// Advances by a text, in any tokenization, if the grammar allows it; returns whether it does.
    pub fn take_text(&mut self, text: &[u8]) -> Result<bool, Exhausted> {
        let mut behind = Vec::new();
        for idx in 0..self.places.len() {
            if let Some(next) = self.push_all(self.places[idx], text)? {
                self.add(&mut behind, next)?;
            }
        }
        self.go_on(&behind)
    }

    /// Continues at these positions; returns whether there are any.
    fn go_on(&mut self, behind: &[GrammarPosition]) -> Result<bool, Exhausted> {
        if behind.is_empty() {
            return Ok(false);
        }
        let mut rows: Vec<RowId> = behind.iter().map(|place| place.row).collect();
        self.automaton.trim(&mut rows)?;
        self.places = behind.iter().zip(rows).map(|(place, row)| GrammarPosition { row, ..*place }).collect();
        Ok(true)
    }

    /// Returns the rows of the positions at which the last character is complete.
    fn whole(&self) -> impl Iterator<Item = RowId> {
        self.places.iter().filter(|place| place.partial.is_none()).map(|place| place.row)
    }

    /// Returns the positions after a token, at most one for each partial character and one without.
    fn behind(&mut self, token: Token, bytes: &[u8]) -> Result<Vec<GrammarPosition>, Exhausted> {
        let mut behind = Vec::new();
        for idx in 0..self.places.len() {
            let place = self.places[idx];
            if !bytes.is_empty()
                && let Some(next) = self.push_all(place, bytes)?
            {
                self.add(&mut behind, next)?;
            }
            if place.partial.is_none()
                && let Some(row) = self.automaton.step_token(place.row, token)?
            {
                self.add(&mut behind, GrammarPosition { row, partial: None })?;
            }
        }
        Ok(behind)
    }

    fn push_all(&mut self, mut place: GrammarPosition, bytes: &[u8]) -> Result<Option<GrammarPosition>, Exhausted> {
        for byte in bytes {
            match self.push(place, *byte)? {
                Some(next) => place = next,
                None => return Ok(None),
            }
        }
        Ok(Some(place))
    }

    fn add(&mut self, places: &mut Vec<GrammarPosition>, new: GrammarPosition) -> Result<(), Exhausted> {
        match places.iter_mut().find(|place| place.partial == new.partial) {
            Some(place) => place.row = self.automaton.join(place.row, new.row)?,
            None => places.push(new),
        }
        Ok(())
    }
}
