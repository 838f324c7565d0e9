//! The tracker: the one task that owns the fleet's view, all but the blocks, and publishes it.
//!
//! Not here: reading streams (`subscriber`), the prefix index (`indexer`), what a view means (`warmpath-router-core`).
//! The idea: reports come in by one bounded channel, so their order is the order of events. A burst is applied as a
//! whole and published once; only the workers that changed get a new value.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Instant;

use tokio::sync::mpsc;
use warmpath_common::ids::RequestId;
use warmpath_common::summary::{Load, Stamp};
use warmpath_router_core::WorkerIdx;
use warmpath_router_core::agreement::{self, Disagreement, Twin};
use warmpath_router_core::fleet::{FleetView, Link, WorkerView};
use warmpath_router_core::follower::NewWorker;
use warmpath_router_core::stock::Declared;

use super::stock::Stocks;
use super::vocabulary::VocabularyKey;
use super::{Fleet, Report};

/// Is the most reports that are applied before the view is published.
const BATCH_MAX: usize = 256;

/// Applies reports until every sender has gone.
pub async fn track(fleet: Arc<Fleet>, mut inbox: mpsc::Receiver<Report>) {
    let workers = fleet.view().workers.clone();
    let lives = vec![None; workers.len()];
    let stock = Stocks::new(&fleet, workers.len());
    let mut tracker = Tracker { fleet, workers, lives, stock, models_changed: false };
    let mut batch = Vec::with_capacity(BATCH_MAX);
    while inbox.recv_many(&mut batch, BATCH_MAX).await > 0 {
        batch.drain(..).for_each(|report| tracker.apply(report));
        tracker.publish();
    }
}

struct Tracker {
    fleet: Arc<Fleet>,
    workers: Vec<Arc<WorkerView>>,
    /// Says for each worker which life of which process it was when it was last heard.
    lives: Vec<Option<Stamp>>,
    stock: Stocks,
    /// Says that the workers that are there, or their models, may have changed since the last agreement.
    models_changed: bool,
}

impl Tracker {
    fn apply(&mut self, report: Report) {
        match report {
            Report::Opened { worker, new } => self.opened(worker, *new),
            Report::Found { worker, declared } => self.found(worker, declared),
            Report::Differs { worker } => self.differs(worker),
            Report::Resumed { worker } => self.view_mut(worker).link = Link::Live,
            Report::Update { worker, accepted, load } => self.update(worker, &accepted, load),
            Report::Lost { worker } => self.lost(worker),
            Report::Unreachable { worker } => self.unreachable(worker),
            Report::Vocabulary => self.models_changed = true,
        }
    }

    fn view_mut(&mut self, worker: WorkerIdx) -> &mut WorkerView {
        Arc::make_mut(&mut self.workers[worker.0 as usize])
    }

    fn opened(&mut self, worker: WorkerIdx, NewWorker { stamp, opening }: NewWorker) {
        let was_life = self.lives[worker.0 as usize].replace(stamp);
        let view = self.view_mut(worker);
        let was = view.link;
        let same_model = view.model.as_deref() == Some(&opening.model);
        if !same_model {
            view.model = Some(Arc::new(opening.model));
        }
        view.uid = Some(stamp.worker_uid);
        view.load = opening.load;
        view.link = Link::Live;
        let name = view.name.clone();
        let same_life = was_life.is_some_and(|was| was.is_same_life(stamp));
        self.models_changed |= !same_model || !same_life || was != Link::Live;
        self.fleet.books().reconnected(worker);
        tracing::info!(worker = %name, uid = %stamp.worker_uid, boot_epoch = stamp.boot_epoch, "worker is connected");
    }

    fn update(&mut self, worker: WorkerIdx, accepted: &[RequestId], load: Option<Load>) {
        for request_id in accepted {
            self.fleet.books().accepted(worker, request_id);
        }
        let n_blocks = self.fleet.blocks(worker).n_blocks();
        let view = self.view_mut(worker);
        view.n_blocks = n_blocks;
        let Some(load) = load else { return };
        if load.draining && !view.load.draining {
            tracing::info!(worker = %view.name, "worker is draining");
        }
        view.load = load;
    }

    fn lost(&mut self, worker: WorkerIdx) {
        let view = self.view_mut(worker);
        let since = Instant::now();
        match view.link {
            Link::Live => view.link = Link::Stale { since },
            // It answers, but nothing that could be understood.
            Link::Connecting => view.link = Link::Down { since },
            Link::Stale { .. } | Link::Down { .. } => {}
        }
    }

    /// A worker that cannot be reached has most likely lost what it held; what it holds on its return it will say.
    fn unreachable(&mut self, worker: WorkerIdx) {
        let view = self.view_mut(worker);
        if matches!(view.link, Link::Down { .. }) {
            return;
        }
        view.link = Link::Down { since: Instant::now() };
        view.load = Load::default();
        view.n_blocks = 0;
        tracing::warn!(worker = %view.name, "worker cannot be reached");
        self.models_changed = true;
    }

    fn publish(&mut self) {
        if std::mem::take(&mut self.models_changed) {
            self.settle();
            self.fleet.models_changed.notify_one();
        }
        self.fleet.view.store(Arc::new(FleetView { workers: self.workers.clone() }));
    }

    /// Finds out who disagrees, and says so once.
    fn settle(&mut self) {
        self.stock.place(&self.fleet, &mut self.workers);
        let vocabularies = self.fleet.vocabularies();
        let models: Vec<_> = self
            .workers
            .iter()
            .map(|worker| worker.model.as_deref().filter(|_| !matches!(worker.link, Link::Down { .. })))
            .collect();
        let mut verdicts = agreement::settle(&models);
        for (verdict, model) in verdicts.iter_mut().zip(&models) {
            let key = model.map(VocabularyKey::of);
            let state = key.and_then(|key| vocabularies.get(&key));
            *verdict = verdict.take().or_else(|| state.and_then(|state| state.disagreement()).cloned());
        }
        self.find_twins(&mut verdicts);
        let mut n_by_label: HashMap<&str, i64> = HashMap::new();
        for (worker, verdict) in self.workers.iter_mut().zip(verdicts) {
            if let Some(verdict) = &verdict {
                *n_by_label.entry(verdict.label()).or_default() += 1;
            }
            // The verdict on a worker that is down stays as it was until it returns.
            if worker.excluded != verdict && !matches!(worker.link, Link::Down { .. }) {
                announce(&worker.name, verdict.as_ref());
                Arc::make_mut(worker).excluded = verdict;
            }
        }
        self.fleet.metrics.excluded.reset();
        for (label, n) in n_by_label {
            self.fleet.metrics.excluded.with_label_values(&[label]).set(n);
        }
    }
}

impl Tracker {
    fn found(&mut self, worker: WorkerIdx, declared: Declared) {
        let view = self.view_mut(worker);
        view.link = Link::Live;
        tracing::info!(worker = %view.name, names = ?declared.names, slots = declared.n_slots, "stock server is found");
        self.stock.found(worker, declared);
        self.models_changed = true;
        self.fleet.books().reconnected(worker);
    }

    fn differs(&mut self, worker: WorkerIdx) {
        let view = &self.workers[worker.0 as usize];
        self.stock.differs(&self.fleet, view);
        tracing::warn!(worker = %view.name, "stock server counts tokens otherwise; it is not taken to have that vocabulary");
        self.models_changed = true;
    }

    /// Keeps out a process that is in the fleet under another URL already, and says which processes share an identity.
    fn find_twins(&self, verdicts: &mut [Option<Disagreement>]) {
        let is_there = |idx: &usize| matches!(self.workers[*idx].link, Link::Live | Link::Stale { .. });
        let lives: Vec<_> = self.lives.iter().enumerate().map(|(idx, life)| life.filter(|_| is_there(&idx))).collect();
        let mut n_forks = 0;
        for (idx, twin) in agreement::twins(&lives).into_iter().enumerate() {
            let name = |idx: usize| self.workers[idx].name.clone();
            match twin {
                Some(Twin::Process(first)) => {
                    verdicts[idx].get_or_insert(Disagreement::Twin { first: name(first) });
                }
                Some(Twin::Identity(first)) => {
                    n_forks += 1;
                    tracing::error!(worker = %name(idx), first = %name(first), "two processes have one uid");
                }
                None => {}
            }
        }
        self.fleet.metrics.forks.set(n_forks);
    }
}

fn announce(worker: &str, verdict: Option<&Disagreement>) {
    match verdict {
        Some(verdict) => tracing::error!(%worker, reason = %verdict, "worker is excluded from the fleet"),
        None => tracing::info!(%worker, "worker is in the fleet again"),
    }
}
