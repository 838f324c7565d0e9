//! What the requests of this router are filling where they run, known before any worker says so.
//!
//! Not here: load that is booked before it is reported (`dispatch`), what workers say they hold (`index`).
//! The idea: a request in flight at a worker fills its blocks there, so a sibling that comes a moment later finds its prefix
//! there. Only blocks beyond those that the worker already had are kept, and only until the request ends: by then the
//! worker has announced them. Prefix-closed as everything here: a match goes on as long as the next block is being filled.

use std::collections::HashMap;

use warmpath_common::block_hash::BlockKey;
use warmpath_common::summary::{RunState, Tier};

use crate::WorkerIdx;
use crate::index::Match;

/// Is the most blocks of one request that are kept: what lies behind is learnt from the worker.
///
/// Source: own choice: a prompt of 32,768 tokens in blocks of 16; a block takes about 32 bytes.
const BLOCKS_MAX: usize = 2048;

/// Counts for each block the requests that fill it at a worker.
#[derive(Debug, Default)]
pub struct Pending {
    n_filling: HashMap<(WorkerIdx, BlockKey), u32>,
    /// Counts the requests that fill anything, by worker.
    n_requests: HashMap<WorkerIdx, u32>,
}

/// Is what one request fills where it runs; must come back by [`Pending::remove`], once.
#[derive(Debug, PartialEq, Eq)]
pub struct Filling {
    worker: WorkerIdx,
    keys: Box<[BlockKey]>,
}

impl Pending {
    /// Records that a request fills the blocks `keys` at `worker`, those behind what it has there already.
    pub fn add(&mut self, worker: WorkerIdx, keys: &[BlockKey]) -> Filling {
        let keys: Box<[BlockKey]> = keys.iter().take(BLOCKS_MAX).copied().collect();
        for key in &keys {
            *self.n_filling.entry((worker, *key)).or_default() += 1;
        }
        *self.n_requests.entry(worker).or_default() += 1;
        Filling { worker, keys }
    }

    /// Records that a request fills nothing any more.
    pub fn remove(&mut self, filling: Filling) {
        for key in filling.keys {
            let n = self.n_filling.get_mut(&(filling.worker, key)).expect("what is removed was added");
            *n -= 1;
            if *n == 0 {
                self.n_filling.remove(&(filling.worker, key));
            }
        }
        let n = self.n_requests.get_mut(&filling.worker).expect("what is removed was added");
        *n -= 1;
        if *n == 0 {
            self.n_requests.remove(&filling.worker);
        }
    }

    /// Returns `matches` with what is being filled added; `None` where nothing is to be added.
    ///
    /// Cost: one probe for each worker that has a request of this router, and one for each block that is added.
    pub fn extend(&self, keys: &[BlockKey], matches: &[Match]) -> Option<Vec<Match>> {
        let held = |worker: WorkerIdx| matches.iter().position(|found| found.worker == worker);
        let mut extended: Option<Vec<Match>> = None;
        for &worker in self.n_requests.keys() {
            let place = held(worker);
            let n_held = place.map_or(0, |place| matches[place].blocks as usize);
            let fills = |key: &&BlockKey| self.n_filling.contains_key(&(worker, **key));
            let n_more = keys.get(n_held..).unwrap_or_default().iter().take_while(fills).count();
            if n_more == 0 {
                continue;
            }
            let blocks = u32::try_from(n_held + n_more).unwrap_or(u32::MAX);
            let all = extended.get_or_insert_with(|| matches.to_vec());
            match place {
                Some(place) => all[place].blocks = blocks,
                None => {
                    all.push(Match { worker, blocks, tier: Tier::Resident, state: RunState::Filling, slot: None });
                }
            }
        }
        if let Some(all) = &mut extended {
            all.sort_unstable_by_key(|found| (std::cmp::Reverse(found.blocks), found.worker));
        }
        extended
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn keys(range: std::ops::Range<u64>) -> Vec<BlockKey> {
        range.map(BlockKey).collect()
    }

    fn found(worker: u32, blocks: u32) -> Match {
        Match { worker: WorkerIdx(worker), blocks, tier: Tier::Ram, state: RunState::Ready, slot: None }
    }

    fn held(pending: &Pending, chain: &[BlockKey], matches: &[Match]) -> Option<Vec<(u32, u32)>> {
        let extended = pending.extend(chain, matches)?;
        Some(extended.iter().map(|found| (found.worker.0, found.blocks)).collect())
    }

    #[test]
    fn a_sibling_finds_what_is_being_filled_until_the_request_ends() {
        let mut pending = Pending::default();
        let chain = keys(0..6);
        assert_eq!(held(&pending, &chain, &[]), None);
        let first = pending.add(WorkerIdx(2), &chain[..4]);
        assert_eq!(held(&pending, &chain, &[]), Some(vec![(2, 4)]));
        let second = pending.add(WorkerIdx(2), &chain[..4]);
        pending.remove(first);
        assert_eq!(held(&pending, &chain, &[]), Some(vec![(2, 4)]));
        pending.remove(second);
        assert_eq!(held(&pending, &chain, &[]), None);
        assert!(pending.n_filling.is_empty() && pending.n_requests.is_empty());
    }

    #[test]
    fn what_is_filled_goes_on_from_what_is_held() {
        let mut pending = Pending::default();
        let chain = keys(0..6);
        let _filling = pending.add(WorkerIdx(1), &chain[2..5]);
        assert_eq!(held(&pending, &chain, &[found(0, 4), found(1, 2)]), Some(vec![(1, 5), (0, 4)]));
        assert_eq!(held(&pending, &chain, &[found(0, 4), found(1, 1)]), None, "a gap is no prefix");
        assert_eq!(held(&pending, &chain, &[found(1, 6)]), None);
    }

    #[test]
    fn of_one_request_no_more_than_the_limit_is_kept() {
        let mut pending = Pending::default();
        let chain = keys(0..BLOCKS_MAX as u64 + 5);
        let _filling = pending.add(WorkerIdx(0), &chain);
        assert_eq!(held(&pending, &chain, &[]), Some(vec![(0, BLOCKS_MAX as u32)]));
    }
}
