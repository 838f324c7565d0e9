//! The writer's table: from the key of any block to the segment that has it.
//!
//! Not here: the keys themselves, which only the segments have; whoever asks compares. The idea: a slot is four bytes:
//! the segment's number, some bits of the key's hash, and how many lines the block lies behind its own. Fifteen slots
//! and a count fill one cache line; a block whose line is full lies in a later one, and the counts of the lines between
//! say that there is such a block. A table is rebuilt from the segments, so the old one goes before the new one comes.
//! Source: the chunks and overflow counts of F14 (Bronson and Shi, Facebook, 2019).

/// Is one more than the largest number of a segment.
pub(super) const SEGMENTS_MAX: u32 = (1 << ID_BITS) - 1;
const ID_BITS: u32 = 22;
const ID_MASK: u32 = (1 << ID_BITS) - 1;
const TAG_BITS: u32 = 7;
const TAG_SHIFT: u32 = 32 - TAG_BITS;
/// Is how many lines a block may lie in; it has three bits in a slot.
const LINES_TRIED: usize = 8;
/// Is the number of slots of a line; the last of its sixteen words counts the blocks that had no place in it.
const LINE_SLOTS: usize = 15;
/// Is the fullest that a table becomes. Units: blocks for each 100 slots.
///
/// Source: docs/decisions/0006-prefix-index.md; beyond it, one block in five lies behind its own line.
const LOAD_PERCENT_MAX: usize = 80;
/// Is the load of a new table. Units: blocks for each 100 slots.
const LOAD_PERCENT_NEW: usize = 57;

#[derive(Clone, Copy)]
#[repr(align(64))]
struct Line([u32; LINE_SLOTS + 1]);

/// Is where a block may be found: its lines, and the bits that tell it from most others there.
///
/// A slot's line, bits and distance decide the block's own line, so blocks of one segment that agree in them are
/// interchangeable.
#[derive(Debug, Clone, Copy)]
pub(super) struct Probe {
    home: usize,
    tag: u32,
}

impl Probe {
    /// Returns what a slot says of the block where `id` has it, `distance` lines tried before.
    fn word(self, distance: usize, id: u32) -> u32 {
        self.tag << TAG_SHIFT | (distance as u32) << ID_BITS | (id + 1)
    }
}

/// Is the table.
pub(super) struct Locator {
    lines: Vec<Line>,
    n_blocks: usize,
    /// Says that a block found no place though the table is not full by count.
    is_clogged: bool,
}

impl Locator {
    /// Returns an empty table.
    pub(super) fn new() -> Self {
        Self { lines: Vec::new(), n_blocks: 0, is_clogged: false }
    }

    /// Returns the memory that the table takes. Units: bytes.
    pub(super) fn bytes(&self) -> usize {
        self.lines.len() * size_of::<Line>()
    }

    /// Returns the number of blocks.
    pub(super) fn n_blocks(&self) -> usize {
        self.n_blocks
    }

    /// Returns the memory of the table that replaces this one before `n` more blocks fit; `None` where they fit.
    pub(super) fn bytes_of_next(&self, n: usize) -> Option<usize> {
        let n_blocks = self.n_blocks + n;
        let fits = !self.is_clogged && n_blocks * 100 <= self.lines.len() * LINE_SLOTS * LOAD_PERCENT_MAX;
        let more = if self.is_clogged { self.lines.len() / 2 } else { 0 };
        let n_lines = (n_blocks * 100 / LOAD_PERCENT_NEW / LINE_SLOTS).max(self.lines.len() + more);
        (!fits).then_some((n_lines + 2) * size_of::<Line>())
    }

    /// Becomes an empty table of `bytes`.
    pub(super) fn reset(&mut self, bytes: usize) {
        self.lines = Vec::new();
        self.lines = vec![Line([0; LINE_SLOTS + 1]); bytes / size_of::<Line>()];
        self.n_blocks = 0;
        self.is_clogged = false;
    }

    /// Returns where a block of this hash may be found.
    pub(super) fn probe(&self, hash: u64) -> Probe {
        let home = ((hash >> 32) * self.lines.len() as u64) >> 32;
        Probe { home: home as usize, tag: hash as u32 & ((1 << TAG_BITS) - 1) }
    }

    /// Returns the line that is tried after `distance` others: blocks of one line part ways by their bits.
    fn line_at(&self, probe: Probe, distance: usize) -> usize {
        if distance == 0 { probe.home } else { (probe.home + distance * (1 + probe.tag as usize)) % self.lines.len() }
    }

    /// Returns what `check` makes of the first segment that may have the block and of which it makes something.
    pub(super) fn find<T>(&self, probe: Probe, mut check: impl FnMut(u32) -> Option<T>) -> Option<T> {
        if self.lines.is_empty() {
            return None;
        }
        for distance in 0..LINES_TRIED {
            let line = &self.lines[self.line_at(probe, distance)];
            let found = line.find(probe.word(distance, 0), &mut check);
            if found.is_some() || line.0[LINE_SLOTS] == 0 {
                return found;
            }
        }
        None
    }

    /// Records that a segment has a block, which is in no segment yet; returns whether there was a place.
    pub(super) fn insert(&mut self, probe: Probe, id: u32) -> bool {
        let distances = if self.lines.is_empty() { 0 } else { LINES_TRIED };
        let mut distances = 0..distances;
        let Some(distance) = distances.find(|&distance| self.replace(probe, distance, (0, probe.word(distance, id))))
        else {
            self.is_clogged = true;
            return false;
        };
        for passed in 0..distance {
            let line = self.line_at(probe, passed);
            self.lines[line].0[LINE_SLOTS] += 1;
        }
        self.n_blocks += 1;
        true
    }

    /// Forgets that a segment has a block.
    pub(super) fn remove(&mut self, probe: Probe, id: u32) {
        let mut distances = 0..LINES_TRIED;
        let found = distances.find(|&distance| self.replace(probe, distance, (probe.word(distance, id), 0)));
        for passed in 0..found.expect("a block that is removed was inserted") {
            let line = self.line_at(probe, passed);
            self.lines[line].0[LINE_SLOTS] -= 1;
        }
        self.n_blocks -= 1;
    }

    /// Records that a block has moved from one segment to another.
    pub(super) fn relabel(&mut self, probe: Probe, (from, to): (u32, u32)) {
        let words = |distance| (probe.word(distance, from), probe.word(distance, to));
        let moved = (0..LINES_TRIED).any(|distance| self.replace(probe, distance, words(distance)));
        debug_assert!(moved, "a block that moves was inserted");
    }

    fn replace(&mut self, probe: Probe, distance: usize, (old, new): (u32, u32)) -> bool {
        let line = self.line_at(probe, distance);
        self.lines[line].replace(old, new)
    }
}

impl Line {
    /// Asks `check` for each segment whose slot has the bits of `like` above the number.
    fn find<T>(&self, like: u32, check: &mut impl FnMut(u32) -> Option<T>) -> Option<T> {
        let mut mask = self.mask(|word| word >> ID_BITS == like >> ID_BITS && word != 0);
        while mask != 0 {
            let word = self.0[mask.trailing_zeros() as usize];
            if let Some(found) = check((word & ID_MASK) - 1) {
                return Some(found);
            }
            mask &= mask - 1;
        }
        None
    }

    /// Replaces one slot that says `old`; returns whether there was one.
    fn replace(&mut self, old: u32, new: u32) -> bool {
        let mask = self.mask(|word| word == old);
        if mask != 0 {
            self.0[mask.trailing_zeros() as usize] = new;
        }
        mask != 0
    }

    /// Returns a bit for each slot of which `is` holds, without a branch: the compiler makes vector comparisons of it.
    fn mask(&self, is: impl Fn(u32) -> bool) -> u32 {
        let bit = |(idx, word): (usize, &u32)| u32::from(is(*word)) << idx;
        self.0[..LINE_SLOTS].iter().enumerate().map(bit).fold(0, |mask, bit| mask | bit)
    }
}
