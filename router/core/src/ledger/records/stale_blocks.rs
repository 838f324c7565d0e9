//! Stale blocks: blocks that workers have announced and did not reuse.
//!
//! Every response reports the actual reuse. If the same block is the first one that was not reused in two responses,
//! without an announcement or a reuse of it in between, it is *stale*: matches of that worker end before it, until the
//! worker announces it again or reuses it. A single miss proves nothing: a block may be evicted while a request is on
//! its way, and its new announcement may overtake the response. The index itself keeps the worker's announcements,
//! block by block.
//!
//! Not here: announcements (`index`), predictions and choices (`ledger`).

use std::cmp::Ordering;
use std::collections::VecDeque;

use hashbrown::HashMap;
use warmpath_common::block_hash::BlockKey;

use crate::WorkerIdx;
use crate::index::Match;

/// Maximum number of blocks with a miss; the oldest is dropped.
///
/// Source: own choice: a healthy fleet has none.
const MISSES_MAX: usize = 4096;

/// Result of one prediction.
#[derive(Debug, Clone, Copy)]
pub struct PredictionOutcome<'a> {
    /// The worker.
    pub worker: WorkerIdx,
    /// Keys of the prompt's full blocks.
    pub keys: &'a [BlockKey],
    /// Predicted reuse.
    pub expected_blocks: u32,
    /// Part of it that the worker was to fetch from another one.
    pub fetched_blocks: u32,
    /// Actual reuse.
    pub actual_blocks: u32,
}

impl PredictionOutcome<'_> {
    /// Returns the predicted reuse of the worker's own blocks.
    fn own_blocks(&self) -> u32 {
        self.expected_blocks.saturating_sub(self.fetched_blocks)
    }

    /// Returns the relation of actual to predicted reuse, for metrics.
    pub fn label(&self) -> &'static str {
        match self.actual_blocks.cmp(&self.expected_blocks) {
            Ordering::Less if self.actual_blocks >= self.own_blocks() => "unfetched",
            Ordering::Less => "less",
            Ordering::Equal => "exact",
            Ordering::Greater => "more",
        }
    }
}

/// Blocks that were not reused since their last announcement.
#[derive(Debug, Default)]
pub struct StaleBlocks {
    misses: HashMap<(WorkerIdx, BlockKey), Misses>,
    /// These blocks by age; some may have been removed.
    order: VecDeque<(WorkerIdx, BlockKey)>,
}

/// Number of requests that did not reuse a block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Misses {
    One,
    Several,
}

impl StaleBlocks {
    /// Records that a worker has announced blocks.
    pub fn announced(&mut self, worker: WorkerIdx, keys: &[BlockKey]) {
        if self.misses.is_empty() {
            return;
        }
        for &key in keys {
            self.misses.remove(&(worker, key));
        }
    }

    /// Forgets a worker: it has announced all of its blocks, or has left.
    pub fn forget(&mut self, worker: WorkerIdx) {
        self.misses.retain(|(missed, _), _| *missed != worker);
    }

    /// Records the result of a prediction; returns whether a block became stale.
    pub fn observe(&mut self, outcome: PredictionOutcome<'_>) -> bool {
        let PredictionOutcome { worker, keys, actual_blocks, .. } = outcome;
        let actual = (actual_blocks as usize).min(keys.len());
        self.announced(worker, &keys[..actual]);
        let Some(&key) = keys.get(actual).filter(|_| actual_blocks < outcome.own_blocks()) else { return false };
        if self.misses.contains_key(&(worker, key)) {
            return self.misses.insert((worker, key), Misses::Several) == Some(Misses::One);
        }
        self.misses.insert((worker, key), Misses::One);
        self.order.push_back((worker, key));
        if self.order.len() > MISSES_MAX
            && let Some(oldest) = self.order.pop_front()
        {
            self.misses.remove(&oldest);
        }
        false
    }

    /// Returns `matches` with each match ending before its first stale block; `None` if no block is stale.
    pub fn correct(&self, keys: &[BlockKey], matches: &[Match]) -> Option<Vec<Match>> {
        if self.misses.is_empty() {
            return None;
        }
        let corrected_matches = matches.iter().filter_map(|&prefix_match| {
            let claimed_keys = &keys[..(prefix_match.blocks as usize).min(keys.len())];
            let is_stale = |&key: &BlockKey| self.misses.get(&(prefix_match.worker, key)) == Some(&Misses::Several);
            match claimed_keys.iter().position(is_stale) {
                None => Some(prefix_match),
                Some(0) => None,
                Some(blocks) => Some(Match { blocks: u32::try_from(blocks).unwrap_or(u32::MAX), ..prefix_match }),
            }
        });
        let mut corrected_matches: Vec<Match> = corrected_matches.collect();
        corrected_matches.sort_by_key(|prefix_match| (std::cmp::Reverse(prefix_match.blocks), prefix_match.worker));
        Some(corrected_matches)
    }

    /// Returns the number of stale blocks.
    pub fn n_stale(&self) -> usize {
        self.misses.values().filter(|misses| **misses == Misses::Several).count()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use warmpath_common::summary::{RunState, Tier};

    const WORKER: WorkerIdx = WorkerIdx(1);

    fn keys(n: u64) -> Vec<BlockKey> {
        (0..n).map(BlockKey).collect()
    }

    fn claim(worker: WorkerIdx, blocks: u32) -> Match {
        Match { worker, blocks, tier: Tier::Resident, state: RunState::Ready, slot: None }
    }

    #[derive(Default)]
    struct World {
        stale_blocks: StaleBlocks,
        /// Blocks of a prediction that the worker was to fetch.
        fetched: u32,
    }

    impl World {
        /// Predicts `expected` of eight blocks and gets `actual`; returns whether a block became stale.
        fn observe(&mut self, expected: u32, actual: u32) -> bool {
            let keys = keys(8);
            let (expected_blocks, fetched_blocks, actual_blocks) = (expected, self.fetched, actual);
            let outcome =
                PredictionOutcome { worker: WORKER, keys: &keys, expected_blocks, fetched_blocks, actual_blocks };
            self.stale_blocks.observe(outcome)
        }

        /// Gets fewer blocks than predicted, as often as it takes to make one stale.
        fn miss(&mut self, expected: u32, actual: u32) {
            assert!(!self.observe(expected, actual), "a single miss may be a race");
            assert!(self.observe(expected, actual));
            assert!(!self.observe(expected, actual), "it is stale already");
        }

        /// Returns the number of blocks, of eight announced ones, that are not stale.
        fn corrected_matches(&self) -> u32 {
            let found = [claim(WORKER, 8)];
            match self.stale_blocks.correct(&keys(8), &found) {
                Some(found) => found.first().map_or(0, |found| found.blocks),
                None => 8,
            }
        }
    }

    #[test]
    fn a_claim_ends_before_the_first_block_that_was_not_reused_twice() {
        let mut world = World::default();
        assert!(!world.observe(6, 6), "as predicted");
        assert!(!world.observe(4, 6), "more than predicted");
        assert!(world.stale_blocks.misses.is_empty());
        world.miss(6, 3);
        assert_eq!(world.corrected_matches(), 3);
        world.miss(3, 0);
        assert_eq!(world.corrected_matches(), 0);
        let other = [claim(WORKER, 8), claim(WorkerIdx(2), 5)];
        assert_eq!(world.stale_blocks.correct(&keys(8), &other), Some(vec![other[1]]), "another worker's matches stay");
        assert_eq!(world.stale_blocks.n_stale(), 2);
    }

    #[test]
    fn a_failed_transfer_makes_no_block_stale() {
        let mut world = World { fetched: 4, ..World::default() };
        assert!(!world.observe(6, 2) && !world.observe(6, 2), "it reused its own");
        world.miss(6, 1);
        assert_eq!(world.corrected_matches(), 1);
        let label = |actual_blocks| {
            PredictionOutcome { worker: WORKER, keys: &[], expected_blocks: 6, fetched_blocks: 4, actual_blocks }
                .label()
        };
        assert_eq!(
            [label(1), label(2), label(5), label(6), label(7)],
            ["less", "unfetched", "unfetched", "exact", "more"]
        );
    }

    #[test]
    fn a_miss_counts_until_the_block_is_announced_or_reused_or_everything_is_announced() {
        let settle: [fn(&mut World); 3] = [
            |world| world.stale_blocks.announced(WORKER, &keys(4)),
            |world| assert!(!world.observe(3, 4)),
            |world| world.stale_blocks.forget(WORKER),
        ];
        for settle in settle {
            let mut world = World::default();
            world.miss(6, 3);
            world.stale_blocks.announced(WorkerIdx(2), &keys(8));
            world.stale_blocks.announced(WORKER, &keys(3));
            assert_eq!(world.corrected_matches(), 3, "other workers and other blocks change nothing");
            settle(&mut world);
            assert_eq!(world.corrected_matches(), 8);
            // The first miss is forgotten as well.
            world.miss(6, 3);
        }
    }

    #[test]
    fn misses_are_bounded_and_the_oldest_is_forgotten() {
        let mut world = World::default();
        for n in 0..2 * MISSES_MAX as u64 {
            let keys = [BlockKey(n)];
            let outcome = PredictionOutcome {
                worker: WORKER,
                keys: &keys,
                expected_blocks: 1,
                fetched_blocks: 0,
                actual_blocks: 0,
            };
            assert!(!world.stale_blocks.observe(outcome));
            assert!(world.stale_blocks.observe(outcome));
        }
        assert_eq!((world.stale_blocks.n_stale(), world.stale_blocks.order.len()), (MISSES_MAX, MISSES_MAX));
    }
}
