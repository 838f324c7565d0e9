//! The segments by number. A block's number is in `block_table`.

use super::super::segment::{Segment, SharedSegment};

/// The segments by number.
#[derive(Default)]
pub(super) struct SegmentIds {
    /// Segment of each number; `None` if the number is free.
    segments: Vec<Option<SharedSegment>>,
    free: Vec<u32>,
}

impl SegmentIds {
    /// Returns how many numbers there are, including free ones.
    pub(super) fn len(&self) -> usize {
        self.segments.len()
    }

    /// Returns the memory of the numbers. Units: bytes.
    pub(super) fn bytes(&self) -> usize {
        self.segments.capacity() * size_of::<Option<SharedSegment>>() + self.free.capacity() * size_of::<u32>()
    }

    /// Returns the memory of `n` more numbers. Units: bytes.
    pub(super) fn bytes_of(n: usize) -> usize {
        // Every number may become free, so its place in that list is counted when the number is made.
        n * (size_of::<Option<SharedSegment>>() + size_of::<u32>())
    }

    /// Returns whether one more segment would need an allocation.
    pub(super) fn is_full(&self) -> bool {
        !self.has_free() && self.segments.len() == self.segments.capacity()
    }

    /// Returns whether a number is free.
    pub(super) fn has_free(&self) -> bool {
        !self.free.is_empty()
    }

    /// Allocates `n` more numbers.
    pub(super) fn reserve(&mut self, n: usize) {
        self.segments.reserve_exact(n);
        self.free.reserve_exact(self.segments.capacity() - self.free.len());
    }

    /// Returns a number for a segment; the caller opens it or gives it back.
    pub(super) fn take(&mut self) -> u32 {
        self.free.pop().unwrap_or(self.segments.len() as u32)
    }

    /// Takes back a number that was not opened.
    pub(super) fn give_back(&mut self, id: u32) {
        if (id as usize) < self.segments.len() {
            self.free.push(id);
        }
    }

    /// Returns the segment of a number, if it has one.
    pub(super) fn get(&self, id: u32) -> Option<&SharedSegment> {
        self.segments.get(id as usize)?.as_ref()
    }

    /// Returns the segment of a number that is known to have one.
    pub(super) fn segment(&self, id: u32) -> Segment<'_> {
        self.get(id).expect("callers pass numbers of segments only").into()
    }

    /// Returns every segment with its number.
    pub(super) fn iter(&self) -> impl Iterator<Item = (u32, Segment<'_>)> {
        (0..self.segments.len() as u32).filter_map(|id| Some((id, Segment::from(self.get(id)?))))
    }

    /// Gives a taken number its segment.
    pub(super) fn open(&mut self, id: u32, segment: SharedSegment) {
        match self.segments.get_mut(id as usize) {
            Some(place) => *place = Some(segment),
            None => self.segments.push(Some(segment)),
        }
    }

    /// Replaces the segment of a number; returns the old one.
    pub(super) fn replace(&mut self, id: u32, with: SharedSegment) -> SharedSegment {
        self.segments[id as usize].replace(with).expect("a segment is replaced where there is one")
    }

    /// Removes and returns the segment of a number that no block has any more.
    pub(super) fn close(&mut self, id: u32) -> SharedSegment {
        self.free.push(id);
        self.segments[id as usize].take().expect("a segment is closed once")
    }
}

#[cfg(test)]
impl SegmentIds {
    /// Asserts that each number is either taken or free.
    pub(super) fn check(&self) {
        let mut seen_ids: Vec<u32> = self.free.clone();
        for (id, segment) in self.iter() {
            assert_eq!(segment.number(), id, "a segment knows its number");
            seen_ids.push(id);
        }
        seen_ids.sort_unstable();
        assert!(seen_ids.into_iter().eq(0..self.segments.len() as u32), "every number is one of these, once");
        assert!(self.free.capacity() >= self.segments.len(), "the free list has room for every number");
    }
}
