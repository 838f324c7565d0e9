//! The replay buffer: the recent updates that a worker keeps, so that a router that was disconnected gets only what it
//! missed.
//!
//! The worker's publisher sends the updates, the router's follower asks for them. Updates are numbered without gaps, so
//! one stamp identifies what a receiver has missed. A receiver whose stamp is of another life, of the future, or older
//! than the oldest kept update gets a snapshot instead.

use std::collections::VecDeque;

use super::Stamp;

/// Limits of a replay buffer.
#[derive(Debug, Clone, Copy)]
pub struct RingLimits {
    /// Maximum number of kept updates.
    pub updates_max: usize,
    /// Maximum size of the kept updates. Units: bytes.
    pub bytes_max: usize,
}

/// Recent updates of one life of a worker.
#[derive(Debug, Clone)]
pub struct Ring<T> {
    limits: RingLimits,
    /// Stamp of the last update, kept or not.
    last: Stamp,
    /// Updates up to the last one with the size of each, oldest first.
    updates: VecDeque<(T, usize)>,
    n_bytes: usize,
}

impl<T: Clone> Ring<T> {
    /// Returns an empty buffer of a life whose last update was `last`.
    pub fn new(limits: RingLimits, last: Stamp) -> Self {
        Self { limits, last, updates: VecDeque::new(), n_bytes: 0 }
    }

    /// Returns the stamp of the last update.
    pub fn last(&self) -> Stamp {
        self.last
    }

    /// Adds the next update; `make` makes it from its stamp and returns its size too.
    pub fn push(&mut self, make: impl FnOnce(Stamp) -> (T, usize)) -> T {
        self.last.seq += 1;
        let (update, n_bytes) = make(self.last);
        self.updates.push_back((update.clone(), n_bytes));
        self.n_bytes += n_bytes;
        while self.updates.len() > self.limits.updates_max || self.n_bytes > self.limits.bytes_max {
            let Some((_, n_bytes)) = self.updates.pop_front() else { break };
            self.n_bytes -= n_bytes;
        }
        update
    }

    /// Returns the updates after `after`, or `None` where a snapshot is needed.
    pub fn since(&self, after: Stamp) -> Option<Vec<T>> {
        if !after.is_same_life(self.last) {
            return None;
        }
        let n_missed = usize::try_from(self.last.seq.checked_sub(after.seq)?).ok()?;
        let n_known = self.updates.len().checked_sub(n_missed)?;
        Some(self.updates.iter().skip(n_known).map(|(update, _)| update.clone()).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::WorkerUid;

    const LIMITS: RingLimits = RingLimits { updates_max: 3, bytes_max: 100 };

    fn stamp(seq: u64) -> Stamp {
        Stamp { worker_uid: WorkerUid(1), boot_epoch: 7, seq }
    }

    fn ring(sizes: &[usize]) -> Ring<u64> {
        let mut ring = Ring::new(LIMITS, stamp(10));
        for size in sizes {
            ring.push(|stamp| (stamp.seq, *size));
        }
        ring
    }

    fn check(ring: &Ring<u64>, after: u64, expected: Option<&[u64]>) {
        assert_eq!(ring.since(stamp(after)).as_deref(), expected, "after {after}");
    }

    #[test]
    fn gives_what_was_missed_and_nothing_to_whom_it_cannot_help() {
        let empty = ring(&[]);
        check(&empty, 10, Some(&[]));
        check(&empty, 9, None);
        check(&empty, 11, None);
        let ring = ring(&[1, 1, 1, 1]);
        check(&ring, 14, Some(&[]));
        check(&ring, 13, Some(&[14]));
        check(&ring, 11, Some(&[12, 13, 14]));
        check(&ring, 10, None);
        check(&ring, 15, None);
        assert_eq!(ring.since(Stamp { boot_epoch: 8, ..stamp(13) }), None, "another life");
        assert_eq!(ring.since(Stamp { worker_uid: WorkerUid(2), ..stamp(13) }), None, "another worker");
    }

    #[test]
    fn keeps_no_more_than_its_bytes() {
        check(&ring(&[60, 30, 20]), 11, Some(&[12, 13]));
        check(&ring(&[60, 30, 20]), 10, None);
        check(&ring(&[1, 101]), 11, None);
        check(&ring(&[1, 101]), 12, Some(&[]));
        assert_eq!(ring(&[1, 101]).n_bytes, 0);
    }
}
