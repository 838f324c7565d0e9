//! One walk along a chain: which workers hold how much of it.
//!
//! The segments' table is in `segment_table`. A prompt's chain passes few segments. Each takes one comparison at its
//! end; the segment that the chain leaves takes a binary search. A worker that holds a block holds all blocks before
//! it, so the segments are read backwards: the first span of a worker is the deepest, and matches come out longest
//! first.

use std::cmp::Reverse;

use warmpath_common::block_hash::BlockKey;

use super::Match;
use super::segment::Segment;
use super::segment_table::{SegmentRef, SegmentTable};
use super::span::BlockSpan;
use crate::WorkerIdx;

/// Maximum number of workers that are compared one by one instead of sorted.
///
/// Source: own choice: sorting pays only for more.
const FEW: usize = 16;

/// A segment that the chain passes.
pub(super) struct SearchStep {
    segment: SegmentRef,
    /// The segment's only span as it was read; it may have changed since.
    only: u64,
    /// Position of the segment's first block in the chain.
    pub(super) first: usize,
    /// Number of its blocks that the chain passes.
    pub(super) n: usize,
}

impl SearchStep {
    fn new(keys: &[BlockKey], first: usize, segment: SegmentRef) -> Self {
        let first_segment = segment.as_ref().map(Segment::from);
        let n = first_segment.map_or(0, |first_segment| first_segment.n_common(0, &keys[first..]));
        let only = first_segment.map_or(0, Segment::only);
        Self { segment, only, first, n }
    }

    /// Returns whether the chain passes the whole segment.
    pub(super) fn is_whole(&self) -> bool {
        self.n == self.segment().len()
    }

    /// Returns whether every worker has one span and can start where the chain leaves the segment.
    ///
    /// One pass without a branch: the compiler turns it into vector comparisons.
    fn is_plain(&self) -> bool {
        let segment = self.segment();
        let spans = segment.span_words();
        let reaches = |span: BlockSpan| (span.from() < self.n) & (span.to() >= self.n) & span.is_resumable();
        let differ = |a: BlockSpan, b: BlockSpan| a.worker() != b.worker();
        let pairs = spans.iter().zip(&spans[1..]);
        let all = pairs.fold(true, |all, (&a, &b)| all & reaches(BlockSpan(a)) & differ(BlockSpan(a), BlockSpan(b)));
        all && spans.last().is_some_and(|&last| reaches(BlockSpan(last)))
    }

    /// Returns the number of blocks of the chain up to the segment's first `n`, inclusive.
    fn blocks(&self, n: usize) -> u32 {
        u32::try_from(self.first + n).unwrap_or(u32::MAX)
    }

    /// Returns the segment.
    pub(super) fn segment(&self) -> Segment<'_> {
        let shared_segment = self.segment.as_ref().expect("a table finds segments that are there");
        Segment::with_only(shared_segment, self.only)
    }
}

/// Returns the segments that a chain passes, in order.
pub(super) fn walk(heads: &SegmentTable, keys: &[BlockKey]) -> Vec<SearchStep> {
    let mut path: Vec<SearchStep> = Vec::with_capacity(8);
    let mut at = 0;
    while at < keys.len() {
        if let Some(segment) = heads.find(keys[at]) {
            let step = SearchStep::new(keys, at, segment);
            at += step.n;
            path.push(step);
        } else if let Some((n_kept, step)) = joined(heads, keys, &path) {
            path.truncate(n_kept);
            at = step.first + step.n;
            path.push(step);
        } else {
            break;
        }
    }
    path
}

/// Returns the segment into which the one after the path was merged between two lookups, and how many segments of the
/// path remain before it.
///
/// The last segments of the path may have been merged into earlier ones as well; then the earlier one is longer now.
fn joined(heads: &SegmentTable, keys: &[BlockKey], path: &[SearchStep]) -> Option<(usize, SearchStep)> {
    let end = path.last().filter(|last| last.is_whole()).map(|last| last.first + last.n)?;
    let (n_kept, first, segment) =
        path.iter().enumerate().rev().find_map(|(n, step)| Some((n, step.first, heads.find(keys[step.first])?)))?;
    let step = SearchStep::new(keys, first, segment);
    (step.first + step.n > end).then_some((n_kept, step))
}

/// Returns what each worker holds of the chain `keys`, longest first, then by worker.
pub(super) fn matches(heads: &SegmentTable, keys: &[BlockKey]) -> Vec<Match> {
    let path = walk(heads, keys);
    let n_spans = path.iter().map(|step| step.segment().n_spans()).max().unwrap_or(0);
    let mut matches = Vec::with_capacity(n_spans);
    for step in path.iter().rev() {
        if step.segment().n_spans() > FEW && matches.len() <= FEW && step.is_plain() {
            take_plain(step, &mut matches);
        } else {
            take(step, &mut matches);
        }
    }
    matches
}

/// Adds the workers of a plain segment that are not in `matches` yet. There are few.
fn take_plain(step: &SearchStep, matches: &mut Vec<Match>) {
    let mut workers_met = [WorkerIdx(0); FEW];
    let workers_met = &mut workers_met[..matches.len()];
    workers_met.iter_mut().zip(&*matches).for_each(|(worker, prefix_match)| *worker = prefix_match.worker);
    workers_met.sort_unstable();
    let segment = step.segment();
    let mut words_left = segment.span_words();
    let blocks = step.blocks(step.n);
    let to_match = |&word: &u64| to_match(BlockSpan(word), blocks);
    for met in workers_met {
        let at = words_left.partition_point(|&word| BlockSpan(word).worker() < *met);
        let (words_before, words_behind) = words_left.split_at(at);
        matches.extend(words_before.iter().map(to_match));
        let is_met = words_behind.first().is_some_and(|&word| BlockSpan(word).worker() == *met);
        words_left = &words_behind[usize::from(is_met)..];
    }
    matches.extend(words_left.iter().map(to_match));
}

/// Adds the workers of a segment that are not in `matches` yet.
fn take(step: &SearchStep, matches: &mut Vec<Match>) {
    // The workers of longer matches are left out. If they are many, they are met in the order of the spans.
    let n_before = matches.len();
    let mut workers_met: Vec<WorkerIdx> = Vec::new();
    if n_before > FEW {
        workers_met.extend(matches.iter().map(|prefix_match| prefix_match.worker));
        workers_met.sort_unstable();
    }
    let mut workers_met = workers_met.iter().peekable();
    // A worker's last span that begins within the chain and has a resume point counts.
    for span in step.segment().spans().filter(|span| span.from() < step.n && span.is_resumable()) {
        let worker = span.worker();
        let is_met = if n_before > FEW {
            while workers_met.next_if(|met| **met < worker).is_some() {}
            workers_met.peek() == Some(&&worker)
        } else {
            matches[..n_before].iter().any(|prefix_match| prefix_match.worker == worker)
        };
        if is_met {
            continue;
        }
        if matches.len() > n_before && matches.last().is_some_and(|last| last.worker == worker) {
            matches.pop();
        }
        matches.push(to_match(span, step.blocks(span.to().min(step.n))));
    }
    let new_matches = &mut matches[n_before..];
    let order = |prefix_match: &Match| (Reverse(prefix_match.blocks), prefix_match.worker);
    if !new_matches.is_sorted_by_key(order) {
        new_matches.sort_unstable_by_key(order);
    }
}

/// Returns the match of a worker that can start after `blocks` blocks.
fn to_match(span: BlockSpan, blocks: u32) -> Match {
    Match { worker: span.worker(), blocks, tier: span.tier(), state: span.state(), slot: span.slot() }
}
