//! Tests of the prefix index: hand-made cases, and random operations against a naive map.

use std::collections::{BTreeMap, HashMap};

use proptest::prelude::*;

use super::*;

const ROOMY: IndexOptions = IndexOptions { bytes_max: 1 << 24, seed: 7 };

impl IndexWriter {
    fn check_invariants(&self) {
        let mut n_blocks = HashMap::new();
        self.index.shards.iter().for_each(|shard| read(shard).check_invariants(&mut n_blocks));
        for (idx, &counted) in self.n_blocks.iter().enumerate() {
            assert_eq!(counted, n_blocks.remove(&(idx as u32)).unwrap_or(0), "blocks of worker {idx}");
        }
        assert!(n_blocks.is_empty(), "no worker goes uncounted");
    }
}

fn keys(chain: u64, blocks: std::ops::Range<u64>) -> Vec<BlockKey> {
    blocks.map(|block| BlockKey(chain * 1_000_000 + block)).collect()
}

fn run(keys: Vec<BlockKey>, resume: Resume, slot: u16) -> Run {
    Run { keys, tier: Tier::Resident, state: RunState::Ready, resume, slot: Some(SlotId(slot)) }
}

fn lengths(writer: &IndexWriter, keys: &[BlockKey]) -> Vec<(u32, u32)> {
    writer.reader().matches(keys).iter().map(|found| (found.worker.0, found.blocks)).collect()
}

#[test]
fn finds_the_longest_match_of_each_worker() {
    let mut writer = IndexWriter::new(ROOMY);
    for (worker, n) in [(0, 3), (1, 40), (2, 17), (5, 40), (70_000, 1)] {
        writer.insert(WorkerIdx(worker), &run(keys(1, 0..n), Resume::EveryBlock, 0));
    }
    writer.check_invariants();
    assert_eq!(lengths(&writer, &keys(1, 0..50)), [(1, 40), (5, 40), (2, 17), (0, 3), (70_000, 1)]);
    assert_eq!(lengths(&writer, &keys(1, 0..2)), [(0, 2), (1, 2), (2, 2), (5, 2), (70_000, 1)]);
    assert_eq!(lengths(&writer, &keys(2, 0..2)), []);
    assert_eq!(lengths(&writer, &[]), []);
}

#[test]
fn says_tier_state_and_slot_of_the_deepest_block() {
    let mut writer = IndexWriter::new(ROOMY);
    writer.insert(WorkerIdx(3), &run(keys(1, 0..4), Resume::EveryBlock, 2));
    let deeper =
        Run { tier: Tier::Disk, state: RunState::Filling, slot: None, ..run(keys(1, 4..6), Resume::EveryBlock, 0) };
    writer.insert(WorkerIdx(3), &deeper);
    let expected = Match { worker: WorkerIdx(3), blocks: 6, tier: Tier::Disk, state: RunState::Filling, slot: None };
    assert_eq!(writer.reader().matches(&keys(1, 0..9)), [expected]);
    let expected =
        Match { worker: WorkerIdx(3), blocks: 3, tier: Tier::Resident, state: RunState::Ready, slot: Some(SlotId(2)) };
    assert_eq!(writer.reader().matches(&keys(1, 0..3)), [expected]);
}

#[test]
fn a_checkpoint_is_the_only_place_to_resume() {
    let mut writer = IndexWriter::new(ROOMY);
    writer.insert(WorkerIdx(0), &run(keys(1, 0..8), Resume::LastBlock, 0));
    assert_eq!(lengths(&writer, &keys(1, 0..12)), [(0, 8)]);
    assert_eq!(lengths(&writer, &keys(1, 0..7)), [], "the state at block 7 is gone");
    writer.insert(WorkerIdx(0), &run(keys(1, 8..16), Resume::LastBlock, 0));
    assert_eq!(lengths(&writer, &keys(1, 0..12)), [(0, 8)], "two checkpoints: the deeper is too deep");
    assert_eq!(lengths(&writer, &keys(1, 0..16)), [(0, 16)]);
}

#[test]
fn a_new_view_replaces_the_old_one() {
    let mut writer = IndexWriter::new(ROOMY);
    writer.insert(WorkerIdx(0), &run(keys(1, 0..10), Resume::EveryBlock, 0));
    writer.insert(WorkerIdx(1), &run(keys(1, 0..10), Resume::EveryBlock, 0));
    writer.replace_worker(
        WorkerIdx(0),
        &[run(keys(1, 0..2), Resume::EveryBlock, 1), run(keys(2, 0..3), Resume::EveryBlock, 2)],
    );
    writer.check_invariants();
    assert_eq!(lengths(&writer, &keys(1, 0..10)), [(1, 10), (0, 2)]);
    assert_eq!(lengths(&writer, &keys(2, 0..10)), [(0, 3)]);
    assert_eq!(writer.n_blocks_of(WorkerIdx(0)), 5);
    writer.remove_worker(WorkerIdx(1));
    writer.check_invariants();
    assert_eq!(lengths(&writer, &keys(1, 0..10)), [(0, 2)]);
}

#[test]
fn stays_within_its_memory_and_sheds_what_was_not_matched() {
    let options = IndexOptions { bytes_max: 1 << 18, seed: 7 };
    let mut writer = IndexWriter::new(options);
    let hot = keys(0, 0..64);
    writer.insert(WorkerIdx(0), &run(hot.clone(), Resume::EveryBlock, 0));
    for chain in 1..2_000 {
        writer.insert(WorkerIdx(chain % 3), &run(keys(u64::from(chain), 0..64), Resume::EveryBlock, 0));
        writer.reader().touch(&hot);
    }
    writer.check_invariants();
    assert!(writer.reader().bytes() <= options.bytes_max);
    assert!(writer.reader().n_blocks() > 4_000, "{} blocks", writer.reader().n_blocks());
    assert!(writer.n_shed() > 100_000);
    assert_eq!(lengths(&writer, &hot), [(0, 64)], "what is matched stays");
    assert_eq!(lengths(&writer, &keys(1, 0..64)), [], "what is not goes");
}

#[test]
fn no_memory_means_no_matches_and_no_panic() {
    let mut writer = IndexWriter::new(IndexOptions { bytes_max: 0, seed: 7 });
    writer.insert(WorkerIdx(0), &run(keys(1, 0..64), Resume::EveryBlock, 0));
    writer.insert(WorkerIdx(1), &run(keys(1, 0..64), Resume::EveryBlock, 0));
    writer.remove(WorkerIdx(0), &keys(1, 0..64));
    writer.check_invariants();
    assert_eq!(lengths(&writer, &keys(1, 0..64)), []);
}

#[test]
fn a_block_costs_at_most_40_bytes() {
    let mut writer = IndexWriter::new(IndexOptions { bytes_max: 1 << 28, seed: 7 });
    let mut worst = 0.0f64;
    for chain in 0..4_000 {
        writer.insert(WorkerIdx(chain % 16), &run(keys(u64::from(chain), 0..256), Resume::EveryBlock, 0));
        if chain > 100 {
            worst = worst.max(writer.reader().bytes() as f64 / writer.reader().n_blocks() as f64);
        }
    }
    assert!(worst <= 40.0, "{worst} bytes");
}

/// Is what the naive reference knows of one worker's block.
type Claim = (Tier, RunState, bool, Option<SlotId>);

#[derive(Default)]
struct Naive(BTreeMap<(WorkerIdx, BlockKey), Claim>);

impl Naive {
    fn insert(&mut self, worker: WorkerIdx, run: &Run) {
        for (idx, &key) in run.keys.iter().enumerate() {
            let resumable = run.resume == Resume::EveryBlock || idx + 1 == run.keys.len();
            self.0.insert((worker, key), (run.tier, run.state, resumable, run.slot));
        }
    }

    fn matches(&self, n_workers: u32, keys: &[BlockKey]) -> Vec<Match> {
        let mut found = Vec::new();
        for worker in (0..n_workers).map(WorkerIdx) {
            let held: Vec<_> = keys.iter().map_while(|&key| self.0.get(&(worker, key))).collect();
            if let Some(last) = held.iter().rposition(|claim| claim.2) {
                let &&(tier, state, _, slot) = &held[last];
                found.push(Match { worker, blocks: last as u32 + 1, tier, state, slot });
            }
        }
        found.sort_by_key(|found| (std::cmp::Reverse(found.blocks), found.worker));
        found
    }
}

/// Chains share their first four blocks, so that they form a tree.
fn tree_keys(chain: u64, n: u64) -> Vec<BlockKey> {
    (0..n).map(|block| BlockKey(if block < 4 { block } else { (chain + 1) * 1_000 + block })).collect()
}

#[derive(Debug, Clone)]
enum Op {
    Store {
        worker: u32,
        chain: u64,
        n: u64,
        resume: Resume,
        tier: Tier,
        slot: Option<u16>,
    },
    /// Removes a chain's own blocks from `from` on: leaves before parents.
    Trim {
        worker: u32,
        chain: u64,
        from: u64,
    },
    Replace {
        worker: u32,
        chain: u64,
        n: u64,
    },
    Forget {
        worker: u32,
    },
    Touch {
        chain: u64,
        n: u64,
    },
}

const WORKERS: u32 = 6;
const CHAINS: u64 = 5;
const BLOCKS: u64 = 40;

fn op() -> impl Strategy<Value = Op> {
    let resume = prop_oneof![3 => Just(Resume::EveryBlock), 1 => Just(Resume::LastBlock)];
    let tier = prop_oneof![Just(Tier::Resident), Just(Tier::Ram), Just(Tier::Disk)];
    prop_oneof![
        6 => (0..WORKERS, 0..CHAINS, 1..BLOCKS, resume, tier, proptest::option::of(0..u16::MAX))
            .prop_map(|(worker, chain, n, resume, tier, slot)| Op::Store { worker, chain, n, resume, tier, slot }),
        3 => (0..WORKERS, 0..CHAINS, 4..BLOCKS).prop_map(|(worker, chain, from)| Op::Trim { worker, chain, from }),
        1 => (0..WORKERS, 0..CHAINS, 0..BLOCKS).prop_map(|(worker, chain, n)| Op::Replace { worker, chain, n }),
        1 => (0..WORKERS).prop_map(|worker| Op::Forget { worker }),
        1 => (0..CHAINS, 1..BLOCKS).prop_map(|(chain, n)| Op::Touch { chain, n }),
    ]
}

fn apply(op: Op, writer: &mut IndexWriter, naive: &mut Naive) {
    match op {
        Op::Store { worker, chain, n, resume, tier, slot } => {
            let state = if n % 2 == 0 { RunState::Ready } else { RunState::Filling };
            let run = Run { keys: tree_keys(chain, n), tier, state, resume, slot: slot.map(SlotId) };
            writer.insert(WorkerIdx(worker), &run);
            naive.insert(WorkerIdx(worker), &run);
        }
        Op::Trim { worker, chain, from } => {
            let keys = tree_keys(chain, BLOCKS).split_off(from as usize);
            writer.remove(WorkerIdx(worker), &keys);
            naive.0.retain(|&(of, key), _| of != WorkerIdx(worker) || !keys.contains(&key));
        }
        Op::Replace { worker, chain, n } => {
            let runs = [run(tree_keys(chain, n), Resume::EveryBlock, 1)];
            writer.replace_worker(WorkerIdx(worker), &runs);
            naive.0.retain(|&(of, _), _| of != WorkerIdx(worker));
            naive.insert(WorkerIdx(worker), &runs[0]);
        }
        Op::Forget { worker } => {
            writer.remove_worker(WorkerIdx(worker));
            naive.0.retain(|&(of, _), _| of != WorkerIdx(worker));
        }
        Op::Touch { chain, n } => writer.reader().touch(&tree_keys(chain, n)),
    }
}

proptest! {
    #[test]
    fn answers_as_a_naive_map_does(ops in proptest::collection::vec(op(), 1..60), n in 1..BLOCKS) {
        let mut writer = IndexWriter::new(ROOMY);
        let mut naive = Naive::default();
        for op in ops {
            apply(op, &mut writer, &mut naive);
            writer.check_invariants();
            for chain in 0..CHAINS {
                let keys = tree_keys(chain, n);
                prop_assert_eq!(writer.reader().matches(&keys), naive.matches(WORKERS, &keys));
            }
        }
    }

    #[test]
    fn keeps_its_limit_and_never_invents_a_claim(
        ops in proptest::collection::vec(op(), 1..60),
        bytes_max in 0usize..6_000,
    ) {
        let mut writer = IndexWriter::new(IndexOptions { bytes_max, seed: 3 });
        let mut naive = Naive::default();
        for op in ops {
            apply(op, &mut writer, &mut naive);
            writer.check_invariants();
            for chain in 0..CHAINS {
                let keys = tree_keys(chain, BLOCKS);
                for found in writer.reader().matches(&keys) {
                    let claim = naive.0.get(&(found.worker, keys[found.blocks as usize - 1]));
                    prop_assert_eq!(claim, Some(&(found.tier, found.state, true, found.slot)));
                }
            }
        }
    }
}
