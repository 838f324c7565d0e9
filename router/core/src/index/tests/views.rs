//! Tests of replacing a worker's view part by part while other workers change.

use super::*;

/// Worker whose view is replaced.
const REPLACED: WorkerIdx = WorkerIdx(0);

/// Returns whether an operation changes the blocks of the worker whose view is being replaced.
fn is_its(op: &Op) -> bool {
    match op {
        Op::Store { worker, .. }
        | Op::Grow { worker, .. }
        | Op::Trim { worker, .. }
        | Op::Replace { worker, .. }
        | Op::Forget { worker }
        | Op::Punch { worker, .. } => WorkerIdx(*worker) == REPLACED,
        Op::Touch { .. } => false,
    }
}

proptest! {
    #[test]
    fn a_view_inserted_in_parts_among_other_workers_changes_is_complete(
        before in proptest::collection::vec(op(WORKERS), 0..30),
        view in proptest::collection::vec((0..CHAINS, 1..BLOCKS), 0..6),
        meanwhile in proptest::collection::vec(op(WORKERS), 0..20),
        n_blocks_max in 1..60usize,
    ) {
        let mut writer = IndexWriter::new(ROOMY);
        let mut naive = Naive::default();
        before.into_iter().for_each(|op| apply(op, &mut writer, &mut naive));
        let runs: Vec<Run> =
            view.into_iter().map(|(chain, n)| run(tree_keys(chain, n), Resume::EveryBlock, 1)).collect();
        let mut replacement = writer.begin(REPLACED, runs.clone());
        let mut meanwhile = meanwhile.into_iter().filter(|op| !is_its(op));
        while !replacement.is_done() {
            writer.insert_part(&mut replacement, n_blocks_max);
            writer.check_invariants();
            meanwhile.next().into_iter().for_each(|op| apply(op, &mut writer, &mut naive));
            writer.check_invariants();
        }
        naive.0.retain(|&(of, _), _| of != REPLACED);
        runs.iter().for_each(|run| naive.insert(REPLACED, run));
        let held: Vec<BlockKey> = naive.0.keys().filter(|(of, _)| *of == REPLACED).map(|(_, key)| *key).collect();
        prop_assert_eq!(writer.digest_of(REPLACED), Some(Digest::of(&held)));
        for chain in 0..CHAINS {
            let keys = tree_keys(chain, BLOCKS);
            prop_assert_eq!(writer.reader().matches(&keys), naive.matches(WORKERS, &keys));
        }
    }
}
