//! One prompt of a request as tokens, with what its response needs.

use std::sync::Arc;

use warmpath_common::ids::Token;
use warmpath_prompt::{MediaRun, PromptTokens};
use warmpath_worker_output::reasoning_budget::ReasoningBound;

use super::chat_answer::ChatAnswer;
use super::prompt_fingerprint::PromptFingerprint;
use crate::error::RequestError;
use crate::loaded_model::generator::Generator;
use crate::request::Repeats;

/// One prompt of a request.
#[derive(Debug, Clone)]
pub struct TokenizedPrompt {
    /// Tokens of the prompt.
    pub tokens: Vec<Token>,
    /// Runs of media tokens in it.
    pub runs: Vec<MediaRun>,
    /// Positions at which later requests may resume, if the model needs checkpoints there.
    pub breakpoints: Vec<u32>,
    /// Text of the prompt, if the response repeats it.
    pub text: Option<String>,
    /// Whether the response's text and log probabilities begin with those of the prompt.
    pub is_echoed: bool,
    /// Constraints of its response and the format for parsing it; `None` if the whole text is the content.
    pub answer: Option<Arc<ChatAnswer>>,
    /// Bound of the response's reasoning; `None` until it is known, and if there is none.
    pub bound: Option<ReasoningBound>,
    /// What the prompt lacks.
    pub left_out: LeftOut,
    /// Fingerprint of the prompt; `None` if it is no chat.
    pub fingerprint: Option<Box<PromptFingerprint>>,
}

/// Kinds of what is in a request, but not in its prompt.
#[derive(Debug, Clone, Default)]
pub struct LeftOut {
    /// Kinds of tools that this worker does not execute.
    pub tools: Vec<&'static str>,
    /// Kinds of parts of the history that the model cannot read; a short text is in their place.
    pub parts: Vec<&'static str>,
}

impl TokenizedPrompt {
    /// Returns a prompt that is not a chat.
    ///
    /// Errors: `Field` if the answer should begin with media; those of [`Generator::check_prompt`].
    pub(super) fn raw(
        generator: &Generator,
        prompt_tokens: PromptTokens,
        repeats: Repeats,
    ) -> Result<Self, RequestError> {
        let PromptTokens { tokens, runs, .. } = prompt_tokens;
        let is_echoed = repeats == Repeats::Echo;
        if is_echoed && !runs.is_empty() {
            return Err(RequestError::field("echo", "an answer cannot begin with images or audio: leave out `echo`"));
        }
        if repeats != Repeats::Nothing {
            // The text of a prompt that is too long may be far longer than the request.
            generator.check_prompt(&tokens, &runs)?;
        }
        // Media are no part of the text, as in llama-server.
        let text = (repeats != Repeats::Nothing).then(|| generator.common.prompts.detokenize(&tokens));
        Ok(Self {
            tokens,
            runs,
            breakpoints: Vec::new(),
            text,
            is_echoed,
            answer: None,
            bound: None,
            left_out: LeftOut::default(),
            fingerprint: None,
        })
    }

    /// Returns whether the answer may consist of tool calls.
    pub fn may_call(&self) -> bool {
        self.answer.as_ref().is_some_and(|answer| answer.may_call())
    }
}
