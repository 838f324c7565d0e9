//! The index's memory: counting it, growing within the limit, shedding.
//!
//! Not here: what the memory holds. The idea: whatever an insertion can need is made sure of before it begins, so it
//! never stops half-way; where the limit is reached, the segments that were matched longest ago go, an eighth of the
//! limit at a time.

use warmpath_common::block_hash::BlockKey;
use warmpath_common::summary::Digest;

use super::super::locator::{BATCH, LOADS_PERCENT_NEW, SEGMENTS_MAX};
use super::super::segment::{Segment, Shared};
use super::super::span::Span;
use super::IndexWriter;
use crate::WorkerIdx;

/// Is the share of the limit that one shedding frees.
const SHED_DIVISOR: usize = 8;
/// Is the most ages that shedding tells apart; older segments count as this old.
const AGES: usize = 256;
/// Is the most spans that an insertion adds to a segment that is there: two of the run, one that it cuts in two.
const SPANS_ADDED_MAX: usize = 3;
/// Is the share of a table that is needed beside the old and the new one while one grows from the other.
const BESIDE_DIVISOR: usize = 16;
/// Is the fewest places by which the list of segments grows.
const SEGMENTS_GROWTH_MIN: usize = 16;

impl IndexWriter {
    /// Returns the memory in use, the fixed part of each worker's books not counted. Units: bytes.
    pub(super) fn bytes(&self) -> usize {
        let books = self.segments.capacity() * size_of::<Option<Shared>>() + self.free.capacity() * size_of::<u32>();
        self.segment_bytes + self.heads.bytes() + self.locator.bytes() + books + self.list_bytes
    }

    /// Makes sure that an insertion of `n` blocks finds room; returns whether there is.
    pub(super) fn make_room(&mut self, worker: WorkerIdx, n: usize) -> bool {
        self.tidy_list(worker);
        if self.grow(worker, n) {
            return true;
        }
        self.shed();
        self.grow(worker, n)
    }

    /// Makes every table large enough for one more segment of `n` blocks; returns whether that and the segment fit.
    fn grow(&mut self, worker: WorkerIdx, n: usize) -> bool {
        // A run may be put behind a segment, which is copied then: one segment of the most blocks stands for both.
        let mut bytes = self.bytes() + Segment::bytes_of(2 + SPANS_ADDED_MAX, n) + n * size_of::<Span>();
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
        if self.free.is_empty() && self.segments.len() == self.segments.capacity() {
            let n_more = (self.segments.capacity() / 2).max(SEGMENTS_GROWTH_MIN);
            // Every number may come to be free, so its place there is paid for when the number is made.
            if !fits(n_more * (size_of::<Option<Shared>>() + size_of::<u32>())) {
                return false;
            }
            self.segments.reserve_exact(n_more);
            self.free.reserve_exact(self.segments.capacity());
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
        // Where there is no room for two tables, the old one goes before the new one comes.
        if !fits(narrow.saturating_sub(self.locator.bytes())) {
            return false;
        }
        self.rebuild_locator(narrow);
        true
    }

    fn n_segments_max_reached(&self) -> bool {
        self.free.is_empty() && self.segments.len() >= SEGMENTS_MAX as usize - 1
    }

    /// Makes the locator anew; one that turns out clogged already is made larger by half until every block has a place.
    fn rebuild_locator(&mut self, bytes: usize) {
        let mut bytes = bytes;
        while !self.fill_locator(bytes) {
            bytes += bytes / 2;
        }
    }

    fn fill_locator(&mut self, bytes: usize) -> bool {
        self.locator.reset(bytes);
        for (id, segment) in (0..).zip(&self.segments) {
            for batch in segment.iter().flat_map(|segment| Segment::from(segment).keys().chunks(BATCH)) {
                let hashes = batch.iter().map(|key| self.hasher.hash(BlockKey(*key)));
                let probes = self.locator.probes(hashes);
                if !probes[..batch.len()].iter().all(|&probe| self.locator.insert(probe, id)) {
                    return false;
                }
            }
        }
        true
    }

    /// Drops the segments that were matched or stored longest ago, until an eighth of the limit is free.
    pub(super) fn shed(&mut self) {
        let epoch = self.index.epoch.load(std::sync::atomic::Ordering::Relaxed);
        let age = |segment: Segment<'_>| (epoch.wrapping_sub(segment.age()) as usize).min(AGES - 1);
        let mut bytes_by_age = [0usize; AGES];
        for segment in self.segments.iter().flatten().map(Segment::from) {
            bytes_by_age[age(segment)] += segment.bytes();
        }
        let mut bytes_left = (self.options.bytes_max / SHED_DIVISOR).max(1);
        let mut limit_age = AGES - 1;
        while limit_age > 0 && bytes_by_age[limit_age] < bytes_left {
            bytes_left -= bytes_by_age[limit_age];
            limit_age -= 1;
        }
        for id in 0..self.segments.len() {
            let Some(segment) = self.segments[id].as_ref().map(Segment::from) else { continue };
            let (age, bytes) = (age(segment), segment.bytes());
            if age > limit_age || age == limit_age && bytes_left > 0 {
                bytes_left = bytes_left.saturating_sub(if age == limit_age { bytes } else { 0 });
                self.drop_segment(id as u32);
            }
        }
    }

    fn drop_segment(&mut self, id: u32) {
        let shared = self.close(id);
        let segment = Segment::from(&shared);
        self.unindex(segment.keys(), id);
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
