//! The fleet: what requests read at once, and the tasks that keep it.
//!
//! Not here: the decision (`warmpath-router-core`), a request's way (`lifecycle`).
//! The idea: `subscriber` tasks listen to one Warmpath worker each, `stock` tasks look after one other server each, the one `tracker` task owns the view and publishes it, the one
//! `indexer` thread owns the prefix index, the one `vocabulary` task fetches what is needed to tokenize. Requests never
//! wait for any of them.

pub mod given;
pub mod indexer;
pub mod stock;
pub mod subscriber;
pub mod tracker;
pub mod vocabulary;

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use arc_swap::ArcSwap;
use tokio::sync::{Notify, mpsc};
use tokio::task::JoinSet;
use url::Url;
use warmpath_common::ids::RequestId;
use warmpath_common::model::ModelInfo;
use warmpath_router_core::WorkerIdx;
use warmpath_router_core::admission::Relief;
use warmpath_router_core::dispatch::{Ask, Decision, Dispatch, NoWorker, Ticket};
use warmpath_router_core::fleet::{FleetView, Link, WorkerView};
use warmpath_router_core::index::{IndexOptions, IndexWriter, PrefixIndex};
use warmpath_router_core::retry::Failure;
use warmpath_router_core::stock::{Declared, Footing, Sending};

use self::given::Given;
use self::indexer::BlockView;
use self::stock::{Stock, Visit};
use self::subscriber::Outbox;
use self::vocabulary::{Vocabularies, VocabularyKey, VocabularyState};
use crate::config::{
    BLOCK_REPORTS_QUEUED_MAX, FleetConfig, REPORTS_QUEUED_MAX, WORKER_BLOCKS_MAX, WorkerAddress, WorkerApi,
};
use crate::metrics::Metrics;

/// Is the fleet, shared by everything that asks for it.
pub struct Fleet {
    urls: Vec<Url>,
    /// Has an entry for each worker that is a stock server.
    stock: Vec<Option<Arc<Stock>>>,
    given: Vec<Given>,
    view: ArcSwap<FleetView>,
    vocabularies: ArcSwap<Vocabularies>,
    index: Arc<PrefixIndex>,
    /// Is what is published of each worker's blocks.
    blocks: Vec<BlockView>,
    /// Guards the books of what was sent; held for one choice or one entry, never across `.await`.
    books: Mutex<Dispatch>,
    /// Says when each worker was last heard, in milliseconds after `started`; 0 means never.
    heard_ms: Vec<AtomicU64>,
    n_shed: AtomicU64,
    started: Instant,
    models_changed: Notify,
    metrics: Arc<Metrics>,
}

impl Fleet {
    /// Returns a fleet whose workers have not been heard, and starts the tasks that listen to them.
    pub fn start(config: &FleetConfig, given: Vec<Given>, metrics: Arc<Metrics>, tasks: &mut JoinSet<()>) -> Arc<Self> {
        let writer = IndexWriter::new(IndexOptions { bytes_max: config.index_bytes_max, seed: rand::random() });
        let workers = config.workers.iter().enumerate().map(|(idx, address)| unheard(idx, address)).collect();
        let stock = |address: &WorkerAddress| (address.api == WorkerApi::OpenAi).then(Arc::default);
        let fleet = Arc::new(Self {
            urls: config.workers.iter().map(|address| address.url.clone()).collect(),
            stock: config.workers.iter().map(stock).collect(),
            given,
            view: ArcSwap::from_pointee(FleetView { workers }),
            vocabularies: ArcSwap::default(),
            index: writer.reader(),
            blocks: config.workers.iter().map(|_| BlockView::default()).collect(),
            books: Mutex::new(Dispatch::new(config.dispatch)),
            heard_ms: config.workers.iter().map(|_| AtomicU64::new(0)).collect(),
            n_shed: AtomicU64::new(0),
            started: Instant::now(),
            models_changed: Notify::new(),
            metrics,
        });
        let (reports, inbox) = mpsc::channel(REPORTS_QUEUED_MAX);
        let (blocks, blocks_inbox) = mpsc::channel(BLOCK_REPORTS_QUEUED_MAX);
        for idx in (0..fleet.urls.len()).map(worker_idx) {
            let outbox = Outbox { reports: reports.clone(), blocks: blocks.clone() };
            if fleet.stock(idx).is_some() {
                tasks.spawn(stock::follow(Arc::clone(&fleet), idx, config.connect_timeout, outbox));
            } else {
                tasks.spawn(subscriber::follow(Arc::clone(&fleet), idx, config.connect_timeout, outbox));
            }
        }
        tasks.spawn(vocabulary::fetch(Arc::clone(&fleet), config.connect_timeout, reports));
        tasks.spawn(tracker::track(Arc::clone(&fleet), inbox));
        let indexed = Arc::clone(&fleet);
        tasks.spawn_blocking(move || indexer::index(&indexed, writer, blocks_inbox, WORKER_BLOCKS_MAX));
        fleet
    }

    /// Returns the fleet as it is at this moment.
    pub fn view(&self) -> Arc<FleetView> {
        self.view.load_full()
    }

    /// Returns the readers' side of the prefix index.
    pub fn index(&self) -> &PrefixIndex {
        &self.index
    }

    /// Returns what is known of a worker's blocks as a whole.
    pub fn blocks(&self, worker: WorkerIdx) -> &BlockView {
        &self.blocks[worker.0 as usize]
    }

    /// Returns the URL of a worker.
    pub fn url(&self, worker: WorkerIdx) -> &Url {
        &self.urls[worker.0 as usize]
    }

    /// Returns the stock server that a worker is; absent for a Warmpath worker.
    pub fn stock(&self, worker: WorkerIdx) -> Option<&Arc<Stock>> {
        self.stock[worker.0 as usize].as_ref()
    }

    /// Returns the vocabularies that the operator gives.
    pub fn given(&self) -> &[Given] {
        &self.given
    }

    /// Returns what is needed to tokenize for a model, if it has been given or fetched.
    pub fn vocabulary(&self, key: &VocabularyKey) -> Option<VocabularyState> {
        let given = self.given.iter().find(|given| VocabularyKey::of(&given.model) == *key);
        let ready = |given: &Given| VocabularyState::Ready(Arc::clone(&given.vocabulary));
        given.map(ready).or_else(|| self.vocabularies.load().get(key).cloned())
    }

    /// Returns all vocabularies that are wanted, and how far they are.
    pub fn vocabularies(&self) -> Arc<Vocabularies> {
        self.vocabularies.load_full()
    }

    /// Returns how long a worker has not been heard; absent if it never was.
    pub fn age(&self, worker: WorkerIdx) -> Option<Duration> {
        let heard_ms = self.heard_ms[worker.0 as usize].load(Ordering::Relaxed);
        (heard_ms > 0).then(|| self.started.elapsed().saturating_sub(Duration::from_millis(heard_ms)))
    }

    /// Returns how many claims the index has dropped for its memory limit.
    pub fn n_shed(&self) -> u64 {
        self.n_shed.load(Ordering::Relaxed)
    }

    /// Returns the books of what was sent.
    pub fn books(&self) -> MutexGuard<'_, Dispatch> {
        self.books.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Chooses a worker and books the request there until the booking is dropped.
    ///
    /// Errors: [`NoWorker`], with the reasons.
    pub fn dispatch(self: &Arc<Self>, view: &FleetView, ask: &Ask<'_>) -> Result<(Decision, Booking), NoWorker> {
        let (decision, ticket) = self.books().choose(view, ask, &mut rand::rng())?;
        let booking = Booking { fleet: Arc::clone(self), worker: decision.worker, ticket: Some(ticket), visit: None };
        Ok((decision, booking))
    }

    /// Returns how soon the workers of `model`, or all of them, can start one more request.
    pub fn relief(&self, model: Option<&ModelInfo>) -> Relief {
        self.books().relief(&self.view(), model, Instant::now())
    }

    /// Returns why no client should be sent here yet, or `None` where the fleet can serve.
    pub fn unready(&self) -> Option<String> {
        let view = self.view();
        let now = Instant::now();
        let is_connecting = |worker: &Arc<WorkerView>| worker.link == Link::Connecting;
        let reasons: Vec<_> = view.workers.iter().filter_map(|worker| worker.unavailable(now)).collect();
        if reasons.len() == view.workers.len() {
            let listed: Vec<_> = view
                .workers
                .iter()
                .zip(&reasons)
                .map(|(worker, why)| format!("{} is {}", worker.name, why.label()))
                .collect();
            return Some(format!("no worker can take requests: {}", listed.join(", ")));
        }
        if view.workers.iter().any(is_connecting) {
            return Some("some workers have not been tried yet".to_owned());
        }
        let vocabularies = self.vocabularies.load();
        let wanted = vocabulary::wanted(self, &view);
        let is_pending = |key| !matches!(vocabularies.get(key), Some(state) if !state.is_pending());
        wanted.iter().any(is_pending).then(|| "a vocabulary is being fetched".to_owned())
    }

    fn heard(&self, worker: WorkerIdx) {
        let elapsed_ms = u64::try_from(self.started.elapsed().as_millis()).unwrap_or(u64::MAX);
        self.heard_ms[worker.0 as usize].store(elapsed_ms.max(1), Ordering::Relaxed);
    }
}

/// Keeps a request booked on its worker until it is dropped.
pub struct Booking {
    fleet: Arc<Fleet>,
    worker: WorkerIdx,
    ticket: Option<Ticket>,
    /// Is what becomes of it, where the worker is a stock server.
    visit: Option<Visit>,
}

impl Booking {
    /// Records that the worker has answered.
    pub fn succeeded(&self) {
        self.fleet.books().succeeded(self.worker);
    }

    /// Watches what becomes of the request, if the worker is a stock server.
    pub fn watch(&mut self, request_id: &RequestId, sending: impl FnOnce() -> Sending) {
        if let Some(stock) = self.fleet.stock(self.worker) {
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

    /// Records that the worker has failed the request.
    pub fn failed(&self, failure: Failure) {
        if let Some(visit) = &self.visit {
            visit.failed(failure);
        }
        self.fleet.books().failed(self.worker, failure, Instant::now());
    }
}

impl Drop for Booking {
    fn drop(&mut self) {
        if let Some(ticket) = self.ticket.take() {
            self.fleet.books().ended(ticket);
        }
    }
}

fn worker_idx(idx: usize) -> WorkerIdx {
    WorkerIdx(u32::try_from(idx).expect("the configuration bounds the number of workers"))
}

fn unheard(idx: usize, address: &WorkerAddress) -> Arc<WorkerView> {
    Arc::new(WorkerView {
        idx: worker_idx(idx),
        name: address.url.as_str().trim_end_matches('/').to_owned(),
        uid: None,
        model: None,
        load: Default::default(),
        link: Link::Connecting,
        excluded: None,
        n_blocks: 0,
        stock: (address.api == WorkerApi::OpenAi).then_some(Footing::Load),
    })
}

/// Is what the followers of workers and the vocabulary task tell the tracker.
pub enum Report {
    /// A worker shows a snapshot, of which model and load have come.
    Opened {
        /// Names the worker.
        worker: WorkerIdx,
        /// Is what has come.
        new: Box<warmpath_router_core::follower::NewWorker>,
    },
    /// A stock server was found.
    Found {
        /// Names the worker.
        worker: WorkerIdx,
        /// Is what it says of itself.
        declared: Declared,
    },
    /// A stock server counts tokens otherwise than the vocabulary that it was taken to have.
    Differs {
        /// Names the worker.
        worker: WorkerIdx,
    },
    /// A worker's stream goes on where it was lost.
    Resumed {
        /// Names the worker.
        worker: WorkerIdx,
    },
    /// A change of a worker's load.
    Update {
        /// Names the worker.
        worker: WorkerIdx,
        /// Lists the requests that it has counted in its load.
        accepted: Vec<RequestId>,
        /// Is the new load, where it changed.
        load: Option<warmpath_common::summary::Load>,
    },
    /// A worker's stream has ended; the worker may be well.
    Lost {
        /// Names the worker.
        worker: WorkerIdx,
    },
    /// A worker cannot be reached, or is not ready.
    Unreachable {
        /// Names the worker.
        worker: WorkerIdx,
    },
    /// A vocabulary was fetched and compared with what the workers declare.
    Vocabulary,
}

/// Returns a request id, for a client that gave none.
pub fn fresh_request_id() -> RequestId {
    RequestId::new(&uuid::Uuid::new_v4().to_string()).expect("a UUID is visible ASCII")
}
