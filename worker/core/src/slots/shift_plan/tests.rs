//! Examples of moves and shifts, and properties of random ones applied to lists of tokens.

use proptest::prelude::*;
use warmpath_common::block_hash::{BlockHash, ChainRoot, block_chain, block_hash};
use warmpath_common::model::MemoryKind;

use super::*;
use crate::slots::slot_table::{Acquire, AfterUse, SlotSizes};

fn check(held: &[Token], prompt: &[Token], n_run_min: usize, expected: &[(u32, u32, u32)]) {
    let n_common = n_common(held, prompt);
    let moves = moves(held, prompt, n_common, n_run_min);
    let plain: Vec<_> = moves.iter().map(|one| (one.from_token, one.to_token, one.n_tokens)).collect();
    assert_eq!(plain, expected, "{held:?} -> {prompt:?}");
    assert_are_of_the_prompt(prompt, &applied(held, n_common, &moves));
}

/// Asserts that all tokens are at their positions in the prompt, without the prompt's last one.
fn assert_are_of_the_prompt(prompt: &[Token], cells: &[(u32, Token)]) {
    assert!(cells.windows(2).all(|pair| pair[0].0 < pair[1].0), "two tokens at one position: {cells:?}");
    let wanted = &prompt[..prompt.len() - 1];
    assert!(cells.iter().all(|(position, token)| wanted.get(*position as usize) == Some(token)), "{cells:?}");
}

fn n_common(held: &[Token], prompt: &[Token]) -> usize {
    let n_same = held.iter().zip(prompt).take_while(|(held, wanted)| held == wanted).count();
    n_same.min(prompt.len() - 1)
}

/// Moves tokens in a list of cells; returns them with their positions, ascending.
fn applied(held: &[Token], n_kept: usize, moves: &[Move]) -> Vec<(u32, Token)> {
    let moved = moves.iter().flat_map(|one| {
        let tokens = &held[one.from_token as usize..][..one.n_tokens as usize];
        (one.to_token..).zip(tokens.iter().copied())
    });
    (0..).zip(held[..n_kept].iter().copied()).chain(moved).collect()
}

#[test]
fn moves_text_that_the_prompt_has_later() {
    let held = [1, 2, 3, 4, 5, 6, 7, 8, 9];
    check(&held, &[1, 2, 5, 6, 7, 8, 9, 10], 3, &[(4, 2, 5)]);
    check(&held, &[1, 2, 4, 5, 7, 8, 9, 10], 2, &[(3, 2, 2), (6, 4, 3)]);
    check(&held, &[1, 2, 4, 5, 7, 8, 9, 10], 3, &[(6, 4, 3)]);
    check(&held, &[1, 2, 5, 6, 7, 8, 9, 0], 6, &[]);
    check(&held, &[1, 2, 3, 4, 5, 6, 7, 8, 9], 1, &[]);
}

#[test]
fn moves_text_that_follows_new_tokens_of_the_prompt() {
    let held = [1, 2, 3, 4, 5, 6, 7, 8, 9];
    check(&held, &[1, 2, 0, 4, 5, 6, 7, 0], 2, &[(3, 3, 4)]);
    check(&held, &[1, 0, 0, 0, 3, 4, 5, 0], 2, &[(2, 4, 3)]);
    check(&held, &[1, 0, 5, 6, 7, 8, 9, 0], 2, &[(4, 2, 5)]);
    check(&held, &[1, 0, 2, 3, 0, 6, 7, 8, 9, 0], 2, &[(1, 2, 2), (5, 5, 4)]);
    check(&held, &[1, 7, 8, 9, 3, 4, 5, 6, 0], 2, &[(2, 4, 4)]);
}

#[test]
fn repeated_text_is_moved_from_the_occurrence_that_continues() {
    let held = [1, 5, 6, 7, 2, 5, 6, 7, 3, 4, 8];
    check(&held, &[0, 1, 5, 6, 7, 9, 5, 6, 7, 3, 4, 0], 2, &[(0, 1, 4), (5, 6, 5)]);
    check(&held, &[0, 5, 6, 7, 3, 4, 0], 3, &[(5, 1, 5)]);
}

#[test]
fn returns_the_tokens_before_the_first_gap() {
    let reused = |n_exact, moves: &[(u32, u32, u32)]| {
        let to_move = |&(from_token, to_token, n_tokens): &_| Move { from_token, to_token, n_tokens };
        Reused { slot: SlotId(0), n_exact, moves: moves.iter().map(to_move).collect() }
    };
    let check = |reused: Reused, n_in_place, behind_gaps: &[Range<u32>]| {
        assert_eq!((reused.n_in_place(), &reused.behind_gaps()[..]), (n_in_place, behind_gaps), "{reused:?}");
    };
    check(reused(3, &[(5, 3, 2), (8, 5, 4)]), 9, &[]);
    check(reused(3, &[(5, 4, 2), (9, 10, 3)]), 3, &[4..6, 10..13]);
    check(reused(3, &[(5, 3, 2), (8, 6, 4), (20, 10, 1), (30, 40, 5)]), 5, &[6..11, 40..45]);
}

#[test]
fn repetitive_text_takes_bounded_time() {
    // Each window of either text occurs thousands of times in the other one.
    let held = [vec![7; 20_000], vec![8; 10], vec![7; 20_000]].concat();
    let prompt = [vec![9], vec![7; 15_000], vec![9], vec![7; 15_000], vec![9]].concat();
    let moves = moves(&held, &prompt, 0, 32);
    assert_eq!(moves.iter().map(|one| one.n_tokens).sum::<u32>(), 30_000);
    let few = |step: u32| -> Vec<Token> { (0..20_000).map(|idx| (idx * step + idx / 7) % 3).collect() };
    let n_runs = super::moves(&few(1), &few(2), 0, 1).len();
    assert!((1..=runs::RUNS_MAX).contains(&n_runs), "{n_runs} runs");
}

#[test]
fn leaves_one_token_to_compute() {
    check(&[1, 2, 3, 4, 5], &[1, 3, 4, 5], 2, &[(2, 1, 2)]);
    check(&[1, 2, 3, 4, 5], &[1, 3, 4], 2, &[]);
    check(&[1, 2], &[5], 1, &[]);
}

#[test]
fn drops_half_of_the_tokens_after_the_kept_ones_by_default() {
    let dropped = |n_held, n_keep, n_discard| {
        context_shift(n_held, n_keep, n_discard).map(|shift| (shift.from_token, shift.n_dropped))
    };
    assert_eq!(dropped(100, 0, None), Some((0, 50)));
    assert_eq!(dropped(100, 20, None), Some((20, 40)));
    assert_eq!(dropped(100, 20, Some(7)), Some((20, 7)));
    assert_eq!(dropped(100, 20, Some(1000)), Some((20, 79)));
    assert_eq!(dropped(100, 20, Some(0)), Some((20, 1)), "at least one token is dropped");
    assert_eq!(dropped(100, 1000, None), Some((96, 2)), "some tokens can always be dropped");
    assert_eq!(dropped(2, 0, None), Some((0, 1)));
    assert_eq!(dropped(1, 0, None), None);
    assert_eq!(dropped(0, 0, None), None);
}

fn root(salt: u8) -> BlockHash {
    ChainRoot { model_fingerprint: &[0; 32], lora: &[], cache_salt: &[salt] }.hash()
}

/// Returns a table in which one slot for each of these prompts has computed it.
fn table(prompts: &[(u8, &[Token], AfterUse)]) -> SlotTable {
    let shape = SlotSizes {
        n_slots: 4,
        context_tokens: 64,
        block_size_tokens: 2,
        memory: MemoryKind::Full,
        hasher: block_hash,
    };
    let mut table = SlotTable::new(shape);
    for (slot, (salt, prompt, after_use)) in (0..).map(SlotId).zip(prompts) {
        let prompt_chain = &block_chain(&root(*salt), prompt, 2);
        table.acquire(Acquire {
            slot,
            prompt,
            n_start_tokens: 0,
            rewinds_to_tokens: 0,
            root: root(*salt),
            prompt_chain,
            after_use: *after_use,
        });
        table.extend(slot, prompt);
        let _ = table.release(slot);
    }
    table
}

fn best_for(table: &SlotTable, prompt: &[Token], n_run_min: u32) -> Option<(SlotId, u32, u32)> {
    let root = root(0);
    let reuse = Reuse::Allowed;
    let request = SlotRequest { prompt, chain: &[], root: &root, tenant: None, reuse, wanted: None, media: &[] };
    best(table, &request, n_run_min).map(|reused| (reused.slot, reused.n_exact, reused.n_tokens()))
}

#[test]
fn takes_the_slot_that_covers_most_and_never_another_roots() {
    let long = [1, 2, 3, 4, 5, 6, 7, 8, 9];
    let table = table(&[
        (0, &[1, 2, 9, 9, 9, 9], AfterUse::Keep),
        (0, &long[..7], AfterUse::Keep),
        (1, &long, AfterUse::Keep),
        (0, &long, AfterUse::Forget),
    ]);
    assert_eq!(best_for(&table, &[1, 4, 5, 6, 7, 8, 9, 3], 2), Some((SlotId(1), 1, 5)));
    assert_eq!(best_for(&table, &[1, 4, 5, 6, 7, 8, 9, 3], 5), None);
    assert_eq!(best_for(&table, &[1, 4, 5, 6, 7, 8, 9, 3], 0), None);
    assert_eq!(best_for(&table, &[4, 5, 6, 7, 8, 9, 3], 2), None, "the first token must be the prompt's");
}

/// Returns the maximum number of tokens that a chain of runs of at least `n_run_min` tokens can cover, by trying all
/// chains.
fn most_covered(held: &[Token], wanted: &[Token], n_run_min: usize) -> usize {
    let mut most = vec![vec![0; wanted.len() + 1]; held.len() + 1];
    for from in (0..held.len()).rev() {
        for to in (0..wanted.len()).rev() {
            let n_same = held[from..].iter().zip(&wanted[to..]).take_while(|(held, wanted)| held == wanted).count();
            let with_run = (n_run_min..=n_same).map(|n| n + most[from + n][to + n]).max();
            most[from][to] = most[from + 1][to].max(most[from][to + 1]).max(with_run.unwrap_or(0));
        }
    }
    most[0][0]
}

fn n_moved(moves: &[Move]) -> usize {
    moves.iter().map(|one| one.n_tokens as usize).sum()
}

/// Returns a slot's text and a prompt with parts of it, none of them twice, in any order, with new tokens in between.
fn rearranged() -> impl Strategy<Value = (Vec<Token>, Vec<Token>)> {
    let cuts = prop::collection::vec((1_usize..12, 0_usize..4, any::<bool>(), any::<u16>()), 1..7);
    cuts.prop_map(|cuts| {
        let n_held = cuts.iter().map(|(n, ..)| n).sum::<usize>() as Token;
        let held: Vec<Token> = (0..n_held).collect();
        let (mut parts, mut from, mut new) = (Vec::new(), 0, 1000..);
        for (n, n_new, stays, place) in cuts {
            let part = if stays { &held[from..from + n] } else { &[] };
            let part: Vec<Token> = part.iter().copied().chain(new.by_ref().take(n_new)).collect();
            // Most parts keep their order.
            parts.push((if place % 4 == 0 { usize::from(place) } else { from }, part));
            from += n;
        }
        parts.sort_by_key(|(place, _)| *place);
        let prompt = parts.into_iter().flat_map(|(_, part)| part).chain([999]).collect();
        (held, prompt)
    })
}

proptest! {
    #[test]
    fn moved_tokens_are_at_their_positions_in_the_prompt(
        held in prop::collection::vec(0_u32..3, 0..40),
        prompt in prop::collection::vec(0_u32..3, 1..40),
        n_run_min in 1_usize..6,
    ) {
        let n_common = n_common(&held, &prompt);
        let moves = moves(&held, &prompt, n_common, n_run_min);
        assert_are_of_the_prompt(&prompt, &applied(&held, n_common, &moves));
        let (mut from, mut to) = (to_u32(n_common), to_u32(n_common));
        for one in &moves {
            prop_assert!(one.from_token >= from && one.to_token >= to);
            prop_assert!(one.n_tokens as usize >= n_run_min);
            (from, to) = (one.from_token + one.n_tokens, one.to_token + one.n_tokens);
        }
        prop_assert!(from as usize <= held.len());
        let wanted = &prompt[n_common..prompt.len() - 1];
        prop_assert!(n_moved(&moves) <= most_covered(&held[n_common..], wanted, n_run_min));
    }

    #[test]
    fn as_many_tokens_as_possible_are_moved_if_none_occurs_twice(
        (held, prompt) in rearranged(),
        n_run_min in 1_usize..6,
    ) {
        let n_common = n_common(&held, &prompt);
        let wanted = &prompt[n_common..prompt.len() - 1];
        let n_moved = n_moved(&moves(&held, &prompt, n_common, n_run_min));
        prop_assert_eq!(n_moved, most_covered(&held[n_common..], wanted, n_run_min), "{:?} -> {:?}", held, prompt);
    }

    #[test]
    fn a_shift_drops_some_tokens_and_keeps_the_first_and_the_last(
        n_held in 0_u32..60,
        n_keep in 0_u32..80,
        n_discard in prop::option::of(0_u32..80),
    ) {
        match context_shift(n_held, n_keep, n_discard) {
            None => prop_assert!(n_held < 2),
            Some(shift) => {
                prop_assert!(shift.n_dropped > 0 && shift.from_token + shift.n_dropped < n_held);
                prop_assert!(shift.from_token == n_keep || n_keep > n_held.saturating_sub(SHIFTED_TOKENS_MIN));
            }
        }
    }
}
