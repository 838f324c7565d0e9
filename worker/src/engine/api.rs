//! Input and output of the engine thread: submissions and events.
//!
//! Not here: running a submission (`thread`), the receivers of events (the HTTP side), updates for the summary
//! (`warmpath_worker_core::summary_writer`).

use std::ops::AddAssign;
use std::time::Duration;

use schemars::JsonSchema;
use serde::Serialize;
use warmpath_common::block_hash::BlockHash;
use warmpath_common::ids::{RequestId, SlotId, Token};
use warmpath_common::lora::Applied;
use warmpath_prompt::MediaRun;
use warmpath_worker_core::tenants::TenantId;
use warmpath_worker_output::logprobs::{PromptProbabilities, TokenProbabilities};
use warmpath_worker_output::reasoning_budget::ReasoningBound;

use super::config::ShiftObstacle;
use super::events::EventSender;
use super::kv::receiving::{FetchedState, PeerOffer};
use super::output::json_schema::CompiledSchema;
use super::output::reasoning::{BudgetWish, ReasoningFirst};
use super::output::sampler_kind::SamplerKind;
use super::output::tool_grammar::CallGrammar;

/// A token of a response, with the number of random numbers that its choice took.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SampledToken {
    /// The token.
    pub token: Token,
    /// Number of random numbers drawn: usually 1, 0 if the response could only end, 2 if a grammar refused the first
    /// choice.
    pub n_draws: u8,
}

/// A token of an earlier part of a response, which another worker has sampled.
#[derive(Debug, Clone, PartialEq)]
pub struct PastToken {
    /// The token.
    pub sampled: SampledToken,
    /// Log probabilities of the token, if the response has them. They cannot be computed again without the token's
    /// logits.
    pub probabilities: Option<TokenProbabilities>,
}

/// A request for one response to one prompt.
#[derive(Debug)]
pub struct Submission {
    /// Id of the HTTP request; several submissions of one request share it.
    pub request_id: RequestId,
    /// Prompt, followed by the response so far. Shape: `[1..context_tokens)`, checked before the submission.
    pub prompt: Vec<Token>,
    /// Response so far, which another worker has sampled; empty for a new response.
    pub past: Vec<PastToken>,
    /// Reason why that response has ended; `None` if it goes on, or if the other worker did not report its end.
    pub past_end: Option<FinishReason>,
    /// Root of the prompt's block chain; sequences with different roots never share KV state.
    pub chain_root: BlockHash,
    /// Tenant from the router; `None` if the root is used as the tenant.
    pub tenant: Option<TenantId>,
    /// Adapter to apply, which is part of the root; sequences with different adapters never share a batch.
    pub adapter: Option<Applied>,
    /// Sampling parameters and end conditions.
    pub generation: Generation,
    /// Whether KV state may be reused for this request and kept after it.
    pub cache_prompt: bool,
    /// Requested shifts of state.
    pub shifts: ShiftWish,
    /// Slot that the sender prefers; a hint that never lowers reuse.
    pub wanted_slot: Option<SlotId>,
    /// Cached tokens that the router expects. If some are missing, a request that computes them may arrive soon.
    pub expected_tokens: u32,
    /// Positions in the prompt at which later requests may resume.
    pub breakpoints: Vec<u32>,
    /// Priority of the request's state in the cache; larger is more important, 0 is the default.
    pub priority: i32,
    /// State for this request that another worker offers; `None` if there is none.
    pub peer: Option<PeerOffer>,
    /// Runs of media tokens in the prompt, in their order.
    pub runs: Vec<MediaRun>,
    /// Channel for the events.
    pub events: EventSender,
}

impl Submission {
    /// Returns the number of alternatives to list for each token of the prompt; `None` if they are not requested.
    pub(super) fn prompt_probabilities(&self) -> Option<usize> {
        self.generation.probabilities.filter(|wish| wish.of_prompt).map(|wish| wish.n_top)
    }
}

impl Generation {
    /// Returns whether nothing is generated: the request only fills the cache, or lists its prompt's probabilities.
    pub fn is_prompt_only(&self) -> bool {
        self.max_tokens == Some(0)
    }

    /// Returns whether the request only fills the cache for later ones.
    pub fn is_prewarm(&self) -> bool {
        self.is_prompt_only() && !self.probabilities.is_some_and(|wish| wish.of_prompt)
    }
}

/// Requested moves of state to other positions, as in llama-server's fields.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ShiftWish {
    /// Minimum length of a run of tokens that is moved to its position in the prompt; 0 moves none, `None` is the
    /// engine's default.
    pub cache_reuse_tokens: Option<u32>,
    /// Number of first tokens that a context shift keeps.
    pub n_keep: u32,
    /// Number of tokens that a context shift drops; `None` for half of those that may be dropped.
    pub n_discard: Option<u32>,
}

/// Sampling parameters and end conditions of a response.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Generation {
    /// Maximum number of tokens to generate; `None` means up to the end of the context.
    pub max_tokens: Option<u32>,
    /// Texts that end the response and are not part of it.
    pub stop: Vec<String>,
    /// Minimum number of blanks before each line except the first. The response ends before a line with fewer. 0 for no
    /// minimum.
    pub n_indent: u32,
    /// Time after the first token at which the response ends with its next line break; `None` for no limit.
    pub predict_max: Option<Duration>,
    /// Whether end-of-generation tokens are never chosen.
    pub ignore_eos: bool,
    /// Requested log probabilities; `None` for none.
    pub probabilities: Option<ProbabilityWish>,
    /// Constraints of tool calls; `None` if there are none. Cannot be combined with a client's grammar.
    pub calls: Option<CallGrammar>,
    /// Control tokens whose spelling is part of the response's text, ascending; other control tokens have no text.
    pub spelled: Vec<Token>,
    /// Parameters of the sampler chain.
    pub sampling: Sampling,
    /// Schema that the response must follow. Cannot be combined with `ignore_eos` or a grammar.
    pub schema: Option<CompiledSchema>,
    /// Marks of reasoning that may precede the constrained text; `None` if there is none.
    pub reasoning: Option<ReasoningFirst>,
    /// Requested bound of reasoning.
    pub budget: BudgetWish,
    /// Bound of reasoning in the response's format; `None` if there is none.
    pub bound: Option<ReasoningBound>,
    /// Requested drafts.
    pub drafts: DraftWish,
}

/// Requested drafts; without effect if the engine makes none.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct DraftWish {
    /// Tokens that the client expects in the response.
    pub predicted: Vec<Token>,
    /// Maximum length of a draft, up to the engine's own limit; 0 turns drafts off.
    pub n_max: Option<u32>,
    /// Minimum length of a draft.
    pub n_min: Option<u32>,
}

/// Requested probabilities of a response's tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ProbabilityWish {
    /// Number of most likely tokens to list in addition to the chosen one.
    pub n_top: usize,
    /// Origin of the probabilities.
    pub source: ProbabilitySource,
    /// Whether the log probabilities of the prompt's tokens are requested, too; these are always the model's. The whole
    /// prompt is then computed, because cached state has no logits.
    pub of_prompt: bool,
}

/// Origin of probabilities.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ProbabilitySource {
    /// The model's, before any sampler: the softmax of its logits.
    Model,
    /// The sampler's: the probabilities after temperature, penalties and all other samplers.
    Sampler,
}

/// Parameters of the sampler chain, with llama-server's names and defaults.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub struct Sampling {
    /// Samplers in their order; a random draw follows. Mirostat is used instead of them.
    pub samplers: Vec<SamplerKind>,
    /// Minimum number of tokens that `typ_p`, `top_p`, `min_p` and `xtc` leave; 0 for no minimum.
    pub min_keep: u32,
    /// Random seed; `None` means a fresh one.
    pub seed: Option<u32>,
    /// Flattens (above 1) or sharpens the distribution; 0 or less chooses the most likely token.
    pub temperature: f32,
    /// Range of the dynamic temperature; 0 turns it off.
    pub dynatemp_range: f32,
    /// Exponent of the dynamic temperature.
    pub dynatemp_exponent: f32,
    /// Keeps the k most likely tokens; 0 or less keeps all.
    pub top_k: i32,
    /// Keeps the most likely tokens whose probabilities add up to p; 1 keeps all.
    pub top_p: f32,
    /// Keeps tokens at least p times as likely as the most likely one; 0 keeps all.
    pub min_p: f32,
    /// Probability mass of locally typical sampling; 1 turns it off.
    pub typical_p: f32,
    /// Drops logits more than n standard deviations below the largest; 0 or less turns it off.
    pub top_n_sigma: f32,
    /// Probability of dropping the top choices by XTC; 0 turns it off.
    pub xtc_probability: f32,
    /// Threshold of XTC.
    pub xtc_threshold: f32,
    /// Number of last tokens that the penalties consider; -1 means the whole context, 0 none.
    pub repeat_last_n: i32,
    /// Penalises repeated tokens by division; 1 turns it off.
    pub repeat_penalty: f32,
    /// Penalises tokens that occurred.
    pub presence_penalty: f32,
    /// Penalises tokens by how often they occurred.
    pub frequency_penalty: f32,
    /// Strength of DRY; 0 turns it off.
    pub dry_multiplier: f32,
    /// Base of DRY.
    pub dry_base: f32,
    /// Length of a repetition that DRY still allows.
    pub dry_allowed_length: i32,
    /// Number of last tokens that DRY considers; -1 means the whole context.
    pub dry_penalty_last_n: i32,
    /// Texts that break a repetition for DRY.
    pub dry_sequence_breakers: Vec<String>,
    /// 0 for no mirostat, 1 or 2 for its version.
    pub mirostat: u8,
    /// Target entropy of mirostat.
    pub mirostat_tau: f32,
    /// Learning rate of mirostat.
    pub mirostat_eta: f32,
    /// Numbers to add to the logits of tokens.
    pub logit_bias: Vec<(Token, f32)>,
    /// GBNF grammar that the response must follow.
    pub grammar: Option<String>,
}

impl Default for Sampling {
    fn default() -> Self {
        Self {
            samplers: SamplerKind::DEFAULT.to_vec(),
            min_keep: 0,
            seed: None,
            temperature: 0.8,
            dynatemp_range: 0.0,
            dynatemp_exponent: 1.0,
            top_k: 40,
            top_p: 0.95,
            min_p: 0.05,
            typical_p: 1.0,
            top_n_sigma: -1.0,
            xtc_probability: 0.0,
            xtc_threshold: 0.1,
            repeat_last_n: 64,
            repeat_penalty: 1.0,
            presence_penalty: 0.0,
            frequency_penalty: 0.0,
            dry_multiplier: 0.0,
            dry_base: 1.75,
            dry_allowed_length: 2,
            dry_penalty_last_n: -1,
            dry_sequence_breakers: ["\n", ":", "\"", "*"].map(str::to_owned).to_vec(),
            mirostat: 0,
            mirostat_tau: 5.0,
            mirostat_eta: 0.1,
            logit_bias: Vec::new(),
            grammar: None,
        }
    }
}

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

/// Reason why no slot can run a prompt.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum PromptFault {
    /// The prompt is empty.
    #[error("it has no tokens")]
    Empty,
    /// The prompt leaves no room for a response.
    #[error("it has {n_tokens} tokens, a slot has room for {context_tokens}")]
    TooLong {
        /// Length of the prompt.
        n_tokens: usize,
        /// Context of one slot.
        context_tokens: u32,
    },
    /// The vocabulary lacks a token.
    #[error("token {token} is not in the vocabulary of {n_vocab}")]
    UnknownToken {
        /// The token.
        token: Token,
        /// Number of tokens of the vocabulary.
        n_vocab: u32,
    },
}

/// Reason why the engine could not accept or complete a submission.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum EngineError {
    /// Every place in the queue is taken.
    #[error("the worker's queue is full ({queue_max} requests wait)")]
    QueueFull {
        /// Number of places.
        queue_max: usize,
    },
    /// The worker is shutting down.
    #[error("the worker is shutting down")]
    Draining,
    /// No slot can run the prompt.
    #[error("the prompt cannot be run: {0}")]
    InvalidPrompt(PromptFault),
    /// The sampler cannot be built, for example for a grammar that does not parse, or no token may be chosen.
    #[error("the sampler refuses: {reason}")]
    Sampler {
        /// Reason, for the client.
        reason: String,
    },
    /// The request needs a shift that is not possible.
    #[error(transparent)]
    Shift(ShiftObstacle),
    /// llama.cpp failed to decode a batch, and the sequence's state was lost.
    #[error("the model failed to decode: {reason}")]
    Decode {
        /// llama.cpp's error.
        reason: String,
    },
    /// The prompt, or the response to it, gave logits that only wrong state gives.
    #[error("the model gives no finite logits for this prompt")]
    NotFinite,
    /// A medium of the prompt could not be encoded; contains the reason.
    #[error("an image or audio file could not be encoded: {0}")]
    Encode(String),
    /// The engine thread has ended.
    #[error("the engine has stopped")]
    Stopped,
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

/// State of one slot, for `/slots`.
#[derive(Debug, Clone, PartialEq)]
pub struct SlotView {
    /// The slot.
    pub id: SlotId,
    /// Request that runs in the slot; `None` if it is idle.
    pub request_id: Option<RequestId>,
    /// Tokens in the slot's KV state, of the prompt and the response.
    pub held_tokens: u32,
    /// Number of its first tokens that later requests may reuse: all of them, unless some were shifted.
    pub exact_tokens: u32,
    /// Tokens of the running prompt.
    pub prompt_tokens: u32,
    /// Number of these tokens that were reused.
    pub cached_tokens: u32,
    /// Tokens generated so far.
    pub decoded_tokens: u32,
    /// Number of tokens that may still be generated; `None` if only the context limits them, and if the slot is idle.
    pub remaining_tokens: Option<u32>,
}
