//! Thoughts before an answer that follows a schema or is a tool call: they are free, and the rule counts from their end
//! on.
//!
//! Not here: how thoughts are told from content for the client (`lifecycle::reading`).
//! The idea: where the prompt has opened thoughts, the answer begins in them. Where the model opens them itself, its token for it may
//! come first besides what the rule allows. What else stands in the token that closes them is the rule's.

use warmpath_common::ids::Token;
use warmpath_worker_core::call_watch::{CallWatch, Seen, Start, Thoughts};

use super::rule::Rule;
use super::schema_or_call::SchemaOrCall;

/// Says that thoughts may come before what follows a schema.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ThoughtsFirst {
    /// Is the token that opens them; absent where the prompt has done so.
    pub opening: Option<Token>,
    /// Lists what closes them.
    pub ends: Vec<String>,
}

/// Is an answer before its schema counts.
pub(super) struct Thinking {
    /// Is the token that would open thoughts, as long as nothing was said.
    pub(super) opening: Option<Token>,
    ends: Vec<String>,
    /// Texts that begin a call, and so are part of what follows the rule where they close the thoughts.
    calls: Vec<String>,
    watch: CallWatch,
    /// What will count.
    pub(super) then: SchemaOrCall,
}

/// Says what a token makes of thoughts.
pub(super) enum Thought {
    GoesOn(Box<Thinking>),
    /// This counts from here on.
    IsOver(Rule),
}

impl Thinking {
    /// Returns an answer at its start; `calls` lists texts that begin a tool call.
    pub(super) fn new(first: &ThoughtsFirst, calls: Vec<String>, then: SchemaOrCall) -> Self {
        let ThoughtsFirst { opening, ends } = first.clone();
        let watch = CallWatch::new(Start::Words(ends.clone()), Thoughts::default(), "");
        Self { opening, ends, calls, watch, then }
    }

    /// Takes the next token of the answer, which spells `piece`.
    ///
    /// Errors: the rule does not allow what stands behind the thoughts in one token with their end.
    pub(super) fn push(mut self: Box<Self>, token: Token, piece: &[u8]) -> Result<Thought, String> {
        let rule = match self.opening.take() {
            Some(opening) if opening == token => return Ok(Thought::GoesOn(self)),
            Some(_) => self.then.take(token)?,
            None => match self.watch.push(token, piece) {
                Seen::Call(tokens) => {
                    let rest = self.behind(&tokens);
                    self.then.take_text(&rest)?
                }
                Seen::Nothing | Seen::Full => return Ok(Thought::GoesOn(self)),
            },
        };
        Ok(Thought::IsOver(rule))
    }

    /// Returns what stands behind the end of the thoughts with which these tokens begin, without space before it.
    fn behind(&self, tokens: &[(Token, Vec<u8>)]) -> Vec<u8> {
        let text: Vec<u8> = tokens.iter().flat_map(|(_, bytes)| bytes).copied().collect();
        let ends = self.ends.iter().filter(|end| text.starts_with(end.as_bytes()) && !self.calls.contains(end));
        let n_end = ends.map(String::len).max().unwrap_or_default();
        text[n_end..].trim_ascii_start().to_vec()
    }
}
