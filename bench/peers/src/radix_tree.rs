//! The crate `dynamo-kv-router`: NVIDIA Dynamo's `RadixTree`, a compressed radix tree with a table of blocks per
//! worker.
//!
//! Measuring is in `measure`. The tree is fed with router events as its indexer thread feeds it. Its memory is what the
//! allocator has handed out since the tree was made, because the tree does not count its own.

use dynamo_kv_router::RadixTree;
use dynamo_kv_router::protocols::{
    ExternalSequenceBlockHash, KvCacheEvent, KvCacheEventData, KvCacheRemoveData, KvCacheStoreData,
    KvCacheStoredBlockData, LocalBlockHash, OverlapScores, RouterEvent,
};

use crate::measure::Subject;
use crate::workload::Stretch;

/// The tree, and the memory that the allocator had handed out before it.
pub struct Radix {
    tree: RadixTree,
    allocated: fn() -> usize,
    bytes_before: usize,
}

impl Radix {
    /// Returns an empty tree.
    pub fn new(allocated_bytes: fn() -> usize) -> Self {
        Self { bytes_before: allocated_bytes(), allocated: allocated_bytes, tree: RadixTree::new() }
    }
}

fn event(worker: u32, data: KvCacheEventData) -> RouterEvent {
    RouterEvent::new(worker.into(), KvCacheEvent { event_id: 0, data, dp_rank: 0 })
}

impl Subject for Radix {
    type Change = RouterEvent;
    type Ask = Vec<LocalBlockHash>;
    type Answer = OverlapScores;

    fn stored(&self, stretch: Stretch, parent: Option<u64>, keys: &[u64]) -> RouterEvent {
        let block = |&key: &u64| KvCacheStoredBlockData {
            block_hash: ExternalSequenceBlockHash(key),
            tokens_hash: LocalBlockHash(key),
            mm_extra_info: None,
        };
        let parent_hash = parent.map(ExternalSequenceBlockHash);
        let blocks = keys.iter().map(block).collect();
        event(stretch.worker, KvCacheEventData::Stored(KvCacheStoreData { parent_hash, start_position: None, blocks }))
    }

    fn removed(&self, stretch: Stretch, keys: &[u64]) -> RouterEvent {
        let block_hashes = keys.iter().copied().map(ExternalSequenceBlockHash).collect();
        event(stretch.worker, KvCacheEventData::Removed(KvCacheRemoveData { block_hashes }))
    }

    fn apply(&mut self, change: RouterEvent) {
        self.tree.apply_event(change).expect("a parent is stored before its children and after no grandchild");
    }

    fn replace(&mut self, worker: u32, view: Vec<RouterEvent>) {
        self.apply(event(worker, KvCacheEventData::Cleared));
        view.into_iter().for_each(|change| self.apply(change));
    }

    fn routed(&self, _keys: &[u64]) {}

    fn ask(&self, keys: &[u64]) -> Vec<LocalBlockHash> {
        keys.iter().copied().map(LocalBlockHash).collect()
    }

    fn look_up(&self, ask: Vec<LocalBlockHash>) -> OverlapScores {
        self.tree.find_matches(ask, false)
    }

    fn read(answer: OverlapScores) -> Vec<(u32, u32)> {
        let worker = |id: u64| u32::try_from(id).expect("workers are numbered by u32");
        answer.scores.into_iter().map(|(at, blocks)| (blocks, worker(at.worker_id))).collect()
    }

    fn bytes(&self) -> usize {
        (self.allocated)() - self.bytes_before
    }
}
