//! The health of a worker as requests show it, and whose fault a failure is: the worker's, or the request's own.
//!
//! If a request fails at one worker and another completes it, the failure was the first worker's, and only such proof
//! opens a breaker. A request that fails everywhere proves nothing, however often its client repeats it. Until there is
//! proof, the worker is only suspected: for a moment, requests go to other workers if these can take them.
//!
//! Not here: the count of failures (`breaker`), which failures count (`retry`), refusals (`pause`).

pub(super) mod pause;

use std::time::{Duration, Instant};

use crate::WorkerIdx;
use crate::fleet::Unavailable;
use crate::overload::breaker::{self, Breaker, BreakerState};
use crate::overload::retry::{Blame, Terms, WorkerFailure};
use pause::{Pauses, Quota};

/// Time for which a worker that has failed a request gets only requests that no other worker can take.
///
/// Source: own choice: as long as a breaker is open at first.
const SUSPICION: Duration = breaker::OPEN_MIN;

/// Trust in a worker; the least value is the best.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Trust {
    /// It has no recent failure.
    Sound,
    /// It failed a request a moment ago. Contains the number of requests that it has failed since its last success.
    Suspected(u32),
    /// Its breaker is open.
    Failing,
}

/// Health of every worker.
#[derive(Debug, Default)]
pub struct FleetHealth {
    by_worker: Vec<Health>,
}

/// Results of requests at one worker.
#[derive(Debug, Clone, Default)]
struct Health {
    breaker: Breaker,
    /// Requests that it has failed since its last success, including failures that were the request's fault.
    n_failed: u32,
    suspected_until: Option<Instant>,
    pauses: Pauses,
}

impl Health {
    /// Returns the trust in the worker.
    fn trust(&self, now: Instant) -> Trust {
        if self.breaker.state(now) == BreakerState::Open {
            Trust::Failing
        } else if self.suspected_until.is_some_and(|until| now < until) {
            Trust::Suspected(self.n_failed)
        } else {
            Trust::Sound
        }
    }

    /// Returns the remaining time in which this worker gets no requests for a model with these `names`.
    fn away(&self, names: Option<&[String]>, now: Instant) -> Duration {
        let is_named = |name: &str| names.is_none_or(|names| names.iter().any(|other| other == name));
        self.breaker.remaining(now).max(self.pauses.longest(is_named, now))
    }

    fn failed(&mut self, failure: WorkerFailure, now: Instant) {
        match failure.blame() {
            Blame::Worker => self.breaker.failed(now),
            Blame::Unproven => {}
            Blame::Nobody => return,
        }
        self.n_failed = self.n_failed.saturating_add(1);
        self.suspected_until = Some(now + SUSPICION);
    }

    /// Records that the last failure was the worker's fault.
    fn proven(&mut self, now: Instant) {
        self.breaker.failed(now);
        self.suspected_until = Some(now + SUSPICION);
    }
}

/// An attempt at a request that has failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FailedAttempt {
    /// Worker that failed the request.
    pub worker: WorkerIdx,
    /// How it failed.
    pub failure: WorkerFailure,
}

impl FleetHealth {
    /// Records that a worker has completed a request; `failures` are those of the same request at other workers before.
    ///
    /// The success proves that these failures were those workers' fault.
    pub fn answered(&mut self, worker: WorkerIdx, failures: &[FailedAttempt], now: Instant) {
        let health = self.of_mut(worker);
        let pauses = std::mem::take(&mut health.pauses).answered(now);
        *health = Health { pauses, ..Health::default() };
        for attempt in failures {
            if attempt.failure.blame() == Blame::Unproven && attempt.worker != worker {
                self.of_mut(attempt.worker).proven(now);
            }
        }
    }

    /// Records that a worker has failed a request.
    pub fn failed(&mut self, worker: WorkerIdx, failure: WorkerFailure, now: Instant) {
        if matches!(failure, WorkerFailure::Full | WorkerFailure::Unready) {
            self.refused(worker, failure, Terms::default(), now);
        } else {
            self.of_mut(worker).failed(failure, now);
        }
    }

    /// Records that a worker has refused a request ([`WorkerFailure::Full`], [`WorkerFailure::Unready`]), with its
    /// terms.
    pub fn refused(&mut self, worker: WorkerIdx, failure: WorkerFailure, terms: Terms<'_>, now: Instant) {
        self.of_mut(worker).pauses.refused(failure, terms, now);
    }

    /// Records that a worker's summary stream has started again: it is alive, whatever happened before.
    pub fn reconnected(&mut self, worker: WorkerIdx) {
        *self.of_mut(worker) = Health::default();
    }

    /// Records that a request is sent to a worker.
    pub(super) fn sent(&mut self, worker: WorkerIdx, quota: Quota<'_>, now: Instant) {
        let health = self.of_mut(worker);
        health.breaker.sent(now);
        health.pauses.sent(quota, now);
    }

    /// Forgets a worker that has left.
    pub(super) fn left(&mut self, worker: WorkerIdx) {
        *self.of_mut(worker) = Health::default();
    }

    /// Returns the state of a worker's breaker.
    pub fn breaker(&self, worker: WorkerIdx, now: Instant) -> BreakerState {
        self.of(worker).map_or(BreakerState::Closed, |health| health.breaker.state(now))
    }

    /// Returns the trust in a worker.
    pub(super) fn trust(&self, worker: WorkerIdx, now: Instant) -> Trust {
        self.of(worker).map_or(Trust::Sound, |health| health.trust(now))
    }

    /// Returns the remaining pause of requests at a worker, and its cause; `None` if there is none.
    pub(super) fn pause(&self, worker: WorkerIdx, quota: Quota<'_>, now: Instant) -> Option<(Duration, Unavailable)> {
        self.of(worker)?.pauses.of(quota, now)
    }

    /// Returns the remaining time in which a worker gets no requests for a model with these `names`.
    pub(super) fn away(&self, worker: WorkerIdx, names: Option<&[String]>, now: Instant) -> Duration {
        self.of(worker).map_or(Duration::ZERO, |health| health.away(names, now))
    }

    fn of(&self, worker: WorkerIdx) -> Option<&Health> {
        self.by_worker.get(worker.0 as usize)
    }

    fn of_mut(&mut self, worker: WorkerIdx) -> &mut Health {
        let idx = worker.0 as usize;
        if idx >= self.by_worker.len() {
            self.by_worker.resize(idx + 1, Health::default());
        }
        &mut self.by_worker[idx]
    }
}

#[cfg(test)]
mod tests;
