//! Grammars in llama.cpp's GBNF: the tokens that may come next in a response.
//!
//! The engine has the vocabulary and its bytes, and chooses the token.
//!
//! A grammar is parsed (`parser`), and parts that no text can match are removed (`lower`). A response is matched by
//! rows (`earley`). A row is the set of all possible positions in the grammar at one position of the text. Items share
//! their callers, and each row exists once, so an ambiguous grammar has larger rows instead of many stacks. All work is
//! counted, and work above the limit is an error.

mod callers;
mod charset;
mod closure;
mod earley;
mod lower;
mod matcher;
mod parser;
#[cfg(test)]
mod tests;

use std::fmt;

use warmpath_common::ids::Token;

pub use callers::Exhausted;
pub use lower::Grammar;
pub use matcher::{ByName, GrammarMatcher, GrammarPosition};

/// Error in a grammar.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub struct GrammarError {
    /// Line, counted from 1; `None` if the error concerns the whole grammar.
    pub line: Option<usize>,
    /// Description of the error, for the client.
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

/// Properties of the vocabulary that a grammar depends on.
#[derive(Clone, Copy)]
pub struct GrammarVocabulary<'a> {
    /// Number of tokens.
    pub n_vocab: u32,
    /// Function that returns the token with this text, such as `<think>`, if there is one.
    pub named: &'a dyn Fn(&str) -> Option<Token>,
}
