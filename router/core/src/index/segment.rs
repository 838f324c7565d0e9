//! A segment: consecutive blocks of one chain, and which workers hold which of them.
//!
//! Segments are found in `segment_table` and `block_table`, and changed in `writer`. A segment's words never change; a
//! change makes a new segment, so a reader that has one needs no lock. The exception is the common segment with a
//! single span: that span is one word outside the others, so it can change, and the segment shrink, in place. The words
//! are the spans, ordered by worker and offset, followed by the keys. If two chains have the same key, they have the
//! same keys before it. So one comparison at the end proves that the whole range is equal.

use std::ops::Range;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use triomphe::ThinArc;
use warmpath_common::block_hash::BlockKey;
use warmpath_common::summary::Digest;

use super::span::BlockSpan;
use crate::WorkerIdx;

/// Memory of a segment outside its words: its counter, its head, its length, and the allocator's header.
/// Units: bytes.
const SEGMENT_BYTES: usize = size_of::<usize>() + size_of::<SegmentHead>().next_multiple_of(8) + size_of::<usize>() + 8;

/// A segment in memory: counter, head and words are adjacent, so that a lookup waits for memory once.
pub(super) type SharedSegment = ThinArc<SegmentHead, u64>;

/// Fields of a segment outside its words.
pub(super) struct SegmentHead {
    /// The only span, if there is exactly one; it may change in place, but never to another worker and never to a
    /// longer range.
    only: AtomicU64,
    /// Number of spans among the words; 0 if there is only one span.
    n_spans: u32,
    /// The writer's number of the segment.
    number: u32,
    /// Epoch in which the segment was last matched; readers update it.
    age: AtomicU32,
}

/// Consecutive blocks of one chain.
#[derive(Clone, Copy)]
pub(super) struct Segment<'a> {
    head: &'a SegmentHead,
    words: &'a [u64],
    /// The only span as it was when the segment was read.
    only: u64,
}

impl<'a> From<&'a SharedSegment> for Segment<'a> {
    fn from(segment: &'a SharedSegment) -> Self {
        Self::with_only(segment, segment.header.header.only.load(Ordering::Relaxed))
    }
}

/// A replacement of some spans of a segment by others.
#[derive(Debug)]
pub(super) struct Edit {
    replaced: Range<usize>,
    with: Vec<BlockSpan>,
    /// Digest of the edited blocks that the worker held before.
    pub(super) lost: Digest,
}

impl Edit {
    /// Returns whether the worker held nothing of the segment before.
    pub(super) fn starts(&self) -> bool {
        self.replaced.is_empty()
    }

    /// Returns whether the worker holds nothing of the segment afterwards.
    pub(super) fn ends(&self) -> bool {
        self.with.is_empty()
    }
}

impl SegmentHead {
    /// Returns the head of a segment with the spans `words`; a single span moves from there into the head.
    fn new(number: u32, words: &mut Vec<u64>, age: u32) -> Self {
        let only = if words.len() == 1 { words.pop() } else { None };
        let only = AtomicU64::new(only.unwrap_or_default());
        Self { only, n_spans: words.len() as u32, number, age: AtomicU32::new(age) }
    }
}

impl<'a> Segment<'a> {
    /// Returns a segment of `keys` with the ordered `spans`, number and age; `words` is scratch memory.
    pub(super) fn of(
        keys: &[BlockKey],
        spans: &[BlockSpan],
        number: u32,
        age: u32,
        words: &mut Vec<u64>,
    ) -> SharedSegment {
        words.clear();
        words.extend(spans.iter().map(|span| span.0));
        let head = SegmentHead::new(number, words, age);
        words.extend(keys.iter().map(|key| key.0));
        ThinArc::from_header_and_slice(head, words)
    }

    /// Returns the segment after an edit, with its first `n_keys` keys followed by `more`; `words` is scratch memory.
    pub(super) fn edited(self, edit: &Edit, n_keys: usize, more: &[BlockKey], words: &mut Vec<u64>) -> SharedSegment {
        let spans = self.span_words();
        words.clear();
        words.extend_from_slice(&spans[..edit.replaced.start]);
        words.extend(edit.with.iter().map(|span| span.0));
        words.extend_from_slice(&spans[edit.replaced.end..]);
        let head = SegmentHead::new(self.number(), words, self.age());
        words.extend_from_slice(&self.keys()[..n_keys]);
        words.extend(more.iter().map(|key| key.0));
        ThinArc::from_header_and_slice(head, words)
    }

    /// Returns this segment and `next` as one, under this one's number; `words` is scratch memory.
    pub(super) fn joined(self, next: Segment<'_>, words: &mut Vec<u64>) -> SharedSegment {
        let shifted_span = |span: BlockSpan| span.form().over(span.from() + self.len()..span.to() + self.len());
        let mut spans: Vec<BlockSpan> = self.spans().chain(next.spans().map(shifted_span)).collect();
        spans.sort_unstable_by_key(|span| (span.worker(), span.from()));
        coalesce(&mut spans);
        words.clear();
        words.extend(spans.iter().map(|span| span.0));
        let head = SegmentHead::new(self.number(), words, self.age().max(next.age()));
        words.extend_from_slice(self.keys());
        words.extend_from_slice(next.keys());
        ThinArc::from_header_and_slice(head, words)
    }

    /// Returns a segment with `only` as its only span, as it was at some earlier time; ignored if the segment has
    /// several spans.
    pub(super) fn with_only(segment: &'a SharedSegment, only: u64) -> Self {
        Self { head: &segment.header.header, words: &segment.slice, only }
    }

    /// Returns the word of the only span, if there is exactly one.
    pub(super) fn only(self) -> u64 {
        self.only
    }

    /// Applies an edit in place, if it leaves one span of the same worker and uses more than half of the words; returns
    /// whether it did.
    pub(super) fn change(self, edit: &Edit) -> bool {
        let &[only] = &edit.with[..] else { return false };
        let is_made = self.head.n_spans == 0 && edit.replaced == (0..1) && 2 * only.to() > self.words.len();
        if is_made {
            self.head.only.store(only.0, Ordering::Relaxed);
        }
        is_made
    }

    /// Returns the writer's number of the segment.
    pub(super) fn number(self) -> u32 {
        self.head.number
    }

    /// Returns the keys of the blocks.
    pub(super) fn keys(self) -> &'a [u64] {
        match self.head.n_spans as usize {
            0 => &self.words[..BlockSpan(self.only).to()],
            n_spans => &self.words[n_spans..],
        }
    }

    /// Returns the number of blocks.
    pub(super) fn len(self) -> usize {
        self.keys().len()
    }

    /// Returns the key of the first block.
    pub(super) fn first(self) -> BlockKey {
        BlockKey(self.keys()[0])
    }

    /// Returns the key of the last block.
    pub(super) fn last(self) -> BlockKey {
        BlockKey(self.keys()[self.len() - 1])
    }

    /// Returns the number of spans.
    pub(super) fn n_spans(self) -> usize {
        (self.head.n_spans as usize).max(1)
    }

    /// Returns the words of the spans.
    pub(super) fn span_words(&self) -> &[u64] {
        match self.head.n_spans as usize {
            0 => std::slice::from_ref(&self.only),
            n_spans => &self.words[..n_spans],
        }
    }

    /// Returns the spans, ordered by worker and offset.
    pub(super) fn spans(&self) -> impl ExactSizeIterator<Item = BlockSpan> {
        self.span_words().iter().copied().map(BlockSpan)
    }

    /// Returns the positions of the spans of `worker`.
    fn places_of(&self, worker: WorkerIdx) -> Range<usize> {
        let spans = self.span_words();
        let start = spans.partition_point(|&word| BlockSpan(word).worker() < worker);
        let n = spans[start..].iter().take_while(|&&word| BlockSpan(word).worker() == worker).count();
        start..start + n
    }

    /// Returns the spans of `worker`.
    pub(super) fn spans_of(&self, worker: WorkerIdx) -> impl ExactSizeIterator<Item = BlockSpan> {
        self.span_words()[self.places_of(worker)].iter().copied().map(BlockSpan)
    }

    /// Returns the edit after which `new` is all that `worker` holds of the blocks `range`; `None` if that changes
    /// nothing.
    ///
    /// Shape: the spans of `new` are of that worker, ordered, and within `range`.
    pub(super) fn edit(self, worker: WorkerIdx, range: Range<usize>, new: &[BlockSpan]) -> Option<Edit> {
        let replaced_spans = self.places_of(worker);
        let old = || self.span_words()[replaced_spans.clone()].iter().copied().map(BlockSpan);
        let begins_before = |span: &BlockSpan| span.from() < range.start;
        let ends_after = |span: &BlockSpan| span.to() > range.end;
        let mut with: Vec<BlockSpan> = Vec::with_capacity(replaced_spans.len() + 3);
        with.extend(old().filter(begins_before).map(|span| span.form().over(span.from()..span.to().min(range.start))));
        with.extend_from_slice(new);
        with.extend(old().filter(ends_after).map(|span| span.form().over(span.from().max(range.end)..span.to())));
        coalesce(&mut with);
        if old().eq(with.iter().copied()) {
            return None;
        }
        let mut lost = Digest::default();
        for span in old() {
            let held_blocks = span.from().max(range.start)..span.to().min(range.end);
            self.keys().get(held_blocks).into_iter().flatten().for_each(|key| lost.add(BlockKey(*key)));
        }
        Some(Edit { replaced: replaced_spans, with, lost })
    }

    /// Returns the end of the last block that any worker holds after an edit.
    pub(super) fn n_held_after(self, edit: &Edit) -> usize {
        let kept_spans = self.spans().enumerate().filter(|(idx, _)| !edit.replaced.contains(idx)).map(|(_, span)| span);
        kept_spans.chain(edit.with.iter().copied()).map(BlockSpan::to).max().unwrap_or(0)
    }

    /// Returns the offset of the first block of `chain`; found at once if these are the first or the last blocks.
    pub(super) fn offset_of(self, chain: &[BlockKey]) -> Option<usize> {
        let (keys, BlockKey(key)) = (self.keys(), *chain.first()?);
        let at_end = keys.len().saturating_sub(chain.len());
        if let Some(offset) = [0, at_end].into_iter().find(|&offset| keys[offset] == key) {
            return Some(offset);
        }
        // Eight at a time without a branch: the compiler turns them into one vector comparison.
        let holds = |chunk: &[u64]| chunk.iter().fold(false, |is_held, &other| is_held | (other == key));
        let start = keys.chunks(8).position(holds)? * 8;
        keys[start..].iter().position(|&other| other == key).map(|offset| start + offset)
    }

    /// Returns how many blocks from `offset` on equal the first ones of `chain`; the first is known to be equal.
    ///
    /// Cost: one comparison if all agree, otherwise O(log n).
    pub(super) fn n_common(self, offset: usize, chain: &[BlockKey]) -> usize {
        let keys = &self.keys()[offset..];
        let n = keys.len().min(chain.len());
        if keys[n - 1] == chain[n - 1].0 {
            return n;
        }
        let (mut agrees, mut differs) = (0, n - 1);
        while agrees + 1 < differs {
            let middle = agrees.midpoint(differs);
            if keys[middle] == chain[middle].0 { agrees = middle } else { differs = middle }
        }
        agrees + 1
    }

    /// Returns how many blocks from `offset` on equal the first ones of `keys`, each compared.
    pub(super) fn n_equal(self, offset: usize, keys: &[BlockKey]) -> usize {
        self.keys()[offset..].iter().zip(keys).take_while(|(own, key)| **own == key.0).count()
    }

    /// Returns how many blocks from `offset` backwards equal the first ones of `keys`.
    pub(super) fn n_equal_backwards(self, offset: usize, keys: &[BlockKey]) -> usize {
        self.keys()[..=offset].iter().rev().zip(keys).take_while(|(own, key)| **own == key.0).count()
    }

    /// Returns the epoch in which the segment was last matched.
    pub(super) fn age(self) -> u32 {
        self.head.age.load(Ordering::Relaxed)
    }

    /// Marks the segment as matched in `epoch`.
    pub(super) fn touch(self, epoch: u32) {
        self.head.age.store(epoch, Ordering::Relaxed);
    }

    /// Returns the memory that the segment takes. Units: bytes.
    pub(super) fn bytes(self) -> usize {
        SEGMENT_BYTES + size_of_val(self.words)
    }

    /// Returns the memory of a segment with that many spans and keys. Units: bytes.
    pub(super) fn bytes_of(n_spans: usize, n_keys: usize) -> usize {
        SEGMENT_BYTES + (n_spans + n_keys) * size_of::<u64>()
    }
}

/// Joins adjacent spans of the same form.
fn coalesce(spans: &mut Vec<BlockSpan>) {
    spans.dedup_by(|next, span| {
        let joins = span.form() == next.form() && span.to() == next.from();
        if joins {
            *span = span.form().over(span.from()..next.to());
        }
        joins
    });
}
