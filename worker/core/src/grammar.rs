//! Grammars of clients, in llama.cpp's GBNF: which tokens may come next in an answer that follows one.
//!
//! Not here: the vocabulary and its bytes, choosing a token (the engine).
//! The idea: a grammar is read (`reader`), what no text can follow is left out (`compile`), and an answer is followed by rows
//! (`automaton`): a row is everything that the grammar may be in the middle of, with what comes behind it shared and each row
//! kept once, so that ambiguity adds to a row instead of multiplying stacks. All work is counted, and what would be too
//! much is told instead of done.

mod automaton;
mod chars;
mod closure;
mod compile;
mod follower;
mod reader;
#[cfg(test)]
mod tests;

use std::fmt;

use warmpath_common::ids::Token;

pub use automaton::Exhausted;
pub use compile::Grammar;
pub use follower::{ByName, Follower, Place};

/// Says what is wrong with a grammar.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub struct GrammarError {
    /// Is the line, counted from 1; absent where the whole grammar is meant.
    pub line: Option<usize>,
    /// Says what is wrong, fit for the client.
    pub reason: String,
}

impl fmt::Display for GrammarError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.line {
            Some(line) => write!(f, "line {line}: {}", self.reason),
            None => f.write_str(&self.reason),
        }
    }
}

/// Is what a grammar needs to know of the vocabulary.
#[derive(Clone, Copy)]
pub struct Tokens<'a> {
    /// Is how many tokens there are.
    pub n_vocab: u32,
    /// Returns the token that is written like this, as `<think>`, if there is one.
    pub named: &'a dyn Fn(&str) -> Option<Token>,
}
