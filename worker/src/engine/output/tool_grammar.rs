//! The grammar of tool calls: it applies from a response's start if a call is required, else from where one starts.
//!
//! A grammar that cannot be followed after all, as when a model writes a call in its own way, is dropped: the response
//! continues without one. Not here: where a call starts (`tool_call_detector`), matching a grammar (`grammar`).

use std::sync::Arc;

use warmpath_common::ids::Token;
use warmpath_worker_output::tool_call_detector::{
    CallDetection, Pattern, ReasoningMarks, StartTrigger, ToolCallDetector,
};

use super::arguments::ArgumentSchemas;
use super::grammar::Followed;

/// Constraints of a response's tool calls.
#[derive(Debug, Clone, PartialEq)]
pub struct CallGrammar {
    /// The grammar in GBNF.
    pub text: Arc<str>,
    /// Schemas of arguments, if the grammar does not define these.
    pub arguments: Arc<ArgumentSchemas>,
    /// When the grammar starts to apply.
    pub begin: Begin,
}

/// When the grammar of tool calls starts to apply.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Begin {
    /// At once.
    AtOnce {
        /// End of the prompt with which the constrained text begins.
        seen: String,
    },
    /// Where a call starts.
    AtCall(CallStart),
}

/// How the start of a call is recognized.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CallStart {
    /// Texts that start a call.
    pub words: Vec<String>,
    /// Regular expressions that match where one starts.
    pub patterns: Vec<String>,
    /// Texts that open and close reasoning, in which no call starts.
    pub marks: ReasoningMarks,
    /// End of the prompt that belongs to the response.
    pub prefix: String,
}

/// A grammar of tool calls that waits for a call.
pub(crate) struct WaitingGrammar {
    followed: Box<Followed>,
    watch: ToolCallDetector,
}

/// State of a waiting grammar after a token.
pub(crate) enum Waited {
    /// It still waits.
    Waits(Box<WaitingGrammar>),
    /// A call has started, and the grammar has taken its first part.
    Counts(Box<Followed>),
    /// It does not match, or waits no longer.
    Dropped,
}

impl WaitingGrammar {
    /// Returns a waiting grammar, or why it cannot be used.
    pub(crate) fn new(followed: Box<Followed>, start: &CallStart) -> Result<Self, String> {
        let CallStart { words, patterns, marks, prefix } = start;
        let starts = if patterns.is_empty() {
            StartTrigger::Words(words.clone())
        } else {
            let words = words.iter().map(|word| Pattern::of_word(word));
            let patterns: Result<_, _> = words.chain(patterns.iter().map(|pattern| Pattern::new(pattern))).collect();
            StartTrigger::Patterns(
                patterns.map_err(|error| format!("what starts a tool call cannot be looked for: {error}"))?,
            )
        };
        Ok(Self { followed, watch: ToolCallDetector::new(starts, marks.clone(), prefix) })
    }

    /// Takes the next token of the response, which spells `piece`.
    pub(crate) fn push(mut self: Box<Self>, token: Token, piece: &[u8]) -> Waited {
        match self.watch.push(token, piece) {
            CallDetection::Nothing => Waited::Waits(self),
            CallDetection::Full => Waited::Dropped,
            CallDetection::Call(tokens) => {
                let fits = |(token, bytes): &(Token, Vec<u8>)| self.followed.take_part(*token, bytes);
                if tokens.iter().all(fits) { Waited::Counts(self.followed) } else { Waited::Dropped }
            }
        }
    }
}
