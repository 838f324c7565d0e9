//! Sets of characters, and characters of which some bytes are missing.
//!
//! Sets are used in `parser` and `earley`.
//!
//! A set is a list of ranges of code points that UTF-8 text may contain. A token may end within a character. The known
//! bytes then stand for a range of code points, and a set allows it if they share at least one.

use std::ops::RangeInclusive;

/// Last code point.
const LAST: u32 = 0x10_FFFF;

/// Code points that a text may contain. NUL is excluded, because llama.cpp's grammars never allow it, and so are
/// surrogates.
const TEXT: [(u32, u32); 2] = [(1, 0xD7FF), (0xE000, LAST)];

/// Returns whether a text may contain one of the code points in a range.
pub(super) fn is_text(first: u32, last: u32) -> bool {
    TEXT.iter().any(|(from, to)| first.max(*from) <= last.min(*to))
}

/// Set of characters.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct CharSet {
    /// Ranges, both ends included, ascending, with a gap between any two.
    ranges: Box<[(u32, u32)]>,
}

impl CharSet {
    /// Returns the union of `ranges`; a range whose end is below its start is empty.
    pub(super) fn of(ranges: &[RangeInclusive<u32>]) -> Self {
        let mut parts: Vec<(u32, u32)> = Vec::new();
        for range in ranges {
            let within = TEXT.iter().map(|(first, last)| ((*range.start()).max(*first), (*range.end()).min(*last)));
            parts.extend(within.filter(|(from, to)| from <= to));
        }
        parts.sort_unstable();
        let mut merged: Vec<(u32, u32)> = Vec::with_capacity(parts.len());
        for (from, to) in parts {
            match merged.last_mut() {
                Some((_, end)) if from <= *end + 1 => *end = to.max(*end),
                _ => merged.push((from, to)),
            }
        }
        Self { ranges: merged.into() }
    }

    /// Returns the set of all characters that are in none of `ranges`.
    pub(super) fn without(ranges: &[RangeInclusive<u32>]) -> Self {
        let mut gaps = Vec::new();
        let mut next = 0;
        for (from, to) in &Self::of(ranges).ranges {
            if next < *from {
                gaps.push(next..=from - 1);
            }
            next = to + 1;
        }
        gaps.push(next..=LAST);
        Self::of(&gaps)
    }

    /// Returns whether the set is empty.
    pub(super) fn is_empty(&self) -> bool {
        self.ranges.is_empty()
    }

    /// Returns whether the set has a code point from `first` to `last`; the range is empty if its end is below its
    /// start.
    pub(super) fn meets(&self, first: u32, last: u32) -> bool {
        let idx = self.ranges.partition_point(|(_, to)| *to < first);
        first <= last && self.ranges.get(idx).is_some_and(|(from, _)| *from <= last)
    }

    /// Returns whether the set contains either all characters beyond ASCII or none of them.
    pub(super) fn is_alike_beyond_ascii(&self) -> bool {
        let beyond = Self::of(&[0x80..=LAST]);
        !self.meets(0x80, LAST) || beyond.ranges.iter().all(|(first, last)| self.covers(*first, *last))
    }

    fn covers(&self, first: u32, last: u32) -> bool {
        self.ranges.iter().any(|(from, to)| *from <= first && last <= *to)
    }

    /// Returns the memory that the set takes. Units: bytes.
    pub(super) fn n_bytes(&self) -> usize {
        size_of::<Self>() + size_of_val(&*self.ranges)
    }

    /// Returns the starts of the set's ranges and the code points after their ends.
    pub(super) fn bounds(&self) -> impl Iterator<Item = u32> {
        self.ranges.iter().flat_map(|(from, to)| [*from, to + 1])
    }
}

/// First bytes of a character.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct PartialChar {
    /// Bits that are known.
    value: u32,
    n_bytes_left: u32,
    /// Smallest code point that may be encoded with this number of bytes.
    smallest: u32,
}

/// Result of reading one byte.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Decoded {
    /// A whole character.
    Whole(u32),
    /// The first bytes of a character.
    Begun(PartialChar),
}

impl PartialChar {
    /// Reads a character's first byte; returns `None` for a byte that cannot start one.
    pub(super) fn begin(byte: u8) -> Option<Decoded> {
        let begun = |bits, n_bytes_left, smallest| {
            Some(Decoded::Begun(Self { value: u32::from(bits), n_bytes_left, smallest }))
        };
        match byte {
            ..0x80 => Some(Decoded::Whole(u32::from(byte))),
            0xC2..0xE0 => begun(byte & 0x1F, 1, 0x80),
            0xE0..0xF0 => begun(byte & 0x0F, 2, 0x800),
            0xF0..0xF5 => begun(byte & 0x07, 3, 0x1_0000),
            _ => None,
        }
    }

    /// Reads the next byte; returns `None` for one that cannot follow.
    pub(super) fn push(self, byte: u8) -> Option<Decoded> {
        if byte & 0xC0 != 0x80 {
            return None;
        }
        let value = self.value << 6 | u32::from(byte & 0x3F);
        match self.n_bytes_left {
            1 => (value >= self.smallest).then_some(Decoded::Whole(value)),
            n => Some(Decoded::Begun(Self { value, n_bytes_left: n - 1, ..self })),
        }
    }

    /// Returns the range of code points that the character may become; its end is below its start if there are none.
    pub(super) fn range(self) -> (u32, u32) {
        let n_bits = 6 * self.n_bytes_left;
        let first = self.value << n_bits;
        (first.max(self.smallest), (first | ((1 << n_bits) - 1)).min(LAST))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_set_and_its_complement_are_disjoint_and_cover_all_characters() {
        let empty = RangeInclusive::new(0x5A, 0x30);
        let ranges = [0x61..=0x7A, 0x41..=0x4D, 0x4E..=0x5A, empty, 0xD700..=0xE001, 0x10_FFF0..=u32::MAX];
        let (set, rest) = (CharSet::of(&ranges), CharSet::without(&ranges));
        for c in (0..=0x200).chain(0xD600..0xE100).chain(0x10_FF00..=0x10_FFFF) {
            let is_text = c != 0 && char::from_u32(c).is_some();
            let is_in = is_text && ranges.iter().any(|range| range.contains(&c));
            assert_eq!(set.meets(c, c), is_in, "{c:x}");
            assert_eq!(rest.meets(c, c), is_text && !is_in, "{c:x}");
        }
    }

    #[test]
    fn bytes_are_decoded_like_in_the_standard_library() {
        for c in
            (0..0x3000).chain(0xD700..0xE100).chain(0xFF00..0x1_0100).chain(0x10_FF00..=LAST).filter_map(char::from_u32)
        {
            let mut buffer = [0; 4];
            let bytes = c.encode_utf8(&mut buffer).as_bytes();
            let mut decoded = PartialChar::begin(bytes[0]);
            for byte in &bytes[1..] {
                let Some(Decoded::Begun(partial)) = decoded else { panic!("{c:?} is complete too early") };
                let (first, last) = partial.range();
                assert!((first..=last).contains(&u32::from(c)), "{c:?}");
                decoded = partial.push(*byte);
            }
            assert_eq!(decoded, Some(Decoded::Whole(u32::from(c))));
        }
        for wrong in [0x80, 0xC0, 0xC1, 0xF5, 0xFF] {
            assert_eq!(PartialChar::begin(wrong), None);
        }
    }
}
