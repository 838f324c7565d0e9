//! The embedder's interface: embed, state, drain.
//!
//! The number of requests is limited by places, like the engine's. A request frees its place when it ends, for whatever
//! reason. Not here: the computation of the texts (`thread`).

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{SyncSender, TrySendError};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot, watch};
use warmpath_common::ids::{RequestId, Token};

use super::{EmbedFacts, Embedded};
use crate::engine::{ArrivalAnnouncer, CounterValues, Counters, EarlyAnnouncement, EngineError};

/// Handle of the embedder's thread; cheap to clone, and the thread ends when the last clone is dropped.
#[derive(Clone)]
pub struct EmbedHandle {
    shared: Arc<EmbedderShared>,
}

/// State shared by the handles.
pub(super) struct EmbedderShared {
    pub facts: EmbedFacts,
    pub announcer: ArrivalAnnouncer,
    pub commands: SyncSender<EmbedderCommand>,
    pub places: Arc<Semaphore>,
    pub queue_max: usize,
    pub counters: Arc<Counters>,
    pub draining: AtomicBool,
    pub stopped: watch::Receiver<()>,
    /// Join handle of the thread, taken by the first caller that joins; never locked across `.await`.
    pub thread: Mutex<Option<JoinHandle<()>>>,
}

/// Command for the thread.
pub(super) enum EmbedderCommand {
    Embed(EmbedJob),
    Drain { deadline: Instant },
}

/// A request: its texts, and the receiver of their vectors.
pub(super) struct EmbedJob {
    /// Early announcement, until the load includes the request.
    pub announcement: EarlyAnnouncement,
    /// Texts, none of them empty or too long.
    pub texts: Vec<Vec<Token>>,
    pub reply: oneshot::Sender<Result<Vec<Embedded>, EngineError>>,
    /// Place of the request, freed when this is dropped.
    pub place: OwnedSemaphorePermit,
}

impl EmbedJob {
    /// Sends the result to the caller. The place is freed first, so that the caller can send another request.
    pub fn answer(self, outcome: Result<Vec<Embedded>, EngineError>) {
        drop(self.place);
        // The caller may have gone.
        let _ = self.reply.send(outcome);
    }
}

/// Reason why a text cannot be embedded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TextFault {
    /// The text has no tokens.
    Empty,
    /// The text is too long.
    TooLong {
        /// Length. Units: tokens.
        n_tokens: usize,
    },
    /// The text has a token that is not in the vocabulary.
    Token(Token),
}

impl EmbedHandle {
    pub(super) fn new(state: EmbedderShared) -> Self {
        Self { shared: Arc::new(state) }
    }

    /// Returns the properties of the loaded model.
    pub fn facts(&self) -> &EmbedFacts {
        &self.shared.facts
    }

    /// Returns the counters after the last batch.
    pub fn counters(&self) -> CounterValues {
        self.shared.counters.values()
    }

    /// Checks a text before it is submitted.
    ///
    /// Errors: every [`TextFault`].
    pub fn check(&self, text: &[Token]) -> Result<(), TextFault> {
        let facts = &self.shared.facts;
        if text.is_empty() {
            return Err(TextFault::Empty);
        }
        if text.len() > facts.text_tokens_max as usize {
            return Err(TextFault::TooLong { n_tokens: text.len() });
        }
        text.iter().find(|token| **token >= facts.n_vocab).map_or(Ok(()), |token| Err(TextFault::Token(*token)))
    }

    /// Returns the vectors of texts, each of which has passed [`Self::check`]; dropping the future cancels the request.
    ///
    /// Shape: `texts` `[n]` -> `[n]`. Errors: `QueueFull`, `Draining`, `Decode`, and `Stopped` once the thread has
    /// ended.
    pub async fn embed(&self, request_id: &RequestId, texts: Vec<Vec<Token>>) -> Result<Vec<Embedded>, EngineError> {
        let state = &self.shared;
        if state.draining.load(Ordering::Acquire) {
            return Err(EngineError::Draining);
        }
        let queue_full = || EngineError::QueueFull { queue_max: state.queue_max };
        let place = Arc::clone(&state.places).try_acquire_owned().map_err(|_| queue_full())?;
        let (reply, answer) = oneshot::channel();
        let n_tokens = texts.iter().map(Vec::len).sum::<usize>();
        let announcement = state.announcer.announce(request_id, u32::try_from(n_tokens).unwrap_or(u32::MAX), &[]);
        let job = EmbedJob { announcement, texts, reply, place };
        state.commands.try_send(EmbedderCommand::Embed(job)).map_err(|error| match error {
            TrySendError::Full(_) => queue_full(),
            TrySendError::Disconnected(_) => EngineError::Stopped,
        })?;
        answer.await.unwrap_or(Err(EngineError::Stopped))
    }

    /// Accepts no further requests, lets running ones finish until `within` has passed, and returns once the thread has
    /// ended.
    pub async fn drain(&self, within: Duration) {
        self.shared.draining.store(true, Ordering::Release);
        let drain = EmbedderCommand::Drain { deadline: Instant::now() + within };
        let commands = self.shared.commands.clone();
        // A thread that has ended has nothing to drain.
        let _ = tokio::task::spawn_blocking(move || commands.send(drain)).await;
        self.stopped().await;
        let thread = self.shared.thread.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(thread) = thread {
            let _ = tokio::task::spawn_blocking(move || thread.join()).await;
        }
    }

    /// Returns once the thread has ended, for whatever reason.
    pub async fn stopped(&self) {
        let mut stop_signal = self.shared.stopped.clone();
        // The thread never sends; its end closes the channel.
        while stop_signal.changed().await.is_ok() {}
    }
}
