//! What requests have shown of a worker's health, and who is to blame for a failure: the worker, or the request itself.
//!
//! Not here: the count of failures (`breaker`), what kind of failure blames whom (`retry`), refusals (`pause`).
//! The idea: a request that fails at one worker and is answered by another proves that worker's fault, and only proof opens a
//! breaker. A request that fails wherever it goes proves nothing, however often its client repeats it. Until there is proof the
//! worker is only suspected: requests go elsewhere for a moment where somebody else can take them.

use std::time::{Duration, Instant};

use super::pause::Pauses;
use super::{Ledger, LedgerOptions};
use crate::WorkerIdx;
use crate::overload::breaker::{Breaker, BreakerState};
use crate::overload::retry::{Blame, Failure, Terms};

/// How far a worker is trusted with a request; the least is the best.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Trust {
    /// Nothing speaks against it.
    Sound,
    /// It has failed a request a moment ago, and so many in all since it last answered one.
    Suspected(u32),
    /// Its breaker is open.
    Failing,
}

/// What requests have shown of one worker.
#[derive(Debug, Clone, Default)]
pub(super) struct Health {
    breaker: Breaker,
    /// The requests that it has failed since it last answered one, whoever is to blame.
    n_failed: u32,
    suspected_until: Option<Instant>,
    pub(super) pauses: Pauses,
}

impl Health {
    /// Returns how far the worker is trusted.
    pub(super) fn trust(&self, now: Instant) -> Trust {
        if self.breaker.state(now) == BreakerState::Open {
            Trust::Failing
        } else if self.suspected_until.is_some_and(|until| now < until) {
            Trust::Suspected(self.n_failed)
        } else {
            Trust::Sound
        }
    }

    /// Returns the time for which requests for a model of `names` leave the worker alone as far as is known now.
    pub(super) fn away(&self, names: Option<&[String]>, now: Instant) -> Duration {
        let is_named = |name: &str| names.is_none_or(|names| names.iter().any(|known| known == name));
        self.breaker.remaining(now).max(self.pauses.longest(is_named, now))
    }

    /// Records that a request for a model is sent to the worker.
    pub(super) fn sent(&mut self, model_name: Option<&str>, options: &LedgerOptions, now: Instant) {
        self.breaker.sent(options.breaker, now);
        self.pauses.sent(model_name, options, now);
    }

    fn failed(&mut self, failure: Failure, options: &LedgerOptions, now: Instant) {
        match failure.blame() {
            Blame::Worker => self.breaker.failed(options.breaker, now),
            Blame::Unproven => {}
            Blame::Nobody => return,
        }
        self.n_failed = self.n_failed.saturating_add(1);
        self.suspected_until = Some(now + options.suspicion);
    }

    /// Records that the last failure was the worker's own.
    fn proven(&mut self, options: &LedgerOptions, now: Instant) {
        self.breaker.failed(options.breaker, now);
        self.suspected_until = Some(now + options.suspicion);
    }
}

impl Ledger {
    /// Records that a worker has done a request; `failures` are those of the same request at other workers before.
    ///
    /// They are proven by it to be these workers' own.
    pub fn answered(&mut self, worker: WorkerIdx, failures: &[(WorkerIdx, Failure)], now: Instant) {
        if let Some(account) = self.accounts.get_mut(worker.0 as usize) {
            let pauses = std::mem::take(&mut account.health.pauses).answered(now);
            account.health = Health { pauses, ..Health::default() };
        }
        for (failed, failure) in failures {
            let is_proof = failure.blame() == Blame::Unproven && *failed != worker;
            if let Some(account) = self.accounts.get_mut(failed.0 as usize).filter(|_| is_proof) {
                account.health.proven(&self.options, now);
            }
        }
    }

    /// Records that a worker has failed a request.
    pub fn failed(&mut self, worker: WorkerIdx, failure: Failure, now: Instant) {
        if matches!(failure, Failure::Full | Failure::Unready) {
            self.refused(worker, (failure, Terms::default()), now);
        } else if let Some(account) = self.accounts.get_mut(worker.0 as usize) {
            account.health.failed(failure, &self.options, now);
        }
    }

    /// Records that a worker has refused a request ([`Failure::Full`], [`Failure::Unready`]) on these terms.
    pub fn refused(&mut self, worker: WorkerIdx, (failure, terms): (Failure, Terms<'_>), now: Instant) {
        if let Some(account) = self.accounts.get_mut(worker.0 as usize) {
            account.health.pauses.refused((failure, terms), &self.options, now);
        }
    }

    /// Records that a worker's summary stream has begun anew: it lives, whatever was before.
    pub fn reconnected(&mut self, worker: WorkerIdx) {
        if let Some(account) = self.accounts.get_mut(worker.0 as usize) {
            account.health = Health::default();
        }
    }

    /// Returns the state of a worker's breaker.
    pub fn breaker(&self, worker: WorkerIdx, now: Instant) -> BreakerState {
        self.account(worker).health.breaker.state(now)
    }
}

#[cfg(test)]
mod tests;
