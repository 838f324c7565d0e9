//! The fleet: the state that requests read at once, and the tasks that keep it up to date.
//!
//! The one `members` task adds and removes workers. Each Warmpath worker has a `subscriber` task, and each other server
//! a `stock` task. The one `tracker` thread owns the view and the prefix index and publishes them. The one `vocabulary`
//! task fetches what is needed to tokenize. Requests never wait for any of them.
//!
//! Not here: the decision (`warmpath-router-core`), the path of a request (`lifecycle`).

pub mod client;
pub mod hosts;
pub mod media_layouts;
pub mod members;
pub mod prefetch;
mod reports;
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
use warmpath_common::model::ModelInfo;
use warmpath_router_core::WorkerIdx;
use warmpath_router_core::fleet::{ConnectionState, FleetView, WorkerView};
use warmpath_router_core::hosts::{HostLink, HostView, HostsView};
use warmpath_router_core::index::{IndexOptions, IndexWriter, PrefixIndex};
use warmpath_router_core::ledger::health::FailedAttempt;
use warmpath_router_core::ledger::{Ledger, NoWorker, Ticket};
use warmpath_router_core::overload::admission::CapacityForecast;
use warmpath_router_core::overload::retry::{Terms, WorkerFailure};
use warmpath_router_core::routing::prefetch::FleetChange;
use warmpath_router_core::stock::SentRequest;

use self::client::Clients;
use self::hosts::Hosts;
use self::media_layouts::WantedLayout;
use self::members::Member;
pub use self::reports::{FollowError, FollowErrorKind, TrackerMessage};
use self::stock::ServerRequest;
use self::subscriber::FleetEvents;
use self::tracker::Tracker;
use self::vocabulary::{Vocabularies, VocabularyKey, VocabularyState};
use self::vocabulary_files::LoadedVocabulary;
use crate::config::{FIRST_VOCABULARIES_TIMEOUT, FleetConfig, REPORTS_QUEUED_MAX, TrialConfig};
use crate::discovery::{Discovered, Source};
use crate::metrics::Metrics;

/// The fleet, shared by all requests and tasks.
pub struct Fleet {
    /// Worker at each index. A worker that has left stays until another one takes its index.
    members: ArcSwap<Vec<Arc<Member>>>,
    given: Vec<LoadedVocabulary>,
    clients: Clients,
    view: ArcSwap<FleetView>,
    vocabularies: ArcSwap<Vocabularies>,
    index: Arc<PrefixIndex>,
    /// Requests in flight and the workers' health. The lock is held for one choice or one entry, never across `.await`.
    ledger: Mutex<Ledger>,
    n_shed: AtomicU64,
    started: Instant,
    /// Whether all workers of the first discovery have been contacted. Sent again when a worker joins, leaves or serves
    /// another model.
    contacted: watch::Sender<bool>,
    /// Longest time after the start for which requests wait until those workers have been contacted.
    first_contact_timeout: Duration,
    /// Whether the router was ready once. From then on a change in the fleet does not make it unready.
    was_ready: AtomicBool,
    models_changed: Notify,
    /// Sent after each change of the vocabularies.
    vocabularies_settled: watch::Sender<()>,
    /// Channel for workers that join or drain; `None` if workers exchange no KV state.
    fleet_changes: mpsc::Sender<FleetChange>,
    /// Hosts, and the requests that wait for their models.
    hosts: Hosts,
    /// Sent after each report of a host.
    host_reports: watch::Sender<()>,
    /// Channel for questions for the layouts of media.
    layouts_wanted: mpsc::Sender<WantedLayout>,
    trial: TrialConfig,
    metrics: Arc<Metrics>,
}

/// Queues that a fleet's tasks read.
pub struct TaskQueues {
    fleet_changes: mpsc::Receiver<FleetChange>,
    layouts_wanted: mpsc::Receiver<WantedLayout>,
}

impl Fleet {
    /// Returns a fleet without workers, and starts the tasks that add the workers in `found` and follow them.
    pub fn start(
        config: &FleetConfig,
        vocabularies: Vec<LoadedVocabulary>,
        found: Arc<Discovered>,
        clients: Clients,
        metrics: Arc<Metrics>,
        tasks: &mut JoinSet<()>,
    ) -> Arc<Self> {
        let (fleet, tracker, queues) = Self::new(config, vocabularies, clients, metrics, rand::random());
        let (reports, inbox) = mpsc::channel(REPORTS_QUEUED_MAX);
        // The first contact includes the first summary of each host.
        for host_idx in 0..config.hosts.len() {
            let (fleet, source) = (Arc::clone(&fleet), Source::of(&found));
            tasks.spawn(hosts::follow(fleet, host_idx, source, FleetEvents(reports.clone())));
        }
        tasks.spawn(members::keep(Arc::clone(&fleet), found, config.clone(), FleetEvents(reports.clone())));
        tasks.spawn(vocabulary::fetch(Arc::clone(&fleet), reports));
        tasks.spawn(media_layouts::answer(Arc::downgrade(&fleet), queues.layouts_wanted));
        // Without a sender it ends at once.
        tasks.spawn(prefetch::follow(Arc::clone(&fleet), queues.fleet_changes));
        tasks.spawn_blocking(move || tracker::track(tracker, inbox));
        fleet
    }

    /// Returns a fleet without workers, its tracker, and the queues of its tasks, none of which has been started.
    ///
    /// `seed` keeps workers from choosing block keys that collide in the index.
    pub fn new(
        config: &FleetConfig,
        given: Vec<LoadedVocabulary>,
        clients: Clients,
        metrics: Arc<Metrics>,
        seed: u64,
    ) -> (Arc<Self>, Tracker, TaskQueues) {
        let (fleet_changes, turned) = mpsc::channel(prefetch::FLEET_CHANGES_QUEUED_MAX);
        let (layouts_wanted, wanted) = mpsc::channel(media_layouts::LAYOUTS_WANTED_MAX);
        let writer = IndexWriter::new(IndexOptions { bytes_max: config.index_bytes_max, seed });
        let hosts = Hosts::new(&config.hosts, &clients);
        let fleet = Arc::new(Self {
            members: ArcSwap::default(),
            given,
            view: ArcSwap::from_pointee(FleetView { hosts: Arc::new(hosts.first_view()), ..FleetView::default() }),
            hosts,
            host_reports: watch::Sender::new(()),
            clients,
            vocabularies: ArcSwap::default(),
            index: writer.reader(),
            ledger: Mutex::new(Ledger::new(config.dispatch)),
            n_shed: AtomicU64::new(0),
            started: Instant::now(),
            contacted: watch::Sender::new(false),
            first_contact_timeout: config.first_contact_timeout,
            was_ready: AtomicBool::new(false),
            models_changed: Notify::new(),
            vocabularies_settled: watch::Sender::new(()),
            fleet_changes,
            layouts_wanted,
            trial: config.trial.clone(),
            metrics,
        });
        let tracker = Tracker::new(Arc::clone(&fleet), writer);
        (fleet, tracker, TaskQueues { fleet_changes: turned, layouts_wanted: wanted })
    }

    /// Waits until all workers of the first discovery have been contacted and their vocabularies are loaded, for a
    /// limited time after the start.
    ///
    /// Without this wait a request could be refused although a worker for it exists, or be sent to a worker that does
    /// not know its conversation.
    pub async fn first_contact(&self) {
        let left = |limit: Duration| limit.saturating_sub(self.started.elapsed());
        let is_over = left(self.first_contact_timeout.max(FIRST_VOCABULARIES_TIMEOUT)).is_zero();
        if is_over || self.was_ready.load(Ordering::Relaxed) {
            return;
        }
        let mut contacted = self.contacted.subscribe();
        // The request continues after the contact and after the timeout alike. The senders live as long as the fleet.
        let contact = contacted.wait_for(|contacted| *contacted);
        let _ = tokio::time::timeout(left(self.first_contact_timeout), contact).await;
        let mut settled = self.vocabularies_settled.subscribe();
        let all = settled.wait_for(|()| !self.awaits_vocabularies(&self.view()));
        let _ = tokio::time::timeout(left(FIRST_VOCABULARIES_TIMEOUT), all).await;
    }

    /// Returns a receiver for changes from now on: workers that join, leave or serve another model.
    pub fn changes(&self) -> Changes {
        Changes(self.contacted.subscribe())
    }

    /// Returns a receiver of the reports of hosts from now on.
    pub fn host_reports(&self) -> watch::Receiver<()> {
        self.host_reports.subscribe()
    }

    /// Returns the hosts.
    pub fn hosts(&self) -> &Hosts {
        &self.hosts
    }

    /// Opens the stream of the worker with this URL at once if it is waiting to be opened again.
    fn reconnect(&self, url: &str) {
        let members = self.members.load();
        members.iter().filter(|member| member.name() == url).for_each(|member| member.reconnect.notify_one());
    }

    /// Returns the current view of the fleet.
    pub fn view(&self) -> Arc<FleetView> {
        self.view.load_full()
    }

    /// Returns the readers' side of the prefix index.
    pub fn index(&self) -> &PrefixIndex {
        &self.index
    }

    /// Returns the worker at an index.
    pub fn member(&self, worker: WorkerIdx) -> Arc<Member> {
        Arc::clone(&self.members.load()[worker.0 as usize])
    }

    /// Puts a worker at an index. Only the owner of the membership calls this, and it leaves no index out.
    pub fn seat(&self, worker: WorkerIdx, member: &Arc<Member>) {
        let mut members = (*self.members.load_full()).clone();
        match members.get_mut(worker.0 as usize) {
            Some(place) => *place = Arc::clone(member),
            None => members.push(Arc::clone(member)),
        }
        self.members.store(Arc::new(members));
    }

    /// Returns the vocabularies given by the operator.
    pub fn given(&self) -> &[LoadedVocabulary] {
        &self.given
    }

    /// Returns the vocabulary of a model, if it was given or fetched.
    pub fn vocabulary(&self, model: &ModelInfo) -> Option<VocabularyState> {
        let given = self.given.iter().find(|given| given.cuts(model));
        let ready = |given: &LoadedVocabulary| VocabularyState::Ready(Arc::clone(&given.vocabulary));
        given.map(ready).or_else(|| self.vocabularies.load().get(&VocabularyKey::of(model)).cloned())
    }

    /// Returns all wanted vocabularies and their states.
    pub fn vocabularies(&self) -> Arc<Vocabularies> {
        self.vocabularies.load_full()
    }

    /// Returns the time since a worker's last message; `None` if there was none.
    pub fn age(&self, member: &Member) -> Option<Duration> {
        member.last_message().map(|at| self.started.elapsed().saturating_sub(at))
    }

    /// Returns the number of entries the index has dropped for its memory limit.
    pub fn n_shed(&self) -> u64 {
        self.n_shed.load(Ordering::Relaxed)
    }

    /// Returns the requests in flight and the workers' health.
    pub fn ledger(&self) -> MutexGuard<'_, Ledger> {
        self.ledger.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Keeps the request of `ticket` recorded as in flight at `worker` until the result is dropped.
    pub fn in_flight(self: &Arc<Self>, worker: WorkerIdx, ticket: Ticket) -> InFlightGuard {
        InFlightGuard { fleet: Arc::clone(self), worker, ticket: Some(ticket), server_request: None }
    }

    /// Returns when the workers of `model`, or of all models, can start one more request.
    pub fn capacity_forecast(&self, model: Option<&ModelInfo>) -> CapacityForecast {
        self.ledger().capacity_forecast(&self.view(), model, Instant::now())
    }

    fn record_message(&self, member: &Member) {
        member.record_message(self.started.elapsed());
    }

    /// Returns whether any other worker has sent a message within this time.
    fn received_from_another(&self, worker: WorkerIdx, within: Duration) -> bool {
        let has_spoken = |idx| self.age(&self.member(idx)).is_some_and(|age| age <= within);
        self.view().workers.iter().any(|other| other.idx != worker && has_spoken(other.idx))
    }

    /// Returns the reason why the router is not ready; `None` if it is.
    pub fn unready(&self) -> Option<Unready> {
        let view = self.view();
        let now = Instant::now();
        let hosts_serve = view.hosts.can_serve(now);
        if view.workers.is_empty() && !hosts_serve {
            return Some(if view.hosts.hosts.is_empty() {
                Unready::plain("no worker has been found")
            } else {
                no_host(&view.hosts)
            });
        }
        let reasons: Vec<_> = view.workers.iter().filter_map(|worker| worker.unavailable(now)).collect();
        if reasons.len() == view.workers.len() && !hosts_serve {
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
        let unready = self.startup_blocker(&view);
        self.was_ready.store(unready.is_none(), Ordering::Relaxed);
        unready
    }

    /// Returns whether all that the router can do with requests is to hold them: no worker can take any, and one is
    /// loading its model. Before the first contact this is not known, so it returns false.
    ///
    /// Then the router is ready for clients. A worker that cannot be reached does not count, because another router may
    /// reach it.
    pub fn can_only_hold(&self) -> bool {
        let view = self.view();
        let loads =
            |worker: &Arc<WorkerView>| !worker.is_leaving && matches!(worker.link, ConnectionState::Loading { .. });
        let can_only_hold =
            !self.is_contacting() && view.workers.iter().any(loads) && view.is_awaited(None, None, Instant::now());
        if can_only_hold {
            // Then a vocabulary that is fetched once a worker is ready does not make it unready.
            self.was_ready.store(true, Ordering::Relaxed);
        }
        can_only_hold
    }

    /// Returns whether workers of the first discovery are still being contacted for the first time.
    fn is_contacting(&self) -> bool {
        !*self.contacted.borrow() && self.started.elapsed() < self.first_contact_timeout
    }

    /// Returns the reason why a router that has just started is not ready yet.
    fn startup_blocker(&self, view: &FleetView) -> Option<Unready> {
        // Hosts may start workers at any time.
        let is_untried =
            |worker: &Arc<WorkerView>| worker.link == ConnectionState::Connecting && !view.hosts.runs(&worker.name);
        if self.is_contacting() || view.workers.iter().any(is_untried) {
            return Some(Unready::plain("some workers have not been tried yet"));
        }
        self.awaits_vocabularies(view).then(|| Unready::plain("a vocabulary is being fetched"))
    }

    /// Returns whether the first download of a vocabulary is in progress.
    fn awaits_vocabularies(&self, view: &FleetView) -> bool {
        let vocabularies = self.vocabularies.load();
        let is_pending = |key| !matches!(vocabularies.get(key), Some(state) if !state.is_pending());
        vocabulary::wanted(self, view).iter().any(is_pending)
    }
}

/// Returns the reason why the hosts of a fleet without workers serve nothing.
fn no_host(hosts: &HostsView) -> Unready {
    let state = |host: &HostView| match (&host.summary, host.link) {
        (None, _) => "has sent no summary yet",
        (Some(_), HostLink::Lost { .. }) => "cannot be reached",
        (Some(_), _) => "has no model that it can load",
    };
    let listed: Vec<_> = hosts.hosts.iter().map(|host| format!("{} {}", host.name, state(host))).collect();
    let mut states: Vec<_> = hosts.hosts.iter().map(|host| format!("a host {}", state(host))).collect();
    states.dedup();
    let reason = |states: Vec<String>| format!("no model can be served: {}", states.join(", "));
    Unready { for_clients: reason(states), for_operators: reason(listed) }
}

/// A receiver for changes in the fleet: workers that join, leave or serve another model.
pub struct Changes(watch::Receiver<bool>);

impl Changes {
    /// Returns whether there was a change since the last call.
    pub fn take(&mut self) -> bool {
        let is_new = self.0.has_changed().unwrap_or(false);
        self.0.mark_unchanged();
        is_new
    }

    /// Waits for the next change.
    pub async fn wait(&mut self) {
        // A fleet that has ended has no further changes.
        if self.0.changed().await.is_err() {
            std::future::pending::<()>().await;
        }
    }
}

/// Reason why the router is not ready.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unready {
    /// Text for clients, without any worker's address.
    pub for_clients: String,
    /// Text for operators.
    pub for_operators: String,
}

impl Unready {
    /// Returns a reason with one text for clients and operators.
    pub fn plain(reason: &str) -> Self {
        Self { for_clients: reason.to_owned(), for_operators: reason.to_owned() }
    }
}

/// A request that is recorded as in flight at its worker until this is dropped.
pub struct InFlightGuard {
    fleet: Arc<Fleet>,
    worker: WorkerIdx,
    ticket: Option<Ticket>,
    /// Progress of the request, if the worker is a stock server.
    server_request: Option<ServerRequest>,
}

impl InFlightGuard {
    /// Records that the worker completed the request, after these other workers had failed it.
    pub fn answered(&self, failures: &[FailedAttempt]) {
        self.fleet.ledger().health.answered(self.worker, failures, Instant::now());
    }

    /// Starts to track the request's progress, if the worker is a stock server.
    pub fn watch(&mut self, request_id: &RequestId, sending: impl FnOnce() -> SentRequest) {
        if let Some(stock) = &self.fleet.member(self.worker).stock {
            self.server_request = Some(ServerRequest::new(stock, &self.fleet.metrics, request_id, sending()));
        }
    }

    /// Returns whether the worker is a stock server.
    pub fn is_server_request(&self) -> bool {
        self.server_request.is_some()
    }

    /// Returns the tracked progress, if the worker is a stock server.
    pub fn server_request(&mut self) -> Option<&mut ServerRequest> {
        self.server_request.as_mut()
    }

    /// Records that the worker refused the request, on these terms.
    pub fn refused(&self, failure: WorkerFailure, terms: Terms<'_>) {
        // All models and names of a Warmpath worker share its slots.
        let model_name = terms.model_name.filter(|_| self.server_request.is_some());
        let terms = Terms { model_name, ..terms };
        if let Some(server_request) = &self.server_request {
            server_request.failed(failure);
        }
        self.fleet.ledger().health.refused(self.worker, failure, terms, Instant::now());
    }

    /// Records that the worker failed the request.
    pub fn failed(&self, failure: WorkerFailure) {
        if let Some(server_request) = &self.server_request {
            server_request.failed(failure);
        }
        self.fleet.ledger().health.failed(self.worker, failure, Instant::now());
    }
}

impl Drop for InFlightGuard {
    fn drop(&mut self) {
        if let Some(ticket) = self.ticket.take() {
            self.fleet.ledger().ended(ticket);
        }
    }
}

/// Returns a new request id, for a client that sent none.
pub fn fresh_request_id() -> RequestId {
    RequestId::new(&uuid::Uuid::new_v4().to_string()).expect("a UUID is visible ASCII")
}
