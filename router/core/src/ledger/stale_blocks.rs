//! Stale blocks: blocks that workers have announced and did not reuse.
//!
//! Every response reports the actual reuse. If it is less than what the worker has announced, the first block that was
//! not reused is *stale*: matches of that worker end before it, until the worker announces it again or reuses it. An
//! announcement may overtake the response, so the latest announcements are kept: a block announced after the choice
//! does not become stale. The index itself keeps the worker's announcements, block by block.
//!
//! Not here: announcements (`index`), predictions and choices (`ledger`).

use std::cmp::Ordering;
use std::collections::{HashSet, VecDeque};
use std::time::Instant;

use warmpath_common::block_hash::BlockKey;

use crate::WorkerIdx;
use crate::index::Match;

/// Most stale blocks at a time; the oldest is dropped.
///
/// Source: own choice: a healthy fleet has none.
const DOUBTS_MAX: usize = 4096;

/// Most block keys of announcements that are kept.
///
/// Source: own choice: 2 MB; at 10,000 blocks a second, half a minute.
const REMEMBERED_KEYS_MAX: usize = 1 << 18;

/// Result of one prediction.
#[derive(Debug, Clone, Copy)]
pub struct Outcome<'a> {
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
    /// Time when the worker was chosen.
    pub chosen_at: Instant,
}

impl Outcome<'_> {
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

/// The stale blocks.
#[derive(Debug, Default)]
pub struct StaleBlocks {
    doubted: HashSet<(WorkerIdx, BlockKey)>,
    /// Stale blocks by age; some may have been removed.
    order: VecDeque<(WorkerIdx, BlockKey)>,
    announced: VecDeque<Announced>,
    n_keys: usize,
    /// Time up to which announcements have been dropped.
    forgotten_until: Option<Instant>,
}

#[derive(Debug)]
struct Announced {
    worker: WorkerIdx,
    at: Instant,
    /// Announced blocks; `None` for a whole snapshot.
    keys: Option<Vec<BlockKey>>,
}

impl StaleBlocks {
    /// Records that a worker has announced blocks.
    pub fn announced(&mut self, worker: WorkerIdx, keys: Vec<BlockKey>, now: Instant) {
        if !self.doubted.is_empty() {
            self.settle(worker, &keys);
        }
        self.remember(Announced { worker, at: now, keys: Some(keys) });
    }

    /// Records that a worker has announced all of its blocks.
    pub fn announced_all(&mut self, worker: WorkerIdx, now: Instant) {
        self.doubted.retain(|(doubted, _)| *doubted != worker);
        self.remember(Announced { worker, at: now, keys: None });
    }

    /// Removes a worker that has left.
    pub fn left(&mut self, worker: WorkerIdx) {
        self.doubted.retain(|(doubted, _)| *doubted != worker);
    }

    /// Records the result of a prediction; returns whether a block became stale.
    pub fn observe(&mut self, outcome: Outcome<'_>) -> bool {
        let Outcome { worker, keys, actual_blocks, chosen_at, .. } = outcome;
        let actual = (actual_blocks as usize).min(keys.len());
        if !self.doubted.is_empty() {
            self.settle(worker, &keys[..actual]);
        }
        let Some(&key) = keys.get(actual).filter(|_| actual_blocks < outcome.own_blocks()) else { return false };
        if self.was_announced(worker, key, chosen_at) || !self.doubted.insert((worker, key)) {
            return false;
        }
        self.order.push_back((worker, key));
        while self.order.len() > DOUBTS_MAX {
            if let Some(oldest) = self.order.pop_front() {
                self.doubted.remove(&oldest);
            }
        }
        true
    }

    /// Returns `found` with each match ending before its first stale block; `None` if no block is stale.
    pub fn correct(&self, keys: &[BlockKey], found: &[Match]) -> Option<Vec<Match>> {
        if self.doubted.is_empty() {
            return None;
        }
        let corrected_matches = found.iter().filter_map(|&found| {
            let claimed = &keys[..(found.blocks as usize).min(keys.len())];
            let first = claimed.iter().position(|&key| self.doubted.contains(&(found.worker, key)));
            match first {
                None => Some(found),
                Some(0) => None,
                Some(blocks) => Some(Match { blocks: u32::try_from(blocks).unwrap_or(u32::MAX), ..found }),
            }
        });
        let mut corrected_matches: Vec<Match> = corrected_matches.collect();
        corrected_matches.sort_by_key(|found| (std::cmp::Reverse(found.blocks), found.worker));
        Some(corrected_matches)
    }

    /// Returns the number of stale blocks.
    pub fn len(&self) -> usize {
        self.doubted.len()
    }

    /// Returns whether no block is stale.
    pub fn is_empty(&self) -> bool {
        self.doubted.is_empty()
    }

    fn settle(&mut self, worker: WorkerIdx, keys: &[BlockKey]) {
        for &key in keys {
            self.doubted.remove(&(worker, key));
        }
    }

    fn was_announced(&self, worker: WorkerIdx, key: BlockKey, since: Instant) -> bool {
        // A block whose announcement may have been dropped counts as announced.
        self.forgotten_until.is_some_and(|until| until >= since)
            || self.announced.iter().rev().take_while(|announced| announced.at >= since).any(|announced| {
                announced.worker == worker && announced.keys.as_ref().is_none_or(|keys| keys.contains(&key))
            })
    }

    fn remember(&mut self, announced: Announced) {
        let weight = |announced: &Announced| announced.keys.as_ref().map_or(0, Vec::len) + 1;
        self.n_keys += weight(&announced);
        self.announced.push_back(announced);
        while self.n_keys > REMEMBERED_KEYS_MAX {
            let Some(oldest) = self.announced.pop_front() else { break };
            self.n_keys -= weight(&oldest);
            self.forgotten_until = Some(oldest.at);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use warmpath_common::summary::{RunState, Tier};

    const WORKER: WorkerIdx = WorkerIdx(1);

    fn keys(n: u64) -> Vec<BlockKey> {
        (0..n).map(BlockKey).collect()
    }

    fn claim(worker: WorkerIdx, blocks: u32) -> Match {
        Match { worker, blocks, tier: Tier::Resident, state: RunState::Ready, slot: None }
    }

    struct World {
        stale_blocks: StaleBlocks,
        /// Blocks of a prediction that the worker was to fetch.
        fetched: u32,
        now: Instant,
    }

    impl World {
        fn new() -> Self {
            Self { stale_blocks: StaleBlocks::default(), fetched: 0, now: Instant::now() }
        }

        fn later(&mut self) -> Instant {
            self.now += Duration::from_millis(1);
            self.now
        }

        /// Predicts `expected` of eight blocks and gets `actual`; returns whether a block became stale.
        fn observe(&mut self, expected: u32, actual: u32, chosen_at: Instant) -> bool {
            let keys = keys(8);
            let outcome = Outcome {
                worker: WORKER,
                keys: &keys,
                expected_blocks: expected,
                fetched_blocks: self.fetched,
                actual_blocks: actual,
                chosen_at,
            };
            self.stale_blocks.observe(outcome)
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
    fn a_claim_ends_before_the_first_block_that_was_not_reused() {
        let mut world = World::new();
        let now = world.later();
        assert!(!world.observe(6, 6, now), "as predicted");
        assert!(!world.observe(4, 6, now), "more than predicted");
        assert_eq!(world.corrected_matches(), 8);
        assert!(world.observe(6, 3, now));
        assert_eq!(world.corrected_matches(), 3);
        assert!(world.observe(3, 0, now));
        assert_eq!(world.corrected_matches(), 0);
        let other = [claim(WORKER, 8), claim(WorkerIdx(2), 5)];
        assert_eq!(
            world.stale_blocks.correct(&keys(8), &other),
            Some(vec![other[1]]),
            "peer_routers are corrected_matches"
        );
    }

    #[test]
    fn what_was_not_fetched_makes_no_block_stale() {
        let mut world = World { fetched: 4, ..World::new() };
        let now = world.later();
        assert!(!world.observe(6, 2, now), "it reused its own");
        assert!(world.observe(6, 1, now));
        assert_eq!(world.corrected_matches(), 1);
        let label = |actual_blocks| {
            let chosen_at = now;
            Outcome { worker: WORKER, keys: &[], expected_blocks: 6, fetched_blocks: 4, actual_blocks, chosen_at }
                .label()
        };
        assert_eq!(
            [label(1), label(2), label(5), label(6), label(7)],
            ["less", "unfetched", "unfetched", "exact", "more"]
        );
    }

    #[test]
    fn a_doubt_ends_when_the_block_is_announced_or_reused_or_everything_is_announced() {
        let settle: [fn(&mut World); 3] = [
            |world| world.stale_blocks.announced(WORKER, keys(4), world.now),
            |world| assert!(!world.observe(3, 4, world.now)),
            |world| world.stale_blocks.announced_all(WORKER, world.now),
        ];
        for settle in settle {
            let mut world = World::new();
            let now = world.later();
            assert!(world.observe(6, 3, now));
            world.stale_blocks.announced(WorkerIdx(2), keys(8), now);
            world.stale_blocks.announced(WORKER, keys(3), now);
            assert_eq!(world.corrected_matches(), 3, "that was another worker, and other blocks");
            settle(&mut world);
            assert_eq!(world.corrected_matches(), 8);
            assert!(world.stale_blocks.is_empty());
        }
    }

    #[test]
    fn what_was_announced_after_the_choice_is_not_doubted() {
        let mut world = World::new();
        let early = world.later();
        let announced_at = world.later();
        world.stale_blocks.announced(WORKER, keys(4), announced_at);
        let late = world.later();
        assert!(!world.observe(6, 3, early), "block 3 was announced meanwhile");
        assert!(world.observe(6, 4, early), "block 4 was not");
        assert!(world.observe(6, 3, late));
        let announced_at = world.later();
        world.stale_blocks.announced_all(WORKER, announced_at);
        assert!(!world.observe(6, 5, late));
    }

    #[test]
    fn what_is_kept_is_bounded_and_what_is_forgotten_is_believed() {
        let mut world = World::new();
        let chosen_at = world.later();
        for _ in 0..3 {
            let at = world.later();
            world.stale_blocks.announced(WorkerIdx(2), keys(REMEMBERED_KEYS_MAX as u64 / 2), at);
        }
        assert!(world.stale_blocks.n_keys <= REMEMBERED_KEYS_MAX);
        assert!(!world.observe(6, 3, chosen_at), "it may have been announced");
        let now = world.later();
        for n in 0..2 * DOUBTS_MAX as u64 {
            let keys = [BlockKey(n)];
            let outcome = Outcome {
                worker: WORKER,
                keys: &keys,
                expected_blocks: 1,
                fetched_blocks: 0,
                actual_blocks: 0,
                chosen_at: now,
            };
            assert!(world.stale_blocks.observe(outcome));
        }
        assert_eq!((world.stale_blocks.len(), world.stale_blocks.order.len()), (DOUBTS_MAX, DOUBTS_MAX));
    }
}
