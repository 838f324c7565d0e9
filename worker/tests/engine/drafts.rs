//! Drafts for tests: correct, wrong and partly correct ones with any sampling, made from known responses.
//!
//! The engine calls plain functions, so the responses are in a static list. If several responses have the same
//! beginning, a draft may come from another of them; then it is merely wrong.

use std::sync::{Mutex, PoisonError};

use warmpath_common::ids::Token;
use warmpath_worker::engine::SpeculationConfig;
use warmpath_worker_core::drafting::{DraftLimits, ForcedDrafts};

use super::support::N_TEXT_TOKENS;

/// Texts, each a prompt and its answer.
static KNOWN: Mutex<Vec<Vec<Token>>> = Mutex::new(Vec::new());

/// Makes all engines draft this response to this prompt from now on.
pub fn know(prompt: &[Token], answer: &[Token]) {
    KNOWN.lock().unwrap_or_else(PoisonError::into_inner).push([prompt, answer].concat());
}

/// Returns a configuration with these drafts.
pub fn forced(drafts: ForcedDrafts) -> Option<SpeculationConfig> {
    let limits = DraftLimits { n_max: 9, n_min: 0 };
    Some(SpeculationConfig { limits, forced: Some(drafts), ..SpeculationConfig::default() })
}

/// Drafts the known continuation.
pub fn right(tokens: &[Token], n_max: usize) -> Vec<Token> {
    let known = KNOWN.lock().unwrap_or_else(PoisonError::into_inner);
    let text = known.iter().rev().find(|text| text.len() > tokens.len() && text.starts_with(tokens));
    text.map_or(Vec::new(), |text| text[tokens.len()..].iter().take(n_max).copied().collect())
}

/// Drafts a wrong token at every position.
pub fn wrong(tokens: &[Token], n_max: usize) -> Vec<Token> {
    let mut draft = right(tokens, n_max);
    draft.resize(n_max, 0);
    draft.into_iter().map(|token| (token + 1) % N_TEXT_TOKENS).collect()
}

/// Makes drafts of any length that are correct up to some position.
pub fn half_right(tokens: &[Token], n_max: usize) -> Vec<Token> {
    let n = tokens.len().wrapping_mul(0x9E37_79B9) >> 7;
    let mut draft = right(tokens, n % (n_max + 1));
    if let Some(token) = draft.get_mut(n / 16 % 7) {
        *token = (*token + 1) % N_TEXT_TOKENS;
    }
    draft
}
