//! The generation fields of a request, as OpenAI and llama-server name them, and their ranges.
//!
//! Every field is optional. An absent or null field has llama-server's default. A value out of range is refused with
//! the field's name instead of being clamped. Not here: the fields of the prompt (`warmpath_common::openai`), sampling
//! (the engine).

mod drafts;
pub mod probabilities;
mod reasoning;
mod samplers;
pub mod schemas;

use std::collections::BTreeMap;
use std::fmt::Display;
use std::ops::RangeInclusive;
use std::time::Duration;

use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::Value;
use warmpath_common::fields;
use warmpath_common::ids::Token;
use warmpath_common::whole::Whole;

use crate::engine::{DraftOptions, Generation, Sampling};
use crate::error::RequestError;
use crate::response_format::{self, WantedSchema};
use drafts::DraftFields;
use probabilities::ProbabilityFields;
use reasoning::BudgetFields;
use samplers::SamplersField;

/// Maximum of `logprobs` and `top_logprobs`. Source: OpenAI's limit of `top_logprobs`.
const TOP_LOGPROBS_MAX: i64 = 20;
/// Maximum number of stop texts. Source: OpenAI allows 4, llama-server any number; the response is searched for each of
/// them after every token, and 32 keep that within microseconds.
const STOP_TEXTS_MAX: usize = 32;
/// Longest stop text. Units: bytes. Source: the engine withholds up to this many bytes of a stream; stop texts are
/// words or short phrases, far below it.
const STOP_TEXT_BYTES_MAX: usize = 512;
/// Maximum number of `logit_bias` entries. Source: enough for lists of banned words; each one takes time at every
/// token.
const LOGIT_BIAS_MAX: usize = 1024;
/// Maximum total size of the texts in `logit_bias`. Units: bytes. Source: 64 for each entry; tokenizing as many takes
/// milliseconds.
const LOGIT_BIAS_TEXT_BYTES_MAX: usize = 64 << 10;
/// Largest absolute bias. Source: logits are below 1,000, so this decides any choice, and sums of two such numbers keep
/// a precision of 0.125.
const LOGIT_BIAS_ABS_MAX: f32 = 1e6;
/// Longest grammar. Units: bytes. Source: compiling 60 kB takes some 0.15 s (`constraint`).
const GRAMMAR_BYTES_MAX: usize = 64 << 10;
/// Maximum number of `dry_sequence_breakers`, and the longest one in bytes. Source: llama-server's default has 4 of one
/// byte each; the engine allows fewer and reports its limit itself.
const DRY_BREAKERS_MAX: usize = 64;

/// Generation fields of a request, unchecked.
#[derive(Debug, Clone, Default, Deserialize, JsonSchema)]
#[serde(default)]
pub struct GenerationFields {
    #[schemars(schema_with = "schemas::tokens_max")]
    max_tokens: Option<Whole<i64>>,
    #[schemars(schema_with = "schemas::tokens_max")]
    max_completion_tokens: Option<Whole<i64>>,
    #[schemars(schema_with = "schemas::tokens_max")]
    n_predict: Option<Whole<i64>>,
    #[schemars(schema_with = "schemas::stop")]
    stop: Option<StopField>,
    /// Continues when the model would end the response.
    ignore_eos: Option<bool>,
    #[schemars(schema_with = "schemas::n_indent")]
    n_indent: Option<Whole<i128>>,
    #[schemars(schema_with = "schemas::t_max_predict_ms")]
    t_max_predict_ms: Option<Whole<i128>>,
    #[schemars(schema_with = "schemas::samplers")]
    samplers: Option<SamplersField>,
    #[schemars(range(min = 0, max = 2147483647))]
    min_keep: Option<Whole<u32>>,
    /// Target probability of the sampler `adaptive_p`. Only a negative number is supported, which turns it off.
    adaptive_target: Option<f32>,
    #[schemars(schema_with = "schemas::seed")]
    seed: Option<Whole<i128>>,
    #[schemars(range(min = 0.0, max = 100.0))]
    temperature: Option<f32>,
    #[schemars(range(min = 0.0, max = 100.0))]
    dynatemp_range: Option<f32>,
    #[schemars(range(min = 0.0, max = 100.0))]
    dynatemp_exponent: Option<f32>,
    #[schemars(range(min = -1))]
    top_k: Option<Whole<i32>>,
    #[schemars(range(min = 0.0, max = 1.0))]
    top_p: Option<f32>,
    #[schemars(range(min = 0.0, max = 1.0))]
    min_p: Option<f32>,
    #[schemars(range(min = 0.0, max = 1.0))]
    typical_p: Option<f32>,
    #[schemars(range(min = -1.0, max = 100.0))]
    top_n_sigma: Option<f32>,
    #[schemars(range(min = 0.0, max = 1.0))]
    xtc_probability: Option<f32>,
    #[schemars(range(min = 0.0, max = 1.0))]
    xtc_threshold: Option<f32>,
    #[schemars(range(min = -1))]
    repeat_last_n: Option<Whole<i32>>,
    #[schemars(range(min = 0.01, max = 100.0))]
    repeat_penalty: Option<f32>,
    #[schemars(range(min = -100.0, max = 100.0))]
    presence_penalty: Option<f32>,
    #[schemars(range(min = -100.0, max = 100.0))]
    frequency_penalty: Option<f32>,
    #[schemars(range(min = 0.0, max = 100.0))]
    dry_multiplier: Option<f32>,
    #[schemars(range(min = 1.0, max = 100.0))]
    dry_base: Option<f32>,
    #[schemars(range(min = 0))]
    dry_allowed_length: Option<Whole<i32>>,
    #[schemars(range(min = -1))]
    dry_penalty_last_n: Option<Whole<i32>>,
    #[schemars(schema_with = "schemas::breakers")]
    dry_sequence_breakers: Option<Vec<String>>,
    #[schemars(range(min = 0, max = 2))]
    mirostat: Option<Whole<u8>>,
    #[schemars(range(min = 0.0, max = 100.0))]
    mirostat_tau: Option<f32>,
    #[schemars(range(min = 0.0, max = 1.0))]
    mirostat_eta: Option<f32>,
    #[schemars(schema_with = "schemas::logit_bias")]
    logit_bias: Option<BiasField>,
    #[schemars(schema_with = "schemas::grammar")]
    grammar: Option<String>,
    #[schemars(schema_with = "schemas::response_format")]
    response_format: Option<Value>,
    #[schemars(schema_with = "schemas::json_schema")]
    json_schema: Option<Value>,
    #[serde(flatten, deserialize_with = "fields::part")]
    probabilities: ProbabilityFields,
    #[serde(flatten, deserialize_with = "fields::part")]
    drafts: DraftFields,
    #[serde(flatten, deserialize_with = "fields::part")]
    budget: BudgetFields,
}

/// `stop` in its two forms.
#[derive(Debug, Clone, Deserialize)]
#[serde(untagged, expecting = "a string or an array of strings")]
enum StopField {
    One(String),
    Many(Vec<String>),
}

/// `logit_bias` in OpenAI's form and in llama-server's.
#[derive(Debug, Clone, Deserialize)]
#[serde(untagged, expecting = "an object of token ids and biases, or an array of [token, bias] pairs")]
enum BiasField {
    Map(BTreeMap<String, f32>),
    Pairs(Vec<(BiasToken, Bias)>),
}

/// A token by its id, or the tokens of a text.
#[derive(Debug, Clone, Deserialize)]
#[serde(untagged)]
enum BiasToken {
    Id(Whole<Token>),
    Text(String),
}

/// A bias; `false` bans the token.
#[derive(Debug, Clone, Copy, Deserialize)]
#[serde(untagged)]
enum Bias {
    Add(f32),
    Ban(bool),
}

/// Context in which the fields are checked.
pub struct CheckContext<'a> {
    /// Number of tokens in the vocabulary.
    pub n_vocab: u32,
    /// Tokenizes a text of `logit_bias`.
    pub tokenize: &'a dyn Fn(&str) -> Vec<Token>,
    /// Values of absent fields.
    pub defaults: &'a Generation,
}

impl GenerationFields {
    /// Returns the generation parameters of the fields.
    ///
    /// Errors: `Field`, naming the first field that is out of range.
    pub fn resolve(self, basis: &CheckContext<'_>) -> Result<Generation, RequestError> {
        let max_tokens = self.resolve_max_tokens(basis.defaults.max_tokens)?;
        Ok(Generation {
            max_tokens,
            stop: resolve_stop(self.stop.clone())?,
            ignore_eos: self.ignore_eos.unwrap_or(basis.defaults.ignore_eos),
            n_indent: self.resolve_n_indent(basis.defaults.n_indent)?,
            predict_max: self.resolve_predict_max(basis.defaults.predict_max)?,
            probabilities: self.probabilities.resolve(max_tokens, basis.n_vocab)?,
            budget: self.budget.resolve(&basis.defaults.budget)?,
            sampling: self.resolve_sampling(basis)?,
            ..Generation::default()
        })
    }

    /// Returns the schema that the response must follow, not yet compiled.
    ///
    /// Errors: `Field`, for an unknown format, a schema that is not supported, and fields that cannot be combined with
    /// a schema.
    pub fn wanted_schema(&self) -> Result<Option<WantedSchema>, RequestError> {
        let response_format = response_format::read(self.response_format.as_ref(), self.json_schema.as_ref())?;
        let Some(response_format) = response_format else { return Ok(None) };
        let refuse = |param: &'static str, reason: &str| Err(RequestError::field(param, reason));
        if self.grammar.as_ref().is_some_and(|grammar| !grammar.is_empty()) {
            return refuse("grammar", "`grammar` cannot be combined with a JSON schema");
        }
        if self.ignore_eos == Some(true) {
            return refuse(
                "ignore_eos",
                "`ignore_eos` cannot be used with a JSON schema: the answer ends when it is complete",
            );
        }
        Ok(Some(response_format))
    }

    /// Returns the options for drafting the response; `tokenize` returns the tokens of a text.
    ///
    /// Errors: `Field`.
    pub fn draft_wish(&self, tokenize: &dyn Fn(&str) -> Vec<Token>) -> Result<DraftOptions, RequestError> {
        self.drafts.resolve(tokenize)
    }

    /// Returns the requested limit of the response's tokens; -1 is no limit.
    pub fn tokens_max(&self) -> Option<Whole<i64>> {
        self.max_completion_tokens.or(self.max_tokens).or(self.n_predict)
    }

    /// Returns whether `ignore_eos` is absent. The worker's default then applies, unless there are tools or a schema.
    pub fn leaves_ignore_eos(&self) -> bool {
        self.ignore_eos.is_none()
    }

    fn resolve_max_tokens(&self, default: Option<u32>) -> Result<Option<u32>, RequestError> {
        let length_fields = [
            ("max_completion_tokens", self.max_completion_tokens),
            ("max_tokens", self.max_tokens),
            ("n_predict", self.n_predict),
        ];
        let mut given_lengths = length_fields.into_iter().filter_map(|(param, n)| n.map(|Whole(n)| (param, n)));
        if let Some((param, n)) = given_lengths.clone().find(|(_, n)| *n < -1) {
            let reason = format!("`{param}` must be at least 0, or -1 for no limit; it is {n}");
            return Err(RequestError::field(param, reason));
        }
        Ok(given_lengths.next().map_or(default, |(_, n)| u32::try_from(n).ok().or((n > 0).then_some(u32::MAX))))
    }

    fn resolve_n_indent(&self, default: u32) -> Result<u32, RequestError> {
        let n_max = i128::from(i32::MAX);
        let n = whole_within("n_indent", self.n_indent, 0..=n_max, default.into())?;
        Ok(u32::try_from(n).expect("checked to be at most 31 bits long"))
    }

    /// Returns the time after which a response ends at its next line break; 0 and -1 are no limit.
    fn resolve_predict_max(&self, default: Option<Duration>) -> Result<Option<Duration>, RequestError> {
        if self.t_max_predict_ms.is_none() {
            return Ok(default);
        }
        let ms = whole_within("t_max_predict_ms", self.t_max_predict_ms, -1..=i128::from(i64::MAX), 0)?;
        Ok(u64::try_from(ms).ok().filter(|ms| *ms > 0).map(Duration::from_millis))
    }

    fn resolve_sampling(self, basis: &CheckContext<'_>) -> Result<Sampling, RequestError> {
        let default = &basis.defaults.sampling;
        let target = self.adaptive_target;
        let sampling = Sampling {
            samplers: samplers::resolve(self.samplers, &default.samplers)?,
            min_keep: whole_within("min_keep", self.min_keep, 0..=i32::MAX.unsigned_abs(), default.min_keep)?,
            seed: self.seed.map_or(default.seed, resolve_seed),
            temperature: within("temperature", self.temperature, 0.0..=100.0, default.temperature)?,
            dynatemp_range: within("dynatemp_range", self.dynatemp_range, 0.0..=100.0, default.dynatemp_range)?,
            dynatemp_exponent: within(
                "dynatemp_exponent",
                self.dynatemp_exponent,
                0.0..=100.0,
                default.dynatemp_exponent,
            )?,
            top_k: whole_within("top_k", self.top_k, -1..=i32::MAX, default.top_k)?,
            top_p: within("top_p", self.top_p, 0.0..=1.0, default.top_p)?,
            min_p: within("min_p", self.min_p, 0.0..=1.0, default.min_p)?,
            typical_p: within("typical_p", self.typical_p, 0.0..=1.0, default.typical_p)?,
            top_n_sigma: within("top_n_sigma", self.top_n_sigma, -1.0..=100.0, default.top_n_sigma)?,
            xtc_probability: within("xtc_probability", self.xtc_probability, 0.0..=1.0, default.xtc_probability)?,
            xtc_threshold: within("xtc_threshold", self.xtc_threshold, 0.0..=1.0, default.xtc_threshold)?,
            repeat_last_n: whole_within("repeat_last_n", self.repeat_last_n, -1..=i32::MAX, default.repeat_last_n)?,
            repeat_penalty: within("repeat_penalty", self.repeat_penalty, 0.01..=100.0, default.repeat_penalty)?,
            presence_penalty: within(
                "presence_penalty",
                self.presence_penalty,
                -100.0..=100.0,
                default.presence_penalty,
            )?,
            frequency_penalty: within(
                "frequency_penalty",
                self.frequency_penalty,
                -100.0..=100.0,
                default.frequency_penalty,
            )?,
            dry_multiplier: within("dry_multiplier", self.dry_multiplier, 0.0..=100.0, default.dry_multiplier)?,
            dry_base: within("dry_base", self.dry_base, 1.0..=100.0, default.dry_base)?,
            dry_allowed_length: whole_within(
                "dry_allowed_length",
                self.dry_allowed_length,
                0..=i32::MAX,
                default.dry_allowed_length,
            )?,
            dry_penalty_last_n: whole_within(
                "dry_penalty_last_n",
                self.dry_penalty_last_n,
                -1..=i32::MAX,
                default.dry_penalty_last_n,
            )?,
            dry_sequence_breakers: resolve_breakers(self.dry_sequence_breakers, &default.dry_sequence_breakers)?,
            mirostat: whole_within("mirostat", self.mirostat, 0..=2, default.mirostat)?,
            mirostat_tau: within("mirostat_tau", self.mirostat_tau, 0.0..=100.0, default.mirostat_tau)?,
            mirostat_eta: within("mirostat_eta", self.mirostat_eta, 0.0..=1.0, default.mirostat_eta)?,
            logit_bias: resolve_bias(self.logit_bias, basis)?,
            grammar: resolve_grammar(self.grammar)?,
        };
        samplers::check_target(target, &sampling)?;
        Ok(sampling)
    }
}

/// Returns the engine's seed, the low 32 bits; `None` for llama-server's two ways to request a random seed.
fn resolve_seed(Whole(seed): Whole<i128>) -> Option<u32> {
    let low = u32::try_from(seed & i128::from(u32::MAX)).expect("32 bits fit into 32 bits");
    (low != u32::MAX).then_some(low)
}

/// Returns the seed of a request's choice `k`: never the one with which llama.cpp draws a random seed.
pub fn seed_of_choice(seed: u32, k: u32) -> u32 {
    let n_seeds = u64::from(u32::MAX);
    u32::try_from((u64::from(seed) + u64::from(k)) % n_seeds).expect("a remainder is below the divisor")
}

fn within<T: PartialOrd + Display>(
    param: &'static str,
    value: Option<T>,
    range: RangeInclusive<T>,
    default: T,
) -> Result<T, RequestError> {
    let Some(value) = value else { return Ok(default) };
    if range.contains(&value) {
        return Ok(value);
    }
    let (least, most) = (range.start(), range.end());
    Err(RequestError::field(param, format!("`{param}` must be {least} to {most}; it is {value}")))
}

fn whole_within<T: PartialOrd + Display>(
    param: &'static str,
    value: Option<Whole<T>>,
    range: RangeInclusive<T>,
    default: T,
) -> Result<T, RequestError> {
    within(param, value.map(|Whole(n)| n), range, default)
}

fn at_most(param: &'static str, what: &str, n: usize, n_max: usize) -> Result<(), RequestError> {
    if n <= n_max {
        return Ok(());
    }
    Err(RequestError::field(param, format!("`{param}` has {n} {what}; at most {n_max} are allowed")))
}

fn resolve_stop(stop: Option<StopField>) -> Result<Vec<String>, RequestError> {
    let mut texts = match stop {
        None => Vec::new(),
        Some(StopField::One(text)) => vec![text],
        Some(StopField::Many(texts)) => texts,
    };
    at_most("stop", "texts", texts.len(), STOP_TEXTS_MAX)?;
    texts.retain(|text| !text.is_empty());
    let longest = texts.iter().map(String::len).max().unwrap_or(0);
    at_most("stop", "bytes in one text", longest, STOP_TEXT_BYTES_MAX)?;
    Ok(texts)
}

fn resolve_breakers(breakers: Option<Vec<String>>, default: &[String]) -> Result<Vec<String>, RequestError> {
    let Some(breakers) = breakers else { return Ok(default.to_vec()) };
    let param = "dry_sequence_breakers";
    at_most(param, "texts", breakers.len(), DRY_BREAKERS_MAX)?;
    let longest = breakers.iter().map(String::len).max().unwrap_or(0);
    at_most(param, "bytes in one text", longest, DRY_BREAKERS_MAX)?;
    if breakers.iter().any(|breaker| breaker.is_empty() || breaker.contains('\0')) {
        return Err(RequestError::field(param, format!("`{param}` has a text that is empty or contains a NUL")));
    }
    Ok(breakers)
}

fn resolve_bias(bias: Option<BiasField>, basis: &CheckContext<'_>) -> Result<Vec<(Token, f32)>, RequestError> {
    let pairs: Vec<(BiasToken, Bias)> = match bias {
        None => return Ok(Vec::new()),
        Some(BiasField::Map(map)) => map
            .into_iter()
            .map(|(key, bias)| {
                (key.parse().map_or(BiasToken::Text(key), |id| BiasToken::Id(Whole(id))), Bias::Add(bias))
            })
            .collect(),
        Some(BiasField::Pairs(pairs)) => pairs,
    };
    at_most("logit_bias", "entries", pairs.len(), LOGIT_BIAS_MAX)?;
    // Limited before anything is tokenized, because tokenizing takes time in proportion to the text.
    let text_bytes = |(token, _): &(BiasToken, Bias)| if let BiasToken::Text(text) = token { text.len() } else { 0 };
    let n_bytes = pairs.iter().map(text_bytes).sum();
    at_most("logit_bias", "bytes of text", n_bytes, LOGIT_BIAS_TEXT_BYTES_MAX)?;
    let mut resolved_biases = Vec::new();
    for (token, bias) in pairs {
        let tokens = match token {
            BiasToken::Id(Whole(token)) => vec![token],
            BiasToken::Text(text) => (basis.tokenize)(&text),
        };
        let add = match bias {
            Bias::Add(add) => within("logit_bias", Some(add), -LOGIT_BIAS_ABS_MAX..=LOGIT_BIAS_ABS_MAX, 0.0)?,
            Bias::Ban(false) => f32::NEG_INFINITY,
            Bias::Ban(true) => 0.0,
        };
        if let Some(token) = tokens.iter().find(|token| **token >= basis.n_vocab) {
            let n_vocab = basis.n_vocab;
            let reason = format!("`logit_bias` names token {token}; the vocabulary has {n_vocab} tokens");
            return Err(RequestError::field("logit_bias", reason));
        }
        resolved_biases.extend(tokens.into_iter().map(|token| (token, add)));
    }
    // Counted again: one text may have become many tokens.
    at_most("logit_bias", "tokens", resolved_biases.len(), LOGIT_BIAS_MAX)?;
    Ok(resolved_biases)
}

fn resolve_grammar(grammar: Option<String>) -> Result<Option<String>, RequestError> {
    let Some(grammar) = grammar.filter(|grammar| !grammar.is_empty()) else { return Ok(None) };
    at_most("grammar", "bytes", grammar.len(), GRAMMAR_BYTES_MAX)?;
    if grammar.contains('\0') {
        return Err(RequestError::field("grammar", "`grammar` contains a NUL"));
    }
    Ok(Some(grammar))
}

#[cfg(test)]
mod tests;
