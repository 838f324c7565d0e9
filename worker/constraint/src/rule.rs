//! The rule of a response: a schema, a client's grammar, the grammar of tool calls, or none.
//!
//! One rule applies at a time, so it is one enum; a schema may be replaced by the grammar of calls when the response
//! turns out to be a call.
//!
//! Not here: matching a schema (`compiler`) or a grammar (`followed`, `call_grammar`), choosing a token (the engine).

use std::sync::Arc;

use warmpath_common::ids::Token;

use crate::arguments::FollowedArguments;
use crate::call_grammar::{Begin, CallGrammar, Waited, WaitingGrammar};
use crate::compiler::{CompiledSchema, Constraint, RuleCompiler};
use crate::followed::{FollowedGrammar, SpelledTokens};
use crate::reasoning::{Reasoning, ReasoningFirst, ReasoningStep};
use crate::schema_or_call::SchemaOrCall;

/// Rule that a response follows at the moment.
pub enum ResponseRule {
    /// None, from the start or from now on.
    Free,
    /// A schema.
    Schema(Box<Constraint>),
    /// A grammar of a client or of calls.
    Grammar(Box<FollowedGrammar>),
    /// A schema, or a tool call.
    SchemaOrCall(Box<SchemaOrCall>),
    /// None until a tool call starts.
    Waiting(Box<WaitingGrammar>),
    /// None until the model's reasoning ends.
    Reasoning(Box<Reasoning>),
}

impl ResponseRule {
    /// Returns the rule at the start of a response that follows a schema, a client's grammar or a grammar of calls.
    ///
    /// `spelled` has the control tokens that are part of the response's text.
    /// Errors: the reason, for the client, if the rule does not parse, takes too much work, or cannot be combined with
    /// another one.
    pub fn begin(
        compiler: &RuleCompiler,
        schema: Option<&CompiledSchema>,
        grammar: Option<&str>,
        calls: Option<&CallGrammar>,
        reasoning: Option<&ReasoningFirst>,
        spelled: SpelledTokens,
    ) -> Result<Self, String> {
        match (schema, grammar, calls) {
            (None, None, None) => Ok(Self::Free),
            (Some(schema), None, calls) => {
                let followed_calls = calls.map(|calls| Self::followed(compiler, calls, spelled)).transpose()?;
                let then = SchemaOrCall::new(Box::new(schema.begin()), followed_calls);
                let words = match calls.map(|calls| &calls.begin) {
                    Some(Begin::AtCall(start)) => start.words.clone(),
                    _ => Vec::new(),
                };
                Ok(match reasoning {
                    None => then.into_rule(),
                    Some(first) => Self::Reasoning(Box::new(Reasoning::new(first, words, then))),
                })
            }
            (None, Some(text), None) => {
                let grammar = compiler.grammar(text, 0)?;
                let free = FollowedArguments::none(compiler);
                let followed_grammar =
                    FollowedGrammar::begin(&grammar, compiler.vocabulary(), SpelledTokens::default(), free)?;
                Ok(Self::Grammar(Box::new(followed_grammar)))
            }
            (None, None, Some(calls)) => Self::calls(compiler, calls, spelled),
            _ => Err("a client's grammar cannot be combined with a schema or tool calls".to_owned()),
        }
    }

    /// Returns the grammar of calls in its initial state.
    fn followed(
        compiler: &RuleCompiler,
        calls: &CallGrammar,
        spelled: SpelledTokens,
    ) -> Result<Box<FollowedGrammar>, String> {
        let grammar = compiler.grammar(&calls.text, calls.arguments.schemas.len())?;
        let arguments = FollowedArguments::new(compiler, Arc::clone(&calls.arguments));
        FollowedGrammar::begin(&grammar, compiler.vocabulary(), spelled, arguments).map(Box::new)
    }

    fn calls(compiler: &RuleCompiler, calls: &CallGrammar, spelled: SpelledTokens) -> Result<Self, String> {
        let mut followed_calls = Self::followed(compiler, calls, spelled)?;
        match &calls.begin {
            Begin::AtOnce { seen } => {
                if !followed_calls.take_text(seen.as_bytes())? {
                    return Err("the end of the prompt does not match the grammar of tool calls".to_owned());
                }
                Ok(Self::Grammar(followed_calls))
            }
            Begin::AtCall(start) => Ok(Self::Waiting(Box::new(WaitingGrammar::new(followed_calls, start)?))),
        }
    }

    /// Advances by the chosen token, whose text is `piece`.
    ///
    /// Errors: the reason, for the client, if the token is not allowed, or checking it takes too much work.
    pub fn take(&mut self, token: Token, piece: impl FnOnce() -> Vec<u8>) -> Result<(), String> {
        *self = match std::mem::replace(self, Self::Free) {
            Self::Free => Self::Free,
            Self::Schema(mut constraint) => {
                constraint.take(token).map_err(unfollowed)?;
                Self::Schema(constraint)
            }
            Self::Grammar(mut followed_grammar) => {
                followed_grammar.take(token)?;
                Self::Grammar(followed_grammar)
            }
            Self::SchemaOrCall(either) => either.take(token)?,
            Self::Waiting(waiting) => match waiting.push(token, &piece()) {
                Waited::Waits(waiting) => Self::Waiting(waiting),
                Waited::Counts(followed_grammar) => Self::Grammar(followed_grammar),
                Waited::Dropped => Self::Free,
            },
            Self::Reasoning(thinking) => match thinking.push(token, &piece())? {
                ReasoningStep::GoesOn(thinking) => Self::Reasoning(thinking),
                ReasoningStep::IsOver(rule) => rule,
            },
        };
        Ok(())
    }
}

/// Returns the client's message for a schema that cannot be followed any further.
pub fn unfollowed(reason: impl std::fmt::Display) -> String {
    format!("the schema cannot be followed further: {reason}")
}
