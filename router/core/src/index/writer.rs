//! The writer's side of the index: the only writer, which knows the place of every block.
//!
//! The readers' side is in `search`. A change finds the segments of its blocks, makes new segments from them and
//! replaces the old ones, one by one. Memory is counted before it is allocated.

#[cfg(test)]
mod invariants;
mod memory_limit;
mod segment_ids;
mod worker_blocks;

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};

use arc_swap::ArcSwap;
use warmpath_common::block_hash::BlockKey;
use warmpath_common::summary::{Change, Digest, Resume, Run, RunState};

use self::segment_ids::SegmentIds;
pub use self::worker_blocks::Replacement;
use self::worker_blocks::{Touched, WorkerBlocks};
use super::block_table::{BATCH, BlockProbe, BlockTable};
use super::merge_hints::{MergeHint, MergeHints, can_join};
use super::segment::{Edit, Segment, SharedSegment};
use super::segment_table::SegmentTableWriter;
use super::span::{BlockSpan, SEGMENT_BLOCKS_MAX, SpanForm};
use super::{Hasher, IndexOptions, PrefixIndex};
use crate::WorkerIdx;

/// Typical memory of a block. Units: bytes.
///
/// Source: docs/decisions/0006-prefix-index.md; it only sets how fast entries age.
const BLOCK_BYTES_TYPICAL: usize = 16;
/// Number of ages that a full index is divided into. Source: own choice: an eviction of an eighth of the index frees
/// whole ages.
const AGES_WHEN_FULL: usize = 32;

/// The writer's side of the index; there is only one, and it knows how much each worker holds.
pub struct IndexWriter {
    index: Arc<PrefixIndex>,
    options: IndexOptions,
    hasher: Hasher,
    heads: SegmentTableWriter,
    locator: BlockTable,
    numbers: SegmentIds,
    /// Scratch memory in which a segment is assembled before it is copied to its own allocation.
    words: Vec<u64>,
    holdings: Vec<WorkerBlocks>,
    /// Memory of all segments. Units: bytes.
    segment_bytes: usize,
    /// Memory of all workers' segment lists. Units: bytes.
    list_bytes: usize,
    /// Blocks that insertions touch while a part of a view is inserted; `None` at other times.
    touched: Option<Vec<Touched>>,
    /// Number of views that have begun and are not complete.
    n_arriving: usize,
    n_inserted_in_epoch: usize,
    epoch_blocks: usize,
    n_shed: u64,
}

/// Place of a block.
#[derive(Debug, Clone, Copy)]
struct BlockPlace {
    id: u32,
    offset: usize,
}

/// A part of a run that is recorded in one step.
#[derive(Clone, Copy)]
struct RunPiece<'a> {
    keys: &'a [BlockKey],
    form: SpanForm,
    resume: Resume,
    /// Whether the piece ends with the run's last block.
    ends_run: bool,
}

/// Blocks of a segment that a worker gives up.
struct ReleasedBlocks<'a> {
    range: Range<usize>,
    /// Probes of the first of these blocks, as far as they are known.
    probes: &'a [BlockProbe],
}

impl IndexWriter {
    /// Returns the writer of an empty index.
    pub fn new(options: IndexOptions) -> Self {
        let hasher = Hasher::new(options.seed);
        let heads = SegmentTableWriter::new(hasher);
        let index = PrefixIndex {
            heads: ArcSwap::new(heads.table()),
            merge_hints: MergeHints::default(),
            epoch: AtomicU32::new(0),
            bytes: AtomicUsize::new(0),
            n_blocks: AtomicUsize::new(0),
        };
        Self {
            index: Arc::new(index),
            options,
            hasher,
            heads,
            locator: BlockTable::new(),
            numbers: SegmentIds::default(),
            words: Vec::new(),
            holdings: Vec::new(),
            segment_bytes: 0,
            list_bytes: 0,
            touched: None,
            n_arriving: 0,
            n_inserted_in_epoch: 0,
            epoch_blocks: (options.bytes_max / BLOCK_BYTES_TYPICAL / AGES_WHEN_FULL).max(1),
            n_shed: 0,
        }
    }

    /// Returns the readers' side.
    pub fn reader(&self) -> Arc<PrefixIndex> {
        Arc::clone(&self.index)
    }

    /// Returns the number of blocks that `worker` holds, as far as the index knows.
    pub fn n_blocks_of(&self, worker: WorkerIdx) -> usize {
        self.holdings.get(worker.0 as usize).map_or(0, WorkerBlocks::n_blocks)
    }

    /// Returns the digest of the blocks that `worker` holds; `None` if some were evicted for the memory limit, so
    /// that the digest cannot be compared with the worker's.
    pub fn digest_of(&self, worker: WorkerIdx) -> Option<Digest> {
        self.holdings.get(worker.0 as usize).map_or(Some(Digest::default()), WorkerBlocks::digest)
    }

    /// Returns how many entries were evicted for the memory limit so far. Each is one worker's hold on one block.
    pub fn n_shed(&self) -> u64 {
        self.n_shed
    }

    /// Applies a change of what `worker` holds; returns how many blocks are new and not computed yet.
    pub fn apply(&mut self, worker: WorkerIdx, change: &Change) -> usize {
        match change {
            Change::Stored(run) => {
                let n_before = self.n_blocks_of(worker);
                self.insert(worker, run);
                if run.state == RunState::Filling { self.n_blocks_of(worker).saturating_sub(n_before) } else { 0 }
            }
            Change::Removed(keys) => {
                self.remove(worker, keys);
                0
            }
            Change::Accepted(_) => 0,
        }
    }

    /// Records that `worker` holds the blocks of `run` in the run's tier, state and slot; earlier entries for these
    /// blocks are replaced.
    pub fn insert(&mut self, worker: WorkerIdx, run: &Run) {
        self.join_walked();
        self.insert_run(worker, run);
        self.finish_change();
    }

    /// Records that `worker` no longer holds the blocks `keys`.
    ///
    /// Cost: one probe for each range of consecutive blocks.
    pub fn remove(&mut self, worker: WorkerIdx, keys: &[BlockKey]) {
        self.remove_run(worker, keys);
        self.finish_change();
    }

    fn remove_run(&mut self, worker: WorkerIdx, keys: &[BlockKey]) {
        let mut at = 0;
        while at < keys.len() {
            let batch = at..keys.len().min(at + BATCH);
            // Their lines are loaded while the segment is looked up.
            let probes = self.probes(keys[batch.clone()].iter().map(|key| key.0));
            while at < batch.end {
                let known_probes = &probes[at - batch.start..batch.len()];
                at += match self.locate_at(known_probes[0], &keys[at..]) {
                    Some(place) => self.withdraw_stretch(worker, place, &keys[at..], known_probes),
                    None => 1,
                };
            }
        }
    }

    /// Completes a change: enforces the memory limit and publishes the counts.
    fn finish_change(&mut self) {
        // A gap in a worker's blocks takes one more word, for which no memory was reserved.
        if self.bytes() > self.options.bytes_max {
            self.shed();
        }
        self.index.bytes.store(self.bytes(), Ordering::Relaxed);
        self.index.n_blocks.store(self.locator.n_blocks(), Ordering::Relaxed);
    }

    /// Returns the place of the first block of `keys`.
    fn locate(&self, keys: &[BlockKey]) -> Option<BlockPlace> {
        self.locate_at(self.locator.probe(self.hasher.hash(*keys.first()?)), keys)
    }

    /// Returns the place of the first block of `keys`, whose probe is given.
    fn locate_at(&self, probe: BlockProbe, keys: &[BlockKey]) -> Option<BlockPlace> {
        self.locator.find(probe, |id| self.numbers.segment(id).offset_of(keys).map(|offset| BlockPlace { id, offset }))
    }

    fn insert_run(&mut self, worker: WorkerIdx, run: &Run) {
        self.know(worker);
        let form = SpanForm::new(worker, run);
        let mut at = 0;
        let mut end_of = None;
        while at < run.keys.len() {
            let to = run.keys.len().min(at + SEGMENT_BLOCKS_MAX);
            let keys = &run.keys[at..to];
            if !self.make_room(worker, keys.len()) {
                // The earlier entries for these blocks are no longer right.
                self.n_shed += (run.keys.len() - at) as u64;
                self.holdings[worker.0 as usize].shed();
                self.remove_run(worker, &run.keys[at..]);
                return;
            }
            let piece = RunPiece { keys, form, resume: run.resume, ends_run: to == run.keys.len() };
            let (n, place) = match self.locate(keys) {
                Some(place) => self.claim(worker, place, piece),
                None => self.store(worker, piece, end_of),
            };
            at += n;
            end_of = place;
        }
    }

    /// Records the part of a piece that lies in the segment of its first block.
    ///
    /// Returns the number of blocks of that part, and the segment if the part reaches its end.
    fn claim(&mut self, worker: WorkerIdx, at: BlockPlace, piece: RunPiece<'_>) -> (usize, Option<u32>) {
        let segment = self.numbers.segment(at.id);
        let n = segment.n_equal(at.offset, piece.keys);
        let range = at.offset..at.offset + n;
        let end_of = (range.end == segment.len()).then_some(at.id);
        let edit = segment.edit(worker, range.clone(), &piece.spans(at.offset, n));
        if let Some(edit) = edit {
            let changed_segment =
                (!segment.change(&edit)).then(|| segment.edited(&edit, segment.len(), &[], &mut self.words));
            self.count(worker, at.id, &edit);
            self.holdings[worker.0 as usize].gain(&piece.keys[..n]);
            if let Some(changed_segment) = changed_segment {
                self.put(at.id, changed_segment);
            }
        }
        self.note_touched(at.id, range);
        (n, end_of)
    }

    /// Records the first blocks of a piece that no segment has: appended to the segment `end_of` if only this worker
    /// holds its end, otherwise as a new segment.
    fn store(&mut self, worker: WorkerIdx, piece: RunPiece<'_>, end_of: Option<u32>) -> (usize, Option<u32>) {
        let own_segment = end_of.filter(|&id| {
            // The eviction for this piece may have removed the segment.
            let segment = self.numbers.get(id);
            let is_own = |segment: Segment<'_>| segment.spans().all(|span| span.worker() == worker);
            segment.map(Segment::from).is_some_and(|segment| segment.len() < SEGMENT_BLOCKS_MAX && is_own(segment))
        });
        let (id, offset) = match own_segment {
            Some(id) => (id, self.numbers.segment(id).len()),
            None => (self.numbers.take(), 0),
        };
        let n = self.index_fresh(&piece.keys[..piece.keys.len().min(SEGMENT_BLOCKS_MAX - offset)], id);
        let (keys, spans) = (&piece.keys[..n], piece.spans(offset, n));
        self.n_inserted_in_epoch += n;
        if n == 0 {
            // The table had no slot for the first block; the next call makes a larger one.
            if own_segment.is_none() {
                self.numbers.give_back(id);
            }
        } else if own_segment.is_some() {
            let segment = self.numbers.segment(id);
            let edit = segment
                .edit(worker, offset..offset + n, &spans)
                .expect("no worker held blocks that were in no segment");
            let longer = segment.edited(&edit, offset, keys, &mut self.words);
            self.count(worker, id, &edit);
            self.holdings[worker.0 as usize].gain(keys);
            self.put(id, longer);
        } else {
            let epoch = self.advance_epoch();
            let segment = Segment::of(keys, &spans, id, epoch, &mut self.words);
            self.open(worker, id, segment);
            self.holdings[worker.0 as usize].gain(keys);
        }
        self.note_touched(id, offset..offset + n);
        (n, Some(id).filter(|_| n > 0))
    }

    /// Adds the first of `keys` that are in no segment to the writer's table; returns how many it added.
    fn index_fresh(&mut self, keys: &[BlockKey], id: u32) -> usize {
        let mut probes = [BlockProbe::default(); BATCH];
        for (n, &key) in keys.iter().enumerate() {
            if n % BATCH == 0 {
                probes = self.probes(keys[n..].iter().map(|key| key.0));
            }
            let probe = probes[n % BATCH];
            let has = |other: u32| {
                let segment = self.numbers.get(other);
                let is_stored = segment.is_some_and(|segment| Segment::from(segment).offset_of(&[key]).is_some());
                (is_stored || other == id && keys[..n].contains(&key)).then_some(())
            };
            if self.locator.find(probe, has).is_some() || !self.locator.insert(probe, id) {
                return n;
            }
        }
        keys.len()
    }

    /// Returns the probes of the first blocks of `keys`, one batch.
    fn probes(&self, keys: impl Iterator<Item = u64>) -> [BlockProbe; BATCH] {
        self.locator.probes(keys.map(|key| self.hasher.hash(BlockKey(key))))
    }

    /// Removes blocks of a segment from the writer's table; `probes` are those of the first blocks, or empty.
    fn unindex(&mut self, keys: &[u64], id: u32, probes: &[BlockProbe]) {
        probes.iter().for_each(|&probe| self.locator.remove(probe, id));
        for batch in keys[probes.len()..].chunks(BATCH) {
            let probes = self.probes(batch.iter().copied());
            probes[..batch.len()].iter().for_each(|&probe| self.locator.remove(probe, id));
        }
    }

    /// Adds a new segment of one worker.
    fn open(&mut self, worker: WorkerIdx, id: u32, segment: SharedSegment) {
        self.list(worker, id);
        self.segment_bytes += Segment::from(&segment).bytes();
        self.heads.put(segment.clone());
        self.numbers.open(id, segment);
    }

    /// Replaces the segment of a number by one with the same first block.
    fn put(&mut self, id: u32, segment: SharedSegment) {
        self.segment_bytes += Segment::from(&segment).bytes();
        self.heads.put(segment.clone());
        let old = self.numbers.replace(id, segment);
        self.segment_bytes -= Segment::from(&old).bytes();
    }

    /// Removes a segment whose blocks are no longer in the writer's table.
    fn close(&mut self, id: u32) {
        let old = self.numbers.close(id);
        self.forget(Segment::from(&old));
    }

    /// Removes a segment from the readers' table and from the memory count.
    fn forget(&mut self, old: Segment<'_>) {
        self.heads.remove(old.first());
        self.segment_bytes -= old.bytes();
    }

    /// Counts an edit for its worker, except for the blocks that the worker gains.
    fn count(&mut self, worker: WorkerIdx, id: u32, edit: &Edit) {
        if edit.starts() {
            self.list(worker, id);
        }
        let holdings = &mut self.holdings[worker.0 as usize];
        if edit.ends() && !edit.starts() {
            holdings.drop_segment();
        }
        holdings.lose(edit.lost);
    }

    /// Removes a worker's entries for the first blocks of `keys`, as far as they are adjacent in one segment, in either
    /// direction; returns the number of blocks.
    fn withdraw_stretch(
        &mut self,
        worker: WorkerIdx,
        at: BlockPlace,
        keys: &[BlockKey],
        probes: &[BlockProbe],
    ) -> usize {
        let segment = self.numbers.segment(at.id);
        let n = segment.n_equal(at.offset, keys);
        if n > 1 {
            self.withdraw(worker, at.id, ReleasedBlocks { range: at.offset..at.offset + n, probes });
            return n;
        }
        let n = segment.n_equal_backwards(at.offset, keys);
        self.withdraw(worker, at.id, ReleasedBlocks { range: at.offset + 1 - n..at.offset + 1, probes: &[] });
        n
    }

    /// Removes a worker's entries for blocks of a segment, and drops the blocks at the segment's end that no worker
    /// holds any more.
    fn withdraw(&mut self, worker: WorkerIdx, id: u32, ReleasedBlocks { range, probes }: ReleasedBlocks<'_>) {
        // An earlier range may have removed the whole segment.
        let Some(shared_segment) = self.numbers.get(id).cloned() else { return };
        let segment = Segment::from(&shared_segment);
        let start = range.start;
        let Some(edit) = segment.edit(worker, range, &[]) else { return };
        let n_left = segment.n_held_after(&edit);
        let given_up = &segment.keys()[n_left..];
        let known_probes = n_left.checked_sub(start).and_then(|n_passed| probes.get(n_passed..)).unwrap_or_default();
        self.unindex(given_up, id, &known_probes[..known_probes.len().min(given_up.len())]);
        self.count(worker, id, &edit);
        if n_left == 0 {
            self.close(id);
        } else if !segment.change(&edit) {
            let shorter = segment.edited(&edit, n_left, &[], &mut self.words);
            self.put(id, shorter);
        }
    }

    /// Joins pairs of segments that prompts have passed one after the other, unless a view is being inserted.
    fn join_walked(&mut self) {
        if self.n_arriving > 0 {
            return;
        }
        for MergeHint { numbers, blocks: [last, first] } in self.index.merge_hints.take() {
            // Both segments may have changed since the hint.
            let [one, two] = numbers;
            let segments = (self.numbers.get(one), self.numbers.get(two));
            let (Some(before), Some(behind)) = segments else { continue };
            let (before, behind) = (Segment::from(before), Segment::from(behind));
            if one != two && before.last() == last && behind.first() == first && can_join(before, behind) {
                self.join(one, two);
            }
        }
    }

    fn join(&mut self, first: u32, second: u32) {
        let joined_segment = self.numbers.segment(first).joined(self.numbers.segment(second), &mut self.words);
        self.relabel(second, first);
        // Readers find the whole segment before its second half is removed.
        self.put(first, joined_segment);
        let old = self.numbers.close(second);
        let two = Segment::from(&old);
        self.forget(two);
        let mut last = None;
        for span in two.spans() {
            if last.replace(span.worker()) != Some(span.worker()) {
                self.holdings[span.worker().0 as usize].drop_segment();
            }
        }
    }

    /// Gives all blocks of a segment the number `to`.
    fn relabel(&mut self, id: u32, to: u32) {
        let Some(shared_segment) = self.numbers.get(id).cloned() else { return };
        for batch in Segment::from(&shared_segment).keys().chunks(BATCH) {
            let probes = self.probes(batch.iter().copied());
            probes[..batch.len()].iter().for_each(|&probe| self.locator.relabel(probe, id, to));
        }
    }

    fn advance_epoch(&mut self) -> u32 {
        let epoch = self.index.epoch.load(Ordering::Relaxed);
        if self.n_inserted_in_epoch < self.epoch_blocks {
            return epoch;
        }
        self.n_inserted_in_epoch = 0;
        self.index.epoch.store(epoch.wrapping_add(1), Ordering::Relaxed);
        epoch.wrapping_add(1)
    }
}

impl RunPiece<'_> {
    /// Returns the spans of the piece's first `n` blocks, the first of which is at `offset`.
    fn spans(&self, offset: usize, n: usize) -> Vec<BlockSpan> {
        let range = offset..offset + n;
        if n == 0 {
            return Vec::new();
        }
        if self.resume == Resume::EveryBlock {
            return vec![self.form.resumable().over(range)];
        }
        if self.resume == Resume::Nowhere || !self.ends_run || n < self.keys.len() {
            return vec![self.form.over(range)];
        }
        let last = range.end - 1;
        let before = (n > 1).then(|| self.form.over(offset..last));
        before.into_iter().chain([self.form.resumable().over(last..range.end)]).collect()
    }
}
