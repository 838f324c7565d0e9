//! One running sequence: its prompt, its answer so far, and what ends it.
//!
//! Not here: its KV state (the slot table and llama.cpp), which tokens are computed when (`step`).

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use warmpath_common::ids::Token;
use warmpath_worker_core::batch_plan::Work;
use warmpath_worker_core::output::Output;
use warmpath_worker_core::probabilities::{self, PromptProbabilities, TokenProbabilities};

use super::events::EventSender;
use super::handle::{Admission, Place};
use super::messages::{Event, FinishReason, Finished, Started, Submission};
use super::sampler::TokenSampler;

/// Is a sequence in a slot.
pub(super) struct Sequence {
    pub(super) submission: Submission,
    pub(super) sampler: TokenSampler,
    pub(super) n_cached: u32,
    pub(super) n_generated: u32,
    /// Says that the context was full.
    pub(super) truncated: bool,
    /// Orders the sequences by when they got their slot.
    pub(super) order: u64,
    /// Is the prompt tokens of others that were computed since its last token.
    pub(super) passed_tokens: u32,
    /// Next token of the answer, chosen and not yet told.
    pub(super) untold: Option<Chosen>,
    output: Output,
    /// Is how likely the prompt's tokens are, as far as they are computed; absent where nobody asked or it is told.
    listed: Option<PromptProbabilities>,
    /// Holds how likely tokens were whose text is not out yet, with where their text starts.
    held: VecDeque<(usize, TokenProbabilities)>,
    /// Is the token that was chosen last, whose KV state is not there yet.
    chosen: Option<Token>,
    /// Lists after how many tokens the partial state is kept, ascending, those behind it left out.
    checkpoints: Vec<u32>,
    times: Times,
    _place: Place,
}

struct Times {
    came: Instant,
    started: Instant,
    first_token: Option<Instant>,
    last_token: Option<Instant>,
}

/// Says what a token's logits are for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Purpose {
    /// To choose the next token.
    Choose,
    /// To say how likely the prompt's next token is.
    List,
}

/// Is a token as the vocabulary sees it.
pub(super) struct Chosen {
    pub(super) token: Token,
    /// Is its text in bytes; empty for a control token.
    pub(super) piece: Vec<u8>,
    pub(super) ends_generation: bool,
    pub(super) probabilities: Option<TokenProbabilities>,
}

impl Sequence {
    /// Starts a submission and says so to its client.
    pub(super) fn start(admission: Admission, started: Started, order: u64) -> Self {
        let Admission { mut submission, sampler, came, place, .. } = admission;
        submission.events.send(Event::Started(started));
        let stops = std::mem::take(&mut submission.generation.stop);
        let output = Output::new(stops).indented(submission.generation.n_indent);
        let times = Times { came, started: Instant::now(), first_token: None, last_token: None };
        let n_cached = started.cached_tokens();
        let checkpoints = Vec::new();
        let wants_list = submission.prompt_probabilities().is_some();
        let listed = wants_list.then(|| PromptProbabilities { first: submission.prompt[0], rest: Vec::new() });
        Self {
            submission,
            sampler,
            n_cached,
            n_generated: 0,
            truncated: false,
            order,
            passed_tokens: 0,
            untold: None,
            output,
            listed,
            held: VecDeque::new(),
            chosen: None,
            checkpoints,
            times,
            _place: place,
        }
    }

    /// Returns the time since it came to the engine, be it in the queue or in its slot.
    pub(super) fn waited(&self) -> Duration {
        self.times.came.elapsed()
    }

    /// Says after how many tokens of the prompt the partial state is to be kept.
    pub(super) fn with_checkpoints(self, checkpoints: Vec<u32>) -> Self {
        Self { checkpoints, ..self }
    }

    /// Asks for the partial state after so many tokens of the prompt, on behalf of a sequence that waits for it.
    pub(super) fn want_checkpoint(&mut self, n_tokens: u32) {
        if let Err(idx) = self.checkpoints.binary_search(&n_tokens) {
            self.checkpoints.insert(idx, n_tokens);
        }
    }

    /// Returns whether the partial state is to be kept now, once for each place.
    pub(super) fn reaches_checkpoint(&mut self, n_held: u32) -> bool {
        let n_passed = self.checkpoints.iter().take_while(|stop| **stop <= n_held).count();
        self.checkpoints.drain(..n_passed).next_back() == Some(n_held)
    }

    /// Returns whether the client has gone.
    pub(super) fn is_abandoned(&self) -> bool {
        self.submission.events.is_closed()
    }

    /// Returns whether its reader must read before more is made for it.
    pub(super) fn is_unread(&self) -> bool {
        self.submission.events.is_full()
    }

    /// Returns whether it has begun to answer.
    pub(super) fn is_stream(&self) -> bool {
        self.chosen.is_some()
    }

    /// Returns what comes next, given how many of the sequence's tokens have their KV state: a prompt is computed up to the
    /// next checkpoint at most.
    pub(super) fn work(&self, n_held: u32) -> Work {
        // A sequence that generates may hold fewer tokens than its prompt had, once its context was shifted.
        if self.is_stream() {
            return Work::Decode;
        }
        let until =
            self.checkpoints.iter().copied().find(|stop| *stop > n_held).unwrap_or(u32::MAX).min(self.n_prompt());
        match until.saturating_sub(n_held) {
            0 => Work::Decode,
            n_tokens => Work::Prefill { n_tokens, ends: until == self.n_prompt() },
        }
    }

    /// Returns the next `n_tokens` tokens to compute behind the `n_held` that have their KV state.
    pub(super) fn upcoming(&self, n_held: u32, n_tokens: u32) -> &[Token] {
        let prompt = &self.submission.prompt;
        match self.work(n_held) {
            Work::Prefill { .. } => &prompt[n_held as usize..(n_held + n_tokens) as usize],
            Work::Decode => self.chosen.as_slice(),
        }
    }

    /// Returns what the logits of the token at `position` are for, where `n_held_after` tokens have their state behind this
    /// step.
    pub(super) fn purpose(&self, position: u32, n_held_after: u32) -> Option<Purpose> {
        let is_behind_prompt = self.is_stream() || position + 1 >= self.n_prompt();
        let decides = is_behind_prompt && position + 1 == n_held_after;
        if self.listed.is_some() && !is_behind_prompt {
            Some(Purpose::List)
        } else {
            (decides && self.submission.generation.max_tokens != Some(0)).then_some(Purpose::Choose)
        }
    }

    /// Returns whether logits of the prompt's tokens are wanted and not all there.
    pub(super) fn lists_prompt(&self) -> bool {
        self.listed.as_ref().is_some_and(|listed| listed.rest.len() + 1 < self.submission.prompt.len())
    }

    /// Takes the logits of the prompt's next token, which say how likely the one behind it is.
    pub(super) fn list(&mut self, logits: &[f32]) {
        let Some(n_top) = self.submission.prompt_probabilities() else { return };
        let Some(listed) = &mut self.listed else { return };
        let Some(token) = self.submission.prompt.get(listed.rest.len() + 1) else { return };
        listed.rest.push(probabilities::of_logits(logits, *token, n_top));
    }

    /// Tells the client how likely the prompt's tokens are, once, where that is wanted.
    pub(super) fn tell_prompt(&mut self) {
        if let Some(listed) = self.listed.take() {
            self.submission.events.send(Event::Prompt(listed));
        }
    }

    /// Returns whether the sequence is over although nothing was chosen: the prompt was all that was wanted.
    pub(super) fn is_prompt_only(&self, n_held: u32) -> bool {
        n_held >= self.n_prompt() && self.submission.generation.max_tokens == Some(0)
    }

    /// Takes the next token of the answer, tells the client and returns why the answer ends here, if it does.
    ///
    /// Units: `room_tokens` is how many more tokens the context can hold.
    pub(super) fn take(&mut self, mut chosen: Chosen, room_tokens: u32) -> Option<FinishReason> {
        self.tell_prompt();
        let now = Instant::now();
        let first_token = *self.times.first_token.get_or_insert(now);
        self.times.last_token = Some(now);
        self.n_generated += 1;
        self.passed_tokens = 0;
        self.chosen = Some(chosen.token);
        self.held.extend(chosen.probabilities.take().map(|probabilities| (self.output.n_taken(), probabilities)));
        let mut text = self.output.push(&chosen.piece);
        let is_late = self.submission.generation.predict_max.is_some_and(|most| now - first_token > most);
        let late = (is_late && text.contains('\n')).then_some(FinishReason::Length);
        let reason = self.end(&chosen, room_tokens).or(late);
        self.truncated |= room_tokens == 0;
        if reason.is_some() {
            text.push_str(&self.output.finish());
        }
        let n_out = self.output.n_out();
        let n_told = self.held.iter().take_while(|(start, _)| *start < n_out).count();
        let probabilities = self.held.drain(..n_told).map(|(_, probabilities)| probabilities).collect();
        self.submission.events.send(Event::Text { text, token: chosen.token, probabilities });
        // What was held back may complete a stop text at the very end, as when an invalid byte becomes a character.
        reason.map(|reason| if self.output.stop_text().is_some() { FinishReason::StopText } else { reason })
    }

    /// Ends the sequence, whose place is free again; returns the way to its reader.
    pub(super) fn into_events(self) -> EventSender {
        self.submission.events
    }

    /// Returns how the answer ended and what it took.
    pub(super) fn finished(&self, reason: FinishReason) -> Finished {
        let ms = |from: Instant, to: Instant| to.saturating_duration_since(from).as_secs_f64() * 1e3;
        let prompt_end = self.times.first_token.unwrap_or_else(Instant::now);
        Finished {
            reason,
            stopping_word: self.output.stop_text().map(str::to_owned),
            truncated: self.truncated,
            completion_tokens: self.n_generated,
            prompt_ms: ms(self.times.started, prompt_end),
            predicted_ms: ms(prompt_end, self.times.last_token.unwrap_or(prompt_end)),
        }
    }

    fn end(&self, chosen: &Chosen, room_tokens: u32) -> Option<FinishReason> {
        let n_max = self.submission.generation.max_tokens.unwrap_or(u32::MAX);
        if self.output.stop_text().is_some() {
            Some(FinishReason::StopText)
        } else if chosen.ends_generation {
            Some(FinishReason::EndOfGeneration)
        } else if self.output.is_outdented() || self.n_generated >= n_max || room_tokens == 0 {
            Some(FinishReason::Length)
        } else {
            None
        }
    }

    /// Returns how many of the prompt's tokens have no KV state yet.
    pub(super) fn n_prompt_left(&self, n_held: u32) -> u32 {
        if self.is_stream() { 0 } else { self.n_prompt().saturating_sub(n_held) }
    }

    fn n_prompt(&self) -> u32 {
        u32::try_from(self.submission.prompt.len()).expect("a prompt is shorter than a context, a u32")
    }
}
