//! A simulated router process: the production fleet, tracker, ledger and summary readers, driven in virtual time.
//!
//! The tasks of a real router only wait and forward; here the world makes the same calls in the same order.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::watch;
use warmpath_common::summary::Stamp;
use warmpath_router::config::{
    FleetConfig, SILENT_HEARTBEATS_MAX, SUMMARY_IDLE_MAX, TrialConfig, WorkerAddress, WorkerApi,
};
use warmpath_router::fleet::client::Clients;
use warmpath_router::fleet::members::Member;
use warmpath_router::fleet::subscriber::ReconnectPause;
use warmpath_router::fleet::tracker::{StaleReport, Tracker};
use warmpath_router::fleet::{Fleet, TrackerMessage};
use warmpath_router::metrics::Metrics;
use warmpath_router_core::WorkerIdx;
use warmpath_router_core::fleet::membership::{Membership, MembershipOptions};
use warmpath_router_core::fleet::summary_reader::SummaryReader;
use warmpath_router_core::fleet::summary_stream::{SilenceWatch, StreamLimits, SummaryStream};
use warmpath_router_core::ledger::LedgerOptions;
use warmpath_router_core::overload::retry::{BudgetOptions, RetryBudget};

/// Limit on the frames of a stream: low, so that a fault can exceed it.
pub const FRAMES_PER_S_MAX: u32 = 600;
/// Most blocks of a worker.
pub const BLOCKS_MAX: usize = 400;
/// Most memory of the index. Units: bytes.
pub const INDEX_BYTES_MAX: usize = 16 << 20;
/// Limits on every stream.
pub const STREAM_LIMITS: StreamLimits = StreamLimits {
    frames_per_s_max: FRAMES_PER_S_MAX,
    update_bytes_per_s_max: 1 << 20,
    snapshot_timeout: Duration::from_secs(5),
};
/// Time for which a worker that discovery does not list keeps its index, and for which a free index is not reused.
pub const LINGER: Duration = Duration::from_secs(2);

/// A worker's blocks in the router's index.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Shown {
    /// The blocks at this position.
    At(Stamp),
    /// Blocks of a stream that the network has damaged.
    Damaged,
    /// No blocks.
    Nothing,
}

/// A report that waits for the tracker.
pub struct Report {
    /// The report.
    pub message: TrackerMessage,
    /// The worker, and its blocks in the index once the report is applied; `None` if they stay.
    pub shows: Option<(WorkerIdx, Shown)>,
    /// The boot whose model the report declares.
    pub declares: Option<(WorkerIdx, Stamp)>,
}

impl Report {
    /// Returns a report that leaves the index as it is.
    pub fn plain(message: TrackerMessage) -> Self {
        Self { message, shows: None, declares: None }
    }
}

/// A router's end of a worker's streams.
pub struct Subscription {
    /// Host of the worker.
    pub host: usize,
    /// Reader of all streams.
    pub reader: SummaryReader,
    /// Notices that the view cannot be trusted.
    pub stale_reports: watch::Receiver<Option<StaleReport>>,
    /// Pause before the next stream.
    pub pause: ReconnectPause,
    /// Number of attempts to open a stream.
    pub attempt: u64,
    /// Position of the view of which the reader asked for the continuation.
    pub after: Option<Stamp>,
    /// Time of the last attempt.
    pub opened: Instant,
    /// Open stream.
    pub stream: Option<SummaryStream>,
    /// Timeout for its silence.
    pub watch: SilenceWatch,
    /// Whether a check of the silence is scheduled.
    pub is_watched: bool,
    /// Longest silence of the open stream.
    pub silence_max: Duration,
    /// Time of the last frame.
    pub last_frame: Option<Instant>,
    /// Position after the frames that were read.
    pub position: Shown,
}

/// One boot of a router's process.
pub struct Router {
    /// The fleet, as requests see it.
    pub fleet: Arc<Fleet>,
    /// Owner of the view and the index.
    pub tracker: Tracker,
    /// Assignment of indexes to hosts.
    pub membership: Membership<usize>,
    /// Streams of the workers in the fleet.
    pub subscriptions: BTreeMap<WorkerIdx, Subscription>,
    /// Reports that wait for the tracker.
    pub inbox: VecDeque<Report>,
    /// Whether the tracker is scheduled.
    pub is_tracking: bool,
    /// Blocks of each worker in the index.
    pub shown: BTreeMap<WorkerIdx, Shown>,
    /// Boot whose model the view shows.
    pub declared: BTreeMap<WorkerIdx, Stamp>,
    /// Retry budget of all requests.
    pub budget: RetryBudget,
}

impl Router {
    /// Returns a router that has just started.
    pub fn new(clients: &Clients, seed: u64, now: Instant) -> Self {
        let membership = MembershipOptions { workers_max: 64, linger: LINGER, vacancy: LINGER };
        let worker_wait_max = Some(Duration::from_millis(500));
        let config = FleetConfig {
            hosts: Vec::new(),
            membership,
            vocabularies: Vec::new(),
            index_bytes_max: INDEX_BYTES_MAX,
            dispatch: LedgerOptions { worker_wait_max, ..LedgerOptions::default() },
            first_contact_timeout: Duration::from_secs(1),
            connect_timeout: Duration::from_secs(1),
            worker_keys: Vec::new(),
            token_file: None,
            tls: Default::default(),
            trial: TrialConfig::default(),
        };
        let (fleet, tracker, _) = Fleet::new(&config, Vec::new(), clients.clone(), Arc::new(Metrics::new()), seed);
        Self {
            fleet,
            tracker,
            membership: Membership::new(membership),
            subscriptions: BTreeMap::new(),
            inbox: VecDeque::new(),
            is_tracking: false,
            shown: BTreeMap::new(),
            declared: BTreeMap::new(),
            budget: RetryBudget::new(BudgetOptions::default(), now),
        }
    }

    /// Adds the worker of a host.
    pub fn join(&mut self, (worker, host): (WorkerIdx, usize), clients: &Clients, now: Instant) {
        let url = format!("http://127.0.0.1:{}", 1000 + host).parse().expect("a URL");
        let address = WorkerAddress { url, api: WorkerApi::Warmpath, certified: None };
        let member = Member::new(worker, &address, clients.of(&address));
        self.fleet.seat(worker, &member);
        self.inbox.push_back(Report {
            shows: Some((worker, Shown::Nothing)),
            ..Report::plain(TrackerMessage::Joined { worker })
        });
        let subscription = Subscription {
            host,
            reader: SummaryReader::new(BLOCKS_MAX),
            stale_reports: member.stale_reports.subscribe(),
            pause: ReconnectPause::default(),
            attempt: 0,
            after: None,
            opened: now,
            stream: None,
            watch: watch(SUMMARY_IDLE_MAX, now),
            is_watched: false,
            silence_max: SUMMARY_IDLE_MAX,
            last_frame: None,
            position: Shown::Nothing,
        };
        self.subscriptions.insert(worker, subscription);
    }

    /// Returns whether a frame of any other worker has arrived within a time.
    pub fn received_from_another(&self, worker: WorkerIdx, within: Duration, now: Instant) -> bool {
        let is_recent = |subscription: &Subscription| subscription.last_frame.is_some_and(|at| now - at <= within);
        self.subscriptions.iter().any(|(idx, subscription)| *idx != worker && is_recent(subscription))
    }
}

/// Returns the watch over a silence that begins now.
pub fn watch(silence_max: Duration, now: Instant) -> SilenceWatch {
    SilenceWatch::new(silence_max, SILENT_HEARTBEATS_MAX, SUMMARY_IDLE_MAX, now)
}
