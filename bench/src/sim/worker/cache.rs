//! A simulated worker's cache: the production chunk index, with one token for each block of the trace.
//!
//! Not here: when blocks are computed (`worker`). The idea: everything that decides is production code (what is found, what
//! is protected, what is evicted, what is said of it); a payload is a number of bytes, one for each block. As in the engine, a
//! sequence holds nothing in the store while it runs: what it has computed lies in its slot.

use std::collections::HashMap;
use std::ops::Range;

use warmpath_common::block_hash::{BlockHash, BlockKey};
use warmpath_common::summary::{Change, Resume, Run, RunState, Tier};
use warmpath_worker_core::chunk_index::{ChunkId, ChunkIndex, Limits, NewChunk, Order, Prefix};

use super::super::trace::Request;

/// Is the length of a stored chunk. Units: tokens.
///
/// Source: the glossary: a chunk is up to 256 tokens.
const CHUNK_TOKENS: u32 = 256;
/// Is how long a chunk stays after its last use. Units: milliseconds.
///
/// Source: the default of `warmpath-worker --cache-min-hold`.
const MIN_HOLD_MS: u64 = 10_000;
/// Is the number of chains that are pinned because they are used most.
///
/// Source: the default of `warmpath-worker --cache-pin-top`.
const PIN_TOP: usize = 0;
/// Is the root of every chain: the traces know one model and one tenant.
const ROOT: BlockHash = BlockHash([0; 32]);

/// Is one worker's cache and what is to be said of it.
#[derive(Debug)]
pub(super) struct Cache {
    index: ChunkIndex,
    /// Counts the running sequences that will compute a block which is not stored.
    filling: HashMap<u32, u32>,
    changes: Vec<Change>,
}

impl Cache {
    pub(super) fn new(n_blocks_max: u64, block_tokens: u32) -> Self {
        let limits = Limits {
            ram_bytes: n_blocks_max,
            disk_bytes: 0,
            min_hold_ms: MIN_HOLD_MS,
            pin_top: PIN_TOP,
            chunk_blocks_max: (CHUNK_TOKENS / block_tokens).max(1) as usize,
            block_size_tokens: 1,
        };
        Self { index: ChunkIndex::new(limits), filling: HashMap::new(), changes: Vec::new() }
    }

    /// Returns how many of the prompt's first blocks are stored.
    pub(super) fn n_stored(&self, request: &Request) -> usize {
        self.index.find(&prefix(request)).n_blocks
    }

    /// Returns whether a running sequence is about to compute block `block_idx` of the prompt.
    pub(super) fn is_coming(&self, request: &Request, block_idx: usize) -> bool {
        request.ids.get(block_idx).is_some_and(|id| self.filling.contains_key(id))
    }

    /// Uses what is stored of the prompt's first `n_cached` blocks and announces the rest as being filled.
    pub(super) fn start(&mut self, request: &Request, n_cached: usize, now_ms: u64) {
        let found = self.index.find(&prefix(request));
        let used: Vec<(ChunkId, usize)> = found.first(n_cached).collect();
        self.index.touch(&used, now_ms);
        for id in &request.ids[n_cached..] {
            *self.filling.entry(*id).or_default() += 1;
        }
        if found.n_blocks < request.keys.len() {
            self.changes.push(stored(request.keys[found.n_blocks..].to_vec(), RunState::Filling));
        }
    }

    /// Stores the prompt's blocks `done`, which have just been computed, and what else of it has left meanwhile.
    pub(super) fn store(&mut self, request: &Request, done: Range<usize>, now_ms: u64) {
        if done.is_empty() {
            return;
        }
        for id in &request.ids[done.clone()] {
            self.release(*id);
        }
        let n_computed = done.end;
        let whole = Prefix { chain: &request.chain[..n_computed], ..prefix(request) };
        for blocks in self.index.missing(&whole) {
            let n_bytes = blocks.len() as u64;
            let new = NewChunk { prefix: whole, blocks, n_bytes, priority: 0, now_ms };
            if self.index.insert(&new).is_err() {
                break;
            }
        }
        let n_stored = self.index.find(&whole).n_blocks;
        if n_stored < n_computed {
            self.forget(&request.ids[done.clone()], &request.keys[done], n_computed - n_stored);
        }
        self.tell();
    }

    /// Takes what is to be said to routers.
    pub(super) fn take_changes(&mut self) -> Vec<Change> {
        std::mem::take(&mut self.changes)
    }

    /// Returns how many blocks more could be stored before one must go.
    pub(super) fn free_blocks(&self) -> u64 {
        self.index.limits().ram_bytes.saturating_sub(self.index.totals(Tier::Ram).n_bytes)
    }

    fn release(&mut self, id: u32) {
        if let Some(n) = self.filling.get_mut(&id) {
            *n -= 1;
            if *n == 0 {
                self.filling.remove(&id);
            }
        }
    }

    /// Takes back what was announced as being filled and is not stored: of the blocks given, the last `n_last`.
    fn forget(&mut self, ids: &[u32], keys: &[BlockKey], n_last: usize) {
        let first = ids.len().saturating_sub(n_last);
        let gone = ids.iter().zip(keys).skip(first).filter(|(id, _)| !self.filling.contains_key(*id));
        let keys: Vec<BlockKey> = gone.map(|(_, key)| *key).collect();
        if !keys.is_empty() {
            self.changes.push(Change::Removed(keys));
        }
    }

    /// Turns the index's news into changes, and carries out its orders: a payload is nothing but its size.
    fn tell(&mut self) {
        for order in self.index.take_orders() {
            debug_assert!(matches!(order, Order::DropRam(_)), "there is no disk");
        }
        for news in self.index.take_news() {
            let keys: Vec<BlockKey> = news.blocks.iter().map(BlockHash::key).collect();
            match news.tier {
                Some(_) => self.changes.push(stored(keys, RunState::Ready)),
                None => self.changes.push(Change::Removed(keys)),
            }
        }
    }
}

fn prefix(request: &Request) -> Prefix<'_> {
    Prefix { root: ROOT, chain: &request.chain, tokens: &request.ids }
}

fn stored(keys: Vec<BlockKey>, state: RunState) -> Change {
    Change::Stored(Run { keys, tier: Tier::Ram, state, resume: Resume::EveryBlock, slot: None })
}
