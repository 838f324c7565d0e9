//! An answer while it is made: the events of its choices merged into one stream of steps, its tokens and time counted.
//!
//! Not here: the shape in which a client gets it (`http::answer`).

use std::sync::Arc;
use std::time::Instant;

use futures::StreamExt;
use futures::stream::{BoxStream, SelectAll};
use tokio_stream::wrappers::UnboundedReceiverStream;
use warmpath_common::ids::RequestId;

use super::{Arrival, Submitted};
use crate::engine::{CachedTokens, EngineError, Event, FinishReason, Finished, Started};
use crate::error::RequestError;
use crate::metrics::Metrics;

/// Says how a client wants its answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Delivery {
    /// As one object.
    Whole,
    /// As a stream of events.
    Stream,
    /// As a stream of events that ends with the token counts.
    StreamWithUsage,
}

/// Is an answer that has begun: its first choice has a slot.
pub struct Answer {
    delivery: Delivery,
    started: Started,
    choices: Vec<Choice>,
    events: SelectAll<BoxStream<'static, (usize, Event)>>,
    n_open: usize,
    clock: Clock,
}

/// Is one step of an answer.
#[derive(Debug, PartialEq)]
pub enum Step {
    /// A choice goes on; the text may be empty.
    Text {
        /// Is the choice's index.
        choice: usize,
        /// Is the new text.
        text: String,
    },
    /// A choice is complete.
    Finished {
        /// Is the choice's index.
        choice: usize,
        /// Is why.
        reason: FinishReason,
    },
}

/// Counts tokens and time of a whole answer, its choices added up.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Totals {
    /// Is the tokens of the prompts, each prompt counted once.
    pub prompt_tokens: u32,
    /// Is how many of those were reused by the first choice of each prompt.
    pub cached_tokens: u32,
    /// Is the tokens of all choices.
    pub completion_tokens: u32,
    /// Is the prompt tokens that were computed for all choices.
    pub computed_tokens: u32,
    /// Is the prompt tokens that were reused by all choices, by where they came from.
    pub reused: CachedTokens,
    /// Says whether a choice filled its context.
    pub truncated: bool,
    /// Is the time to the first token, of all choices. Units: milliseconds.
    pub prompt_ms: f64,
    /// Is the time behind the first token, of all choices. Units: milliseconds.
    pub predicted_ms: f64,
}

impl Totals {
    /// Returns the share of the prompt tokens of all choices that was reused.
    pub fn prefix_cache_ratio(&self) -> f64 {
        let n_reused = f64::from(self.reused.total());
        n_reused / (n_reused + f64::from(self.computed_tokens)).max(1.0)
    }
}

/// Is what is known of one choice.
pub(super) struct Choice {
    prompt_tokens: u32,
    /// Says whether it is the first choice of its prompt, whose tokens are counted once.
    first_of_prompt: bool,
    cached: CachedTokens,
    finished: Option<Finished>,
}

impl Choice {
    fn start(&mut self, started: Started, metrics: &Metrics) {
        self.cached = started.cached;
        metrics.prefix_cache_ratio.observe(f64::from(self.cached.total()) / f64::from(self.prompt_tokens.max(1)));
    }

    /// Returns the `k`-th choice of a prompt of `prompt_tokens`.
    pub(super) fn new(prompt_tokens: usize, k: u32) -> Self {
        let prompt_tokens = u32::try_from(prompt_tokens).expect("a prompt is shorter than the context");
        Self { prompt_tokens, first_of_prompt: k == 0, cached: CachedTokens::default(), finished: None }
    }
}

/// Measures one request.
pub(super) struct Clock {
    request_id: RequestId,
    arrived: Instant,
    saw_token: bool,
    metrics: Arc<Metrics>,
}

impl Clock {
    pub(super) fn start(arrival: &Arrival, metrics: &Arc<Metrics>) -> Self {
        let request_id = arrival.id.clone();
        Self { request_id, arrived: arrival.at, saw_token: false, metrics: Arc::clone(metrics) }
    }

    pub(super) fn elapsed_s(&self) -> f64 {
        self.arrived.elapsed().as_secs_f64()
    }

    fn token(&mut self) {
        if !self.saw_token {
            self.saw_token = true;
            self.metrics.ttft.observe(self.elapsed_s());
        }
    }

    fn finished(&self, finished: &Finished) {
        if finished.completion_tokens > 1 {
            let tokens = f64::from(finished.completion_tokens - 1);
            self.metrics.tpot.observe(finished.predicted_ms / 1000.0 / tokens);
        }
    }
}

impl Answer {
    /// Waits for the first choice to get its slot. Shape: `submitted` has at least one choice.
    ///
    /// Errors: `Engine`, when the first choice fails before it starts.
    pub(super) async fn begin(
        delivery: Delivery,
        submitted: Vec<Submitted>,
        clock: Clock,
    ) -> Result<Self, RequestError> {
        let (mut choices, mut receivers): (Vec<_>, Vec<_>) = submitted.into_iter().unzip();
        let started = match receivers[0].recv().await {
            Some(Event::Started(started)) => started,
            Some(Event::Failed(error)) => return Err(error.into()),
            Some(event) => return Err(RequestError::Internal { reason: format!("the engine began with {event:?}") }),
            None => return Err(EngineError::Stopped.into()),
        };
        choices[0].start(started, &clock.metrics);
        let events = receivers
            .into_iter()
            .enumerate()
            .map(|(idx, receiver)| UnboundedReceiverStream::new(receiver).map(move |event| (idx, event)).boxed());
        let events = futures::stream::select_all(events);
        Ok(Self { delivery, started, n_open: choices.len(), choices, events, clock })
    }

    /// Returns how the client wants the answer.
    pub fn delivery(&self) -> Delivery {
        self.delivery
    }

    /// Returns what the first choice started from.
    pub fn started(&self) -> Started {
        self.started
    }

    /// Returns the number of choices.
    pub fn n_choices(&self) -> usize {
        self.choices.len()
    }

    /// Returns whether every choice is complete.
    pub fn is_complete(&self) -> bool {
        self.n_open == 0
    }

    /// Returns the next step, or `None` once every choice is complete.
    ///
    /// Errors: `Engine`, when a choice fails; the answer is then over.
    pub async fn next(&mut self) -> Result<Option<Step>, RequestError> {
        while self.n_open > 0 {
            let Some((choice, event)) = self.events.next().await else { return Err(EngineError::Stopped.into()) };
            match event {
                Event::Started(started) => self.choices[choice].start(started, &self.clock.metrics),
                Event::Text { text, .. } => {
                    self.clock.token();
                    return Ok(Some(Step::Text { choice, text }));
                }
                Event::Finished(finished) => return Ok(Some(self.finish(choice, finished))),
                Event::Failed(error) => return Err(error.into()),
            }
        }
        Ok(None)
    }

    fn finish(&mut self, choice: usize, finished: Finished) -> Step {
        self.clock.finished(&finished);
        let reason = finished.reason;
        self.choices[choice].finished = Some(finished);
        self.n_open -= 1;
        if self.n_open == 0 {
            self.clock.metrics.request.observe(self.clock.elapsed_s());
            self.log();
        }
        Step::Finished { choice, reason }
    }

    fn log(&self) {
        let totals = self.totals();
        tracing::info!(
            request_id = %self.clock.request_id,
            slot = %self.started.slot,
            prompt_tokens = totals.computed_tokens + totals.reused.total(),
            prefix_cache_tokens = totals.reused.total(),
            prefix_cache_ram_tokens = totals.reused.ram,
            prefix_cache_disk_tokens = totals.reused.disk,
            prefix_cache_shifted_tokens = totals.reused.shifted,
            prefix_cache_ratio = totals.prefix_cache_ratio(),
            completion_tokens = totals.completion_tokens,
            seconds = self.clock.elapsed_s(),
            "answered"
        );
    }

    /// Returns the tokens and times of the choices that are complete.
    pub fn totals(&self) -> Totals {
        let mut totals = Totals::default();
        for choice in &self.choices {
            let Some(finished) = &choice.finished else { continue };
            if choice.first_of_prompt {
                totals.prompt_tokens += choice.prompt_tokens;
                totals.cached_tokens += choice.cached.total();
            }
            totals.completion_tokens += finished.completion_tokens;
            totals.computed_tokens += choice.prompt_tokens - choice.cached.total();
            totals.reused += choice.cached;
            totals.truncated |= finished.truncated;
            totals.prompt_ms += finished.prompt_ms;
            totals.predicted_ms += finished.predicted_ms;
        }
        totals
    }
}
