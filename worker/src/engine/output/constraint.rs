//! What a response must follow: a schema, a client's grammar, that of tool calls, or nothing.
//!
//! A response follows one of them at a time, or a schema until it turns out to be a call, so it is one value. Grammars
//! are compiled by the caller and cached, because clients send the same ones, and the same tools, with every request.
//!
//! Not here: matching a schema (`json_schema`) or a grammar (`grammar`, `tool_grammar`), choosing a token (`sampler`).

use std::sync::Arc;

use llama_cpp_2::model::LlamaModel;
use llama_cpp_2::token::LlamaToken;
use moka::sync::Cache;
use warmpath_common::ids::Token;
use warmpath_worker_output::grammar::{Grammar, Tokens};

use super::arguments::FollowedArguments;
use super::grammar::{Followed, Spelled};
use super::json_schema::{Constraint, SchemaCompiler};
use super::reasoning::{Reasoning, ReasoningStep};
use super::schema_or_call::SchemaOrCall;
use super::tool_grammar::{Begin, CallGrammar, Waited, WaitingGrammar};
use crate::engine::api::{EngineError, Generation};
use crate::engine::handle::Shared;

/// Most memory of cached grammars. Units: bytes. Source: own choice; 60 kB of text take some 0.3 MB, the largest some
/// 10.
const KEPT_BYTES_MAX: u64 = 64 << 20;

/// The rule that a response follows at the moment.
pub(crate) enum Rule {
    /// None, or none any more.
    Free,
    Schema(Box<Constraint>),
    Grammar(Box<Followed>),
    /// A schema, or a tool call.
    SchemaOrCall(Box<SchemaOrCall>),
    /// None, until a tool call starts.
    Waiting(Box<WaitingGrammar>),
    /// None, until the model's reasoning is over.
    Reasoning(Box<Reasoning>),
}

impl Rule {
    /// Returns the rule of a generation's response, at its start.
    ///
    /// Errors: `Sampler` if it does not parse, would take too much work, or cannot be combined with the rest.
    pub(crate) fn begin(shared: &Shared, generation: &Generation) -> Result<Self, EngineError> {
        let text = generation.sampling.grammar.as_deref().filter(|text| !text.is_empty());
        let refuse = |reason: &str| Err(EngineError::Sampler { reason: reason.to_owned() });
        match (&generation.schema, text, &generation.calls) {
            (None, None, None) => Ok(Self::Free),
            (Some(_), None, _) if generation.ignore_eos => refuse("a schema does not go with ignore_eos"),
            (Some(schema), None, calls) => {
                let followed = calls.as_ref().map(|calls| Self::followed(shared, calls, generation)).transpose();
                let followed = followed.map_err(|reason| EngineError::Sampler { reason })?;
                let then = SchemaOrCall::new(Box::new(schema.begin()), followed);
                let words = match calls.as_ref().map(|calls| &calls.begin) {
                    Some(Begin::AtCall(start)) => start.words.clone(),
                    _ => Vec::new(),
                };
                Ok(match &generation.reasoning {
                    None => then.into_rule(),
                    Some(first) => Self::Reasoning(Box::new(Reasoning::new(first, words, then))),
                })
            }
            (None, Some(text), None) => Self::grammar(shared, text).map_err(|reason| EngineError::Sampler { reason }),
            (None, None, Some(calls)) => {
                Self::calls(shared, calls, generation).map_err(|reason| EngineError::Sampler { reason })
            }
            _ => refuse("an answer does not follow a grammar of the client's and something else"),
        }
    }

    fn grammar(shared: &Shared, text: &str) -> Result<Self, String> {
        let (grammar, compiler) = shared.grammar(text, 0)?;
        let free = FollowedArguments::none(compiler);
        Ok(Self::Grammar(Box::new(Followed::begin(&grammar, compiler.vocabulary(), Spelled::default(), free)?)))
    }

    /// Returns the grammar of calls at its start.
    fn followed(shared: &Shared, calls: &CallGrammar, generation: &Generation) -> Result<Box<Followed>, String> {
        let (grammar, compiler) = shared.grammar(&calls.text, calls.arguments.schemas.len())?;
        let spelled = Spelled::new(&shared.model, &generation.spelled);
        let arguments = FollowedArguments::new(compiler, Arc::clone(&calls.arguments));
        Followed::begin(&grammar, compiler.vocabulary(), spelled, arguments).map(Box::new)
    }

    fn calls(shared: &Shared, calls: &CallGrammar, generation: &Generation) -> Result<Self, String> {
        let mut followed = Self::followed(shared, calls, generation)?;
        match &calls.begin {
            Begin::AtOnce { seen } => {
                if !followed.take_text(seen.as_bytes())? {
                    return Err("the prompt's end does not fit the grammar of the tools".to_owned());
                }
                Ok(Self::Grammar(followed))
            }
            Begin::AtCall(start) => Ok(Self::Waiting(Box::new(WaitingGrammar::new(followed, start)?))),
        }
    }

    /// Takes the token that was chosen.
    ///
    /// Errors: `Sampler` if it is not allowed, or would take too much work.
    pub(crate) fn take(&mut self, model: &LlamaModel, token: Token) -> Result<(), EngineError> {
        let refuse = |reason| EngineError::Sampler { reason };
        *self = match std::mem::replace(self, Self::Free) {
            Self::Free => Self::Free,
            Self::Schema(mut constraint) => {
                constraint.take(token).map_err(|reason| refuse(unfollowed(reason)))?;
                Self::Schema(constraint)
            }
            Self::Grammar(mut followed) => {
                followed.take(token).map_err(refuse)?;
                Self::Grammar(followed)
            }
            Self::SchemaOrCall(either) => either.take(token).map_err(refuse)?,
            Self::Waiting(waiting) => match waiting.push(token, &piece(model, token)) {
                Waited::Waits(waiting) => Self::Waiting(waiting),
                Waited::Counts(followed) => Self::Grammar(followed),
                Waited::Dropped => Self::Free,
            },
            Self::Reasoning(thinking) => {
                let thought = thinking.push(token, &piece(model, token));
                match thought.map_err(refuse)? {
                    ReasoningStep::GoesOn(thinking) => Self::Reasoning(thinking),
                    ReasoningStep::IsOver(rule) => rule,
                }
            }
        };
        Ok(())
    }
}

/// Returns the message that a schema cannot be followed, for the client.
pub(crate) fn unfollowed(reason: impl std::fmt::Display) -> String {
    format!("the schema cannot be followed further: {reason}")
}

/// Returns the text of a token, control tokens spelled.
fn piece(model: &LlamaModel, token: Token) -> Vec<u8> {
    model.vocab().token_to_piece(LlamaToken(token.cast_signed()), true, None)
}

/// Cache of compiled grammars by their text.
pub(crate) struct KnownGrammars(Cache<blake3::Hash, Arc<Grammar>>);

impl KnownGrammars {
    pub(crate) fn new() -> Self {
        let weigh = |_: &blake3::Hash, grammar: &Arc<Grammar>| u32::try_from(grammar.n_bytes()).unwrap_or(u32::MAX);
        Self(Cache::builder().max_capacity(KEPT_BYTES_MAX).weigher(weigh).build())
    }

    /// Returns a grammar compiled, or its error for the client; it may name `n_beyond` tokens beyond the vocabulary.
    ///
    /// Cost: microseconds for one that is cached, milliseconds for others, some 0.15 s for the largest.
    fn get(&self, model: &LlamaModel, text: &str, n_beyond: usize) -> Result<Arc<Grammar>, String> {
        let named = |name: &str| match model.vocab().tokenize(name.as_bytes(), false, true).as_slice() {
            [token] => Some(token.0.unsigned_abs()),
            _ => None,
        };
        let compile = || {
            let n_beyond = u32::try_from(n_beyond).unwrap_or(u32::MAX);
            let tokens = Tokens { n_vocab: model.n_vocab().unsigned_abs().saturating_add(n_beyond), named: &named };
            Grammar::new(text, tokens).map(Arc::new).map_err(|error| format!("the grammar does not parse: {error}"))
        };
        let key = blake3::Hasher::new().update(&n_beyond.to_le_bytes()).update(text.as_bytes()).finalize();
        let compiled = self.0.try_get_with(key, compile);
        compiled.map_err(|reason: Arc<String>| String::clone(&reason))
    }
}

impl Shared {
    /// Returns a grammar compiled, which may name this many tokens beyond the vocabulary, and the compiler.
    fn grammar(&self, text: &str, n_beyond: usize) -> Result<(Arc<Grammar>, &SchemaCompiler), String> {
        let compiler = self.schemas().as_ref().map_err(Clone::clone)?;
        Ok((self.grammars.get(&self.model, text, n_beyond)?, compiler))
    }
}
