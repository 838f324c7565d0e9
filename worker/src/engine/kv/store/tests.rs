//! The store with a disk that hangs: late reads, learned times, chunks that are in memory already.
//!
//! Not here: when a read is late (the core's `disk_reads`), files (`crate::store`).

use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

use tempfile::TempDir;
use warmpath_common::block_hash::{BlockHash, block_chain};
use warmpath_common::ids::Token;
use warmpath_common::model::Fingerprint;
use warmpath_common::summary::Tier;
use warmpath_worker_core::store::chunk_index::{ChunkRecord, StateKind};

use super::*;
use crate::store::{DiskStore, Identity};

/// Time limit of every wait in these tests.
const PATIENCE: Duration = Duration::from_secs(60);
/// Pause between two looks at the disk's events. Source: a small part of the time after which a read is late.
const LOOK: Duration = Duration::from_millis(5);
const BLOCK_SIZE_TOKENS: u32 = 4;
const IDENTITY: Identity =
    Identity { model: Fingerprint([1; 32]), kv: Fingerprint([2; 32]), block_size_tokens: BLOCK_SIZE_TOKENS };
const COSTS: Costs = Costs {
    prefill_ms_per_token: 1.0,
    copy_ms_per_token: None,
    export_ms_per_token: Some(0.0),
    import_ms_per_byte: 0.0,
    read_ms_per_byte: 0.5,
    suffix_rounding: None,
};

/// A store with chunks that are only on disk. Each read ends when the test permits it.
struct Stalled {
    /// Permits one read for each message, and all of them once it is dropped, which is before the store is.
    permits: Option<Sender<()>>,
    /// Wakes of the disk's thread, one for each event.
    wakes: Receiver<()>,
    cache: Cache,
    chunks: Vec<ChunkId>,
    _dir: TempDir,
}

/// Returns a chunk of one block at the start of its chain.
fn chunk(seed: u32) -> ChunkRecord {
    let root = BlockHash([7; 32]);
    let tokens: Vec<Token> = (0..BLOCK_SIZE_TOKENS).map(|i| seed * 1000 + i).collect();
    ChunkRecord {
        kind: StateKind::Chunk,
        root,
        first_block: 0,
        parent: None,
        blocks: block_chain(&root, &tokens, BLOCK_SIZE_TOKENS).into(),
        tokens: tokens.into(),
        n_bytes: 100,
        priority: 0,
        tenant: None,
    }
}

impl Stalled {
    fn new(n_chunks: u32, cost_source: CostSource) -> Self {
        let dir = tempfile::tempdir().expect("a folder can be made");
        let (store, _) = DiskStore::open(dir.path(), IDENTITY, 1 << 20, drop).expect("the store opens");
        for seed in 0..n_chunks {
            store.write(ChunkId(seed.into()), chunk(seed).into(), vec![seed as u8; 100].into());
        }
        assert_eq!(store.flush(Instant::now() + PATIENCE), 0);
        drop(store);
        let (sender, events) = channel();
        let (permits, permitted) = channel();
        let (wake, wakes) = channel();
        let tell = move |event| {
            let _ = permitted.recv();
            drop(sender.send(event));
            let _ = wake.send(());
        };
        let (store, files) = DiskStore::open(dir.path(), IDENTITY, 1 << 20, tell).expect("the store opens");
        let limits = StoreLimits {
            ram_bytes: 1 << 20,
            disk_bytes: 1 << 20,
            min_hold_ms: 0,
            chunk_blocks_max: 1,
            block_size_tokens: BLOCK_SIZE_TOKENS,
        };
        let mut cache = Cache::new(limits, None, COSTS, cost_source);
        cache.adopt(Disk { store, events }, files);
        let chunks: Vec<ChunkId> = cache.index().entries().iter().map(|entry| entry.chunk).collect();
        assert_eq!(chunks.len(), n_chunks as usize);
        Self { permits: Some(permits), wakes, cache, chunks, _dir: dir }
    }

    /// Permits one read.
    fn permit(&self) {
        let permits = self.permits.as_ref().expect("it is not dropped yet");
        permits.send(()).expect("the store's thread runs");
    }

    /// Takes events, as between two steps, until `is_so` returns true.
    fn until(&mut self, what: &str, is_so: impl Fn(&Cache) -> bool) {
        let deadline = Instant::now() + PATIENCE;
        while !is_so(&self.cache) {
            assert!(Instant::now() < deadline, "never: {what}");
            // A read becomes late without an event.
            let _ = self.wakes.recv_timeout(LOOK);
            self.cache.take_disk_events();
        }
    }
}

#[test]
fn nothing_waits_for_a_late_read_whose_payload_is_kept_when_it_arrives() {
    let mut stalled = Stalled::new(3, CostSource::Assumed);
    let [first, second, third] = stalled.chunks[..] else { panic!("there are three chunks") };
    stalled.cache.fetch(&[first]);
    assert!(stalled.cache.is_reading(&[first]) && !stalled.cache.is_disk_late());
    stalled.until("the read is late", Cache::is_disk_late);
    assert!(!stalled.cache.is_reading(&[first]));
    stalled.cache.fetch(&[second]);
    stalled.cache.release(&[first, second]);

    stalled.permit();
    stalled.until("the late payload arrives", |cache| cache.payload(first).is_some());
    assert_eq!(stalled.cache.index().tier(first), Some(Tier::Ram));
    assert!(!stalled.cache.is_disk_late());
    stalled.cache.fetch(&[third]);
    assert!(stalled.cache.is_reading(&[third]));
    stalled.permit();
    stalled.until("the next payload arrives", |cache| cache.payload(third).is_some());
    assert_eq!(stalled.cache.payload(second), None, "nothing is requested from a late disk");
    stalled.cache.release(&[third]);
}

#[test]
fn only_chunks_that_are_not_in_memory_are_read() {
    let mut stalled = Stalled::new(2, CostSource::Assumed);
    let [first, second] = stalled.chunks[..] else { panic!("there are two chunks") };
    stalled.permit();
    stalled.cache.fetch(&[first]);
    stalled.until("the payload arrives", |cache| cache.payload(first).is_some());
    stalled.cache.fetch(&[first, second]);
    assert!(!stalled.cache.is_reading(&[first]) && stalled.cache.is_reading(&[first, second]));
    stalled.permits = None;
    stalled.until("the other payload arrives", |cache| cache.payload(second).is_some());
    stalled.cache.release(&[first, first, second]);
    assert!(stalled.chunks.iter().all(|id| !stalled.cache.index().is_held(*id)));
}

#[test]
fn the_time_of_reads_is_learned_if_costs_are_measured() {
    for (cost_source, is_learned) in [(CostSource::Measured, true), (CostSource::Assumed, false)] {
        let mut stalled = Stalled::new(1, cost_source);
        let id = stalled.chunks[0];
        stalled.permits = None;
        stalled.cache.fetch(&[id]);
        stalled.until("the payload arrives", |cache| cache.payload(id).is_some());
        let has_changed = stalled.cache.costs().read_ms_per_byte < COSTS.read_ms_per_byte;
        assert_eq!(has_changed, is_learned, "{:?}", stalled.cache.costs());
        stalled.cache.release(&[id]);
    }
}
