//! What goes into the engine thread and what comes out: submissions, events, updates for the summary.
//!
//! Not here: how a submission is run (`thread`), where events go (the HTTP side).

use std::ops::AddAssign;
use std::time::Duration;

use schemars::JsonSchema;
use serde::Serialize;
use warmpath_common::block_hash::{BlockHash, BlockKey};
use warmpath_common::ids::{RequestId, SlotId, Token};
use warmpath_common::lora::Applied;
use warmpath_common::summary::{Change, Load};
use warmpath_worker_core::probabilities::{PromptProbabilities, TokenProbabilities};
use warmpath_worker_core::promises::PromiseId;
use warmpath_worker_core::tenants::TenantId;

use super::call_grammar::CallGrammar;
use super::config::ShiftObstacle;
use super::constraint::CompiledSchema;
use super::events::EventSender;
use super::sampler_kind::SamplerKind;
use super::thoughts::ThoughtsFirst;

/// Asks the engine for one answer to one prompt.
#[derive(Debug)]
pub struct Submission {
    /// Names the HTTP request; several submissions of one request share it.
    pub request_id: RequestId,
    /// Is the prompt. Shape: `[1..context_tokens)`, checked before it is submitted.
    pub prompt: Vec<Token>,
    /// Is the root of the prompt's block chain; sequences with different roots never share KV state.
    pub chain_root: BlockHash,
    /// Tenant that the router names; absent where there is none, and the root stands for it.
    pub tenant: Option<TenantId>,
    /// Is the adapter that it runs with, which the root covers; sequences with different ones never share a batch.
    pub adapter: Option<Applied>,
    /// Says how to choose and when to end.
    pub generation: Generation,
    /// Says whether KV state may be reused for this request and left behind by it.
    pub cache_prompt: bool,
    /// Says what may be shifted for this request.
    pub shifts: ShiftWish,
    /// Names the slot that the sender would like; a hint that never lowers reuse.
    pub wanted_slot: Option<SlotId>,
    /// Is how many of the prompt's tokens the sender counts on being cached; what is missing may be on its way.
    pub expected_tokens: u32,
    /// Is where the prompt's last message starts, if that is known: a place to resume from.
    pub last_message_token: Option<u32>,
    /// Is how much it matters to keep what the request leaves behind; larger is more, 0 is usual.
    pub priority: i32,
    /// Takes the events.
    pub events: EventSender,
}

impl Submission {
    /// Returns how many likeliest tokens are listed beside each of the prompt's, if that is wanted.
    pub(super) fn prompt_probabilities(&self) -> Option<usize> {
        self.generation.probabilities.filter(|wish| wish.of_prompt).map(|wish| wish.n_top)
    }
}

/// Says what of a request's state may be given other positions; llama-server's fields.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ShiftWish {
    /// Is the shortest run of tokens that is moved to where the prompt has it; 0 for none, absent for the engine's own.
    pub cache_reuse_tokens: Option<u32>,
    /// Is the first tokens that stay when the context shifts.
    pub n_keep: u32,
    /// Is the tokens that go then; absent for half of those that may.
    pub n_discard: Option<u32>,
}

/// Says how tokens are chosen and when an answer ends.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Generation {
    /// Is the most tokens to generate; absent means up to the end of the context.
    pub max_tokens: Option<u32>,
    /// Lists texts that end the answer and are not part of it.
    pub stop: Vec<String>,
    /// Fewest blanks before each line but the first; the answer ends at a line with fewer. 0 for any.
    pub n_indent: u32,
    /// Time from the first token after which the answer ends with its next line break; absent for no limit.
    pub predict_max: Option<Duration>,
    /// Says to go on past an end-of-generation token, which is then never chosen.
    pub ignore_eos: bool,
    /// Asks for how likely each token was; absent for not at all.
    pub probabilities: Option<ProbabilityWish>,
    /// Is how tool calls are constrained; absent where nothing is. Excludes a grammar of the client's own.
    pub calls: Option<CallGrammar>,
    /// Lists control tokens whose spelling is part of the answer's text, ascending; the others read as nothing.
    pub spelled: Vec<Token>,
    /// Is the sampler chain's parameters.
    pub sampling: Sampling,
    /// Is a schema that the answer must follow; excludes `ignore_eos` and a grammar.
    pub schema: Option<CompiledSchema>,
    /// Says that thoughts may come before what follows the schema; absent where none do.
    pub thoughts: Option<ThoughtsFirst>,
}

/// Says which probabilities of an answer's tokens are wanted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ProbabilityWish {
    /// Is how many of the likeliest tokens are listed beside the chosen one.
    pub n_top: usize,
    /// Says whose probabilities are meant.
    pub source: ProbabilitySource,
    /// Says whether those of the prompt's tokens are wanted too, which are always the model's. The whole prompt is then
    /// computed: state that is there already has no logits.
    pub of_prompt: bool,
}

/// Says whose probabilities are meant.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ProbabilitySource {
    /// The model's, before any sampler: the softmax of its logits.
    Model,
    /// Those that the token was drawn with, after temperature, penalties and all else.
    Sampler,
}

/// Is the sampler chain's parameters, named and defaulted as llama-server's.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub struct Sampling {
    /// Samplers in their order; a draw by what is left follows. Mirostat is used instead of them.
    pub samplers: Vec<SamplerKind>,
    /// Fewest tokens that `typ_p`, `top_p`, `min_p` and `xtc` leave; 0 for as few as they like.
    pub min_keep: u32,
    /// Is the random seed; absent means a fresh one.
    pub seed: Option<u32>,
    /// Flattens (above 1) or sharpens the distribution; 0 or less chooses the most likely token.
    pub temperature: f32,
    /// Is the dynamic temperature's range; 0 turns it off.
    pub dynatemp_range: f32,
    /// Is the dynamic temperature's exponent.
    pub dynatemp_exponent: f32,
    /// Keeps the k most likely tokens; 0 or less keeps all.
    pub top_k: i32,
    /// Keeps the most likely tokens whose probabilities add up to p; 1 keeps all.
    pub top_p: f32,
    /// Keeps tokens at least p times as likely as the most likely one; 0 keeps all.
    pub min_p: f32,
    /// Is locally typical sampling's p; 1 turns it off.
    pub typical_p: f32,
    /// Drops logits more than n standard deviations below the largest; 0 or less turns it off.
    pub top_n_sigma: f32,
    /// Is the chance that XTC drops the top choices; 0 turns it off.
    pub xtc_probability: f32,
    /// Is XTC's threshold.
    pub xtc_threshold: f32,
    /// Is how many of the last tokens the penalties look at; -1 means the whole context, 0 none.
    pub repeat_last_n: i32,
    /// Penalises repeated tokens by division; 1 turns it off.
    pub repeat_penalty: f32,
    /// Penalises tokens that occurred.
    pub presence_penalty: f32,
    /// Penalises tokens by how often they occurred.
    pub frequency_penalty: f32,
    /// Is DRY's strength; 0 turns it off.
    pub dry_multiplier: f32,
    /// Is DRY's base.
    pub dry_base: f32,
    /// Is the length of a repetition that DRY still allows.
    pub dry_allowed_length: i32,
    /// Is how many of the last tokens DRY looks at; -1 means the whole context.
    pub dry_penalty_last_n: i32,
    /// Lists texts that break a repetition for DRY.
    pub dry_sequence_breakers: Vec<String>,
    /// Is 0 for no mirostat, 1 or 2 for its version.
    pub mirostat: u8,
    /// Is mirostat's target entropy.
    pub mirostat_tau: f32,
    /// Is mirostat's learning rate.
    pub mirostat_eta: f32,
    /// Adds to the logits of tokens.
    pub logit_bias: Vec<(Token, f32)>,
    /// Is a GBNF grammar that the answer must follow.
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

/// Is what the engine says about one submission, in this order: `Started`, at most one `Prompt`, any `Text`, then `Finished`
/// or `Failed`.
#[derive(Debug)]
pub enum Event {
    /// A slot runs the prompt.
    Started(Started),
    /// The prompt is computed, and it was asked how likely its tokens are.
    Prompt(PromptProbabilities),
    /// More of the answer: whole UTF-8 characters, never part of a stop text.
    Text {
        /// Is the text; may be empty where a token completed no character.
        text: String,
        /// Is the token that was generated since the event before.
        token: Token,
        /// Says how likely the tokens were whose text starts in this one, where that was asked for. A token
        /// without text, as one that belongs to a stop text, has no entry.
        probabilities: Vec<TokenProbabilities>,
    },
    /// The answer is complete.
    Finished(Finished),
    /// The answer cannot be completed; nothing follows.
    Failed(EngineError),
}

/// Says what a submission started from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Started {
    /// Names the slot.
    pub slot: SlotId,
    /// Says where the prompt tokens came from that were reused.
    pub cached: CachedTokens,
    /// Prompt tokens before the place where the prompt leaves an answer that was given here before; absent where it
    /// leaves none.
    pub left_answer_at: Option<u32>,
    /// Is how long it took to bring their state into the slot.
    pub restored: Duration,
}

impl Started {
    /// Returns the number of prompt tokens that were reused.
    pub fn cached_tokens(&self) -> u32 {
        self.cached.total()
    }
}

/// Says how an answer ended and what it took.
#[derive(Debug, Clone, PartialEq)]
pub struct Finished {
    /// Is why it ended.
    pub reason: FinishReason,
    /// Is the stop text that ended it, if one did.
    pub stopping_word: Option<String>,
    /// Says that the context was full: the answer ended there, or its oldest tokens were dropped.
    pub truncated: bool,
    /// Is the number of tokens generated, an end-of-generation token counted.
    pub completion_tokens: u32,
    /// Is the time from the slot's start to the first token. Units: milliseconds.
    pub prompt_ms: f64,
    /// Is the time from the first token to the last. Units: milliseconds.
    pub predicted_ms: f64,
}

/// Is why an answer ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FinishReason {
    /// An end-of-generation token.
    EndOfGeneration,
    /// A stop text.
    StopText,
    /// `max_tokens`, the end of the context, `n_indent` or `t_max_predict_ms`.
    Length,
}

/// Is why the engine could not take or complete a submission.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum EngineError {
    /// Every place in the admission queue is taken.
    #[error("the worker's queue is full ({queue_max} requests wait)")]
    QueueFull {
        /// Is the number of places.
        queue_max: usize,
    },
    /// The worker is shutting down.
    #[error("the worker is shutting down")]
    Draining,
    /// The prompt is empty, too long for a slot or holds a token that the vocabulary lacks.
    #[error("the prompt cannot be run: {reason}")]
    InvalidPrompt {
        /// Says what is wrong, fit for the client.
        reason: String,
    },
    /// The sampler cannot be built, as with a grammar that does not parse, or finds no token that it may choose.
    #[error("the sampler refuses: {reason}")]
    Sampler {
        /// Says what was refused, fit for the client.
        reason: String,
    },
    /// The request wants state shifted that cannot be.
    #[error(transparent)]
    Shift(ShiftObstacle),
    /// llama.cpp failed to decode a batch that held this sequence.
    #[error("the model failed to decode: {reason}")]
    Decode {
        /// Says what llama.cpp returned.
        reason: String,
    },
    /// The engine thread has ended.
    #[error("the engine has stopped")]
    Stopped,
}

/// Is what the summary publisher is told, in the order in which it became true.
#[derive(Debug, Clone, PartialEq)]
pub enum EngineUpdate {
    /// The engine has taken a step in which something changed.
    Step {
        /// Lists what has changed, in order.
        changes: Vec<Change>,
        /// Is the load after the step.
        load: Load,
        /// Lists the requests that this load is the first to count.
        counted: Vec<PromiseId>,
    },
    /// A request has come.
    Promised {
        /// Names the promise.
        id: PromiseId,
        /// Names the request; several submissions of one request share it.
        request: RequestId,
        /// Is how much there is to compute if nothing can be reused. Units: tokens.
        n_tokens: u32,
        /// Lists its prompt's blocks, in the order of their chain; none where it may not start from what is there.
        keys: Vec<BlockKey>,
        /// Says that it will fill those of them that are not there.
        is_filling: bool,
    },
    /// That request has started, which a step before has told, or never will.
    Settled(PromiseId),
}

/// Says where the prompt tokens came from that were not computed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, JsonSchema)]
pub struct CachedTokens {
    /// Counts those that some slot held.
    pub resident: u32,
    /// Counts those that came from the store in memory.
    pub ram: u32,
    /// Counts those that came from the store on disk.
    pub disk: u32,
    /// Counts those that a slot held elsewhere in its text: their state is approximate.
    pub shifted: u32,
}

impl CachedTokens {
    /// Returns those whose state is what computing them gives.
    pub fn exact(self) -> u32 {
        self.resident + self.ram + self.disk
    }

    /// Returns all of them.
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

/// Shows one slot, for `/slots`.
#[derive(Debug, Clone, PartialEq)]
pub struct SlotView {
    /// Names the slot.
    pub id: SlotId,
    /// Names the request that it runs; absent when idle.
    pub request_id: Option<RequestId>,
    /// Is the tokens whose KV state the slot holds, prompt and answer.
    pub held_tokens: u32,
    /// Counts the first of them that later requests may start from: all of them, unless some were shifted.
    pub exact_tokens: u32,
    /// Is the tokens of the running prompt.
    pub prompt_tokens: u32,
    /// Is how many of those were reused.
    pub cached_tokens: u32,
    /// Is the tokens generated so far.
    pub decoded_tokens: u32,
    /// Is how many more may be generated; absent where only the context limits them, and when idle.
    pub remaining_tokens: Option<u32>,
}
