//! The members of the fleet: which workers were discovered, and the index of each.
//!
//! Not here: finding workers (the router's `discovery`) and connecting to them. A place is the index under which all
//! other parts keep their state of a worker. A worker that discovery no longer finds gets no new requests from that
//! moment, but keeps its place and its state for a while, because most such losses are flaps of the discovery. Then it
//! leaves, and its place is given to another worker only when no request can refer to it any more.

use std::collections::{HashMap, HashSet};
use std::hash::Hash;
use std::time::{Duration, Instant};

use crate::WorkerIdx;

/// Limits of a fleet.
#[derive(Debug, Clone, Copy)]
pub struct MembershipOptions {
    /// Maximum number of workers.
    pub workers_max: usize,
    /// Time for which a worker that is no longer found keeps its place.
    pub linger: Duration,
    /// Time for which a place stays empty before it is given to another worker.
    pub vacancy: Duration,
}

/// One worker as discovery found it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DiscoveredWorker<A> {
    /// Address and protocol of the worker.
    pub address: A,
    /// Whether the worker is terminating.
    pub is_ending: bool,
}

/// Change of a place.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum MembershipChange<A> {
    /// A worker gets a place without any state.
    Joined {
        /// Place of the worker.
        worker: WorkerIdx,
        /// Address of the worker.
        address: A,
    },
    /// A worker must get no more requests.
    Leaving {
        /// Place of the worker.
        worker: WorkerIdx,
    },
    /// A worker that was leaving stays.
    Stayed {
        /// Place of the worker.
        worker: WorkerIdx,
    },
    /// A worker has left.
    Left {
        /// Former place of the worker.
        worker: WorkerIdx,
    },
}

/// Changes that follow from one result of discovery.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Update<A> {
    /// Changes in order.
    pub changes: Vec<MembershipChange<A>>,
    /// Number of workers that were found and got no place.
    pub n_refused: usize,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    Staying,
    /// The worker is still found, and is shutting down.
    Ending,
    /// The worker is no longer found.
    Gone {
        since: Instant,
    },
}

#[derive(Debug)]
enum MemberPlace<A> {
    Taken { address: A, phase: Phase },
    Vacant { since: Instant },
}

/// Assignment of places to workers.
#[derive(Debug)]
pub struct Membership<A> {
    places: Vec<MemberPlace<A>>,
    by_address: HashMap<A, WorkerIdx>,
    options: MembershipOptions,
}

impl<A: Clone + Eq + Hash> Membership<A> {
    /// Returns an empty fleet.
    pub fn new(options: MembershipOptions) -> Self {
        Self { places: Vec::new(), by_address: HashMap::new(), options }
    }

    /// Applies a result of discovery. An address that is listed twice is ending only if both entries are.
    ///
    /// `is_idle` returns whether the worker of a place has no requests. Cost: O(places + found).
    pub fn update(
        &mut self,
        workers: &[DiscoveredWorker<A>],
        now: Instant,
        is_idle: impl Fn(WorkerIdx) -> bool,
    ) -> Update<A> {
        let staying: HashSet<&A> =
            workers.iter().filter(|worker| !worker.is_ending).map(|worker| &worker.address).collect();
        let ending: HashSet<&A> =
            workers.iter().filter(|worker| worker.is_ending).map(|worker| &worker.address).collect();
        let mut changes = Vec::new();
        // Known workers: one that is listed no more keeps its place for a while, because it often comes back.
        for (idx, place) in self.places.iter_mut().enumerate() {
            let MemberPlace::Taken { address, phase } = place else { continue };
            let worker = worker_idx(idx);
            let next = match *phase {
                _ if staying.contains(address) => Phase::Staying,
                _ if ending.contains(address) => Phase::Ending,
                Phase::Gone { since } => Phase::Gone { since },
                Phase::Staying | Phase::Ending => Phase::Gone { since: now },
            };
            match (*phase, next) {
                (Phase::Staying, Phase::Staying) => {}
                (Phase::Staying, _) => changes.push(MembershipChange::Leaving { worker }),
                (_, Phase::Staying) => changes.push(MembershipChange::Stayed { worker }),
                _ => {}
            }
            *phase = next;
            if matches!(next, Phase::Gone { since } if passed(since, now) >= self.options.linger) && is_idle(worker) {
                self.by_address.remove(address);
                *place = MemberPlace::Vacant { since: now };
                changes.push(MembershipChange::Left { worker });
            }
        }
        let mut n_refused = 0;
        // New workers, in the order of the list; a worker that is about to end does not join.
        for DiscoveredWorker { address, .. } in workers.iter().filter(|worker| !worker.is_ending) {
            if self.by_address.contains_key(address) {
                continue;
            }
            match self.empty_place(now, &is_idle) {
                Some(worker) => changes.push(self.join(worker, address.clone())),
                None => n_refused += 1,
            }
        }
        Update { changes, n_refused }
    }

    fn empty_place(&self, now: Instant, is_idle: impl Fn(WorkerIdx) -> bool) -> Option<WorkerIdx> {
        if self.by_address.len() >= self.options.workers_max {
            return None;
        }
        let is_empty = |idx: &usize| match self.places[*idx] {
            MemberPlace::Vacant { since } => passed(since, now) >= self.options.vacancy && is_idle(worker_idx(*idx)),
            MemberPlace::Taken { .. } => false,
        };
        let idx = (0..self.places.len()).find(is_empty).unwrap_or(self.places.len());
        (idx < WorkerIdx::COUNT_MAX as usize).then(|| worker_idx(idx))
    }

    fn join(&mut self, worker: WorkerIdx, address: A) -> MembershipChange<A> {
        self.by_address.insert(address.clone(), worker);
        let place = MemberPlace::Taken { address: address.clone(), phase: Phase::Staying };
        match self.places.get_mut(worker.0 as usize) {
            Some(empty_place) => *empty_place = place,
            None => self.places.push(place),
        }
        MembershipChange::Joined { worker, address }
    }
}

fn passed(since: Instant, now: Instant) -> Duration {
    now.saturating_duration_since(since)
}

fn worker_idx(idx: usize) -> WorkerIdx {
    WorkerIdx(u32::try_from(idx).expect("places are no more than a WorkerIdx counts"))
}

#[cfg(test)]
mod tests;
