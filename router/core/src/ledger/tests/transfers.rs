//! Tests of the choice with KV transfers: when a worker fetches, the work that is recorded for it, and the bandwidth
//! that is learnt.

use warmpath_common::model::{Fingerprint, KvTransfer};

use super::*;

const N_BLOCKS: u32 = 62;
const WORKER: WorkerIdx = WorkerIdx(0);
const PEER: WorkerIdx = WorkerIdx(1);

/// Returns an idle worker and a busy one that exchange state, at 1 MB a millisecond.
fn idle_and_busy() -> World {
    let mut world = World::new(2);
    world.ledger = Ledger::new(LedgerOptions { kv_bytes_per_ms: Some(1e6), ..LedgerOptions::default() });
    let kv_transfer = Some(KvTransfer { layout: Fingerprint([5; 32]), bytes_per_token: 100_000 });
    (0..2).for_each(|idx| {
        world.change(idx, |worker| worker.model = Some(Arc::new(ModelInfo { kv_transfer, ..model() })));
    });
    let load = &mut Arc::make_mut(&mut world.fleet.workers[1]).load;
    (load.n_queued, load.queued_prefill_tokens) = (60, 6_000);
    world
}

fn keys() -> Vec<BlockKey> {
    (0..u64::from(N_BLOCKS)).map(BlockKey).collect()
}

/// Place of the prompt's medium.
const IMAGE: std::ops::Range<u32> = 100..200;

/// Chooses for a prompt of 2,000 tokens of which the busy worker holds all but 16.
fn choose_for(world: &mut World, request_id: &str) -> (Decision, Ticket) {
    let (keys, state, tier) = (keys(), RunState::Ready, Tier::Ram);
    let matches = [Match { worker: WorkerIdx(1), blocks: N_BLOCKS, tier, state, slot: None }];
    let prompt = PromptView::Known { n_tokens: 2000, keys: &keys, matches: &matches, media: &[IMAGE] };
    world.send_prompt(request_id, prompt, &[]).expect("sent")
}

#[test]
fn an_idle_worker_fetches_the_state_of_a_busy_one_and_siblings_reuse_it() {
    let mut world = idle_and_busy();
    let (decision, _ticket) = choose_for(&mut world, "a");
    assert_eq!((decision.worker, decision.reason), (WorkerIdx(0), ChoiceReason::Transfer));
    assert_eq!((decision.cached_tokens, decision.fetched_tokens), (1984, 1984));
    assert_eq!((decision.slot, decision.expected_block), (None, None), "the worker holds nothing yet");
    let transfer = decision.transfer.expect("the state is fetched");
    assert_eq!((transfer.peer, transfer.blocks), (WorkerIdx(1), N_BLOCKS));
    assert_eq!((decision.cost.transfer_ms, decision.cost.prefill_ms), (5.0 + 198.4, 16.0));
    assert_eq!(decision.cost.encode_ms, 0.0, "the medium comes with the rest");
    assert_eq!(world.ledger.sent.unreported(WorkerIdx(0)).prefill_tokens, 16);
    let (sibling, _ticket) = choose_for(&mut world, "b");
    assert_eq!((sibling.worker, sibling.reason, sibling.transfer), (WorkerIdx(0), ChoiceReason::Prefix, None));
    assert_eq!(sibling.cached_tokens, 1984);
}

#[test]
fn nothing_is_fetched_where_transfers_are_off_or_computing_is_as_fast() {
    let mut world = idle_and_busy();
    world.ledger = Ledger::new(LedgerOptions::default());
    assert_eq!(choose_for(&mut world, "a").0.transfer, None);
    let mut world = idle_and_busy();
    world.ledger = Ledger::new(LedgerOptions { kv_bytes_per_ms: Some(1e5), ..LedgerOptions::default() });
    assert_eq!(choose_for(&mut world, "a").0.transfer, None);
}

#[test]
fn a_holder_that_is_idle_is_not_copied() {
    let mut world = idle_and_busy();
    world.change(1, |worker| worker.load = crate::testing::idle());
    let (decision, _ticket) = choose_for(&mut world, "a");
    assert_eq!((decision.worker, decision.reason), (WorkerIdx(1), ChoiceReason::Prefix));
}

#[test]
fn a_pair_that_failed_is_not_used_for_a_while_and_a_slow_one_costs_more() {
    let mut world = idle_and_busy();
    world.ledger.transfer_rates.failed(WORKER, PEER, world.now);
    let (decision, ticket) = choose_for(&mut world, "a");
    assert_eq!(decision.transfer, None);
    world.ledger.ended(ticket);
    world.now += Duration::from_secs(90);
    let (decision, ticket) = choose_for(&mut world, "b");
    assert!(decision.transfer.is_some(), "it is tried again");
    world.ledger.ended(ticket);
    world.ledger.transfer_rates.fetched(WORKER, PEER, 200_000_000, 400.0, world.now);
    let (decision, _ticket) = choose_for(&mut world, "c");
    assert_eq!(decision.cost.transfer_ms, 5.0 + 396.8);
}

#[test]
fn pending_blocks_cannot_be_fetched_yet() {
    let mut world = idle_and_busy();
    let keys = keys();
    let prompt = PromptView::Known { n_tokens: 2000, keys: &keys, matches: &[], media: &[] };
    let (_, _ticket) = world.send_prompt("a", prompt, &[WorkerIdx(0)]).expect("sent");
    let (decision, _ticket) = world.send_prompt("b", prompt, &[WorkerIdx(1)]).expect("sent");
    assert_eq!((decision.worker, decision.transfer), (WorkerIdx(0), None));
}
