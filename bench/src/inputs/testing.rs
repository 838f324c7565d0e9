//! Responses for tests.

use crate::client::Answer;

/// Returns a response of one token.
pub(crate) fn answer(prompt_tokens: u64, cached_tokens: u64, ttft_ms: f64) -> Answer {
    Answer { prompt_tokens, cached_tokens, completion_tokens: 1, ttft_ms, e2e_ms: ttft_ms, ..Answer::default() }
}
