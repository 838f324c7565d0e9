//! The writer's table: from the key of any block to the segment that contains it.
//!
//! The keys are stored only in the segments, so the caller compares them. A slot is a word and four bits: the segment's
//! number, some bits of the key's hash, and the distance in lines from the block's own line. Fourteen slots and a count
//! fill one cache line. A block whose line is full is stored in a later line, and each line that it passes counts it.
//! Lines are seldom in a cache, so those of several blocks are loaded in parallel. A block's place depends only on its
//! line and its bits, so a table can grow from its own entries, in one pass from end to end. It is rebuilt from the
//! segments when the bits have become too few, or when there is no memory for two tables.
//! Source: the chunks and overflow counts of F14 (Bronson and Shi, Facebook, 2019).

/// One more than the largest segment number.
pub(super) const SEGMENTS_MAX: u32 = (1 << ID_BITS) - 1;
/// Number of blocks that are looked up in parallel.
///
/// Source: docs/decisions/0006-prefix-index.md; a processor waits for some dozens of lines at a time.
pub(super) const BATCH: usize = 64;
const ID_BITS: u32 = 22;
const ID_MASK: u32 = (1 << ID_BITS) - 1;
const DISTANCE_MASK: u32 = (LINES_TRIED as u32 - 1) << ID_BITS;
const TAG_BITS: u32 = 7;
const TAG_SHIFT: u32 = 32 - TAG_BITS;
/// Number of hash bits that a slot keeps outside its word. Source: the extra bits of fourteen slots fill the two words
/// of a line that hold no slot, beside the count.
const EXTRA_BITS: u32 = 4;
const EXTRA_MASK: u32 = (1 << EXTRA_BITS) - 1;
/// Number of hash bits that tell blocks of one line apart, in a new table.
const FINE_BITS: u32 = TAG_BITS + EXTRA_BITS;
/// Growth after which a table is rebuilt: each doubling leaves half as many bit patterns to tell blocks apart. Source:
/// own choice: at most three of the hash bits that distinguish blocks are lost.
const GROWTH_MAX: usize = 8;
/// Number of lines in which a block may be stored. Source: own choice: three bits of a slot hold the distance.
const LINES_TRIED: usize = 8;
/// Number of slots of a line. Source: a cache line of 16 words, of which two hold extra bits and the count.
const LINE_SLOTS: usize = 14;
/// Word of a line with the first slots' extra bits.
const EXTRA_WORD: usize = LINE_SLOTS;
/// Word of a line whose upper eight bits count the blocks that did not fit into it.
const COUNT_WORD: usize = 15;
const COUNT_SHIFT: u32 = 24;
/// Maximum number of blocks that pass a line. The margin is for small tables, in which one block may pass the same line
/// several times.
const PASSES_MAX: u32 = u8::MAX as u32 - LINES_TRIED as u32;
/// Maximum load of a table. Units: blocks per 100 slots.
///
/// Source: docs/decisions/0006-prefix-index.md; beyond it, more and more blocks are stored outside their own lines.
const LOAD_PERCENT_MAX: usize = 70;
/// Load of a new table if there is memory for a table twice as large, and otherwise. Units: blocks per 100 slots.
///
/// Source: docs/decisions/0006-prefix-index.md: doubling copies each block twice as the table grows, a smaller factor
/// three or four times.
pub(super) const LOADS_PERCENT_NEW: [usize; 2] = [LOAD_PERCENT_MAX / 2, 57];

#[derive(Clone, Copy)]
#[repr(align(64))]
struct TableLine([u32; 16]);

/// Position of a block in the table: its lines, and the bits that distinguish it from most other blocks there.
///
/// A slot's line, bits and distance determine the block's own line. So two blocks of one segment with equal line, bits
/// and distance are interchangeable.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct BlockProbe {
    home: u32,
    fine: u32,
}

impl BlockProbe {
    /// Returns the slot of the block if it belongs to segment `id` and is stored `distance` lines after its own line.
    fn slot(self, distance: usize, id: u32) -> LineSlot {
        let word = self.fine << TAG_SHIFT | (distance as u32) << ID_BITS | (id + 1);
        LineSlot { word, extra: self.fine >> TAG_BITS }
    }
}

/// Slot of a line for one block; the word of an empty slot is 0.
#[derive(Clone, Copy)]
struct LineSlot {
    word: u32,
    extra: u32,
}

/// Table from block keys to segment numbers.
pub(super) struct BlockTable {
    lines: Vec<TableLine>,
    n_blocks: usize,
    /// Number of hash bits that the table uses: [`FINE_BITS`], and as many as are needed to tell 2^n lines apart; a
    /// table has at least 2^n lines.
    hash_bits: u32,
    /// Whether a block found no slot although the table is below its maximum load.
    is_clogged: bool,
}

impl BlockTable {
    /// Returns an empty table.
    pub(super) fn new() -> Self {
        Self { lines: Vec::new(), n_blocks: 0, hash_bits: FINE_BITS, is_clogged: false }
    }

    /// Returns the memory of the table. Units: bytes.
    pub(super) fn bytes(&self) -> usize {
        self.lines.len() * size_of::<TableLine>()
    }

    /// Returns the number of blocks.
    pub(super) fn n_blocks(&self) -> usize {
        self.n_blocks
    }

    /// Returns the memory of the next table at this load if `n` more blocks do not fit into this one; `None` if they
    /// fit.
    pub(super) fn bytes_of_next(&self, n: usize, load_percent: usize) -> Option<usize> {
        let n_blocks = self.n_blocks + n;
        let fits = !self.is_clogged && n_blocks * 100 <= self.lines.len() * LINE_SLOTS * LOAD_PERCENT_MAX;
        let more = if self.is_clogged { self.lines.len() / 2 } else { 0 };
        let n_lines = (n_blocks * 100 / load_percent / LINE_SLOTS).max(self.lines.len() + more);
        (!fits).then_some((n_lines + 2) * size_of::<TableLine>())
    }

    /// Becomes an empty table of `bytes`.
    pub(super) fn reset(&mut self, bytes: usize) {
        self.lines = Vec::new();
        let n_lines = bytes / size_of::<TableLine>();
        *self = Self::with_lines(n_lines, FINE_BITS + n_lines.max(1).ilog2());
    }

    fn with_lines(n_lines: usize, hash_bits: u32) -> Self {
        Self { lines: vec![TableLine([0; 16]); n_lines], n_blocks: 0, hash_bits, is_clogged: false }
    }

    /// Becomes a table of `bytes` with the same blocks; returns whether that worked. If not, the table has to be
    /// rebuilt.
    pub(super) fn grow(&mut self, bytes: usize) -> bool {
        let n_lines = bytes / size_of::<TableLine>();
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

    /// Copies the blocks that are stored in their own lines in `old`; returns the few that do not fit into their own
    /// lines in this table.
    ///
    /// Lines are filled in order and their slots counted, since searching for a free slot would wait for each previous
    /// write.
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

    /// Returns the hash bits and segments of the blocks in line `at` that belong to an earlier line.
    fn slots_behind(&self, at: usize) -> impl Iterator<Item = (u64, u32)> {
        let line = &self.lines[at];
        (0..LINE_SLOTS).filter_map(move |idx| {
            let distance = line.distance(idx).filter(|&distance| distance > 0)?;
            let n_passed = distance * step(line.fine(idx)) % self.lines.len();
            let home = (at + self.lines.len() - n_passed) % self.lines.len();
            Some((bits_from(self.first_bits(home), line.fine(idx)), line.id(idx)))
        })
    }

    /// Returns the smallest hash bits that lead to a line.
    fn first_bits(&self, line: usize) -> u64 {
        ((line as u64) << self.hash_bits).div_ceil(self.lines.len() as u64)
    }

    /// Returns where the blocks of these hashes may be found, and loads their lines in parallel; at most [`BATCH`].
    pub(super) fn probes(&self, hashes: impl Iterator<Item = u64>) -> [BlockProbe; BATCH] {
        let mut probes = [BlockProbe::default(); BATCH];
        let mut n_loaded = 0;
        for (probe, hash) in probes.iter_mut().zip(hashes) {
            *probe = self.probe(hash);
            n_loaded |= self.lines.get(probe.home as usize).map_or(0, |line| line.0[COUNT_WORD]);
        }
        // The loaded values are not used; the lines are in the cache now.
        std::hint::black_box(n_loaded);
        probes
    }

    /// Returns where a block of this hash may be found.
    pub(super) fn probe(&self, hash: u64) -> BlockProbe {
        self.probe_of_bits(hash >> (u64::BITS - self.hash_bits))
    }

    fn probe_of_bits(&self, bits: u64) -> BlockProbe {
        let home = (bits * self.lines.len() as u64) >> self.hash_bits;
        BlockProbe { home: home as u32, fine: bits as u32 & ((1 << FINE_BITS) - 1) }
    }

    /// Returns the line that is tried after `distance` others. Blocks of one line take different paths, which depend on
    /// their bits.
    fn line_at(&self, probe: BlockProbe, distance: usize) -> usize {
        let home = probe.home as usize;
        if distance == 0 { home } else { (home + distance * step(probe.fine)) % self.lines.len() }
    }

    /// Returns the first result of `check` for the segments that may have the block.
    pub(super) fn find<T>(&self, probe: BlockProbe, mut check: impl FnMut(u32) -> Option<T>) -> Option<T> {
        if self.lines.is_empty() {
            return None;
        }
        for distance in 0..LINES_TRIED {
            let line = &self.lines[self.line_at(probe, distance)];
            let value = line.find(probe.slot(distance, 0), |_, id| check(id));
            if value.is_some() || !line.was_passed() {
                return value;
            }
        }
        None
    }

    /// Records that a segment has a block, which is in no segment yet; returns whether there was a slot.
    pub(super) fn insert(&mut self, probe: BlockProbe, id: u32) -> bool {
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

    /// Counts a block in the lines into which it did not fit.
    fn pass(&mut self, probe: BlockProbe, distance: usize) {
        for n_passed in 0..distance {
            let line = self.line_at(probe, n_passed);
            self.lines[line].0[COUNT_WORD] += 1 << COUNT_SHIFT;
        }
    }

    /// Removes a block of segment `id`.
    pub(super) fn remove(&mut self, probe: BlockProbe, id: u32) {
        let (distance, line, idx) = self.find_slot(probe, id).expect("a block that is removed was inserted");
        self.lines[line].0[idx] = 0;
        for n_passed in 0..distance {
            let line = self.line_at(probe, n_passed);
            self.lines[line].0[COUNT_WORD] -= 1 << COUNT_SHIFT;
        }
        self.n_blocks -= 1;
    }

    /// Changes the segment number of a block from `id` to `to`.
    pub(super) fn relabel(&mut self, probe: BlockProbe, id: u32, to: u32) {
        let (distance, line, idx) = self.find_slot(probe, id).expect("a block of a segment was inserted");
        self.lines[line].0[idx] = probe.slot(distance, to).word;
    }

    /// Returns the distance of a block of segment `id`, its line, and its slot there.
    fn find_slot(&self, probe: BlockProbe, id: u32) -> Option<(usize, usize, usize)> {
        (0..LINES_TRIED).find_map(|distance| {
            let line = self.line_at(probe, distance);
            let accepted_slot = |idx, found_id| (found_id == id).then_some((distance, line, idx));
            self.lines[line].find(probe.slot(distance, 0), accepted_slot)
        })
    }
}

/// Returns the only hash bits that end with `fine` and lead to the same line as `first`.
fn bits_from(first: u64, fine: u32) -> u64 {
    first + (u64::from(fine).wrapping_sub(first) & ((1 << FINE_BITS) - 1))
}

/// Returns the number of lines to the next line that is tried for a block with these bits.
fn step(fine: u32) -> usize {
    1 + (fine as usize & ((1 << TAG_BITS) - 1))
}

impl TableLine {
    /// Returns whether a block that belongs to this line, or passed it, is stored in a later line.
    fn was_passed(&self) -> bool {
        self.0[COUNT_WORD] >> COUNT_SHIFT != 0
    }

    fn is_full_of_passes(&self) -> bool {
        self.0[COUNT_WORD] >> COUNT_SHIFT >= PASSES_MAX
    }

    /// Calls `check` with each slot that equals `like` except for the segment number, and with that number.
    fn find<T>(&self, like: LineSlot, mut check: impl FnMut(usize, u32) -> Option<T>) -> Option<T> {
        let mut mask = self.mask(|word| (word ^ like.word) >> ID_BITS == 0);
        while mask != 0 {
            let idx = mask.trailing_zeros() as usize;
            // An empty slot has no number.
            if let Some(id) = (self.0[idx] & ID_MASK).checked_sub(1)
                && self.extra(idx) == like.extra
                && let Some(value) = check(idx, id)
            {
                return Some(value);
            }
            mask &= mask - 1;
        }
        None
    }

    /// Fills an empty slot; returns whether there was one.
    fn insert(&mut self, slot: LineSlot) -> bool {
        let mask = self.mask(|word| word == 0);
        if mask == 0 {
            return false;
        }
        self.fill(mask.trailing_zeros() as usize, slot);
        true
    }

    fn fill(&mut self, idx: usize, slot: LineSlot) {
        self.0[idx] = slot.word;
        let (word, shift) = Self::place_of_extra(idx);
        self.0[word] = self.0[word] & !(EXTRA_MASK << shift) | slot.extra << shift;
    }

    /// Returns, without a branch, whether a block of an earlier line is stored here.
    fn has_behind(&self) -> bool {
        self.0[..LINE_SLOTS].iter().fold(0, |all, word| all | word) & DISTANCE_MASK != 0
    }

    /// Returns the distance of a slot's block from its own line; `None` for an empty slot.
    fn distance(&self, idx: usize) -> Option<usize> {
        let word = self.0[idx];
        (word != 0).then_some((word >> ID_BITS) as usize % LINES_TRIED)
    }

    /// Returns the segment number of a slot that is not empty.
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

    /// Returns the word with a slot's extra bits, and their position in it.
    fn place_of_extra(idx: usize) -> (usize, u32) {
        let bit = idx as u32 * EXTRA_BITS;
        (EXTRA_WORD + (bit / u32::BITS) as usize, bit % u32::BITS)
    }

    /// Returns a bit for each slot for which `is` holds, without a branch: the compiler turns it into vector
    /// comparisons.
    fn mask(&self, is: impl Fn(u32) -> bool) -> u32 {
        let bit = |(idx, word): (usize, &u32)| u32::from(is(*word)) << idx;
        self.0[..LINE_SLOTS].iter().enumerate().map(bit).fold(0, |mask, bit| mask | bit)
    }
}

#[cfg(test)]
mod tests;
