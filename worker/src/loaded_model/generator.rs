//! The state of a loaded worker that generates text.
//!
//! Not here: loading (`start`), running a request (`lifecycle`).

use std::path::PathBuf;
use std::time::Duration;

use warmpath_common::block_hash::{BlockHash, ChainRoot};
use warmpath_common::ids::Token;
use warmpath_common::lora::Applied;
use warmpath_common::openai::ChatPrompt;
use warmpath_prompt::{AddSpecial, MediaRun, ParseSpecial};

use super::common::{CommonState, check_model};
use crate::engine::{EngineError, EngineHandle, Generation};
use crate::error::RequestError;
use crate::slot_context::SlotContext;
use crate::tools::ReasoningOutput;

/// Length up to which every prompt is counted to its end, if no response to it is generated. Units: contexts of a slot.
///
/// Source: own choice: a client that shortens a prompt needs its length; one of more than two contexts must be divided
/// anyway.
const COUNTED_CONTEXTS_MAX: usize = 2;

/// State of a loaded worker that generates text.
pub struct Generator {
    /// State that an embedding worker has, too.
    pub common: CommonState,
    /// Runs the model.
    pub engine: EngineHandle,
    /// Default generation parameters of requests.
    pub defaults: Generation,
    /// Field that gets reasoning unless a request says so.
    pub reasoning_output: ReasoningOutput,
    /// Default silence of a stream after which it sends a keep-alive comment.
    pub silence_max: Option<Duration>,
    /// Files of the adapters.
    pub adapter_files: Vec<PathBuf>,
}

impl Generator {
    /// Returns the maximum number of running and waiting sequences. A request with more is never accepted.
    pub fn n_places(&self) -> usize {
        self.common.pools.compute.n_places()
    }

    /// Returns the number of tokens of a chat's prompt.
    ///
    /// Errors: `Prompt` for messages, `PromptTooLong` if it is far longer than `COUNTED_CONTEXTS_MAX` contexts.
    pub fn count_tokens(&self, chat: &ChatPrompt) -> Result<usize, RequestError> {
        let slot = self.slot_context();
        let n_tokens_max = (slot.context_tokens as usize).saturating_mul(COUNTED_CONTEXTS_MAX);
        let prompt = self.common.prompts.chat_within(chat, n_tokens_max);
        Ok(prompt.map_err(|error| RequestError::of_chat(error, slot))?.tokens.len())
    }

    /// Checks that the engine has a free place before a prompt is prepared.
    ///
    /// The number is as of the last step; `submit` decides. Errors: `Engine(QueueFull)`.
    pub fn check_queue(&self) -> Result<(), RequestError> {
        let counters = self.engine.counters();
        let n_held = usize::try_from(counters.busy_slots + counters.queued).unwrap_or(usize::MAX);
        if n_held < self.n_places() {
            return Ok(());
        }
        let queue_max = self.n_places() - usize::from(self.common.model.n_slots);
        Err(EngineError::QueueFull { queue_max }.into())
    }

    /// Returns the context of a slot.
    pub fn slot_context(&self) -> SlotContext {
        SlotContext { is_limited: self.engine.facts().is_limited, ..SlotContext::of(&self.common.model) }
    }

    /// Checks that a slot can run a prompt with these runs of media tokens.
    ///
    /// Errors: `Field` if it is empty or has a token that the vocabulary lacks; `PromptTooLong`.
    pub fn check_prompt(&self, prompt: &[Token], runs: &[MediaRun]) -> Result<(), RequestError> {
        let check = self.engine.check_prompt(prompt, runs);
        check.map_err(|fault| RequestError::of_fault(fault, self.slot_context()))
    }

    /// Returns the tokens of a text that is not a prompt by itself.
    pub fn tokenize_plain(&self, text: &str) -> Vec<Token> {
        self.common.prompts.tokenize(text, AddSpecial::No, ParseSpecial::No)
    }

    /// Returns the root of the chains of prompts with this adapter, or without one, and this salt.
    pub fn chain_root(&self, adapter: Option<Applied>, salt: &str) -> BlockHash {
        let lora = self.common.model.lora_root(adapter);
        ChainRoot { model_fingerprint: &self.common.model.fingerprint.0, lora: &lora, cache_salt: salt.as_bytes() }
            .hash()
    }

    /// Returns a fingerprint of the weights and the KV layout, which changes whenever responses may change.
    pub fn system_fingerprint(&self) -> String {
        let (model, layout) = (self.common.model.fingerprint.to_string(), self.common.model.kv_fingerprint.to_string());
        format!("b{}-{}", &model[..8], &layout[..4])
    }

    /// Checks that `model`, if a request names one, is the served model.
    ///
    /// Errors: `ModelUnknown`.
    pub fn check_model(&self, model: Option<&str>) -> Result<(), RequestError> {
        check_model(&self.common.model, model)
    }
}
