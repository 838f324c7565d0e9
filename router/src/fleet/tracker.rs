//! The tracker: the one thread that owns the fleet's view and the prefix index, and publishes them.
//!
//! Reports arrive over one bounded channel, so they are applied in order, and a load is never visible without its
//! blocks. A burst is applied as a whole and published once. Only workers that changed get a new value. Reports of a
//! worker that has left are dropped.
//!
//! The thread only receives reports; [`Tracker`] applies them, and takes the time from its caller, so that the
//! simulation drives it in virtual time.
//!
//! Not here: reading streams (`subscriber`), the meaning of a view (`warmpath-router-core`).

mod blocks;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use tokio::sync::mpsc;
use warmpath_common::model::Fingerprint;
use warmpath_common::summary::{Change, Digest, Load, Stamp};
use warmpath_router_core::WorkerIdx;
use warmpath_router_core::fleet::compatibility::{self, Declaration, DuplicateWorker, Mismatch};
use warmpath_router_core::fleet::summary_reader::NewWorker;
use warmpath_router_core::fleet::{ConnectionState, FleetView, KnownBlocks, WorkerView};
use warmpath_router_core::hosts::agreement::OtherFile;
use warmpath_router_core::hosts::{HostView, HostsView};
use warmpath_router_core::index::IndexWriter;
use warmpath_router_core::routing::prefetch::FleetChange;
use warmpath_router_core::stock::{ServerInfo, TokenizerSource};

use self::blocks::{Arrived, Blocks};
pub use self::blocks::{StaleReport, StaleReports};
use super::stock::StockServers;
use super::vocabulary::VocabularyKey;
use super::{Fleet, FollowError, FollowErrorKind, TrackerMessage, Vocabularies};
use crate::config::WORKER_BLOCKS_MAX;

/// Most reports that are applied before the view is published. Source: own choice: they share one copy of the view.
const BATCH_MAX: usize = 256;

/// Most names of a stock server's models in one line of the log.
///
/// Source: own choice: a readable line.
const NAMES_LOGGED_MAX: usize = 16;

/// Applies reports until every sender is gone.
pub fn track(mut tracker: Tracker, mut inbox: mpsc::Receiver<TrackerMessage>) {
    let mut batch = Vec::with_capacity(BATCH_MAX);
    loop {
        if tracker.is_busy() {
            batch.extend(std::iter::from_fn(|| inbox.try_recv().ok()).take(BATCH_MAX));
        } else if inbox.blocking_recv_many(&mut batch, BATCH_MAX) == 0 {
            return;
        }
        let now = Instant::now();
        batch.drain(..).for_each(|report| tracker.take(report, now));
        tracker.take_in_slice(now);
        tracker.publish(now);
    }
}

/// A worker in the fleet.
struct Tracked {
    view: Arc<WorkerView>,
    /// Process and boot epoch at the worker's last message.
    life: Option<Stamp>,
    /// The vocabulary refused for this boot epoch, and the reason; a restarted worker may serve a better one.
    refused: Option<(VocabularyKey, Mismatch)>,
}

impl Tracked {
    fn view_mut(&mut self) -> &mut WorkerView {
        Arc::make_mut(&mut self.view)
    }

    /// Returns what is wrong with the vocabulary that the worker serves.
    fn vocabulary_fault(&self, vocabularies: &Vocabularies) -> Option<Mismatch> {
        let key = VocabularyKey::of(self.view.declared_model()?);
        let refused = self.refused.as_ref().filter(|(refused, _)| key == *refused);
        refused.map(|(_, reason)| reason).or_else(|| vocabularies.get(&key)?.disagreement()).cloned()
    }

    /// Returns the worker's declaration; `None` if the worker is not connected.
    fn declaration(&self, fault: Option<&Mismatch>) -> Option<Declaration<'_>> {
        let model = self.view.declared_model()?;
        // A worker that takes no requests must not keep the name of its model from a worker that does. A stock server's
        // model is assumed from the other workers' models.
        let is_going = self.view.is_leaving || self.view.load.draining;
        let counts = fault.is_none() && !is_going && self.view.stock.is_none();
        Some(Declaration { model, boot_epoch: self.life.map(|life| life.boot_epoch), counts })
    }
}

/// Owner of a fleet's view and of its prefix index.
pub struct Tracker {
    fleet: Arc<Fleet>,
    blocks: Blocks,
    workers: BTreeMap<WorkerIdx, Tracked>,
    stock: StockServers,
    /// Workers whose loss has not been announced yet.
    lost: Vec<WorkerIdx>,
    /// Workers that have joined empty or drain, and have not been announced as such yet.
    fleet_changes: Vec<FleetChange>,
    /// Whether workers, their models, or which of them take requests may have changed since they were last checked for
    /// compatibility.
    models_changed: bool,
    hosts: Arc<HostsView>,
    /// Models whose files differ from the fleet's, as far as they were logged.
    other_files: Vec<OtherFile>,
    /// Whether a host has reported since the last view was published.
    hosts_reported: bool,
    /// Whether such a report may end the wait of requests.
    hosts_changed: bool,
    /// Whether all workers of the first discovery have joined.
    has_surveyed: bool,
}

impl Tracker {
    /// Returns the tracker of a fleet without workers.
    pub(super) fn new(fleet: Arc<Fleet>, writer: IndexWriter) -> Self {
        Self {
            stock: StockServers::new(&fleet),
            blocks: Blocks::new(writer, WORKER_BLOCKS_MAX),
            workers: BTreeMap::new(),
            lost: Vec::new(),
            fleet_changes: Vec::new(),
            models_changed: false,
            hosts: Arc::clone(&fleet.view().hosts),
            fleet,
            other_files: Vec::new(),
            hosts_reported: false,
            hosts_changed: false,
            has_surveyed: false,
        }
    }

    /// Returns whether a view is being inserted.
    pub fn is_busy(&self) -> bool {
        self.blocks.is_busy()
    }

    /// Applies a report, at once or when the view that it follows is in the index.
    pub fn take(&mut self, report: TrackerMessage, now: Instant) {
        if let Some(report) = self.blocks.pass(report) {
            self.apply(report, now);
        }
    }

    /// Inserts a slice of the views that are being inserted.
    pub fn take_in_slice(&mut self, now: Instant) {
        for Arrived { worker, behind } in self.blocks.take_in_slice() {
            self.fleet.ledger().stale_blocks.forget(worker);
            self.fleet.member(worker).stale_reports.settle();
            self.know_blocks(worker);
            if let Some(view) = self.view_mut(worker) {
                view.blocks.is_current = true;
                let is_new = view.blocks.n_blocks == 0 && !view.load.draining;
                self.fleet_changes.extend(is_new.then_some(FleetChange::Joined(worker)));
            }
            behind.into_iter().for_each(|report| self.take(report, now));
        }
    }

    fn apply(&mut self, report: TrackerMessage, now: Instant) {
        match report {
            TrackerMessage::Surveyed => self.has_surveyed = true,
            TrackerMessage::Joined { worker } => self.joined(worker, now),
            TrackerMessage::Leaving { worker } => self.leaving(worker),
            TrackerMessage::Stayed { worker } => self.stayed(worker),
            TrackerMessage::Left { worker } => self.left(worker),
            TrackerMessage::Opened { worker, new } => self.opened(worker, *new, now),
            TrackerMessage::Found { worker, declared } => self.found(worker, declared),
            TrackerMessage::Differs { worker, model } => self.differs(worker, model),
            TrackerMessage::Resumed { worker } => self.resumed(worker),
            TrackerMessage::Replaced { worker, runs } => self.blocks.begin(worker, runs),
            TrackerMessage::Update { worker, changes, load, digest } => self.update(worker, changes, load, digest, now),
            TrackerMessage::Lost { worker, reason } => self.lost(worker, reason, now),
            TrackerMessage::Unreachable { worker, trouble } => self.unreachable(worker, trouble, now),
            TrackerMessage::Host { host_idx, view } => self.host(host_idx, *view),
            TrackerMessage::Vocabulary => self.models_changed = true,
            TrackerMessage::Refused { worker, key, reason } => self.refused(worker, key, reason),
        }
    }

    fn host(&mut self, host_idx: usize, view: HostView) {
        self.hosts_reported = true;
        self.hosts_changed |= self.hosts.hosts.get(host_idx).is_none_or(|was| was.is_news(&view));
        let hosts = Arc::make_mut(&mut self.hosts);
        hosts.set(host_idx, view);
        let other_files = hosts.other_files(Instant::now());
        for other in other_files.iter().filter(|other| !self.other_files.contains(other)) {
            tracing::warn!(host = %hosts.hosts[other.host_idx].name, reason = %other, "a host's model is excluded");
        }
        self.other_files = other_files;
    }

    fn joined(&mut self, worker: WorkerIdx, now: Instant) {
        let member = self.fleet.member(worker);
        let view = Arc::new(WorkerView {
            idx: worker,
            name: member.name(),
            uid: None,
            boot_epoch: None,
            model: None,
            further: Vec::new(),
            awaited: Vec::new(),
            joined_at: now,
            load: Load::default(),
            measured_at: now,
            link: ConnectionState::Connecting,
            trouble: None,
            excluded: None,
            blocks: KnownBlocks::default(),
            stock: member.stock.as_ref().map(|_| TokenizerSource::Load),
            is_leaving: false,
        });
        tracing::info!(worker = %view.name, "worker joins");
        self.workers.insert(worker, Tracked { view, life: None, refused: None });
    }

    fn leaving(&mut self, worker: WorkerIdx) {
        let Some(tracked) = self.workers.get_mut(&worker) else { return };
        tracing::info!(worker = %tracked.view.name, "worker is leaving and gets no more requests");
        tracked.view_mut().is_leaving = true;
        self.models_changed = true;
    }

    fn stayed(&mut self, worker: WorkerIdx) {
        let Some(tracked) = self.workers.get_mut(&worker) else { return };
        tracing::info!(worker = %tracked.view.name, "worker stays in the fleet");
        tracked.view_mut().is_leaving = false;
        self.models_changed = true;
    }

    fn left(&mut self, worker: WorkerIdx) {
        self.blocks.remove(worker);
        let Some(Tracked { view, .. }) = self.workers.remove(&worker) else { return };
        tracing::info!(worker = %view.name, "worker has left");
        self.stock.left(worker);
        self.fleet.ledger().left(worker);
        self.fleet.metrics.forget_worker(&view.name);
        self.models_changed = true;
    }

    fn resumed(&mut self, worker: WorkerIdx) {
        if let Some(view) = self.view_mut(worker) {
            (view.link, view.trouble) = (ConnectionState::Live, None);
            view.blocks.is_current = true;
        }
    }

    fn opened(&mut self, worker: WorkerIdx, NewWorker { stamp, opening }: NewWorker, now: Instant) {
        let Some(tracked) = self.workers.get_mut(&worker) else { return };
        let was_life = tracked.life.replace(stamp);
        let same_life = was_life.is_some_and(|was| was.is_same_boot(stamp));
        tracked.refused.take_if(|_| !same_life);
        let view = tracked.view_mut();
        let was = view.link;
        let same_model = view.model.as_deref() == Some(&opening.model);
        if !same_model {
            view.model = Some(Arc::new(opening.model));
        }
        view.awaited.clear();
        (view.uid, view.boot_epoch) = (Some(stamp.worker_uid), Some(stamp.boot_epoch));
        view.record_load(opening.load, now);
        (view.link, view.trouble) = (ConnectionState::Live, None);
        let name = view.name.clone();
        self.models_changed |= !same_model || !same_life || was != ConnectionState::Live;
        self.fleet.ledger().health.reconnected(worker);
        tracing::info!(worker = %name, uid = %stamp.worker_uid, boot_epoch = stamp.boot_epoch, "worker is connected");
    }

    fn refused(&mut self, worker: WorkerIdx, key: VocabularyKey, reason: String) {
        let Some(tracked) = self.workers.get_mut(&worker) else { return };
        tracked.refused = Some((key, Mismatch::Refused { reason }));
        self.models_changed = true;
    }

    fn update(
        &mut self,
        worker: WorkerIdx,
        changes: Vec<Change>,
        load: Option<Load>,
        digest: Option<Digest>,
        now: Instant,
    ) {
        let n_filling = self.blocks.update(worker, &changes);
        let model = self.workers.get(&worker).and_then(|tracked| tracked.view.model.as_ref());
        let block_size_tokens = model.map_or(0, |model| model.block_size_tokens);
        if !changes.is_empty() {
            let mut ledger = self.fleet.ledger();
            ledger.recent_work.fill(worker, n_filling as u64 * u64::from(block_size_tokens));
            ledger.record_changes(worker, &changes, now);
        }
        if let Some(stale_report) = self.blocks.check(worker, digest) {
            self.fleet.member(worker).stale_reports.raise(stale_report);
        }
        self.know_blocks(worker);
        let Some(load) = load else { return };
        let Some(view) = self.view_mut(worker) else { return };
        let drains = load.draining && !view.load.draining;
        view.record_load(load, now);
        if drains {
            tracing::info!(worker = %view.name, "worker is draining");
            self.fleet_changes.push(FleetChange::Drains(worker));
            self.models_changed = true;
        }
    }

    fn view_mut(&mut self, worker: WorkerIdx) -> Option<&mut WorkerView> {
        self.workers.get_mut(&worker).map(Tracked::view_mut)
    }

    /// Publishes the number of a worker's blocks in the index, if it changed.
    fn know_blocks(&mut self, worker: WorkerIdx) {
        let Some(tracked) = self.workers.get_mut(&worker) else { return };
        let known = self.blocks.known(worker, tracked.view.blocks);
        if tracked.view.blocks != known {
            tracked.view_mut().blocks = known;
        }
    }

    fn lost(&mut self, worker: WorkerIdx, reason: Arc<str>, since: Instant) {
        let Some(view) = self.view_mut(worker) else { return };
        view.blocks.is_current = false;
        view.trouble = Some(reason);
        match view.link {
            ConnectionState::Live => view.link = ConnectionState::Stale { since },
            // The worker responds, but nothing that it sends can be read; or this machine lacks resources to connect.
            ConnectionState::Connecting => view.link = ConnectionState::Down { since },
            ConnectionState::Stale { .. }
            | ConnectionState::Down { .. }
            | ConnectionState::Refused { .. }
            | ConnectionState::Loading { .. } => {}
        }
    }

    /// Records that a worker cannot be reached. It has most likely lost its cache, and sends a new list when it
    /// returns.
    fn unreachable(&mut self, worker: WorkerIdx, trouble: FollowError, since: Instant) {
        self.blocks.remove(worker);
        self.know_blocks(worker);
        let Some(view) = self.workers.get_mut(&worker).map(Tracked::view_mut) else { return };
        view.blocks.is_current = false;
        let FollowError { kind, reason } = trouble;
        if kind == FollowErrorKind::Loss {
            self.lost.push(worker);
        }
        let (link, was) = match &kind {
            FollowErrorKind::Loss | FollowErrorKind::Other => (ConnectionState::Down { since }, view.link),
            FollowErrorKind::Refusal => (ConnectionState::Refused { since }, view.link),
            FollowErrorKind::Loading { .. } => (ConnectionState::Loading { since }, view.link),
        };
        view.trouble = Some(reason);
        // Each failed attempt is reported; only a new state or new names have further effects.
        let is_news = await_names(view, &kind) | (std::mem::discriminant(&was) != std::mem::discriminant(&link));
        if !is_news {
            return;
        }
        view.link = link;
        view.load = Load::default();
        match view.model {
            Some(_) => self.stock.lost(worker),
            None => self.stock.left(worker),
        }
        let reason = view.trouble.as_deref();
        match kind {
            FollowErrorKind::Loss | FollowErrorKind::Other if view.is_leaving => {
                tracing::info!(worker = %view.name, reason, "worker that was leaving has ended");
            }
            FollowErrorKind::Loss | FollowErrorKind::Other => {
                tracing::warn!(worker = %view.name, reason, "worker cannot be reached");
            }
            FollowErrorKind::Refusal => tracing::error!(worker = %view.name, reason, "worker refuses this router"),
            FollowErrorKind::Loading { names } => {
                tracing::info!(worker = %view.name, ?names, "worker is loading its model")
            }
        }
        self.models_changed = true;
    }

    /// Publishes the view, and tells requests, tasks and the log what has changed.
    pub fn publish(&mut self, now: Instant) {
        let models_changed = std::mem::take(&mut self.models_changed);
        if models_changed {
            self.settle();
        }
        self.fleet.n_shed.store(self.blocks.n_shed(), Ordering::Relaxed);
        let workers = self.workers.values().map(|tracked| Arc::clone(&tracked.view)).collect();
        self.fleet.view.store(Arc::new(FleetView { workers, hosts: Arc::clone(&self.hosts) }));
        if std::mem::take(&mut self.hosts_reported) {
            self.fleet.host_reports.send_replace(());
        }
        if models_changed {
            // This wakes a task on another thread, which reads the view at once.
            self.fleet.models_changed.notify_one();
        }
        for fleet_change in self.fleet_changes.drain(..) {
            // If the queue is full, the event is dropped: a new worker also fills by computing.
            let _ = self.fleet.fleet_changes.try_send(fleet_change);
        }
        // The view no longer offers these workers, so no new request goes there.
        self.lost.drain(..).for_each(|worker| self.fleet.member(worker).lost());
        let is_connecting = |tracked: &Tracked| tracked.view.link == ConnectionState::Connecting;
        let had_contacted = *self.fleet.contacted.borrow();
        let has_contacted = had_contacted || self.has_surveyed && !self.workers.values().any(is_connecting);
        if has_contacted && !had_contacted {
            self.tell_who_is_awaited(now);
        }
        let hosts_changed = std::mem::take(&mut self.hosts_changed);
        if models_changed || hosts_changed || has_contacted != had_contacted {
            self.fleet.contacted.send_replace(has_contacted);
        }
    }

    /// Logs after the first contact which workers cannot take requests yet.
    fn tell_who_is_awaited(&self, now: Instant) {
        for view in self.workers.values().map(|tracked| &tracked.view) {
            if let Some(why) = view.unavailable(now) {
                tracing::info!(worker = %view.name, state = why.label(), names = ?view.awaited, "worker is awaited");
            }
        }
    }

    /// Determines which workers are incompatible, and logs each change once.
    fn settle(&mut self) {
        self.stock.place(&self.fleet, self.workers.values_mut().map(|tracked| &mut tracked.view).collect());
        let vocabularies = self.fleet.vocabularies();
        let faults: Vec<_> = self.workers.values().map(|tracked| tracked.vocabulary_fault(&vocabularies)).collect();
        let declared = self.workers.values().zip(&faults);
        let declared: Vec<_> = declared.map(|(tracked, fault)| tracked.declaration(fault.as_ref())).collect();
        let verdicts = compatibility::check_all(&declared);
        let mut verdicts: Vec<_> = faults.into_iter().zip(verdicts).map(|(fault, verdict)| fault.or(verdict)).collect();
        self.find_duplicates(&mut verdicts);
        let mut n_by_label: HashMap<&str, i64> = HashMap::new();
        for (tracked, verdict) in self.workers.values_mut().zip(verdicts) {
            if let Some(verdict) = &verdict {
                *n_by_label.entry(verdict.label()).or_default() += 1;
            }
            // The verdict on a worker that is down stays until it returns.
            if tracked.view.excluded != verdict && tracked.view.link.is_there() {
                announce(&tracked.view.name, verdict.as_ref());
                tracked.view_mut().excluded = verdict;
            }
        }
        self.fleet.metrics.excluded.reset();
        for (label, n) in n_by_label {
            self.fleet.metrics.excluded.with_label_values(&[label]).set(n);
        }
    }
}

impl Tracker {
    fn found(&mut self, worker: WorkerIdx, declared: ServerInfo) {
        let Some(view) = self.view_mut(worker) else { return };
        (view.link, view.trouble) = (ConnectionState::Live, None);
        view.awaited.clear();
        let names: Vec<_> = declared.models.iter().map(|listed| &listed.names[0]).take(NAMES_LOGGED_MAX).collect();
        let (n_models, slots) = (declared.models.len(), declared.n_slots);
        tracing::info!(worker = %view.name, ?names, n_models, slots, "stock server is found");
        self.stock.found(worker, declared);
        self.models_changed = true;
        self.fleet.ledger().health.reconnected(worker);
    }

    fn differs(&mut self, worker: WorkerIdx, model: Fingerprint) {
        let Some(Tracked { view, .. }) = self.workers.get(&worker) else { return };
        self.stock.differs(&self.fleet, view, model);
        tracing::warn!(worker = %view.name, "stock server counts tokens differently; the vocabulary is no longer used for it");
        self.models_changed = true;
    }

    /// Excludes a process that is already in the fleet under another URL, and logs which processes share a uid.
    fn find_duplicates(&self, verdicts: &mut [Option<Mismatch>]) {
        let is_there = |view: &WorkerView| matches!(view.link, ConnectionState::Live | ConnectionState::Stale { .. });
        let tracked: Vec<_> = self.workers.values().collect();
        let lives: Vec<_> = tracked.iter().map(|tracked| tracked.life.filter(|_| is_there(&tracked.view))).collect();
        let mut n_forks = 0;
        for (idx, duplicate) in compatibility::duplicates(&lives).into_iter().enumerate() {
            let name = |idx: usize| tracked[idx].view.name.clone();
            match duplicate {
                Some(DuplicateWorker::Process(first)) => {
                    verdicts[idx].get_or_insert(Mismatch::DuplicateWorker { first: name(first) });
                }
                Some(DuplicateWorker::Identity(first)) => {
                    n_forks += 1;
                    tracing::error!(worker = %name(idx), first = %name(first), "two processes have one uid");
                }
                None => {}
            }
        }
        self.fleet.metrics.forks.set(n_forks);
    }
}

/// Records the names that a worker will serve; returns whether they are new.
///
/// If the names differ from those that it served before, its old model is dropped; if they are the same, the model need
/// not be read again.
fn await_names(view: &mut WorkerView, kind: &FollowErrorKind) -> bool {
    let FollowErrorKind::Loading { names } = kind else { return false };
    if view.awaited == *names {
        return false;
    }
    if !view.models().flat_map(|model| model.all_names()).eq(names.iter().cloned()) {
        (view.model, view.further) = (None, Vec::new());
    }
    view.awaited.clone_from(names);
    true
}

fn announce(worker: &str, verdict: Option<&Mismatch>) {
    match verdict {
        Some(verdict) => tracing::error!(%worker, reason = %verdict, "worker is excluded from the fleet"),
        None => tracing::info!(%worker, "worker is in the fleet again"),
    }
}
