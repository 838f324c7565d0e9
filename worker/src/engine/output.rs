//! The output of sequences: sampling, constraints by grammars and schemas, drafts.
//!
//! [`Generator`] chooses each sequence's next tokens by the logits and sends them to the client.
//!
//! Not here: which sequence runs (`schedule`), the state of its tokens (`kv`), text by itself
//! (`warmpath_worker_output`), grammars and schemas by themselves (`warmpath_constraint`).

pub(crate) mod constraint;
pub(crate) mod draft_model;
pub(crate) mod sampler;
pub(crate) mod speculation;

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use llama_cpp_2::model::LlamaModel;
use llama_cpp_2::token::LlamaToken;
use warmpath_common::ids::Token;
use warmpath_worker_core::drafting::step_costs::StepCosts;

use super::api::{EngineError, FinishReason, SampledToken};
use super::config::AtContextEnd;
use super::counters::Counters;
use super::sequence::Sequence;
use super::sequence::chosen_token::ChosenToken;
use speculation::Speculation;

/// Chooses tokens and sends them to clients.
pub(crate) struct Generator<'m> {
    model: &'m LlamaModel,
    context: ContextEnd,
    /// State of speculative decoding; `None` if nothing is drafted.
    speculation: Option<Speculation<'m>>,
    counters: Arc<Counters>,
}

/// Settings for a response that fills its context.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ContextEnd {
    pub context_tokens: u32,
    pub at_end: AtContextEnd,
    /// Maximum length of a response without a requested limit, if it may outgrow its context.
    pub unasked_tokens_max: u32,
}

impl ContextEnd {
    /// Returns how many more tokens a sequence with `n_held` tokens in its context may have.
    fn room(self, sequence: &Sequence, n_held: u32) -> u32 {
        match (self.at_end, sequence.submission.generation.max_tokens) {
            (AtContextEnd::Stop, _) => self.context_tokens.saturating_sub(n_held),
            (AtContextEnd::Shift, Some(_)) => u32::MAX,
            // This limits responses that neither the client nor the model ends.
            (AtContextEnd::Shift, None) => self.unasked_tokens_max.saturating_sub(sequence.n_generated + 1),
        }
    }
}

impl<'m> Generator<'m> {
    pub(crate) fn new(
        model: &'m LlamaModel,
        context: ContextEnd,
        speculation: Option<Speculation<'m>>,
        counters: Arc<Counters>,
    ) -> Self {
        Self { model, context, speculation, counters }
    }

    /// Changes the times of steps by which drafts are planned.
    pub(crate) fn set_step_costs(&mut self, costs: StepCosts) {
        if let Some(speculation) = &mut self.speculation {
            speculation.set_costs(costs);
        }
    }

    /// Returns whether sequences with `n_held` tokens continue by a context shift.
    pub(crate) fn shifts(&self, n_held: u32) -> bool {
        self.context.at_end == AtContextEnd::Shift && n_held >= self.context.context_tokens
    }

    /// Chooses a sequence's next token by the logits; [`Self::send_chosen`] sends it.
    ///
    /// Errors: `Sampler`.
    pub(crate) fn choose(&self, sequence: &mut Sequence, logits: &[f32]) -> Result<(), EngineError> {
        let sampled_token = sequence.sampler.choose(self.model, logits)?;
        let mut chosen_token = look_up(self.model, sampled_token, &sequence.submission.generation.spelled);
        let options = sequence.submission.generation.probabilities.filter(|_| !chosen_token.ends_generation);
        chosen_token.probabilities =
            options.map(|options| sequence.sampler.probabilities(options, logits, chosen_token.token));
        sequence.pending_token = Some(chosen_token);
        Ok(())
    }

    /// Sends a sequence's chosen token, if there is one; returns the finish reason if the response ends with it.
    pub(crate) fn send_chosen(&self, sequence: &mut Sequence, n_held: u32) -> Option<FinishReason> {
        let chosen_token = sequence.pending_token.take()?;
        self.counters.generated_tokens.fetch_add(1, Relaxed);
        let room_tokens = self.context.room(sequence, n_held);
        sequence.take(chosen_token, room_tokens)
    }

    /// Sends the tokens of an earlier part of a response; returns the finish reason if the response ends with it.
    ///
    /// Only the last token may end it: the other worker, whose limits may differ, went on after all others.
    pub(crate) fn replay(&self, sequence: &mut Sequence, mut past_tokens: Vec<ChosenToken>) -> Option<FinishReason> {
        // A response may end without a token, if only its prompt was wanted.
        let Some(last) = past_tokens.pop() else { return sequence.submission.past_end };
        past_tokens.into_iter().for_each(|past_token| sequence.replay(past_token));
        let n_held = u32::try_from(sequence.submission.prompt.len() - 1).unwrap_or(u32::MAX);
        let room_tokens = self.context.room(sequence, n_held);
        sequence.replay_last(last, room_tokens)
    }
}

/// Returns a token with its text and properties; `spelled_tokens` has the control tokens that are part of the text.
pub(crate) fn look_up(model: &LlamaModel, sampled_token: SampledToken, spelled_tokens: &[Token]) -> ChosenToken {
    let SampledToken { token, n_draws } = sampled_token;
    let vocab = model.vocab();
    let llama_token = LlamaToken(i32::try_from(token).expect("llama.cpp's tokens are i32"));
    ChosenToken {
        token,
        piece: vocab.token_to_piece(llama_token, spelled_tokens.binary_search(&token).is_ok(), None),
        ends_generation: vocab.is_eog(llama_token),
        probabilities: None,
        n_draws,
    }
}
