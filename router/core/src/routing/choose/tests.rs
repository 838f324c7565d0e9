//! Tests of the choice: each policy by a table of situations, ties, reasons.

use proptest::prelude::*;
use warmpath_common::ids::SlotId;
use warmpath_common::summary::{Load, Rates, RunState, Tier};

use super::*;
use crate::routing::cost::{SPEEDS_DEFAULT, Unreported};
use crate::testing::{idle, worker};

/// A worker in a situation: the cached blocks of a prompt of 1,000 tokens, and the worker's load.
struct Held(u32, Load);

fn queued(tokens: u64) -> Load {
    Load { queued_prefill_tokens: tokens, n_queued: u32::from(tokens > 0), ..idle() }
}

fn free(cells: u64) -> Load {
    Load { free_cells: cells, ..idle() }
}

const N_TOKENS: u32 = 1000;
const BLOCK: u32 = 32;

fn decide(policy: Policy, held: &[Held], ties: TieBreak) -> (u32, ChoiceReason) {
    decide_with_media(&[], policy, held, ties)
}

fn decide_with_media(media: &[Range<u32>], policy: Policy, held: &[Held], ties: TieBreak) -> (u32, ChoiceReason) {
    let workers: Vec<_> = held
        .iter()
        .enumerate()
        .map(|(idx, Held(_, load))| WorkerView { load: load.clone(), ..worker(idx as u32) })
        .collect();
    let matches: Vec<_> = held
        .iter()
        .enumerate()
        .filter(|(_, held)| held.0 > 0)
        .map(|(idx, held)| Match {
            worker: WorkerIdx(idx as u32),
            blocks: held.0,
            tier: Tier::Resident,
            state: RunState::Ready,
            slot: Some(SlotId(0)),
        })
        .collect();
    let prompt = PromptView::Known { n_tokens: N_TOKENS, keys: &[], matches: &matches, media };
    let mut candidates: Vec<_> = workers.iter().map(|worker| scored(worker, prompt)).collect();
    add_pressure(&mut candidates, 0.0);
    let chosen = choose(policy, &candidates, ties).expect("there are candidates");
    (chosen.worker.idx.0, reason(policy, &candidates, chosen, prompt))
}

/// Returns a worker as a candidate for a prompt, with nothing but its reported load.
fn scored<'a>(worker: &'a WorkerView, prompt: PromptView<'_>) -> Candidate<'a> {
    let load = worker_load(worker, Unreported::default(), SPEEDS_DEFAULT, worker.measured_at);
    Candidate::score(worker, prompt, BLOCK, load)
}

const TIES: TieBreak = TieBreak { last: None, first_new_block: 0 };

fn check(held: &[Held], expected: (u32, ChoiceReason)) {
    assert_eq!(decide(Policy::PredictedTtft, held, TIES), expected);
}

#[test]
fn the_predicted_ttft_weighs_prefix_against_queue() {
    check(&[Held(0, idle()), Held(30, idle())], (1, ChoiceReason::Prefix));
    check(&[Held(0, idle()), Held(30, queued(5_000))], (1, ChoiceReason::Prefix));
    // The rest of a known prompt is computed beside a long one.
    check(&[Held(0, idle()), Held(30, queued(20_000))], (1, ChoiceReason::Prefix));
    let crowded = Load { n_queued: 60, ..queued(6_000) };
    check(&[Held(0, idle()), Held(0, idle()), Held(0, idle()), Held(30, crowded)], (0, ChoiceReason::Load));
    check(&[Held(10, queued(20_000)), Held(9, idle())], (1, ChoiceReason::Load));
    check(&[Held(0, queued(5_000)), Held(0, idle())], (1, ChoiceReason::Cold));
    check(&[Held(30, queued(50_000))], (0, ChoiceReason::Only));
}

#[test]
fn among_equals_the_emptiest_wins_and_then_a_random_one() {
    check(&[Held(0, free(10)), Held(0, free(30)), Held(0, free(20))], (1, ChoiceReason::Cold));
    check(&[Held(8, free(10)), Held(8, free(30))], (1, ChoiceReason::Prefix));
    let all = || [Held(0, idle()), Held(0, idle()), Held(0, idle())];
    let jitter = |first_new_block| decide(Policy::PredictedTtft, &all(), TieBreak { first_new_block, ..TIES }).0;
    let mut n_won = [0; 3];
    (0..300).for_each(|first_new_block| n_won[jitter(first_new_block) as usize] += 1);
    assert!(n_won.iter().all(|n| (60..140).contains(n)), "{n_won:?}");
}

#[test]
fn the_new_part_of_a_prompt_starts_at_the_first_block_that_no_worker_holds() {
    let keys: Vec<_> = (10..14).map(BlockKey).collect();
    let held = |blocks: &[u32]| -> Vec<Match> {
        let (tier, state) = (Tier::Resident, RunState::Ready);
        let found = |(idx, blocks)| Match { worker: WorkerIdx(idx), blocks, tier, state, slot: None };
        (0..).zip(blocks.iter().copied()).map(found).collect()
    };
    let first_new_block = |blocks: &[u32]| {
        PromptView::Known { n_tokens: 70, keys: &keys, matches: &held(blocks), media: &[] }.first_new_block()
    };
    assert_eq!([first_new_block(&[]), first_new_block(&[1, 3]), first_new_block(&[4])], [10, 13, 13]);
    assert_eq!(PromptView::Estimated { n_tokens: 70 }.first_new_block(), 0);
}

#[test]
fn among_equals_the_worker_with_the_least_recent_work_wins() {
    assert_eq!(of_recent([idle(), idle(), idle()], [20.0, 10.0, 30.0]), 1);
}

/// Returns the worker that gets an uncached prompt, given the workers' loads and recent work.
fn of_recent<const N: usize>(loads: [Load; N], recent: [f64; N]) -> u32 {
    let workers: Vec<_> = loads.into_iter().zip(0..).map(|(load, idx)| WorkerView { load, ..worker(idx) }).collect();
    let score = |(worker, recent_tokens)| Candidate {
        recent_tokens,
        ..scored(worker, PromptView::Estimated { n_tokens: N_TOKENS })
    };
    let mut candidates: Vec<_> = workers.iter().zip(recent).map(score).collect();
    add_pressure(&mut candidates, 0.0);
    choose(Policy::PredictedTtft, &candidates, TIES).expect("there are candidates").worker.idx.0
}

#[test]
fn a_small_difference_between_rates_does_not_outweigh_a_queue() {
    // With a mean of ten prefills, a pressure of 1,210 prefills at each worker's own rate would let 5 % of it outweigh
    // sixty prefills.
    let load = |rate: f32, n_queued: u32| {
        let mut load = Load { n_queued, queued_prefill_tokens: u64::from(n_queued) * 1000, ..idle() };
        load.rates.prefill_tokens_per_s = Some(rate);
        load
    };
    let loads = [load(1050.0, 30), load(1000.0, 3), load(1000.0, 4), load(1000.0, 3)];
    assert_eq!(of_recent(loads, [9.0, 1.0, 2.0, 2.0]), 1);
}

#[test]
fn an_idle_worker_is_preferred_to_queues_and_a_busy_one_is_not_preferred_to_a_hit() {
    // Each worker with half of the prompt has a queue, like most others; the idle one is not charged for it.
    let line = |n: u32| Load { n_queued: n, queued_prefill_tokens: u64::from(n) * 1000, ..idle() };
    check(&[Held(16, line(30)), Held(16, line(30)), Held(0, line(30)), Held(0, idle())], (3, ChoiceReason::Load));
    check(&[Held(16, line(12)), Held(16, line(12)), Held(0, line(12)), Held(0, line(6))], (0, ChoiceReason::Prefix));
}

#[test]
fn rates_that_differ_by_noise_are_equal() {
    let rate = |rate, cells| {
        let mut load = free(cells);
        load.rates.prefill_tokens_per_s = Some(rate);
        load
    };
    check(&[Held(0, rate(1030.0, 10)), Held(0, rate(1000.0, 20))], (1, ChoiceReason::Cold));
    check(&[Held(0, rate(2000.0, 10)), Held(0, rate(1000.0, 20))], (0, ChoiceReason::Cold));
}

#[test]
fn each_policy_chooses_as_its_name_says() {
    let held = [Held(3, queued(10)), Held(30, queued(900_000)), Held(0, idle())];
    assert_eq!(decide(Policy::LeastLoaded, &held, TIES), (2, ChoiceReason::Policy(Policy::LeastLoaded)));
    let after = |last| TieBreak { last: Some(WorkerIdx(last)), ..TIES };
    assert_eq!(decide(Policy::RoundRobin, &held, TIES).0, 0);
    assert_eq!(decide(Policy::RoundRobin, &held, after(0)).0, 1);
    assert_eq!(decide(Policy::RoundRobin, &held, after(2)).0, 0);
    assert_eq!(decide(Policy::RoundRobin, &held, TIES).1.to_string(), "policy:round-robin");
}

#[test]
fn a_fully_cached_prompt_still_computes_its_last_block() {
    let worker = worker(0);
    for (n_tokens, blocks, expected) in [(64, 2, 1), (65, 2, 2), (1, 0, 0), (0, 0, 0), (63, 1, 1), (32, 1, 0)] {
        let found = Match { worker: WorkerIdx(0), blocks, tier: Tier::Resident, state: RunState::Ready, slot: None };
        let prompt = PromptView::Known { n_tokens, keys: &[], matches: &[found], media: &[] };
        assert_eq!(scored(&worker, prompt).cached_blocks, expected, "{n_tokens} tokens");
    }
}

#[test]
fn an_image_that_is_not_reused_whole_is_encoded() {
    let worker = worker(0);
    let media = [30..60, 200..300];
    for (blocks, expected) in [(0, 130), (1, 130), (2, 100), (7, 100), (10, 0)] {
        let found = Match { worker: WorkerIdx(0), blocks, tier: Tier::Resident, state: RunState::Ready, slot: None };
        let prompt = PromptView::Known { n_tokens: N_TOKENS, keys: &[], matches: &[found], media: &media };
        assert_eq!(scored(&worker, prompt).work.encoded_tokens, expected, "{blocks} blocks");
    }
    let estimated = PromptView::Estimated { n_tokens: N_TOKENS };
    assert_eq!(scored(&worker, estimated).work.encoded_tokens, 0);
}

#[test]
fn a_worker_that_need_not_encode_the_image_is_waited_for() {
    let slow = |load: Load| Load { rates: Rates { encode_ms_per_token: Some(10.0), ..load.rates }, ..load };
    let held = || [Held(10, slow(idle())), Held(15, slow(queued(400)))];
    let decide =
        |medium: Option<Range<u32>>| decide_with_media(medium.as_slice(), Policy::PredictedTtft, &held(), TIES);
    assert_eq!(decide(None), (0, ChoiceReason::Load));
    assert_eq!(decide(Some(330..460)), (1, ChoiceReason::Prefix), "the second worker has it");
    assert_eq!(decide(Some(100..230)), (0, ChoiceReason::Load), "both have it");
    assert_eq!(decide(Some(600..730)), (0, ChoiceReason::Load), "none has it");
}

#[test]
fn policies_are_parsed_by_their_names() {
    for policy in Policy::ALL {
        assert_eq!(policy.to_string().parse(), Ok(policy));
    }
    let error = "fastest".parse::<Policy>().expect_err("there is no such policy");
    assert!(error.contains("predicted-ttft"), "{error}");
}

#[test]
fn ties_are_between_workers_that_hold_as_much() {
    let given = |cells| Load { free_cells: cells, ..idle() };
    // The common start of all chats is not a hit. In an idle fleet a difference of two blocks is within the tolerance.
    check(&[Held(1, given(10)), Held(0, given(20))], (1, ChoiceReason::Load));
    check(&[Held(2, given(10)), Held(0, given(20))], (0, ChoiceReason::Prefix));
    check(&[Held(16, given(10)), Held(15, given(20))], (0, ChoiceReason::Prefix));
}

#[test]
fn the_tolerance_is_a_prefill_in_an_idle_fleet_and_small_in_a_busy_one() {
    let chosen = |counts: [u32; 4], recent: [f64; 4]| {
        let load = |n: u32| Load { n_queued: n, queued_prefill_tokens: u64::from(n) * 800, ..idle() };
        of_recent(counts.map(load), recent)
    };
    assert_eq!(chosen([0, 0, 0, 0], [9.0, 8.0, 7.0, 8.0]), 2);
    assert_eq!(chosen([0, 1, 0, 0], [9.0, 1.0, 7.0, 8.0]), 2, "a wait of 0.8 prefills exceeds the tolerance");
    assert_eq!(chosen([4, 5, 4, 4], [9.0, 1.0, 9.0, 9.0]), 0, "beside four prompts, one more exceeds the tolerance");
    assert_eq!(chosen([4, 4, 4, 4], [9.0, 1.0, 9.0, 9.0]), 1);
}

#[test]
fn a_worker_that_takes_half_as_long_again_is_not_chosen_for_an_even_spread() {
    let rate = |rate: f32, cells| {
        let mut load = free(cells);
        load.rates.prefill_tokens_per_s = Some(rate);
        load
    };
    // Ties go to the one with the most free cells, since none has recent work.
    check(&[Held(0, rate(1000.0, 10)), Held(0, rate(600.0, 20))], (0, ChoiceReason::Cold));
    check(&[Held(0, rate(1000.0, 10)), Held(0, rate(800.0, 20))], (1, ChoiceReason::Cold));
}

proptest! {
    #[test]
    fn the_chosen_worker_holds_as_much_as_the_cheapest_and_costs_little_more(
        held in proptest::collection::vec((0u32..31, 0u64..100_000, 0u64..1000), 1..20)
    ) {
        let held = || -> Vec<Held> {
            held.iter().map(|&(n, ahead, cells)| Held(n, Load { free_cells: cells, ..queued(ahead) })).collect()
        };
        let sum = |part: fn(&Held) -> f64| held().iter().map(part).sum::<f64>();
        let (n, n_there) = (held().len() as f64, sum(|held| f64::from(held.1.n_queued)));
        let crowd = n_there / n;
        let usual = (sum(|held| held.1.queued_prefill_tokens as f64) / n_there.max(1.0)).max(f64::MIN_POSITIVE);
        let own = |held: &Held| f64::from(N_TOKENS - held.0 * 32);
        let felt = |held: &Held| own(held) + (3.0 * own(held)).min(held.1.queued_prefill_tokens as f64);
        let beside = |held: &Held| held.1.queued_prefill_tokens as f64 / usual;
        let excess = |held: &Held| (beside(held).min(f64::from(held.1.n_queued)) - crowd).max(0.0);
        let delayed = |held: &Held| (excess(held) * own(held)).min(held.1.queued_prefill_tokens as f64);
        let cost = |held: &Held| {
            let crowd = crowd.min(2.0 * (1.0 + f64::from(held.1.n_queued)));
            felt(held) + crowd * (1.0 + crowd).powi(2) * own(held) + delayed(held) * (1.0 + crowd)
        };
        let (idx, _) = decide(Policy::PredictedTtft, &held(), TIES);
        let chosen = &held()[idx as usize];
        let cheapest = held().into_iter().min_by(|a, b| cost(a).total_cmp(&cost(b))).expect("there is one");
        let as_much = |held: &&Held| own(held) <= own(&cheapest) * (1.0 + NEARLY_EQUAL);
        prop_assert!(as_much(&chosen));
        let slack = (NEARLY_EQUAL * felt(&cheapest)).max(own(&cheapest) / (1.0 + crowd).powi(2));
        prop_assert!(cost(chosen) <= cost(&cheapest) + slack + 1e-6);
        prop_assert_eq!(decide(Policy::PredictedTtft, &held(), TIES).0, idx);
    }
}
