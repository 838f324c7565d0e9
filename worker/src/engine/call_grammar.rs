//! The grammar of tool calls: asked from an answer's beginning where a call is required, else from where one starts.
//!
//! Not here: where a call starts (`call_watch` of the core), how a grammar is followed (`grammar`).
//! The idea: what cannot be followed after all, as when a model goes on with a call in its own way, is dropped: the answer
//! goes on without a grammar.

use std::sync::Arc;

use warmpath_common::ids::Token;
use warmpath_worker_core::call_watch::{CallWatch, Pattern, Seen, Start, Thoughts};

use super::arguments::ArgumentSchemas;
use super::grammar::Followed;

/// Is how tool calls of an answer are constrained.
#[derive(Debug, Clone, PartialEq)]
pub struct CallGrammar {
    /// Is the grammar in GBNF.
    pub text: Arc<str>,
    /// Schemas of arguments, where the grammar does not say what these are.
    pub arguments: Arc<ArgumentSchemas>,
    /// Says when it begins to count.
    pub begin: Begin,
}

/// Says when the grammar of tool calls begins to count.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Begin {
    /// At once.
    AtOnce {
        /// Is the end of the prompt, which is the beginning of what follows the grammar.
        seen: String,
    },
    /// Where a call starts.
    AtCall(CallStart),
}

/// Says how to see that a call starts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CallStart {
    /// Lists texts that start a call.
    pub words: Vec<String>,
    /// Lists regular expressions that find where one starts.
    pub patterns: Vec<String>,
    /// Is what opens thoughts, in which no call starts, and what closes them.
    pub thoughts: Thoughts,
    /// Is the end of the prompt that belongs to the answer.
    pub prefix: String,
}

/// Is a grammar of tool calls that waits for a call.
pub(super) struct WaitingGrammar {
    followed: Box<Followed>,
    watch: CallWatch,
}

/// Says what has become of a grammar that waits.
pub(super) enum Waited {
    /// It waits on.
    Waits(Box<WaitingGrammar>),
    /// A call has started, and this has taken what there is of it.
    Counts(Box<Followed>),
    /// It does not fit, or waits no longer.
    Dropped,
}

impl WaitingGrammar {
    /// Returns a grammar that waits, or why it cannot.
    pub(super) fn new(followed: Box<Followed>, start: &CallStart) -> Result<Self, String> {
        let CallStart { words, patterns, thoughts, prefix } = start;
        let starts = if patterns.is_empty() {
            Start::Words(words.clone())
        } else {
            let words = words.iter().map(|word| Pattern::of_word(word));
            let patterns: Result<_, _> = words.chain(patterns.iter().map(|pattern| Pattern::new(pattern))).collect();
            Start::Patterns(patterns.map_err(|error| format!("what starts a tool call cannot be looked for: {error}"))?)
        };
        Ok(Self { followed, watch: CallWatch::new(starts, thoughts.clone(), prefix) })
    }

    /// Takes the next token of the answer, which spells `piece`.
    pub(super) fn push(mut self: Box<Self>, token: Token, piece: &[u8]) -> Waited {
        match self.watch.push(token, piece) {
            Seen::Nothing => Waited::Waits(self),
            Seen::Full => Waited::Dropped,
            Seen::Call(tokens) => {
                let fits = |(token, bytes): &(Token, Vec<u8>)| self.followed.take_part(*token, bytes);
                if tokens.iter().all(fits) { Waited::Counts(self.followed) } else { Waited::Dropped }
            }
        }
    }
}
