//! Tests of the simulation: results that can be computed by hand, conservation, determinism.

use clap::ValueEnum as _;

use super::machine::Machine;
use super::outcome::outcome;
use super::trace::Line;
use super::world::{History, Served};
use super::*;

const BLOCK_TOKENS: u32 = 100;

/// A worker that computes a token per millisecond and decodes in no time.
pub(super) const WORKER: worker::Shape = worker::Shape {
    n_slots: 2,
    n_blocks_max: 1000,
    disk: None,
    eviction: Eviction::Arc,
    prefill_tokens_per_s: 1000.0,
    half_speed_tokens: f64::INFINITY,
    decode_step_ms: 0.0,
    restore_ms_per_token: worker::RESTORE_MS_PER_TOKEN,
    checkpoint_blocks: None,
};

fn line(at_ms: f64, n_tokens: u32, ids: std::ops::Range<u32>) -> Line {
    Line { timestamp: at_ms, input_length: n_tokens, output_length: 10, hash_ids: ids.collect(), previous_blocks: None }
}

pub(super) fn scene(policy: &str, n_workers: usize) -> Scene {
    Scene {
        policy: policy.parse().expect("the policy exists"),
        workers: vec![WORKER; n_workers],
        n_routers: 1,
        view_age: Duration::from_millis(5),
        load_age: Duration::from_millis(5),
        changes: Vec::new(),
        network: None,
        seed: 1,
    }
}

fn served(lines: Vec<Line>, scene: &Scene) -> Vec<Option<Served>> {
    let trace = Trace::new(lines, BLOCK_TOKENS).expect("the trace is well formed");
    world::run(&trace, scene).served
}

fn ttft_ms(served: Option<Served>) -> f64 {
    served.expect("it was answered").ttft.as_secs_f64() * 1e3
}

#[test]
fn a_worker_takes_the_time_of_what_it_computes_and_brings() {
    let lines = vec![line(0.0, 1000, 0..10), line(5000.0, 1100, 0..11), line(9000.0, 1100, 0..11)];
    let served = served(lines, &scene("predicted-ttft", 1));
    assert_eq!(ttft_ms(served[0]), 1000.0);
    // 1,000 tokens are restored at 1.5 us each, 100 are computed.
    assert_eq!(ttft_ms(served[1]), 101.5);
    // The last block is computed again, for the logits of its last token.
    assert_eq!(ttft_ms(served[2]), 101.5);
    assert_eq!(served.iter().flatten().map(|served| served.cached_tokens).collect::<Vec<_>>(), [0, 1000, 1000]);
}

#[test]
fn two_prompts_at_once_share_the_worker_and_two_workers_do_not() {
    let lines = || vec![line(0.0, 1000, 0..10), line(0.0, 1000, 20..30)];
    let one = served(lines(), &scene("round-robin", 1));
    // The first step computes one prompt only; the second prompt arrives after it has begun.
    assert_eq!((ttft_ms(one[0]), ttft_ms(one[1])), (1000.0, 2000.0));
    let two = served(lines(), &scene("round-robin", 2));
    assert_eq!((ttft_ms(two[0]), ttft_ms(two[1])), (1000.0, 1000.0));
    assert_ne!(two[0].map(|served| served.worker), two[1].map(|served| served.worker));
}

#[test]
fn dynamos_rule_counts_a_block_that_a_running_prompt_shares_once() {
    let workers = vec![worker::Shape { decode_step_ms: 100.0, ..WORKER }; 2];
    let mut sibling = line(1500.0, 1100, 0..11);
    sibling.hash_ids[10] = 99;
    // The first prompt still decodes. In blocks, its worker costs 1 + 11 + 1, the idle one 11 + 11.
    let served = served(vec![line(0.0, 1100, 0..11), sibling], &Scene { workers, ..scene("dynamo", 2) });
    let workers: Vec<_> = served.iter().flatten().map(|served| served.worker).collect();
    assert_eq!(workers.len(), 2);
    assert_eq!(workers[0], workers[1]);
}

#[test]
fn who_starts_from_what_another_computes_waits_for_that_alone() {
    let mut sibling = line(1.0, 1050, 0..11);
    sibling.hash_ids[10] = 99;
    let served = served(vec![line(0.0, 3000, 0..30), sibling], &scene("predicted-ttft", 1));
    // The first step computes 2,048 tokens, among them the 1,000 that the sibling shares.
    assert_eq!(served[1].map(|served| served.cached_tokens), Some(1000));
    assert!(ttft_ms(served[1]) < 2048.0 + 1000.0 + 10.0, "{served:?}");
}

#[test]
fn a_cache_that_is_too_small_loses_what_was_used_longest_ago() {
    let small = Scene { workers: vec![worker::Shape { n_blocks_max: 25, ..WORKER }], ..scene("predicted-ttft", 1) };
    let at = |n: u32| f64::from(n) * 20_000.0;
    let lines = vec![line(at(0), 1000, 0..10), line(at(1), 2000, 20..40), line(at(2), 1000, 0..10)];
    let lost = served(lines.clone(), &small)[2].map(|served| served.cached_tokens);
    assert!(lost < Some(900), "{lost:?}");
    assert_eq!(served(lines, &scene("predicted-ttft", 1))[2].map(|served| served.cached_tokens), Some(900));
}

#[test]
fn who_comes_while_another_runs_starts_from_its_slot_and_afterwards_from_what_the_store_has_room_for() {
    let worker = worker::Shape { n_blocks_max: 4, decode_step_ms: 100.0, ..WORKER };
    let lines = || vec![line(0.0, 1000, 0..10), line(1500.0, 1100, 0..11), line(60_000.0, 1100, 0..11)];
    let small = served(lines(), &Scene { workers: vec![worker], ..scene("predicted-ttft", 1) });
    let cached = |served: &[Option<Served>]| served.iter().flatten().map(|s| s.cached_tokens).collect::<Vec<_>>();
    assert_eq!(cached(&small), [0, 1000, 400]);
    let predicted: Vec<u32> = small.iter().flatten().map(|served| served.predicted_tokens).collect();
    assert_eq!(predicted, cached(&small), "the router predicts the blocks that the worker announced");
}

pub(super) fn args(shape: TraceShape) -> SimArgs {
    SimArgs {
        trace: None,
        shape: Some(shape),
        sessions: SessionsArgs {
            sessions: None,
            active: 32,
            machine: Machine::Gpu8b,
            ram_share: 0.3,
            checkpoint_tokens: None,
            disk_share: 0.0,
            eviction: vec![Eviction::Arc],
        },
        requests: 300,
        sessions_per_s: None,
        seconds: None,
        spread: 0.0,
        bursts: 0,
        block_tokens: 512,
        workers: 4,
        cache_share: 0.3,
        load: 0.7,
        policy: vec![Policy::Offered(warmpath_router_core::routing::choose::Policy::default())],
        all_policies: false,
        ablation: false,
        routers: 2,
        view_age: 0.005,
        load_age: 0.005,
        seed: 7,
        prefill_rate: 10_000.0,
        speeds: vec![1.0, 0.5],
        slots: 8,
        decode_step_ms: 10.0,
        join: Vec::new(),
        die: Vec::new(),
        slow: Vec::new(),
        kv_gbits: None,
        kv_token_bytes: 131_072,
        ttft_limit_ms: 1000.0,
        figures: crate::output::figures::FiguresArgs::default(),
    }
}

#[test]
fn a_worker_fetches_what_another_holds_and_computes_what_is_lost() {
    // 1,000 bytes a token at 1 MB a millisecond.
    let network = Some(network::Network { bytes_per_ms: 1e6, bytes_per_token: 1000 });
    let lines = || vec![line(0.0, 1000, 0..10), line(5000.0, 1100, 0..11)];
    let figures = |scene: Scene| {
        let second = served(lines(), &scene)[1].expect("it was answered");
        (ttft_ms(Some(second)), second.worker, second.cached_tokens, second.fetched_tokens)
    };
    let turns = || Scene { network, ..scene("round-robin", 2) };
    // 5 ms of latency, 1 ms for a megabyte, 1.5 ms into the slot, and 100 tokens to compute.
    assert_eq!(figures(turns()), (107.5, 1, 1000, 1000));
    assert_eq!(figures(Scene { network: None, ..turns() }), (1100.0, 1, 0, 0));
    let dies = FleetChange { worker: 0, at: Duration::from_secs(3), what: FleetEvent::Dies };
    assert_eq!(figures(Scene { changes: vec![dies], ..turns() }), (1100.0, 1, 0, 0));
    // The holder has lost it, and the router learns of that too late.
    let workers = vec![worker::Shape { n_blocks_max: 1, ..WORKER }; 2];
    let late = Scene { workers, view_age: Duration::from_secs(60), ..turns() };
    assert_eq!(figures(late).3, 0);
}

#[test]
fn transfers_lose_no_request() {
    let args = SimArgs { kv_gbits: Some(10.0), kv_token_bytes: 23_040, load: 1.3, ..args(TraceShape::Agent) };
    let outcome = &simulate(&args, &args.policy).expect("the fleet is well formed")[0];
    assert_eq!(outcome.n_answered, 300);
    assert!(outcome.fetched_ratio > 0.0, "{outcome:?}");
    let endless = SimArgs { kv_gbits: Some(0.0), ..args };
    assert!(simulate(&endless, &endless.policy).is_err());
}

#[test]
fn every_request_is_answered_once_under_every_policy_and_the_same_each_time() {
    let every: Vec<Policy> = Policy::COMPARED.into_iter().chain(Policy::ablated()).collect();
    let run = |args: &SimArgs| simulate(args, &every).expect("the fleet is well formed");
    let outcomes = run(&args(TraceShape::Chat));
    for outcome in &outcomes {
        assert_eq!(outcome.n_answered, 300, "{outcome:?}");
        assert!(outcome.block_hit_ratio > 0.0 && outcome.imbalance >= 1.0, "{outcome:?}");
        assert!(outcome.ttft_ms_p50 <= outcome.ttft_ms_p99, "{outcome:?}");
    }
    assert_eq!(outcomes, run(&args(TraceShape::Chat)));
    let other = SimArgs { seed: 8, ..args(TraceShape::Chat) };
    assert_ne!(outcomes, run(&other));
}

#[test]
fn each_term_that_is_left_out_changes_choices() {
    let args = SimArgs { requests: 600, load: 1.0, routers: 2, ..args(TraceShape::Chat) };
    let outcomes = simulate(&args, &Policy::ablated()).expect("the fleet is well formed");
    let figures = |outcome: &Outcome| (outcome.computed_tokens, outcome.ttft_ms_mean.to_bits());
    for outcome in &outcomes[1..] {
        assert_ne!(figures(outcome), figures(&outcomes[0]), "{}", outcome.policy);
    }
}

#[test]
fn what_a_dead_worker_had_is_answered_by_others_and_a_new_one_gets_its_share() {
    let args = SimArgs { die: vec![(0..=0, 30.0)], join: vec![(1..=1, 45.0)], load: 2.0, ..args(TraceShape::Agent) };
    let outcomes = simulate(&args, &args.policy).expect("the fleet is well formed");
    assert_eq!(outcomes[0].n_answered, 300);
    assert!(outcomes[0].n_retries > 0, "{outcomes:?}");
    assert!(outcomes[0].imbalance < 4.0, "one worker did it all: {outcomes:?}");
}

#[test]
fn a_worker_that_becomes_ten_times_slower_soon_computes_little() {
    // Its share of the fleet's speed is 0.03 afterwards, and it still has its cached prefixes.
    for shape in [TraceShape::Chat, TraceShape::SharedPrefix, TraceShape::Rag] {
        let slow = vec![(0..=0, 30.0)];
        let args = SimArgs { speeds: vec![1.0], load: 0.5, slow, requests: 3000, ..args(shape) };
        let mut trace = read(&args).unwrap();
        let workers = fleet(&args, &trace).unwrap();
        stretch(&mut trace, args.load, &workers);
        trace.requests.retain(|request| request.at_s < 62.0);
        let scene = Scene { workers, changes: changes(&args).unwrap(), ..scene("predicted-ttft", 4) };
        let served = world::run(&trace, &scene).served;
        // Shares of the computed tokens of requests that came from one second to another.
        let share = |seconds: std::ops::Range<f64>| {
            let (mut slow, mut all) = (0, 0);
            for (request, served) in trace.requests.iter().zip(&served) {
                let served = served.expect("it was answered");
                if seconds.contains(&request.at_s) {
                    let computed = request.prompt_tokens - served.cached_tokens;
                    all += computed;
                    slow += if served.worker == 0 { computed } else { 0 };
                }
            }
            f64::from(slow) / f64::from(all)
        };
        let (before, after) = (share(10.0..30.0), share(32.0..62.0));
        assert!(before > 0.2 && after < 0.05, "{shape:?}: {before}, then {after}");
    }
}

#[test]
fn follow_ups_miss_what_died_and_hit_again_afterwards() {
    let args = SimArgs {
        sessions_per_s: Some(2.0),
        seconds: Some(400.0),
        workers: 10,
        speeds: vec![1.0],
        slots: 32,
        cache_share: 1.0,
        die: vec![(0..=3, 150.0)],
        join: vec![(8..=9, 150.0)],
        ..args(TraceShape::Chat)
    };
    let outcome = simulate(&args, &args.policy).expect("the fleet is well formed").remove(0);
    assert_eq!(outcome.n_answered, outcome.n_requests);
    let [before, during, after] = outcome.follow_ups.expect("the fleet changes");
    assert!(before.hit_ratio > 0.95 && after.hit_ratio > 0.9, "{before:?} {after:?}");
    assert!((0.5..0.9).contains(&during.hit_ratio), "half of the caches are lost: {during:?}");
    assert!(before.n_requests > 100 && during.n_requests > 100 && after.n_requests > 100);
    let unchanged = SimArgs { die: Vec::new(), join: Vec::new(), ..args.clone() };
    assert_eq!(simulate(&unchanged, &args.policy).expect("the fleet is well formed")[0].follow_ups, None);
    let rag = SimArgs { shape: Some(TraceShape::Rag), ..args };
    assert!(simulate(&rag, &rag.policy).is_err(), "questions about documents are no sessions");
}

#[test]
fn without_a_worker_nothing_is_answered() {
    let args = SimArgs { workers: 1, speeds: vec![1.0], join: vec![(0..=0, 1e6)], ..args(TraceShape::Rag) };
    let outcomes = simulate(&args, &args.policy).expect("the fleet is well formed");
    assert_eq!((outcomes[0].n_answered, outcomes[0].goodput_per_s), (0, 0.0));
}

#[test]
fn load_is_prompt_tokens_over_what_the_workers_could_compute() {
    let args = SimArgs { load: 0.5, speeds: vec![1.0], cache_share: 1e-9, ..args(TraceShape::Rag) };
    let outcomes = simulate(&args, &args.policy).expect("the fleet is well formed");
    // The utilisation is the computed part of the load, apart from the time of the last responses.
    let computed = 0.5 * (1.0 - outcomes[0].block_hit_ratio);
    assert!((outcomes[0].utilisation - computed).abs() < 0.04, "{outcomes:?}");
}

#[test]
fn an_outcome_is_counted_from_what_was_served() {
    let lines = vec![line(0.0, 1000, 0..10), line(1000.0, 1000, 0..10)];
    let trace = Trace::new(lines, BLOCK_TOKENS).expect("the trace is well formed");
    let answer = |worker, ttft_ms, cached_tokens| {
        let ttft = Duration::from_millis(ttft_ms);
        Some(Served { worker, ttft, cached_tokens, fetched_tokens: 0, predicted_tokens: 0, n_retries: 1 })
    };
    let served = vec![answer(0, 1000, 0), answer(1, 100, 900)];
    let history = History { served, n_cut_off: 0, ended: Duration::from_secs(2), n_disk_blocks: [0; 2] };
    let lru = lru::hits(&trace, 100);
    let outcome = outcome(&trace, &scene("random", 2), &history, lru, Duration::from_millis(500));
    assert_eq!((outcome.block_hit_ratio, outcome.token_hit_ratio, outcome.lru_share), (0.45, 0.45, 1.0));
    assert_eq!((outcome.computed_tokens, outcome.ttft_ms_p50, outcome.ttft_ms_p99), (1100, 100.0, 1000.0));
    assert!((outcome.imbalance - 1000.0 / 550.0).abs() < 1e-9, "{outcome:?}");
    assert_eq!((outcome.goodput_per_s, outcome.within_limit, outcome.mispredicted), (0.5, 0.5, 0.5));
    assert_eq!((outcome.n_retries, outcome.utilisation), (2, 0.275));
}

#[test]
fn made_traces_are_of_their_shape_and_of_their_seed() {
    for &shape in TraceShape::value_variants() {
        let trace = |seed| shape.trace(400, seed).expect("the shape makes whole blocks");
        assert_eq!(trace(1).requests.len(), 400, "{shape:?}");
        assert_eq!(trace(1), trace(1));
        assert_ne!(trace(1), trace(2));
        let reuse = lru::hits(&trace(1), usize::MAX).n_tokens as f64 / trace(1).prompt_tokens() as f64;
        assert!((0.3..0.99).contains(&reuse), "{shape:?} reuses {reuse}");
    }
}

#[test]
fn what_a_slow_clock_has_put_together_comes_apart_and_stays_in_order() {
    let lines = (0..40).map(|n| line(f64::from(n / 20) * 3000.0, 100, n..n + 1)).collect();
    let mut trace = Trace::new(lines, BLOCK_TOKENS).expect("the trace is well formed");
    let together = trace.clone();
    trace.spread(0.0, 1);
    assert_eq!(trace, together);
    trace.spread(3.0, 1);
    let times: Vec<f64> = trace.requests.iter().map(|request| request.at_s).collect();
    assert!(times.windows(2).all(|pair| pair[0] < pair[1]), "{times:?}");
    let of_first_tick = trace.requests[..20].iter().all(|request| request.ids()[0] < 20 && request.at_s < 3.0);
    assert!(of_first_tick && times[0] < 0.6 && times[19] > 2.4, "{times:?}");
}

#[test]
fn siblings_come_together_and_through_one_router_go_together() {
    let mut trace = TraceShape::Chat.trace(100, 1).expect("the shape makes whole blocks");
    let (n_tokens, duration_s) = (trace.prompt_tokens(), trace.duration_s());
    siblings::add(&mut trace, 3).expect("siblings are whole blocks");
    assert_eq!(trace.prompt_tokens() - n_tokens, 3 * 16 * 2176);
    let of_burst = |burst| trace.requests.iter().filter(move |request| request.burst == Some(burst));
    for burst in 0..3 {
        let first = of_burst(burst).next().expect("a burst has siblings");
        assert_eq!(of_burst(burst).count(), 16);
        assert!(of_burst(burst).all(|request| request.at_s - first.at_s < 0.05 && request.at_s < duration_s));
        assert!(of_burst(burst).all(|request| request.ids()[..32] == first.ids()[..32]));
        assert_eq!(
            of_burst(burst).map(|request| request.ids()[32]).collect::<std::collections::BTreeSet<_>>().len(),
            16
        );
    }
    let run = |args: SimArgs| simulate(&args, &args.policy).expect("the fleet is well formed").remove(0);
    let one = run(SimArgs { bursts: 5, routers: 1, load: 0.1, ..args(TraceShape::Chat) });
    assert_eq!((one.n_answered, one.bursts_within_two), (380, Some(1.0)));
    let random = SimArgs { policy: vec!["random".parse().expect("it exists")], ..args(TraceShape::Chat) };
    assert_eq!(run(SimArgs { bursts: 5, ..random.clone() }).workers_per_burst_max, Some(4));
    assert_eq!(run(random).workers_per_burst_max, None);
}

#[test]
fn eight_routers_spread_new_prefixes_as_one_does() {
    let shape = args(TraceShape::SharedPrefix);
    let shape = SimArgs { requests: 1000, workers: 16, slots: 32, speeds: vec![1.0], load: 0.5, ..shape };
    let imbalance = |routers, seed| {
        let args = SimArgs { routers, seed, ..shape.clone() };
        simulate(&args, &args.policy).expect("the fleet is well formed")[0].imbalance
    };
    // If routers did not count work that others have sent, the imbalance of eight routers would be 1.21.
    let [one, eight] = [1, 8].map(|routers| (imbalance(routers, 1) + imbalance(routers, 2)) / 2.0);
    assert!(eight < one + 0.05, "{eight} instead of {one}");
}

#[test]
fn policies_are_parsed_by_their_names() {
    for policy in Policy::COMPARED.into_iter().chain(Policy::ablated()) {
        assert_eq!(policy.to_string().parse(), Ok(policy));
    }
    let error = "fastest".parse::<Policy>().expect_err("there is no such policy");
    assert!(error.contains("sglang"), "{error}");
}

#[test]
fn a_trace_that_does_not_fit_its_block_length_is_refused() {
    let error = Trace::new(vec![line(0.0, 1000, 0..3)], BLOCK_TOKENS).expect_err("1,000 tokens are 10 blocks");
    assert!(error.to_string().contains("--block-tokens"), "{error}");
    assert!(Trace::new(Vec::new(), BLOCK_TOKENS).is_err());
    for text in ["3", "x@1", "3-@1", "5-3@1"] {
        assert!(workers_at(text).is_err(), "{text}");
    }
    assert_eq!(workers_at("3@1.5").ok(), Some((3..=3, 1.5)));
    assert_eq!(workers_at("3-12@0").ok(), Some((3..=12, 0.0)));
}
