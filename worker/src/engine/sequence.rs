//! A running sequence: its prompt, its response so far, and its end.
//!
//! Not here: its KV state (the slot table and llama.cpp), when its tokens are computed (`step`).

pub(crate) mod admission;
pub(crate) mod chosen_token;
pub(crate) mod places;
pub(crate) mod running;

use std::collections::VecDeque;
use std::ops::Range;
use std::time::{Duration, Instant};

use warmpath_common::ids::Token;
use warmpath_worker_core::batches::batch_plan::Work;
use warmpath_worker_core::drafting::Drafter;
use warmpath_worker_core::drafting::lengths::Length;
use warmpath_worker_core::slots::checkpoints::CheckpointStop;
use warmpath_worker_core::store::chunk_index::CheckpointPlace;
use warmpath_worker_output::logprobs::{self, PromptProbabilities, TokenProbabilities};
use warmpath_worker_output::stream_decoder::Output;

use super::api::EventSender;
use super::api::{Drafted, EngineEvent, FinishReason, Finished, Submission};
use super::kv::restoring::SlotStart;
use super::kv::shifts::ParkedRun;
use super::media::{Encoding, RunAttention};
use super::output::sampler::TokenSampler;
use admission::Admission;
use chosen_token::ChosenToken;
use places::HeldPlace;

/// A sequence in a slot.
pub(crate) struct Sequence {
    pub(super) submission: Submission,
    pub(super) sampler: TokenSampler,
    pub(super) n_cached: u32,
    pub(super) n_generated: u32,
    /// Whether the context was full.
    pub(super) truncated: bool,
    /// Number of the sequence in the order in which sequences got their slots.
    pub(super) order: u64,
    /// Prompt tokens of other sequences for which this one has waited since its last token
    /// (`warmpath_worker_core::batches::batch_plan::passed_tokens`).
    pub(super) passed_tokens: u32,
    /// Next token of the response, which was chosen and not sent yet.
    pub(super) pending_token: Option<ChosenToken>,
    /// Drafter of its next tokens; `None` without drafts.
    pub(super) drafter: Option<Drafter>,
    /// Drafted tokens that were computed, and how many of them were accepted.
    pub(super) drafted: Drafted,
    output: Output,
    /// Log probabilities of the prompt's tokens that are computed so far; `None` if not requested or already sent.
    prompt_probabilities: Option<PromptProbabilities>,
    /// Log probabilities of tokens whose text is not sent yet, with the start of their text.
    held_probabilities: VecDeque<(usize, TokenProbabilities)>,
    /// The last chosen token, whose KV state is not computed yet, and the draft after it; empty for a prompt.
    decoding: Vec<Token>,
    /// Remaining checkpoints, by ascending position.
    checkpoints: Vec<CheckpointStop>,
    /// Positions whose state other requests wait for, ascending.
    stops: Vec<u32>,
    /// Parked state that is not yet appended to the prompt.
    parked: VecDeque<ParkedRun>,
    /// Media after the cached part of the prompt, in their order.
    media: Vec<UpcomingMedia>,
    times: Times,
    _place: HeldPlace,
}

/// A run of media tokens, with its embeddings once they are computed.
pub(crate) struct UpcomingMedia {
    /// Positions of its tokens in the prompt.
    pub(super) place: Range<u32>,
    pub(super) attention: RunAttention,
    pub(super) encoding: Encoding,
}

struct Times {
    came: Instant,
    started: Instant,
    first_token: Option<Instant>,
    last_token: Option<Instant>,
}

/// Use of a token's logits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum LogitsUse {
    /// Choosing the next token.
    Choose,
    /// Computing the log probability of the prompt's next token.
    List,
    /// Checking the state of a sequence that chooses no token here: a checkpoint stores it, or the sequence ends.
    Check,
}

impl Sequence {
    /// Starts a submission and notifies its client.
    pub(super) fn start(admission: Admission, start: SlotStart, order: u64) -> Self {
        let SlotStart { started, checkpoints, parked } = start;
        let Admission { mut submission, sampler, drafter, came, place, .. } = admission;
        submission.events.send(EngineEvent::Started(started));
        let stops = std::mem::take(&mut submission.generation.stop);
        let output = Output::new(stops).indented(submission.generation.n_indent);
        let times = Times { came, started: Instant::now(), first_token: None, last_token: None };
        let n_cached = started.cached_tokens();
        let wants_list = submission.prompt_probabilities().is_some();
        let prompt_probabilities =
            wants_list.then(|| PromptProbabilities { first: submission.prompt[0], rest: Vec::new() });
        Self {
            submission,
            sampler,
            n_cached,
            n_generated: 0,
            truncated: false,
            order,
            passed_tokens: 0,
            pending_token: None,
            drafter,
            drafted: Drafted::default(),
            output,
            prompt_probabilities,
            held_probabilities: VecDeque::new(),
            decoding: Vec::new(),
            checkpoints,
            stops: Vec::new(),
            parked,
            media: Vec::new(),
            times,
            _place: place,
        }
    }

    /// Sets the media that are to be computed.
    pub(super) fn with_media(self, media: Vec<UpcomingMedia>) -> Self {
        Self { media, ..self }
    }

    /// Returns the medium that the next token belongs to; `None` if it is text.
    fn next_media(&self, n_held: u32) -> Option<&UpcomingMedia> {
        self.media.iter().find(|medium| medium.place.contains(&n_held)).filter(|_| !self.is_stream())
    }

    /// Returns whether the next token belongs to a medium.
    pub(super) fn is_at_media(&self, n_held: u32) -> bool {
        self.next_media(n_held).is_some()
    }

    /// Returns whether the next token belongs to a medium without embeddings. Either it is not encoded yet, or encoding
    /// it has failed and the next step fails the sequence.
    pub(super) fn awaits_encoder(&self, n_held: u32) -> bool {
        self.next_media(n_held).is_some_and(|medium| !matches!(medium.encoding.get(), Some(Ok(_))))
    }

    /// Returns the embeddings of the next `n_tokens` tokens, and the attention among them; `None` if they are text.
    pub(super) fn embeddings(&self, n_held: u32, n_tokens: u32) -> Option<(&[f32], RunAttention)> {
        let medium = self.next_media(n_held)?;
        let embeddings = medium.encoding.get()?.as_ref().ok()?;
        let width = embeddings.len() / medium.place.len();
        let first = (n_held - medium.place.start) as usize;
        let is_whole = n_tokens as usize == medium.place.len();
        debug_assert!(medium.attention == RunAttention::Causal || is_whole, "its tokens attend to each other");
        Some((&embeddings[first * width..(first + n_tokens as usize) * width], medium.attention))
    }

    /// Returns the reason why a medium could not be encoded; `None` if there was no failure.
    pub(super) fn encoder_failure(&self) -> Option<&str> {
        self.media.iter().find_map(|medium| medium.encoding.get()?.as_ref().err().map(String::as_str))
    }

    /// Returns the time since its submission, in the queue and in its slot.
    pub(super) fn waited(&self) -> Duration {
        self.times.came.elapsed()
    }

    /// Requests a checkpoint after `n_tokens` of the prompt, for a request that waits for it.
    pub(super) fn want_checkpoint(&mut self, n_tokens: u32) {
        let stop = CheckpointStop { n_tokens, place: CheckpointPlace::Shared };
        match self.checkpoints.binary_search_by_key(&n_tokens, |stop| stop.n_tokens) {
            Ok(idx) => self.checkpoints[idx] = stop,
            Err(idx) => self.checkpoints.insert(idx, stop),
        }
    }

    /// Requests that its prompt is computed up to `n_tokens` before the rest, for a request that waits for that part.
    pub(super) fn want_stop(&mut self, n_tokens: u32) {
        if let Err(idx) = self.stops.binary_search(&n_tokens) {
            self.stops.insert(idx, n_tokens);
        }
    }

    /// Returns the place of a checkpoint that must be made now, once for each position.
    pub(super) fn reaches_checkpoint(&mut self, n_held: u32) -> Option<CheckpointPlace> {
        let n_passed = self.checkpoints.iter().take_while(|stop| stop.n_tokens <= n_held).count();
        let last = self.checkpoints.drain(..n_passed).next_back();
        last.filter(|stop| stop.n_tokens == n_held).map(|stop| stop.place)
    }

    /// Removes and returns the parked state that follows the first `n_held` tokens.
    pub(super) fn take_parked(&mut self, n_held: u32) -> Option<ParkedRun> {
        self.parked.pop_front_if(|run| run.positions.start == n_held)
    }

    /// Returns whether tokens of its prompt have been computed.
    pub(super) fn has_begun(&self, n_held: u32) -> bool {
        n_held + self.n_parked() > self.n_cached
    }

    fn n_parked(&self) -> u32 {
        self.parked.iter().map(|run| run.positions.end - run.positions.start).sum()
    }

    /// Returns whether the client has disconnected.
    pub(super) fn is_abandoned(&self) -> bool {
        self.submission.events.is_closed()
    }

    /// Returns whether it must wait until the client has read more.
    pub(super) fn is_unread(&self) -> bool {
        self.submission.events.is_full()
    }

    /// Returns whether its response has begun.
    pub(super) fn is_stream(&self) -> bool {
        !self.decoding.is_empty()
    }

    /// Returns the next work of the sequence, of which `n_held` tokens have KV state. A prompt is computed at most up
    /// to the next checkpoint, parked state, start or end of a medium, or position that other requests wait for. A run
    /// without a causal mask is never cut.
    pub(super) fn work(&self, n_held: u32) -> Work {
        // After a context shift, a sequence that generates may have fewer tokens than its prompt had.
        if self.is_stream() {
            return Work::Decode;
        }
        if let Some(run) = self.next_media(n_held).filter(|run| run.attention == RunAttention::NonCausal) {
            let end = run.place.end;
            return Work::Prefill { n_tokens: end - n_held, ends: end == self.n_prompt() };
        }
        let checkpoint = self.checkpoints.iter().map(|stop| stop.n_tokens).find(|stop| *stop > n_held);
        let stop = self.stops.iter().copied().find(|stop| *stop > n_held);
        let parked_start = self.parked.front().map(|run| run.positions.start);
        let edges = self.media.iter().flat_map(|medium| [medium.place.start, medium.place.end]);
        let edge = edges.into_iter().find(|edge| *edge > n_held);
        let until = checkpoint.into_iter().chain(stop).chain(parked_start).chain(edge).fold(self.n_prompt(), u32::min);
        match until.saturating_sub(n_held) {
            0 => Work::Decode,
            n_tokens => Work::Prefill { n_tokens, ends: until == self.n_prompt() },
        }
    }

    /// Returns the next `n_tokens` tokens after the first `n_held`, which have KV state.
    pub(super) fn upcoming(&self, n_held: u32, n_tokens: u32) -> &[Token] {
        let prompt = &self.submission.prompt;
        match self.work(n_held) {
            Work::Prefill { .. } => &prompt[n_held as usize..(n_held + n_tokens) as usize],
            Work::Decode => &self.decoding[..n_tokens as usize],
        }
    }

    /// Returns the use of the logits of the token at `position`, if `n_held_after` tokens have their state after this
    /// step.
    pub(super) fn purpose(&self, position: u32, n_held_after: u32) -> Option<LogitsUse> {
        if self.is_stream() {
            return Some(LogitsUse::Choose);
        }
        let is_behind_prompt = position + 1 >= self.n_prompt();
        let is_last = position + 1 == n_held_after;
        if self.prompt_probabilities.is_some() && !is_behind_prompt {
            Some(LogitsUse::List)
        } else if is_last && is_behind_prompt && !self.submission.generation.is_prompt_only() {
            Some(LogitsUse::Choose)
        } else {
            (is_last && (is_behind_prompt || self.checkpoints.iter().any(|stop| stop.n_tokens == n_held_after)))
                .then_some(LogitsUse::Check)
        }
    }

    /// Returns whether logits of the prompt's tokens are wanted and not complete.
    pub(super) fn lists_prompt(&self) -> bool {
        self.prompt_probabilities
            .as_ref()
            .is_some_and(|probabilities| probabilities.rest.len() + 1 < self.submission.prompt.len())
    }

    /// Records the log probability of the prompt's next token, from the logits of the token before it.
    pub(super) fn list(&mut self, logits: &[f32]) {
        let Some(n_top) = self.submission.prompt_probabilities() else { return };
        let Some(probabilities) = &mut self.prompt_probabilities else { return };
        let Some(token) = self.submission.prompt.get(probabilities.rest.len() + 1) else { return };
        probabilities.rest.push(logprobs::of_logits(logits, *token, n_top));
    }

    /// Sends the client the log probabilities of the prompt's tokens, once, if requested.
    pub(super) fn tell_prompt(&mut self) {
        if let Some(probabilities) = self.prompt_probabilities.take() {
            self.submission.events.send(EngineEvent::Prompt(probabilities));
        }
    }

    /// Returns whether the sequence is complete without a chosen token, because only the prompt was wanted.
    pub(super) fn is_prompt_only(&self, n_held: u32) -> bool {
        n_held >= self.n_prompt() && self.submission.generation.is_prompt_only()
    }

    /// Adds the first tokens of the drafter's proposal after the token to compute; returns their number.
    pub(super) fn draft(&mut self, length: Length) -> u32 {
        self.decoding.truncate(1);
        if let Some(drafter) = &mut self.drafter {
            self.decoding.extend_from_slice(drafter.draft(length));
        }
        u32::try_from(self.decoding.len().saturating_sub(1)).expect("a draft is shorter than a context, a u32")
    }

    /// Returns the token that was chosen last, whose KV state is not computed yet; `None` for a prompt.
    pub(super) fn next_token(&self) -> Option<Token> {
        self.decoding.first().copied()
    }

    /// Removes and returns the draft after the token to compute.
    pub(super) fn take_draft(&mut self) -> Vec<Token> {
        self.decoding.split_off(1)
    }

    /// Returns the maximum number of tokens after the next one.
    pub(super) fn n_drafted_max(&self) -> usize {
        let n_left = self.submission.generation.max_tokens.map(|n_max| n_max.saturating_sub(self.n_generated + 1));
        n_left.map_or(usize::MAX, |n_left| n_left as usize)
    }

    /// Adds the next token of the response and sends it to the client; returns the finish reason if the response ends.
    ///
    /// `room_tokens` is the number of tokens for which the context still has room.
    pub(super) fn take(&mut self, chosen_token: ChosenToken, room_tokens: u32) -> Option<FinishReason> {
        self.tell_prompt();
        let now = Instant::now();
        let first_token = *self.times.first_token.get_or_insert(now);
        self.times.last_token = Some(now);
        self.passed_tokens = 0;
        self.media.clear();
        self.decoding.clear();
        self.decoding.push(chosen_token.token);
        if let Some(drafter) = &mut self.drafter {
            drafter.push(chosen_token.token);
        }
        let is_late = self.submission.generation.predict_max.is_some_and(|time_max| now - first_token > time_max);
        self.truncated |= room_tokens == 0;
        self.send(chosen_token, |sequence, chosen_token, text| {
            let late_end = || (is_late && text.contains('\n')).then_some(FinishReason::Length);
            sequence.end(chosen_token, room_tokens).or_else(late_end)
        })
    }

    /// Adds a token after which another worker has sampled more. Its state is computed with the prompt.
    pub(super) fn replay(&mut self, past_token: ChosenToken) {
        self.send(past_token, |_, _, _| None);
    }

    /// Adds the last token that another worker has sampled, like [`Self::replay`]; returns the finish reason if the
    /// response has ended there, or ends by the limits of this worker.
    ///
    /// The other worker's end may follow from its context, its defaults or its clock, so it cannot be found again.
    pub(super) fn replay_last(&mut self, past_token: ChosenToken, room_tokens: u32) -> Option<FinishReason> {
        self.truncated |= room_tokens == 0;
        let past_end = self.submission.past_end;
        self.send(past_token, |sequence, past_token, _| past_end.or_else(|| sequence.end(past_token, room_tokens)))
    }

    /// Sends a token with the text that is certain with it; `find_end` returns the reason if the response ends there.
    fn send(
        &mut self,
        mut chosen_token: ChosenToken,
        find_end: impl FnOnce(&Self, &ChosenToken, &str) -> Option<FinishReason>,
    ) -> Option<FinishReason> {
        self.n_generated += 1;
        let own_probabilities = chosen_token.probabilities.clone();
        self.held_probabilities
            .extend(chosen_token.probabilities.take().map(|probabilities| (self.output.n_taken(), probabilities)));
        let mut text = self.output.push(&chosen_token.piece);
        let found_end = find_end(self, &chosen_token, &text);
        if found_end.is_some() {
            text.push_str(&self.output.finish());
        }
        // The end may complete a stop text, for example when an invalid byte becomes a character.
        let is_stopped = self.output.stop_text().is_some();
        let end = found_end.map(|reason| if is_stopped { FinishReason::StopText } else { reason });
        let n_out = self.output.n_out();
        let n_told = self.held_probabilities.iter().take_while(|(start, _)| *start < n_out).count();
        let probabilities = self.held_probabilities.drain(..n_told).map(|(_, probabilities)| probabilities).collect();
        let ChosenToken { token, n_draws, .. } = chosen_token;
        let event = EngineEvent::Text { text, token, n_draws, end, own_probabilities, probabilities };
        self.submission.events.send(event);
        end
    }

    /// Ends the sequence and frees its place; returns the channel to its reader.
    pub(super) fn into_events(self) -> EventSender {
        self.submission.events
    }

    /// Returns the end of the response, with its statistics.
    pub(super) fn finished(&self, reason: FinishReason) -> Finished {
        let ms = |from: Instant, to: Instant| to.saturating_duration_since(from).as_secs_f64() * 1e3;
        let prompt_end = self.times.first_token.unwrap_or_else(Instant::now);
        Finished {
            reason,
            stopping_word: self.output.stop_text().map(str::to_owned),
            truncated: self.truncated,
            completion_tokens: self.n_generated,
            drafted: self.drafted,
            prompt_ms: ms(self.times.started, prompt_end),
            predicted_ms: ms(prompt_end, self.times.last_token.unwrap_or(prompt_end)),
        }
    }

    fn end(&self, chosen_token: &ChosenToken, room_tokens: u32) -> Option<FinishReason> {
        let n_max = self.submission.generation.max_tokens.unwrap_or(u32::MAX);
        if self.output.stop_text().is_some() {
            Some(FinishReason::StopText)
        } else if chosen_token.ends_generation {
            Some(FinishReason::EndOfGeneration)
        } else if self.output.is_outdented() || self.n_generated >= n_max || room_tokens == 0 {
            Some(FinishReason::Length)
        } else {
            None
        }
    }

    /// Returns how many of the prompt's tokens are still to be computed.
    pub(super) fn n_prompt_left(&self, n_held: u32) -> u32 {
        if self.is_stream() { 0 } else { self.n_prompt().saturating_sub(n_held + self.n_parked()) }
    }

    fn n_prompt(&self) -> u32 {
        u32::try_from(self.submission.prompt.len()).expect("a prompt is shorter than a context, a u32")
    }
}
