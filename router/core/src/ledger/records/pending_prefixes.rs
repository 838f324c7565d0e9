//! Blocks that this router's requests are prefilling, before their workers announce them.
//!
//! A request in flight prefills its blocks at its worker, so a later request with the same prefix finds it there. Only
//! blocks beyond those that the worker already had are kept, and only until the request ends: by then the worker has
//! announced them. A block's key names all blocks before it, so the common length of two chains is found by bisection,
//! and a request costs one comparison for each other one in flight, not one for each of its blocks.
//!
//! Not here: work that is recorded before it is reported (`ledger`), announced blocks (`index`).

use std::collections::HashMap;
use std::ops::Range;

use warmpath_common::block_hash::BlockKey;
use warmpath_common::summary::{RunState, Tier};

use crate::WorkerIdx;
use crate::index::Match;

/// Maximum number of blocks kept for one request. Blocks beyond it are known once the worker has announced them.
///
/// Source: own choice: a prompt of 32,768 tokens in blocks of 16; a block takes 8 bytes.
const BLOCKS_MAX: usize = 2048;

/// Blocks that the requests in flight are prefilling, by worker.
#[derive(Debug, Default)]
pub struct PendingPrefixes {
    by_worker: HashMap<WorkerIdx, Vec<PendingRun>>,
    next_number: u64,
}

/// Blocks that one request is prefilling, a part of its chain.
#[derive(Debug)]
struct PendingRun {
    number: u64,
    /// Index of the first one in the chain.
    from: usize,
    /// The first block, a copy that saves a memory access.
    first: BlockKey,
    keys: Box<[BlockKey]>,
}

/// Receipt for one request's blocks; it must be given back to [`PendingPrefixes::remove`] once.
#[derive(Debug, PartialEq, Eq)]
pub struct PendingBlocks {
    worker: WorkerIdx,
    number: u64,
}

impl PendingPrefixes {
    /// Records that a request prefills at `worker` the blocks of `chain` after the first `n_cached`, which are cached
    /// there.
    pub fn add(&mut self, worker: WorkerIdx, chain: &[BlockKey], n_cached: u32) -> PendingBlocks {
        let (number, from) = (self.next_number, n_cached as usize);
        self.next_number += 1;
        let keys = chain.get(from..).unwrap_or_default();
        if let Some(&first) = keys.first() {
            let keys = keys[..keys.len().min(BLOCKS_MAX)].into();
            self.by_worker.entry(worker).or_default().push(PendingRun { number, from, first, keys });
        }
        PendingBlocks { worker, number }
    }

    /// Removes a request's blocks.
    pub fn remove(&mut self, blocks: PendingBlocks) {
        let Some(runs) = self.by_worker.get_mut(&blocks.worker) else { return };
        if let Some(place) = runs.iter().position(|run| run.number == blocks.number) {
            runs.swap_remove(place);
        }
        if runs.is_empty() {
            self.by_worker.remove(&blocks.worker);
        }
    }

    /// Returns `matches` extended by the blocks being prefilled; `None` if that changes nothing.
    ///
    /// Cost: one comparison for each request in flight, O(log n) for each that shares blocks with `keys`.
    pub fn extend(&self, keys: &[BlockKey], matches: &[Match]) -> Option<Vec<Match>> {
        let mut longer_matches: Option<Vec<Match>> = None;
        for (&worker, runs) in &self.by_worker {
            let place = matches.iter().position(|prefix_match| prefix_match.worker == worker);
            let n_held = place.map_or(0, |place| matches[place].blocks as usize);
            let n_reached = reach(n_held, runs.iter().filter_map(|run| run.shared(keys)).collect());
            if n_reached == n_held {
                continue;
            }
            let blocks = u32::try_from(n_reached).unwrap_or(u32::MAX);
            let all = longer_matches.get_or_insert_with(|| matches.to_vec());
            match place {
                Some(place) => all[place].blocks = blocks,
                None => {
                    all.push(Match { worker, blocks, tier: Tier::Resident, state: RunState::Filling, slot: None });
                }
            }
        }
        if let Some(all) = &mut longer_matches {
            all.sort_unstable_by_key(|prefix_match| (std::cmp::Reverse(prefix_match.blocks), prefix_match.worker));
        }
        longer_matches
    }
}

impl PendingRun {
    /// Returns the range of the chain `keys` that these blocks cover, if they do.
    fn shared(&self, keys: &[BlockKey]) -> Option<Range<usize>> {
        let chain = keys.get(self.from..).filter(|chain| chain.first() == Some(&self.first))?;
        // The last position at which both are known to agree, and the first at which they may differ.
        let (mut agrees, mut differs) = (0, self.keys.len().min(chain.len()));
        while agrees + 1 < differs {
            let middle = agrees.midpoint(differs);
            if self.keys[middle] == chain[middle] { agrees = middle } else { differs = middle }
        }
        Some(self.from..self.from + agrees + 1)
    }
}

/// Returns the end of the cached blocks extended by ranges that continue them without a gap.
fn reach(n_held: usize, mut ranges: Vec<Range<usize>>) -> usize {
    ranges.sort_unstable_by_key(|range| range.start);
    ranges
        .iter()
        .fold(n_held, |n_reached, range| if range.start <= n_reached { n_reached.max(range.end) } else { n_reached })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn keys(range: std::ops::Range<u64>) -> Vec<BlockKey> {
        range.map(BlockKey).collect()
    }

    fn found(worker: u32, blocks: u32) -> Match {
        Match { worker: WorkerIdx(worker), blocks, tier: Tier::Ram, state: RunState::Ready, slot: None }
    }

    fn held(pending: &PendingPrefixes, chain: &[BlockKey], matches: &[Match]) -> Option<Vec<(u32, u32)>> {
        let extended = pending.extend(chain, matches)?;
        Some(extended.iter().map(|found| (found.worker.0, found.blocks)).collect())
    }

    #[test]
    fn a_sibling_finds_the_pending_blocks_until_the_request_ends() {
        let mut pending = PendingPrefixes::default();
        let chain = keys(0..6);
        assert_eq!(held(&pending, &chain, &[]), None);
        let first = pending.add(WorkerIdx(2), &chain[..4], 0);
        assert_eq!(held(&pending, &chain, &[]), Some(vec![(2, 4)]));
        let second = pending.add(WorkerIdx(2), &chain[..4], 0);
        pending.remove(first);
        assert_eq!(held(&pending, &chain, &[]), Some(vec![(2, 4)]));
        pending.remove(second);
        assert_eq!(held(&pending, &chain, &[]), None);
        assert!(pending.by_worker.is_empty());
    }

    #[test]
    fn pending_blocks_continue_held_ones() {
        let mut pending = PendingPrefixes::default();
        let chain = keys(0..6);
        let _blocks = pending.add(WorkerIdx(1), &chain[..5], 2);
        assert_eq!(held(&pending, &chain, &[found(0, 4), found(1, 2)]), Some(vec![(1, 5), (0, 4)]));
        assert_eq!(held(&pending, &chain, &[found(0, 4), found(1, 1)]), None, "a gap is no prefix");
        assert_eq!(held(&pending, &chain, &[found(1, 6)]), None);
    }

    #[test]
    fn no_more_than_the_limit_is_kept_of_one_request() {
        let mut pending = PendingPrefixes::default();
        let chain = keys(0..BLOCKS_MAX as u64 + 5);
        let _blocks = pending.add(WorkerIdx(0), &chain, 0);
        assert_eq!(held(&pending, &chain, &[]), Some(vec![(0, BLOCKS_MAX as u32)]));
    }

    #[test]
    fn a_request_without_new_blocks_leaves_no_pending_prefix() {
        let mut pending = PendingPrefixes::default();
        let blocks = [pending.add(WorkerIdx(0), &[], 0), pending.add(WorkerIdx(0), &keys(0..3), 3)];
        assert!(pending.by_worker.is_empty());
        blocks.into_iter().for_each(|blocks| pending.remove(blocks));
    }

    /// Returns a chain along one of few paths: each key depends on all before it.
    fn chain() -> impl Strategy<Value = Vec<BlockKey>> {
        prop::collection::vec(0..2u64, 1..8).prop_map(|ways| {
            ways.iter()
                .scan(1, |key, way| {
                    *key = *key * 2 + way;
                    Some(BlockKey(*key))
                })
                .collect()
        })
    }

    proptest! {
        #[test]
        fn matches_continue_as_long_as_a_request_fills_the_next_block(
            requests in prop::collection::vec((0..3u32, chain(), 0..4u32, any::<bool>()), 0..12),
            requested in chain(),
            held in prop::collection::vec(0..5u32, 3),
        ) {
            let mut pending = PendingPrefixes::default();
            let mut filled: HashMap<u32, Vec<BlockKey>> = HashMap::new();
            for (worker, chain, n_held, ends) in requests {
                let blocks = pending.add(WorkerIdx(worker), &chain, n_held);
                if ends {
                    pending.remove(blocks);
                } else {
                    filled.entry(worker).or_default().extend(chain.get(n_held as usize..).unwrap_or_default());
                }
            }
            let matches: Vec<Match> = (0..).zip(held).filter(|(_, n)| *n > 0).map(|(worker, n)| found(worker, n)).collect();
            let naive = |worker: u32| {
                let n_held = matches.iter().find(|found| found.worker.0 == worker).map_or(0, |found| found.blocks);
                let behind = requested.get(n_held as usize..).unwrap_or_default();
                let filled = filled.get(&worker).map_or(&[][..], Vec::as_slice);
                n_held + behind.iter().take_while(|key| filled.contains(key)).count() as u32
            };
            let extended = pending.extend(&requested, &matches).unwrap_or_else(|| matches.clone());
            for worker in 0..3 {
                let blocks = extended.iter().find(|found| found.worker.0 == worker).map_or(0, |found| found.blocks);
                prop_assert_eq!(blocks, naive(worker), "worker {}", worker);
            }
        }
    }
}
