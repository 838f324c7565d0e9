//! The plain types of the engine's interface: submissions here, their events and the rest in the folder.
//!
//! They lie below all parts of the engine and know none of them. Not here: running a submission (`thread`), updates for
//! the summary (`warmpath_worker_core::reports::summary_writer`).

pub(crate) mod cache;
mod channel;
mod errors;
mod events;
pub(crate) mod facts;
pub(crate) mod peers;
mod sampling;
mod waker;

use std::time::Duration;

use warmpath_common::block_hash::BlockHash;
use warmpath_common::ids::{RequestId, SlotId, Token};
use warmpath_common::lora::Applied;
use warmpath_constraint::{CallGrammar, CompiledSchema, ReasoningFirst};
use warmpath_prompt::MediaRun;
use warmpath_worker_core::tenants::TenantId;
use warmpath_worker_output::logprobs::TokenProbabilities;
use warmpath_worker_output::reasoning_budget::ReasoningBound;
use warmpath_worker_output::tool_call_detector::ReasoningMarks;

pub use cache::SlotView;
pub use channel::{EventReceiver, EventSender, UNREAD_BYTES_MAX, events};
pub use errors::{EngineError, PromptFault, ShiftObstacle};
pub use events::{CachedTokens, Drafted, EngineEvent, FinishReason, Finished, Started};
pub use peers::{FetchOrder, FetchedState, Inbox, PeerOffer, PeerSpeed};
pub use sampling::{SamplerKind, Sampling};
pub use waker::Waker;

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
    pub shifts: ShiftOptions,
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
        self.generation.probabilities.filter(|options| options.of_prompt).map(|options| options.n_top)
    }
}

impl Generation {
    /// Returns whether nothing is generated: the request only fills the cache, or lists its prompt's probabilities.
    pub fn is_prompt_only(&self) -> bool {
        self.max_tokens == Some(0)
    }

    /// Returns whether the request only fills the cache for later ones.
    pub fn is_prewarm(&self) -> bool {
        self.is_prompt_only() && !self.probabilities.is_some_and(|options| options.of_prompt)
    }
}

/// Requested moves of state to other positions, as in llama-server's fields.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ShiftOptions {
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
    pub probabilities: Option<ProbabilityOptions>,
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
    pub budget: ReasoningBudgetOptions,
    /// Bound of reasoning in the response's format; `None` if there is none.
    pub bound: Option<ReasoningBound>,
    /// Requested drafts.
    pub drafts: DraftOptions,
}

/// Requested bound of a response's reasoning, before the format of the response is known.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ReasoningBudgetOptions {
    /// Maximum number of tokens; `None` for no bound.
    pub tokens_max: Option<u32>,
    /// Text before the mark that closes the reasoning at the bound.
    pub message: String,
    /// Marks of reasoning in the response to a raw prompt; `None` for those of the chat template.
    pub marks: Option<ReasoningMarks>,
    /// Field with which the request itself sets the bound; `None` if the bound is the worker's default.
    pub named: Option<&'static str>,
}

/// Requested drafts; without effect if the engine makes none.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct DraftOptions {
    /// Tokens that the client expects in the response.
    pub predicted: Vec<Token>,
    /// Maximum length of a draft, up to the engine's own limit; 0 turns drafts off.
    pub n_max: Option<u32>,
    /// Minimum length of a draft.
    pub n_min: Option<u32>,
}

/// Requested probabilities of a response's tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ProbabilityOptions {
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
