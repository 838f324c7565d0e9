//! Tests of transfers: which workers are peers and what is fetched, compared with a naive search.

use std::sync::Arc;
use std::time::Instant;

use proptest::prelude::*;
use warmpath_common::model::ModelInfo;
use warmpath_common::summary::Tier;

use super::*;
use crate::testing;

const LAYOUT: Fingerprint = Fingerprint([7; 32]);
const OTHER: Fingerprint = Fingerprint([8; 32]);

fn worker(idx: u32, layout: Option<Fingerprint>) -> WorkerView {
    let kv_transfer = layout.map(|layout| KvTransfer { layout, bytes_per_token: 1000 });
    WorkerView { model: Some(Arc::new(ModelInfo { kv_transfer, ..testing::model() })), ..testing::worker(idx) }
}

fn found(worker: u32, blocks: u32) -> Match {
    Match { worker: WorkerIdx(worker), blocks, tier: Tier::Ram, state: RunState::Ready, slot: None }
}

fn gap(own_blocks: u32) -> TransferGap {
    TransferGap { own_blocks, blocks_max: 100, block_size_tokens: 10, prefill_tokens_per_ms: 2.0 }
}

fn peer(worker: u32, blocks: u32) -> TransferPeer {
    TransferPeer { worker: WorkerIdx(worker), blocks, layout: LAYOUT }
}

#[test]
fn only_available_workers_that_exchange_state_are_peers() {
    let now = Instant::now();
    type Change = fn(&mut WorkerView, Instant);
    let changes: [(&str, Change, bool); 8] = [
        ("as it is", |_, _| {}, true),
        ("draining", |worker, _| worker.load.draining = true, true),
        ("stale", |worker, now| worker.link = ConnectionState::Stale { since: now }, false),
        ("down", |worker, now| worker.link = ConnectionState::Down { since: now }, false),
        ("not connected", |worker, _| worker.link = ConnectionState::Connecting, false),
        ("without state", |worker, _| *worker = self::worker(0, None), false),
        ("unknown", |worker, _| worker.model = None, false),
        ("stock", |worker, _| worker.stock = Some(crate::stock::TokenizerSource::Vocabulary), false),
    ];
    for (what, change, is_peer) in changes {
        let mut one = worker(0, Some(LAYOUT));
        change(&mut one, now);
        let fleet = FleetView { workers: vec![Arc::new(one)], ..FleetView::default() };
        let expected: &[TransferPeer] = if is_peer { &[peer(0, 5)] } else { &[] };
        assert_eq!(peers(&fleet, &[found(0, 5)]), expected, "{what}");
    }
}

#[test]
fn pending_blocks_are_not_sent_and_the_longest_prefixes_are_compared() {
    let fleet =
        FleetView { workers: (0..9).map(|idx| Arc::new(worker(idx, Some(LAYOUT)))).collect(), ..FleetView::default() };
    let filling = Match { state: RunState::Filling, ..found(8, 90) };
    let matches: Vec<Match> = std::iter::once(filling).chain((0..8).map(|idx| found(idx, 80 - idx))).collect();
    let expected: Vec<TransferPeer> = (0..4).map(|idx| peer(idx, 80 - idx)).collect();
    assert_eq!(peers(&fleet, &matches), expected);
    assert_eq!(peers(&fleet, &[found(30, 5)]), [], "the index knows a worker that has left");
}

#[test]
fn a_transfer_takes_the_bytes_that_are_missing_at_the_bandwidth_of_the_pair() {
    let at =
        |own_blocks, rate: f64| Transfer::best(&worker(9, Some(LAYOUT)), gap(own_blocks), &[peer(0, 50)], |_| rate);
    // 300 tokens of 1,000 bytes.
    assert_eq!(at(20, 10_000.0), Some(Transfer { peer: WorkerIdx(0), blocks: 50, ms: LATENCY_MS + 30.0 }));
    assert_eq!(at(20, 2_001.0), None, "computing takes no longer");
    assert_eq!(at(50, 10_000.0), None, "nothing is missing");
    assert_eq!(at(60, 10_000.0), None);
    assert_eq!(at(20, 0.0), None, "it failed");
    assert_eq!(at(20, f64::NAN), None);
}

#[test]
fn no_worker_fetches_from_itself_or_state_of_another_layout() {
    let best = |layout, peers: &[TransferPeer]| Transfer::best(&worker(1, layout), gap(0), peers, |_| 10_000.0);
    assert_eq!(best(Some(LAYOUT), &[peer(1, 50)]), None);
    assert_eq!(best(Some(OTHER), &[peer(0, 50)]), None);
    assert_eq!(best(None, &[peer(0, 50)]), None);
    let from = |peers: &[TransferPeer]| best(Some(LAYOUT), peers).map(|transfer| transfer.peer);
    assert_eq!(from(&[peer(1, 60), peer(0, 50)]), Some(WorkerIdx(0)));
    assert_eq!(from(&[peer(2, 50), peer(0, 50)]), Some(WorkerIdx(2)), "of equal ones the first");
}

#[test]
fn the_last_block_of_a_prompt_that_a_peer_holds_completely_is_computed() {
    let whole = TransferGap { blocks_max: 49, ..gap(0) };
    let transfer = Transfer::best(&worker(1, Some(LAYOUT)), whole, &[peer(0, 50)], |_| 10_000.0);
    assert_eq!(transfer.map(|transfer| transfer.blocks), Some(49));
}

proptest! {
    #[test]
    fn the_transfer_saves_as_much_as_the_best_of_all(
        own_blocks in 0u32..20,
        held in prop::collection::vec((0u32..6, 1u32..30, prop::bool::ANY, 0.0f64..20_000.0), 0..6),
    ) {
        let peers: Vec<TransferPeer> = held.iter().map(|&(worker, blocks, same, _)| TransferPeer {
            worker: WorkerIdx(worker), blocks, layout: if same { LAYOUT } else { OTHER },
        }).collect();
        let rates = held.iter().map(|&(worker, .., rate)| (worker, rate));
        let rates: std::collections::HashMap<u32, f64> = rates.collect();
        let gap = TransferGap { blocks_max: 25, ..gap(own_blocks) };
        let best = Transfer::best(&worker(0, Some(LAYOUT)), gap, &peers, |peer| rates[&peer.0]);
        let saved = |blocks: u32, peer: u32| {
            let tokens = f64::from(blocks.min(25)) * 10.0 - f64::from(own_blocks) * 10.0;
            tokens / 2.0 - (LATENCY_MS + tokens * 1000.0 / rates[&peer])
        };
        let naive = peers
            .iter()
            .filter(|peer| peer.worker.0 != 0 && peer.layout == LAYOUT && peer.blocks.min(25) > own_blocks)
            .map(|peer| saved(peer.blocks, peer.worker.0))
            .filter(|saved| *saved > 0.0)
            .fold(0.0, f64::max);
        match best {
            None => prop_assert_eq!(naive, 0.0),
            Some(best) => {
                prop_assert!((saved(best.blocks, best.peer.0) - naive).abs() < 1e-6);
                prop_assert!(naive > 0.0 && best.blocks > own_blocks);
            }
        }
    }
}
