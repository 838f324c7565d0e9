//! A token that a sequence's sampler has chosen, with its properties in the vocabulary.

use warmpath_common::ids::Token;
use warmpath_worker_output::logprobs::TokenProbabilities;

/// A token with its properties in the vocabulary.
pub(crate) struct ChosenToken {
    pub(in crate::engine) token: Token,
    /// Bytes of its text; empty for a control token.
    pub(in crate::engine) piece: Vec<u8>,
    pub(in crate::engine) ends_generation: bool,
    pub(in crate::engine) probabilities: Option<TokenProbabilities>,
    /// Number of random numbers that its choice took.
    pub(in crate::engine) n_draws: u8,
}
