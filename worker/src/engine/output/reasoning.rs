//! Reasoning before a response that follows a schema or is a tool call: it is free, and the rule applies from its end
//! on.
//!
//! If the prompt has opened the reasoning, the response begins in it. If the model opens it itself, its opening token
//! may come first besides the tokens that the rule allows. Text after the end of the reasoning, in the same token,
//! belongs to the rule.
//!
//! Not here: how reasoning is separated from content for the client (`lifecycle::output_parser`).

use warmpath_common::ids::Token;
use warmpath_worker_output::tool_call_detector::{CallDetection, ReasoningMarks, StartTrigger, ToolCallDetector};

use super::constraint::Rule;
use super::schema_or_call::SchemaOrCall;

/// Reasoning that may precede the text that follows a schema.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReasoningFirst {
    /// Token that opens it; `None` if the prompt has done so.
    pub opening: Option<Token>,
    /// Texts that close it.
    pub ends: Vec<String>,
}

/// A response before its schema applies.
pub(crate) struct Reasoning {
    /// Token that would open reasoning, until the response has begun.
    pub(crate) opening: Option<Token>,
    ends: Vec<String>,
    /// Texts that begin a call, and so are part of the constrained text if they close the reasoning.
    calls: Vec<String>,
    watch: ToolCallDetector,
    /// The rule that will apply.
    pub(crate) then: SchemaOrCall,
}

/// State after a token.
pub(crate) enum ReasoningStep {
    GoesOn(Box<Reasoning>),
    /// The reasoning is over, and this rule applies from now on.
    IsOver(Rule),
}

impl Reasoning {
    /// Returns a response at its start; `calls` has the texts that begin a tool call.
    pub(crate) fn new(first: &ReasoningFirst, calls: Vec<String>, then: SchemaOrCall) -> Self {
        let ReasoningFirst { opening, ends } = first.clone();
        let watch = ToolCallDetector::new(StartTrigger::Words(ends.clone()), ReasoningMarks::default(), "");
        Self { opening, ends, calls, watch, then }
    }

    /// Takes the next token of the response, which spells `piece`.
    ///
    /// Errors: the rule does not allow the text after the end of the reasoning in the same token.
    pub(crate) fn push(mut self: Box<Self>, token: Token, piece: &[u8]) -> Result<ReasoningStep, String> {
        let rule = match self.opening.take() {
            Some(opening) if opening == token => return Ok(ReasoningStep::GoesOn(self)),
            Some(_) => self.then.take(token)?,
            None => match self.watch.push(token, piece) {
                CallDetection::Call(tokens) => {
                    let rest = self.behind(&tokens);
                    self.then.take_text(&rest)?
                }
                CallDetection::Nothing | CallDetection::Full => return Ok(ReasoningStep::GoesOn(self)),
            },
        };
        Ok(ReasoningStep::IsOver(rule))
    }

    /// Returns the text after the end of the reasoning with which these tokens begin, without space before it.
    fn behind(&self, tokens: &[(Token, Vec<u8>)]) -> Vec<u8> {
        let text: Vec<u8> = tokens.iter().flat_map(|(_, bytes)| bytes).copied().collect();
        let ends = self.ends.iter().filter(|end| text.starts_with(end.as_bytes()) && !self.calls.contains(end));
        let n_end = ends.map(String::len).max().unwrap_or_default();
        text[n_end..].trim_ascii_start().to_vec()
    }
}
