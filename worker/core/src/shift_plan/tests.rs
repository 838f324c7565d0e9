//! Moves and shifts by example, and applied to lists of tokens.

use proptest::prelude::*;
use warmpath_common::block_hash::{BlockHash, ChainRoot, block_chain, block_hash};
use warmpath_common::model::MemoryKind;

use super::*;
use crate::slot_table::{Acquire, AfterUse, Shape};

fn check(held: &[Token], prompt: &[Token], n_run_min: usize, expected: &[(u32, u32, u32)]) {
    let n_common = n_common(held, prompt);
    let moves = moves(held, prompt, (n_common, n_run_min));
    let plain: Vec<_> = moves.iter().map(|one| (one.from_token, one.to_token, one.n_tokens)).collect();
    assert_eq!(plain, expected, "{held:?} -> {prompt:?}");
    assert!(prompt.starts_with(&applied(held, n_common, &moves)));
}

fn n_common(held: &[Token], prompt: &[Token]) -> usize {
    let n_same = held.iter().zip(prompt).take_while(|(held, wanted)| held == wanted).count();
    n_same.min(prompt.len() - 1)
}

/// Moves tokens in a list of cells, each with its position, as llama.cpp does, and returns them by position.
fn applied(held: &[Token], n_kept: usize, moves: &[Move]) -> Vec<Token> {
    let mut cells: Vec<(u32, Token)> = (0..).zip(held.iter().copied()).collect();
    let mut end = to_u32(n_kept);
    for one in moves {
        cells.retain(|(position, _)| !(one.to_token..one.from_token).contains(position));
        for (position, _) in &mut cells {
            if (one.from_token..one.from_token + one.n_tokens).contains(position) {
                *position -= one.from_token - one.to_token;
            }
        }
        end = one.to_token + one.n_tokens;
    }
    cells.retain(|(position, _)| *position < end);
    cells.sort_unstable();
    assert!(cells.iter().enumerate().all(|(idx, (position, _))| to_u32(idx) == *position), "a gap or an overlap");
    cells.into_iter().map(|(_, token)| token).collect()
}

#[test]
fn moves_what_the_prompt_has_further_on() {
    let held = [1, 2, 3, 4, 5, 6, 7, 8, 9];
    check(&held, &[1, 2, 5, 6, 7, 8, 9, 10], 3, &[(4, 2, 5)]);
    check(&held, &[1, 2, 4, 5, 7, 8, 9, 10], 2, &[(3, 2, 2), (6, 4, 3)]);
    check(&held, &[1, 2, 4, 5, 7, 8, 9, 10], 3, &[]);
    check(&held, &[1, 2, 0, 4, 5, 6, 7, 8], 2, &[]);
    check(&held, &[1, 2, 3, 4, 5, 6, 7, 8, 9], 1, &[]);
}

#[test]
fn leaves_one_token_to_compute() {
    check(&[1, 2, 3, 4, 5], &[1, 3, 4, 5], 2, &[(2, 1, 2)]);
    check(&[1, 2, 3, 4, 5], &[1, 3, 4], 2, &[]);
    check(&[1, 2], &[5], 1, &[]);
}

#[test]
fn drops_half_of_what_is_behind_the_kept_tokens_unless_told_otherwise() {
    let dropped = |n_held, n_keep, n_discard| {
        context_shift(n_held, n_keep, n_discard).map(|shift| (shift.from_token, shift.n_dropped))
    };
    assert_eq!(dropped(100, 0, None), Some((0, 50)));
    assert_eq!(dropped(100, 20, None), Some((20, 40)));
    assert_eq!(dropped(100, 20, Some(7)), Some((20, 7)));
    assert_eq!(dropped(100, 20, Some(1000)), Some((20, 79)));
    assert_eq!(dropped(100, 20, Some(0)), Some((20, 1)), "nothing dropped would be no way on");
    assert_eq!(dropped(100, 1000, None), Some((96, 2)), "some tokens are always left to drop");
    assert_eq!(dropped(2, 0, None), Some((0, 1)));
    assert_eq!(dropped(1, 0, None), None);
    assert_eq!(dropped(0, 0, None), None);
}

fn root(salt: u8) -> BlockHash {
    ChainRoot { model_fingerprint: &[0; 32], lora: &[], cache_salt: &[salt] }.hash()
}

/// Returns a table in which one slot for each of these prompts has computed it.
fn table(prompts: &[(u8, &[Token], AfterUse)]) -> SlotTable {
    let shape =
        Shape { n_slots: 4, context_tokens: 64, block_size_tokens: 2, memory: MemoryKind::Full, hasher: block_hash };
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
    let wish = Wish { prompt, chain: &[], root: &root, tenant: None, reuse: Reuse::Allowed, wanted: None };
    best(table, &wish, n_run_min).map(|reused| (reused.slot, reused.n_exact, reused.n_tokens()))
}

#[test]
fn takes_the_slot_that_covers_most_and_never_another_tenants() {
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
    assert_eq!(best_for(&table, &[4, 5, 6, 7, 8, 9, 3], 2), None, "the first token is always the prompt's own");
}

proptest! {
    #[test]
    fn moved_tokens_are_the_prompts_first_ones(
        held in prop::collection::vec(0_u32..3, 0..40),
        prompt in prop::collection::vec(0_u32..3, 1..40),
        n_run_min in 1_usize..6,
    ) {
        let n_common = n_common(&held, &prompt);
        let moves = moves(&held, &prompt, (n_common, n_run_min));
        let tokens = applied(&held, n_common, &moves);
        prop_assert!(tokens.len() < prompt.len());
        prop_assert!(prompt.starts_with(&tokens));
        let (mut from, mut to) = (to_u32(n_common), to_u32(n_common));
        for one in moves {
            prop_assert!(one.from_token >= from && one.from_token >= one.to_token && one.to_token == to);
            prop_assert!(one.n_tokens as usize >= n_run_min);
            (from, to) = (one.from_token + one.n_tokens, one.to_token + one.n_tokens);
        }
        prop_assert!(from as usize <= held.len());
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
