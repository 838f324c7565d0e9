//! The adapter to our own index.
//!
//! Measuring is in `measure`. The index is fed with runs, as the router's tracker feeds it; a run does not name its
//! parent. Routed prompts are touched, as the router does after each request.

use std::sync::Arc;

use warmpath_common::block_hash::BlockKey;
use warmpath_common::ids::SlotId;
use warmpath_common::summary::{Resume, Run, RunState, Tier};
use warmpath_router_core::WorkerIdx;
use warmpath_router_core::index::{IndexOptions, IndexWriter, Match, PrefixIndex};

use super::measure::Subject;
use super::workload::Stretch;

/// Maximum memory of the index, which no benchmark reaches. Units: bytes.
const INDEX_BYTES_MAX: usize = 4 << 30;

/// Both sides of the index.
pub struct Ours {
    writer: IndexWriter,
    index: Arc<PrefixIndex>,
}

impl Ours {
    /// Returns an empty index.
    pub fn new(seed: u64) -> Self {
        let writer = IndexWriter::new(IndexOptions { bytes_max: INDEX_BYTES_MAX, seed });
        let index = writer.reader();
        Self { writer, index }
    }
}

/// One change of what a worker holds.
pub enum Change {
    /// The worker holds a run.
    Stored(WorkerIdx, Run),
    /// The worker has lost blocks.
    Removed(WorkerIdx, Vec<BlockKey>),
}

/// Returns a run of `keys` in a slot.
fn run_of(keys: &[u64], slot: u16) -> Run {
    Run {
        keys: keys.iter().copied().map(BlockKey).collect(),
        tier: Tier::Resident,
        slot: Some(SlotId(slot)),
        state: RunState::Ready,
        resume: Resume::EveryBlock,
    }
}

impl Subject for Ours {
    type Change = Change;
    type Ask = Vec<BlockKey>;
    type Answer = Vec<Match>;

    fn stored(&self, stretch: Stretch, _parent: Option<u64>, keys: &[u64]) -> Change {
        Change::Stored(WorkerIdx(stretch.worker), run_of(keys, stretch.slot))
    }

    fn removed(&self, stretch: Stretch, keys: &[u64]) -> Change {
        Change::Removed(WorkerIdx(stretch.worker), keys.iter().copied().map(BlockKey).collect())
    }

    fn apply(&mut self, change: Change) {
        match change {
            Change::Stored(worker, run) => self.writer.insert(worker, &run),
            Change::Removed(worker, keys) => self.writer.remove(worker, &keys),
        }
    }

    fn replace(&mut self, worker: u32, view: Vec<Change>) {
        let run = |change| match change {
            Change::Stored(_, run) => Some(run),
            Change::Removed(..) => None,
        };
        let runs: Vec<Run> = view.into_iter().filter_map(run).collect();
        self.writer.replace_worker(WorkerIdx(worker), runs);
    }

    fn routed(&self, keys: &[u64]) {
        self.index.touch(&self.ask(keys));
    }

    fn ask(&self, keys: &[u64]) -> Vec<BlockKey> {
        keys.iter().copied().map(BlockKey).collect()
    }

    fn look_up(&self, ask: Vec<BlockKey>) -> Vec<Match> {
        self.index.matches(&ask)
    }

    fn read(answer: Vec<Match>) -> Vec<(u32, u32)> {
        answer.iter().map(|prefix_match| (prefix_match.blocks, prefix_match.worker.0)).collect()
    }

    fn bytes(&self) -> usize {
        self.index.bytes()
    }
}
