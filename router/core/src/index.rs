//! The prefix index: which worker holds how much of a chain of blocks.
//!
//! Not here: what a match is worth (`cost`), whether a worker may be used (`choose`).
//! The idea: a worker holds the prefix of a chain, so its longest match is found by galloping: a few probes instead of
//! one per block. One writer owns the changes; readers share the index and wait for no more than one shard of it.
//! What the index holds never takes more than its limit: what was matched longest ago goes first. A block that was shed
//! costs a hit, never a wrong answer.

mod holder;
mod shard;

use std::collections::HashSet;
use std::sync::atomic::{AtomicU16, Ordering};
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use warmpath_common::block_hash::BlockKey;
use warmpath_common::ids::SlotId;
use warmpath_common::summary::{Resume, Run, RunState, Tier};

use self::holder::{Holder, Resumable};
use self::shard::{Claim, Hashed, Inserted, Shard, hash};
use crate::WorkerIdx;

/// Is the most shards: a writer stops only the readers that need the same one.
const SHARDS_MAX: usize = 256;
/// Is the least memory that makes a shard worth having. Units: bytes.
const SHARD_BYTES_MIN: usize = 1 << 16;
/// Is the memory of a block with one holder, with a table half-way between two doublings. Units: bytes.
///
/// Source: 17 bytes a bucket at a load of 0.66; only the pace of ageing hangs on it.
const BLOCK_BYTES_TYPICAL: usize = 26;
/// Is how many ages a full index is divided into.
const AGES_WHEN_FULL: usize = 32;

/// Bounds a prefix index.
#[derive(Debug, Clone, Copy)]
pub struct IndexOptions {
    /// Is the most memory that the index takes. Units: bytes.
    pub bytes_max: usize,
    /// Keeps workers from choosing keys that collide; any random number.
    pub seed: u64,
}

/// Says how much of a chain one worker holds, and how.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Match {
    /// Names the worker.
    pub worker: WorkerIdx,
    /// Is the number of leading blocks behind which the worker can start; at least 1.
    pub blocks: u32,
    /// Says where the last of them lies.
    pub tier: Tier,
    /// Says whether the last of them is computed.
    pub state: RunState,
    /// Names the slot that holds the last of them.
    pub slot: Option<SlotId>,
}

/// Is the readers' side of the index, shared by `Arc`.
pub struct PrefixIndex {
    /// Guards one shard each; held for one probe, one change or one shard's sweep, and never across an await: nothing
    /// here is async.
    shards: Box<[RwLock<Shard>]>,
    /// Is the present age; the writer advances it.
    epoch: AtomicU16,
    seed: u64,
}

impl PrefixIndex {
    /// Returns what each worker holds of the chain `keys`, longest first, then by worker.
    ///
    /// Shape: `keys` `[n]` in the order of the chain -> at most one match a worker.
    /// Cost: O(log n) probes for each distinct length; O(n) more for a worker that resumes only at checkpoints.
    pub fn matches(&self, keys: &[BlockKey]) -> Vec<Match> {
        let Some(&first) = keys.first() else { return Vec::new() };
        let mut search = Search { index: self, keys, scratch: Vec::new(), found: Vec::new() };
        let mut active = Vec::new();
        self.holders(first, &mut active);
        let mut held = 0;
        let mut stride = 1;
        while !active.is_empty() && held + 1 < keys.len() {
            let next = (held + stride).min(keys.len() - 1);
            let gone = search.keep_holders_of(next, &mut active);
            search.settle(held, next, gone);
            held = next;
            stride *= 2;
        }
        active.into_iter().for_each(|holder| search.finish(held, holder));
        let mut found = search.found;
        found.sort_unstable_by_key(|found| (std::cmp::Reverse(found.blocks), found.worker));
        found
    }

    /// Marks the blocks `keys` as matched, so that they are shed later than others.
    pub fn touch(&self, keys: &[BlockKey]) {
        let epoch = self.epoch.load(Ordering::Relaxed);
        for &key in keys {
            let at = self.hashed(key);
            self.read(at).touch(at, epoch);
        }
    }

    /// Returns the memory in use. Units: bytes.
    pub fn bytes(&self) -> usize {
        self.shards.iter().map(|shard| read(shard).bytes()).sum()
    }

    /// Returns the number of different blocks.
    pub fn n_blocks(&self) -> usize {
        self.shards.iter().map(|shard| read(shard).n_blocks()).sum()
    }

    fn hashed(&self, BlockKey(key): BlockKey) -> Hashed {
        Hashed { key, hash: hash(key, self.seed) }
    }

    fn shard(&self, at: Hashed) -> &RwLock<Shard> {
        // The table takes its bucket from the lowest bits and its tag from the highest.
        &self.shards[(at.hash >> 40) as usize & (self.shards.len() - 1)]
    }

    fn read(&self, at: Hashed) -> RwLockReadGuard<'_, Shard> {
        read(self.shard(at))
    }

    fn holders(&self, key: BlockKey, out: &mut Vec<Holder>) {
        let at = self.hashed(key);
        self.read(at).holders(at, out);
    }
}

/// A panic elsewhere leaves a shard whole enough to route by: a broken claim costs a hit.
fn read(shard: &RwLock<Shard>) -> RwLockReadGuard<'_, Shard> {
    shard.read().unwrap_or_else(PoisonError::into_inner)
}

fn write(shard: &RwLock<Shard>) -> RwLockWriteGuard<'_, Shard> {
    shard.write().unwrap_or_else(PoisonError::into_inner)
}

/// Is one walk along a chain.
struct Search<'a> {
    index: &'a PrefixIndex,
    keys: &'a [BlockKey],
    scratch: Vec<Holder>,
    found: Vec<Match>,
}

impl Search<'_> {
    /// Reduces `active` to the workers that hold block `idx`, with their claims to it; returns the others.
    fn keep_holders_of(&mut self, idx: usize, active: &mut Vec<Holder>) -> Vec<Holder> {
        self.scratch.clear();
        self.index.holders(self.keys[idx], &mut self.scratch);
        let mut at_idx = self.scratch.iter().copied().peekable();
        let mut gone = Vec::new();
        active.retain_mut(|holder| {
            while at_idx.next_if(|other| other.worker() < holder.worker()).is_some() {}
            match at_idx.next_if(|other| other.worker() == holder.worker()) {
                Some(deeper) => *holder = deeper,
                None => {
                    gone.push(*holder);
                    return false;
                }
            }
            true
        });
        gone
    }

    /// Finds by bisection how far each of `group` reaches, all of which hold block `held` and none block `missing`.
    fn settle(&mut self, held: usize, missing: usize, mut group: Vec<Holder>) {
        if group.is_empty() {
            return;
        }
        if held + 1 == missing {
            group.into_iter().for_each(|holder| self.finish(held, holder));
            return;
        }
        let middle = held + (missing - held) / 2;
        let gone = self.keep_holders_of(middle, &mut group);
        self.settle(held, middle, gone);
        self.settle(middle, missing, group);
    }

    /// Records that `last` is its worker's claim to block `idx`, the last it holds.
    fn finish(&mut self, idx: usize, last: Holder) {
        let Some((idx, holder)) = self.resume_point(idx, last) else { return };
        self.found.push(Match {
            worker: holder.worker(),
            blocks: u32::try_from(idx + 1).unwrap_or(u32::MAX),
            tier: holder.tier(),
            state: holder.state(),
            slot: holder.slot(),
        });
    }

    /// Returns the deepest block up to `idx` behind which the worker of `last` can start.
    fn resume_point(&mut self, idx: usize, last: Holder) -> Option<(usize, Holder)> {
        if last.is_resumable() {
            return Some((idx, last));
        }
        (0..idx).rev().find_map(|idx| {
            self.scratch.clear();
            self.index.holders(self.keys[idx], &mut self.scratch);
            let found = self.scratch.binary_search_by_key(&last.worker(), |holder| holder.worker()).ok()?;
            let holder = self.scratch[found];
            holder.is_resumable().then_some((idx, holder))
        })
    }
}

/// Is the writer's side of the index: there is one, and it knows how much each worker holds.
pub struct IndexWriter {
    index: Arc<PrefixIndex>,
    n_blocks: Vec<usize>,
    n_inserted_in_epoch: usize,
    epoch_blocks: usize,
    n_shed: u64,
}

impl IndexWriter {
    /// Returns the writer of an empty index.
    pub fn new(options: IndexOptions) -> Self {
        let n_shards = (options.bytes_max / SHARD_BYTES_MIN).clamp(1, SHARDS_MAX);
        let n_shards = if n_shards.is_power_of_two() { n_shards } else { n_shards.next_power_of_two() / 2 };
        let shards = (0..n_shards).map(|_| RwLock::new(Shard::new(options.bytes_max / n_shards, options.seed)));
        let index = PrefixIndex { shards: shards.collect(), epoch: AtomicU16::new(0), seed: options.seed };
        Self {
            index: Arc::new(index),
            n_blocks: Vec::new(),
            n_inserted_in_epoch: 0,
            epoch_blocks: (options.bytes_max / BLOCK_BYTES_TYPICAL / AGES_WHEN_FULL).max(1),
            n_shed: 0,
        }
    }

    /// Returns the readers' side.
    pub fn reader(&self) -> Arc<PrefixIndex> {
        Arc::clone(&self.index)
    }

    /// Returns the number of blocks of which the index knows that `worker` holds them.
    pub fn n_blocks_of(&self, worker: WorkerIdx) -> usize {
        self.n_blocks.get(worker.0 as usize).copied().unwrap_or(0)
    }

    /// Returns how many claims the memory limit has cost so far.
    pub fn n_shed(&self) -> u64 {
        self.n_shed
    }

    /// Records that `worker` holds the blocks of `run`, in the way that it says; what it said of them before is replaced.
    pub fn insert(&mut self, worker: WorkerIdx, run: &Run) {
        let idx = worker.0 as usize;
        if self.n_blocks.len() <= idx {
            self.n_blocks.resize(idx + 1, 0);
        }
        for (block, &key) in run.keys.iter().enumerate() {
            let is_last = block + 1 == run.keys.len();
            let resumable = if run.resume == Resume::EveryBlock || is_last { Resumable::Yes } else { Resumable::No };
            self.insert_block(key, Holder::new(worker, run, resumable));
        }
    }

    fn insert_block(&mut self, key: BlockKey, holder: Holder) {
        let at = self.index.hashed(key);
        let epoch = self.index.epoch.load(Ordering::Relaxed);
        let (n_blocks, n_shed) = (&mut self.n_blocks, &mut self.n_shed);
        let mut dropped = |worker: WorkerIdx| {
            n_blocks[worker.0 as usize] -= 1;
            *n_shed += 1;
        };
        match write(self.index.shard(at)).insert(Claim { at, holder, epoch }, &mut dropped) {
            Inserted::New => self.n_blocks[holder.worker().0 as usize] += 1,
            Inserted::Replaced => {}
            Inserted::Refused => self.n_shed += 1,
        }
        self.n_inserted_in_epoch += 1;
        if self.n_inserted_in_epoch >= self.epoch_blocks {
            self.n_inserted_in_epoch = 0;
            self.index.epoch.store(epoch.wrapping_add(1), Ordering::Relaxed);
        }
    }

    /// Records that `worker` no longer holds the blocks `keys`.
    pub fn remove(&mut self, worker: WorkerIdx, keys: &[BlockKey]) {
        for &key in keys {
            let at = self.index.hashed(key);
            if write(self.index.shard(at)).remove(at, worker) {
                self.n_blocks[worker.0 as usize] -= 1;
            }
        }
    }

    /// Records that `worker` holds the blocks of `runs` and nothing else.
    ///
    /// A reader that matches meanwhile sees blocks of both views, never neither.
    pub fn replace_worker(&mut self, worker: WorkerIdx, runs: &[Run]) {
        runs.iter().for_each(|run| self.insert(worker, run));
        if self.n_blocks_of(worker) > 0 {
            let kept: HashSet<u64> = runs.iter().flat_map(|run| &run.keys).map(|key| key.0).collect();
            self.retain_of(worker, |key| kept.contains(&key));
        }
    }

    /// Forgets what `worker` holds.
    pub fn remove_worker(&mut self, worker: WorkerIdx) {
        if self.n_blocks_of(worker) > 0 {
            self.retain_of(worker, |_| false);
        }
    }

    fn retain_of(&mut self, worker: WorkerIdx, keep: impl Fn(u64) -> bool) {
        for shard in &self.index.shards {
            self.n_blocks[worker.0 as usize] -= write(shard).retain_of(worker, &keep);
        }
    }
}

#[cfg(test)]
mod tests;
