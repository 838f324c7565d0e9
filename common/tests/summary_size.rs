//! Size of a snapshot on the wire (docs/decisions/0005-summary-encoding.md).
//!
//! Not here: that frames decode to what was encoded (`src/summary/tests.rs`).

use warmpath_common::block_hash::BlockKey;
use warmpath_common::ids::{SlotId, WorkerUid};
use warmpath_common::model::{Fingerprint, ModelInfo};
use warmpath_common::summary::{Load, Resume, Run, RunState, Snapshot, Stamp, Tier};

const N_RUNS: u64 = 1_000;
const BLOCKS_PER_RUN: u64 = 100;

fn snapshot() -> Snapshot {
    let model =
        ModelInfo { names: vec!["model".to_owned()], ..ModelInfo::text(Fingerprint([7; 32]), 32, 8192, 4, 150_000) };
    // Keys spread over all 64 bits, as hashes do.
    let key = |n: u64| BlockKey(n.wrapping_mul(0x9e37_79b9_7f4a_7c15));
    let run = |run_idx: u64| Run {
        keys: (0..BLOCKS_PER_RUN).map(|block_idx| key(run_idx * BLOCKS_PER_RUN + block_idx + 1)).collect(),
        tier: Tier::Resident,
        state: RunState::Ready,
        resume: Resume::EveryBlock,
        slot: Some(SlotId((run_idx % 4) as u16)),
    };
    let stamp = Stamp { worker_uid: WorkerUid(1), boot_epoch: 1_700_000_000_000_000_000, seq: 9 };
    Snapshot { stamp, model, runs: (0..N_RUNS).map(run).collect(), load: Load::default() }
}

#[test]
fn a_snapshot_costs_little_more_than_its_keys() {
    let n_keys = (N_RUNS * BLOCKS_PER_RUN) as f64;
    let json = serde_json::to_vec(&snapshot()).expect("a snapshot has a JSON form").len() as f64;
    let frames = snapshot().into_frames();
    let binary: usize = frames.iter().map(|frame| frame.encode().len() + 4).sum();
    let (binary, n_frames) = (binary as f64, frames.len());
    println!(
        "{n_keys} blocks: {:.2} bytes a block in {n_frames} frames, {:.2} as JSON",
        binary / n_keys,
        json / n_keys
    );
    assert!(binary / n_keys < 8.2, "{} bytes a block", binary / n_keys);
    assert!(json > 2.0 * binary);
}
