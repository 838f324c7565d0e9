//! The rule of a response over the model's vocabulary.
//!
//! Not here: the rules themselves (`warmpath-constraint`), choosing a token (`sampler`).

use std::sync::Arc;

use llama_cpp_2::model::LlamaModel;
use llama_cpp_2::token::LlamaToken;
use warmpath_common::ids::Token;
use warmpath_constraint::{ResponseRule, RuleCompiler, SpelledTokens};

use crate::engine::api::{EngineError, Generation};

/// Returns the rule at the start of a response. `compiler` returns the compiler of rules for the model's vocabulary,
/// which may first have to be made.
///
/// Errors: `Sampler` if the rule does not parse, takes too much work, or cannot be combined with other parameters.
pub(crate) fn rule<'c>(
    model: &LlamaModel,
    compiler: impl FnOnce() -> Result<&'c RuleCompiler, String>,
    generation: &Generation,
) -> Result<ResponseRule, EngineError> {
    let refuse = |reason| EngineError::Sampler { reason };
    let grammar = generation.sampling.grammar.as_deref().filter(|text| !text.is_empty());
    let (schema, calls) = (generation.schema.as_ref(), generation.calls.as_ref());
    if schema.is_none() && grammar.is_none() && calls.is_none() {
        return Ok(ResponseRule::Free);
    }
    if schema.is_some() && generation.ignore_eos {
        return Err(refuse("a schema cannot be combined with ignore_eos".to_owned()));
    }
    let spelled_tokens = spelled(model, &generation.spelled);
    ResponseRule::begin(
        compiler().map_err(refuse)?,
        schema,
        grammar,
        calls,
        generation.reasoning.as_ref(),
        spelled_tokens,
    )
    .map_err(refuse)
}

/// Returns the compiler of rules for the model's vocabulary.
///
/// Cost: some 0.6 s and 60 MB for 150,000 tokens. Errors: the vocabulary has no token that ends a response.
pub(crate) fn compiler(model: &Arc<LlamaModel>) -> Result<RuleCompiler, String> {
    let vocab = model.vocab();
    let ends: Vec<Token> =
        vocab.tokens().filter(|token| vocab.is_eog(*token)).map(|token| token.0.unsigned_abs()).collect();
    let word = |token| match vocab.is_eog(token) || vocab.is_control(token) {
        true => Vec::new(),
        false => vocab.token_to_piece(token, false, None),
    };
    let words = vocab.tokens().map(word).collect();
    let model = Arc::clone(model);
    RuleCompiler::new(words, &ends, move |text| match model.vocab().tokenize(text.as_bytes(), false, true).as_slice() {
        [token] => Some(token.0.unsigned_abs()),
        _ => None,
    })
}

/// Returns the text of a token, also of a control token.
pub(super) fn piece(model: &LlamaModel, token: Token) -> Vec<u8> {
    model.vocab().token_to_piece(LlamaToken(token.cast_signed()), true, None)
}

/// Returns the control tokens among `tokens`, with their spelling.
fn spelled(model: &LlamaModel, tokens: &[Token]) -> SpelledTokens {
    let vocab = model.vocab();
    let control = tokens.iter().copied().filter(|token| {
        let id = LlamaToken(token.cast_signed());
        vocab.is_control(id) && !vocab.is_eog(id)
    });
    SpelledTokens::new(control.map(|token| (token, piece(model, token))).collect())
}
