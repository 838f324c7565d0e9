//! The engine as everyone else sees it: submit, look, drain.
//!
//! Not here: what happens to a submission (`thread`), looking at the cache and changing it (`inspect`).
//! The idea: what costs time but needs no turn on the engine thread, such as parsing a grammar or hashing a prompt, is
//! done by the caller here. The number of submissions in the engine is bounded by places, one per slot and per queue
//! position; a place is freed when its submission leaves, however it leaves.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{SyncSender, TrySendError};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use arc_swap::ArcSwap;
use llama_cpp_2::model::LlamaModel;
use tokio::sync::watch;
use warmpath_common::block_hash::BlockHash;
use warmpath_prompt::Separators;
use warmpath_worker_core::prefix_tree::{BlockHasher, chain_of};
use warmpath_worker_core::tenants::{Tenant, Tenants};

use super::config::EngineFacts;
use super::constraint::{CompiledSchema, Compiler};
use super::counters::{CounterValues, Counters};
use super::inspect::{Asked, CacheTotals};
use super::messages::{EngineError, SlotView, Submission};
use super::promise::{Promise, Promiser};
use super::rule::{KnownGrammars, Rule};
use super::sampler::TokenSampler;
use crate::schema::ValueGrammar;

/// Reaches the engine thread; cheap to clone, and the thread ends when the last clone is dropped.
#[derive(Clone)]
pub struct EngineHandle {
    pub(super) shared: Arc<Shared>,
}

/// Is what the handles and the thread share.
pub(super) struct Shared {
    pub facts: EngineFacts,
    pub queue_max: usize,
    pub block_hasher: BlockHasher,
    pub model: Arc<LlamaModel>,
    /// Is made in the background once the model is loaded, or by the first request with a schema or grammar.
    pub schemas: OnceLock<Result<Compiler, String>>,
    pub grammars: KnownGrammars,
    pub commands: SyncSender<Command>,
    pub places: Arc<Places>,
    /// Counts the inquiries that wait.
    pub inquiries: Arc<Places>,
    pub view: Arc<View>,
    pub promiser: Promiser,
    /// Guards the memory of the tenants whose requests have come, for one look-up; never held across `.await`.
    pub tenants: Mutex<Tenants>,
    pub stopped: watch::Receiver<()>,
    /// Guards the thread's handle, taken once by whoever joins; never held across `.await`.
    pub thread: Mutex<Option<JoinHandle<()>>>,
}

impl Shared {
    pub(super) fn schemas(&self) -> &Result<Compiler, String> {
        self.schemas.get_or_init(|| Compiler::new(&self.model))
    }

    fn greet(&self, submission: &Submission) -> Tenant {
        let mut tenants = self.tenants.lock().unwrap_or_else(PoisonError::into_inner);
        tenants.greet(submission.tenant, &submission.chain_root)
    }
}

/// Is what the thread shows to others.
#[derive(Default)]
pub(super) struct View {
    pub counters: Counters,
    pub slots: ArcSwap<Vec<SlotView>>,
    pub cache: ArcSwap<CacheTotals>,
    pub draining: AtomicBool,
    /// Counts the requests whose submissions are being prepared.
    pub n_coming: AtomicUsize,
}

/// Asks the engine thread for something.
pub(super) enum Command {
    Submit(Box<Admission>),
    Inquire(Box<Asked>),
    Drain { deadline: Instant },
}

/// Is a submission with everything that the caller could prepare.
pub(super) struct Admission {
    pub submission: Submission,
    /// Tenant for whom what it leaves in the cache counts.
    pub tenant: Tenant,
    pub sampler: TokenSampler,
    /// Is the prompt's block chain, whole blocks only.
    pub chain: Vec<BlockHash>,
    /// Speaks for the submission until it starts; absent from then on.
    pub promise: Option<Promise>,
    /// Is when it was submitted.
    pub came: Instant,
    pub place: Place,
}

/// Counts the submissions or inquiries in the engine against their limit.
pub(super) struct Places {
    n_taken: AtomicUsize,
    n_max: usize,
}

impl Places {
    pub(super) fn new(n_max: usize) -> Self {
        Self { n_taken: AtomicUsize::new(0), n_max }
    }

    pub(super) fn take(self: &Arc<Self>) -> Option<Place> {
        let one_more = |n| (n < self.n_max).then_some(n + 1);
        self.n_taken.fetch_update(Ordering::AcqRel, Ordering::Acquire, one_more).ok()?;
        Some(Place(Arc::clone(self)))
    }
}

/// Is one submission's or inquiry's place in the engine, free again once it is dropped.
pub(super) struct Place(Arc<Places>);

impl Drop for Place {
    fn drop(&mut self) {
        self.0.n_taken.fetch_sub(1, Ordering::AcqRel);
    }
}

/// Says that a request is on its way to the engine, until it is dropped.
pub struct OnTheWay(Arc<View>);

impl Drop for OnTheWay {
    fn drop(&mut self) {
        self.0.n_coming.fetch_sub(1, Ordering::AcqRel);
    }
}

impl EngineHandle {
    pub(super) fn new(shared: Shared) -> Self {
        let shared = Arc::new(shared);
        let early = Arc::downgrade(&shared);
        // A thread that cannot be had is no loss: the first request with a schema makes what it needs.
        let _ = std::thread::Builder::new().name("vocabulary".to_owned()).spawn(move || {
            if let Some(shared) = early.upgrade() {
                shared.schemas();
            }
        });
        Self { shared }
    }

    /// Says that a request has arrived whose submission follows, so that an idle engine that gets another one just before waits
    /// a moment and computes both in one step.
    pub fn announce(&self) -> OnTheWay {
        self.shared.view.n_coming.fetch_add(1, Ordering::AcqRel);
        OnTheWay(Arc::clone(&self.shared.view))
    }

    /// Hands a submission to the engine; its events tell the rest.
    ///
    /// Cost: it never waits for the engine, but builds the sampler: microseconds, with a grammar that it has not seen lately
    /// milliseconds, some 0.15 s for the largest, and a walk over the whole vocabulary with DRY.
    /// Errors: `InvalidPrompt`, `Shift`, `Sampler`, `QueueFull`, `Draining`, and `Stopped` once the thread has ended.
    pub fn submit(&self, submission: Submission) -> Result<(), EngineError> {
        let (shared, came) = (&self.shared, Instant::now());
        if shared.view.draining.load(Ordering::Acquire) {
            return Err(EngineError::Draining);
        }
        self.check_prompt(&submission.prompt)?;
        if let (Some(1..), Some(obstacle)) = (submission.shifts.cache_reuse_tokens, shared.facts.shift_obstacle) {
            return Err(EngineError::Shift(obstacle));
        }
        let full = || EngineError::QueueFull { queue_max: shared.queue_max };
        let place = shared.places.take().ok_or_else(full)?;
        let sequence = (&submission.chain_root, submission.prompt.as_slice());
        let chain = chain_of(shared.block_hasher, sequence, shared.facts.block_size_tokens);
        let n_tokens = u32::try_from(submission.prompt.len()).unwrap_or(u32::MAX);
        let own = if submission.cache_prompt { chain.as_slice() } else { &[] };
        let promise = Some(shared.promiser.promise(&submission.request_id, n_tokens, own));
        let rule = Rule::begin(shared, &submission.generation)?;
        let sampler = TokenSampler::build(&shared.model, (&submission, rule), shared.facts.context_tokens)?;
        let tenant = shared.greet(&submission);
        let admission = Box::new(Admission { submission, tenant, sampler, chain, promise, came, place });
        shared.commands.try_send(Command::Submit(admission)).map_err(|error| match error {
            TrySendError::Full(_) => full(),
            TrySendError::Disconnected(_) => EngineError::Stopped,
        })
    }

    /// Returns a schema compiled for the model's vocabulary, or why it cannot be followed, fit for the client.
    ///
    /// Takes the form that `schema::normalize` gives. Cost: a millisecond, up to half a second for the largest; it never
    /// waits for the engine.
    pub fn compile_schema(&self, schema: &serde_json::Value) -> Result<CompiledSchema, String> {
        self.shared.schemas().as_ref().map_err(Clone::clone)?.compile(schema)
    }

    /// Returns a normalized schema of a tool's arguments compiled, or why it cannot be, fit for the client.
    ///
    /// `separators` are what stands between their parts, where they may not be as in other answers.
    pub fn compile_arguments(
        &self,
        schema: &serde_json::Value,
        separators: Option<Separators>,
    ) -> Result<CompiledSchema, String> {
        self.shared.schemas().as_ref().map_err(Clone::clone)?.compile_arguments(schema, separators)
    }

    /// Returns the grammar of a single argument compiled, or why it cannot be, fit for the client; `separators` as
    /// above.
    pub fn compile_value(
        &self,
        value: &ValueGrammar,
        separators: Option<Separators>,
    ) -> Result<CompiledSchema, String> {
        self.shared.schemas().as_ref().map_err(Clone::clone)?.compile_value(value, separators)
    }

    /// Returns what the model and the context turned out to be.
    pub fn facts(&self) -> &EngineFacts {
        &self.shared.facts
    }

    /// Returns the slots as they were after the last step.
    pub fn slots(&self) -> Arc<Vec<SlotView>> {
        self.shared.view.slots.load_full()
    }

    /// Returns the counters as they were after the last step.
    pub fn counters(&self) -> CounterValues {
        self.shared.view.counters.values()
    }

    /// Stops admission, lets running answers finish until `within` has passed, and returns once the thread has ended.
    ///
    /// Submissions that wait for a slot fail with `Draining` at once, those that still run at the deadline then.
    pub async fn drain(&self, within: Duration) {
        self.shared.view.draining.store(true, Ordering::Release);
        let drain = Command::Drain { deadline: Instant::now() + within };
        let commands = self.shared.commands.clone();
        // The queue has room for every place and every inquiry and one drain more; a thread that has ended has nothing left to drain.
        let _ = tokio::task::spawn_blocking(move || commands.send(drain)).await;
        self.stopped().await;
        let thread = self.shared.thread.lock().unwrap_or_else(std::sync::PoisonError::into_inner).take();
        if let Some(thread) = thread {
            let _ = tokio::task::spawn_blocking(move || thread.join()).await;
        }
    }

    /// Returns once the engine thread has ended, for whatever reason.
    pub async fn stopped(&self) {
        let mut stopped = self.shared.stopped.clone();
        // The thread never sends; its end closes the channel.
        while stopped.changed().await.is_ok() {}
    }

    fn check_prompt(&self, prompt: &[u32]) -> Result<(), EngineError> {
        let facts = &self.shared.facts;
        let refuse = |reason| Err(EngineError::InvalidPrompt { reason });
        if prompt.is_empty() {
            return refuse("it has no tokens".to_owned());
        }
        if prompt.len() >= facts.context_tokens as usize {
            return refuse(format!("it has {} tokens, a slot has room for {}", prompt.len(), facts.context_tokens));
        }
        match prompt.iter().find(|token| **token >= facts.n_vocab) {
            Some(token) => refuse(format!("token {token} is not in the vocabulary of {}", facts.n_vocab)),
            None => Ok(()),
        }
    }
}
