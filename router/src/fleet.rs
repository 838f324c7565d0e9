//! The fleet: what requests read at once, and the tasks that keep it.
//!
//! Not here: the decision (`warmpath-router-core`), a request's way (`lifecycle`).
//! The idea: the one `members` task lets workers join and leave, `subscriber` tasks listen to one Warmpath worker each,
//! `stock` tasks look after one other server each, the one `tracker` thread owns the view and the prefix index and publishes
//! them, the one `vocabulary` task fetches what is needed to tokenize. Requests never wait for any of them.

pub mod client;
pub mod loss;
pub mod members;
pub mod stock;
pub mod subscriber;
pub mod tracker;
pub mod trial;
pub mod vocabulary;
pub mod vocabulary_files;
pub mod worker_keys;

use std::fmt::Display;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use arc_swap::ArcSwap;
use tokio::sync::{Notify, mpsc, watch};
use tokio::task::JoinSet;
use warmpath_common::ids::RequestId;
use warmpath_common::model::{Fingerprint, ModelInfo};
use warmpath_common::summary::{Change, Digest, Load, Run};
use warmpath_router_core::WorkerIdx;
use warmpath_router_core::fleet::{Connection, FleetView};
use warmpath_router_core::index::{IndexOptions, IndexWriter, PrefixIndex};
use warmpath_router_core::ledger::{Ledger, NoWorker, Ticket};
use warmpath_router_core::overload::admission::CapacityForecast;
use warmpath_router_core::overload::retry::{Failure, Terms};
use warmpath_router_core::stock::{SentRequest, ServerInfo};

use self::client::Clients;
use self::members::Member;
use self::stock::Visit;
use self::subscriber::FleetEvents;
use self::vocabulary::{Vocabularies, VocabularyKey, VocabularyState};
use self::vocabulary_files::LoadedVocabulary;
use crate::config::{FleetConfig, REPORTS_QUEUED_MAX, TrialConfig};
use crate::discovery::Discovered;
use crate::metrics::Metrics;

/// Is the fleet, shared by everything that asks for it.
pub struct Fleet {
    /// Has the worker of each place, also where that has left and no other has come.
    members: ArcSwap<Vec<Arc<Member>>>,
    given: Vec<LoadedVocabulary>,
    clients: Clients,
    view: ArcSwap<FleetView>,
    vocabularies: ArcSwap<Vocabularies>,
    index: Arc<PrefixIndex>,
    /// Guards the books of what was sent; held for one choice or one entry, never across `.await`.
    books: Mutex<Ledger>,
    n_shed: AtomicU64,
    started: Instant,
    /// Whether every worker that was found first has been looked at; sent again when another worker is there or serves another model.
    looked: watch::Sender<bool>,
    /// How long after the start requests wait for that.
    first_look_max: Duration,
    /// Says that clients have been sent here: from then on what is new in the fleet is no reason to send them away.
    was_ready: AtomicBool,
    models_changed: Notify,
    trial: TrialConfig,
    metrics: Arc<Metrics>,
}

impl Fleet {
    /// Returns a fleet without workers, and starts the tasks that let those in that are `found` and listen to them.
    pub fn start(
        config: &FleetConfig,
        (given, found, clients): (Vec<LoadedVocabulary>, Arc<Discovered>, Clients),
        metrics: Arc<Metrics>,
        tasks: &mut JoinSet<()>,
    ) -> Arc<Self> {
        let writer = IndexWriter::new(IndexOptions { bytes_max: config.index_bytes_max, seed: rand::random() });
        let fleet = Arc::new(Self {
            members: ArcSwap::default(),
            given,
            clients,
            view: ArcSwap::default(),
            vocabularies: ArcSwap::default(),
            index: writer.reader(),
            books: Mutex::new(Ledger::new(config.dispatch)),
            n_shed: AtomicU64::new(0),
            started: Instant::now(),
            looked: watch::Sender::new(false),
            first_look_max: config.first_look_max,
            was_ready: AtomicBool::new(false),
            models_changed: Notify::new(),
            trial: config.trial.clone(),
            metrics,
        });
        let (reports, inbox) = mpsc::channel(REPORTS_QUEUED_MAX);
        tasks.spawn(members::keep(Arc::clone(&fleet), found, config.clone(), FleetEvents(reports.clone())));
        tasks.spawn(vocabulary::fetch(Arc::clone(&fleet), reports));
        let tracked = Arc::clone(&fleet);
        tasks.spawn_blocking(move || tracker::track(tracked, writer, inbox));
        fleet
    }

    /// Waits until every worker that was found first has been looked at, for a while after the start at most.
    ///
    /// A request that came before would be refused for a worker that is there.
    pub async fn first_look(&self) {
        if *self.looked.borrow() {
            return;
        }
        let mut looked = self.looked.subscribe();
        let left = self.first_look_max.saturating_sub(self.started.elapsed());
        // Whether it is done or too late, the request goes on; the sender lives as long as the fleet.
        let _ = tokio::time::timeout(left, looked.wait_for(|looked| *looked)).await;
    }

    /// Returns what hears of workers that come, go or serve another model from now on.
    pub fn changes(&self) -> Changes {
        Changes(self.looked.subscribe())
    }

    /// Returns the fleet as it is at this moment.
    pub fn view(&self) -> Arc<FleetView> {
        self.view.load_full()
    }

    /// Returns the readers' side of the prefix index.
    pub fn index(&self) -> &PrefixIndex {
        &self.index
    }

    /// Returns the worker of a place.
    pub fn member(&self, worker: WorkerIdx) -> Arc<Member> {
        Arc::clone(&self.members.load()[worker.0 as usize])
    }

    /// Gives a place to a worker; the `members` task alone does so, and leaves none out.
    fn seat(&self, worker: WorkerIdx, member: &Arc<Member>) {
        let mut members = (*self.members.load_full()).clone();
        match members.get_mut(worker.0 as usize) {
            Some(place) => *place = Arc::clone(member),
            None => members.push(Arc::clone(member)),
        }
        self.members.store(Arc::new(members));
    }

    /// Returns the vocabularies that the operator gives.
    pub fn given(&self) -> &[LoadedVocabulary] {
        &self.given
    }

    /// Returns what is needed to tokenize for a model, if it has been given or fetched.
    pub fn vocabulary(&self, model: &ModelInfo) -> Option<VocabularyState> {
        let given = self.given.iter().find(|given| given.cuts(model));
        let ready = |given: &LoadedVocabulary| VocabularyState::Ready(Arc::clone(&given.vocabulary));
        given.map(ready).or_else(|| self.vocabularies.load().get(&VocabularyKey::of(model)).cloned())
    }

    /// Returns all vocabularies that are wanted, and how far they are.
    pub fn vocabularies(&self) -> Arc<Vocabularies> {
        self.vocabularies.load_full()
    }

    /// Returns how long a worker has not been heard; absent if it never was.
    pub fn age(&self, member: &Member) -> Option<Duration> {
        member.last_heard().map(|heard| self.started.elapsed().saturating_sub(heard))
    }

    /// Returns how many claims the index has dropped for its memory limit.
    pub fn n_shed(&self) -> u64 {
        self.n_shed.load(Ordering::Relaxed)
    }

    /// Returns the books of what was sent.
    pub fn ledger(&self) -> MutexGuard<'_, Ledger> {
        self.books.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Keeps the request of `ticket` booked on `worker` until what is returned is dropped.
    pub fn booking(self: &Arc<Self>, worker: WorkerIdx, ticket: Ticket) -> InFlightGuard {
        InFlightGuard { fleet: Arc::clone(self), worker, ticket: Some(ticket), visit: None }
    }

    /// Returns how soon the workers of `model`, or all of them, can start one more request.
    pub fn capacity_forecast(&self, model: Option<&ModelInfo>) -> CapacityForecast {
        self.ledger().capacity_forecast(&self.view(), model, Instant::now())
    }

    fn heard(&self, member: &Member) {
        member.heard(self.started.elapsed());
    }

    /// Returns why no client should be sent here, or `None` where the fleet can serve.
    pub fn unready(&self) -> Option<Unready> {
        let view = self.view();
        let now = Instant::now();
        if view.workers.is_empty() {
            return Some(Unready::plain("no worker has been found"));
        }
        let reasons: Vec<_> = view.workers.iter().filter_map(|worker| worker.unavailable(now)).collect();
        if reasons.len() == view.workers.len() {
            let listed = view.workers.iter().zip(&reasons);
            let listed: Vec<_> = listed.map(|(worker, why)| format!("{} is {}", worker.name, why.label())).collect();
            let told = |reasons: &dyn Display| format!("no worker can take requests: {reasons}");
            return Some(Unready {
                for_clients: told(&NoWorker::counting(reasons).listed()),
                for_operators: told(&listed.join(", ")),
            });
        }
        if self.was_ready.load(Ordering::Relaxed) {
            return None;
        }
        let unready = self.beginning(&view);
        self.was_ready.store(unready.is_none(), Ordering::Relaxed);
        unready
    }

    /// Returns what a router that has just begun still waits for.
    fn beginning(&self, view: &FleetView) -> Option<Unready> {
        let is_looking = !*self.looked.borrow() && self.started.elapsed() < self.first_look_max;
        if is_looking || view.workers.iter().any(|worker| worker.link == Connection::Connecting) {
            return Some(Unready::plain("some workers have not been tried yet"));
        }
        let vocabularies = self.vocabularies.load();
        let wanted = vocabulary::wanted(self, view);
        let is_pending = |key| !matches!(vocabularies.get(key), Some(state) if !state.is_pending());
        wanted.iter().any(is_pending).then(|| Unready::plain("a vocabulary is being fetched"))
    }
}

/// Hears of workers that come, go or serve another model.
pub struct Changes(watch::Receiver<bool>);

impl Changes {
    /// Returns whether there was a change that has not been heard; from then on it has.
    pub fn hear(&mut self) -> bool {
        let is_new = self.0.has_changed().unwrap_or(false);
        self.0.mark_unchanged();
        is_new
    }

    /// Waits for the next change.
    pub async fn come(&mut self) {
        // Nothing changes any more in a fleet that has ended.
        if self.0.changed().await.is_err() {
            std::future::pending::<()>().await;
        }
    }
}

/// Reason for which no client should be sent here.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unready {
    /// Text for everybody, which says of no worker where it is.
    pub for_clients: String,
    /// Text for operators.
    pub for_operators: String,
}

impl Unready {
    /// Returns a reason that everybody may know.
    pub fn plain(reason: &str) -> Self {
        Self { for_clients: reason.to_owned(), for_operators: reason.to_owned() }
    }
}

/// Keeps a request booked on its worker until it is dropped.
pub struct InFlightGuard {
    fleet: Arc<Fleet>,
    worker: WorkerIdx,
    ticket: Option<Ticket>,
    /// Is what becomes of it, where the worker is a stock server.
    visit: Option<Visit>,
}

impl InFlightGuard {
    /// Records that the worker has done the request, at which others have failed so before.
    pub fn answered(&self, failures: &[(WorkerIdx, Failure)]) {
        self.fleet.ledger().answered(self.worker, failures, Instant::now());
    }

    /// Watches what becomes of the request, if the worker is a stock server.
    pub fn watch(&mut self, request_id: &RequestId, sending: impl FnOnce() -> SentRequest) {
        if let Some(stock) = &self.fleet.member(self.worker).stock {
            self.visit = Some(Visit::new(stock, &self.fleet.metrics, (request_id, sending())));
        }
    }

    /// Returns whether the worker is a stock server.
    pub fn is_visit(&self) -> bool {
        self.visit.is_some()
    }

    /// Returns what watches the request, where the worker is a stock server.
    pub fn visit(&mut self) -> Option<&mut Visit> {
        self.visit.as_mut()
    }

    /// Records that the worker has refused the request on these terms.
    pub fn refused(&self, failure: Failure, terms: Terms<'_>) {
        // The slots of a Warmpath worker are every model's that it serves, and every name's.
        let model_name = terms.model_name.filter(|_| self.visit.is_some());
        let refusal = (failure, Terms { model_name, ..terms });
        if let Some(visit) = &self.visit {
            visit.failed(failure);
        }
        self.fleet.ledger().refused(self.worker, refusal, Instant::now());
    }

    /// Records that the worker has failed the request.
    pub fn failed(&self, failure: Failure) {
        if let Some(visit) = &self.visit {
            visit.failed(failure);
        }
        self.fleet.ledger().failed(self.worker, failure, Instant::now());
    }
}

impl Drop for InFlightGuard {
    fn drop(&mut self) {
        if let Some(ticket) = self.ticket.take() {
            self.fleet.ledger().ended(ticket);
        }
    }
}

/// Says why a worker cannot be followed.
#[derive(Debug, Clone)]
pub struct ConnectError {
    /// Kind of trouble.
    pub kind: ConnectErrorKind,
    /// Says why, for a person.
    pub reason: Arc<str>,
}

/// Kind of trouble with a worker that cannot be followed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ConnectErrorKind {
    /// The worker answers, and does not let this router in.
    Refusal,
    /// The worker does not answer at all: what was asked of it will not come.
    Loss,
    /// The worker answers, and its model is being loaded.
    Loading {
        /// Names under which it will serve.
        names: Vec<String>,
    },
    /// The worker cannot be followed; it may be answering others.
    Other,
}

/// Is what the followers of workers and the vocabulary task tell the tracker.
pub enum Report {
    /// Whatever every way to find workers found first has joined.
    Surveyed,
    /// A worker has joined; its member is seated.
    Joined {
        /// Names the worker.
        worker: WorkerIdx,
    },
    /// A worker is found no longer, or ends.
    Leaving {
        /// Names the worker.
        worker: WorkerIdx,
    },
    /// A worker that was leaving stays.
    Stayed {
        /// Names the worker.
        worker: WorkerIdx,
    },
    /// A worker has left; nothing comes of it any more.
    Left {
        /// Names the worker.
        worker: WorkerIdx,
    },
    /// A worker shows a snapshot, of which model and load have come.
    Opened {
        /// Names the worker.
        worker: WorkerIdx,
        /// Is what has come.
        new: Box<warmpath_router_core::fleet::summary_reader::NewWorker>,
    },
    /// A stock server was found, or lists other models than before.
    Found {
        /// Names the worker.
        worker: WorkerIdx,
        /// Is what it says of itself.
        declared: ServerInfo,
    },
    /// A stock server counts tokens otherwise than the vocabulary that it was taken to have.
    Differs {
        /// Names the worker.
        worker: WorkerIdx,
        /// Model whose tokens it counts so.
        model: Fingerprint,
    },
    /// A worker's stream goes on where it was lost.
    Resumed {
        /// Names the worker.
        worker: WorkerIdx,
    },
    /// A worker holds these blocks and no others.
    Replaced {
        /// The worker.
        worker: WorkerIdx,
        /// What it holds.
        runs: Vec<Run>,
    },
    /// A worker holds more, or less, or has more or less to do.
    Update {
        /// The worker.
        worker: WorkerIdx,
        /// The changes in order.
        changes: Vec<Change>,
        /// The load after the changes, where it changed.
        load: Option<Load>,
        /// Digest of the worker's blocks after the changes, where the worker says one.
        digest: Option<Digest>,
    },
    /// A worker's stream has ended; the worker may be well.
    Lost {
        /// Names the worker.
        worker: WorkerIdx,
    },
    /// A worker cannot be reached, is not ready, or does not let this router in.
    Unreachable {
        /// Names the worker.
        worker: WorkerIdx,
        /// Says why.
        trouble: ConnectError,
    },
    /// A vocabulary was fetched and compared with what the workers declare.
    Vocabulary,
    /// The vocabulary that a worker serves would harm this router.
    Refused {
        /// The worker.
        worker: WorkerIdx,
        /// The vocabulary's name.
        key: VocabularyKey,
        /// The harm, for a person.
        reason: String,
    },
}

impl Report {
    /// Returns the worker that it is about, if it is about one.
    fn worker(&self) -> Option<WorkerIdx> {
        match self {
            Self::Surveyed | Self::Vocabulary => None,
            Self::Joined { worker }
            | Self::Leaving { worker }
            | Self::Stayed { worker }
            | Self::Left { worker }
            | Self::Opened { worker, .. }
            | Self::Found { worker, .. }
            | Self::Differs { worker, .. }
            | Self::Resumed { worker }
            | Self::Replaced { worker, .. }
            | Self::Update { worker, .. }
            | Self::Lost { worker }
            | Self::Unreachable { worker, .. }
            | Self::Refused { worker, .. } => Some(*worker),
        }
    }
}

/// Returns a request id, for a client that gave none.
pub fn fresh_request_id() -> RequestId {
    RequestId::new(&uuid::Uuid::new_v4().to_string()).expect("a UUID is visible ASCII")
}
