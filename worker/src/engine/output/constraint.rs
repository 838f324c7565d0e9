//! The rule of a response: a schema, a client's grammar, the grammar of tool calls, or none.
//!
//! One rule applies at a time, so it is one enum; a schema may be replaced by the grammar of calls when the response
//! turns out to be a call. Grammars are compiled by the calling thread and cached, because clients send the same
//! grammars and tools with every request.
//!
//! Not here: matching a schema (`json_schema`) or a grammar (`grammar`, `tool_grammar`), choosing a token (`sampler`).

use std::sync::Arc;

use llama_cpp_2::model::LlamaModel;
use llama_cpp_2::token::LlamaToken;
use moka::sync::Cache;
use warmpath_common::ids::Token;
use warmpath_worker_output::grammar::{Grammar, GrammarVocabulary};

use super::arguments::FollowedArguments;
use super::grammar::{FollowedGrammar, SpelledTokens};
use super::json_schema::{Constraint, SchemaCompiler};
use super::reasoning::{Reasoning, ReasoningStep};
use super::schema_or_call::SchemaOrCall;
use super::tool_grammar::{Begin, CallGrammar, Waited, WaitingGrammar};
use crate::engine::api::{EngineError, Generation};
use crate::engine::handle::EngineShared;

/// Maximum memory of cached grammars. Units: bytes. Source: room for some 200 grammars of 60 kB, which take 0.3 MB
/// each, or for six of the largest, which take 10 MB.
const KEPT_BYTES_MAX: u64 = 64 << 20;

/// Rule that a response follows at the moment.
pub(crate) enum ResponseRule {
    /// None, from the start or from now on.
    Free,
    Schema(Box<Constraint>),
    Grammar(Box<FollowedGrammar>),
    /// A schema, or a tool call.
    SchemaOrCall(Box<SchemaOrCall>),
    /// None until a tool call starts.
    Waiting(Box<WaitingGrammar>),
    /// None until the model's reasoning ends.
    Reasoning(Box<Reasoning>),
}

impl ResponseRule {
    /// Returns the rule at the start of a response.
    ///
    /// Errors: `Sampler` if the rule does not parse, takes too much work, or cannot be combined with other parameters.
    pub(crate) fn begin(shared: &EngineShared, generation: &Generation) -> Result<Self, EngineError> {
        let text = generation.sampling.grammar.as_deref().filter(|text| !text.is_empty());
        let refuse = |reason: &str| Err(EngineError::Sampler { reason: reason.to_owned() });
        match (&generation.schema, text, &generation.calls) {
            (None, None, None) => Ok(Self::Free),
            (Some(_), None, _) if generation.ignore_eos => refuse("a schema cannot be combined with ignore_eos"),
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
            _ => refuse("a client's grammar cannot be combined with a schema or tool calls"),
        }
    }

    fn grammar(shared: &EngineShared, text: &str) -> Result<Self, String> {
        let (grammar, compiler) = shared.grammar(text, 0)?;
        let free = FollowedArguments::none(compiler);
        Ok(Self::Grammar(Box::new(FollowedGrammar::begin(
            &grammar,
            compiler.vocabulary(),
            SpelledTokens::default(),
            free,
        )?)))
    }

    /// Returns the grammar of calls in its initial state.
    fn followed(
        shared: &EngineShared,
        calls: &CallGrammar,
        generation: &Generation,
    ) -> Result<Box<FollowedGrammar>, String> {
        let (grammar, compiler) = shared.grammar(&calls.text, calls.arguments.schemas.len())?;
        let spelled = SpelledTokens::new(&shared.model, &generation.spelled);
        let arguments = FollowedArguments::new(compiler, Arc::clone(&calls.arguments));
        FollowedGrammar::begin(&grammar, compiler.vocabulary(), spelled, arguments).map(Box::new)
    }

    fn calls(shared: &EngineShared, calls: &CallGrammar, generation: &Generation) -> Result<Self, String> {
        let mut followed = Self::followed(shared, calls, generation)?;
        match &calls.begin {
            Begin::AtOnce { seen } => {
                if !followed.take_text(seen.as_bytes())? {
                    return Err("the end of the prompt does not match the grammar of tool calls".to_owned());
                }
                Ok(Self::Grammar(followed))
            }
            Begin::AtCall(start) => Ok(Self::Waiting(Box::new(WaitingGrammar::new(followed, start)?))),
        }
    }

    /// Advances by the chosen token.
    ///
    /// Errors: `Sampler` if the token is not allowed, or checking it takes too much work.
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

/// Returns the client's message for a schema that cannot be followed any further.
pub(crate) fn unfollowed(reason: impl std::fmt::Display) -> String {
    format!("the schema cannot be followed further: {reason}")
}

/// Returns the text of a token, also of a control token.
pub(super) fn piece(model: &LlamaModel, token: Token) -> Vec<u8> {
    model.vocab().token_to_piece(LlamaToken(token.cast_signed()), true, None)
}

/// Cache of compiled grammars by their text.
pub(crate) struct KnownGrammars(Cache<blake3::Hash, Arc<Grammar>>);

impl KnownGrammars {
    pub(crate) fn new() -> Self {
        let weigh = |_: &blake3::Hash, grammar: &Arc<Grammar>| u32::try_from(grammar.n_bytes()).unwrap_or(u32::MAX);
        Self(Cache::builder().max_capacity(KEPT_BYTES_MAX).weigher(weigh).build())
    }

    /// Returns a compiled grammar, which may name `n_beyond` tokens beyond the vocabulary.
    ///
    /// Errors: the parser's message, for the client.
    ///
    /// Cost: microseconds for a cached grammar, milliseconds for others, some 0.15 s for the largest.
    fn get(&self, model: &LlamaModel, text: &str, n_beyond: usize) -> Result<Arc<Grammar>, String> {
        let named = |name: &str| match model.vocab().tokenize(name.as_bytes(), false, true).as_slice() {
            [token] => Some(token.0.unsigned_abs()),
            _ => None,
        };
        let compile = || {
            let n_beyond = u32::try_from(n_beyond).unwrap_or(u32::MAX);
            let tokens =
                GrammarVocabulary { n_vocab: model.n_vocab().unsigned_abs().saturating_add(n_beyond), named: &named };
            Grammar::new(text, tokens).map(Arc::new).map_err(|error| format!("the grammar does not parse: {error}"))
        };
        let key = blake3::Hasher::new().update(&n_beyond.to_le_bytes()).update(text.as_bytes()).finalize();
        let compiled = self.0.try_get_with(key, compile);
        compiled.map_err(|reason: Arc<String>| String::clone(&reason))
    }
}

impl EngineShared {
    /// Returns a compiled grammar, which may name `n_beyond` tokens beyond the vocabulary, and the schema compiler.
    pub(crate) fn grammar(&self, text: &str, n_beyond: usize) -> Result<(Arc<Grammar>, &SchemaCompiler), String> {
        let compiler = self.schemas().as_ref().map_err(Clone::clone)?;
        Ok((self.grammars.get(&self.model, text, n_beyond)?, compiler))
    }
}
