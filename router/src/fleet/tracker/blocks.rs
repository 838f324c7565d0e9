//! The tracker's writes to the prefix index, of which it is the only writer.
//!
//! Inserting a view of a million blocks takes some hundred milliseconds, and loads of other workers that are as old are
//! misleading (docs/decisions/0000-measured-before.md). So a view is inserted in slices, with reports of other workers
//! in between. Reports of the same worker wait for its view, in order. After every update with a digest, worker and
//! router must have the same blocks.
//!
//! Not here: the index itself (`warmpath-router-core`), the rest of the view (the module above).

use std::collections::VecDeque;

use tokio::sync::watch;
use warmpath_common::summary::{Change, Digest, Run};
use warmpath_router_core::WorkerIdx;
use warmpath_router_core::fleet::KnownBlocks;
use warmpath_router_core::index::{IndexWriter, Replacement};

use crate::fleet::TrackerMessage;

/// Blocks of a view that are inserted before the tracker reads its inbox again.
///
/// Source: own choice: a millisecond's work.
const SLICE_BLOCKS: usize = 8192;

/// Maximum number of reports of one worker that wait for its view; with one more, the rest of the view is inserted at
/// once.
///
/// Source: own choice: a second of updates, ten times as long as the insertion of a view takes.
const BEHIND_MAX: usize = 128;

/// Reason why a view cannot be trusted any more, so that a snapshot is needed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum StaleReport {
    /// Worker and router do not have the same blocks.
    #[error("the worker holds {} blocks, this router counts {}, or the blocks differ", .said.n_blocks, .counted.n_blocks)]
    Digest {
        /// Digest from the worker.
        said: Digest,
        /// Digest of the index.
        counted: Digest,
    },
    /// The worker announces more blocks than the limit.
    #[error("the worker announces {n_blocks} blocks, more than the limit")]
    TooManyBlocks {
        /// Number of blocks.
        n_blocks: usize,
    },
}

impl StaleReport {
    /// Returns a short name for metrics.
    pub fn label(&self) -> &'static str {
        match self {
            Self::Digest { .. } => "digest",
            Self::TooManyBlocks { .. } => "too_many_blocks",
        }
    }
}

/// Notice to a worker's subscriber that the view cannot be trusted.
#[derive(Debug, Default)]
pub struct StaleReports(watch::Sender<Option<StaleReport>>);

impl StaleReports {
    /// Returns a receiver of the notice.
    pub fn subscribe(&self) -> watch::Receiver<Option<StaleReport>> {
        self.0.subscribe()
    }

    /// Sends the notice, unless the view is distrusted already.
    pub(super) fn raise(&self, stale_report: StaleReport) {
        self.0.send_if_modified(|known| known.replace(stale_report).is_none());
    }

    /// Records a new view, which is trusted.
    pub(super) fn settle(&self) {
        self.0.send_replace(None);
    }
}

/// A worker's view that is being inserted into the index.
struct Arriving {
    view: Replacement,
    /// Later reports of the worker.
    behind: Vec<TrackerMessage>,
}

/// A worker whose view is in the index.
pub(super) struct Arrived {
    pub(super) worker: WorkerIdx,
    /// Later reports of the worker, in order.
    pub(super) behind: Vec<TrackerMessage>,
}

/// Writer of the prefix index.
pub(super) struct Blocks {
    writer: IndexWriter,
    /// Most blocks that one worker may announce.
    blocks_max: usize,
    /// Views in order of arrival; at most one per worker.
    arriving: VecDeque<Arriving>,
}

impl Blocks {
    /// Returns a writer without workers.
    pub(super) fn new(writer: IndexWriter, blocks_max: usize) -> Self {
        Self { writer, blocks_max, arriving: VecDeque::new() }
    }

    /// Returns whether a view is being inserted.
    pub(super) fn is_busy(&self) -> bool {
        !self.arriving.is_empty()
    }

    /// Returns the number of entries dropped for the memory limit so far.
    pub(super) fn n_shed(&self) -> u64 {
        self.writer.n_shed()
    }

    /// Begins to insert a worker's view; none of the same worker may be in progress.
    pub(super) fn begin(&mut self, worker: WorkerIdx, runs: Vec<Run>) {
        self.arriving.push_back(Arriving { view: self.writer.begin(worker, runs), behind: Vec::new() });
    }

    /// Returns the report if it need not wait; otherwise keeps it until its worker's view is complete.
    pub(super) fn pass(&mut self, report: TrackerMessage) -> Option<TrackerMessage> {
        let worker = report.worker();
        let is_its = |arriving: &Arriving| Some(arriving.view.worker()) == worker;
        let Some(place) = self.arriving.iter().position(is_its) else { return Some(report) };
        self.arriving[place].behind.push(report);
        if self.arriving[place].behind.len() > BEHIND_MAX {
            // Insert its view next.
            self.arriving.swap(0, place);
            while !self.arriving[0].view.is_done() {
                self.writer.insert_part(&mut self.arriving[0].view, usize::MAX);
            }
        }
        None
    }

    /// Inserts the next slice of the waiting views; returns the workers whose view is now in the index.
    pub(super) fn take_in_slice(&mut self) -> Vec<Arrived> {
        let (mut n_left, mut arrived) = (SLICE_BLOCKS, Vec::new());
        while n_left > 0
            && let Some(mut first) = self.arriving.pop_front()
        {
            // A view without blocks costs some work, too.
            n_left = n_left.saturating_sub(self.writer.insert_part(&mut first.view, n_left).max(1));
            if first.view.is_done() {
                arrived.push(Arrived { worker: first.view.worker(), behind: first.behind });
            } else {
                self.arriving.push_front(first);
            }
        }
        arrived
    }

    /// Applies changes; returns the number of blocks announced as prefilling for the first time.
    pub(super) fn update(&mut self, worker: WorkerIdx, changes: &[Change]) -> usize {
        changes.iter().map(|change| self.writer.apply(worker, change)).sum()
    }

    /// Removes all blocks of a worker.
    pub(super) fn remove(&mut self, worker: WorkerIdx) {
        self.writer.remove_worker(worker);
    }

    /// Returns `was` with the present number and digest of a worker's blocks.
    pub(super) fn known(&self, worker: WorkerIdx, was: KnownBlocks) -> KnownBlocks {
        KnownBlocks { n_blocks: self.writer.n_blocks_of(worker), digest: self.writer.digest_of(worker), ..was }
    }

    /// Compares the index with the worker's digest; returns the reason if its view cannot be trusted.
    pub(super) fn check(&self, worker: WorkerIdx, said: Option<Digest>) -> Option<StaleReport> {
        let n_blocks = self.writer.n_blocks_of(worker);
        let differs = || {
            let (said, counted) = (said?, self.writer.digest_of(worker)?);
            (said != counted).then_some(StaleReport::Digest { said, counted })
        };
        let too_many = (n_blocks > self.blocks_max).then_some(StaleReport::TooManyBlocks { n_blocks });
        too_many.or_else(differs)
    }
}

#[cfg(test)]
pub(super) mod tests {
    use warmpath_common::block_hash::BlockKey;
    use warmpath_common::summary::{Resume, RunState, Tier};
    use warmpath_router_core::index::IndexOptions;

    use super::*;

    const WORKER: WorkerIdx = WorkerIdx(0);
    const OTHER: WorkerIdx = WorkerIdx(1);

    fn blocks(blocks_max: usize) -> Blocks {
        Blocks::new(IndexWriter::new(IndexOptions { bytes_max: 64 << 20, seed: 7 }), blocks_max)
    }

    /// Returns a run of resident blocks.
    pub(in crate::fleet::tracker) fn run(keys: std::ops::Range<u64>) -> Run {
        Run {
            keys: keys.map(BlockKey).collect(),
            tier: Tier::Resident,
            state: RunState::Ready,
            resume: Resume::EveryBlock,
            slot: None,
        }
    }

    fn update(worker: WorkerIdx, keys: std::ops::Range<u64>) -> TrackerMessage {
        TrackerMessage::Update { worker, changes: vec![Change::Stored(run(keys))], load: None, digest: None }
    }

    #[test]
    fn a_digest_that_differs_raises_one_distrust_until_a_snapshot_comes() {
        let mut blocks = blocks(10);
        let stale_reports = StaleReports::default();
        let mut told = stale_reports.subscribe();
        let mut check = |change, said: Option<std::ops::Range<u64>>| {
            blocks.update(WORKER, &[change]);
            let said = said.map(|keys| Digest::of(&run(keys).keys));
            blocks.check(WORKER, said).into_iter().for_each(|stale_report| stale_reports.raise(stale_report));
            let is_new = told.has_changed().expect("the sender lives");
            let stale_report = *told.borrow_and_update();
            stale_report.filter(|_| is_new).map(|stale_report| stale_report.label())
        };
        assert_eq!(check(Change::Stored(run(0..5)), Some(0..5)), None);
        assert_eq!(check(Change::Removed(vec![BlockKey(4)]), Some(0..4)), None);
        assert_eq!(check(Change::Removed(vec![BlockKey(3)]), None), None, "nothing to compare with");
        assert_eq!(check(Change::Stored(run(3..4)), Some(0..3)), Some("digest"));
        assert_eq!(check(Change::Stored(run(4..5)), Some(0..3)), None, "it is known");
        stale_reports.settle();
        assert_eq!(check(Change::Stored(run(0..5)), Some(0..5)), None, "both agree again");
        assert_eq!(check(Change::Stored(run(5..6)), Some(0..5)), Some("digest"));
    }

    #[test]
    fn a_pending_block_is_counted_when_it_is_first_announced() {
        let mut blocks = blocks(10);
        let mut n_filling = |change| blocks.update(WORKER, &[change]);
        let filling = |keys| Change::Stored(Run { state: RunState::Filling, ..run(keys) });
        assert_eq!(n_filling(filling(0..3)), 3);
        assert_eq!(n_filling(filling(1..5)), 2, "its request starts");
        assert_eq!(n_filling(Change::Stored(run(0..5))), 0, "it is computed");
        assert_eq!(n_filling(Change::Stored(run(5..6))), 0, "blocks of a response do not count");
        assert_eq!(n_filling(Change::Removed(run(0..6).keys)), 0);
        assert_eq!(n_filling(filling(0..2)), 2, "it is computed again");
    }

    #[test]
    fn more_blocks_than_allowed_raise_a_distrust() {
        let mut blocks = blocks(10);
        blocks.update(WORKER, &[Change::Stored(run(0..10))]);
        assert_eq!(blocks.check(WORKER, None), None);
        blocks.update(WORKER, &[Change::Stored(run(10..11))]);
        assert_eq!(blocks.check(WORKER, None), Some(StaleReport::TooManyBlocks { n_blocks: 11 }));
    }

    /// Returns a view of this many slices.
    fn view(n_slices: u64) -> Vec<Run> {
        let slice = SLICE_BLOCKS as u64;
        (0..n_slices).map(|n| run(n * slice..(n + 1) * slice)).collect()
    }

    #[test]
    fn a_worker_s_report_waits_for_its_view_and_other_workers_reports_do_not() {
        let mut blocks = blocks(usize::MAX);
        blocks.begin(WORKER, view(3));
        assert!(blocks.take_in_slice().is_empty());
        assert!(blocks.pass(update(WORKER, 0..1)).is_none());
        assert!(blocks.pass(TrackerMessage::Lost { worker: WORKER, reason: "a test's".into() }).is_none());
        assert!(blocks.pass(update(OTHER, 0..1)).is_some());
        assert!(blocks.pass(TrackerMessage::Vocabulary).is_some());
        assert!(blocks.take_in_slice().is_empty() && blocks.is_busy());
        let [Arrived { worker: WORKER, behind }] = &blocks.take_in_slice()[..] else {
            panic!("one slice completes the view")
        };
        assert!(matches!(behind[..], [TrackerMessage::Update { .. }, TrackerMessage::Lost { .. }]), "in order");
        assert!(!blocks.is_busy() && blocks.pass(update(WORKER, 0..1)).is_some());
        assert_eq!(blocks.known(WORKER, KnownBlocks::default()).n_blocks, 3 * SLICE_BLOCKS);
    }

    #[test]
    fn views_arrive_in_order_and_small_ones_in_one_slice() {
        let mut blocks = blocks(usize::MAX);
        blocks.begin(WORKER, vec![run(0..10)]);
        blocks.begin(OTHER, Vec::new());
        blocks.begin(WorkerIdx(2), view(1));
        let arrived: Vec<_> = blocks.take_in_slice().iter().map(|arrived| arrived.worker).collect();
        assert_eq!(arrived, [WORKER, OTHER, WorkerIdx(2)]);
    }

    #[test]
    fn reports_that_wait_for_a_view_are_bounded() {
        let mut blocks = blocks(usize::MAX);
        blocks.begin(WORKER, view(100));
        for _ in 0..=BEHIND_MAX {
            assert!(blocks.pass(update(WORKER, 0..1)).is_none());
        }
        let arrived = blocks.take_in_slice();
        assert_eq!(arrived.iter().map(|arrived| arrived.behind.len()).sum::<usize>(), BEHIND_MAX + 1);
    }

    #[test]
    fn the_count_of_a_worker_s_blocks_is_that_of_the_index() {
        let mut blocks = blocks(10);
        blocks.update(WORKER, &[Change::Stored(run(0..2))]);
        let known = |blocks: &Blocks| {
            let known = blocks.known(WORKER, KnownBlocks { is_current: true, ..KnownBlocks::default() });
            assert!(known.is_current, "another function decides this");
            (known.n_blocks, known.digest)
        };
        assert_eq!(known(&blocks), (2, Some(Digest::of(&run(0..2).keys))));
        blocks.begin(WORKER, vec![run(1..4)]);
        blocks.take_in_slice();
        assert_eq!(known(&blocks), (3, Some(Digest::of(&run(1..4).keys))));
        blocks.remove(WORKER);
        assert_eq!(known(&blocks), (0, Some(Digest::default())));
    }
}
