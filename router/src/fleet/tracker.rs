//! The tracker: the one task that owns the fleet's view and the prefix index, and publishes both.
//!
//! Not here: reading streams (`subscriber`), what a view means (`warmpath-router-core`).
//! The idea: reports come in by one bounded channel, so their order is the order of events. A burst is applied as a
//! whole and published once; only the workers that changed get a new value.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use tokio::sync::mpsc;
use warmpath_common::summary::{Change, Load};
use warmpath_router_core::WorkerIdx;
use warmpath_router_core::agreement::{self, Disagreement};
use warmpath_router_core::fleet::{FleetView, Link, WorkerView};
use warmpath_router_core::follower::NewView;
use warmpath_router_core::index::IndexWriter;

use super::vocabulary::VocabularyKey;
use super::{Fleet, Report};

/// Is the most reports that are applied before the view is published.
const BATCH_MAX: usize = 256;

/// Applies reports until every sender has gone.
pub async fn track(fleet: Arc<Fleet>, writer: IndexWriter, mut inbox: mpsc::Receiver<Report>) {
    let workers = fleet.view().workers.clone();
    let mut tracker = Tracker { fleet, writer, workers, models_changed: false };
    let mut batch = Vec::with_capacity(BATCH_MAX);
    while inbox.recv_many(&mut batch, BATCH_MAX).await > 0 {
        batch.drain(..).for_each(|report| tracker.apply(report));
        tracker.publish();
    }
}

struct Tracker {
    fleet: Arc<Fleet>,
    writer: IndexWriter,
    workers: Vec<Arc<WorkerView>>,
    /// Says that the workers that are there, or their models, may have changed since the last agreement.
    models_changed: bool,
}

impl Tracker {
    fn apply(&mut self, report: Report) {
        match report {
            Report::Snapshot { worker, view } => self.replace(worker, *view),
            Report::Update { worker, changes, load } => self.update(worker, changes, load),
            Report::Lost { worker } => self.lost(worker),
            Report::Unreachable { worker } => self.unreachable(worker),
            Report::Vocabulary => self.models_changed = true,
        }
    }

    fn view_mut(&mut self, worker: WorkerIdx) -> &mut WorkerView {
        Arc::make_mut(&mut self.workers[worker.0 as usize])
    }

    fn replace(&mut self, worker: WorkerIdx, new: NewView) {
        self.writer.replace_worker(worker, &new.runs);
        let n_blocks = self.writer.n_blocks_of(worker);
        let view = self.view_mut(worker);
        let was = view.link;
        let same_model = view.model.as_deref() == Some(&new.model);
        if !same_model {
            view.model = Some(Arc::new(new.model));
        }
        view.uid = Some(new.stamp.worker_uid);
        view.load = new.load;
        view.link = Link::Live;
        view.n_blocks = n_blocks;
        let name = view.name.clone();
        self.models_changed |= !same_model || was != Link::Live;
        let mut books = self.fleet.books();
        books.reconnected(worker);
        books.doubts().announced_all(worker, Instant::now());
        drop(books);
        tracing::info!(worker = %name, uid = %new.stamp.worker_uid, n_blocks, "worker is connected");
    }

    fn update(&mut self, worker: WorkerIdx, changes: Vec<Change>, load: Option<Load>) {
        for change in changes {
            match change {
                Change::Stored(run) => {
                    self.writer.insert(worker, &run);
                    self.fleet.books().doubts().announced(worker, run.keys, Instant::now());
                }
                Change::Removed(keys) => self.writer.remove(worker, &keys),
                Change::Accepted(request_id) => self.fleet.books().accepted(worker, &request_id),
            }
        }
        let n_blocks = self.writer.n_blocks_of(worker);
        let view = self.view_mut(worker);
        view.n_blocks = n_blocks;
        if let Some(load) = load {
            if load.draining && !view.load.draining {
                tracing::info!(worker = %view.name, "worker is draining");
            }
            view.load = load;
        }
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
        self.writer.remove_worker(worker);
        self.models_changed = true;
    }

    fn publish(&mut self) {
        if std::mem::take(&mut self.models_changed) {
            self.settle();
            self.fleet.models_changed.notify_one();
        }
        self.fleet.n_shed.store(self.writer.n_shed(), Ordering::Relaxed);
        self.fleet.view.store(Arc::new(FleetView { workers: self.workers.clone() }));
    }

    /// Finds out who disagrees, and says so once.
    fn settle(&mut self) {
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

fn announce(worker: &str, verdict: Option<&Disagreement>) {
    match verdict {
        Some(verdict) => tracing::error!(%worker, reason = %verdict, "worker is excluded from the fleet"),
        None => tracing::info!(%worker, "worker is in the fleet again"),
    }
}
