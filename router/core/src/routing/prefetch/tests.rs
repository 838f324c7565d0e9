//! Tests of prefetches: which workers are asked for prefixes, which fetch, and which prefixes each of them gets.

use std::sync::Arc;

use proptest::prelude::*;
use warmpath_common::ids::Token;
use warmpath_common::model::{KvTransfer, ModelInfo};
use warmpath_common::summary::Tier;

use super::*;
use crate::fleet::{ConnectionState, KnownBlocks, WorkerView};
use crate::testing;

const BLOCK: u32 = 2;
const NAMES: [&str; 4] = ["a", "b", "c", "d"];

fn worker(idx: u32, n_blocks: usize) -> WorkerView {
    let kv_transfer = Some(KvTransfer { layout: Fingerprint([7; 32]), bytes_per_token: 1000 });
    let model = Some(Arc::new(ModelInfo { kv_transfer, ..testing::model() }));
    WorkerView { model, blocks: KnownBlocks { n_blocks, ..KnownBlocks::default() }, ..testing::worker(idx) }
}

fn fleet(workers: Vec<WorkerView>) -> FleetView {
    FleetView { workers: workers.into_iter().map(Arc::new).collect(), ..FleetView::default() }
}

fn prefix(tokens: impl IntoIterator<Item = Token>) -> HotPrefix {
    HotPrefix { root: BlockHash([0; 32]), tokens: tokens.into_iter().collect() }
}

fn receivers(n: usize) -> Vec<Receiver<'static>> {
    (0..n).map(|idx| Receiver { idx: WorkerIdx(idx as u32), name: NAMES[idx] }).collect()
}

#[test]
fn new_workers_fetch_from_the_fullest_and_leaving_workers_prefixes_go_to_the_rest() {
    let mut workers: Vec<WorkerView> = (0..8).map(|idx| worker(idx, idx as usize)).collect();
    workers[5].load.draining = true;
    workers[6].model.as_mut().map(Arc::make_mut).expect("a model").kv_transfer = None;
    workers[7].link = ConnectionState::Connecting;
    workers[4].is_leaving = true;
    let fleet = fleet(workers);
    let indexes = |found: Vec<WorkerIdx>| found.into_iter().map(|worker| worker.0).collect::<Vec<_>>();
    assert_eq!(indexes(sources(&fleet, WorkerIdx(0))), [5, 4, 3, 2]);
    assert_eq!(indexes(super::receivers(&fleet, WorkerIdx(5))), [0, 1, 2, 3]);
    for nobody in [6, 7, 9] {
        assert!(
            sources(&fleet, WorkerIdx(nobody)).is_empty() && super::receivers(&fleet, WorkerIdx(nobody)).is_empty()
        );
    }
}

#[test]
fn lists_take_turns_and_no_prefix_is_sent_twice() {
    let [one, two] = [WorkerIdx(1), WorkerIdx(2)];
    let (shared, longer) = (prefix(0..4), prefix(0..6));
    let (first, second) = (prefix(10..14), prefix(20..24));
    let list = |worker, prefixes: &[&HotPrefix]| HotPrefixes {
        worker,
        prefixes: prefixes.iter().map(|&prefix| prefix.clone()).collect(),
    };
    let lists = vec![list(one, &[&longer, &first, &second]), list(two, &[&shared, &second]), list(WorkerIdx(3), &[])];
    assert_eq!(merge(lists, BLOCK), [(one, longer), (one, first), (two, second)]);
    let too_long = prefix(0..LIST_TOKENS_MAX as u32 + 2);
    let long = vec![list(one, &[&too_long, &prefix(0..2)]), list(two, &[&prefix(4..6)])];
    assert_eq!(merge(long, BLOCK), [(two, prefix(4..6))]);
}

#[test]
fn a_prefix_goes_to_the_worker_that_holds_most_of_it_unless_one_holds_it_whole() {
    let found = |worker, blocks, state| Match { worker: WorkerIdx(worker), blocks, tier: Tier::Ram, state, slot: None };
    let check = |matches: &[Match], expected: Option<u32>| {
        let shares = divide(vec![prefix(0..8)], &receivers(3), BLOCK, |_| matches.to_vec());
        let told: Vec<u32> = shares.keys().map(|worker| worker.0).collect();
        assert_eq!(told, expected.into_iter().collect::<Vec<_>>(), "{matches:?}");
    };
    check(&[], Some(0));
    check(&[found(1, 2, RunState::Ready), found(0, 1, RunState::Ready)], Some(1));
    check(&[found(1, 4, RunState::Ready)], None);
    check(&[found(1, 4, RunState::Filling)], Some(0));
    // The leaving worker itself and workers that are no receivers do not count.
    check(&[found(9, 4, RunState::Ready)], Some(0));
    assert!(divide(vec![prefix(0..8)], &[], BLOCK, |_| Vec::new()).is_empty());
}

#[test]
fn prefixes_that_begin_alike_stay_together_and_others_are_spread() {
    let alike = [prefix(0..8), prefix((0..6).chain([50, 51]))];
    let others = [prefix(100..108), prefix(200..208), prefix(300..308)];
    let all = [&alike[..], &others].concat();
    let shares = divide(all, &receivers(3), BLOCK, |_| Vec::new());
    assert_eq!(shares[&WorkerIdx(0)], alike);
    let n_told: Vec<usize> = (0..3).map(|idx| shares[&WorkerIdx(idx)].len()).collect();
    assert_eq!(n_told, [2, 2, 1]);
}

proptest! {
    #[test]
    fn every_block_of_a_leaving_worker_gets_one_heir_and_all_routers_agree(
        prefixes in prop::collection::vec(prop::collection::vec(0u32..2, 2..16), 1..12),
        held in prop::collection::vec((0usize..12, 0usize..4, 1u32..8), 0..6),
        n_receivers in 1usize..4,
        turned in 0usize..4,
    ) {
        let prefixes: Vec<HotPrefix> = prefixes.into_iter().map(prefix).collect();
        let chains: Vec<Vec<BlockHash>> =
            prefixes.iter().map(|prefix| block_chain(&prefix.root, &prefix.tokens, BLOCK)).collect();
        let mut holds: HashSet<(usize, BlockKey)> = HashSet::new();
        let in_range = |(idx, receiver, _): &(usize, usize, u32)| *idx < chains.len() && *receiver < n_receivers;
        for (idx, receiver, n) in held.into_iter().filter(in_range) {
            holds.extend(chains[idx].iter().take(n as usize).map(|hash| (receiver, hash.key())));
        }
        // Another router has other numbers for the workers.
        let divided = |turned: usize| {
            let number = |receiver: usize| WorkerIdx(((receiver + turned) % n_receivers) as u32);
            let receivers: Vec<_> =
                (0..n_receivers).map(|receiver| Receiver { idx: number(receiver), name: NAMES[receiver] }).collect();
            let shares = divide(prefixes.clone(), &receivers, BLOCK, |keys| {
                let n_held = |receiver| keys.iter().take_while(|key| holds.contains(&(receiver, **key))).count() as u32;
                let found = |receiver| Match {
                    worker: number(receiver),
                    blocks: n_held(receiver),
                    tier: Tier::Ram,
                    state: RunState::Ready,
                    slot: None,
                };
                (0..n_receivers).map(found).filter(|found| found.blocks > 0).collect()
            });
            let share_of = |receiver| shares.get(&number(receiver)).cloned().unwrap_or_default();
            (0..n_receivers).map(share_of).collect::<Vec<_>>()
        };
        let shares = divided(0);
        prop_assert_eq!(&shares, &divided(turned));
        for (receiver, share) in shares.iter().enumerate() {
            for prefix in share {
                let chain = block_chain(&prefix.root, &prefix.tokens, BLOCK);
                holds.extend(chain.iter().map(|hash| (receiver, hash.key())));
            }
        }
        for chain in chains.iter().filter(|chain| !chain.is_empty()) {
            let is_whole = |receiver| chain.iter().all(|hash| holds.contains(&(receiver, hash.key())));
            prop_assert!((0..n_receivers).any(is_whole));
        }
    }
}
