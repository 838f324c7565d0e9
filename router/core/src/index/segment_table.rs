//! The readers' table: from the key of a segment's first block to the segment.
//!
//! Blocks inside a segment are in `block_table`, for the writer only. A chained hash names the whole prefix, so the
//! block after a segment's end is found by its own key; a lookup needs one probe per segment instead of one per block.
//! A slot is a hash and an atomic pointer: readers take no lock, and a larger table replaces the whole one. A slot is
//! created when it is first filled, because replacing a pointer has to check whether any reader still holds the old
//! one.

use std::sync::{Arc, OnceLock};

use arc_swap::{ArcSwapAny, Guard};
use warmpath_common::block_hash::BlockKey;

use super::Hasher;
use super::segment::{Segment, SharedSegment};

/// Minimum number of slots of a table that is not empty. Source: own choice: it spares a small index some rebuilds.
const SLOTS_MIN: usize = 8;

/// A reference that keeps a segment alive while it is read.
pub(super) type SegmentRef = Guard<Option<SharedSegment>>;

/// A slot that has been filled at least once.
struct TableSlot {
    /// Hash of the key, which stays when the segment is removed.
    hash: u64,
    segment: ArcSwapAny<Option<SharedSegment>>,
}

/// One table; its slots are filled and emptied, but their number never changes.
pub(super) struct SegmentTable {
    slots: Box<[OnceLock<TableSlot>]>,
    hasher: Hasher,
}

impl SegmentTable {
    /// Returns an empty table with `n_slots` slots: a power of two, or none.
    fn new(n_slots: usize, hasher: Hasher) -> Self {
        Self { slots: (0..n_slots).map(|_| OnceLock::new()).collect(), hasher }
    }

    /// Returns the segment that begins with a block.
    pub(super) fn find(&self, key: BlockKey) -> Option<SegmentRef> {
        let segment_held = self.slot_of(self.hasher.hash(key)).ok()?.segment.load();
        segment_held.as_ref().is_some_and(|segment| Segment::from(segment).first() == key).then_some(segment_held)
    }

    /// Returns the slot of a hash, or the empty slot into which it would be put; `Err(None)` if the table has no slots.
    fn slot_of(&self, hash: u64) -> Result<&TableSlot, Option<&OnceLock<TableSlot>>> {
        let mask = self.slots.len().wrapping_sub(1);
        let mut place = (hash >> 32) as usize & mask;
        // At least a quarter of the slots is empty.
        while let Some(slot) = self.slots.get(place) {
            match slot.get() {
                None => return Err(Some(slot)),
                Some(entry) if entry.hash == hash => return Ok(entry),
                Some(_) => place = (place + 1) & mask,
            }
        }
        Err(None)
    }

    fn put(&self, hash: u64, segment: SharedSegment) -> Put {
        match self.slot_of(hash) {
            Ok(slot) => match slot.segment.swap(Some(segment)) {
                Some(_) => Put::Replaced,
                None => Put::Revived,
            },
            Err(slot) => {
                let entry = TableSlot { hash, segment: ArcSwapAny::new(Some(segment)) };
                let is_put = slot.is_some_and(|slot| slot.set(entry).is_ok());
                debug_assert!(is_put, "the one writer makes room first");
                Put::New
            }
        }
    }
}

/// Content of a slot before a segment was put there.
#[derive(PartialEq, Eq)]
enum Put {
    New,
    Revived,
    Replaced,
}

/// The writer's side of the table.
pub(super) struct SegmentTableWriter {
    table: Arc<SegmentTable>,
    /// Number of slots that have a hash.
    n_used: usize,
    /// Number of slots that have a segment.
    n_live: usize,
}

impl SegmentTableWriter {
    /// Returns the writer of an empty table.
    pub(super) fn new(hasher: Hasher) -> Self {
        Self { table: Arc::new(SegmentTable::new(0, hasher)), n_used: 0, n_live: 0 }
    }

    /// Returns the readers' table.
    pub(super) fn table(&self) -> Arc<SegmentTable> {
        Arc::clone(&self.table)
    }

    /// Returns the memory of the table. Units: bytes.
    pub(super) fn bytes(&self) -> usize {
        self.table.slots.len() * size_of::<OnceLock<TableSlot>>()
    }

    /// Returns the memory of the next table if one more segment does not fit into this one; `None` if it fits.
    pub(super) fn bytes_of_next(&self) -> Option<usize> {
        self.n_slots_of_next().map(|n_slots| n_slots * size_of::<OnceLock<TableSlot>>())
    }

    fn n_slots_of_next(&self) -> Option<usize> {
        let is_full = (self.n_used + 1) * 4 > self.table.slots.len() * 3;
        is_full.then(|| ((self.n_live + 1) * 2).next_power_of_two().max(SLOTS_MIN))
    }

    /// Replaces the table by one into which one more segment fits; the caller must hand it to the readers.
    pub(super) fn rebuild(&mut self) {
        let Some(n_slots) = self.n_slots_of_next() else { return };
        let table = SegmentTable::new(n_slots, self.table.hasher);
        for slot in self.table.slots.iter().filter_map(OnceLock::get) {
            if let Some(segment) = slot.segment.load_full() {
                table.put(slot.hash, segment);
            }
        }
        self.table = Arc::new(table);
        self.n_used = self.n_live;
    }

    /// Returns the number of segments.
    #[cfg(test)]
    pub(super) fn n_live(&self) -> usize {
        self.n_live
    }

    /// Stores a segment under its first block.
    pub(super) fn put(&mut self, segment: SharedSegment) {
        let put = self.table.put(self.table.hasher.hash(Segment::from(&segment).first()), segment);
        self.n_used += usize::from(put == Put::New);
        self.n_live += usize::from(put != Put::Replaced);
    }

    /// Removes the segment that begins with a block.
    pub(super) fn remove(&mut self, key: BlockKey) {
        if let Ok(slot) = self.table.slot_of(self.table.hasher.hash(key))
            && slot.segment.swap(None).is_some()
        {
            self.n_live -= 1;
        }
    }
}
