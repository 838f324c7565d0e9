//! Drafts of tests: right, wrong and half right ones, whatever the sampling, made from answers that are known.
//!
//! An engine has no state of a test, so the answers are in a static list. A draft that is made from another answer of
//! the same beginning is only a wrong one.

use std::sync::{Mutex, PoisonError};

use warmpath_common::ids::Token;
use warmpath_worker::engine::SpeculationConfig;
use warmpath_worker_core::drafting::{DraftLimits, ForcedDrafts};

use super::support::N_TEXT_TOKENS;

/// Texts, each a prompt and its answer.
static KNOWN: Mutex<Vec<Vec<Token>>> = Mutex::new(Vec::new());

/// Makes the next engines draft this answer to this prompt.
pub fn know(prompt: &[Token], answer: &[Token]) {
    KNOWN.lock().unwrap_or_else(PoisonError::into_inner).push([prompt, answer].concat());
}

/// Returns a configuration with these drafts.
pub fn forced(drafts: ForcedDrafts) -> Option<SpeculationConfig> {
    let limits = DraftLimits { n_max: 9, n_min: 0 };
    Some(SpeculationConfig { limits, forced: Some(drafts), ..SpeculationConfig::default() })
}

/// Drafts what is known to follow.
pub fn right(tokens: &[Token], n_max: usize) -> Vec<Token> {
    let known = KNOWN.lock().unwrap_or_else(PoisonError::into_inner);
    let text = known.iter().rev().find(|text| text.len() > tokens.len() && text.starts_with(tokens));
    text.map_or(Vec::new(), |text| text[tokens.len()..].iter().take(n_max).copied().collect())
}

/// Drafts something else at every place.
pub fn wrong(tokens: &[Token], n_max: usize) -> Vec<Token> {
    let mut draft = right(tokens, n_max);
    draft.resize(n_max, 0);
    draft.into_iter().map(|token| (token + 1) % N_TEXT_TOKENS).collect()
}

/// Drafts of any length that are right up to some place.
pub fn half_right(tokens: &[Token], n_max: usize) -> Vec<Token> {
    let n = tokens.len().wrapping_mul(0x9E37_79B9) >> 7;
    let mut draft = right(tokens, n % (n_max + 1));
    if let Some(token) = draft.get_mut(n / 16 % 7) {
        *token = (*token + 1) % N_TEXT_TOKENS;
    }
    draft
}
