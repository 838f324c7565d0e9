//! Tests of the cost: each term by itself, and extremes.

use proptest::prelude::*;
use warmpath_common::ids::SlotId;

use super::*;
use crate::testing::idle;

const SPEEDS: Speeds =
    Speeds { prefill_tokens_per_ms: 1.0, decode_step_ms: 10.0, answer_tokens: 100.0, encode_ms_per_token: 2.0 };

fn cost(work: PrefillWork, load: &Load, unreported: Unreported) -> Cost {
    Cost::of(work, worker_load(load, unreported))
}

fn worker_load(load: &Load, unreported: Unreported) -> WorkerLoad<'_> {
    WorkerLoad { load, unreported, n_slots: 4, speeds: SPEEDS }
}

const FLEET: FleetMeans = FleetMeans { concurrency: 2.0, prefill_tokens_per_ms: 1.0, reuse_ratio: 0.5 };
const COLD: PrefillWork = PrefillWork { prompt_tokens: 1000, cached_tokens: 0, fetched_tokens: 0, encoded_tokens: 0 };

#[test]
fn an_idle_worker_in_an_idle_fleet_costs_its_prefill() {
    let expected = Cost { prefill_ms: 1000.0, ..Cost::default() };
    assert_eq!(cost(COLD, &idle(), Unreported::default()), expected);
    assert_eq!(expected.total_ms(), 1000.0);
}

fn pressure(work: PrefillWork, worker: &WorkerLoad<'_>, fleet: FleetMeans) -> f64 {
    let mut cost = Cost::of(work, *worker);
    cost.add_pressure(work, worker, &fleet);
    cost.pressure_ms
}

#[test]
fn uncached_work_costs_its_delay_and_its_eviction() {
    let with =
        |free_cells, work| pressure(work, &worker_load(&Load { free_cells, ..idle() }, Unreported::default()), FLEET);
    assert_eq!(with(0, COLD), 18_500.0);
    assert_eq!(with(500, COLD), 18_250.0, "half of it has room");
    assert_eq!(with(5000, COLD), 18_000.0);
    assert_eq!(with(0, PrefillWork { cached_tokens: 1000, ..COLD }), 0.0);
    let (fast, full) = (FleetMeans { prefill_tokens_per_ms: 2.0, ..FLEET }, Load { free_cells: 0, ..idle() });
    let fetching = PrefillWork { fetched_tokens: 400, ..COLD };
    let (delay, eviction) = (18.0 * 300.0, 0.5 * (300.0 + 19.0 * 200.0));
    assert_eq!(pressure(fetching, &worker_load(&full, Unreported::default()), fast), delay + eviction);
}

#[test]
fn the_pressure_is_at_the_fleet_s_rate_whatever_the_worker_s_own_rate_and_queue_are() {
    let at = |n_prompts: u16, prefill_tokens_per_ms| {
        let busy_slots = (0..n_prompts).map(SlotId).collect();
        let load = Load { running_prefill_tokens: 1_000_000, busy_slots, free_cells: 5000, ..idle() };
        let speeds = Speeds { prefill_tokens_per_ms, ..SPEEDS };
        pressure(COLD, &WorkerLoad { speeds, ..worker_load(&load, Unreported::default()) }, FLEET)
    };
    assert_eq!(at(2, 1.0), 18_000.0);
    assert_eq!(at(4, 1.0), 18_000.0);
    assert_eq!(at(2, 0.3), 18_000.0);
}

#[test]
fn an_idle_worker_delays_no_request_however_busy_the_others_are() {
    let load = Load { free_cells: 5000, ..idle() };
    let idle = worker_load(&load, Unreported::default());
    let at = |concurrency| pressure(COLD, &idle, FleetMeans { concurrency, ..FLEET });
    assert_eq!(at(100.0), at(2.0));
    assert!(at(1.0) < at(2.0));
}

#[test]
fn each_prefill_ahead_counts_as_at_most_three_of_the_request_s_own() {
    let busy = Load { running_prefill_tokens: 60_000, busy_slots: vec![SlotId(0), SlotId(1)], ..idle() };
    assert_eq!(cost(COLD, &busy, Unreported::default()).wait_ms, 6000.0);
    let hit = PrefillWork { cached_tokens: 900, ..COLD };
    assert_eq!(cost(hit, &busy, Unreported::default()).wait_ms, 600.0);
    let little = Load { running_prefill_tokens: 150, ..busy };
    assert_eq!(cost(COLD, &little, Unreported::default()).wait_ms, 150.0);
}

#[test]
fn cached_blocks_are_not_computed() {
    let hit = PrefillWork { cached_tokens: 800, ..COLD };
    assert_eq!(cost(hit, &idle(), Unreported::default()), Cost { prefill_ms: 200.0, ..Cost::default() });
}

#[test]
fn fetched_blocks_are_not_computed_but_evict_others() {
    let fetched = PrefillWork { fetched_tokens: 800, ..COLD };
    assert_eq!(cost(fetched, &idle(), Unreported::default()), Cost { prefill_ms: 200.0, ..Cost::default() });
    let full = Load { free_cells: 0, ..idle() };
    let at = |load, work| pressure(work, &worker_load(load, Unreported::default()), FLEET);
    // 18 times what is computed, and half of what is evicted, of which a copy costs 19 times as much.
    assert_eq!(at(&full, fetched), 18.0 * 200.0 + 0.5 * (200.0 + 19.0 * 800.0));
    assert_eq!(at(&full, PrefillWork { cached_tokens: 800, ..COLD }), 18.0 * 200.0 + 0.5 * 200.0);
    assert_eq!(at(&idle(), fetched), 18.0 * 200.0);
}

#[test]
fn images_that_are_not_reused_cost_their_encoding() {
    let media = PrefillWork { encoded_tokens: 300, ..COLD };
    let expected = Cost { encode_ms: 600.0, prefill_ms: 1000.0, ..Cost::default() };
    assert_eq!(cost(media, &idle(), Unreported::default()), expected);
    assert_eq!((expected.ttft_ms(), expected.total_ms()), (1600.0, 1600.0));
}

#[test]
fn requests_sent_but_not_reported_count_as_queued() {
    let queued = Load { queued_prefill_tokens: 300, n_queued: 1, ..idle() };
    let unreported = Unreported { n_requests: 1, prefill_tokens: 300 };
    assert_eq!(cost(COLD, &queued, Unreported::default()), cost(COLD, &idle(), unreported));
    assert_eq!(cost(COLD, &idle(), unreported).wait_ms, 300.0);
}

#[test]
fn without_a_free_slot_it_waits_for_one() {
    let busy = |n: u16| Load { busy_slots: (0..n).map(SlotId).collect(), n_decoding: u32::from(n), ..idle() };
    assert_eq!(cost(COLD, &busy(3), Unreported::default()).wait_ms, 0.0);
    assert_eq!(cost(COLD, &busy(4), Unreported::default()).wait_ms, 250.0, "a quarter of an answer of 1 s");
    let one_ahead = Load { n_queued: 1, ..busy(4) };
    assert_eq!(cost(COLD, &one_ahead, Unreported::default()).wait_ms, 500.0);
    let full = cost(COLD, &busy(4), Unreported::default());
    assert_eq!((full.slowdown_ms, full.total_ms()), (40.0, 1290.0));
}

#[test]
fn a_full_worker_starts_a_request_after_its_queue_of_which_the_cost_counts_a_part() {
    let full = Load { running_prefill_tokens: 60_000, n_queued: 1, busy_slots: (0..4).map(SlotId).collect(), ..idle() };
    let worker = worker_load(&full, Unreported::default());
    assert_eq!(worker.queue_delay_ms(), 60_500.0);
    let speeds = Speeds { prefill_tokens_per_ms: 2.0, ..SPEEDS };
    assert_eq!(WorkerLoad { speeds, ..worker }.queue_delay_ms(), 30_500.0);
    let hit = PrefillWork { cached_tokens: 900, ..COLD };
    assert_eq!(cost(hit, &full, Unreported::default()).wait_ms, 2000.0, "five beside it and two slots");
    let sent = Unreported { n_requests: 3, prefill_tokens: 5000 };
    assert_eq!(worker_load(&idle(), sent).queue_delay_ms(), 0.0);
    let one_more = Unreported { n_requests: 4, ..sent };
    assert_eq!(worker_load(&idle(), one_more).queue_delay_ms(), 5250.0);
}

#[test]
fn absurd_numbers_do_not_overflow() {
    let load = Load { queued_prefill_tokens: u64::MAX, running_prefill_tokens: u64::MAX, n_queued: u32::MAX, ..idle() };
    let unreported = Unreported { n_requests: u32::MAX, prefill_tokens: u64::MAX };
    assert!(cost(COLD, &load, unreported).total_ms().is_finite());
}

#[test]
fn an_unmeasured_worker_counts_as_fast_as_the_best() {
    let rates = |rate, encode_ms_per_token| Rates {
        prefill_tokens_per_s: rate,
        answer_tokens: Some(10.0),
        encode_ms_per_token,
        ..Rates::default()
    };
    let fleet = [rates(Some(500.0), Some(3.0)), rates(None, None), rates(Some(4000.0), Some(0.5))];
    let assumed = Speeds::assumed(fleet.iter());
    assert_eq!(
        Speeds::measured_or(&Rates::default(), assumed),
        Speeds { prefill_tokens_per_ms: 4.0, decode_step_ms: 30.0, answer_tokens: 10.0, encode_ms_per_token: 0.5 }
    );
    assert_eq!(Speeds::measured_or(&fleet[0], assumed).prefill_tokens_per_ms, 0.5);
    assert_eq!(Speeds::assumed([].iter()), SPEEDS_DEFAULT);
}

#[test]
fn an_old_time_to_encode_fades_too() {
    let own = Speeds { encode_ms_per_token: 8.0, ..SPEEDS };
    let at = |age| own.faded(SPEEDS, Duration::from_secs(age)).encode_ms_per_token;
    assert_eq!(at(30), 8.0);
    assert!(at(1_000_000) < 2.01, "{}", at(1_000_000));
}

proptest! {
    #[test]
    fn an_old_rate_fades_towards_the_best_and_a_fresh_one_does_not(
        own in 0.01f64..10.0,
        more in 0.0f64..10.0,
        ages in [0u64..1_000_000, 0u64..1_000_000],
    ) {
        let speeds = |prefill_tokens_per_ms| Speeds { prefill_tokens_per_ms, ..SPEEDS_DEFAULT };
        let best = own + more;
        let at = |age| speeds(own).faded(speeds(best), Duration::from_millis(age)).prefill_tokens_per_ms;
        let [earlier, later] = [ages[0].min(ages[1]), ages[0].max(ages[1])].map(at);
        prop_assert!(own <= earlier && earlier <= later && later <= best + 1e-9);
        prop_assert_eq!(at(30_000), own);
        prop_assert!((at(60_000) - (own + best) / 2.0).abs() < 1e-9);
        prop_assert!(best - at(1_000_000) < 1e-6);
    }
}
