//! Tests of a sequence's drafter: its proposals, its acceptance rates, and the speed of responses with drafts.

use proptest::prelude::*;

use super::draft_model::DraftModelCosts;
use super::lengths::DraftSource;
use super::suffix_memory::SuffixMemory;
use super::*;
use crate::curve::Curve;
use crate::tenants::TenantId;
use warmpath_common::block_hash::BlockHash;

const LIMITS: DraftLimits = DraftLimits { n_max: 8, n_min: 0 };
const ROOT: BlockHash = BlockHash([1; 32]);

fn count_up(from: Token, n: usize) -> Vec<Token> {
    (from..).take(n).collect()
}

/// Returns the length of a draft that costs nothing.
fn found(n_tokens: usize) -> Length {
    Length { n_tokens, ..Length::default() }
}

fn proposed(drafter: &mut Drafter, memory: Option<&NgramIndex>) -> Vec<Token> {
    let n_tokens = drafter.propose(memory, 5).chances.len();
    drafter.draft(found(n_tokens)).to_vec()
}

#[test]
fn proposes_the_tokens_after_a_match_in_the_prompt() {
    let prompt = [count_up(0, 20), vec![99, 10, 11, 12, 13]].concat();
    let mut drafter = Drafter::new(&prompt, &[], LIMITS);
    assert_eq!(proposed(&mut drafter, None), [14, 15, 16, 17, 18]);
    drafter.push(14);
    assert_eq!(proposed(&mut drafter, None), [15, 16, 17, 18, 19]);
    drafter.push(50);
    assert_eq!(proposed(&mut drafter, None), [0; 0]);
    assert_eq!(drafter.draft(found(3)), [0; 0]);
}

#[test]
fn proposes_the_clients_prediction_from_the_first_token_on() {
    let mut drafter = Drafter::new(&count_up(0, 6), &count_up(100, 30), LIMITS);
    assert_eq!(proposed(&mut drafter, None), [100, 101, 102, 103, 104]);
    drafter.push(7);
    assert_eq!(proposed(&mut drafter, None), [0; 0]);
    count_up(110, 4).into_iter().for_each(|token| drafter.push(token));
    assert_eq!(
        proposed(&mut drafter, None),
        [114, 115, 116, 117, 118],
        "the prediction continues after a changed token"
    );
}

#[test]
fn proposes_an_earlier_response_if_it_matches_better() {
    let mut memory = SuffixMemory::new(10_000);
    memory.learn(&ROOT, TenantId(1), &count_up(0, 20), &count_up(500, 20));
    let prompt = [vec![16, 17, 18, 19, 7, 7], count_up(0, 20)].concat();
    let mut drafter = Drafter::new(&prompt, &[], LIMITS);
    assert_eq!(proposed(&mut drafter, None), [7, 7, 0, 1, 2]);
    assert_eq!(proposed(&mut drafter, memory.of(&ROOT)), count_up(500, 5));
}

#[test]
fn acceptance_rates_include_proposals_that_were_not_drafted() {
    let text = [count_up(0, 200), count_up(0, 100)].concat();
    let mut drafter = Drafter::new(&text[..204], &[], LIMITS);
    let at_first = drafter.propose(None, 3).chances.to_vec();
    for token in &text[204..] {
        drafter.propose(None, 3);
        drafter.push(*token);
    }
    let then = drafter.propose(None, 3).chances.to_vec();
    assert!(at_first[0] <= 0.5 && then.iter().all(|chance| *chance > 0.95), "{at_first:?} {then:?}");
    for wrong in 1000..1200 {
        // The sequence repeats four tokens of the text, followed by another token.
        count_up(20, 4).into_iter().chain([wrong]).for_each(|token| {
            drafter.propose(None, 3);
            drafter.push(token);
        });
    }
    count_up(20, 4).into_iter().for_each(|token| drafter.push(token));
    let last = drafter.propose(None, 3).chances.to_vec();
    assert!(last[0] < 0.1, "{last:?}");
}

#[test]
fn a_draft_models_tokens_replace_found_ones_and_have_their_own_acceptance_rate() {
    let prompt = [count_up(0, 20), vec![99, 10, 11, 12, 13]].concat();
    let mut drafter = Drafter::new(&prompt, &[], DraftLimits { n_min: 2, ..LIMITS });
    let times = MakingTimes::default();
    let chance = |drafter: &Drafter| drafter.made_draft(3, times).chance;
    let (at_first, found_first) = (chance(&drafter), drafter.propose(None, 3).chances[0]);
    assert_eq!(drafter.made_draft(9, times).n_max, LIMITS.n_max);
    let planned = Length { n_tokens: 4, cost: 0.4, source: DraftSource::Made };
    let length = drafter.take_made(vec![70, 71, 72], planned);
    assert_eq!((length.n_tokens, length.source), (3, DraftSource::Made));
    assert!((length.cost - 0.3).abs() < 1e-9, "the model stopped early: {length:?}");
    assert_eq!(drafter.draft(length), [70, 71, 72]);
    [70, 71].into_iter().for_each(|token| drafter.push(token));
    let right = chance(&drafter);
    drafter.push(14);
    assert!(right > at_first && chance(&drafter) < right, "{at_first} {right}");
    assert_eq!(drafter.acceptance[0].chance(4), found_first);
    drafter.propose(None, 3);
    assert_eq!(drafter.take_made(vec![70], planned).n_tokens, 0, "the draft is shorter than the minimum");
    assert_eq!(drafter.take_made(count_up(70, 9), planned).n_tokens, 4, "the draft is as long as planned");
}

#[test]
fn forced_drafts_replace_all_others() {
    let prompt = [count_up(0, 20), count_up(0, 10)].concat();
    let mut drafter =
        Drafter::new(&prompt, &[], LIMITS).forced(|tokens, n_max| vec![tokens.len() as Token; n_max + 3], &prompt);
    assert_eq!(proposed(&mut drafter, None), [30; 5]);
    assert!(drafter.is_forced());
    drafter.push(1);
    assert_eq!(proposed(&mut drafter, None), [31; 5]);
}

proptest! {
    #[test]
    fn a_proposal_is_within_its_limits_and_occurs_after_the_same_tokens(
        prompt in prop::collection::vec(0_u32..3, 1..60),
        answer in prop::collection::vec(0_u32..3, 0..60),
        n_max in 0_usize..12,
    ) {
        let mut drafter = Drafter::new(&prompt, &[], LIMITS);
        let mut text = prompt;
        for token in answer {
            let possible = drafter.propose(None, n_max);
            let n_tokens = possible.chances.len();
            prop_assert!(n_tokens <= n_max.min(LIMITS.n_max));
            prop_assert!(possible.chances.iter().all(|chance| (0.0..=1.0).contains(chance)));
            let draft = drafter.draft(found(n_tokens)).to_vec();
            if !draft.is_empty() {
                let wanted = [&text[text.len() - ngram_index::GRAM_TOKENS..], &draft[..1]].concat();
                prop_assert!(text.windows(wanted.len()).any(|window| window == wanted));
            }
            drafter.push(token);
            text.push(token);
        }
    }
}

/// Times of steps by their tokens: SmolLM2 on one CPU thread, and a GPU, which reads the weights once for all tokens.
const Q8_0: [(u32, f64); 6] = [(1, 10.8), (2, 29.0), (4, 39.0), (8, 54.0), (16, 83.0), (32, 140.0)];
const Q4_0: [(u32, f64); 6] = [(1, 7.9), (2, 13.8), (4, 24.0), (8, 41.0), (16, 60.0), (32, 101.0)];
const GPU: [(u32, f64); 3] = [(1, 10.0), (8, 11.0), (32, 14.0)];
const MACHINES: [&[(u32, f64)]; 3] = [&Q8_0, &Q4_0, &GPU];

/// Returns pseudorandom numbers below `n`.
fn numbers(seed: u64, n: u64) -> impl Iterator<Item = u64> {
    let step =
        |state: &u64| Some(state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407));
    std::iter::successors(Some(seed), step).skip(1).map(move |state| (state >> 33) % n)
}

/// Returns the speed-up of a response of `n_tokens` by drafts, if steps take these times.
///
/// `choose` replaces the model: it returns the next token, given the number of tokens before it and the proposed
/// token.
fn speed_of(
    (prompt, n_tokens): (&[Token], usize),
    times: &[(u32, f64)],
    mut choose: impl FnMut(usize, Option<Token>) -> Token,
) -> f64 {
    let tokens = Curve::new(times.iter().copied());
    let (passes, depth) = (crate::batches::batch_plan::Passes::Together, step_costs::DepthCost::default());
    let costs = step_costs::StepCosts { streams: tokens.clone(), tokens, passes, depth };
    let room = lengths::StepRoom { n_streams: 1, tokens_max: 512, drafts_max: 1, held_tokens: 0 };
    let mut drafter = Drafter::new(prompt, &[], DraftLimits { n_max: 31, n_min: 0 });
    let (mut time, mut n_said) = (0.0, 1);
    drafter.push(choose(0, None));
    while n_said < n_tokens {
        let possible = drafter.propose(None, n_tokens - n_said);
        let length = lengths::lengths(&[possible], room, &costs)[0];
        let draft = drafter.draft(length).to_vec();
        time += costs.step(0, 0, std::iter::once(1 + draft.len() as u32));
        // The token after the draft is chosen in the same step.
        for place in 0..(draft.len() + 1).min(n_tokens - n_said) {
            let proposed = drafter.proposal.as_ref().and_then(|found| found.tokens.get(place)).copied();
            let chosen = choose(n_said, proposed);
            drafter.push(chosen);
            n_said += 1;
            if draft.get(place) != Some(&chosen) {
                break;
            }
        }
    }
    times[0].1 * (n_tokens - 1) as f64 / time
}

/// Returns the speed-up of a response by a draft model. Its passes take `share` of the served model's time, and
/// `percent` of its tokens are right.
fn speed_with_model(percent: u64, n_tokens: usize, times: &[(u32, f64)], share: f64) -> f64 {
    let tokens = Curve::new(times.iter().copied());
    let (passes, depth) = (crate::batches::batch_plan::Passes::Together, step_costs::DepthCost::default());
    let costs = step_costs::StepCosts { streams: tokens.clone(), tokens, passes, depth };
    let room = lengths::StepRoom { n_streams: 1, tokens_max: 512, drafts_max: 1, held_tokens: 0 };
    let mut drafter = Drafter::new(&[1, 2, 3], &[], DraftLimits { n_max: 31, n_min: 0 });
    let making = DraftModelCosts { share }.times(&costs, 100, 2);
    let mut chances = numbers(5 + percent, 100);
    let (mut time, mut n_said) = (0.0, 0);
    while n_said < n_tokens {
        let made = drafter.made_draft(n_tokens - n_said, making);
        let possible = lengths::Possible { made: Some(made), ..drafter.propose(None, n_tokens - n_said) };
        let length = lengths::lengths(&[possible], room, &costs)[0];
        // No token occurs twice, so no drafts are found.
        let next = 1000 + n_said as Token;
        if length.n_tokens > 0 {
            let length = drafter.take_made(count_up(next, length.n_tokens), length);
            drafter.draft(length);
            time += making.first + making.further * (length.n_tokens - 1) as f64;
        }
        time += costs.step(0, 0, std::iter::once(1 + length.n_tokens as u32));
        let n_right = chances.by_ref().take(length.n_tokens).take_while(|chance| *chance < percent).count();
        (0..n_right as Token).for_each(|place| drafter.push(next + place));
        n_said += n_right + 1;
        drafter.push(500_000 + n_said as Token);
    }
    times[0].1 * n_said as f64 / time
}

#[test]
fn a_draft_model_speeds_responses_up_if_it_is_right_and_never_slows_them() {
    for (percent, share, least) in [(95, 0.1, 3.0), (80, 0.1, 1.8), (60, 0.1, 1.2), (90, 0.3, 1.4)] {
        let speed = speed_with_model(percent, 1000, &GPU, share);
        assert!(speed > least, "{percent} of 100 at {share}: {speed}");
    }
    for times in MACHINES {
        for (percent, n_tokens) in [(0, 100), (0, 2000), (20, 200), (40, 1000)] {
            for share in [0.05, 0.3, 1.0] {
                let speed = speed_with_model(percent, n_tokens, times, share);
                assert!(speed * 1.02 >= 1.0, "{percent} of 100, {n_tokens} tokens, {share}, {times:?}: {speed}");
            }
        }
    }
    assert!((speed_with_model(100, 300, &GPU, 1.0) - 1.0).abs() < 1e-9, "a model as slow as the served one");
}

/// Returns the speed-up of a given response.
fn speed((prompt, answer): (&[Token], &[Token]), times: &[(u32, f64)]) -> f64 {
    speed_of((prompt, answer.len()), times, |n_said, _| answer[n_said])
}

/// Returns the speed-up of a response if `percent` of the proposed tokens are right.
fn speed_where_accepted(percent: u64, n_tokens: usize, times: &[(u32, f64)]) -> f64 {
    // Only three tokens occur, so there is a proposal in every step.
    let prompt: Vec<Token> = numbers(7, 3).take(5000).map(|token| token as Token).collect();
    let mut chances = numbers(11 + percent, 100);
    speed_of((&prompt, n_tokens), times, |_, proposed| match (proposed, chances.next()) {
        (Some(token), Some(chance)) if chance < percent => token,
        (token, _) => (token.unwrap_or(0) + 1) % 3,
    })
}

#[test]
fn rejected_drafts_do_not_slow_a_response() {
    // At most 2 % longer, from 100 tokens on.
    let cases = [(0, 100), (0, 200), (0, 2000), (2, 200), (5, 200), (5, 2000), (20, 200), (20, 2000)];
    for (times, (percent, n_tokens)) in MACHINES.into_iter().flat_map(|times| cases.map(|case| (times, case))) {
        let speed = speed_where_accepted(percent, n_tokens, times);
        assert!(speed * 1.02 >= 1.0, "{percent} of 100, {n_tokens} tokens, {times:?}: {speed}");
    }
}

#[test]
fn accepted_drafts_speed_a_response_up() {
    for (times, least) in MACHINES.into_iter().zip([1.5, 1.5, 5.0]) {
        for (percent, n_tokens) in [(99, 200), (99, 2000), (98, 400)] {
            let speed = speed_where_accepted(percent, n_tokens, times);
            assert!(speed >= least, "{percent} of 100, {n_tokens} tokens, {times:?}: {speed}");
        }
    }
}

#[test]
fn a_response_that_stops_copying_is_still_faster_in_total() {
    let prompt: Vec<Token> = numbers(7, 3).take(5000).map(|token| token as Token).collect();
    for times in MACHINES {
        let mut n_copied = 0;
        let speed = speed_of((&prompt, 400), times, |n_said, proposed| match proposed {
            Some(token) if n_said < 80 => {
                n_copied += 1;
                token
            }
            other => (other.unwrap_or(0) + 1) % 3,
        });
        assert!(n_copied > 50 && speed > 1.0, "{n_copied} {times:?}: {speed}");
    }
}

#[test]
fn a_common_end_of_many_prompts_slows_no_response() {
    // After the same 40 tokens every response begins differently.
    let mut memory = SuffixMemory::new(10_000);
    memory.learn(&ROOT, TenantId(1), &count_up(0, 40), &count_up(500, 100));
    let mut drafter = Drafter::new(&count_up(0, 40), &[], LIMITS);
    let possible = drafter.propose(memory.of(&ROOT), 31);
    assert!(possible.chances[0] > 0.9, "{possible:?}");
    let tokens = Curve::new(Q8_0);
    let (passes, depth) = (crate::batches::batch_plan::Passes::Together, step_costs::DepthCost::default());
    let costs = step_costs::StepCosts { streams: tokens.clone(), tokens, passes, depth };
    let room = lengths::StepRoom { n_streams: 1, tokens_max: 512, drafts_max: 1, held_tokens: 0 };
    assert_eq!(lengths::lengths(&[possible], room, &costs)[0], Length::default());
}

#[test]
fn copying_a_text_with_changes_is_faster_on_every_machine() {
    let prompt: Vec<Token> = numbers(1, 5000).take(400).map(|token| token as Token).collect();
    let mut answer = prompt.clone();
    answer.iter_mut().skip(25).step_by(30).for_each(|token| *token += 5000);
    let speeds = MACHINES.map(|times| speed((&prompt, &answer), times));
    assert!(speeds[0] > 1.4 && speeds[1] > 1.4 && speeds[2] > 5.0, "{speeds:?}");
    let repeated = [&prompt[..], &prompt].concat();
    assert!(speed((&prompt, &repeated), &Q8_0) > 2.0, "{}", speed((&prompt, &repeated), &Q8_0));
}

#[test]
fn recurring_phrases_do_not_slow_a_response() {
    // Phrases of 5 tokens in random order.
    let phrases = numbers(2, 30).take(200);
    let answer: Vec<Token> = phrases.flat_map(|phrase| count_up(100 * phrase as Token, 5)).collect();
    let speeds = MACHINES.map(|times| speed((&[1, 2, 3], &answer), times));
    assert!(speeds.iter().all(|speed| *speed > 0.98), "{speeds:?}");
    let random: Vec<Token> = numbers(3, 1000).take(1000).map(|token| token as Token).collect();
    let unrepeated = speed((&[1, 2, 3], &random), &Q8_0);
    assert!((unrepeated - 1.0).abs() < 1e-9, "{unrepeated}");
}
