//! One shard of the prefix index: a table from block key to holders, with its own hard memory limit.
//!
//! Not here: which shard a key belongs to, matching along a chain (`index`).
//! The idea: an entry is two words, the key and either its only holder or the place of its holders in the spill, with an
//! age in the upper 16 bits. The table grows only by `rebuild`, so that its size is known before it is allocated.

use std::sync::atomic::{AtomicU64, Ordering};

use hashbrown::HashTable;

use super::holder::Holder;
use crate::WorkerIdx;

/// Says that the word's lower 32 bits are a place in the spill.
const SPILLED: u64 = 1 << 45;
const SPILL_MASK: u64 = (1 << 32) - 1;
const EPOCH_SHIFT: u32 = 48;
const BODY_MASK: u64 = (1 << EPOCH_SHIFT) - 1;
/// Is the share of the entries that one shedding drops.
const SHED_DIVISOR: usize = 8;
/// Is the most ages that shedding tells apart; older entries count as this old.
const AGES: usize = 256;
/// Is the fewest buckets of a table that holds anything.
const BUCKETS_MIN: usize = 16;

/// Is a hash of a key, computed once by the caller.
#[derive(Debug, Clone, Copy)]
pub(super) struct Hashed {
    pub(super) key: u64,
    pub(super) hash: u64,
}

/// Returns a well-mixed hash of `key`; `seed` keeps a worker from choosing keys that collide.
pub(super) fn hash(key: u64, seed: u64) -> u64 {
    let product = u128::from(key ^ seed) * u128::from(0x9e37_79b9_7f4a_7c15_u64);
    (product >> 64) as u64 ^ product as u64
}

struct Entry {
    key: u64,
    /// Is atomic because readers renew the age under the shared lock; everything else changes under the exclusive one.
    word: AtomicU64,
}

impl Entry {
    fn body(&self) -> u64 {
        self.word.load(Ordering::Relaxed) & BODY_MASK
    }

    fn epoch(&self) -> u16 {
        (self.word.load(Ordering::Relaxed) >> EPOCH_SHIFT) as u16
    }

    fn set(&mut self, body: u64, epoch: u16) {
        *self.word.get_mut() = body | u64::from(epoch) << EPOCH_SHIFT;
    }
}

/// Is a worker's claim to a block, with the age that it starts from.
#[derive(Debug, Clone, Copy)]
pub(super) struct Claim {
    pub(super) at: Hashed,
    pub(super) holder: Holder,
    pub(super) epoch: u16,
}

/// Says what became of an insertion.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Inserted {
    /// The worker did not hold the block before.
    New,
    /// The worker held it already; the claim was replaced.
    Replaced,
    /// There is no memory for it.
    Refused,
}

/// Is one shard.
pub(super) struct Shard {
    table: HashTable<Entry>,
    spill: Spill,
    bytes_max: usize,
    seed: u64,
}

impl Shard {
    /// Returns an empty shard that never holds more than `bytes_max` bytes.
    pub(super) fn new(bytes_max: usize, seed: u64) -> Self {
        Self { table: HashTable::new(), spill: Spill::default(), bytes_max, seed }
    }

    /// Returns the bytes in use.
    pub(super) fn bytes(&self) -> usize {
        self.table.allocation_size() + self.spill.bytes
    }

    /// Returns the number of blocks.
    pub(super) fn n_blocks(&self) -> usize {
        self.table.len()
    }

    /// Appends the holders of a block to `out`, ordered by worker.
    pub(super) fn holders(&self, at: Hashed, out: &mut Vec<Holder>) {
        let Some(entry) = self.table.find(at.hash, |entry| entry.key == at.key) else { return };
        out.extend_from_slice(self.spill.holders(&entry.body().into()));
    }

    /// Marks a block as matched in `epoch`.
    pub(super) fn touch(&self, at: Hashed, epoch: u16) {
        if let Some(entry) = self.table.find(at.hash, |entry| entry.key == at.key) {
            entry.word.store(entry.body() | u64::from(epoch) << EPOCH_SHIFT, Ordering::Relaxed);
        }
    }

    /// Records a claim; `dropped` hears of every other that had to go for it.
    pub(super) fn insert(&mut self, claim: Claim, dropped: &mut impl FnMut(WorkerIdx)) -> Inserted {
        match self.add_to_entry(claim) {
            Added::Done(inserted) => inserted,
            Added::NoEntry if self.make_room(claim.epoch, dropped) => self.push(claim),
            Added::NoEntry => Inserted::Refused,
            Added::NoMemory => {
                self.shed(claim.epoch, dropped);
                match self.add_to_entry(claim) {
                    Added::Done(inserted) => inserted,
                    Added::NoEntry => self.push(claim),
                    Added::NoMemory => Inserted::Refused,
                }
            }
        }
    }

    /// Adds a claim to its block's entry, if it has one.
    fn add_to_entry(&mut self, claim: Claim) -> Added {
        let spill_bytes_max = self.bytes_max - self.table.allocation_size();
        match self.table.find_mut(claim.at.hash, |entry| entry.key == claim.at.key) {
            None => Added::NoEntry,
            Some(entry) => self.spill.add(entry, claim, spill_bytes_max).map_or(Added::NoMemory, Added::Done),
        }
    }

    /// Adds an entry where `make_room` or `shed` has left a free bucket.
    fn push(&mut self, Claim { at, holder, epoch }: Claim) -> Inserted {
        if self.table.capacity() == self.table.len() {
            return Inserted::Refused;
        }
        let word = AtomicU64::new(holder.0 | u64::from(epoch) << EPOCH_SHIFT);
        let seed = self.seed;
        self.table.insert_unique(at.hash, Entry { key: at.key, word }, |entry| hash(entry.key, seed));
        Inserted::New
    }

    /// Removes a worker's claim to a block; returns whether there was one.
    pub(super) fn remove(&mut self, at: Hashed, worker: WorkerIdx) -> bool {
        let Ok(mut found) = self.table.find_entry(at.hash, |entry| entry.key == at.key) else { return false };
        match self.spill.take(found.get_mut(), worker) {
            Taken::NotHeld => false,
            Taken::OthersHold => true,
            Taken::Last => {
                found.remove();
                true
            }
        }
    }

    /// Removes every claim of `worker` to blocks of which `keep` does not hold; returns their number.
    pub(super) fn retain_of(&mut self, worker: WorkerIdx, keep: impl Fn(u64) -> bool) -> usize {
        let Self { table, spill, .. } = self;
        let mut n_removed = 0;
        table.retain(|entry| {
            if keep(entry.key) {
                return true;
            }
            let taken = spill.take(entry, worker);
            n_removed += usize::from(taken != Taken::NotHeld);
            taken != Taken::Last
        });
        n_removed
    }

    /// Makes sure that one more entry fits into the table without growth; sheds the oldest where it may not grow.
    fn make_room(&mut self, epoch: u16, dropped: &mut impl FnMut(WorkerIdx)) -> bool {
        if self.table.capacity() > self.table.len() {
            return true;
        }
        let buckets = self.table.num_buckets().max(BUCKETS_MIN);
        // What removals have left behind as tombstones is cheaper to clear than to outgrow.
        if self.table.len() < capacity(buckets) / 4 * 3 {
            return self.rebuild(buckets);
        }
        if self.rebuild(buckets * 2) {
            return true;
        }
        self.shed(epoch, dropped);
        self.table.capacity() > self.table.len()
    }

    /// Moves the entries to a table of `buckets` buckets, if that leaves a quarter of the limit to the spill.
    fn rebuild(&mut self, buckets: usize) -> bool {
        // An entry and its control byte.
        let bytes = buckets * (size_of::<Entry>() + 1) + 64;
        if bytes > self.bytes_max / 4 * 3 || bytes + self.spill.bytes > self.bytes_max {
            return false;
        }
        let seed = self.seed;
        let mut table = HashTable::with_capacity(capacity(buckets));
        for entry in self.table.drain() {
            table.insert_unique(hash(entry.key, seed), entry, |entry| hash(entry.key, seed));
        }
        self.table = table;
        true
    }

    /// Drops the eighth of the entries that was matched or stored longest ago.
    fn shed(&mut self, epoch: u16, dropped: &mut impl FnMut(WorkerIdx)) {
        let age = |entry: &Entry| usize::from(epoch.wrapping_sub(entry.epoch())).min(AGES - 1);
        let mut n_by_age = [0usize; AGES];
        self.table.iter().for_each(|entry| n_by_age[age(entry)] += 1);
        let mut n_left = (self.table.len() / SHED_DIVISOR).max(1);
        let mut limit_age = AGES - 1;
        while n_by_age[limit_age] < n_left && limit_age > 0 {
            n_left -= n_by_age[limit_age];
            limit_age -= 1;
        }
        let Self { table, spill, .. } = self;
        table.retain(|entry| {
            let age = age(entry);
            let goes = age > limit_age || (age == limit_age && n_left > 0);
            if goes {
                n_left -= usize::from(age == limit_age);
                spill.holders(&entry.body().into()).iter().for_each(|holder| dropped(holder.worker()));
                spill.free(entry);
            }
            !goes
        });
        let buckets = self.table.num_buckets();
        self.rebuild(buckets);
    }
}

/// Returns how many entries a hashbrown table of `buckets` buckets takes before it grows.
fn capacity(buckets: usize) -> usize {
    buckets / 8 * 7
}

/// Says what became of an addition to an entry.
enum Added {
    Done(Inserted),
    NoEntry,
    NoMemory,
}

/// Says what became of a removal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Taken {
    NotHeld,
    OthersHold,
    Last,
}

/// Is an entry's word, read as its holders.
enum Body {
    One([Holder; 1]),
    Spilled(usize),
}

impl From<u64> for Body {
    fn from(word: u64) -> Self {
        match word & SPILLED {
            0 => Self::One([Holder(word & Holder::MASK)]),
            _ => Self::Spilled((word & SPILL_MASK) as usize),
        }
    }
}

/// Keeps the holders of blocks that several workers hold; each list is ordered by worker.
#[derive(Default)]
struct Spill {
    lists: Vec<Vec<Holder>>,
    free: Vec<u32>,
    /// Counts the bytes of `lists`, of each list, and of `free`.
    bytes: usize,
}

impl Spill {
    fn holders<'a>(&'a self, body: &'a Body) -> &'a [Holder] {
        match body {
            Body::One(holder) => holder,
            Body::Spilled(place) => &self.lists[*place],
        }
    }

    /// Adds or replaces a claim, or returns `None` where that needs more than `bytes_max` bytes.
    fn add(&mut self, entry: &mut Entry, claim: Claim, bytes_max: usize) -> Option<Inserted> {
        let Claim { holder, epoch, .. } = claim;
        match Body::from(entry.body()) {
            Body::One([old]) if old.worker() == holder.worker() => {
                entry.set(holder.0, epoch);
                Some(Inserted::Replaced)
            }
            Body::One([old]) => {
                let place = self.open(bytes_max)?;
                let (first, second) = if old.worker() < holder.worker() { (old, holder) } else { (holder, old) };
                self.lists[place as usize].extend([first, second]);
                entry.set(u64::from(place) | SPILLED, epoch);
                Some(Inserted::New)
            }
            Body::Spilled(place) => {
                let list = &mut self.lists[place];
                match list.binary_search_by_key(&holder.worker(), |held| held.worker()) {
                    Ok(found) => {
                        list[found] = holder;
                        entry.set(place as u64 | SPILLED, epoch);
                        Some(Inserted::Replaced)
                    }
                    Err(gap) => {
                        grow(list, &mut self.bytes, bytes_max)?;
                        list.insert(gap, holder);
                        entry.set(place as u64 | SPILLED, epoch);
                        Some(Inserted::New)
                    }
                }
            }
        }
    }

    /// Returns the place of an empty list with room for two.
    fn open(&mut self, bytes_max: usize) -> Option<u32> {
        if let Some(place) = self.free.pop() {
            if grow(&mut self.lists[place as usize], &mut self.bytes, bytes_max).is_some() {
                return Some(place);
            }
            self.free.push(place);
            return None;
        }
        grow(&mut self.lists, &mut self.bytes, bytes_max)?;
        // Every list may come to lie in `free`, so its place there is paid for when the list is made.
        let free_bytes = self.lists.capacity().saturating_sub(self.free.capacity()) * size_of::<u32>();
        let list_bytes = LIST_CAPACITY_MIN * size_of::<Holder>();
        if self.bytes + free_bytes + list_bytes > bytes_max {
            return None;
        }
        self.free.reserve_exact(self.lists.capacity() - self.free.len());
        self.bytes += free_bytes + list_bytes;
        self.lists.push(Vec::with_capacity(LIST_CAPACITY_MIN));
        u32::try_from(self.lists.len() - 1).ok()
    }

    /// Removes a worker's claim.
    fn take(&mut self, entry: &mut Entry, worker: WorkerIdx) -> Taken {
        let epoch = entry.epoch();
        match Body::from(entry.body()) {
            Body::One([holder]) if holder.worker() == worker => Taken::Last,
            Body::One(_) => Taken::NotHeld,
            Body::Spilled(place) => {
                let list = &mut self.lists[place];
                let Ok(found) = list.binary_search_by_key(&worker, |held| held.worker()) else { return Taken::NotHeld };
                list.remove(found);
                if let [last] = list[..] {
                    self.free(entry);
                    entry.set(last.0, epoch);
                }
                Taken::OthersHold
            }
        }
    }

    /// Gives back the list of an entry that is about to go.
    fn free(&mut self, entry: &Entry) {
        if let Body::Spilled(place) = Body::from(entry.body()) {
            let list = std::mem::take(&mut self.lists[place]);
            self.bytes -= list.capacity() * size_of::<Holder>();
            self.free.push(place as u32);
        }
    }
}

/// Is the room that a list of holders starts with.
const LIST_CAPACITY_MIN: usize = 2;

/// Makes room for one more element, by half of what there is, and counts it; `None` where that passes `bytes_max`.
fn grow<T>(list: &mut Vec<T>, bytes: &mut usize, bytes_max: usize) -> Option<()> {
    if list.len() < list.capacity() {
        return Some(());
    }
    let n_more = (list.capacity() / 2).max(LIST_CAPACITY_MIN);
    let more = n_more * size_of::<T>();
    if *bytes + more > bytes_max {
        return None;
    }
    list.reserve_exact(n_more);
    *bytes += more;
    Some(())
}

#[cfg(test)]
mod tests {
    use super::*;

    impl Shard {
        /// Asserts what holds between any two operations; returns each worker's number of blocks.
        pub(in super::super) fn check_invariants(
            &self,
            n_blocks_by_worker: &mut std::collections::HashMap<u32, usize>,
        ) {
            assert!(self.bytes() <= self.bytes_max, "{} bytes, limit {}", self.bytes(), self.bytes_max);
            let mut n_spilled = 0;
            for entry in &self.table {
                let body = Body::from(entry.body());
                let holders = self.spill.holders(&body);
                if let Body::Spilled(place) = body {
                    n_spilled += 1;
                    assert!(holders.len() >= 2, "a spilled block has several holders");
                    assert!(!self.spill.free.contains(&(place as u32)), "a list in use is not free");
                }
                assert!(holders.is_sorted_by(|a, b| a.worker() < b.worker()), "holders are ordered, one per worker");
                for holder in holders {
                    *n_blocks_by_worker.entry(holder.worker().0).or_default() += 1;
                }
            }
            assert_eq!(self.spill.lists.len(), n_spilled + self.spill.free.len(), "no list is lost");
            let list_bytes: usize = self.spill.lists.iter().map(|list| list.capacity() * size_of::<Holder>()).sum();
            let bytes = list_bytes
                + self.spill.lists.capacity() * size_of::<Vec<Holder>>()
                + self.spill.free.capacity() * size_of::<u32>();
            assert_eq!(self.spill.bytes, bytes, "the spill's bytes are counted");
        }
    }
}
