//! A response in progress: merges the events of its choices into one stream of steps, and counts its tokens and time.
//!
//! Not here: its format for the client (`http::openai::answer`).

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures::StreamExt;
use futures::stream::{BoxStream, SelectAll, select_all};
use tokio::sync::mpsc;
use warmpath_common::cached_share;
use warmpath_common::ids::{RequestId, Token};
use warmpath_shell::trace::{Attribute, AttributeValue, Span};
use warmpath_worker_output::logprobs::{PromptProbabilities, TokenProbabilities};

use super::journal::{self, Journal, JournalLines, PastOutput, ResponseIdentity};
use super::{
    Arrival, Submitted, chat_answer::ChatAnswer, prompt_fingerprint::PromptFingerprint, tokenized_prompt::LeftOut,
};
use crate::engine::{
    CachedTokens, Drafted, EngineError, EngineEvent, FetchedState, FinishReason, Finished, Generation, SampledToken,
    Started,
};
use crate::error::RequestError;
use crate::metrics::Metrics;
use crate::request::{AnswerFields, Delivery};

/// Form of a response.
#[derive(Debug, Clone)]
pub struct ResponseSpec {
    /// Whether it is streamed.
    pub delivery: Delivery,
    /// Longest silence of a stream before its client gets a keep-alive comment; `None` for no limit.
    pub silence_max: Option<Duration>,
    /// Requested contents of its objects.
    pub fields: AnswerFields,
    /// Sampling parameters and end conditions.
    pub generation: Generation,
    /// Text of each choice's prompt; empty if the response does not repeat it.
    pub prompt_texts: Vec<String>,
    /// Format for parsing the choices as messages; `None` if the whole text is the content.
    pub answer: Option<Arc<ChatAnswer>>,
    /// What its prompt lacks.
    pub left_out: LeftOut,
    /// Fingerprint of its prompt; `None` if that is no chat.
    pub fingerprint: Option<Box<PromptFingerprint>>,
    /// Identity of the response.
    pub identity: ResponseIdentity,
    /// Whether the response has a journal.
    pub is_journaled: bool,
    /// Response so far, which this one continues; `None` for a new one.
    pub past: Option<PastOutput>,
}

/// A response that has begun: its first choice has a slot.
pub struct StartedResponse {
    spec: ResponseSpec,
    started: Started,
    choices: Vec<ChoiceState>,
    /// Events of other choices that arrived before the first one got its slot.
    early_events: VecDeque<(usize, EngineEvent)>,
    events: SelectAll<BoxStream<'static, (usize, EngineEvent)>>,
    n_open: usize,
    timer: RequestTimer,
    /// Journal; `None` if there is none.
    journal: Option<Journal>,
    /// Sender of the journal's lines before a response in one piece.
    lines: Option<mpsc::UnboundedSender<String>>,
}

/// A step of a response.
#[derive(Debug, PartialEq)]
pub enum ResponseStep {
    /// A choice's prompt is computed, with the requested log probabilities of its tokens.
    Prompt {
        /// Index of the choice.
        choice: usize,
        /// Log probabilities of the prompt.
        probabilities: PromptProbabilities,
    },
    /// A choice has a new token; the text may be empty.
    Text {
        /// Index of the choice.
        choice: usize,
        /// New text.
        text: String,
        /// Generated token; its text may come later.
        token: Token,
        /// Log probabilities of the tokens of this text, if requested.
        probabilities: Vec<TokenProbabilities>,
    },
    /// A choice is complete.
    Finished {
        /// Index of the choice.
        choice: usize,
        /// Reason.
        reason: FinishReason,
    },
}

/// Tokens and times of a whole response, summed over its choices.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct ResponseTotals {
    /// Tokens of the prompts, each prompt counted once.
    pub prompt_tokens: u32,
    /// Number of these tokens that the first choice of each prompt reused.
    pub cached_tokens: u32,
    /// Tokens of all choices.
    pub completion_tokens: u32,
    /// Number of these tokens that were reasoning; `None` if it was not determined.
    pub reasoning_tokens: Option<u32>,
    /// Drafted tokens of all choices.
    pub drafted: Drafted,
    /// Tokens that prefills gave or computed: the first token of each choice, and those that another worker sampled.
    pub n_begun: u32,
    /// Prompt tokens computed for all choices.
    pub computed_tokens: u32,
    /// Prompt tokens reused by all choices, by tier.
    pub reused: CachedTokens,
    /// Whether a choice filled its context.
    pub truncated: bool,
    /// Time to the first token, of all choices. Units: milliseconds.
    pub prompt_ms: f64,
    /// Time after the first token, of all choices. Units: milliseconds.
    pub predicted_ms: f64,
}

impl ResponseTotals {
    /// Returns the share of the prompt tokens of all choices that was reused.
    pub fn prefix_cache_ratio(&self) -> f64 {
        let n_reused = f64::from(self.reused.total());
        n_reused / (n_reused + f64::from(self.computed_tokens)).max(1.0)
    }
}

/// State of one choice.
pub(super) struct ChoiceState {
    prompt_tokens: u32,
    /// Number of its tokens that another worker has sampled.
    past_tokens: u32,
    /// Number of these tokens that are not replayed yet.
    n_to_replay: u32,
    /// Reason of its end, which is known with its last token; `None` before.
    end: Option<FinishReason>,
    /// Whether it is the first choice of its prompt, whose tokens are counted once.
    first_of_prompt: bool,
    started: Option<Started>,
    finished: Option<Finished>,
}

impl ChoiceState {
    fn start(&mut self, start: Started, spec: &ResponseSpec, metrics: &Metrics) {
        self.started = Some(start);
        if !spec.generation.is_prewarm() {
            metrics.reused(start.cached_tokens(), self.filled_tokens());
        }
    }

    /// Returns the label for the reused share of its prompt.
    fn share(&self) -> &'static str {
        cached_share::label(self.cached().total(), self.filled_tokens())
    }

    /// Returns the number of tokens that are computed or reused before the first new one.
    fn filled_tokens(&self) -> u32 {
        self.prompt_tokens + self.past_tokens
    }

    fn cached(&self) -> CachedTokens {
        self.started.map_or_else(CachedTokens::default, |start| start.cached)
    }

    /// Returns its tokens and times once it is complete.
    fn totals(&self) -> Option<ResponseTotals> {
        let end = self.finished.as_ref()?;
        Some(ResponseTotals {
            prompt_tokens: self.prompt_tokens,
            cached_tokens: self.cached().total().min(self.prompt_tokens),
            completion_tokens: end.completion_tokens,
            drafted: end.drafted,
            n_begun: end.completion_tokens.min(self.past_tokens + 1),
            computed_tokens: self.filled_tokens() - self.cached().total(),
            reused: self.cached(),
            truncated: end.truncated,
            prompt_ms: end.prompt_ms,
            predicted_ms: end.predicted_ms,
            reasoning_tokens: None,
        })
    }

    /// Returns the `k`-th choice of a prompt of `prompt_tokens`, `past_tokens` of which another worker has sampled.
    pub(super) fn new(prompt_tokens: usize, past_tokens: usize, k: u32) -> Self {
        let count = |n: usize| u32::try_from(n).expect("a sequence is shorter than the context");
        let (prompt_tokens, n_to_replay, first_of_prompt) = (count(prompt_tokens), count(past_tokens), k == 0);
        let past_tokens = n_to_replay;
        Self { prompt_tokens, past_tokens, n_to_replay, end: None, first_of_prompt, started: None, finished: None }
    }
}

/// Timer of one request.
pub(super) struct RequestTimer {
    request_id: RequestId,
    arrived: Instant,
    /// Start of the current phase of the request.
    part_began: Instant,
    saw_token: bool,
    span: Span,
    metrics: Arc<Metrics>,
}

impl RequestTimer {
    pub(super) fn start(arrival: &mut Arrival, metrics: &Arc<Metrics>) -> Self {
        let request_id = arrival.id.clone();
        Self {
            request_id,
            arrived: arrival.at,
            part_began: arrival.at,
            saw_token: false,
            span: std::mem::replace(&mut arrival.span, Span::none()),
            metrics: Arc::clone(metrics),
        }
    }

    pub(super) fn elapsed_s(&self) -> f64 {
        self.arrived.elapsed().as_secs_f64()
    }

    /// Records that the preparation of the prompt has ended.
    pub(super) fn prepared(&mut self) {
        self.metrics.prompt.observe(self.elapsed_s());
        self.part("worker.prepare", Instant::now(), Vec::new());
    }

    /// Records the phase in which the request failed.
    pub(super) fn failed(&mut self, part: &'static str) {
        self.span.fail(part);
    }

    /// Records that the first choice has its slot.
    fn started(&mut self, start: &Started) {
        let count = |key, n: u64| Attribute { key, value: AttributeValue::Count(n) };
        let now = Instant::now();
        let queue_ended = now.checked_sub(start.restored).unwrap_or(now);
        self.metrics.queue.observe(queue_ended.saturating_duration_since(self.part_began).as_secs_f64());
        if let Some(FetchedState { n_bytes, took }) = start.fetched {
            let end = (self.part_began + took).min(queue_ended);
            self.part("worker.kv_transfer", end, vec![count("bytes", n_bytes)]);
        }
        self.part("worker.queue", queue_ended, Vec::new());
        let CachedTokens { resident, ram, disk, shifted } = start.cached;
        if start.cached.total() > 0 {
            let by_tier = [("resident", resident), ("ram", ram), ("disk", disk), ("shifted", shifted)];
            self.part("worker.restore", now, by_tier.map(|(key, n)| count(key, n.into())).into());
        }
        self.span.name("warmpath.slot", start.slot.to_string());
        self.span.count("warmpath.cached_tokens", start.cached.total());
    }

    /// Records the phase that ends, and begins the next.
    fn part(&mut self, name: &'static str, end: Instant, attributes: Vec<Attribute>) {
        let start = std::mem::replace(&mut self.part_began, end);
        self.span.part(name, start.min(end), end, attributes);
    }

    fn token(&mut self, share: &str) {
        if !self.saw_token {
            self.saw_token = true;
            self.part("worker.prefill", Instant::now(), Vec::new());
            self.metrics.ttft.with_label_values(&[share]).observe(self.elapsed_s());
        }
    }

    fn finished(&self, end: &Finished, choice: &ChoiceState) {
        let tokens = end.completion_tokens.saturating_sub(choice.past_tokens + 1);
        if tokens > 0 {
            let (tokens, share) = (f64::from(tokens), choice.share());
            self.metrics.tpot.with_label_values(&[share]).observe(end.predicted_ms / 1000.0 / tokens);
        }
    }
}

impl Drop for RequestTimer {
    fn drop(&mut self) {
        if self.saw_token {
            self.part("worker.decode", Instant::now(), Vec::new());
        }
    }
}

impl StartedResponse {
    /// Waits for the first choice to get its slot. Shape: `submissions` has at least one choice.
    ///
    /// Errors: `Engine` if the first choice fails before it starts.
    pub(super) async fn begin(
        spec: ResponseSpec,
        submissions: Vec<Submitted>,
        mut timer: RequestTimer,
    ) -> Result<Self, RequestError> {
        let (mut choices, receivers): (Vec<_>, Vec<_>) = submissions.into_iter().unzip();
        let receivers = receivers.into_iter().enumerate();
        let mut events = select_all(receivers.map(|(idx, receiver)| receiver.map(move |event| (idx, event)).boxed()));
        let mut early_events = VecDeque::new();
        let start_result = loop {
            match events.next().await {
                Some((0, EngineEvent::Started(start_result))) => break start_result,
                Some((0, EngineEvent::Failed(error))) => {
                    timer.failed("engine");
                    return Err(error.into());
                }
                Some((0, event)) => {
                    return Err(RequestError::Internal { reason: format!("the engine began with {event:?}") });
                }
                // The first choice may be waiting for the others' slots, so their events must be read.
                Some(of_other) => early_events.push_back(of_other),
                None => return Err(EngineError::Stopped.into()),
            }
        };
        choices[0].start(start_result, &spec, &timer.metrics);
        timer.started(&start_result);
        let journal = spec.is_journaled.then(|| Journal::new(choices.len(), spec.past.as_ref()));
        Ok(Self {
            spec,
            started: start_result,
            n_open: choices.len(),
            choices,
            early_events,
            events,
            timer,
            journal,
            lines: None,
        })
    }

    /// Returns the journal's lines before a response in one piece; `None` if it has no journal.
    pub fn lines(&mut self) -> Option<JournalLines> {
        self.journal.as_ref()?;
        let (sender, receiver) = mpsc::unbounded_channel();
        self.lines = Some(sender);
        Some(JournalLines { receiver, exactness: journal::exactness(&self.spec.generation.sampling) })
    }

    /// Appends the journal line, if there is a journal, that follows the events in `out`; they belong to this choice,
    /// or to none. If an earlier worker has sent these events to the client, empties `out` instead.
    pub fn end_write(&mut self, choice: Option<usize>, out: &mut Vec<u8>) {
        match (&mut self.journal, choice) {
            (None, _) => {}
            (Some(journal), Some(choice)) => journal.end_write_of(choice, self.choices[choice].end, out),
            (Some(_), None) => journal::end_write(out),
        }
    }

    /// Returns the number of reused prompt tokens for the client; for a continued response, the number reported before.
    pub fn cached_tokens(&self) -> u32 {
        let of_first_worker = self.spec.past.as_ref().and_then(|past_output| past_output.cached_tokens);
        of_first_worker.unwrap_or(self.started.cached_tokens().min(self.choices[0].prompt_tokens))
    }

    /// Returns the form of the response.
    pub fn spec(&self) -> &ResponseSpec {
        &self.spec
    }

    /// Returns the start of the first choice.
    pub fn started(&self) -> Started {
        self.started
    }

    /// Returns the total length of the prompts, each counted once. Units: tokens.
    pub fn prompt_tokens(&self) -> u32 {
        self.choices.iter().filter(|choice| choice.first_of_prompt).map(|choice| choice.prompt_tokens).sum()
    }

    /// Returns the stop text that ended the first choice, if one did.
    pub fn stop_text(&self) -> Option<&str> {
        self.choices.first()?.finished.as_ref()?.stopping_word.as_deref()
    }

    /// Returns the number of choices.
    pub fn n_choices(&self) -> usize {
        self.choices.len()
    }

    /// Returns whether every choice is complete.
    pub fn is_complete(&self) -> bool {
        self.n_open == 0
    }

    /// Returns the next step; `None` once every choice is complete.
    ///
    /// Errors: `Engine` if a choice fails; the response is then over.
    pub async fn next(&mut self) -> Result<Option<ResponseStep>, RequestError> {
        while self.n_open > 0 {
            let next = match self.early_events.pop_front() {
                Some(early_event) => Some(early_event),
                None => self.events.next().await,
            };
            let Some((choice, event)) = next else { return Err(EngineError::Stopped.into()) };
            match event {
                EngineEvent::Started(started) => self.choices[choice].start(started, &self.spec, &self.timer.metrics),
                EngineEvent::Prompt(probabilities) => return Ok(Some(ResponseStep::Prompt { choice, probabilities })),
                EngineEvent::Text { text, token, n_draws, end, own_probabilities, probabilities } => {
                    self.choices[choice].end = end;
                    self.take(choice, SampledToken { token, n_draws }, own_probabilities.as_ref());
                    return Ok(Some(ResponseStep::Text { choice, text, token, probabilities }));
                }
                EngineEvent::Finished(finished) => return Ok(Some(self.finish(choice, finished))),
                EngineEvent::Failed(error) => {
                    self.timer.failed("engine");
                    return Err(error.into());
                }
            }
        }
        Ok(None)
    }

    /// Counts a token, and records it in the journal, if there is one.
    fn take(&mut self, choice: usize, sampled_token: SampledToken, probabilities: Option<&TokenProbabilities>) {
        let n_to_replay = &mut self.choices[choice].n_to_replay;
        let is_new = *n_to_replay == 0;
        *n_to_replay = n_to_replay.saturating_sub(1);
        if is_new {
            self.timer.token(self.choices[choice].share());
        }
        let Some(journal) = &mut self.journal else { return };
        // Before a response in one piece, the router already has the lines of replayed tokens.
        if is_new || self.lines.is_none() {
            journal.sampled(choice, sampled_token, probabilities);
        }
        let Some(lines) = &self.lines else { return };
        if let Some(line) = journal.next_line(choice, self.choices[choice].end) {
            // An error means that the router has disconnected.
            let _ = lines.send(line);
        }
    }

    fn finish(&mut self, choice: usize, end: Finished) -> ResponseStep {
        self.timer.finished(&end, &self.choices[choice]);
        let reason = end.reason;
        self.choices[choice].end = Some(reason);
        self.choices[choice].finished = Some(end);
        self.n_open -= 1;
        if self.n_open == 0 {
            self.timer.metrics.request.observe(self.timer.elapsed_s());
            let totals = self.totals();
            self.timer.span.count("warmpath.prompt_tokens", totals.prompt_tokens);
            self.timer.span.count("warmpath.completion_tokens", totals.completion_tokens);
            self.log(&totals);
        }
        ResponseStep::Finished { choice, reason }
    }

    fn log(&self, totals: &ResponseTotals) {
        tracing::info!(
            request_id = %self.timer.request_id,
            trace_id = self.timer.span.trace_id(),
            slot = %self.started.slot,
            prompt_tokens = totals.computed_tokens + totals.reused.total(),
            prefix_cache_tokens = totals.reused.total(),
            prefix_cache_ram_tokens = totals.reused.ram,
            prefix_cache_disk_tokens = totals.reused.disk,
            prefix_cache_shifted_tokens = totals.reused.shifted,
            prefix_cache_ratio = totals.prefix_cache_ratio(),
            completion_tokens = totals.completion_tokens,
            drafted_tokens = totals.drafted.n,
            accepted_tokens = totals.drafted.n_accepted,
            seconds = self.timer.elapsed_s(),
            "answered"
        );
    }

    /// Returns the tokens and times of the choices that are complete.
    pub fn totals(&self) -> ResponseTotals {
        let mut totals = ResponseTotals::default();
        for choice in &self.choices {
            let Some(of_choice) = choice.totals() else { continue };
            if choice.first_of_prompt {
                totals.prompt_tokens += of_choice.prompt_tokens;
                totals.cached_tokens += of_choice.cached_tokens;
            }
            totals.completion_tokens += of_choice.completion_tokens;
            totals.drafted += of_choice.drafted;
            totals.n_begun += of_choice.n_begun;
            totals.computed_tokens += of_choice.computed_tokens;
            totals.reused += of_choice.reused;
            totals.truncated |= of_choice.truncated;
            totals.prompt_ms += of_choice.prompt_ms;
            totals.predicted_ms += of_choice.predicted_ms;
        }
        let n_prompts = self.choices.iter().filter(|choice| choice.first_of_prompt).count();
        if n_prompts == 1 && totals.prompt_tokens > 0 {
            totals.cached_tokens = self.cached_tokens();
        }
        totals
    }

    /// Returns one choice's tokens and times; before the choice is complete, only those of its prompt.
    pub fn totals_of(&self, choice: usize) -> ResponseTotals {
        let choice = &self.choices[choice];
        choice.totals().unwrap_or(ResponseTotals { prompt_tokens: choice.prompt_tokens, ..ResponseTotals::default() })
    }

    /// Returns the start of one choice, once it has a slot.
    pub fn started_of(&self, choice: usize) -> Option<Started> {
        self.choices[choice].started
    }

    /// Returns the end of one choice, once it is complete.
    pub fn finished_of(&self, choice: usize) -> Option<&Finished> {
        self.choices[choice].finished.as_ref()
    }
}
