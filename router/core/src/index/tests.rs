//! Tests of the prefix index: hand-made cases, and random operations against a naive map.

mod views;

use std::collections::BTreeMap;
use std::sync::atomic::AtomicBool;

use proptest::prelude::*;
use warmpath_common::summary::{Digest, Resume, Run};

use super::*;

const ROOMY: IndexOptions = IndexOptions { bytes_max: 1 << 24, seed: 7 };

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
fn reports_tier_state_and_slot_of_the_deepest_block() {
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
        vec![run(keys(1, 0..2), Resume::EveryBlock, 1), run(keys(2, 0..3), Resume::EveryBlock, 2)],
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
fn a_digest_is_of_the_reported_blocks_or_absent() {
    let mut writer = IndexWriter::new(IndexOptions { bytes_max: 1 << 16, seed: 7 });
    let worker = WorkerIdx(0);
    assert_eq!(writer.digest_of(worker), Some(Digest::default()), "the digest of no blocks");
    let few = run(keys(1, 0..10), Resume::EveryBlock, 0);
    writer.insert(worker, &few);
    writer.insert(worker, &few);
    writer.remove(worker, &keys(1, 8..20));
    assert_eq!(writer.digest_of(worker), Some(Digest::of(&keys(1, 0..8))));
    writer.insert(worker, &run(keys(2, 0..20_000), Resume::EveryBlock, 0));
    assert_eq!(writer.digest_of(worker), None, "some did not fit");
    writer.replace_worker(worker, vec![few.clone()]);
    assert_eq!(writer.digest_of(worker), Some(Digest::of(&few.keys)));
    writer.check_invariants();
}

#[test]
fn stays_within_its_memory_and_evicts_what_was_not_matched() {
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
    assert_eq!(lengths(&writer, &hot), [(0, 64)], "matched blocks stay");
    assert_eq!(lengths(&writer, &keys(1, 0..64)), [], "other blocks are evicted");
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
fn a_block_costs_at_most_27_bytes() {
    let mut writer = IndexWriter::new(IndexOptions { bytes_max: 1 << 28, seed: 7 });
    let mut worst = 0.0f64;
    for chain in 0..8_000 {
        writer.insert(WorkerIdx(chain % 16), &run(keys(u64::from(chain), 0..64), Resume::EveryBlock, 0));
        if chain > 100 {
            worst = worst.max(writer.reader().bytes() as f64 / writer.reader().n_blocks() as f64);
        }
    }
    assert!(worst <= 27.0, "{worst} bytes");
}

#[test]
fn turns_inside_longer_prompts_become_one_segment() {
    let mut writer = IndexWriter::new(ROOMY);
    let chain = keys(1, 0..600);
    for turn in chain.chunks(20) {
        writer.insert(WorkerIdx(0), &run(turn.to_vec(), Resume::EveryBlock, 0));
        writer.reader().touch(&chain);
    }
    let bytes = writer.reader().bytes();
    assert_eq!(lengths(&writer, &chain), [(0, 600)]);
    // Any change processes the hints; one join may allow another.
    for _ in 0..8 {
        writer.reader().touch(&chain);
        writer.insert(WorkerIdx(1), &run(keys(2, 0..1), Resume::EveryBlock, 0));
        writer.check_invariants();
    }
    assert_eq!(search::walk(&writer.reader().heads.load(), &chain).len(), 2, "600 blocks fit into two segments");
    assert!(writer.reader().bytes() < bytes + 600, "joining takes no memory");
    assert_eq!(lengths(&writer, &chain), [(0, 600)]);
    writer.remove(WorkerIdx(0), &chain);
    writer.check_invariants();
    assert_eq!(writer.reader().n_blocks(), 1);
}

#[test]
fn a_segment_that_is_repeatedly_cut_and_extended_stays_consistent() {
    let mut writer = IndexWriter::new(ROOMY);
    let chain = keys(1, 0..60);
    writer.insert(WorkerIdx(0), &run(chain[..20].to_vec(), Resume::EveryBlock, 0));
    for n in (20..52).cycle().take(400) {
        writer.insert(WorkerIdx(0), &run(chain[n..n + 8].to_vec(), Resume::EveryBlock, 0));
        writer.reader().touch(&chain);
        writer.insert(WorkerIdx(1), &run(keys(2, 0..1), Resume::EveryBlock, 0));
        writer.check_invariants();
        assert_eq!(search::walk(&writer.reader().heads.load(), &chain).len(), 1, "the turn is appended to the others");
        writer.remove(WorkerIdx(0), &chain[if n == 51 { 20 } else { n + 1 }..n + 8]);
        writer.check_invariants();
    }
    let bytes = writer.reader().bytes();
    assert!(bytes < 20_000, "{bytes} bytes: a number without blocks is free again");
}

#[test]
fn segments_of_many_workers_are_not_joined_with_those_of_one() {
    let mut writer = IndexWriter::new(ROOMY);
    let chain = keys(1, 0..40);
    for worker in [0, 1] {
        writer.insert(WorkerIdx(worker), &run(chain[..20].to_vec(), Resume::EveryBlock, 0));
    }
    writer.insert(WorkerIdx(1), &run(chain[20..].to_vec(), Resume::EveryBlock, 0));
    writer.reader().touch(&chain);
    writer.insert(WorkerIdx(1), &run(keys(2, 0..1), Resume::EveryBlock, 0));
    assert_eq!(search::walk(&writer.reader().heads.load(), &chain).len(), 2);
    assert_eq!(lengths(&writer, &chain), [(1, 40), (0, 20)]);
}

#[test]
fn hints_beyond_the_limit_are_dropped() {
    let mut writer = IndexWriter::new(ROOMY);
    let n = merge_hints::HINTS_MAX as u64 + 10;
    for block in 0..=n {
        writer.insert(WorkerIdx(0), &run(keys(1, block..block + 1), Resume::EveryBlock, 0));
    }
    writer.reader().touch(&keys(1, 0..n + 1));
    assert_eq!(writer.reader().merge_hints.take().len(), merge_hints::HINTS_MAX);
}

#[test]
fn a_run_that_names_a_block_twice_is_one_claim() {
    let mut writer = IndexWriter::new(ROOMY);
    let twice = vec![BlockKey(1), BlockKey(2), BlockKey(1), BlockKey(2), BlockKey(3), BlockKey(3)];
    writer.insert(WorkerIdx(0), &run(twice.clone(), Resume::EveryBlock, 0));
    writer.check_invariants();
    assert_eq!((writer.n_blocks_of(WorkerIdx(0)), writer.reader().n_blocks()), (3, 3));
    writer.remove(WorkerIdx(0), &twice);
    writer.check_invariants();
    assert_eq!(writer.reader().n_blocks(), 0);
}

#[test]
fn a_run_longer_than_a_segment_is_found_as_a_whole() {
    let mut writer = IndexWriter::new(ROOMY);
    let n = span::SEGMENT_BLOCKS_MAX as u64;
    writer.insert(WorkerIdx(0), &run(keys(1, 0..3 * n), Resume::LastBlock, 0));
    writer.check_invariants();
    assert_eq!(lengths(&writer, &keys(1, 0..3 * n + 5)), [(0, 3 * n as u32)]);
    assert_eq!(lengths(&writer, &keys(1, 0..2 * n)), [], "only the end of the run can be resumed");
    writer.insert(WorkerIdx(0), &run(keys(1, 0..3 * n - 1), Resume::EveryBlock, 0));
    assert_eq!(lengths(&writer, &keys(1, 0..2 * n)), [(0, 2 * n as u32)]);
}

#[test]
fn blocks_may_go_one_by_one_in_either_order() {
    let mut writer = IndexWriter::new(ROOMY);
    for worker in [0, 1] {
        writer.insert(WorkerIdx(worker), &run(keys(1, 0..30), Resume::EveryBlock, 0));
    }
    let mut back_to_front = keys(1, 10..30);
    back_to_front.reverse();
    writer.remove(WorkerIdx(0), &back_to_front);
    writer.check_invariants();
    assert_eq!(lengths(&writer, &keys(1, 0..30)), [(1, 30), (0, 10)]);
    for block in (0..30).rev() {
        writer.remove(WorkerIdx(1), &keys(1, block..block + 1));
        writer.check_invariants();
    }
    assert_eq!(lengths(&writer, &keys(1, 0..30)), [(0, 10)]);
    assert_eq!(writer.reader().n_blocks(), 10);
}

#[test]
fn a_reader_still_sees_a_segment_that_is_shortened_in_place() {
    let mut writer = IndexWriter::new(ROOMY);
    writer.insert(WorkerIdx(0), &run(keys(1, 0..20), Resume::EveryBlock, 0));
    let (index, asked) = (writer.reader(), keys(1, 0..20));
    let path = search::walk(&index.heads.load(), &asked);
    let bytes_of_20 = index.bytes();
    for (n, is_copied) in [(12, false), (9, true)] {
        writer.remove(WorkerIdx(0), &keys(1, n..20));
        writer.check_invariants();
        assert_eq!(lengths(&writer, &asked), [(0, n as u32)]);
        assert_eq!(index.bytes() < bytes_of_20, is_copied);
        assert!(path[0].is_whole() && path[0].segment().len() == 20);
    }
}

#[test]
fn readers_see_the_common_blocks_of_two_views_while_one_replaces_the_other() {
    let mut writer = IndexWriter::new(ROOMY);
    let shared = keys(1, 0..100);
    let view = |chain: u64| -> Vec<Run> {
        let turns = shared.chunks(10).map(|turn| run(turn.to_vec(), Resume::EveryBlock, chain as u16));
        turns.chain((0..50).map(|own| run(keys(100 * chain + own, 0..20), Resume::EveryBlock, 0))).collect()
    };
    writer.replace_worker(WorkerIdx(0), view(1));
    let (index, done) = (writer.reader(), AtomicBool::new(false));
    std::thread::scope(|scope| {
        let reader = scope.spawn(|| {
            let mut n = 0u64;
            while !done.load(Ordering::Relaxed) || n == 0 {
                let found = index.matches(&shared);
                assert!(matches!(found[..], [Match { worker: WorkerIdx(0), blocks: 100, .. }]), "{found:?}");
                index.touch(&shared);
                n += 1;
            }
            n
        });
        for chain in 2..400 {
            writer.replace_worker(WorkerIdx(0), view(chain));
            assert!(!reader.is_finished(), "the reader has found the shared blocks each time");
        }
        done.store(true, Ordering::Relaxed);
        assert!(reader.join().expect("the reader saw no gap") > 0);
    });
    writer.check_invariants();
    assert_eq!(writer.n_blocks_of(WorkerIdx(0)), 1_100);
}

/// One worker's entry for a block in the naive reference.
type Claim = (Tier, RunState, bool, Option<SlotId>);

#[derive(Default)]
struct Naive(BTreeMap<(WorkerIdx, BlockKey), Claim>);

impl Naive {
    fn insert(&mut self, worker: WorkerIdx, run: &Run) {
        for (idx, &key) in run.keys.iter().enumerate() {
            let resumable = run.resume.is_behind(idx, run.keys.len());
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

/// All chains share their first four blocks, so that they form a tree.
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
    /// Appends blocks to those of a chain that a worker holds.
    Grow {
        worker: u32,
        chain: u64,
        by: u64,
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
    /// Removes one block, whatever follows it.
    Punch {
        worker: u32,
        chain: u64,
        block: u64,
    },
}

const WORKERS: u32 = 6;
/// More workers than are compared one by one.
const MANY_WORKERS: u32 = 40;
const CHAINS: u64 = 5;
const BLOCKS: u64 = 40;

fn op(n_workers: u32) -> impl Strategy<Value = Op> {
    let resume = prop_oneof![3 => Just(Resume::EveryBlock), 1 => Just(Resume::LastBlock), 1 => Just(Resume::Nowhere)];
    let tier = prop_oneof![Just(Tier::Resident), Just(Tier::Ram), Just(Tier::Disk)];
    prop_oneof![
        6 => (0..n_workers, 0..CHAINS, 1..BLOCKS, resume, tier, proptest::option::of(0..u16::MAX))
            .prop_map(|(worker, chain, n, resume, tier, slot)| Op::Store { worker, chain, n, resume, tier, slot }),
        3 => (0..n_workers, 0..CHAINS, 4..BLOCKS).prop_map(|(worker, chain, from)| Op::Trim { worker, chain, from }),
        1 => (0..n_workers, 0..CHAINS, 0..BLOCKS).prop_map(|(worker, chain, n)| Op::Replace { worker, chain, n }),
        1 => (0..n_workers).prop_map(|worker| Op::Forget { worker }),
        4 => (0..n_workers, 0..CHAINS, 1..20u64).prop_map(|(worker, chain, by)| Op::Grow { worker, chain, by }),
        4 => (0..CHAINS, 1..BLOCKS).prop_map(|(chain, n)| Op::Touch { chain, n }),
    ]
}

fn op_or_punch() -> impl Strategy<Value = Op> {
    let punch = (0..WORKERS, 0..CHAINS, 0..BLOCKS);
    prop_oneof![
        8 => op(WORKERS),
        2 => punch.prop_map(|(worker, chain, block)| Op::Punch { worker, chain, block }),
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
            let run = run(tree_keys(chain, n), Resume::EveryBlock, 1);
            writer.replace_worker(WorkerIdx(worker), vec![run.clone()]);
            naive.0.retain(|&(of, _), _| of != WorkerIdx(worker));
            naive.insert(WorkerIdx(worker), &run);
        }
        Op::Forget { worker } => {
            writer.remove_worker(WorkerIdx(worker));
            naive.0.retain(|&(of, _), _| of != WorkerIdx(worker));
        }
        Op::Grow { worker, chain, by } => {
            let keys = tree_keys(chain, BLOCKS);
            let n_held = keys.iter().take_while(|&&key| naive.0.contains_key(&(WorkerIdx(worker), key))).count();
            let to = BLOCKS.min(n_held as u64 + by) as usize;
            let run = run(keys[n_held..to].to_vec(), Resume::EveryBlock, worker as u16);
            writer.insert(WorkerIdx(worker), &run);
            naive.insert(WorkerIdx(worker), &run);
        }
        Op::Touch { chain, n } => writer.reader().touch(&tree_keys(chain, n)),
        Op::Punch { worker, chain, block } => {
            let keys = &tree_keys(chain, BLOCKS)[block as usize..][..1];
            writer.remove(WorkerIdx(worker), keys);
            naive.0.remove(&(WorkerIdx(worker), keys[0]));
        }
    }
}

proptest! {
    #[test]
    fn answers_as_a_naive_map_does(ops in proptest::collection::vec(op(WORKERS), 1..60), n in 1..BLOCKS) {
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
    fn answers_as_a_naive_map_does_where_many_hold_the_same(
        held in proptest::collection::vec((0..MANY_WORKERS, 0..2u64, 1..BLOCKS), 60..120),
        ops in proptest::collection::vec(op(MANY_WORKERS), 0..20),
    ) {
        let mut writer = IndexWriter::new(ROOMY);
        let mut naive = Naive::default();
        let tier = Tier::Ram;
        // Most workers hold the whole chain, so that some segments are held in the same way by all their workers.
        let store = |(worker, chain, n): (u32, u64, u64)| {
            let n = if n > 10 { BLOCKS } else { n };
            Op::Store { worker, chain, n, resume: Resume::EveryBlock, tier, slot: Some(worker as u16) }
        };
        for op in held.into_iter().map(store).chain(ops) {
            apply(op, &mut writer, &mut naive);
            writer.check_invariants();
            for (chain, n) in [(0, 3), (0, 20), (1, BLOCKS), (2, BLOCKS)] {
                let keys = tree_keys(chain, n);
                prop_assert_eq!(writer.reader().matches(&keys), naive.matches(MANY_WORKERS, &keys));
            }
        }
    }

    #[test]
    fn keeps_its_limit_and_never_invents_a_claim(
        ops in proptest::collection::vec(op_or_punch(), 1..60),
        bytes_max in 0usize..12_000,
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
