//! A resync: how long the replacement of a large view takes, and how it affects readers.
//!
//! Reading the snapshot from the network is not measured. One thread looks up prompts all the time, first while nothing
//! happens, then while the writer repeatedly replaces a view of a million blocks.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use hdrhistogram::Histogram;
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng as _, SeedableRng as _};
use warmpath_common::block_hash::BlockKey;
use warmpath_common::summary::Run;
use warmpath_router_core::WorkerIdx;
use warmpath_router_core::index::{IndexOptions, IndexWriter, PrefixIndex};

use super::ours::run_of;

/// Number of blocks of a run: a long conversation with its last turn.
const RUN_BLOCKS: usize = 250;
/// Maximum memory of the index, which holds two views during a replacement. Units: bytes.
const INDEX_BYTES_MAX: usize = 1 << 30;
/// Number of replacements of the view: the first by the same view, the others by different ones.
const N_REPLACED: u64 = 4;

/// Measurements of resyncs.
#[derive(Debug)]
pub struct ResyncReport {
    /// Number of blocks of the view.
    pub n_blocks: usize,
    /// Time to replace the view by the same one. Units: milliseconds.
    pub same_ms: f64,
    /// Longest time to replace the view by one without common blocks. Units: milliseconds.
    pub other_ms: f64,
    /// 99th percentile of a lookup while nothing changes. Units: nanoseconds.
    pub quiet_ns_p99: u64,
    /// 99th percentile of a lookup while views are replaced. Units: nanoseconds.
    pub busy_ns_p99: u64,
    /// Longest lookup while views are replaced. Units: nanoseconds.
    pub busy_ns_max: u64,
}

/// Measures views of `n_blocks` blocks of one worker; the prompts that are looked up are held by another one.
pub fn measure(n_blocks: usize, seed: u64) -> ResyncReport {
    let mut writer = IndexWriter::new(IndexOptions { bytes_max: INDEX_BYTES_MAX, seed });
    let chains: Vec<Vec<BlockKey>> = view(8 * RUN_BLOCKS, u64::MAX).into_iter().map(|run| run.keys).collect();
    writer.replace_worker(WorkerIdx(1), view(8 * RUN_BLOCKS, u64::MAX));
    let first = view(n_blocks, 0);
    writer.replace_worker(WorkerIdx(0), first.clone());
    let index = writer.reader();
    let quiet = look_up(&index, &chains, || 100_000);
    let done = AtomicBool::new(false);
    let (mut same_ms, mut other_ms) = (0.0, 0.0f64);
    let busy = std::thread::scope(|scope| {
        let reader =
            scope.spawn(|| look_up(&index, &chains, || if done.load(Ordering::Relaxed) { 0 } else { u64::MAX }));
        same_ms = replace(&mut writer, first);
        for number in 1..N_REPLACED {
            other_ms = other_ms.max(replace(&mut writer, view(n_blocks, number)));
        }
        done.store(true, Ordering::Relaxed);
        reader.join().expect("looking up does not panic")
    });
    ResyncReport {
        n_blocks,
        same_ms,
        other_ms,
        quiet_ns_p99: quiet.value_at_quantile(0.99),
        busy_ns_p99: busy.value_at_quantile(0.99),
        busy_ns_max: busy.max(),
    }
}

fn replace(writer: &mut IndexWriter, view: Vec<Run>) -> f64 {
    let start = Instant::now();
    writer.replace_worker(WorkerIdx(0), view);
    start.elapsed().as_secs_f64() * 1e3
}

/// Returns a view; views of different numbers share no block.
fn view(n_blocks: usize, number: u64) -> Vec<Run> {
    let mut rng = ChaCha8Rng::seed_from_u64(number);
    let keys: Vec<u64> = (0..n_blocks).map(|_| rng.next_u64()).collect();
    keys.chunks(RUN_BLOCKS).map(|keys| run_of(keys, 0)).collect()
}

/// Times lookups until `n` of them have been made.
fn look_up(index: &PrefixIndex, chains: &[Vec<BlockKey>], n: impl Fn() -> u64) -> Histogram<u64> {
    let mut times = Histogram::<u64>::new_with_bounds(1, 1_000_000_000, 3).expect("the bounds are valid");
    for chain in chains.iter().cycle() {
        if times.len() >= n() {
            break;
        }
        let start = Instant::now();
        std::hint::black_box(index.matches(std::hint::black_box(chain)));
        times.saturating_record(u64::try_from(start.elapsed().as_nanos()).unwrap_or(u64::MAX));
    }
    times
}
