//! Requested log probabilities: OpenAI's `logprobs` and `top_logprobs`, llama-server's `n_probs`.
//!
//! A response holds an entry for each listed token at each of its positions. A short response may list as many tokens
//! as a long one in all, so a classifier may read most of a vocabulary at one position.

use schemars::JsonSchema;
use serde::Deserialize;
use warmpath_common::whole::Whole;

use super::{TOP_LOGPROBS_MAX, schemas, whole_within};
use crate::engine::{ProbabilityOptions, ProbabilitySource};
use crate::error::RequestError;

/// Maximum of `n_probs` for a response of any length. Source: each token of a response has this many entries, some
/// 10 kB as JSON.
const N_PROBS_OF_ANY_LENGTH_MAX: usize = 100;
/// Maximum of `n_probs` times the response's longest length, for a larger `n_probs`.
///
/// Source: the depth to which pi 1.6 searches for the labels of an answer. As one line of a journal, of some 20 bytes
/// an entry, it stays below the router's limit of 1 MiB, and as JSON below its 8 MiB for a whole response.
const ENTRIES_MAX: usize = 1 << 15;

/// Fields of a request for log probabilities, unchecked.
#[derive(Debug, Clone, Default, Deserialize, JsonSchema)]
#[serde(default)]
pub struct ProbabilityFields {
    #[schemars(schema_with = "schemas::logprobs")]
    logprobs: Option<LogprobsField>,
    #[schemars(range(min = 0, max = 20))]
    top_logprobs: Option<Whole<i64>>,
    /// Number of tokens at each position; above 100, times `n_predict` at most 32,768.
    #[schemars(range(min = 0))]
    n_probs: Option<Whole<i64>>,
    /// Returns the probabilities after sampling instead of the model's own.
    post_sampling_probs: Option<bool>,
}

/// `logprobs` in its two forms: a bool in a chat, a number in a completion.
#[derive(Debug, Clone, Copy, Deserialize)]
#[serde(untagged, expecting = "true, false or a number of tokens")]
enum LogprobsField {
    Switch(bool),
    Count(Whole<i64>),
}

impl ProbabilityFields {
    /// Returns the requested log probabilities of a response of at most `max_tokens`.
    ///
    /// Errors: `Field`.
    pub fn resolve(&self, max_tokens: Option<u32>, n_vocab: u32) -> Result<Option<ProbabilityOptions>, RequestError> {
        let (is_wanted, n_of_completion) = match self.logprobs {
            None => (false, None),
            Some(LogprobsField::Switch(is_wanted)) => (is_wanted, None),
            Some(LogprobsField::Count(n)) => (true, Some(n)),
        };
        let n_completion = count("logprobs", n_of_completion, TOP_LOGPROBS_MAX)?;
        let n_chat = count("top_logprobs", self.top_logprobs, TOP_LOGPROBS_MAX)?;
        let n_probs = count("n_probs", self.n_probs, i64::MAX)?.min(n_vocab as usize);
        if n_chat > 0 && !is_wanted {
            return Err(RequestError::field("top_logprobs", "`top_logprobs` needs `logprobs` to be true"));
        }
        check_entries(n_probs, max_tokens)?;
        let source = match self.post_sampling_probs {
            Some(true) => ProbabilitySource::Sampler,
            Some(false) | None => ProbabilitySource::Model,
        };
        let n_top = n_completion.max(n_chat).max(n_probs);
        Ok((is_wanted || n_probs > 0).then_some(ProbabilityOptions { n_top, source, of_prompt: false }))
    }
}

fn count(param: &'static str, n: Option<Whole<i64>>, n_limit: i64) -> Result<usize, RequestError> {
    let n = whole_within(param, n, 0..=n_limit, 0)?;
    Ok(usize::try_from(n).expect("checked to be at least 0"))
}

/// Marks the log probabilities of a prompt, of any length, as requested, too.
///
/// Errors: `Field` if they list too many tokens at each position.
pub fn add_those_of_prompt(wish: &mut ProbabilityOptions) -> Result<(), RequestError> {
    if wish.n_top > N_PROBS_OF_ANY_LENGTH_MAX {
        let reason = format!("`n_probs` must be at most {N_PROBS_OF_ANY_LENGTH_MAX} with `echo`");
        return Err(RequestError::field("n_probs", reason));
    }
    wish.of_prompt = true;
    Ok(())
}

/// Checks the number of entries of a response of at most `max_tokens`.
fn check_entries(n_probs: usize, max_tokens: Option<u32>) -> Result<(), RequestError> {
    let n_entries = max_tokens.map(|n_tokens| n_probs.saturating_mul(n_tokens as usize));
    if n_probs <= N_PROBS_OF_ANY_LENGTH_MAX || n_entries.is_some_and(|n| n <= ENTRIES_MAX) {
        return Ok(());
    }
    let reason = format!(
        "`n_probs` above {N_PROBS_OF_ANY_LENGTH_MAX} needs an `n_predict` with which their product is at most \
         {ENTRIES_MAX}; `n_probs` is {n_probs}, `n_predict` {}",
        max_tokens.map_or_else(|| "has no limit".to_owned(), |n| format!("is {n}"))
    );
    Err(RequestError::field("n_probs", reason))
}
