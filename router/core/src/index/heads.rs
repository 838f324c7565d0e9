//! The readers' table: from the key of a segment's first block to the segment.
//!
//! Not here: blocks inside a segment (`locator`, for the writer only). The idea: a chain hash names the whole prefix, so
//! the block behind a segment's end is found by its own key; a look-up needs one probe for each segment, not for each
//! block. Slots are a hash and an atomic pointer: readers take no lock, and a larger table replaces the whole. A slot is
//! made when it is first filled: a swap asks every reader whether it holds the old pointer, and where there was none
//! nobody need be asked.

use std::sync::{Arc, OnceLock};

use arc_swap::{ArcSwapAny, Guard};
use warmpath_common::block_hash::BlockKey;

use super::hash::Hasher;
use super::segment::{Segment, Shared};

/// Is the fewest slots of a table that holds anything.
const SLOTS_MIN: usize = 8;

/// Is a segment that stays while it is looked at.
pub(super) type Held = Guard<Option<Shared>>;

/// Is a slot in which there has been something.
struct Slot {
    /// Is the hash of the key, which stays when the segment goes.
    hash: u64,
    segment: ArcSwapAny<Option<Shared>>,
}

/// Is one table; its slots are filled and emptied, their number never changes.
pub(super) struct Heads {
    slots: Box<[OnceLock<Slot>]>,
    hasher: Hasher,
}

impl Heads {
    /// Returns an empty table, a power of two of slots or none.
    fn new(n_slots: usize, hasher: Hasher) -> Self {
        Self { slots: (0..n_slots).map(|_| OnceLock::new()).collect(), hasher }
    }

    /// Returns the segment that begins with a block.
    pub(super) fn find(&self, key: BlockKey) -> Option<Held> {
        let held = self.slot_of(self.hasher.hash(key)).ok()?.segment.load();
        held.as_ref().is_some_and(|segment| Segment::from(segment).first() == key).then_some(held)
    }

    /// Returns the slot of a hash, or the empty one where it would be; `Err` of nothing where the table has no slots.
    fn slot_of(&self, hash: u64) -> Result<&Slot, Option<&OnceLock<Slot>>> {
        let mask = self.slots.len().wrapping_sub(1);
        let mut place = (hash >> 32) as usize & mask;
        // At least a quarter of the slots is empty.
        while let Some(slot) = self.slots.get(place) {
            match slot.get() {
                None => return Err(Some(slot)),
                Some(found) if found.hash == hash => return Ok(found),
                Some(_) => place = (place + 1) & mask,
            }
        }
        Err(None)
    }

    fn put(&self, hash: u64, segment: Shared) -> Put {
        match self.slot_of(hash) {
            Ok(slot) => match slot.segment.swap(Some(segment)) {
                Some(_) => Put::Replaced,
                None => Put::Revived,
            },
            Err(slot) => {
                let fresh = Slot { hash, segment: ArcSwapAny::new(Some(segment)) };
                let is_put = slot.is_some_and(|slot| slot.set(fresh).is_ok());
                debug_assert!(is_put, "the one writer makes room first");
                Put::New
            }
        }
    }
}

/// Says what a slot held before something was put there.
#[derive(PartialEq, Eq)]
enum Put {
    New,
    Revived,
    Replaced,
}

/// Is the writer's side of the table.
pub(super) struct HeadsWriter {
    table: Arc<Heads>,
    /// Counts the slots that have a hash.
    n_used: usize,
    /// Counts the slots that have a segment.
    n_live: usize,
}

impl HeadsWriter {
    /// Returns the writer of an empty table.
    pub(super) fn new(hasher: Hasher) -> Self {
        Self { table: Arc::new(Heads::new(0, hasher)), n_used: 0, n_live: 0 }
    }

    /// Returns the table for the readers.
    pub(super) fn table(&self) -> Arc<Heads> {
        Arc::clone(&self.table)
    }

    /// Returns the memory that the table takes. Units: bytes.
    pub(super) fn bytes(&self) -> usize {
        self.table.slots.len() * size_of::<OnceLock<Slot>>()
    }

    /// Returns the memory of the table that replaces this one before one more segment fits; `None` where it fits.
    pub(super) fn bytes_of_next(&self) -> Option<usize> {
        self.n_slots_of_next().map(|n_slots| n_slots * size_of::<OnceLock<Slot>>())
    }

    fn n_slots_of_next(&self) -> Option<usize> {
        let is_full = (self.n_used + 1) * 4 > self.table.slots.len() * 3;
        is_full.then(|| ((self.n_live + 1) * 2).next_power_of_two().max(SLOTS_MIN))
    }

    /// Replaces the table by one in which one more segment fits; the readers must be given it.
    pub(super) fn rebuild(&mut self) {
        let Some(n_slots) = self.n_slots_of_next() else { return };
        let table = Heads::new(n_slots, self.table.hasher);
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

    /// Makes a segment the one that begins with its first block.
    pub(super) fn put(&mut self, segment: Shared) {
        let put = self.table.put(self.table.hasher.hash(Segment::from(&segment).first()), segment);
        self.n_used += usize::from(put == Put::New);
        self.n_live += usize::from(put != Put::Replaced);
    }

    /// Forgets the segment that begins with a block.
    pub(super) fn remove(&mut self, key: BlockKey) {
        if let Ok(slot) = self.table.slot_of(self.table.hasher.hash(key))
            && slot.segment.swap(None).is_some()
        {
            self.n_live -= 1;
        }
    }
}
