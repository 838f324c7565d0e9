//! Who is in the fleet: what was found outside, and the place that each worker has here.
//!
//! Not here: finding workers (the router's `discovery`), listening to them, choosing one.
//! The idea: a place is the index under which everything else keeps what it knows of a worker. What is found no longer gets
//! no new requests from that moment, but keeps its place and what is known of it for a while, because most such losses are
//! flaps of what does the finding. Then it leaves, and its place is given away only when nobody can mean it any more.

use std::collections::{HashMap, HashSet};
use std::hash::Hash;
use std::time::{Duration, Instant};

use crate::WorkerIdx;

/// Bounds a fleet.
#[derive(Debug, Clone, Copy)]
pub struct MembershipOptions {
    /// Is the most workers.
    pub workers_max: usize,
    /// Is how long a worker that is found no longer keeps its place.
    pub linger: Duration,
    /// Is how long a place stays empty before it is given to another worker.
    pub vacancy: Duration,
}

/// Is one worker as it was found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Found<A> {
    /// Says where it is and what it speaks.
    pub address: A,
    /// Says whether it has been told to end.
    pub is_ending: bool,
}

/// Is what becomes of a place.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Change<A> {
    /// A worker gets a place of which nothing is known.
    Joined {
        /// Is the place.
        worker: WorkerIdx,
        /// Is the worker.
        address: A,
    },
    /// A worker must get no more requests.
    Leaving {
        /// Is its place.
        worker: WorkerIdx,
    },
    /// A worker that was leaving stays.
    Stayed {
        /// Is its place.
        worker: WorkerIdx,
    },
    /// A worker has left.
    Left {
        /// Was its place.
        worker: WorkerIdx,
    },
}

/// Is what a look at the fleet changes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Update<A> {
    /// Lists the changes in order.
    pub changes: Vec<Change<A>>,
    /// Is the number of workers that were found and got no place.
    pub n_refused: usize,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    Staying,
    /// It is still found, and is ending.
    Ending,
    /// It is found no longer.
    Gone {
        since: Instant,
    },
}

#[derive(Debug)]
enum Place<A> {
    Taken { address: A, phase: Phase },
    Vacant { since: Instant },
}

/// Gives places to workers.
#[derive(Debug)]
pub struct Membership<A> {
    places: Vec<Place<A>>,
    by_address: HashMap<A, WorkerIdx>,
    options: MembershipOptions,
}

impl<A: Clone + Eq + Hash> Membership<A> {
    /// Returns an empty fleet.
    pub fn new(options: MembershipOptions) -> Self {
        Self { places: Vec::new(), by_address: HashMap::new(), options }
    }

    /// Takes note of the workers that are there now; an address that is listed twice ends only where each of them does.
    ///
    /// `is_idle` says whether no request is at the worker of a place. Cost: O(places + found).
    pub fn update(&mut self, found: &[Found<A>], now: Instant, is_idle: impl Fn(WorkerIdx) -> bool) -> Update<A> {
        let staying: HashSet<&A> = found.iter().filter(|found| !found.is_ending).map(|found| &found.address).collect();
        let ending: HashSet<&A> = found.iter().filter(|found| found.is_ending).map(|found| &found.address).collect();
        let mut changes = Vec::new();
        for (idx, place) in self.places.iter_mut().enumerate() {
            let Place::Taken { address, phase } = place else { continue };
            let worker = worker_idx(idx);
            let next = match *phase {
                _ if staying.contains(address) => Phase::Staying,
                _ if ending.contains(address) => Phase::Ending,
                Phase::Gone { since } => Phase::Gone { since },
                Phase::Staying | Phase::Ending => Phase::Gone { since: now },
            };
            match (*phase, next) {
                (Phase::Staying, Phase::Staying) => {}
                (Phase::Staying, _) => changes.push(Change::Leaving { worker }),
                (_, Phase::Staying) => changes.push(Change::Stayed { worker }),
                _ => {}
            }
            *phase = next;
            if matches!(next, Phase::Gone { since } if passed(since, now) >= self.options.linger) && is_idle(worker) {
                self.by_address.remove(address);
                *place = Place::Vacant { since: now };
                changes.push(Change::Left { worker });
            }
        }
        let mut n_refused = 0;
        // In the order in which they are listed, and none that is only about to end.
        for Found { address, .. } in found.iter().filter(|found| !found.is_ending) {
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
            Place::Vacant { since } => passed(since, now) >= self.options.vacancy && is_idle(worker_idx(*idx)),
            Place::Taken { .. } => false,
        };
        let idx = (0..self.places.len()).find(is_empty).unwrap_or(self.places.len());
        (idx < WorkerIdx::COUNT_MAX as usize).then(|| worker_idx(idx))
    }

    fn join(&mut self, worker: WorkerIdx, address: A) -> Change<A> {
        self.by_address.insert(address.clone(), worker);
        let place = Place::Taken { address: address.clone(), phase: Phase::Staying };
        match self.places.get_mut(worker.0 as usize) {
            Some(empty) => *empty = place,
            None => self.places.push(place),
        }
        Change::Joined { worker, address }
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
