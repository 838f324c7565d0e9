//! The blocks that a stock server probably holds: those of the prompts that were sent to it, ordered by last use.
//!
//! Requests and their outcomes are recorded in `stock`. Such a server keeps the most recently used blocks and does not
//! report evictions. So the least recently used blocks are dropped first, leaves before their parents, beyond a
//! capacity that is learnt from responses: if an expected block had to be computed, the blocks used since its last use
//! fill the server's cache; if more was reused than the assumed blocks, the cache is larger.

use std::collections::{HashMap, HashSet, VecDeque};

use warmpath_common::block_hash::BlockKey;
use warmpath_common::model::ModelInfo;
use warmpath_common::summary::{Change, Resume, Run, RunState, Tier};

/// Maximum size of the assumed blocks, as a multiple of the server's KV cache: llama-server moves prompts to host
/// memory.
///
/// Source: own choice: it bounds the memory; responses show how much of it the server uses.
const SURPASSED_MAX: usize = 4;

/// Maximum number of assumed blocks of one server.
///
/// Source: own choice: 33 million tokens in blocks of 16, some 200 MB here.
const BLOCKS_MAX: usize = 1 << 21;

/// Number of a use; later uses have larger numbers.
pub(super) type UseNumber = u64;

/// Limits of the assumed blocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AssumedCacheLimits {
    /// Maximum number of blocks, whatever responses show.
    pub blocks_max: usize,
    /// Number of blocks until responses show more.
    pub blocks_expected: usize,
}

impl AssumedCacheLimits {
    /// Returns the limits of a server that runs a model with the declared context in each slot.
    pub fn of(model: &ModelInfo) -> Self {
        let tokens = model.context_tokens as usize * usize::from(model.n_slots);
        let blocks = tokens / (model.block_size_tokens as usize).max(1);
        Self { blocks_max: (SURPASSED_MAX * blocks).min(BLOCKS_MAX), blocks_expected: blocks.min(BLOCKS_MAX) }
    }
}

/// Assumed blocks, with their last use.
///
/// A block is kept only together with its parent, whose last use is no earlier.
#[derive(Debug)]
pub(super) struct AssumedCache {
    limits: AssumedCacheLimits,
    capacity_blocks: usize,
    last_use: HashMap<BlockKey, UseNumber>,
    /// Uses by age, those of one prompt from its last block to its first; some blocks have a later use.
    order: VecDeque<(UseNumber, BlockKey)>,
    clock: UseNumber,
}

impl AssumedCache {
    pub(super) fn new(limits: AssumedCacheLimits) -> Self {
        let capacity_blocks = limits.blocks_expected.min(limits.blocks_max);
        Self { limits, capacity_blocks, last_use: HashMap::new(), order: VecDeque::new(), clock: 0 }
    }

    /// Returns every assumed block.
    pub(super) fn keys(&self) -> Vec<BlockKey> {
        self.last_use.keys().copied().collect()
    }

    /// Drops every block; the capacity stays.
    pub(super) fn clear(&mut self) {
        self.last_use.clear();
        self.order.clear();
    }

    /// Returns the number of assumed blocks.
    pub(super) fn len(&self) -> usize {
        self.last_use.len()
    }

    /// Returns the assumed number of free blocks.
    pub(super) fn n_free(&self) -> usize {
        self.capacity_blocks.saturating_sub(self.len())
    }

    /// Returns the last use of each leading block that is assumed.
    pub(super) fn known(&self, keys: &[BlockKey]) -> Vec<UseNumber> {
        keys.iter().map_while(|key| self.last_use.get(key).copied()).collect()
    }

    /// Records that the server has computed a prompt; returns the number of this use.
    pub(super) fn hold(&mut self, keys: &[BlockKey], changes: &mut Vec<Change>) -> UseNumber {
        self.clock += 1;
        let keys = &keys[..keys.len().min(self.capacity_blocks)];
        let n_known = keys.iter().take_while(|key| self.last_use.contains_key(key)).count();
        for &key in keys.iter().rev() {
            self.last_use.insert(key, self.clock);
            self.order.push_back((self.clock, key));
        }
        if n_known < keys.len() {
            changes.push(Change::Stored(run(&keys[n_known..])));
        }
        self.forget(changes);
        self.compact();
        self.clock
    }

    /// Records that the server no longer had a block of the prompt `own_keys`; `last_use` is that block's previous use.
    ///
    /// Cost: O(all assumed blocks).
    pub(super) fn missed(&mut self, last_use: UseNumber, own_keys: &[BlockKey], changes: &mut Vec<Change>) {
        let own_keys: HashSet<_> = own_keys.iter().collect();
        let is_since = |(key, at): &(&BlockKey, &UseNumber)| **at > last_use && !own_keys.contains(key);
        let n_since = self.last_use.iter().filter(is_since).count();
        // Only half way, because the miss may come from a slot that another branch took over, which loses the end of
        // one prompt and nothing of others.
        self.capacity_blocks = (n_since + self.len()) / 2;
        self.forget(changes);
    }

    /// Records that the server has reused `n_blocks` more blocks than were assumed.
    pub(super) fn surpassed(&mut self, n_blocks: usize) {
        self.capacity_blocks = (self.capacity_blocks + n_blocks).min(self.limits.blocks_max);
    }

    /// Drops the least recently used blocks beyond the capacity.
    fn forget(&mut self, changes: &mut Vec<Change>) {
        let mut removed_keys = Vec::new();
        while let Some(&(at, key)) = self.order.front() {
            let is_last = self.last_use.get(&key) == Some(&at);
            if is_last && self.len() <= self.capacity_blocks {
                break;
            }
            self.order.pop_front();
            if is_last {
                self.last_use.remove(&key);
                removed_keys.push(key);
            }
        }
        if !removed_keys.is_empty() {
            changes.push(Change::Removed(removed_keys));
        }
    }

    /// Drops outdated uses when they are more than half of the list.
    fn compact(&mut self) {
        if self.order.len() > 2 * self.last_use.len() {
            let last_use = &self.last_use;
            self.order.retain(|(at, key)| last_use.get(key) == Some(at));
        }
    }
}

fn run(keys: &[BlockKey]) -> Run {
    Run { keys: keys.to_vec(), tier: Tier::Resident, state: RunState::Ready, resume: Resume::EveryBlock, slot: None }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Naive assumed cache, a list that is searched: key, last use, depth in its chain.
    #[derive(Default)]
    struct Naive {
        held: Vec<(BlockKey, UseNumber, usize)>,
        capacity: usize,
        clock: UseNumber,
    }

    impl Naive {
        fn hold(&mut self, keys: &[BlockKey]) {
            self.clock += 1;
            for (depth, key) in keys.iter().take(self.capacity).enumerate() {
                self.held.retain(|(held, ..)| held != key);
                self.held.push((*key, self.clock, depth));
            }
            self.shrink();
        }

        fn missed(&mut self, last_use: UseNumber, own: &[BlockKey]) {
            let n_since = self.held.iter().filter(|(key, at, _)| *at > last_use && !own.contains(key)).count();
            self.capacity = (n_since + self.held.len()) / 2;
            self.shrink();
        }

        fn shrink(&mut self) {
            while self.held.len() > self.capacity {
                let oldest = self.held.iter().min_by_key(|(_, at, depth)| (*at, std::cmp::Reverse(*depth)));
                let key = oldest.expect("it holds more than nothing").0;
                self.held.retain(|(held, ..)| *held != key);
            }
        }
    }

    /// Returns a chain; chains of one family share their first `shared` blocks.
    fn chain(family: u64, branch: u64, shared: u64, len: u64) -> Vec<BlockKey> {
        let key = |at: u64| if at < shared { family << 32 | at } else { family << 32 | (branch + 1) << 16 | at };
        (0..len).map(|at| BlockKey(key(at))).collect()
    }

    #[derive(Debug, Clone)]
    enum Step {
        Hold(Vec<BlockKey>),
        Miss(Vec<BlockKey>, usize),
        Surpass(usize),
    }

    fn step() -> impl Strategy<Value = Step> {
        let chains = || (0..3_u64, 0..4_u64, 0..12_u64).prop_map(|(family, branch, len)| chain(family, branch, 4, len));
        prop_oneof![
            6 => chains().prop_map(Step::Hold),
            1 => (chains(), 0..12_usize).prop_map(|(keys, at)| Step::Miss(keys, at)),
            1 => (0..20_usize).prop_map(Step::Surpass),
        ]
    }

    const LIMITS: AssumedCacheLimits = AssumedCacheLimits { blocks_max: 40, blocks_expected: 20 };

    proptest! {
        #[test]
        fn has_the_entries_of_a_naive_cache_and_reports_every_change(steps in prop::collection::vec(step(), 1..80)) {
            let mut memory = AssumedCache::new(LIMITS);
            let mut naive = Naive { capacity: LIMITS.blocks_expected, ..Naive::default() };
            let mut told: HashSet<BlockKey> = HashSet::new();
            for step in steps {
                let mut changes = Vec::new();
                match step {
                    Step::Hold(keys) => {
                        memory.hold(&keys, &mut changes);
                        naive.hold(&keys);
                    }
                    Step::Miss(keys, at) => {
                        let known = memory.known(&keys);
                        let Some(&last_use) = known.get(at) else { continue };
                        memory.missed(last_use, &keys, &mut changes);
                        naive.missed(last_use, &keys);
                    }
                    Step::Surpass(n) => {
                        memory.surpassed(n);
                        naive.capacity = (naive.capacity + n).min(LIMITS.blocks_max);
                    }
                }
                for change in changes {
                    match change {
                        Change::Stored(run) => run.keys.iter().for_each(|key| assert!(told.insert(*key))),
                        Change::Removed(keys) => keys.iter().for_each(|key| assert!(told.remove(key))),
                        Change::Accepted(_) => unreachable!("an assumed cache reports no requests"),
                    }
                }
                let held: HashSet<BlockKey> = memory.last_use.keys().copied().collect();
                prop_assert_eq!(&held, &told);
                prop_assert_eq!(&held, &naive.held.iter().map(|(key, ..)| *key).collect::<HashSet<_>>());
                prop_assert!(held.len() <= memory.capacity_blocks && memory.capacity_blocks <= LIMITS.blocks_max);
                prop_assert!(memory.order.len() <= 2 * held.len().max(LIMITS.blocks_max) + 12);
                for (family, branch) in (0..3).flat_map(|family| (0..4).map(move |branch| (family, branch))) {
                    let keys = chain(family, branch, 4, 12);
                    let n_held = keys.iter().filter(|key| held.contains(key)).count();
                    prop_assert_eq!(n_held, memory.known(&keys).len(), "what is held of a chain is a prefix of it");
                }
            }
        }
    }

    #[test]
    fn an_assumed_cache_is_as_large_as_the_servers_context_and_bounded() {
        let limits = |context_tokens, n_slots| {
            let limits = AssumedCacheLimits::of(&ModelInfo { context_tokens, n_slots, ..crate::testing::model() });
            (limits.blocks_expected, limits.blocks_max)
        };
        assert_eq!(limits(3200, 2), (200, 800));
        assert_eq!(limits(u32::MAX, u16::MAX), (BLOCKS_MAX, BLOCKS_MAX));
    }

    #[test]
    fn a_miss_moves_the_capacity_half_way_to_the_tokens_used_since() {
        let mut memory = AssumedCache::new(LIMITS);
        let chats: Vec<_> = (0..3).map(|branch| chain(0, branch, 2, 6)).collect();
        let mut changes = Vec::new();
        for chat in &chats {
            memory.hold(chat, &mut changes);
        }
        let last_use = memory.known(&chats[1])[3];
        memory.missed(last_use, &chats[1], &mut changes);
        assert_eq!(memory.capacity_blocks, 9, "14 are held, and four of the third chat pushed the second out");
        let known: Vec<_> = chats.iter().map(|chat| memory.known(chat).len()).collect();
        assert_eq!(known, [2, 5, 6], "the oldest goes first, leaves before their parents");
    }

    #[test]
    fn a_server_that_reuses_nothing_is_soon_assumed_empty_until_it_reuses_again() {
        let mut memory = AssumedCache::new(LIMITS);
        let chat = chain(0, 0, 2, 6);
        let mut changes = Vec::new();
        for expected in [3, 1, 0] {
            memory.hold(&chat, &mut changes);
            let last_use = memory.known(&chat)[0];
            memory.missed(last_use, &chat, &mut changes);
            assert_eq!(memory.len(), expected);
        }
        memory.hold(&chat, &mut changes);
        assert_eq!(memory.len(), 0, "it has room for nothing");
        memory.surpassed(5);
        memory.hold(&chat, &mut changes);
        assert_eq!(memory.len(), 5);
    }
}
