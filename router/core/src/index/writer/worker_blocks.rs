//! A worker's view as a whole: its contents, its replacement, its removal.
//!
//! Single runs are inserted in the parent module. A worker's segments are listed, so a view is replaced without a walk
//! through the blocks of other workers. The list may contain a segment twice, or a segment of which the worker holds no
//! block any more; it is compacted when it is twice as long as necessary. A view is inserted a number of blocks at a
//! time, so that changes of other workers can be applied in between.

use std::ops::Range;

use warmpath_common::block_hash::BlockKey;
use warmpath_common::summary::{Digest, Run};

use super::super::segment::Segment;
use super::{IndexWriter, ReleasedBlocks};
use crate::WorkerIdx;

/// Shortest list that is compacted.
///
/// Source: own choice: a shorter list wastes little memory.
const LIST_MIN: usize = 16;

/// Blocks of one worker.
#[derive(Default)]
pub(super) struct WorkerBlocks {
    /// Digest of the blocks.
    digest: Digest,
    /// Whether blocks were evicted for the memory limit since the view was replaced.
    is_incomplete: bool,
    n_segments: usize,
    segments: Vec<u32>,
}

/// View that replaces a worker's old one, and how much of it has been inserted.
#[derive(Debug)]
pub struct Replacement {
    worker: WorkerIdx,
    runs: Vec<Run>,
    n_runs_taken: usize,
    /// Blocks that the view has in each segment, as far as its runs have been inserted; sorted after the last run.
    touched: Vec<Touched>,
    /// Segments that may still have blocks of the old view only; absent until every run has been inserted.
    segments: Option<Vec<u32>>,
}

/// Blocks of a segment that a new view has.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Touched {
    id: u32,
    from: u16,
    to: u16,
}

impl Replacement {
    /// Returns the worker of the view.
    pub fn worker(&self) -> WorkerIdx {
        self.worker
    }

    /// Returns whether the view is complete and nothing of the worker's old view is left.
    pub fn is_done(&self) -> bool {
        self.segments.as_ref().is_some_and(Vec::is_empty)
    }
}

impl WorkerBlocks {
    /// Returns the number of blocks.
    pub(super) fn n_blocks(&self) -> usize {
        usize::try_from(self.digest.n_blocks).unwrap_or(usize::MAX)
    }

    /// Returns the digest of the blocks; `None` if some were evicted for the memory limit.
    pub(super) fn digest(&self) -> Option<Digest> {
        (!self.is_incomplete).then_some(self.digest)
    }

    /// Returns the memory of the list. Units: bytes.
    pub(super) fn bytes(&self) -> usize {
        self.segments.capacity() * size_of::<u32>()
    }

    /// Returns the additional memory that the list takes for one more segment. Units: bytes.
    pub(super) fn bytes_to_grow(&self) -> usize {
        if self.segments.len() < self.segments.capacity() { 0 } else { self.n_more() * size_of::<u32>() }
    }

    fn n_more(&self) -> usize {
        (self.segments.capacity() / 2).max(LIST_MIN)
    }

    /// Adds a segment.
    fn take(&mut self, id: u32) {
        if self.segments.len() == self.segments.capacity() {
            self.segments.reserve_exact(self.n_more());
        }
        self.segments.push(id);
        self.n_segments += 1;
    }

    /// Records that the worker no longer holds any block of a segment.
    pub(super) fn drop_segment(&mut self) {
        self.n_segments -= 1;
    }

    /// Adds blocks that were not held.
    pub(super) fn gain(&mut self, keys: &[BlockKey]) {
        keys.iter().for_each(|key| self.digest.add(*key));
    }

    /// Subtracts blocks that were held.
    pub(super) fn lose(&mut self, lost: Digest) {
        self.digest = self.digest.without(lost);
    }

    /// Records that blocks are evicted for the memory limit.
    pub(super) fn shed(&mut self) {
        self.is_incomplete = true;
    }
}

#[cfg(test)]
impl WorkerBlocks {
    /// Returns the number of segments.
    pub(super) fn n_segments(&self) -> usize {
        self.n_segments
    }

    /// Returns the digest, even after an eviction.
    pub(super) fn counted(&self) -> Digest {
        self.digest
    }

    /// Returns the list of segments.
    pub(super) fn segments(&self) -> &[u32] {
        &self.segments
    }
}

impl IndexWriter {
    /// Records that `worker` holds the blocks of `runs` and nothing else.
    pub fn replace_worker(&mut self, worker: WorkerIdx, runs: Vec<Run>) {
        let mut view = self.begin(worker, runs);
        while !view.is_done() {
            self.insert_part(&mut view, usize::MAX);
        }
    }

    /// Returns a view of which nothing has been inserted yet. Until all of it is inserted no segments are joined, so
    /// that blocks stay where they were found.
    pub fn begin(&mut self, worker: WorkerIdx, runs: Vec<Run>) -> Replacement {
        self.n_arriving += 1;
        Replacement { worker, runs, n_runs_taken: 0, touched: Vec::new(), segments: None }
    }

    /// Inserts the next part of a view; returns how many blocks were inserted or removed. Changes of other workers may
    /// be applied between two parts.
    ///
    /// Meanwhile a reader sees blocks of both views, and never misses a block that is in both.
    /// Cost: that of `n_blocks_max` blocks, and a run or a segment; at first also O(the worker's segments).
    pub fn insert_part(&mut self, view: &mut Replacement, n_blocks_max: usize) -> usize {
        if view.is_done() {
            return 0;
        }
        self.know(view.worker);
        if view.n_runs_taken == 0 {
            self.holdings[view.worker.0 as usize].is_incomplete = false;
        }
        // First the blocks of the new view go in. `touched` records the segments and ranges that they reach.
        self.touched = Some(std::mem::take(&mut view.touched));
        let mut n = 0;
        while n < n_blocks_max
            && let Some(run) = view.runs.get(view.n_runs_taken)
        {
            self.insert_run(view.worker, run);
            n += run.keys.len();
            view.n_runs_taken += 1;
        }
        view.touched = self.touched.take().unwrap_or_default();
        // Then the blocks that the new view has not touched are removed, segment by segment.
        if view.n_runs_taken == view.runs.len() {
            let segments = view.segments.get_or_insert_with(|| {
                view.touched.sort_unstable();
                self.segments_of(view.worker)
            });
            let mut n_withdrawn = 0;
            while n_withdrawn <= n_blocks_max.saturating_sub(n)
                && let Some(id) = segments.pop()
            {
                n_withdrawn += self.withdraw_untouched(view.worker, id, &view.touched);
            }
            n += n_withdrawn;
            self.n_arriving -= usize::from(segments.is_empty());
        }
        self.finish_change();
        n
    }

    /// Removes a worker's entries for the blocks of a segment that its new view does not have; returns an upper bound
    /// of their number.
    fn withdraw_untouched(&mut self, worker: WorkerIdx, id: u32, touched_ranges: &[Touched]) -> usize {
        let Some(segment) = self.numbers.get(id) else { return 0 };
        let len = Segment::from(segment).len();
        let start = touched_ranges.partition_point(|range| range.id < id);
        let kept_ranges = touched_ranges[start..].iter().take_while(|range| range.id == id);
        let gaps = gaps(kept_ranges, len);
        let n = gaps.iter().map(ExactSizeIterator::len).sum();
        gaps.into_iter().for_each(|range| self.withdraw(worker, id, ReleasedBlocks { range, probes: &[] }));
        n
    }

    /// Removes everything that `worker` holds.
    pub fn remove_worker(&mut self, worker: WorkerIdx) {
        for id in self.segments_of(worker) {
            let range = 0..self.numbers.segment(id).len();
            self.withdraw(worker, id, ReleasedBlocks { range, probes: &[] });
        }
        if let Some(holdings) = self.holdings.get_mut(worker.0 as usize) {
            debug_assert!(
                holdings.digest == Digest::default() && holdings.n_segments == 0,
                "the list names every segment"
            );
            self.list_bytes -= holdings.bytes();
            *holdings = WorkerBlocks::default();
        }
        self.finish_change();
    }

    /// Makes sure that a worker has an entry.
    pub(super) fn know(&mut self, worker: WorkerIdx) {
        let n = worker.0 as usize + 1;
        if self.holdings.len() < n {
            self.holdings.resize_with(n, WorkerBlocks::default);
        }
    }

    /// Records that a worker now holds blocks of a segment of which it held none.
    pub(super) fn list(&mut self, worker: WorkerIdx, id: u32) {
        let holdings = &mut self.holdings[worker.0 as usize];
        self.list_bytes -= holdings.bytes();
        holdings.take(id);
        self.list_bytes += holdings.bytes();
    }

    /// Records that the view that is being inserted has blocks of a segment.
    pub(super) fn note_touched(&mut self, id: u32, range: Range<usize>) {
        if let Some(touched_ranges) = &mut self.touched {
            touched_ranges.push(Touched { id, from: range.start as u16, to: range.end as u16 });
        }
    }

    /// Compacts the list of a worker's segments if it is much too long.
    pub(super) fn tidy_list(&mut self, worker: WorkerIdx) {
        let holdings = &self.holdings[worker.0 as usize];
        if holdings.segments.len() >= LIST_MIN && holdings.segments.len() >= 2 * holdings.n_segments {
            let list = self.segments_of(worker);
            let segments = &mut self.holdings[worker.0 as usize].segments;
            segments.clear();
            segments.extend(list);
        }
    }

    /// Returns the numbers of the segments of which `worker` holds blocks, without duplicates.
    fn segments_of(&self, worker: WorkerIdx) -> Vec<u32> {
        let Some(holdings) = self.holdings.get(worker.0 as usize) else { return Vec::new() };
        let mut list = holdings.segments.clone();
        list.sort_unstable();
        list.dedup();
        let holds = |id: &u32| {
            let segment = self.numbers.get(*id);
            segment.is_some_and(|segment| Segment::from(segment).spans_of(worker).len() > 0)
        };
        list.retain(holds);
        list
    }
}

/// Returns the ranges of a segment that are in none of `kept_ranges`, which are ordered.
fn gaps<'a>(kept_ranges: impl Iterator<Item = &'a Touched>, len: usize) -> Vec<Range<usize>> {
    let mut gaps = Vec::new();
    let mut at = 0;
    for range in kept_ranges {
        if at < range.from.into() {
            gaps.push(at..range.from.into());
        }
        at = at.max(range.to.into());
    }
    if at < len {
        gaps.push(at..len);
    }
    // From the end, so that a segment that becomes shorter still contains the remaining ranges.
    gaps.reverse();
    gaps
}
