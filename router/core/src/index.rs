//! The prefix index: which worker holds how much of a chain of blocks.
//!
//! Not here: what a match is worth (`cost`), whether a worker may be used (`choose`).
//! The idea: a worker holds the prefix of a chain, so consecutive blocks are held in the same way and are kept together
//! in segments; a look-up takes one probe for each segment. Segments never change, they are replaced: one writer owns the
//! changes, and readers share what is there and wait for nobody. What the index holds never takes more than its limit:
//! what was matched longest ago goes first. A block that was shed costs a hit, never a wrong answer.

mod hash;
mod heads;
mod locator;
mod search;
mod segment;
mod span;
mod walked;
mod writer;

use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};

use arc_swap::ArcSwap;
use warmpath_common::block_hash::BlockKey;
use warmpath_common::ids::SlotId;
use warmpath_common::summary::{RunState, Tier};

use self::heads::Heads;
use self::walked::Walked;
pub use self::writer::{IndexWriter, Replacement};
use crate::WorkerIdx;

/// Bounds a prefix index.
#[derive(Debug, Clone, Copy)]
pub struct IndexOptions {
    /// Is the most memory that the index takes. Units: bytes.
    pub bytes_max: usize,
    /// Keeps workers from choosing keys that collide; any random number.
    pub seed: u64,
}

/// Says how much of a chain one worker holds, and how.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Match {
    /// Names the worker.
    pub worker: WorkerIdx,
    /// Is the number of leading blocks behind which the worker can start; at least 1.
    pub blocks: u32,
    /// Says where the last of them lies.
    pub tier: Tier,
    /// Says whether the last of them is computed.
    pub state: RunState,
    /// Names the slot that holds the last of them.
    pub slot: Option<SlotId>,
}

/// Is the readers' side of the index, shared by `Arc`.
pub struct PrefixIndex {
    /// Is replaced when it becomes too small; a reader keeps the one that it has begun with.
    heads: ArcSwap<Heads>,
    /// Takes note of segments that could be one.
    walked: Walked,
    /// Is the present age; the writer advances it.
    epoch: AtomicU32,
    bytes: AtomicUsize,
    n_blocks: AtomicUsize,
}

impl PrefixIndex {
    /// Returns what each worker holds of the chain `keys`, longest first, then by worker.
    ///
    /// Shape: `keys` `[n]` in the order of the chain -> at most one match a worker.
    /// Cost: one probe and one comparison for each segment that the chain passes, O(log n) comparisons where it parts
    /// from one, O(1) for each worker found. Takes no lock.
    pub fn matches(&self, keys: &[BlockKey]) -> Vec<Match> {
        search::matches(&self.heads.load(), keys)
    }

    /// Marks the blocks `keys` as matched, so that they are shed later than others and found faster.
    pub fn touch(&self, keys: &[BlockKey]) {
        let epoch = self.epoch.load(Ordering::Relaxed);
        let path = search::walk(&self.heads.load(), keys);
        path.iter().for_each(|step| step.segment().touch(epoch));
        for pair in path.windows(2).filter(|pair| pair[0].is_whole()) {
            self.walked.note(pair[0].segment(), pair[1].segment());
        }
    }

    /// Returns the memory in use. Units: bytes.
    pub fn bytes(&self) -> usize {
        self.bytes.load(Ordering::Relaxed)
    }

    /// Returns the number of different blocks.
    pub fn n_blocks(&self) -> usize {
        self.n_blocks.load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests;
