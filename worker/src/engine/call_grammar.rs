//! The grammar of tool calls: asked from an answer's beginning where a call is required, else from where one starts.
//!
//! Not here: where a call starts (`call_watch` of the core), what is sampled under it (`sampler`).
//! The idea: it is llama.cpp's own grammar sampler, which is handed tokens only where it may matter. What cannot be followed
//! after all, as when a model goes on with a call in its own way, is dropped: the answer goes on without a grammar.

mod text;

use llama_cpp_2::model::LlamaModel;
use llama_cpp_2::sampling::LlamaSampler;
use llama_cpp_2::token::LlamaToken;
use llama_cpp_2::token::data::LlamaTokenData;
use llama_cpp_2::token::data_array::LlamaTokenDataArray;
use warmpath_common::ids::Token;
use warmpath_worker_core::call_watch::{CallWatch, Seen, Start, Thoughts};

/// Is how tool calls of an answer are constrained.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CallGrammar {
    /// Is the grammar in GBNF.
    pub text: String,
    /// Says when it begins to count.
    pub begin: Begin,
}

/// Says when the grammar of tool calls begins to count.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Begin {
    /// At once: it has seen these tokens, the end of the prompt.
    AtOnce {
        /// Is the tokens.
        seen: Vec<Token>,
    },
    /// Where a call starts.
    AtCall {
        /// Lists texts that start a call.
        words: Vec<String>,
        /// Lists regular expressions that find where one starts.
        patterns: Vec<String>,
        /// Is what opens thoughts, in which no call starts, and what closes them.
        thoughts: Thoughts,
        /// Is the end of the prompt that belongs to the answer.
        prefix: String,
    },
}

/// Is a grammar of tool calls that waits for a call.
pub(super) struct WaitingGrammar {
    sampler: LlamaSampler,
    watch: CallWatch,
    /// Says that the sampler itself tells whether a call has started.
    tells_itself: bool,
}

/// Is the grammar of tool calls at the start of an answer.
pub(super) enum Built {
    Counts(LlamaSampler),
    Waits(Box<WaitingGrammar>),
}

impl CallGrammar {
    /// Builds the sampler of the grammar, or says why there is none, fit for the client.
    pub(super) fn build(&self, model: &LlamaModel) -> Result<Built, String> {
        match &self.begin {
            Begin::AtOnce { seen } => {
                let mut sampler = text::build(model, &self.text, None)?;
                for token in seen {
                    accept(&mut sampler, model, *token)
                        .map_err(|()| "the prompt's end does not fit the grammar of the tools".to_owned())?;
                }
                Ok(Built::Counts(sampler))
            }
            Begin::AtCall { words, patterns, thoughts, prefix } => {
                let tells_itself = !patterns.is_empty();
                let all: Vec<String> = words.iter().map(|word| escaped(word)).chain(patterns.iter().cloned()).collect();
                let sampler = text::build(model, &self.text, Some(&all))?;
                let start = if tells_itself { Start::Patterns } else { Start::Words(words.clone()) };
                let watch = CallWatch::new(start, thoughts.clone(), prefix);
                Ok(Built::Waits(Box::new(WaitingGrammar { sampler, watch, tells_itself })))
            }
        }
    }
}

/// Says what has become of a grammar that waits.
pub(super) enum Waited {
    /// It waits on.
    Waits(Box<WaitingGrammar>),
    /// A call has started.
    Counts(LlamaSampler),
    /// It does not fit, or waits no longer.
    Dropped,
}

impl WaitingGrammar {
    /// Takes the next token of the answer.
    pub(super) fn push(mut self: Box<Self>, model: &LlamaModel, token: Token) -> Waited {
        let piece = model.vocab().token_to_piece(to_llama(token), true, None);
        match self.watch.push(token, &piece) {
            Seen::Nothing => Waited::Waits(self),
            Seen::Hand(tokens) => self.hand(model, &tokens),
            Seen::Full => Waited::Dropped,
        }
    }

    fn hand(mut self: Box<Self>, model: &LlamaModel, tokens: &[Token]) -> Waited {
        let mut fits = |tokens: &[Token]| tokens.iter().all(|token| accept(&mut self.sampler, model, *token).is_ok());
        if !fits(tokens) {
            return Waited::Dropped;
        }
        if self.tells_itself && !constrains(&mut self.sampler, model) {
            return Waited::Waits(self);
        }
        let held = self.watch.take_held();
        if held.iter().all(|token| accept(&mut self.sampler, model, *token).is_ok()) {
            Waited::Counts(self.sampler)
        } else {
            Waited::Dropped
        }
    }
}

/// Returns whether a grammar that began to wait for a call has seen one start: then the answer cannot end here.
fn constrains(sampler: &mut LlamaSampler, model: &LlamaModel) -> bool {
    let end = LlamaTokenData::new(model.vocab().eos(), 1.0, 0.0);
    let mut single = LlamaTokenDataArray::new(vec![end], false);
    single.apply_sampler(sampler);
    single.data.first().is_some_and(|only| only.logit() == f32::NEG_INFINITY)
}

/// Hands a token to a grammar; a token that ends generation would end the process.
fn accept(sampler: &mut LlamaSampler, model: &LlamaModel, token: Token) -> Result<(), ()> {
    let token = to_llama(token);
    if model.vocab().is_eog(token) {
        return Err(());
    }
    sampler.try_accept(token).map_err(drop)
}

/// Returns a regular expression that finds this text. Source: llama.cpp's `regex_escape`.
fn escaped(word: &str) -> String {
    let mut escaped = String::with_capacity(word.len() + 8);
    for character in word.chars() {
        if r".^$|()*+?[]{}\".contains(character) {
            escaped.push('\\');
        }
        escaped.push(character);
    }
    escaped
}

fn to_llama(token: Token) -> LlamaToken {
    LlamaToken(i32::try_from(token).expect("tokens come from the vocabulary, whose size is an i32"))
}
