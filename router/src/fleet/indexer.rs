//! The indexer: the one thread that changes the prefix index.
//!
//! Not here: what a worker's load is (`tracker`), reading streams (`subscriber`).
//! The idea: a snapshot of a million blocks takes some hundred milliseconds to take in. On a thread of its own it holds up
//! no request and no worker's load. A view of blocks that is as old as that costs almost nothing; a load that old does
//! (docs/decisions/0000-measured-before.md). After every update that says a digest, both sides must hold the same blocks.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use tokio::sync::{mpsc, oneshot, watch};
use warmpath_common::summary::{Change, Digest, Run};
use warmpath_router_core::WorkerIdx;
use warmpath_router_core::index::IndexWriter;

use super::Fleet;

/// Is the most reports that are taken in before what is published of them is renewed.
const BATCH_MAX: usize = 256;

/// Is what the subscribers tell the indexer.
pub enum BlockReport {
    /// A worker holds these blocks and no others.
    Replace {
        /// Names the worker.
        worker: WorkerIdx,
        /// Lists what it holds.
        runs: Vec<Run>,
    },
    /// A worker holds more, or less.
    Update {
        /// Names the worker.
        worker: WorkerIdx,
        /// Lists the changes in order.
        changes: Vec<Change>,
        /// Is the digest of its blocks after the changes, where it says one.
        digest: Option<Digest>,
        /// Is dropped once look-ups find the changes.
        pending: Option<oneshot::Sender<()>>,
    },
    /// The view of a worker is followed again without a snapshot.
    Resumed {
        /// Names the worker.
        worker: WorkerIdx,
    },
    /// A worker's stream has ended: what is known of it may not hold any more.
    Lost {
        /// Names the worker.
        worker: WorkerIdx,
    },
    /// A worker is gone, and with it what it held.
    Gone {
        /// Names the worker.
        worker: WorkerIdx,
    },
}

impl BlockReport {
    /// Returns the worker that it is about.
    fn worker(&self) -> WorkerIdx {
        match self {
            Self::Replace { worker, .. }
            | Self::Update { worker, .. }
            | Self::Resumed { worker }
            | Self::Lost { worker }
            | Self::Gone { worker } => *worker,
        }
    }
}

/// Says why a view cannot be trusted any more, so that a snapshot is needed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Distrust {
    /// Worker and router do not hold the same blocks to be there.
    #[error("the worker holds {} blocks, this router counts {}, or others", .said.n_blocks, .counted.n_blocks)]
    Digest {
        /// Is what the worker says.
        said: Digest,
        /// Is what the index has.
        counted: Digest,
    },
    /// The worker claims more blocks than are believed.
    #[error("the worker claims {n_blocks} blocks, more than are believed")]
    TooManyBlocks {
        /// Is their number.
        n_blocks: usize,
    },
}

impl Distrust {
    /// Returns a short name for metrics.
    pub fn label(&self) -> &'static str {
        match self {
            Self::Digest { .. } => "digest",
            Self::TooManyBlocks { .. } => "too_many_blocks",
        }
    }
}

/// Is what is published of a worker's blocks; nothing is known of them by default.
#[derive(Debug, Default)]
pub struct BlockView {
    n_blocks: AtomicUsize,
    digest: Mutex<Option<Digest>>,
    is_current: AtomicBool,
    distrust: watch::Sender<Option<Distrust>>,
}

impl BlockView {
    /// Returns the number of blocks that the index has of the worker.
    pub fn n_blocks(&self) -> usize {
        self.n_blocks.load(Ordering::Relaxed)
    }

    /// Returns the digest of those blocks; absent where some are missing for the index's memory limit.
    pub fn digest(&self) -> Option<Digest> {
        *self.digest.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns whether that is what the worker says; otherwise it is what it said before its stream was lost.
    pub fn is_current(&self) -> bool {
        self.is_current.load(Ordering::Relaxed)
    }

    /// Returns where it is told that the view cannot be trusted.
    pub fn distrusts(&self) -> watch::Receiver<Option<Distrust>> {
        self.distrust.subscribe()
    }
}

/// Takes in reports until every sender has gone.
pub fn index(fleet: &Arc<Fleet>, writer: IndexWriter, mut inbox: mpsc::Receiver<BlockReport>, blocks_max: usize) {
    let mut indexer = Indexer { writer, blocks_max };
    let mut batch = Vec::with_capacity(BATCH_MAX);
    while inbox.blocking_recv_many(&mut batch, BATCH_MAX) > 0 {
        for report in batch.drain(..) {
            lift_doubts(fleet, &report);
            let worker = report.worker();
            let n_filling = indexer.apply(&fleet.member(worker).blocks, report);
            tell_of_filling(fleet, worker, n_filling);
        }
        fleet.n_shed.store(indexer.writer.n_shed(), Ordering::Relaxed);
    }
}

/// Believes a worker again in what it announces anew.
fn lift_doubts(fleet: &Fleet, report: &BlockReport) {
    let now = Instant::now();
    match report {
        BlockReport::Replace { worker, .. } => fleet.books().doubts().announced_all(*worker, now),
        BlockReport::Update { worker, changes, .. } => {
            for change in changes {
                if let Change::Stored(run) = change {
                    fleet.books().doubts().announced(*worker, run.keys.clone(), now);
                }
            }
        }
        BlockReport::Resumed { .. } | BlockReport::Lost { .. } | BlockReport::Gone { .. } => {}
    }
}

/// Counts the blocks that a worker is about to fill as work that it was given.
fn tell_of_filling(fleet: &Fleet, worker: WorkerIdx, n_blocks: usize) {
    if n_blocks == 0 {
        return;
    }
    let view = fleet.view();
    let model = view.worker(worker).and_then(|view| view.model.as_ref());
    let block_size_tokens = model.map_or(0, |model| model.block_size_tokens);
    fleet.books().filling(worker, n_blocks as u64 * u64::from(block_size_tokens));
}

struct Indexer {
    writer: IndexWriter,
    blocks_max: usize,
}

impl Indexer {
    /// Takes a report in; returns how many blocks it says to be filling of which nothing was said before.
    fn apply(&mut self, view: &BlockView, report: BlockReport) -> usize {
        let worker = report.worker();
        let mut n_filling = 0;
        let current = |is_current| view.is_current.store(is_current, Ordering::Relaxed);
        match report {
            BlockReport::Replace { runs, .. } => {
                self.writer.replace_worker(worker, &runs);
                view.distrust.send_replace(None);
                current(true);
            }
            BlockReport::Update { changes, digest, pending, .. } => {
                n_filling = changes.iter().map(|change| self.writer.apply(worker, change)).sum();
                drop(pending);
                self.check(view, (worker, digest));
            }
            BlockReport::Resumed { .. } => current(true),
            BlockReport::Lost { .. } => current(false),
            BlockReport::Gone { .. } => {
                self.writer.remove_worker(worker);
                current(false);
            }
        }
        view.n_blocks.store(self.writer.n_blocks_of(worker), Ordering::Relaxed);
        *view.digest.lock().unwrap_or_else(PoisonError::into_inner) = self.writer.digest_of(worker);
        n_filling
    }

    /// Compares what the index has of a worker with what it says; a view that is distrusted already stays so.
    fn check(&self, view: &BlockView, (worker, said): (WorkerIdx, Option<Digest>)) {
        let n_blocks = self.writer.n_blocks_of(worker);
        let differs = || {
            let (said, counted) = (said?, self.writer.digest_of(worker)?);
            (said != counted).then_some(Distrust::Digest { said, counted })
        };
        let too_many = || (n_blocks > self.blocks_max).then_some(Distrust::TooManyBlocks { n_blocks });
        if let Some(distrust) = too_many().or_else(differs) {
            view.distrust.send_if_modified(|known| known.replace(distrust).is_none());
        }
    }
}

#[cfg(test)]
mod tests {
    use warmpath_common::block_hash::BlockKey;
    use warmpath_common::summary::{Resume, RunState, Tier};
    use warmpath_router_core::index::IndexOptions;

    use super::*;

    const WORKER: WorkerIdx = WorkerIdx(0);

    struct Rig {
        indexer: Indexer,
        view: BlockView,
        distrusts: watch::Receiver<Option<Distrust>>,
    }

    impl Rig {
        fn new() -> Self {
            let writer = IndexWriter::new(IndexOptions { bytes_max: 1 << 20, seed: 7 });
            let view = BlockView::default();
            let distrusts = view.distrusts();
            Self { indexer: Indexer { writer, blocks_max: 10 }, view, distrusts }
        }

        /// Applies a report; returns the label of the distrust that it raised.
        fn apply(&mut self, report: BlockReport) -> Option<&'static str> {
            self.indexer.apply(&self.view, report);
            let is_new = self.distrusts.has_changed().expect("the sender lives");
            let distrust = *self.distrusts.borrow_and_update();
            distrust.filter(|_| is_new).map(|distrust| distrust.label())
        }
    }

    fn run(keys: std::ops::Range<u64>) -> Run {
        Run {
            keys: keys.map(BlockKey).collect(),
            tier: Tier::Resident,
            state: RunState::Ready,
            resume: Resume::EveryBlock,
            slot: None,
        }
    }

    fn update(change: Change, digest: Option<Digest>) -> BlockReport {
        BlockReport::Update { worker: WORKER, changes: vec![change], digest, pending: None }
    }

    #[test]
    fn a_digest_that_differs_raises_one_distrust_until_a_snapshot_comes() {
        let mut rig = Rig::new();
        let replace = |keys| BlockReport::Replace { worker: WORKER, runs: vec![run(keys)] };
        let of = |keys: std::ops::Range<u64>| Some(Digest::of(&run(keys).keys));
        assert_eq!(rig.apply(replace(0..3)), None);
        assert_eq!(rig.apply(update(Change::Stored(run(3..5)), of(0..5))), None);
        assert_eq!(rig.apply(update(Change::Removed(vec![BlockKey(4)]), of(0..4))), None);
        assert_eq!(rig.apply(update(Change::Removed(vec![BlockKey(3)]), None)), None, "nothing to compare with");
        assert_eq!(rig.apply(update(Change::Stored(run(3..4)), of(0..3))), Some("digest"));
        assert_eq!(rig.apply(update(Change::Stored(run(4..5)), of(0..3))), None, "it is known");
        assert_eq!(rig.apply(replace(0..2)), None);
        assert_eq!(rig.apply(update(Change::Stored(run(2..3)), of(0..3))), None, "all is well again");
        assert_eq!(rig.apply(update(Change::Stored(run(3..4)), of(0..3))), Some("digest"));
    }

    #[test]
    fn whoever_waits_for_changes_is_told_once_look_ups_find_them() {
        let mut rig = Rig::new();
        let (pending, mut indexed) = oneshot::channel();
        let changes = vec![Change::Stored(run(0..2))];
        let report = BlockReport::Update { worker: WORKER, changes, digest: None, pending: Some(pending) };
        assert_eq!(indexed.try_recv(), Err(oneshot::error::TryRecvError::Empty));
        rig.apply(report);
        assert_eq!(indexed.try_recv(), Err(oneshot::error::TryRecvError::Closed));
        assert_eq!(rig.indexer.writer.reader().matches(&run(0..2).keys)[0].blocks, 2);
    }

    #[test]
    fn a_block_that_is_said_to_be_filling_for_the_first_time_is_counted_once() {
        let mut rig = Rig::new();
        let mut n_filling = |change| rig.indexer.apply(&rig.view, update(change, None));
        let filling = |keys| Change::Stored(Run { state: RunState::Filling, ..run(keys) });
        assert_eq!(n_filling(filling(0..3)), 3);
        assert_eq!(n_filling(filling(1..5)), 2, "its request starts");
        assert_eq!(n_filling(Change::Stored(run(0..5))), 0, "it is computed");
        assert_eq!(n_filling(Change::Stored(run(5..6))), 0, "an answer");
        assert_eq!(n_filling(Change::Removed(run(0..6).keys)), 0);
        assert_eq!(n_filling(filling(0..2)), 2, "it is computed again");
    }

    #[test]
    fn more_blocks_than_believed_raise_a_distrust() {
        let mut rig = Rig::new();
        assert_eq!(rig.apply(update(Change::Stored(run(0..10)), None)), None);
        assert_eq!(rig.apply(update(Change::Stored(run(10..11)), None)), Some("too_many_blocks"));
    }

    #[test]
    fn a_view_is_current_from_its_snapshot_until_its_stream_is_lost() {
        let mut rig = Rig::new();
        let mut check = |report, expected| {
            rig.apply(report);
            let view = &rig.view;
            assert_eq!((view.is_current(), view.n_blocks()), expected);
            assert_eq!(view.digest(), Some(Digest::of(&run(0..expected.1 as u64).keys)));
        };
        check(update(Change::Stored(run(0..1)), None), (false, 1));
        check(BlockReport::Replace { worker: WORKER, runs: vec![run(0..2)] }, (true, 2));
        check(BlockReport::Lost { worker: WORKER }, (false, 2));
        check(BlockReport::Resumed { worker: WORKER }, (true, 2));
        check(BlockReport::Gone { worker: WORKER }, (false, 0));
    }
}
