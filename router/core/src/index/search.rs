//! One walk along a chain: which workers hold how much of it.
//!
//! Not here: the segments' table (`heads`). The idea: a prompt's chain passes few segments, and each is left by one
//! comparison at its end, or by bisection where the chain parts from it. Who holds a block holds all before it, so the
//! segments are read backwards: the first span of a worker that is met is the deepest, and its matches come out longest
//! first.

use std::cmp::Reverse;

use warmpath_common::block_hash::BlockKey;

use super::Match;
use super::heads::{Heads, Held};
use super::segment::Segment;
use super::span::Span;
use crate::WorkerIdx;

/// Is a segment that the chain passes.
pub(super) struct Step {
    segment: Held,
    /// Is the place of the segment's first block in the chain.
    pub(super) first: usize,
    /// Is how many of its blocks the chain passes.
    pub(super) n: usize,
}

impl Step {
    fn new(keys: &[BlockKey], first: usize, segment: Held) -> Self {
        let n = segment.as_ref().map_or(0, |segment| segment.n_common(0, &keys[first..]));
        Self { segment, first, n }
    }

    /// Returns whether the chain goes on behind the segment's end.
    pub(super) fn is_whole(&self) -> bool {
        self.n == self.segment().len()
    }

    /// Returns the segment.
    pub(super) fn segment(&self) -> &Segment {
        self.segment.as_ref().expect("a table finds segments that are there")
    }
}

/// Returns the segments that a chain passes, in order.
pub(super) fn walk(heads: &Heads, keys: &[BlockKey]) -> Vec<Step> {
    let mut path: Vec<Step> = Vec::with_capacity(8);
    let mut at = 0;
    while at < keys.len() {
        if let Some(segment) = heads.find(keys[at]) {
            let step = Step::new(keys, at, segment);
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

/// Returns the segment to which one behind the path was joined between two looks, and how many segments of the path stay
/// before it.
///
/// The last segments of the path may have been joined to those before them as well; what is left of them is a longer one.
fn joined(heads: &Heads, keys: &[BlockKey], path: &[Step]) -> Option<(usize, Step)> {
    let end = path.last().filter(|last| last.is_whole()).map(|last| last.first + last.n)?;
    let (n_kept, first, segment) =
        path.iter().enumerate().rev().find_map(|(n, step)| Some((n, step.first, heads.find(keys[step.first])?)))?;
    let step = Step::new(keys, first, segment);
    (step.first + step.n > end).then_some((n_kept, step))
}

/// Returns what each worker holds of the chain `keys`, longest first, then by worker.
pub(super) fn matches(heads: &Heads, keys: &[BlockKey]) -> Vec<Match> {
    let path = walk(heads, keys);
    let n_spans = path.iter().map(|step| step.segment().n_spans()).max().unwrap_or(0);
    let mut found = Found { matches: Vec::with_capacity(n_spans), seen: Seen::default() };
    path.iter().rev().for_each(|step| found.take(step));
    found.matches
}

struct Found {
    matches: Vec<Match>,
    seen: Seen,
}

impl Found {
    /// Adds the workers that have not been met in a deeper segment.
    fn take(&mut self, step: &Step) {
        let n_before = self.matches.len();
        let mut spans = step.segment().spans().peekable();
        while let Some(mut span) = spans.next() {
            // Of a worker's spans the last that begins within the chain and has a resume point counts.
            let mut last = None;
            loop {
                if span.from() < step.n && span.is_resumable() {
                    last = Some(span);
                }
                match spans.next_if(|next| next.worker() == span.worker()) {
                    Some(next) => span = next,
                    None => break,
                }
            }
            if let Some(last) = last
                && self.seen.is_new(last.worker())
            {
                self.matches.push(to_match(last, step));
            }
        }
        let fresh = &mut self.matches[n_before..];
        let order = |found: &Match| (Reverse(found.blocks), found.worker);
        if !fresh.is_sorted_by_key(order) {
            fresh.sort_unstable_by_key(order);
        }
    }
}

fn to_match(span: Span, step: &Step) -> Match {
    let blocks = step.first + span.to().min(step.n);
    Match {
        worker: span.worker(),
        blocks: u32::try_from(blocks).unwrap_or(u32::MAX),
        tier: span.tier(),
        state: span.state(),
        slot: span.slot(),
    }
}

/// Is the set of workers that have been met.
#[derive(Default)]
struct Seen {
    first: u64,
    rest: Vec<u64>,
}

impl Seen {
    /// Adds a worker; returns whether it was not there.
    fn is_new(&mut self, WorkerIdx(worker): WorkerIdx) -> bool {
        let (idx, bit) = ((worker / 64) as usize, 1 << (worker % 64));
        let word = match idx.checked_sub(1) {
            None => &mut self.first,
            Some(idx) => {
                if self.rest.len() <= idx {
                    self.rest.resize(idx + 1, 0);
                }
                &mut self.rest[idx]
            }
        };
        let is_new = *word & bit == 0;
        *word |= bit;
        is_new
    }
}
