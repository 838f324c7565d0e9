//! The index's memory: counting it, growing within the limit, evicting.
//!
//! The contents are managed by the other modules. All memory that an insertion can need is reserved before it begins,
//! so it never stops half-way. When the limit is reached, the segments that were matched longest ago are evicted, an
//! eighth of the limit at a time.

use warmpath_common::block_hash::BlockKey;
use warmpath_common::summary::Digest;

use super::super::block_table::{BATCH, LOADS_PERCENT_NEW, SEGMENTS_MAX};
use super::super::segment::Segment;
use super::super::span::BlockSpan;
use super::IndexWriter;
use super::segment_ids::SegmentIds;
use crate::WorkerIdx;

/// Share of the limit that one eviction frees.
///
/// Source: own choice: evictions stay rare, and most of the index stays.
const SHED_DIVISOR: usize = 8;
/// Number of ages that an eviction distinguishes; older segments count as the oldest. Source: own choice: two KB of
/// counters during an eviction.
const AGES: usize = 256;
/// Maximum number of spans that an insertion adds to an existing segment: two of the run, and one of a span that it
/// splits.
const SPANS_ADDED_MAX: usize = 3;
/// Divisor of a new table's size that gives the memory which its growth needs besides. Source: own choice, above a byte
/// of counters for each line of 64, and a list of the few blocks that do not fit into their own lines.
const BESIDE_DIVISOR: usize = 16;
/// Smallest growth of the list of segments. Source: own choice: it spares a small index an allocation per segment.
const SEGMENTS_GROWTH_MIN: usize = 16;

impl IndexWriter {
    /// Returns the memory in use, without the fixed part of each worker's entry. Units: bytes.
    pub(super) fn bytes(&self) -> usize {
        self.segment_bytes + self.heads.bytes() + self.locator.bytes() + self.numbers.bytes() + self.list_bytes
    }

    /// Reserves memory for an insertion of `n` blocks, after an eviction if necessary; returns whether there is enough.
    pub(super) fn make_room(&mut self, worker: WorkerIdx, n: usize) -> bool {
        self.tidy_list(worker);
        if self.grow(worker, n) {
            return true;
        }
        self.shed();
        self.grow(worker, n)
    }

    /// Makes every table large enough for one more segment of `n` blocks; returns whether the tables and the segment
    /// fit.
    fn grow(&mut self, worker: WorkerIdx, n: usize) -> bool {
        // A run may be appended to a segment, which copies the segment: one segment of the maximum size covers both
        // cases.
        let mut bytes = self.bytes() + Segment::bytes_of(2 + SPANS_ADDED_MAX, n) + n * size_of::<BlockSpan>();
        let mut fits = |more: usize| {
            let fits = bytes + more <= self.options.bytes_max;
            bytes += if fits { more } else { 0 };
            fits
        };
        let list = self.holdings[worker.0 as usize].bytes_to_grow();
        if !fits(list) || self.n_segments_max_reached() {
            return false;
        }
        if let Some(next) = self.heads.bytes_of_next() {
            if !fits(next) {
                return false;
            }
            self.heads.rebuild();
            self.index.heads.store(self.heads.table());
        }
        if self.numbers.is_full() {
            let n_more = (self.numbers.len() / 2).max(SEGMENTS_GROWTH_MIN);
            if !fits(SegmentIds::bytes_of(n_more)) {
                return false;
            }
            self.numbers.reserve(n_more);
        }
        let [wide, narrow] = LOADS_PERCENT_NEW.map(|load| self.locator.bytes_of_next(n, load));
        let (Some(wide), Some(narrow)) = (wide, narrow) else { return true };
        for next in [wide, narrow] {
            if !fits(next + next / BESIDE_DIVISOR) {
                continue;
            }
            if !self.locator.grow(next) {
                self.rebuild_locator(next);
            }
            return true;
        }
        // If there is no memory for two tables, the old one is freed before the new one is allocated.
        if !fits(narrow.saturating_sub(self.locator.bytes())) {
            return false;
        }
        self.rebuild_locator(narrow);
        true
    }

    fn n_segments_max_reached(&self) -> bool {
        !self.numbers.has_free() && self.numbers.len() >= SEGMENTS_MAX as usize - 1
    }

    /// Builds the block table again, 1.5 times as large each time that a block finds no slot.
    fn rebuild_locator(&mut self, bytes: usize) {
        let mut bytes = bytes;
        while !self.fill_locator(bytes) {
            bytes += bytes / 2;
        }
    }

    fn fill_locator(&mut self, bytes: usize) -> bool {
        self.locator.reset(bytes);
        for (id, segment) in self.numbers.iter() {
            for batch in segment.keys().chunks(BATCH) {
                let hashes = batch.iter().map(|key| self.hasher.hash(BlockKey(*key)));
                let probes = self.locator.probes(hashes);
                if !probes[..batch.len()].iter().all(|&probe| self.locator.insert(probe, id)) {
                    return false;
                }
            }
        }
        true
    }

    /// Evicts the segments that were matched or stored longest ago, until an eighth of the limit is free.
    pub(super) fn shed(&mut self) {
        let epoch = self.index.epoch.load(std::sync::atomic::Ordering::Relaxed);
        let age = |segment: Segment<'_>| (epoch.wrapping_sub(segment.age()) as usize).min(AGES - 1);
        let mut bytes_by_age = [0usize; AGES];
        for (_, segment) in self.numbers.iter() {
            bytes_by_age[age(segment)] += segment.bytes();
        }
        let mut bytes_left = (self.options.bytes_max / SHED_DIVISOR).max(1);
        let mut limit_age = AGES - 1;
        while limit_age > 0 && bytes_by_age[limit_age] < bytes_left {
            bytes_left -= bytes_by_age[limit_age];
            limit_age -= 1;
        }
        for id in 0..self.numbers.len() as u32 {
            let Some(segment) = self.numbers.get(id).map(Segment::from) else { continue };
            let (age, bytes) = (age(segment), segment.bytes());
            if age > limit_age || age == limit_age && bytes_left > 0 {
                bytes_left = bytes_left.saturating_sub(if age == limit_age { bytes } else { 0 });
                self.drop_segment(id);
            }
        }
    }

    fn drop_segment(&mut self, id: u32) {
        let Some(shared_segment) = self.numbers.get(id).cloned() else { return };
        let segment = Segment::from(&shared_segment);
        self.unindex(segment.keys(), id, &[]);
        self.close(id);
        let mut last = None;
        for span in segment.spans() {
            let holdings = &mut self.holdings[span.worker().0 as usize];
            let mut lost = Digest::default();
            segment.keys()[span.from()..span.to()].iter().for_each(|key| lost.add(BlockKey(*key)));
            holdings.lose(lost);
            holdings.shed();
            if last.replace(span.worker()) != Some(span.worker()) {
                holdings.drop_segment();
            }
            self.n_shed += span.len() as u64;
        }
    }
}
