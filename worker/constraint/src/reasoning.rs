//! Reasoning before a constrained response: it is unconstrained, and the rule applies after its end.
//!
//! If the prompt has opened the reasoning, the response starts within it. Otherwise the first token may be the one that
//! opens the reasoning, in addition to the tokens that the rule allows. If the token that ends the reasoning has more
//! text, the rule applies to that text.
//!
//! Not here: how reasoning is separated from content for the client (the worker's `output_parser`).

use warmpath_common::ids::Token;
use warmpath_worker_output::tool_call_detector::{CallDetection, ReasoningMarks, StartTrigger, ToolCallDetector};

use crate::rule::ResponseRule;
use crate::schema_or_call::SchemaOrCall;

/// Marks of reasoning that may precede a constrained text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReasoningFirst {
    /// Token that opens reasoning; `None` if the prompt has opened it.
    pub opening: Option<Token>,
    /// Texts that close reasoning.
    pub ends: Vec<String>,
}

/// A response before its rule applies.
pub struct Reasoning {
    /// Token that would open reasoning; `None` once the response has begun.
    pub opening: Option<Token>,
    ends: Vec<String>,
    /// Texts that begin a call. If such a text ends the reasoning, it is part of the constrained text.
    calls: Vec<String>,
    watch: ToolCallDetector,
    /// The rule that will apply.
    pub then: SchemaOrCall,
}

/// State after a token.
pub enum ReasoningStep {
    GoesOn(Box<Reasoning>),
    /// The reasoning has ended, and this rule applies from now on.
    IsOver(ResponseRule),
}

impl Reasoning {
    /// Returns the state at a response's start; `calls` has the texts that begin a tool call.
    pub fn new(first: &ReasoningFirst, calls: Vec<String>, then: SchemaOrCall) -> Self {
        let ReasoningFirst { opening, ends } = first.clone();
        let watch = ToolCallDetector::new(StartTrigger::Words(ends.clone()), ReasoningMarks::default(), "");
        Self { opening, ends, calls, watch, then }
    }

    /// Advances by the response's next token, whose text is `piece`.
    ///
    /// Errors: the token ends the reasoning, and the rule does not allow the rest of its text.
    pub fn push(mut self: Box<Self>, token: Token, piece: &[u8]) -> Result<ReasoningStep, String> {
        let rule = match self.opening.take() {
            Some(opening) if opening == token => return Ok(ReasoningStep::GoesOn(self)),
            Some(_) => self.then.take(token)?,
            None => match self.watch.push(token, piece) {
                CallDetection::Call(tokens) => {
                    let text: Vec<u8> = tokens.into_iter().flat_map(|(_, bytes)| bytes).collect();
                    let text = self.behind(&text).to_vec();
                    self.then.take_text(&text)?
                }
                CallDetection::Nothing | CallDetection::Full => return Ok(ReasoningStep::GoesOn(self)),
            },
        };
        Ok(ReasoningStep::IsOver(rule))
    }

    /// Returns the part of a text after the end of the reasoning, with which it begins, without leading space.
    fn behind<'t>(&self, text: &'t [u8]) -> &'t [u8] {
        let ends = self.ends.iter().filter(|end| text.starts_with(end.as_bytes()) && !self.calls.contains(end));
        let n_end = ends.map(String::len).max().unwrap_or_default();
        text[n_end..].trim_ascii_start()
    }
}
