//! The attempts and waits of a request so far.

use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::response::Response;
use warmpath_router_core::WorkerIdx;
use warmpath_router_core::fleet::{FleetView, WorkerView};
use warmpath_router_core::ledger::health::FailedAttempt;
use warmpath_router_core::overload::admission_queue::WaiterId;
use warmpath_router_core::overload::retry::{RetryDecision, WorkerFailure};

use super::partial_response::PartialResponse;
use super::upstream_response::WorkerRefusal;
use crate::app::App;
use crate::error::RequestError;
use crate::queue::AdmitAt;

/// Attempts and waits of a request so far.
#[derive(Default)]
pub(super) struct RetryState {
    pub(super) n_attempts: u32,
    /// Workers that failed the request, and how. A worker that was only full is paused instead, and may get the request
    /// later.
    pub(super) failures: Vec<FailedAttempt>,
    /// Boot epoch of each of these workers at its failure.
    pub(super) boot_epochs: Vec<Option<u64>>,
    /// Workers that cannot take it.
    pub(super) excluded: Vec<WorkerIdx>,
    /// Response so far, from other workers' journals; `None` for a new response.
    pub(super) partial_response: Option<PartialResponse>,
    /// Number of workers that failed after they had sent part of the journal of a response in one piece.
    pub(super) n_failovers: u32,
    pub(super) last: Option<(WorkerFailure, Option<WorkerRefusal>)>,
    pub(super) admit_at: AdmitAt,
    /// The request's place in the queue, if it has waited.
    pub(super) place: Option<WaiterId>,
    pub(super) failing_since: Option<Instant>,
    /// Total time it has waited.
    pub(super) waited: Duration,
}

impl RetryState {
    pub(super) fn failed(&mut self, failure: WorkerFailure, refusal: Option<WorkerRefusal>) {
        self.n_attempts += 1;
        if self.failing_since.is_none() {
            (self.failing_since, self.waited) = (Some(Instant::now()), Duration::ZERO);
        }
        self.last = Some((failure, refusal));
    }

    /// Returns whether another attempt may follow this failure.
    pub(super) fn may_repeat(&self, app: &App, failure: WorkerFailure) -> bool {
        let failing = self.failing_since.map_or(Duration::ZERO, |since| since.elapsed());
        let failing_time = failing.saturating_sub(self.waited);
        if app.requests.retry.after(self.n_attempts, failure, failing_time) == RetryDecision::GiveUp {
            return false;
        }
        app.retries.withdraw()
    }

    /// Adds a worker that failed the request now.
    pub(super) fn add_failure(&mut self, view: &FleetView, worker: WorkerIdx, failure: WorkerFailure) {
        self.failures.push(FailedAttempt { worker, failure });
        self.boot_epochs.push(boot_epoch(view, worker));
    }

    /// Returns the workers that cannot take the request. A worker that has been restarted since it failed can.
    pub(super) fn tried(&self, view: &FleetView) -> Vec<WorkerIdx> {
        let failures = self.failures.iter().zip(&self.boot_epochs);
        let is_same_boot = |(failed, boot): &(&FailedAttempt, &Option<u64>)| boot_epoch(view, failed.worker) == **boot;
        let failed_workers = failures.filter(is_same_boot).map(|(failed, _)| failed.worker);
        failed_workers.chain(self.excluded.iter().copied()).collect()
    }

    /// Returns the response after failed attempts: the last worker's own error response, if it sent one.
    pub(super) fn give_up(&mut self) -> Option<Result<Response, RequestError>> {
        let n_attempts = self.n_attempts;
        let (last, refusal) = self.last.take()?;
        Some(refusal.map(WorkerRefusal::into_response).ok_or(RequestError::Upstream { n_attempts, last }))
    }
}

fn boot_epoch(view: &FleetView, worker: WorkerIdx) -> Option<u64> {
    view.worker(worker).and_then(|worker| worker.boot_epoch)
}

/// Workers that failed a stream, each with the boot epoch that it had then.
#[derive(Debug, Default)]
pub(super) struct FailedBoots(Vec<(WorkerIdx, Option<u64>)>);

impl FailedBoots {
    /// Adds a worker that failed the stream now.
    pub(super) fn add(&mut self, view: &FleetView, worker: WorkerIdx) {
        self.0.push((worker, boot_epoch(view, worker)));
    }

    /// Returns the workers that cannot continue the stream now: those that failed it and have not been restarted since,
    /// and stock servers. A request that no worker has failed may go to every worker.
    pub(super) fn excluded(&self, view: &FleetView) -> Vec<WorkerIdx> {
        if self.0.is_empty() {
            return Vec::new();
        }
        let is_excluded =
            |worker: &&Arc<WorkerView>| worker.stock.is_some() || self.0.contains(&(worker.idx, worker.boot_epoch));
        view.workers.iter().filter(is_excluded).map(|worker| worker.idx).collect()
    }
}
