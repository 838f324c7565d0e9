//! Events of a submission: its start, its tokens, its end.
//!
//! Not here: the channel that carries them (`channel`).

use std::ops::AddAssign;
use std::time::Duration;

use schemars::JsonSchema;
use serde::Serialize;
use warmpath_common::ids::{SlotId, Token};
use warmpath_worker_output::logprobs::{PromptProbabilities, TokenProbabilities};

use super::errors::EngineError;
use super::peers::FetchedState;

/// Event of one submission, in this order: `Started`, at most one `Prompt`, any `Text`, then `Finished` or `Failed`.
#[derive(Debug)]
pub enum EngineEvent {
    /// A slot runs the prompt.
    Started(Started),
    /// The prompt is computed, with the requested log probabilities of its tokens.
    Prompt(PromptProbabilities),
    /// The next token of the response. Its text has only whole UTF-8 characters, and no part of a stop text.
    Text {
        /// Text, which is empty if the token completed no character.
        text: String,
        /// The token.
        token: Token,
        /// Number of random numbers that its choice took.
        n_draws: u8,
        /// Reason why the response ends with this token; `None` if it goes on.
        end: Option<FinishReason>,
        /// Log probabilities of the token, if requested.
        own_probabilities: Option<TokenProbabilities>,
        /// Log probabilities of the tokens whose text starts in this one, if requested. A token without text, such as
        /// one within a stop text, has no entry.
        probabilities: Vec<TokenProbabilities>,
    },
    /// The response is complete.
    Finished(Finished),
    /// The response cannot be completed; no event follows.
    Failed(EngineError),
}

/// Start of a submission.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Started {
    /// The slot.
    pub slot: SlotId,
    /// Tiers of the reused prompt tokens.
    pub cached: CachedTokens,
    /// Position at which the prompt diverges from an earlier response of this worker; `None` if it does not.
    pub left_answer_at: Option<u32>,
    /// Time that it took to restore these tokens' state in the slot.
    pub restored: Duration,
    /// Transfer from another worker for this submission; `None` if there was none.
    pub fetched: Option<FetchedState>,
}

impl Started {
    /// Returns the number of prompt tokens that were reused.
    pub fn cached_tokens(&self) -> u32 {
        self.cached.total()
    }
}

/// End of a response, with its statistics.
#[derive(Debug, Clone, PartialEq)]
pub struct Finished {
    /// Reason.
    pub reason: FinishReason,
    /// Stop text that ended it, if one did.
    pub stopping_word: Option<String>,
    /// Whether the context was full: the response ended there, or its oldest tokens were dropped.
    pub truncated: bool,
    /// Number of tokens generated, including an end-of-generation token.
    pub completion_tokens: u32,
    /// Drafted tokens.
    pub drafted: Drafted,
    /// Time from the slot's start to the first token. Units: milliseconds.
    pub prompt_ms: f64,
    /// Time from the first token to the last. Units: milliseconds.
    pub predicted_ms: f64,
}

/// Drafted tokens of a response.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Drafted {
    /// Number of drafted tokens that were computed.
    pub n: u32,
    /// Number of them that became part of the response.
    pub n_accepted: u32,
}

impl AddAssign for Drafted {
    fn add_assign(&mut self, other: Self) {
        self.n += other.n;
        self.n_accepted += other.n_accepted;
    }
}

/// Reason why a response ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FinishReason {
    /// An end-of-generation token.
    EndOfGeneration,
    /// A stop text.
    StopText,
    /// `max_tokens`, the end of the context, `n_indent` or `t_max_predict_ms`.
    Length,
}

/// Tiers of the prompt tokens that were not computed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, JsonSchema)]
pub struct CachedTokens {
    /// Tokens from slots.
    pub resident: u32,
    /// Tokens from the store in memory.
    pub ram: u32,
    /// Tokens from the store on disk.
    pub disk: u32,
    /// Tokens whose state was moved from another position, so that it is approximate.
    pub shifted: u32,
}

impl CachedTokens {
    /// Returns the number of tokens whose state is exact.
    pub fn exact(self) -> u32 {
        self.resident + self.ram + self.disk
    }

    /// Returns the number of all these tokens.
    pub fn total(self) -> u32 {
        self.exact() + self.shifted
    }
}

impl AddAssign for CachedTokens {
    fn add_assign(&mut self, other: Self) {
        self.resident += other.resident;
        self.ram += other.ram;
        self.disk += other.disk;
        self.shifted += other.shifted;
    }
}
