//! The prefix index: which worker holds how much of a hash chain.
//!
//! The value of a match is computed in `cost`; whether a worker may be used is decided in `ledger`. A worker holds a
//! prefix of a chain, so consecutive blocks are held in the same way and are kept together in segments; a lookup takes
//! one probe per segment. Readers share the segments and never wait: one writer makes changes, mostly by replacing a
//! segment. The index never takes more memory than its limit; the entries that were matched longest ago are evicted
//! first. An evicted entry costs a cache hit, never a wrong answer.

mod block_table;
mod merge_hints;
mod search;
mod segment;
mod segment_table;
mod span;
mod writer;

use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};

use arc_swap::ArcSwap;
use warmpath_common::block_hash::BlockKey;
use warmpath_common::ids::SlotId;
use warmpath_common::summary::{RunState, Tier};

use self::merge_hints::MergeHints;
use self::segment_table::SegmentTable;
pub use self::writer::{IndexWriter, Replacement};
use crate::WorkerIdx;

/// Limits of a prefix index.
#[derive(Debug, Clone, Copy)]
pub struct IndexOptions {
    /// Maximum memory of the index. Units: bytes.
    pub bytes_max: usize,
    /// Random number that keeps workers from choosing keys that collide.
    pub seed: u64,
}

/// Blocks of a chain that one worker holds, and their state.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Match {
    /// Worker that holds the blocks.
    pub worker: WorkerIdx,
    /// Number of leading blocks after which the worker can start; at least 1.
    pub blocks: u32,
    /// Tier of the last of them.
    pub tier: Tier,
    /// Whether the last of them is computed.
    pub state: RunState,
    /// Slot that holds the last of them.
    pub slot: Option<SlotId>,
}

/// The readers' side of the index, shared by `Arc`.
pub struct PrefixIndex {
    /// Table of segments; replaced when it becomes too small, while readers finish with the old one.
    heads: ArcSwap<SegmentTable>,
    /// Hints about segments that could be joined.
    merge_hints: MergeHints,
    /// Current age; the writer advances it.
    epoch: AtomicU32,
    bytes: AtomicUsize,
    n_blocks: AtomicUsize,
}

impl PrefixIndex {
    /// Returns what each worker holds of the chain `keys`, longest first, then by worker.
    ///
    /// Shape: `keys` `[n]` in the order of the chain -> at most one match a worker.
    /// Cost: one probe and one comparison for each segment that the chain passes, O(log n) comparisons if the chain
    /// leaves a segment, O(1) for each worker found. Takes no lock.
    pub fn matches(&self, keys: &[BlockKey]) -> Vec<Match> {
        search::matches(&self.heads.load(), keys)
    }

    /// Marks the blocks `keys` as matched, so that they are evicted later than others and found faster.
    pub fn touch(&self, keys: &[BlockKey]) {
        let epoch = self.epoch.load(Ordering::Relaxed);
        let path = search::walk(&self.heads.load(), keys);
        path.iter().for_each(|step| step.segment().touch(epoch));
        for pair in path.windows(2).filter(|pair| pair[0].is_whole()) {
            self.merge_hints.note(pair[0].segment(), pair[1].segment());
        }
    }

    /// Returns the memory in use. Units: bytes.
    pub fn bytes(&self) -> usize {
        self.bytes.load(Ordering::Relaxed)
    }

    /// Returns the number of distinct blocks.
    pub fn n_blocks(&self) -> usize {
        self.n_blocks.load(Ordering::Relaxed)
    }
}

/// Hash function of block keys in the index's tables, with one secret.
///
/// Keys are hashes already, but workers choose them; a multiplication by a secret odd number keeps workers from
/// choosing keys that collide.
#[derive(Debug, Clone, Copy)]
struct Hasher {
    multiplier: u64,
}

impl Hasher {
    /// Odd number without a pattern, which spreads bits over the upper half of a product.
    ///
    /// Source: splitmix64 (Steele, Lea, Flood 2014), first multiplier.
    const SPREAD: u64 = 0xbf58_476d_1ce4_e5b9;

    /// Returns the hash function of a secret.
    fn new(seed: u64) -> Self {
        // The bits of the golden ratio keep a seed of 0 from becoming a multiplier of 1.
        let spread = (seed ^ 0x9e37_79b9_7f4a_7c15).wrapping_mul(Self::SPREAD);
        Self { multiplier: (spread ^ spread >> 29) | 1 }
    }

    /// Returns the hash of a key, which is never 0.
    fn hash(self, BlockKey(key): BlockKey) -> u64 {
        let product = u128::from(key ^ self.multiplier) * u128::from(self.multiplier);
        ((product >> 64) as u64 ^ product as u64).max(1)
    }
}

#[cfg(test)]
mod tests;
