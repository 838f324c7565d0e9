//! Tests of a sequence's drafter: what it proposes, and how its chances follow the sequence.

use proptest::prelude::*;

use super::suffix_memory::SuffixMemory;
use super::*;
use crate::tenants::TenantId;
use warmpath_common::block_hash::BlockHash;

const LIMITS: DraftLimits = DraftLimits { n_max: 8, n_min: 0 };
const ROOT: BlockHash = BlockHash([1; 32]);

fn count_up(from: Token, n: usize) -> Vec<Token> {
    (from..).take(n).collect()
}

fn proposed(drafter: &mut Drafter, memory: Option<&NgramIndex>) -> Vec<Token> {
    let n = drafter.propose(memory, 5).chances.len();
    drafter.draft(n).to_vec()
}

#[test]
fn proposes_what_followed_in_the_prompt() {
    let prompt = [count_up(0, 20), vec![99, 10, 11, 12, 13]].concat();
    let mut drafter = Drafter::new(&prompt, &[], LIMITS);
    assert_eq!(proposed(&mut drafter, None), [14, 15, 16, 17, 18]);
    drafter.push(14);
    assert_eq!(proposed(&mut drafter, None), [15, 16, 17, 18, 19]);
    drafter.push(50);
    assert_eq!(proposed(&mut drafter, None), [0; 0]);
    assert_eq!(drafter.draft(3), [0; 0]);
}

#[test]
fn proposes_what_its_client_predicts_from_the_first_token_on() {
    let mut drafter = Drafter::new(&count_up(0, 6), &count_up(100, 30), LIMITS);
    assert_eq!(proposed(&mut drafter, None), [100, 101, 102, 103, 104]);
    drafter.push(7);
    assert_eq!(proposed(&mut drafter, None), [0; 0]);
    count_up(110, 4).into_iter().for_each(|token| drafter.push(token));
    assert_eq!(proposed(&mut drafter, None), [114, 115, 116, 117, 118], "it goes on behind a change");
}

#[test]
fn proposes_what_was_answered_before_if_that_matches_better() {
    let mut memory = SuffixMemory::new(10_000);
    memory.learn((&ROOT, TenantId(1)), &count_up(0, 20), &count_up(500, 20));
    let prompt = [vec![16, 17, 18, 19, 7, 7], count_up(0, 20)].concat();
    let mut drafter = Drafter::new(&prompt, &[], LIMITS);
    assert_eq!(proposed(&mut drafter, None), [7, 7, 0, 1, 2]);
    assert_eq!(proposed(&mut drafter, memory.of(&ROOT)), count_up(500, 5));
}

#[test]
fn chances_follow_what_the_sequence_takes_computed_or_not() {
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
        // It says four tokens of the text and then something else, again and again.
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
    fn a_proposal_is_within_its_limits_and_occurs_behind_the_same_tokens(
        prompt in prop::collection::vec(0_u32..3, 1..60),
        answer in prop::collection::vec(0_u32..3, 0..60),
        n_max in 0_usize..12,
    ) {
        let mut drafter = Drafter::new(&prompt, &[], LIMITS);
        let mut text = prompt;
        for token in answer {
            let possible = drafter.propose(None, n_max);
            let n = possible.chances.len();
            prop_assert!(n <= n_max.min(LIMITS.n_max));
            prop_assert!(possible.chances.iter().all(|chance| (0.0..=1.0).contains(chance)));
            let draft = drafter.draft(n).to_vec();
            if !draft.is_empty() {
                let wanted = [&text[text.len() - ngram_index::GRAM_TOKENS..], &draft[..1]].concat();
                prop_assert!(text.windows(wanted.len()).any(|window| window == wanted));
            }
            drafter.push(token);
            text.push(token);
        }
    }
}

/// Times of steps by their tokens: SmolLM2 Q8_0 on one CPU thread, and weights that are read once for all tokens.
const CPU: [(u32, f64); 6] = [(1, 10.8), (2, 29.0), (4, 39.0), (8, 54.0), (16, 83.0), (32, 140.0)];
const GPU: [(u32, f64); 3] = [(1, 10.0), (8, 11.0), (32, 14.0)];

/// Returns numbers below `n` that look random.
fn numbers(seed: u64, n: u64) -> impl Iterator<Item = u64> {
    let step =
        |state: &u64| Some(state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407));
    std::iter::successors(Some(seed), step).skip(1).map(move |state| (state >> 33) % n)
}

/// Returns how many times as fast an answer comes as without drafts, if steps take these times.
fn speed((prompt, answer): (&[Token], &[Token]), times: &[(u32, f64)]) -> f64 {
    let tokens = step_costs::Curve::new(times.iter().copied());
    let costs = step_costs::StepCosts { streams: tokens.clone(), tokens, passes: crate::batch_plan::Passes::Together };
    let room = lengths::StepRoom { n_streams: 1, tokens_max: 512, drafts_max: 1 };
    let mut drafter = Drafter::new(prompt, &[], DraftLimits { n_max: 31, n_min: 0 });
    let (mut time, mut n_said) = (0.0, 1);
    drafter.push(answer[0]);
    while n_said < answer.len() {
        let possible = drafter.propose(None, answer.len() - n_said);
        let n = lengths::lengths(&[possible], room, &costs)[0];
        let draft = drafter.draft(n).to_vec();
        let n_accepted = draft.iter().zip(&answer[n_said..]).take_while(|(drafted, said)| drafted == said).count();
        let n_chosen = (n_accepted + 1).min(answer.len() - n_said);
        answer[n_said..n_said + n_chosen].iter().for_each(|token| drafter.push(*token));
        n_said += n_chosen;
        time += costs.step(0, std::iter::once(1 + draft.len() as u32));
    }
    times[0].1 * (answer.len() - 1) as f64 / time
}

#[test]
fn a_text_that_is_copied_with_changes_comes_faster_on_every_machine() {
    let prompt: Vec<Token> = numbers(1, 5000).take(400).map(|token| token as Token).collect();
    let mut answer = prompt.clone();
    answer.iter_mut().skip(25).step_by(30).for_each(|token| *token += 5000);
    let speeds = (speed((&prompt, &answer), &CPU), speed((&prompt, &answer), &GPU));
    assert!(speeds.0 > 1.4 && speeds.1 > 5.0, "{speeds:?}");
    let repeated = [&prompt[..], &prompt].concat();
    assert!(speed((&prompt, &repeated), &CPU) > 2.0, "{}", speed((&prompt, &repeated), &CPU));
}

#[test]
fn a_free_text_whose_phrases_recur_is_not_slowed() {
    // Phrases of 5 tokens, of which any may follow any.
    let phrases = numbers(2, 30).take(200);
    let answer: Vec<Token> = phrases.flat_map(|phrase| count_up(100 * phrase as Token, 5)).collect();
    let speeds = (speed((&[1, 2, 3], &answer), &CPU), speed((&[1, 2, 3], &answer), &GPU));
    assert!(speeds.0 > 0.98 && speeds.1 > 0.98, "{speeds:?}");
    let random: Vec<Token> = numbers(3, 1000).take(1000).map(|token| token as Token).collect();
    let unrepeated = speed((&[1, 2, 3], &random), &CPU);
    assert!((unrepeated - 1.0).abs() < 1e-9, "{unrepeated}");
}
