//! The writer's table: from the key of any block to the segment that has it.
//!
//! Not here: the keys themselves, which only the segments have; whoever asks compares. The idea: a slot is a word and four
//! bits: the segment's number, some bits of the key's hash, and how many lines the block lies behind its own. Fourteen
//! slots and a count fill one cache line; a block whose line is full lies in a later one, and the counts of the lines
//! between say that there is such a block. Lines lie in no cache, so those of several blocks are loaded side by side. A
//! slot's line and bits are all that its place hangs on, so a table grows from itself, in one pass from end to end; now
//! and then, for better bits, or where there is no room for two, it is rebuilt from the segments.
//! Source: the chunks and overflow counts of F14 (Bronson and Shi, Facebook, 2019).

/// Is one more than the largest number of a segment.
pub(super) const SEGMENTS_MAX: u32 = (1 << ID_BITS) - 1;
/// Is how many blocks are looked for side by side.
///
/// Source: docs/decisions/0006-prefix-index.md; a processor waits for some dozens of lines at a time.
pub(super) const BATCH: usize = 64;
const ID_BITS: u32 = 22;
const ID_MASK: u32 = (1 << ID_BITS) - 1;
const DISTANCE_MASK: u32 = (LINES_TRIED as u32 - 1) << ID_BITS;
const TAG_BITS: u32 = 7;
const TAG_SHIFT: u32 = 32 - TAG_BITS;
/// Is how many bits of a hash a slot has beside its word.
const EXTRA_BITS: u32 = 4;
const EXTRA_MASK: u32 = (1 << EXTRA_BITS) - 1;
/// Is how many bits of a hash tell blocks of one line apart, in a table that is new.
const FINE_BITS: u32 = TAG_BITS + EXTRA_BITS;
/// Is how often larger a table becomes before it is rebuilt: with every doubling the bits tell half as much.
const GROWTH_MAX: usize = 8;
/// Is how many lines a block may lie in; it has three bits in a slot.
const LINES_TRIED: usize = 8;
/// Is the number of slots of a line.
const LINE_SLOTS: usize = 14;
/// Is the word of a line with the first slots' extra bits.
const EXTRA_WORD: usize = LINE_SLOTS;
/// Is the word of a line whose upper eight bits count the blocks that had no place in it.
const COUNT_WORD: usize = 15;
const COUNT_SHIFT: u32 = 24;
/// Is how many blocks may pass a line; where it is small, one of them may pass a line at each of its tries.
const PASSES_MAX: u32 = u8::MAX as u32 - LINES_TRIED as u32;
/// Is the fullest that a table becomes. Units: blocks for each 100 slots.
///
/// Source: docs/decisions/0006-prefix-index.md; beyond it, ever more blocks lie behind their own lines.
const LOAD_PERCENT_MAX: usize = 70;
/// Is the load of a new table where there is room for one twice as large, and where there is not. Units: blocks for each
/// 100 slots.
///
/// Source: docs/decisions/0006-prefix-index.md; to double is to copy a block twice on the way, not three times or four.
pub(super) const LOADS_PERCENT_NEW: [usize; 2] = [LOAD_PERCENT_MAX / 2, 57];

#[derive(Clone, Copy)]
#[repr(align(64))]
struct Line([u32; 16]);

/// Is where a block may be found: its lines, and the bits that tell it from most others there.
///
/// A slot's line, bits and distance decide the block's own line, so blocks of one segment that agree in them are
/// interchangeable.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Probe {
    home: u32,
    fine: u32,
}

impl Probe {
    /// Returns what the slot says of the block where `id` has it, `distance` lines tried before.
    fn slot(self, distance: usize, id: u32) -> Slot {
        let word = self.fine << TAG_SHIFT | (distance as u32) << ID_BITS | (id + 1);
        Slot { word, extra: self.fine >> TAG_BITS }
    }
}

/// Is what a line says of one block; its word is 0 where there is none.
#[derive(Clone, Copy)]
struct Slot {
    word: u32,
    extra: u32,
}

/// Is the table.
pub(super) struct Locator {
    lines: Vec<Line>,
    n_blocks: usize,
    /// Is how many of a hash's bits the table uses: [`FINE_BITS`] more than tell 2^n lines apart, of which there are at least
    /// so many.
    hash_bits: u32,
    /// Says that a block found no place though the table is not full by count.
    is_clogged: bool,
}

impl Locator {
    /// Returns an empty table.
    pub(super) fn new() -> Self {
        Self { lines: Vec::new(), n_blocks: 0, hash_bits: FINE_BITS, is_clogged: false }
    }

    /// Returns the memory that the table takes. Units: bytes.
    pub(super) fn bytes(&self) -> usize {
        self.lines.len() * size_of::<Line>()
    }

    /// Returns the number of blocks.
    pub(super) fn n_blocks(&self) -> usize {
        self.n_blocks
    }

    /// Returns the memory of the table of this load that replaces this one before `n` more blocks fit; `None` where they fit.
    pub(super) fn bytes_of_next(&self, n: usize, load_percent: usize) -> Option<usize> {
        let n_blocks = self.n_blocks + n;
        let fits = !self.is_clogged && n_blocks * 100 <= self.lines.len() * LINE_SLOTS * LOAD_PERCENT_MAX;
        let more = if self.is_clogged { self.lines.len() / 2 } else { 0 };
        let n_lines = (n_blocks * 100 / load_percent / LINE_SLOTS).max(self.lines.len() + more);
        (!fits).then_some((n_lines + 2) * size_of::<Line>())
    }

    /// Becomes an empty table of `bytes`.
    pub(super) fn reset(&mut self, bytes: usize) {
        self.lines = Vec::new();
        let n_lines = bytes / size_of::<Line>();
        *self = Self::with_lines(n_lines, FINE_BITS + n_lines.max(1).ilog2());
    }

    fn with_lines(n_lines: usize, hash_bits: u32) -> Self {
        Self { lines: vec![Line([0; 16]); n_lines], n_blocks: 0, hash_bits, is_clogged: false }
    }

    /// Becomes a table of `bytes` with the same blocks; returns whether it did: if not, it has to be rebuilt.
    pub(super) fn grow(&mut self, bytes: usize) -> bool {
        let n_lines = bytes / size_of::<Line>();
        if self.lines.is_empty() || n_lines >> (self.hash_bits - FINE_BITS) >= GROWTH_MAX {
            return false;
        }
        let mut next = Self::with_lines(n_lines, self.hash_bits);
        let no_place = next.take_in_order(self);
        let has_behind = |at: &usize| self.lines[*at].has_behind();
        let behind = (0..self.lines.len()).filter(has_behind).flat_map(|at| self.slots_behind(at));
        let is_whole = no_place.into_iter().chain(behind).all(|(bits, id)| next.insert(next.probe_of_bits(bits), id));
        if is_whole {
            *self = next;
        }
        is_whole
    }

    /// Takes in the blocks of `old` that lie in their own lines there; returns the few that have no place in their own
    /// lines here.
    ///
    /// Lines are filled in order, and their places are counted: to look for the next would be to wait for the last.
    fn take_in_order(&mut self, old: &Self) -> Vec<(u64, u32)> {
        let mut n_filled = vec![0u8; self.lines.len()];
        let mut no_place = Vec::new();
        for (at, line) in old.lines.iter().enumerate() {
            let first = old.first_bits(at);
            for idx in (0..LINE_SLOTS).filter(|&idx| line.distance(idx) == Some(0)) {
                let bits = bits_from(first, line.fine(idx));
                let probe = self.probe_of_bits(bits);
                let home = probe.home as usize;
                let n = &mut n_filled[home];
                if usize::from(*n) == LINE_SLOTS {
                    no_place.push((bits, line.id(idx)));
                    continue;
                }
                self.lines[home].fill(usize::from(*n), probe.slot(0, line.id(idx)));
                *n += 1;
                self.n_blocks += 1;
            }
        }
        no_place
    }

    /// Returns the bits and segments of the blocks that lie in a line which is not their own.
    fn slots_behind(&self, at: usize) -> impl Iterator<Item = (u64, u32)> {
        let line = &self.lines[at];
        (0..LINE_SLOTS).filter_map(move |idx| {
            let distance = line.distance(idx).filter(|&distance| distance > 0)?;
            let passed = distance * step(line.fine(idx)) % self.lines.len();
            let home = (at + self.lines.len() - passed) % self.lines.len();
            Some((bits_from(self.first_bits(home), line.fine(idx)), line.id(idx)))
        })
    }

    /// Returns the least number that leads to a line.
    fn first_bits(&self, line: usize) -> u64 {
        ((line as u64) << self.hash_bits).div_ceil(self.lines.len() as u64)
    }

    /// Returns where the blocks of these hashes may be found, and has their lines loaded side by side; at most [`BATCH`].
    pub(super) fn probes(&self, hashes: impl Iterator<Item = u64>) -> [Probe; BATCH] {
        let mut probes = [Probe::default(); BATCH];
        let mut loaded = 0;
        for (probe, hash) in probes.iter_mut().zip(hashes) {
            *probe = self.probe(hash);
            loaded |= self.lines.get(probe.home as usize).map_or(0, |line| line.0[COUNT_WORD]);
        }
        // What was loaded is nothing to anybody; that it was loaded is.
        std::hint::black_box(loaded);
        probes
    }

    /// Returns where a block of this hash may be found.
    pub(super) fn probe(&self, hash: u64) -> Probe {
        self.probe_of_bits(hash >> (u64::BITS - self.hash_bits))
    }

    fn probe_of_bits(&self, bits: u64) -> Probe {
        let home = (bits * self.lines.len() as u64) >> self.hash_bits;
        Probe { home: home as u32, fine: bits as u32 & ((1 << FINE_BITS) - 1) }
    }

    /// Returns the line that is tried after `distance` others: blocks of one line part ways by their bits.
    fn line_at(&self, probe: Probe, distance: usize) -> usize {
        let home = probe.home as usize;
        if distance == 0 { home } else { (home + distance * step(probe.fine)) % self.lines.len() }
    }

    /// Returns what `check` makes of the first segment that may have the block and of which it makes something.
    pub(super) fn find<T>(&self, probe: Probe, mut check: impl FnMut(u32) -> Option<T>) -> Option<T> {
        if self.lines.is_empty() {
            return None;
        }
        for distance in 0..LINES_TRIED {
            let line = &self.lines[self.line_at(probe, distance)];
            let found = line.find(probe.slot(distance, 0), |_, id| check(id));
            if found.is_some() || !line.was_passed() {
                return found;
            }
        }
        None
    }

    /// Records that a segment has a block, which is in no segment yet; returns whether there was a place.
    pub(super) fn insert(&mut self, probe: Probe, id: u32) -> bool {
        let n_tried = if self.lines.is_empty() { 0 } else { LINES_TRIED };
        for distance in 0..n_tried {
            let line = self.line_at(probe, distance);
            if self.lines[line].insert(probe.slot(distance, id)) {
                self.pass(probe, distance);
                self.n_blocks += 1;
                return true;
            }
            if self.lines[line].is_full_of_passes() {
                break;
            }
        }
        self.is_clogged = true;
        false
    }

    /// Counts a block in the lines in which it had no place.
    fn pass(&mut self, probe: Probe, distance: usize) {
        for passed in 0..distance {
            let line = self.line_at(probe, passed);
            self.lines[line].0[COUNT_WORD] += 1 << COUNT_SHIFT;
        }
    }

    /// Forgets a block that has a number which `is` accepts.
    pub(super) fn remove(&mut self, probe: Probe, is: impl Fn(u32) -> bool) {
        let (distance, line, idx) = self.find_slot(probe, is).expect("a block that is removed was inserted");
        self.lines[line].0[idx] = 0;
        for passed in 0..distance {
            let line = self.line_at(probe, passed);
            self.lines[line].0[COUNT_WORD] -= 1 << COUNT_SHIFT;
        }
        self.n_blocks -= 1;
    }

    /// Gives a block that has a number which `is` accepts another; where there is none, that has happened.
    pub(super) fn relabel(&mut self, probe: Probe, is: impl Fn(u32) -> bool, to: u32) {
        if let Some((distance, line, idx)) = self.find_slot(probe, is) {
            self.lines[line].0[idx] = probe.slot(distance, to).word;
        }
    }

    /// Returns how many lines lie before a block that has a number which `is` accepts, its line, and its slot there.
    fn find_slot(&self, probe: Probe, is: impl Fn(u32) -> bool) -> Option<(usize, usize, usize)> {
        (0..LINES_TRIED).find_map(|distance| {
            let line = self.line_at(probe, distance);
            let accepted = |idx, id| is(id).then_some((distance, line, idx));
            self.lines[line].find(probe.slot(distance, 0), accepted)
        })
    }
}

/// Returns the number that ends with `fine`, of those from `first` on that lead to one line: no two of them end alike.
fn bits_from(first: u64, fine: u32) -> u64 {
    first + (u64::from(fine).wrapping_sub(first) & ((1 << FINE_BITS) - 1))
}

/// Returns how many lines on a block with these bits is tried next.
fn step(fine: u32) -> usize {
    1 + (fine as usize & ((1 << TAG_BITS) - 1))
}

impl Line {
    /// Returns whether a block that belongs here, or passed here, lies in a later line.
    fn was_passed(&self) -> bool {
        self.0[COUNT_WORD] >> COUNT_SHIFT != 0
    }

    fn is_full_of_passes(&self) -> bool {
        self.0[COUNT_WORD] >> COUNT_SHIFT >= PASSES_MAX
    }

    /// Asks `check` for each slot that has the bits of `like` beside the number, and its number.
    fn find<T>(&self, like: Slot, mut check: impl FnMut(usize, u32) -> Option<T>) -> Option<T> {
        let mut mask = self.mask(|word| (word ^ like.word) >> ID_BITS == 0);
        while mask != 0 {
            let idx = mask.trailing_zeros() as usize;
            // An empty slot has no number.
            if let Some(id) = (self.0[idx] & ID_MASK).checked_sub(1)
                && self.extra(idx) == like.extra
                && let Some(found) = check(idx, id)
            {
                return Some(found);
            }
            mask &= mask - 1;
        }
        None
    }

    /// Fills an empty slot; returns whether there was one.
    fn insert(&mut self, slot: Slot) -> bool {
        let mask = self.mask(|word| word == 0);
        if mask == 0 {
            return false;
        }
        self.fill(mask.trailing_zeros() as usize, slot);
        true
    }

    fn fill(&mut self, idx: usize, slot: Slot) {
        self.0[idx] = slot.word;
        let (word, shift) = Self::place_of_extra(idx);
        self.0[word] = self.0[word] & !(EXTRA_MASK << shift) | slot.extra << shift;
    }

    /// Returns whether a block lies here whose own line is another, without a branch.
    fn has_behind(&self) -> bool {
        self.0[..LINE_SLOTS].iter().fold(0, |all, word| all | word) & DISTANCE_MASK != 0
    }

    /// Returns how many lines the block of a slot lies behind its own; `None` where there is no block.
    fn distance(&self, idx: usize) -> Option<usize> {
        let word = self.0[idx];
        (word != 0).then_some((word >> ID_BITS) as usize % LINES_TRIED)
    }

    /// Returns the number of the segment of a slot that is not empty.
    fn id(&self, idx: usize) -> u32 {
        (self.0[idx] & ID_MASK) - 1
    }

    /// Returns the last bits of the hash of a slot's block.
    fn fine(&self, idx: usize) -> u32 {
        self.0[idx] >> TAG_SHIFT | self.extra(idx) << TAG_BITS
    }

    fn extra(&self, idx: usize) -> u32 {
        let (word, shift) = Self::place_of_extra(idx);
        self.0[word] >> shift & EXTRA_MASK
    }

    /// Returns the word with a slot's extra bits, and where they begin in it.
    fn place_of_extra(idx: usize) -> (usize, u32) {
        let bit = idx as u32 * EXTRA_BITS;
        (EXTRA_WORD + (bit / u32::BITS) as usize, bit % u32::BITS)
    }

    /// Returns a bit for each slot of which `is` holds, without a branch: the compiler makes vector comparisons of it.
    fn mask(&self, is: impl Fn(u32) -> bool) -> u32 {
        let bit = |(idx, word): (usize, &u32)| u32::from(is(*word)) << idx;
        self.0[..LINE_SLOTS].iter().enumerate().map(bit).fold(0, |mask, bit| mask | bit)
    }
}

#[cfg(test)]
mod tests;
