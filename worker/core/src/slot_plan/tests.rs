//! Slot plans by example: who gets which slot, and what is left alone.

use warmpath_common::block_hash::ChainRoot;
use warmpath_common::model::MemoryKind;

use super::*;
use crate::slot_table::{Acquire, AfterUse};

const BUSY: bool = true;
const IDLE: bool = false;

fn root(salt: u8) -> BlockHash {
    ChainRoot { model_fingerprint: &[0; 32], lora: &[], cache_salt: &[salt] }.hash()
}

/// Returns a table whose slots were used in the order given: which slot, what it holds, whether it is busy.
fn table(memory: MemoryKind, used: &[(u16, Vec<Token>, bool)]) -> SlotTable {
    let mut table = SlotTable::new(4, 1000, 4, memory);
    for (slot, tokens, busy) in used {
        let slot = SlotId(*slot);
        let start = Start::Cold;
        table.acquire(Acquire { slot, start, root: root(0), prompt_chain: &[], after_use: AfterUse::Keep });
        table.extend(slot, tokens);
        if *busy == IDLE {
            let _ = table.release(slot);
        }
    }
    table
}

/// Returns a list of `shared` tokens that all such lists share and `own` ones that depend on `seed`.
fn tokens(shared: u32, own: u32, seed: u32) -> Vec<Token> {
    (0..shared).chain((0..own).map(|n| 1000 * seed + n)).collect()
}

fn check(table: &SlotTable, prompt: &[Token], expected: Option<(u16, u32)>) {
    let wish = Wish { prompt, root: &root(0), reuse: Reuse::Allowed, wanted: None };
    assert_eq!(plan(table, &wish).map(|plan| (plan.slot.0, plan.start.n_kept())), expected);
}

#[test]
fn goes_on_in_the_slot_of_the_conversation() {
    let table = table(MemoryKind::Full, &[(2, tokens(10, 50, 1), IDLE), (1, tokens(10, 50, 2), IDLE)]);
    check(&table, &tokens(10, 80, 1), Some((2, 60)));
    check(&table, &tokens(10, 80, 2), Some((1, 60)));
}

#[test]
fn goes_back_in_a_conversation_and_gives_up_its_end() {
    let table = table(MemoryKind::Full, &[(2, tokens(10, 50, 1), IDLE)]);
    check(&table, &[tokens(10, 30, 1), vec![7; 5]].concat(), Some((2, 40)));
}

#[test]
fn always_computes_one_token() {
    let table = table(MemoryKind::Full, &[(2, tokens(10, 0, 1), IDLE)]);
    check(&table, &tokens(10, 0, 1), Some((2, 9)));
    check(&table, &tokens(6, 0, 1), Some((2, 5)));
    check(&table, &[0], Some((0, 0)));
}

#[test]
fn leaves_a_long_conversation_alone_for_a_short_shared_start() {
    let used = [(0, tokens(10, 50, 1), IDLE), (1, tokens(10, 60, 2), IDLE)];
    check(&table(MemoryKind::Full, &used), &tokens(10, 20, 3), Some((2, 0)));
}

#[test]
fn takes_a_shared_start_that_is_worth_more_than_what_follows_it() {
    let used = [(1, tokens(100, 20, 1), IDLE)];
    check(&table(MemoryKind::Full, &used), &tokens(100, 20, 3), Some((1, 100)));
}

#[test]
fn takes_the_slot_used_longest_ago_when_all_hold_something_else() {
    let used = [2, 0, 3, 1].map(|slot| (slot, tokens(0, 50, u32::from(slot) + 1), IDLE));
    check(&table(MemoryKind::Full, &used), &tokens(0, 20, 9), Some((2, 0)));
}

#[test]
fn a_slot_is_in_use_until_its_sequence_ends() {
    let used = [0, 1, 2, 3].map(|slot| (slot, tokens(0, 50, u32::from(slot) + 1), BUSY));
    let mut table = table(MemoryKind::Full, &used);
    for slot in [3, 0, 2, 1] {
        let _ = table.release(SlotId(slot));
    }
    check(&table, &tokens(0, 20, 9), Some((3, 0)));
}

#[test]
fn prefers_the_oldest_of_slots_that_share_the_same_start() {
    let used = [2, 0, 3, 1].map(|slot| (slot, tokens(30, 50, u32::from(slot) + 1), IDLE));
    check(&table(MemoryKind::Full, &used), &tokens(30, 20, 9), Some((2, 30)));
}

#[test]
fn prefers_a_slot_that_loses_nothing() {
    let used = [(2, tokens(30, 50, 1), IDLE), (3, tokens(30, 0, 1), IDLE)];
    check(&table(MemoryKind::Full, &used), &tokens(30, 20, 9), Some((3, 30)));
}

#[test]
fn waits_only_while_every_slot_is_busy() {
    let mut used = [0, 1, 2, 3].map(|slot| (slot, tokens(10, 5, u32::from(slot) + 1), BUSY));
    check(&table(MemoryKind::Full, &used), &tokens(10, 5, 1), None);
    used[3].2 = IDLE;
    check(&table(MemoryKind::Full, &used), &tokens(10, 6, 1), Some((3, 10)));
}

#[test]
fn never_reuses_under_another_root() {
    let table = table(MemoryKind::Full, &[(1, tokens(50, 0, 1), IDLE)]);
    let wish = Wish { prompt: &tokens(60, 0, 1), root: &root(1), reuse: Reuse::Allowed, wanted: None };
    assert_eq!(plan(&table, &wish), Some(SlotPlan { slot: SlotId(0), start: Start::Cold }));
    assert_eq!(best_usable(&table, &wish), 0);
}

#[test]
fn a_request_without_the_cache_takes_the_least_valuable_slot_cold() {
    let table = table(MemoryKind::Full, &[(0, tokens(50, 0, 1), IDLE)]);
    let wish = Wish { prompt: &tokens(60, 0, 1), root: &root(0), reuse: Reuse::Forbidden, wanted: Some(SlotId(2)) };
    assert_eq!(plan(&table, &wish), Some(SlotPlan { slot: SlotId(2), start: Start::Cold }));
}

#[test]
fn a_wanted_slot_decides_between_equals_and_never_lowers_reuse() {
    let used = [(1, tokens(50, 0, 1), IDLE), (2, tokens(50, 0, 1), IDLE), (3, tokens(9, 9, 4), IDLE)];
    let table = table(MemoryKind::Full, &used);
    let prompt = tokens(60, 0, 1);
    for (wanted, expected) in [(1, 1), (2, 2), (3, 1), (0, 1), (99, 1)] {
        let wish = Wish { prompt: &prompt, root: &root(0), reuse: Reuse::Allowed, wanted: Some(SlotId(wanted)) };
        assert_eq!(plan(&table, &wish).map(|plan| (plan.slot.0, plan.start.n_kept())), Some((expected, 50)));
    }
}

#[test]
fn state_that_cannot_be_rewound_is_only_extended() {
    let used = [(1, tokens(50, 0, 1), IDLE)];
    for memory in [MemoryKind::Recurrent, MemoryKind::Hybrid] {
        let table = table(memory, &used);
        check(&table, &tokens(51, 0, 1), Some((1, 50)));
        check(&table, &tokens(50, 0, 1), Some((0, 0)));
        check(&table, &tokens(49, 9, 1), Some((0, 0)));
    }
}

#[test]
fn estimates_what_a_busy_slot_will_leave() {
    let table = table(MemoryKind::Full, &[(1, tokens(50, 0, 1), BUSY)]);
    let wish = Wish { prompt: &tokens(60, 0, 1), root: &root(0), reuse: Reuse::Allowed, wanted: None };
    assert_eq!(best_usable(&table, &wish), 50);
}
