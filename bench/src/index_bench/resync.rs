//! A resync: how long a large view takes to replace another, and what readers feel of it.
//!
//! Not here: reading the snapshot from the network. The idea: one thread looks prompts up all the time, first while
//! nothing happens, then while the writer replaces a view of a million blocks, again and again.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use hdrhistogram::Histogram;
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng as _, SeedableRng as _};
use serde::Serialize;
use warmpath_common::block_hash::BlockKey;
use warmpath_common::summary::Run;
use warmpath_router_core::WorkerIdx;
use warmpath_router_core::index::{IndexOptions, IndexWriter, PrefixIndex};

use super::ours::run_of;

/// Is the number of blocks of a run: a long conversation with its last turn.
const RUN_BLOCKS: usize = 250;
/// Is the most memory of the index, which holds two views while one replaces the other. Units: bytes.
const INDEX_BYTES_MAX: usize = 1 << 30;
/// Is how often the view is replaced: by itself, then by others.
const N_REPLACED: u64 = 4;

/// Is what was measured of resyncs.
#[derive(Debug, Clone, Serialize)]
pub struct ResyncReport {
    /// Is the number of blocks of the view.
    pub n_blocks: usize,
    /// Is how long the same view takes again. Units: milliseconds.
    pub same_ms: f64,
    /// Is how long a view takes that has nothing in common with the one before, the longest. Units: milliseconds.
    pub other_ms: f64,
    /// Is the 99th percentile of a look-up while nothing changes. Units: nanoseconds.
    pub quiet_ns_p99: u64,
    /// Is the 99th percentile of a look-up while views are replaced. Units: nanoseconds.
    pub busy_ns_p99: u64,
    /// Is the longest look-up while views are replaced. Units: nanoseconds.
    pub busy_ns_max: u64,
    /// Is how many look-ups were made while views were replaced.
    pub n_busy: u64,
}

/// Measures views of `n_blocks` blocks of one worker; the prompts that are looked up are another worker's.
pub fn measure(n_blocks: usize, seed: u64) -> ResyncReport {
    let mut writer = IndexWriter::new(IndexOptions { bytes_max: INDEX_BYTES_MAX, seed });
    let asked: Vec<Vec<BlockKey>> = view(8 * RUN_BLOCKS, u64::MAX).into_iter().map(|run| run.keys).collect();
    writer.replace_worker(WorkerIdx(1), view(8 * RUN_BLOCKS, u64::MAX));
    let first = view(n_blocks, 0);
    writer.replace_worker(WorkerIdx(0), first.clone());
    let index = writer.reader();
    let quiet = look_up(&index, &asked, || 100_000);
    let done = AtomicBool::new(false);
    let (mut same_ms, mut other_ms) = (0.0, 0.0f64);
    let busy = std::thread::scope(|scope| {
        let reader =
            scope.spawn(|| look_up(&index, &asked, || if done.load(Ordering::Relaxed) { 0 } else { u64::MAX }));
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
        n_busy: busy.len(),
    }
}

fn replace(writer: &mut IndexWriter, view: Vec<Run>) -> f64 {
    let start = Instant::now();
    writer.replace_worker(WorkerIdx(0), view);
    start.elapsed().as_secs_f64() * 1e3
}

/// Returns a view of which each number's differs from every other's.
fn view(n_blocks: usize, number: u64) -> Vec<Run> {
    let mut rng = ChaCha8Rng::seed_from_u64(number);
    let keys: Vec<u64> = (0..n_blocks).map(|_| rng.next_u64()).collect();
    keys.chunks(RUN_BLOCKS).map(|keys| run_of(keys, 0)).collect()
}

/// Times look-ups as long as fewer than `n` have been made.
fn look_up(index: &PrefixIndex, asked: &[Vec<BlockKey>], n: impl Fn() -> u64) -> Histogram<u64> {
    let mut times = Histogram::<u64>::new_with_bounds(1, 1_000_000_000, 3).expect("the bounds are valid");
    for asked in asked.iter().cycle() {
        if times.len() >= n() {
            break;
        }
        let start = Instant::now();
        std::hint::black_box(index.matches(std::hint::black_box(asked)));
        times.saturating_record(u64::try_from(start.elapsed().as_nanos()).unwrap_or(u64::MAX));
    }
    times
}
