//! The engine's interface: submit, state, drain.
//!
//! Work that need not run on the engine thread, such as parsing a grammar or hashing a prompt, runs here in the
//! caller's task. The number of submissions in the engine is limited by places, one per slot and per queue position. A
//! submission frees its place when it ends, for whatever reason.
//!
//! Not here: running a submission (`thread`).

mod cache;
pub(crate) mod commands;
mod transfers;
pub(crate) mod view;

use std::sync::atomic::Ordering;
use std::sync::mpsc::{SyncSender, TrySendError};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, Weak};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use llama_cpp_2::model::LlamaModel;
use tokio::sync::watch;
use warmpath_common::ids::Token;
use warmpath_constraint::RuleCompiler;
use warmpath_prompt::MediaRun;
use warmpath_worker_core::slots::prefix_tree::{BlockHasher, chain_of};
use warmpath_worker_core::tenants::{Tenant, Tenants};

use super::api::facts::EngineFacts;
use super::api::{EngineError, PastToken, PromptFault, SlotView, Submission, Waker};
use super::config::speculation::SpeculationConfig;
use super::counters::CounterValues;
use super::media::Projector;
use super::output::sampler::TokenSampler;
use super::output::{constraint, look_up};
use super::publish::arrival_announcer::ArrivalAnnouncer;
use super::self_test::SelfTestReport;
use super::sequence::admission::Admission;
use super::sequence::chosen_token::ChosenToken;
use super::sequence::places::Places;
use commands::EngineCommand;
use view::EngineView;

/// Handle of the engine thread; cheap to clone, and the thread ends when the last clone is dropped.
#[derive(Clone)]
pub struct EngineHandle {
    pub(super) shared: Arc<EngineShared>,
}

/// State shared by the handles and the thread.
pub(crate) struct EngineShared {
    pub facts: EngineFacts,
    pub queue_max: usize,
    pub block_hasher: BlockHasher,
    /// Settings of speculative decoding; `None` if it is off, or the model's memory cannot be rewound.
    pub speculation: Option<SpeculationConfig>,
    pub model: Arc<LlamaModel>,
    /// Projector; `None` if the model reads only text.
    pub projector: Option<Arc<Projector>>,
    /// Compiler, built in the background once the model is loaded, or by the first request with a schema or grammar.
    pub compiler: OnceLock<Result<RuleCompiler, String>>,
    pub commands: SyncSender<EngineCommand>,
    pub waker: Waker,
    pub places: Arc<Places>,
    /// Places of waiting queries.
    pub inquiries: Arc<Places>,
    /// Places of runs that are sent to other workers.
    pub sends: Arc<Places>,
    pub view: Arc<EngineView>,
    pub announcer: ArrivalAnnouncer,
    /// Tenants of past requests. The lock is held for one look-up, never across `.await`.
    pub tenants: Mutex<Tenants>,
    pub stopped: watch::Receiver<()>,
    /// Threads that compute: the engine's, and that of a repeated self-test. The first caller that joins takes them;
    /// never locked across `.await`.
    pub threads: Mutex<Vec<JoinHandle<()>>>,
}

impl Drop for EngineShared {
    fn drop(&mut self) {
        self.view.is_closed.store(true, Ordering::Release);
        self.waker.wake();
    }
}

impl EngineShared {
    /// Returns the compiler of rules for the model's vocabulary.
    ///
    /// Errors: the reason why there is none, for the client.
    pub(super) fn compiler(&self) -> Result<&RuleCompiler, String> {
        self.compiler.get_or_init(|| constraint::compiler(&self.model)).as_ref().map_err(Clone::clone)
    }

    fn identify(&self, submission: &Submission) -> Tenant {
        let mut tenants = self.tenants.lock().unwrap_or_else(PoisonError::into_inner);
        tenants.identify(submission.tenant, &submission.chain_root)
    }
}

/// Guard for a request that is being prepared for the engine.
pub struct ArrivalGuard {
    view: Arc<EngineView>,
    waker: Waker,
}

impl Drop for ArrivalGuard {
    fn drop(&mut self) {
        if self.view.n_coming.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.waker.wake();
        }
    }
}

impl EngineHandle {
    pub(super) fn new(state: EngineShared) -> Self {
        let state = Arc::new(state);
        let weak_state = Arc::downgrade(&state);
        // If the thread cannot be started, the first request with a schema builds the compiler.
        let _ = std::thread::Builder::new().name("vocabulary".to_owned()).spawn(move || {
            if let Some(state) = weak_state.upgrade() {
                let _ = state.compiler();
            }
        });
        Self { shared: state }
    }

    /// Returns a reference that does not keep the engine running.
    pub(super) fn weak(&self) -> Weak<EngineShared> {
        Arc::downgrade(&self.shared)
    }

    /// Adds a thread that must end before the process does.
    pub(super) fn add_thread(&self, thread: JoinHandle<()>) {
        self.shared.threads.lock().unwrap_or_else(PoisonError::into_inner).push(thread);
    }

    /// Announces a request whose submission will follow. An idle engine that receives another submission waits briefly
    /// for this one, and computes both in one step.
    pub fn announce(&self) -> ArrivalGuard {
        self.shared.view.n_coming.fetch_add(1, Ordering::AcqRel);
        ArrivalGuard { view: Arc::clone(&self.shared.view), waker: self.shared.waker.clone() }
    }

    /// Submits a request to the engine, which reports through the request's events.
    ///
    /// Cost: it never waits for the engine, but builds the sampler. That takes microseconds, or milliseconds for a
    /// grammar that is not cached (some 0.15 s for the largest). DRY takes a walk over the whole vocabulary.
    /// Errors: `InvalidPrompt`, `Shift`, `Sampler`, `QueueFull`, `Draining`, and `Stopped` once the thread has ended.
    pub fn submit(&self, submission: Submission) -> Result<(), EngineError> {
        // What can be refused is refused here, on the caller's thread.
        let (shared, came) = (&self.shared, Instant::now());
        if shared.view.draining.load(Ordering::Acquire) {
            return Err(EngineError::Draining);
        }
        // The last tokens of a response may fill the context; one more ends it.
        let n_needing_room = submission.prompt.len() - submission.past.len().min(2);
        let needing_room = &submission.prompt[..n_needing_room];
        self.check_prompt(needing_room, &submission.runs).map_err(EngineError::InvalidPrompt)?;
        if let (Some(1..), Some(obstacle)) = (submission.shifts.cache_reuse_tokens, shared.facts.shift_obstacle) {
            return Err(EngineError::Shift(obstacle));
        }
        submission.events.wake_by_reader(&shared.waker);
        let queue_full = || EngineError::QueueFull { queue_max: shared.queue_max };
        let place = shared.places.take().ok_or_else(queue_full)?;

        // Routers learn of the request before the engine sees it, so that others with its prefix follow it.
        let Submission { chain_root, prompt, .. } = &submission;
        let chain = chain_of(shared.block_hasher, chain_root, prompt, shared.facts.block_size_tokens);
        let n_tokens = u32::try_from(submission.prompt.len()).unwrap_or(u32::MAX);
        let own_chain = if submission.cache_prompt { chain.as_slice() } else { &[] };
        let announcement = Some(shared.announcer.announce(&submission.request_id, n_tokens, own_chain));

        // Everything that takes long is made here and not on the engine's thread, which all streams wait for.
        let rule = constraint::rule(&shared.model, || shared.compiler(), &submission.generation)?;
        let sampler = TokenSampler::build(&shared.model, &submission, rule, shared.facts.context_tokens)?;
        let tenant = shared.identify(&submission);
        let drafter = shared.speculation.and_then(|speculation| speculation.drafter(&submission));
        let spelled_tokens = &submission.generation.spelled;
        let chosen_token = |past_token: &PastToken| ChosenToken {
            probabilities: past_token.probabilities.clone(),
            ..look_up(&shared.model, past_token.sampled, spelled_tokens)
        };
        let past_tokens = submission.past.iter().map(chosen_token).collect();
        let media = submission.runs.iter().map(|run| run.start..run.end()).collect();
        let admission = Box::new(Admission {
            submission,
            past: past_tokens,
            tenant,
            sampler,
            drafter,
            chain,
            media,
            announcement,
            came,
            place,
        });
        shared.commands.try_send(EngineCommand::Submit(admission)).map_err(|error| match error {
            TrySendError::Full(_) => queue_full(),
            TrySendError::Disconnected(_) => EngineError::Stopped,
        })
    }

    /// Returns the compiler of rules for the model's vocabulary; it never waits for the engine.
    ///
    /// Errors: the reason why there is none, for the client.
    pub fn compiler(&self) -> Result<&RuleCompiler, String> {
        self.shared.compiler()
    }

    /// Checks that a grammar, which may name `n_beyond` tokens beyond the vocabulary, can be followed.
    ///
    /// Errors: the reason, for the client. Cost: as of parsing it; it is then cached.
    pub fn check_grammar(&self, text: &str, n_beyond: usize) -> Result<(), String> {
        self.shared.compiler()?.grammar(text, n_beyond).map(|_| ())
    }

    /// Returns the properties of the loaded model and its context.
    pub fn facts(&self) -> &EngineFacts {
        &self.shared.facts
    }

    /// Returns the result of the last self-test; `None` if there was none.
    pub fn self_test(&self) -> Option<Arc<SelfTestReport>> {
        self.shared.view.self_test.load_full()
    }

    /// Returns the slots after the last step.
    pub fn slots(&self) -> Arc<Vec<SlotView>> {
        self.shared.view.slots.load_full()
    }

    /// Returns the counters after the last step.
    pub fn counters(&self) -> CounterValues {
        self.shared.view.counters.values()
    }

    /// Stops admission, lets running responses finish until `within` has passed, and returns once the thread has ended.
    ///
    /// Submissions that wait for a slot fail with `Draining` immediately, running ones at the deadline. State is sent
    /// to other workers until `handed_over` returns, at most until the deadline.
    pub async fn drain(&self, within: Duration, handed_over: impl Future<Output = ()>) {
        self.shared.view.hands_over.store(true, Ordering::Release);
        self.shared.view.draining.store(true, Ordering::Release);
        let drain = EngineCommand::Drain { deadline: Instant::now() + within };
        let commands = self.shared.commands.clone();
        // The queue has room for all submissions, all queries and this command. If the thread has ended, there is
        // nothing to drain.
        let _ = tokio::task::spawn_blocking(move || commands.send(drain)).await;
        tokio::select! {
            // The deadline ends the wait, too.
            _ = tokio::time::timeout(within, handed_over) => {}
            () = self.stopped() => {}
        }
        self.shared.view.hands_over.store(false, Ordering::Release);
        self.wake();
        self.stopped().await;
        // A process that ends while llama.cpp computes may crash.
        let threads = std::mem::take(&mut *self.shared.threads.lock().unwrap_or_else(PoisonError::into_inner));
        let join = move || threads.into_iter().for_each(|thread| drop(thread.join()));
        let _ = tokio::task::spawn_blocking(join).await;
    }

    /// Returns once the engine thread has ended, for whatever reason.
    pub async fn stopped(&self) {
        let mut stop_signal = self.shared.stopped.clone();
        // The thread never sends; its end closes the channel.
        while stop_signal.changed().await.is_ok() {}
    }

    /// Returns the projector; `None` if the model reads only text.
    pub fn projector(&self) -> Option<&Arc<Projector>> {
        self.shared.projector.as_ref()
    }

    /// Checks that a slot can run a prompt with these runs of media tokens.
    ///
    /// Errors: every [`PromptFault`].
    pub fn check_prompt(&self, prompt: &[Token], runs: &[MediaRun]) -> Result<(), PromptFault> {
        let EngineFacts { context_tokens, n_vocab, .. } = *self.facts();
        match prompt {
            [] => Err(PromptFault::Empty),
            _ if prompt.len() >= context_tokens as usize => {
                Err(PromptFault::TooLong { n_tokens: prompt.len(), context_tokens })
            }
            _ => {
                let is_unknown = |(place, token): &(u32, &Token)| {
                    **token >= n_vocab && !runs.iter().any(|run| (run.start..run.end()).contains(place))
                };
                match (0..).zip(prompt).find(is_unknown) {
                    Some((_, token)) => Err(PromptFault::UnknownToken { token: *token, n_vocab }),
                    None => Ok(()),
                }
            }
        }
    }
}
