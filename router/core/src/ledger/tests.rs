//! Tests of requests in flight: each is recorded and released once, bursts spread, unavailable workers get nothing.

mod transfers;

use std::sync::Arc;
use std::time::{Duration, Instant};

use proptest::prelude::*;
use rand::SeedableRng;
use rand::rngs::SmallRng;
use warmpath_common::ids::{RequestId, SlotId};
use warmpath_common::model::ModelInfo;
use warmpath_common::summary::{Load, RunState, Tier};

use super::health::pause;
use super::records::sent_requests::UNREPORTED_AGE_MAX;
use super::*;
use crate::WorkerIdx;
use crate::fleet::{ConnectionState, WorkerView};
use crate::index::Match;
use crate::overload::admission::CapacityForecast;
use crate::overload::retry::WorkerFailure;
use crate::routing::cost::Unreported;
use crate::testing::{model, worker};

fn fleet(n: u32) -> FleetView {
    FleetView { workers: (0..n).map(|idx| Arc::new(worker(idx))).collect(), ..FleetView::default() }
}

fn id(text: &str) -> RequestId {
    RequestId::new(text).expect("a request id")
}

fn request<'a>(request_id: &'a RequestId, model: &'a ModelInfo, prompt: PromptView<'a>) -> RouteRequest<'a> {
    let (model_name, now) = (Some("m"), Instant::now());
    let (account, wanted, tried, awaited, n_sequences) = (None, None, &[], &[], 1);
    RouteRequest { request_id, model_name, account, model, wanted, prompt, tried, awaited, n_sequences, now }
}

struct World {
    ledger: Ledger,
    fleet: FleetView,
    now: Instant,
}

impl World {
    fn new(n_workers: u32) -> Self {
        Self { ledger: Ledger::new(LedgerOptions::default()), fleet: fleet(n_workers), now: Instant::now() }
    }

    fn send(&mut self, request_id: &str, tried: &[WorkerIdx]) -> Result<(Decision, Ticket), NoWorker> {
        self.send_prompt(request_id, PromptView::Estimated { n_tokens: 100 }, tried)
    }

    fn send_prompt(
        &mut self,
        request_id: &str,
        prompt: PromptView<'_>,
        tried: &[WorkerIdx],
    ) -> Result<(Decision, Ticket), NoWorker> {
        let (request_id, model) = (id(request_id), model());
        let request = RouteRequest { tried, now: self.now, ..request(&request_id, &model, prompt) };
        self.ledger.choose(&self.fleet, &request)
    }

    /// Returns the longest backoff of a prompt.
    fn backoff_max(&self, prompt: PromptView<'_>, tried: &[WorkerIdx]) -> Duration {
        let (request_id, model) = (id("asked"), model());
        let request = RouteRequest { tried, now: self.now, ..request(&request_id, &model, prompt) };
        let backoff_of = self.ledger.backoff(&self.fleet, &request, &mut SmallRng::seed_from_u64(1));
        let max = self.ledger.backoff_max(&self.fleet, &request);
        assert!(backoff_of <= max);
        max
    }

    /// Has the first worker report a request.
    fn accepted(&mut self, request_id: &str) {
        self.ledger.accepted(WorkerIdx(0), &id(request_id), self.now);
    }

    fn change(&mut self, idx: usize, change: impl FnOnce(&mut WorkerView)) {
        change(Arc::make_mut(&mut self.fleet.workers[idx]));
    }

    fn refusal(&mut self) -> NoWorker {
        self.send("refused", &[]).expect_err("no worker can take it")
    }
}

#[test]
fn a_burst_spreads_before_any_worker_has_reported() {
    let mut world = World::new(3);
    let mut counts = [0; 3];
    for n in 0..9 {
        let (decision, _ticket) = world.send(&format!("r{n}"), &[]).expect("workers are there");
        counts[decision.worker.0 as usize] += 1;
    }
    assert_eq!(counts, [3, 3, 3]);
}

#[test]
fn a_request_leaves_workers_to_the_requests_that_wait_for_them() {
    let mut world = World::new(3);
    let (request_id, model) = (id("later"), model());
    let mut choose = |awaited: &[u32]| {
        let awaited: Vec<_> = awaited.iter().copied().map(WorkerIdx).collect();
        let prompt = PromptView::Estimated { n_tokens: 100 };
        let request = RouteRequest { awaited: &awaited, now: world.now, ..request(&request_id, &model, prompt) };
        let chosen = world.ledger.choose(&world.fleet, &request);
        chosen.map(|(decision, _ticket)| decision.worker.0)
    };
    assert_eq!([choose(&[0, 1]), choose(&[0, 2]), choose(&[2, 1])], [Ok(2), Ok(1), Ok(0)]);
    let refusal = choose(&[0, 1, 2]).unwrap_err();
    assert!(refusal.is_overload() && refusal.busy == [0, 1, 2].map(WorkerIdx), "{refusal:?}");
}

#[test]
fn a_request_counts_as_often_as_it_asks_for_responses() {
    let mut world = World::new(1);
    let (request_id, model) = (id("many"), model());
    let mut send = |n_sequences| {
        let prompt = PromptView::Estimated { n_tokens: 100 };
        let request = RouteRequest { n_sequences, now: world.now, ..request(&request_id, &model, prompt) };
        let (decision, ticket) = world.ledger.choose(&world.fleet, &request).unwrap();
        let n_requests = world.ledger.sent.unreported(WorkerIdx(0)).n_requests;
        world.ledger.ended(ticket);
        (n_requests, decision.service_ms - decision.cost.prefill_ms)
    };
    let ((one, share_ms), (eight, shares_ms)) = (send(1), send(8));
    assert_eq!((one, eight, world.ledger.sent.unreported(WorkerIdx(0)).n_requests), (1, 8, 0));
    assert!(share_ms > 0.0 && (shares_ms - 8.0 * share_ms).abs() < 1e-6, "{share_ms} {shares_ms}");
}

#[test]
fn prefills_from_other_routers_decide_between_equal_workers() {
    let mut world = World::new(3);
    world.ledger.recent_work.fill(WorkerIdx(0), 500);
    world.ledger.recent_work.fill(WorkerIdx(1), 150);
    let mut chosen = Vec::new();
    for n in 0..3 {
        let (decision, ticket) = world.send(&format!("r{n}"), &[]).expect("workers are there");
        world.ledger.ended(ticket);
        chosen.push(decision.worker.0);
    }
    assert_eq!(chosen, [2, 2, 1], "100 tokens each");
}

#[test]
fn a_recorded_request_is_released_exactly_once() {
    let mut world = World::new(1);
    let one = Unreported { n_requests: 1, prefill_tokens: 100 };
    let (_, ticket) = world.send("a", &[]).expect("sent");
    assert_eq!(world.ledger.sent.unreported(WorkerIdx(0)), one);
    world.accepted("a");
    world.accepted("a");
    assert_eq!(world.ledger.sent.unreported(WorkerIdx(0)), Unreported::default());
    assert_eq!(world.ledger.sent.n_in_flight(WorkerIdx(0)), 1);
    world.ledger.ended(ticket);
    assert_eq!(world.ledger.sent.n_in_flight(WorkerIdx(0)), 0);

    let (_, ticket) = world.send("b", &[]).expect("sent");
    world.ledger.ended(ticket);
    world.accepted("b");
    assert_eq!(world.ledger.sent.unreported(WorkerIdx(0)), Unreported::default());

    let (_, _ticket) = world.send("c", &[]).expect("sent");
    world.now += UNREPORTED_AGE_MAX;
    let (_, _ticket) = world.send("d", &[]).expect("sent");
    assert_eq!(world.ledger.sent.unreported(WorkerIdx(0)), one, "c has expired, d is new");
}

#[test]
fn a_router_that_knows_of_others_waits_before_it_places_a_long_prompt() {
    let mut world = World::new(2);
    let cold = PromptView::Estimated { n_tokens: 1000 };
    assert_eq!(world.backoff_max(cold, &[]), Duration::from_millis(40), "no other router is known");
    let (_, _ticket) = world.send("own", &[]).expect("sent");
    world.accepted("own");
    assert_eq!(world.backoff_max(cold, &[]), Duration::ZERO, "there is no other router");
    world.accepted("another's");
    // A thousand tokens take a second.
    assert_eq!(world.backoff_max(cold, &[]), Duration::from_millis(40));
    assert_eq!(
        world.backoff_max(PromptView::Estimated { n_tokens: 475 }, &[]),
        Duration::ZERO,
        "too short for an announcement to arrive"
    );
    let keys: Vec<_> = (0..40).map(BlockKey).collect();
    let found = |worker, blocks| {
        let (tier, state) = (Tier::Resident, RunState::Ready);
        [Match { worker: WorkerIdx(worker), blocks, tier, state, slot: None }]
    };
    let held = |matches| PromptView::Known { n_tokens: 1000, keys: &keys, matches, media: &[] };
    assert_eq!(world.backoff_max(held(&found(1, 15)), &[]), Duration::from_micros(20_800), "480 tokens are there");
    assert_eq!(world.backoff_max(cold, &[WorkerIdx(0)]), Duration::ZERO, "a retry does not wait again");
    world.change(0, |worker| worker.link = ConnectionState::Connecting);
    assert_eq!(world.backoff_max(cold, &[]), Duration::from_millis(40), "the other routers may be back by then");
    world.now += Duration::from_secs(600);
    assert_eq!(world.backoff_max(cold, &[]), Duration::ZERO, "the other routers are gone");
    assert_eq!(World::new(1).backoff_max(cold, &[]), Duration::ZERO, "there is no choice");
}

#[test]
fn prompts_that_begin_alike_are_delayed_alike() {
    let world = World::new(2);
    let (request_id, model) = (id("asked"), model());
    let backoff = |keys: &[BlockKey], seed| {
        let prompt = PromptView::Known { n_tokens: 1000, keys, matches: &[], media: &[] };
        world.ledger.backoff(&world.fleet, &request(&request_id, &model, prompt), &mut SmallRng::seed_from_u64(seed))
    };
    let keys: Vec<_> = (1..41).map(BlockKey).collect();
    assert_eq!(backoff(&keys, 1), backoff(&keys[..20], 2));
    let all: std::collections::BTreeSet<_> = (0..20).map(|from| backoff(&keys[from..], 1)).collect();
    assert_eq!(all.len(), 20, "other prompts have other backoffs");
    assert!(all.iter().all(|backoff_of| *backoff_of <= Duration::from_millis(40)));
    assert!(all.last().expect("twenty") > &Duration::from_millis(30) && all.first() < Some(&Duration::from_millis(10)));
}

#[test]
fn two_requests_with_one_id_are_two() {
    let mut world = World::new(1);
    let (_, first) = world.send("a", &[]).expect("sent");
    let (_, second) = world.send("a", &[]).expect("sent");
    assert_eq!(world.ledger.sent.unreported(WorkerIdx(0)).n_requests, 2);
    world.ledger.ended(first);
    world.accepted("a");
    assert_eq!(world.ledger.sent.unreported(WorkerIdx(0)).n_requests, 0);
    world.ledger.ended(second);
    assert_eq!(world.ledger.sent.n_in_flight(WorkerIdx(0)), 0);
}

#[test]
fn the_decision_names_slot_block_and_tokens_that_are_counted_on() {
    let mut world = World::new(2);
    let keys: Vec<_> = (0..4).map(BlockKey).collect();
    let slot = Some(SlotId(2));
    let found = Match { worker: WorkerIdx(1), blocks: 4, tier: Tier::Resident, state: RunState::Ready, slot };
    let matches = [found];
    let prompt = |n_tokens| PromptView::Known { n_tokens, keys: &keys, matches: &matches, media: &[] };
    let (decision, _ticket) = world.send_prompt("a", prompt(140), &[]).expect("sent");
    assert_eq!(decision.worker, WorkerIdx(1));
    assert_eq!((decision.slot, decision.expected_block), (slot, Some(BlockKey(3))));
    assert_eq!((decision.cached_tokens, decision.reason), (128, ChoiceReason::Prefix));
    assert_eq!(world.ledger.sent.unreported(WorkerIdx(1)).prefill_tokens, 12);
    let (decision, _ticket) = world.send_prompt("b", prompt(128), &[]).expect("sent");
    assert_eq!((decision.cached_tokens, decision.expected_block), (96, Some(BlockKey(2))), "one token is computed");
    let (decision, _ticket) = world.send_prompt("c", prompt(128), &[WorkerIdx(1)]).expect("sent");
    assert_eq!((decision.worker, decision.reason), (WorkerIdx(0), ChoiceReason::Retry));
    assert_eq!((decision.slot, decision.expected_block, decision.cached_tokens), (None, None, 0));
}

#[test]
fn unavailable_workers_get_nothing_and_the_refusal_says_why() {
    let mut world = World::new(5);
    let now = world.now;
    world.change(0, |worker| worker.link = ConnectionState::Connecting);
    world.change(1, |worker| worker.link = ConnectionState::Down { since: now });
    world.change(2, |worker| worker.link = ConnectionState::Down { since: now });
    world.change(3, |worker| worker.load.draining = true);
    let (decision, _ticket) = world.send("a", &[]).expect("one worker is left");
    assert_eq!((decision.worker, decision.reason), (WorkerIdx(4), ChoiceReason::Only));
    let refused = world.send("b", &[WorkerIdx(4)]).expect_err("it has failed at the last one");
    let text = "no worker can take the request: 1 connecting, 2 down, 1 draining, 1 tried";
    assert_eq!(refused.to_string(), text);
    assert!(!refused.is_overload());
}

#[test]
fn a_failing_worker_is_avoided_until_a_probe_or_its_return() {
    let mut world = World::new(2);
    world.change(1, |worker| worker.load.free_cells = 0);
    let worker_of = |world: &mut World| {
        let (decision, ticket) = world.send("a", &[]).expect("sent");
        world.ledger.ended(ticket);
        decision.worker
    };
    assert_eq!(worker_of(&mut world), WorkerIdx(0));
    (0..3).for_each(|_| world.ledger.health.failed(WorkerIdx(0), WorkerFailure::Connect, world.now));
    assert_eq!(worker_of(&mut world), WorkerIdx(1));
    world.now += Duration::from_secs(1);
    assert_eq!(worker_of(&mut world), WorkerIdx(0), "a probe passes");
    assert_eq!(worker_of(&mut world), WorkerIdx(1), "only one probe passes");
    world.ledger.health.reconnected(WorkerIdx(0));
    assert_eq!(worker_of(&mut world), WorkerIdx(0), "a worker that is back gets requests");
}

#[test]
fn a_full_worker_gets_a_pause() {
    let mut world = World::new(1);
    let (decision, ticket) = world.send("a", &[]).expect("sent");
    world.ledger.health.failed(decision.worker, WorkerFailure::Full, world.now);
    world.ledger.ended(ticket);
    assert!(world.refusal().is_overload());
    world.now += pause::PAUSE_MIN;
    world.send("b", &[]).expect("the pause is over");
}

#[test]
fn a_name_that_one_worker_serves_is_routed_only_there() {
    let mut world = World::new(2);
    world.change(0, |worker| worker.model = Some(Arc::new(ModelInfo { names: vec!["other".into()], ..model() })));
    for n in 0..4 {
        assert_eq!(world.send(&format!("r{n}"), &[]).expect("sent").0.worker, WorkerIdx(1));
    }
}

/// Returns a fleet of measured workers without a free slot, in which a wait of up to two seconds counts as capacity.
fn full_world(n_workers: u32) -> World {
    let worker_wait_max = Some(Duration::from_secs(2));
    let mut world = World::new(n_workers);
    world.ledger = Ledger::new(LedgerOptions { worker_wait_max, ..LedgerOptions::default() });
    (0..n_workers as usize).for_each(|idx| world.change(idx, |worker| worker.load = full(3000)));
    world
}

fn full(queued_prefill_tokens: u64) -> Load {
    Load {
        queued_prefill_tokens,
        n_queued: 1,
        busy_slots: (0..4).map(SlotId).collect(),
        n_decoding: 4,
        ..crate::testing::idle()
    }
}

#[test]
fn a_request_that_no_worker_can_start_soon_waits_until_one_can() {
    let mut world = full_world(2);
    let refusal = world.refusal();
    assert_eq!(refusal.to_string(), "no worker can take the request: 2 busy");
    assert!(refusal.is_overload());
    world.change(1, |worker| worker.load = full(1000));
    assert_eq!(world.send("a", &[]).expect("one has capacity").0.worker, WorkerIdx(1));
    let keys: Vec<_> = (0..300).map(BlockKey).collect();
    let matches =
        [Match { worker: WorkerIdx(0), blocks: 290, tier: Tier::Resident, state: RunState::Ready, slot: None }];
    let prompt = PromptView::Known { n_tokens: 9600, keys: &keys, matches: &matches, media: &[] };
    let decision = world.send_prompt("b", prompt, &[]).expect("one has capacity").0;
    assert_eq!(decision.worker, WorkerIdx(0), "the worker that holds most of it, although it waits there");
}

#[test]
fn a_worker_without_room_gets_nothing_that_another_can_start_sooner() {
    let mut world = full_world(2);
    world.change(0, |worker| worker.load = full(10_000));
    world.change(1, |worker| worker.load = full(500));
    for n in 0..3 {
        let (decision, _ticket) = world.send(&n.to_string(), &[]).expect("one has capacity");
        assert_eq!(decision.worker, WorkerIdx(1), "request {n}");
    }
}

#[test]
fn a_worker_that_has_measured_nothing_gets_no_more_than_its_slots() {
    let mut world = full_world(2);
    world.change(1, |worker| worker.load = Load { free_cells: 1 << 20, ..Load::default() });
    for n in 0..4 {
        assert_eq!(world.send(&format!("r{n}"), &[]).expect("it has slots").0.worker, WorkerIdx(1));
    }
    assert!(world.refusal().is_overload());
    world.change(0, |worker| worker.load = full(100));
    assert_eq!(world.send("b", &[]).expect("one has capacity").0.worker, WorkerIdx(0), "not the unknown worker");
}

#[test]
fn a_worker_that_does_not_serve_is_no_overload() {
    let mut world = World::new(1);
    let (decision, ticket) = world.send("a", &[]).expect("sent");
    world.ledger.health.failed(decision.worker, WorkerFailure::Unready, world.now);
    world.ledger.ended(ticket);
    let refusal = world.refusal();
    assert_eq!(
        (refusal.to_string().as_str(), refusal.is_overload()),
        ("no worker can take the request: 1 unready", false)
    );
}

#[test]
fn a_worker_that_slows_down_loses_traffic_with_its_next_report() {
    let mut world = World::new(2);
    world.change(1, |worker| worker.load.free_cells = 0);
    let worker_of = |world: &mut World| {
        let (decision, ticket) = world.send("a", &[]).expect("sent");
        world.ledger.ended(ticket);
        decision.worker
    };
    assert_eq!(worker_of(&mut world), WorkerIdx(0));
    world.change(0, |worker| worker.load.rates.prefill_tokens_per_s = Some(900.0));
    assert_eq!(worker_of(&mut world), WorkerIdx(1));
}

/// Sends requests one after the other to a slow and a fast worker; returns how many each of them got.
///
/// `report` changes the worker's view to its report after the request with this number.
fn share(
    world: &mut World,
    (n_requests, every): (u64, Duration),
    report: impl Fn(&mut WorkerView, u64, Instant),
) -> [u32; 2] {
    world.change(0, |worker| worker.load.rates.prefill_tokens_per_s = Some(77.0));
    world.change(1, |worker| worker.load.rates.prefill_tokens_per_s = Some(478.0));
    let mut sent = [0, 0];
    for n in 0..n_requests {
        let (decision, ticket) = world.send(&n.to_string(), &[]).expect("sent");
        let (idx, now) = (decision.worker.0 as usize, world.now);
        sent[idx] += 1;
        world.ledger.ended(ticket);
        world.change(idx, |worker| report(worker, n, now));
        world.now += every;
    }
    sent
}

#[test]
fn a_worker_that_was_slow_in_a_burst_is_tried_again_when_traffic_is_light() {
    // After each uncached prompt its worker reports, and the other worker does not.
    let sent = share(&mut World::new(2), (24, Duration::from_secs(10)), |worker, n, now| {
        let mut load = worker.load.clone();
        // The rate was measured in the burst.
        load.rates.prefill_tokens_per_s = Some(478.0 + n as f32 / 100.0);
        worker.record_load(load, now);
    });
    assert!(sent[0] >= 6, "{sent:?}");
}

#[test]
fn a_worker_that_is_slow_gets_one_request_after_each_pause() {
    let mut world = World::new(2);
    let sent = share(&mut world, (100, Duration::from_secs(1)), |worker, _, now| {
        let computing = Load { running_prefill_tokens: 100, ..worker.load.clone() };
        let idle = worker.load.clone();
        worker.record_load(computing, now);
        worker.record_load(idle, now);
    });
    assert_eq!(sent, [1, 99], "once a minute");
    // While it computes, its own rate counts.
    let now = world.now;
    world.change(0, |worker| worker.record_load(Load { running_prefill_tokens: 1, ..worker.load.clone() }, now));
    assert_eq!(world.send("now", &[]).expect("sent").0.worker, WorkerIdx(1));
}

#[test]
fn the_capacity_forecast_has_the_shortest_wait_and_the_rate_of_all_workers() {
    let mut world = full_world(3);
    world.change(0, |worker| worker.load = full(5000));
    world.change(2, |worker| worker.link = ConnectionState::Connecting);
    let capacity_forecast = |world: &World| world.ledger.capacity_forecast(&world.fleet, Some(&model()), world.now);
    // A response of 100 tokens at 10 ms shared by 4 slots: 250 ms, twice; two workers serve.
    assert_eq!(capacity_forecast(&world), CapacityForecast { wait_ms: 3500.0, interval_ms: 125.0 });
    world.change(1, |worker| worker.load = crate::testing::idle());
    let (decision, _ticket) = world.send("a", &[]).expect("one has capacity");
    assert_eq!((decision.worker, decision.service_ms), (WorkerIdx(1), 350.0), "100 tokens of prompt and an answer");
    assert_eq!(capacity_forecast(&world).interval_ms, 1.0 / (1.0 / 250.0 + 1.0 / 350.0));
    (0..2).for_each(|idx| world.change(idx, |worker| worker.link = ConnectionState::Connecting));
    assert_eq!(
        capacity_forecast(&world),
        CapacityForecast { wait_ms: 2000.0, interval_ms: 0.0 },
        "no worker can be used"
    );
}

#[derive(Debug, Clone)]
enum Op {
    Send(u8),
    Accept(u8, u32),
    End(usize),
    Wait(u64),
}

proptest! {
    #[test]
    fn no_request_is_in_flight_when_all_have_ended(
        ops in proptest::collection::vec(
            prop_oneof![
                3 => (0u8..6).prop_map(Op::Send),
                2 => (0u8..6, 0u32..3).prop_map(|(id, worker)| Op::Accept(id, worker)),
                2 => (0usize..8).prop_map(Op::End),
                1 => (0u64..3000).prop_map(Op::Wait),
            ],
            0..80,
        )
    ) {
        let mut world = World::new(3);
        let mut open = Vec::new();
        for op in ops {
            match op {
                Op::Send(request) => open.push(world.send(&request.to_string(), &[]).expect("workers are there").1),
                Op::Accept(request, worker) => {
                    world.ledger.accepted(WorkerIdx(worker), &id(&request.to_string()), world.now);
                }
                Op::End(nth) if !open.is_empty() => world.ledger.ended(open.swap_remove(nth % open.len())),
                Op::End(_) => {}
                Op::Wait(ms) => world.now += Duration::from_millis(ms),
            }
            let in_flight: u32 = (0..3).map(|idx| world.ledger.sent.n_in_flight(WorkerIdx(idx))).sum();
            prop_assert_eq!(in_flight as usize, open.len());
            let unreported: u32 = (0..3).map(|idx| world.ledger.sent.unreported(WorkerIdx(idx)).n_requests).sum();
            let [n_unreported, n_ids] = world.ledger.sent.n_unreported();
            prop_assert_eq!(unreported as usize, n_unreported);
            prop_assert!(unreported <= in_flight);
            prop_assert!(n_ids <= n_unreported);
        }
        open.into_iter().for_each(|ticket| world.ledger.ended(ticket));
        for idx in (0..3).map(WorkerIdx) {
            prop_assert_eq!(world.ledger.sent.unreported(idx), Unreported::default());
        }
    }
}
