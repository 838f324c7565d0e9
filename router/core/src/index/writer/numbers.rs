//! The segments by number, and the numbers that blocks have kept from a segment that is gone.
//!
//! Not here: which number a block has (`locator`). The idea: where one segment is put behind another, the blocks of the
//! second keep their number, which becomes a *part* of the first: that is one word here instead of a line of the
//! writer's table for each block. A part is free again when the segment goes, or when its blocks are given one number.

use super::super::segment::{Segment, Shared};

/// Is the end of a list of parts.
const NONE: u32 = u32::MAX;

/// Is the segments by number.
#[derive(Default)]
pub(super) struct Numbers {
    /// Lists the segments; a number that is free or a part has none.
    segments: Vec<Option<Shared>>,
    parts: Vec<Part>,
    free: Vec<u32>,
}

/// Is what a number has beside its segment.
#[derive(Clone, Copy)]
struct Part {
    /// Is the number of the segment that has the blocks of this number; its own if this is no part.
    of: u32,
    /// Is the next part of the same segment.
    next: u32,
    /// Is how many parts the segment has.
    n_parts: u32,
}

impl Part {
    fn alone(id: u32) -> Self {
        Self { of: id, next: NONE, n_parts: 0 }
    }
}

impl Numbers {
    /// Returns how many numbers there are, those included that are free.
    pub(super) fn len(&self) -> usize {
        self.segments.len()
    }

    /// Returns the memory. Units: bytes.
    pub(super) fn bytes(&self) -> usize {
        let each = size_of::<Option<Shared>>() + size_of::<Part>();
        self.segments.capacity() * each + self.free.capacity() * size_of::<u32>()
    }

    /// Returns the memory of so many numbers more. Units: bytes.
    pub(super) fn bytes_of(n: usize) -> usize {
        // Every number may come to be free, so its place there is paid for when the number is made.
        n * (size_of::<Option<Shared>>() + size_of::<Part>() + size_of::<u32>())
    }

    /// Returns whether one more segment takes a number that there is no place for yet.
    pub(super) fn is_full(&self) -> bool {
        !self.has_free() && self.segments.len() == self.segments.capacity()
    }

    /// Returns whether a number is free.
    pub(super) fn has_free(&self) -> bool {
        !self.free.is_empty()
    }

    /// Makes place for so many numbers more.
    pub(super) fn reserve(&mut self, n: usize) {
        self.segments.reserve_exact(n);
        self.parts.reserve_exact(n);
        self.free.reserve_exact(self.segments.capacity() - self.free.len());
    }

    /// Returns a number for a segment, which is given back or opened next.
    pub(super) fn take(&mut self) -> u32 {
        self.free.pop().unwrap_or(self.segments.len() as u32)
    }

    /// Takes back a number that was not opened.
    pub(super) fn give_back(&mut self, id: u32) {
        if (id as usize) < self.segments.len() {
            self.free.push(id);
        }
    }

    /// Returns the segment of a number that has one.
    pub(super) fn get(&self, id: u32) -> Option<&Shared> {
        self.segments.get(id as usize)?.as_ref()
    }

    /// Returns the number of the segment that has the blocks of a number.
    pub(super) fn owner(&self, id: u32) -> u32 {
        self.parts.get(id as usize).map_or(id, |part| part.of)
    }

    /// Returns every segment with its number.
    pub(super) fn iter(&self) -> impl Iterator<Item = (u32, Segment<'_>)> {
        (0..).zip(&self.segments).filter_map(|(id, segment)| Some((id, Segment::from(segment.as_ref()?))))
    }

    /// Gives a number that was taken its segment.
    pub(super) fn open(&mut self, id: u32, segment: Shared) {
        if id as usize == self.segments.len() {
            self.segments.push(None);
            self.parts.push(Part::alone(id));
        }
        self.segments[id as usize] = Some(segment);
    }

    /// Puts a segment in the place of the one of a number; returns that.
    pub(super) fn replace(&mut self, id: u32, segment: Shared) -> Shared {
        self.segments[id as usize].replace(segment).expect("a segment is replaced where there is one")
    }

    /// Takes out the segment of a number, whose blocks no longer have it; returns it.
    pub(super) fn close(&mut self, id: u32) -> Shared {
        self.free_parts(id);
        self.free.push(id);
        self.segments[id as usize].take().expect("a segment is closed once")
    }

    /// Takes out the segment `second`, whose number becomes a part of `first`; returns it.
    ///
    /// Cost: O(1) for each part that `second` has.
    pub(super) fn join(&mut self, first: u32, second: u32) -> Shared {
        let n_parts = self.parts[second as usize].n_parts + 1;
        let mut last = second;
        loop {
            self.parts[last as usize].of = first;
            match self.parts[last as usize].next {
                NONE => break,
                next => last = next,
            }
        }
        self.parts[last as usize].next = self.parts[first as usize].next;
        self.parts[first as usize].next = second;
        self.parts[first as usize].n_parts += n_parts;
        self.segments[second as usize].take().expect("a segment is joined once")
    }

    /// Returns how many parts a segment has.
    pub(super) fn n_parts(&self, id: u32) -> usize {
        self.parts[id as usize].n_parts as usize
    }

    /// Frees the parts of a segment, whose numbers no block has.
    pub(super) fn free_parts(&mut self, id: u32) {
        let mut next = std::mem::replace(&mut self.parts[id as usize], Part::alone(id)).next;
        while next != NONE {
            self.free.push(next);
            next = std::mem::replace(&mut self.parts[next as usize], Part::alone(next)).next;
        }
    }

    /// Frees the parts of every segment, where each block has its segment's number.
    pub(super) fn free_all_parts(&mut self) {
        for id in 0..self.segments.len() as u32 {
            if self.get(id).is_some() {
                self.free_parts(id);
            }
        }
    }
}

#[cfg(test)]
impl Numbers {
    /// Asserts that each number is taken, free, or a part of one segment.
    pub(super) fn check(&self) {
        let mut seen: Vec<u32> = self.free.clone();
        for (id, segment) in self.iter() {
            assert_eq!(segment.number(), id, "a segment knows its number");
            let mut parts = vec![id];
            let mut next = self.parts[id as usize].next;
            while next != NONE {
                assert!(self.get(next).is_none(), "part {next} has no segment");
                parts.push(next);
                next = self.parts[next as usize].next;
            }
            assert!(parts.iter().all(|&part| self.owner(part) == id), "the parts of {id} lead to it: {parts:?}");
            assert_eq!(parts.len(), 1 + self.n_parts(id), "the parts of {id} are counted");
            seen.extend(parts);
        }
        assert!(self.free.iter().all(|&id| self.owner(id) == id && self.get(id).is_none()), "what is free is nobody's");
        seen.sort_unstable();
        assert!(seen.into_iter().eq(0..self.segments.len() as u32), "every number is one of these, once");
        assert!(self.free.capacity() >= self.segments.len(), "every number has a place where it is free");
    }
}
