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
