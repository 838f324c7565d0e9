//! One LRU cache of the size of all workers' stores, with which hits are compared.
//!
//! The workers' own caches are in `worker`; there the state of running sequences is held in addition to the store. A
//! prompt uses its blocks from the last to the first, so that the deepest block of a prompt is evicted first: a block
//! is useless without those before it. The result is exact, in order of arrival, without a notion of time.

use std::collections::{BTreeMap, HashMap};

use super::Trace;

/// A cache of blocks that evicts the least recently used one.
#[derive(Debug)]
pub struct Lru {
    n_blocks_max: usize,
    clock: u64,
    used: HashMap<u32, u64>,
    by_use: BTreeMap<u64, u32>,
}

impl Lru {
    /// Returns an empty cache of at most `n_blocks_max` blocks.
    pub fn new(n_blocks_max: usize) -> Self {
        Self { n_blocks_max, clock: 0, used: HashMap::new(), by_use: BTreeMap::new() }
    }

    /// Returns how many of a prompt's leading blocks are cached, and uses all its blocks.
    pub fn ask(&mut self, ids: &[u32]) -> usize {
        let n_held = ids.iter().take_while(|id| self.used.contains_key(id)).count();
        ids.iter().rev().for_each(|&id| self.touch(id));
        while self.used.len() > self.n_blocks_max {
            let (_, id) = self.by_use.pop_first().expect("each block has its last use");
            self.used.remove(&id);
        }
        n_held
    }

    fn touch(&mut self, id: u32) {
        self.clock += 1;
        if let Some(was) = self.used.insert(id, self.clock) {
            self.by_use.remove(&was);
        }
        self.by_use.insert(self.clock, id);
    }
}

/// Hits of a single cache.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct LruHits {
    /// Number of blocks that would have been reused.
    pub n_blocks: u64,
    /// Number of their tokens.
    pub n_tokens: u64,
}

/// Returns the hits of one cache of `n_blocks_max` blocks that receives the whole trace.
pub fn hits(trace: &Trace, n_blocks_max: usize) -> LruHits {
    let mut lru = Lru::new(n_blocks_max);
    let hit = |request: &super::Request| lru.ask(request.ids()).min(request.reusable_blocks(trace.block_tokens)) as u64;
    let n_blocks = trace.requests.iter().map(hit).sum();
    LruHits { n_blocks, n_tokens: n_blocks * u64::from(trace.block_tokens) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// The same cache as a list, the least recently used block first.
    struct Naive(Vec<u32>);

    impl Naive {
        fn ask(&mut self, ids: &[u32], n_blocks_max: usize) -> usize {
            let n_held = ids.iter().position(|id| !self.0.contains(id)).unwrap_or(ids.len());
            for id in ids.iter().rev() {
                self.0.retain(|held| held != id);
                self.0.push(*id);
            }
            let n_over = self.0.len().saturating_sub(n_blocks_max);
            self.0.drain(..n_over);
            n_held
        }
    }

    proptest! {
        #[test]
        fn hits_what_a_list_in_order_of_use_would(
            n_blocks_max in 0usize..12,
            prompts in proptest::collection::vec((0u32..4, 1usize..6), 0..60),
        ) {
            let (mut lru, mut naive) = (Lru::new(n_blocks_max), Naive(Vec::new()));
            for (family, n) in prompts {
                let ids: Vec<u32> = (0..n as u32).map(|depth| if depth == 0 { 0 } else { family * 10 + depth }).collect();
                prop_assert_eq!(lru.ask(&ids), naive.ask(&ids, n_blocks_max));
            }
        }
    }

    #[test]
    fn the_deepest_block_is_evicted_before_its_predecessors() {
        let mut lru = Lru::new(3);
        assert_eq!(lru.ask(&[1, 2, 3]), 0);
        assert_eq!(lru.ask(&[4]), 0);
        assert_eq!(lru.ask(&[1, 2, 3]), 2);
    }
}
