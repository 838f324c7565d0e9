//! The grammar of tool calls: it applies from a response's start if a call is required, otherwise from the start of a
//! call.
//!
//! If the text does not match the grammar at a call's start, for example because the model writes calls in its own
//! format, the grammar is dropped and the response continues without it. Not here: recognizing the start of a call
//! (`tool_call_detector`), matching a grammar (`followed`).

use std::sync::Arc;

use warmpath_common::ids::Token;
use warmpath_worker_output::tool_call_detector::{
    CallDetection, Pattern, ReasoningMarks, StartTrigger, ToolCallDetector,
};

use crate::arguments::ArgumentSchemas;
use crate::followed::FollowedGrammar;

/// Constraints of a response's tool calls.
#[derive(Debug, Clone, PartialEq)]
pub struct CallGrammar {
    /// Grammar in GBNF.
    pub text: Arc<str>,
    /// Schemas of arguments that the grammar has only placeholders for.
    pub arguments: Arc<ArgumentSchemas>,
    /// When the grammar starts to apply.
    pub begin: Begin,
}

/// When the grammar of tool calls starts to apply.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Begin {
    /// At the start of the response.
    AtOnce {
        /// End of the prompt that belongs to the constrained text.
        seen: String,
    },
    /// At the start of a call.
    AtCall(CallStart),
}

/// Signs of the start of a call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CallStart {
    /// Texts that start a call.
    pub words: Vec<String>,
    /// Regular expressions that match the start of a call.
    pub patterns: Vec<String>,
    /// Texts that open and close reasoning; no call starts within it.
    pub marks: ReasoningMarks,
    /// End of the prompt that belongs to the response.
    pub prefix: String,
}

/// A grammar of tool calls that waits for a call.
pub struct WaitingGrammar {
    followed: Box<FollowedGrammar>,
    watch: ToolCallDetector,
}

/// State of a waiting grammar after a token.
pub enum Waited {
    /// No call has started yet.
    Waits(Box<WaitingGrammar>),
    /// A call has started and matches the grammar so far.
    Counts(Box<FollowedGrammar>),
    /// The call does not match the grammar, or no call can start any more.
    Dropped,
}

impl WaitingGrammar {
    /// Returns a waiting grammar.
    ///
    /// Errors: the reason why it cannot be used.
    pub fn new(followed_grammar: Box<FollowedGrammar>, start: &CallStart) -> Result<Self, String> {
        let CallStart { words, patterns, marks, prefix } = start;
        let starts = if patterns.is_empty() {
            StartTrigger::Words(words.clone())
        } else {
            let words = words.iter().map(|word| Pattern::of_word(word));
            let patterns: Result<_, _> = words.chain(patterns.iter().map(|pattern| Pattern::new(pattern))).collect();
            StartTrigger::Patterns(
                patterns.map_err(|error| format!("the pattern for the start of a tool call is invalid: {error}"))?,
            )
        };
        Ok(Self { followed: followed_grammar, watch: ToolCallDetector::new(starts, marks.clone(), prefix) })
    }

    /// Advances by the response's next token, whose text is `piece`.
    pub fn push(mut self: Box<Self>, token: Token, piece: &[u8]) -> Waited {
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
