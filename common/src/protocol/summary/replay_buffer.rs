//! The replay buffer: the recent updates that a worker keeps, so that a router that was disconnected gets only what it
//! missed.
//!
//! Updates are numbered without gaps, so one stamp identifies what a receiver has missed. A receiver gets a snapshot
//! instead if its stamp is of another boot, in the future, or older than the oldest kept update.

use std::collections::VecDeque;

use super::Stamp;

/// Limits of a replay buffer.
#[derive(Debug, Clone, Copy)]
pub struct ReplayLimits {
    /// Maximum number of kept updates.
    pub updates_max: usize,
    /// Maximum size of the kept updates. Units: bytes.
    pub bytes_max: usize,
}

/// Recent updates of one boot of a worker.
#[derive(Debug, Clone)]
pub struct ReplayBuffer<T> {
    limits: ReplayLimits,
    /// Stamp of the last update, kept or not.
    last: Stamp,
    /// Updates up to the last one, oldest first.
    updates: VecDeque<SizedUpdate<T>>,
    n_bytes: usize,
}

/// An update and its size.
#[derive(Debug, Clone)]
pub struct SizedUpdate<T> {
    /// The update.
    pub update: T,
    /// Its size. Units: bytes.
    pub n_bytes: usize,
}

impl<T: Clone> ReplayBuffer<T> {
    /// Returns an empty buffer of a boot whose last update was `last`.
    pub fn new(limits: ReplayLimits, last: Stamp) -> Self {
        Self { limits, last, updates: VecDeque::new(), n_bytes: 0 }
    }

    /// Returns the stamp of the last update.
    pub fn last(&self) -> Stamp {
        self.last
    }

    /// Adds the next update, which `make` makes from its stamp.
    pub fn push(&mut self, make: impl FnOnce(Stamp) -> SizedUpdate<T>) -> T {
        self.last.seq += 1;
        let next = make(self.last);
        let update = next.update.clone();
        self.n_bytes += next.n_bytes;
        self.updates.push_back(next);
        while self.updates.len() > self.limits.updates_max || self.n_bytes > self.limits.bytes_max {
            let Some(oldest) = self.updates.pop_front() else { break };
            self.n_bytes -= oldest.n_bytes;
        }
        update
    }

    /// Returns the updates after `after`, or `None` if a snapshot is needed.
    pub fn since(&self, after: Stamp) -> Option<Vec<T>> {
        if !after.is_same_boot(self.last) {
            return None;
        }
        let n_missed = usize::try_from(self.last.seq.checked_sub(after.seq)?).ok()?;
        let n_known = self.updates.len().checked_sub(n_missed)?;
        Some(self.updates.iter().skip(n_known).map(|sized_update| sized_update.update.clone()).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::WorkerUid;

    const LIMITS: ReplayLimits = ReplayLimits { updates_max: 3, bytes_max: 100 };

    fn stamp(seq: u64) -> Stamp {
        Stamp { worker_uid: WorkerUid(1), boot_epoch: 7, seq }
    }

    fn replay_buffer(sizes: &[usize]) -> ReplayBuffer<u64> {
        let mut replay_buffer = ReplayBuffer::new(LIMITS, stamp(10));
        for size in sizes {
            replay_buffer.push(|stamp| SizedUpdate { update: stamp.seq, n_bytes: *size });
        }
        replay_buffer
    }

    fn check(replay_buffer: &ReplayBuffer<u64>, after: u64, expected: Option<&[u64]>) {
        assert_eq!(replay_buffer.since(stamp(after)).as_deref(), expected, "after {after}");
    }

    #[test]
    fn gives_the_missed_updates_or_requires_a_snapshot() {
        let empty = replay_buffer(&[]);
        check(&empty, 10, Some(&[]));
        check(&empty, 9, None);
        check(&empty, 11, None);
        let replay_buffer = replay_buffer(&[1, 1, 1, 1]);
        check(&replay_buffer, 14, Some(&[]));
        check(&replay_buffer, 13, Some(&[14]));
        check(&replay_buffer, 11, Some(&[12, 13, 14]));
        check(&replay_buffer, 10, None);
        check(&replay_buffer, 15, None);
        assert_eq!(replay_buffer.since(Stamp { boot_epoch: 8, ..stamp(13) }), None, "another boot");
        assert_eq!(replay_buffer.since(Stamp { worker_uid: WorkerUid(2), ..stamp(13) }), None, "another worker");
    }

    #[test]
    fn keeps_no_more_than_its_bytes() {
        check(&replay_buffer(&[60, 30, 20]), 11, Some(&[12, 13]));
        check(&replay_buffer(&[60, 30, 20]), 10, None);
        check(&replay_buffer(&[1, 101]), 11, None);
        check(&replay_buffer(&[1, 101]), 12, Some(&[]));
        assert_eq!(replay_buffer(&[1, 101]).n_bytes, 0);
    }
}
