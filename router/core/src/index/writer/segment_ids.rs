//! The segments by number, and the numbers that blocks have kept from a segment that was appended to another.
//!
//! The number of a block is in `block_table`. If one segment is appended to another, the blocks of the second keep
//! their number, which becomes a *part* of the first. That takes one word here instead of a write to the writer's table
//! for each block. A part is free again when the segment is removed, or when all its blocks are given one number.

use super::super::segment::{Segment, SharedSegment};

/// End of a list of parts.
const NONE: u32 = u32::MAX;

/// The segments by number.
#[derive(Default)]
pub(super) struct SegmentIds {
    numbers: Vec<Number>,
    free: Vec<u32>,
}

/// Use of a number.
enum Number {
    /// A segment, and the list of its parts.
    Segment { segment: SharedSegment, next: u32, n_parts: u32 },
    /// A part of the segment `of`, in the list of its parts; a free number is a part of itself.
    Part { of: u32, next: u32 },
}

impl Number {
    fn next(&mut self) -> &mut u32 {
        match self {
            Self::Segment { next, .. } | Self::Part { next, .. } => next,
        }
    }
}

impl SegmentIds {
    /// Returns how many numbers there are, including free ones.
    pub(super) fn len(&self) -> usize {
        self.numbers.len()
    }

    /// Returns the memory of the numbers. Units: bytes.
    pub(super) fn bytes(&self) -> usize {
        self.numbers.capacity() * size_of::<Number>() + self.free.capacity() * size_of::<u32>()
    }

    /// Returns the memory of `n` more numbers. Units: bytes.
    pub(super) fn bytes_of(n: usize) -> usize {
        // Every number may become free, so its place in that list is counted when the number is made.
        n * (size_of::<Number>() + size_of::<u32>())
    }

    /// Returns whether one more segment would need an allocation.
    pub(super) fn is_full(&self) -> bool {
        !self.has_free() && self.numbers.len() == self.numbers.capacity()
    }

    /// Returns whether a number is free.
    pub(super) fn has_free(&self) -> bool {
        !self.free.is_empty()
    }

    /// Allocates `n` more numbers.
    pub(super) fn reserve(&mut self, n: usize) {
        self.numbers.reserve_exact(n);
        self.free.reserve_exact(self.numbers.capacity() - self.free.len());
    }

    /// Returns a number for a segment; the caller opens it or gives it back.
    pub(super) fn take(&mut self) -> u32 {
        self.free.pop().unwrap_or(self.numbers.len() as u32)
    }

    /// Takes back a number that was not opened.
    pub(super) fn give_back(&mut self, id: u32) {
        if (id as usize) < self.numbers.len() {
            self.free.push(id);
        }
    }

    /// Returns the segment of a number, if it has one.
    pub(super) fn get(&self, id: u32) -> Option<&SharedSegment> {
        match self.numbers.get(id as usize)? {
            Number::Segment { segment, .. } => Some(segment),
            Number::Part { .. } => None,
        }
    }

    /// Returns the segment of a number that is known to have one.
    pub(super) fn segment(&self, id: u32) -> Segment<'_> {
        self.get(id).expect("callers pass numbers of segments only").into()
    }

    /// Returns the number of the segment that now contains the blocks with this number.
    pub(super) fn owner(&self, id: u32) -> u32 {
        match self.numbers.get(id as usize) {
            Some(Number::Part { of, .. }) => *of,
            _ => id,
        }
    }

    /// Returns every segment with its number.
    pub(super) fn iter(&self) -> impl Iterator<Item = (u32, Segment<'_>)> {
        (0..self.numbers.len() as u32).filter_map(|id| Some((id, Segment::from(self.get(id)?))))
    }

    /// Gives a taken number its segment.
    pub(super) fn open(&mut self, id: u32, segment: SharedSegment) {
        let opened = Number::Segment { segment, next: NONE, n_parts: 0 };
        match self.numbers.get_mut(id as usize) {
            Some(number) => *number = opened,
            None => self.numbers.push(opened),
        }
    }

    /// Replaces the segment of a number; returns the old one.
    pub(super) fn replace(&mut self, id: u32, with: SharedSegment) -> SharedSegment {
        match &mut self.numbers[id as usize] {
            Number::Segment { segment, .. } => std::mem::replace(segment, with),
            Number::Part { .. } => unreachable!("a segment is replaced where there is one"),
        }
    }

    /// Removes and returns the segment of a number that no block has any more.
    pub(super) fn close(&mut self, id: u32) -> SharedSegment {
        self.free_parts(id);
        self.free.push(id);
        self.make_part(id, Number::Part { of: id, next: NONE })
    }

    /// Removes and returns the segment `second`, whose number becomes a part of `first`.
    ///
    /// Cost: O(1) for each part of `second`.
    pub(super) fn join(&mut self, first: u32, second: u32) -> SharedSegment {
        let n_more = self.n_parts(second) as u32 + 1;
        let Number::Segment { next, n_parts, .. } = &mut self.numbers[first as usize] else {
            unreachable!("a part has no parts")
        };
        *n_parts += n_more;
        let behind = std::mem::replace(next, second);
        let first_part = *self.numbers[second as usize].next();
        let old = self.make_part(second, Number::Part { of: first, next: first_part });
        let mut last = second;
        loop {
            let Number::Part { of, next } = &mut self.numbers[last as usize] else {
                unreachable!("a part has no segment")
            };
            *of = first;
            if *next == NONE {
                *next = behind;
                return old;
            }
            last = *next;
        }
    }

    fn make_part(&mut self, id: u32, part: Number) -> SharedSegment {
        match std::mem::replace(&mut self.numbers[id as usize], part) {
            Number::Segment { segment, .. } => segment,
            Number::Part { .. } => unreachable!("a segment is taken out once"),
        }
    }

    /// Returns the number of parts of a segment.
    pub(super) fn n_parts(&self, id: u32) -> usize {
        match self.numbers[id as usize] {
            Number::Segment { n_parts, .. } => n_parts as usize,
            Number::Part { .. } => 0,
        }
    }

    /// Frees the parts of a segment; no block has their numbers any more.
    pub(super) fn free_parts(&mut self, id: u32) {
        let Number::Segment { next, n_parts, .. } = &mut self.numbers[id as usize] else { return };
        *n_parts = 0;
        let mut part = std::mem::replace(next, NONE);
        while part != NONE {
            self.free.push(part);
            let freed = std::mem::replace(&mut self.numbers[part as usize], Number::Part { of: part, next: NONE });
            let Number::Part { next, .. } = freed else { unreachable!("a part has no segment") };
            part = next;
        }
    }

    /// Frees the parts of every segment; each block has the number of its segment now.
    pub(super) fn free_all_parts(&mut self) {
        (0..self.numbers.len() as u32).for_each(|id| self.free_parts(id));
    }
}

#[cfg(test)]
impl SegmentIds {
    /// Asserts that each number is taken, free, or a part of one segment.
    pub(super) fn check(&self) {
        let mut seen: Vec<u32> = self.free.clone();
        for (id, segment) in self.iter() {
            assert_eq!(segment.number(), id, "a segment knows its number");
            let mut parts = vec![id];
            let Number::Segment { next, .. } = &self.numbers[id as usize] else { unreachable!("it has a segment") };
            let mut next = *next;
            while next != NONE {
                let Number::Part { next: behind, .. } = &self.numbers[next as usize] else {
                    panic!("part {next} has a segment")
                };
                parts.push(next);
                next = *behind;
            }
            assert!(parts.iter().all(|&part| self.owner(part) == id), "the parts of {id} lead to it: {parts:?}");
            assert_eq!(parts.len(), 1 + self.n_parts(id), "the parts of {id} are counted");
            seen.extend(parts);
        }
        assert!(
            self.free.iter().all(|&id| self.owner(id) == id && self.get(id).is_none()),
            "a free number has no segment"
        );
        seen.sort_unstable();
        assert!(seen.into_iter().eq(0..self.numbers.len() as u32), "every number is one of these, once");
        assert!(self.free.capacity() >= self.numbers.len(), "the free list has room for every number");
    }
}
