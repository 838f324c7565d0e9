//! The crate `kv-index`: SMG's `ChainIndex`, a tree of runs with bitsets of workers.
//!
//! Measuring is in `measure`. The index is fed as SMG's gateway feeds it, by one writer with one lane map per worker.
//! It is queried through `score_into`, which allocates nothing but the result.

use kv_index::{ChainBlockMap, ChainIndex, ContentHash, SequenceHash, StoredBlock};

use crate::measure::Subject;
use crate::workload::Stretch;

/// Memory of one slot of a lane map: 16 bytes and a tag. Units: bytes.
///
/// Source: `ChainBlockMap::capacity` of kv-index 2.0.0.
const LANE_SLOT_BYTES: usize = 17;

/// The index and the lane maps of its workers.
pub struct Chain {
    index: ChainIndex,
    ids: Vec<u32>,
    maps: Vec<ChainBlockMap>,
}

impl Chain {
    /// Returns an empty index for `n_workers` workers.
    pub fn new(n_workers: u32) -> Self {
        let index = ChainIndex::with_max_workers(n_workers as usize);
        let intern = |worker: u32| index.intern_worker(&worker.to_string()).expect("the index was made for so many");
        let ids = (0..n_workers).map(intern).collect();
        Self { index, ids, maps: (0..n_workers).map(|_| ChainBlockMap::new()).collect() }
    }
}

/// One event of one worker.
pub enum Change {
    /// Blocks were stored after a parent.
    Stored { worker: u32, parent: Option<SequenceHash>, blocks: Vec<StoredBlock> },
    /// Blocks were removed.
    Removed { worker: u32, keys: Vec<SequenceHash> },
}

impl Subject for Chain {
    type Change = Change;
    type Ask = Vec<ContentHash>;
    type Answer = Vec<(u32, u32)>;

    fn stored(&self, stretch: Stretch, parent: Option<u64>, keys: &[u64]) -> Change {
        let block = |&key: &u64| StoredBlock { seq_hash: SequenceHash(key), content_hash: ContentHash(key) };
        Change::Stored {
            worker: stretch.worker,
            parent: parent.map(SequenceHash),
            blocks: keys.iter().map(block).collect(),
        }
    }

    fn removed(&self, stretch: Stretch, keys: &[u64]) -> Change {
        Change::Removed { worker: stretch.worker, keys: keys.iter().copied().map(SequenceHash).collect() }
    }

    fn apply(&mut self, change: Change) {
        match change {
            Change::Stored { worker, parent, blocks } => {
                let map = &mut self.maps[worker as usize];
                let outcome = self.index.apply_stored(self.ids[worker as usize], &blocks, parent, map);
                outcome.expect("a parent is stored before its children");
            }
            Change::Removed { worker, keys } => {
                self.index.apply_removed(self.ids[worker as usize], &keys, &mut self.maps[worker as usize]);
            }
        }
    }

    fn replace(&mut self, worker: u32, view: Vec<Change>) {
        self.index.apply_cleared(self.ids[worker as usize], &mut self.maps[worker as usize]);
        view.into_iter().for_each(|change| self.apply(change));
    }

    fn routed(&self, _keys: &[u64]) {}

    fn ask(&self, keys: &[u64]) -> Vec<ContentHash> {
        keys.iter().copied().map(ContentHash).collect()
    }

    fn look_up(&self, ask: Vec<ContentHash>) -> Vec<(u32, u32)> {
        let mut matches = Vec::new();
        self.index.score_into(&ask, |content| content.0, false, |worker, score| matches.push((score, worker)));
        matches
    }

    fn read(answer: Self::Answer) -> Vec<(u32, u32)> {
        answer
    }

    /// Returns the used memory of the arena and the slab, and that of the lane maps, which removals need.
    fn bytes(&self) -> usize {
        let stats = self.index.stats();
        let lanes: usize = self.maps.iter().map(|map| map.capacity() * LANE_SLOT_BYTES).sum();
        stats.arena_bytes + stats.header_bytes + lanes
    }
}
