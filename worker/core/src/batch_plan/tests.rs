//! Batch plans by example, and against what every batch must keep.

use proptest::prelude::*;

use super::*;

const ROOM: Room = Room { batch_tokens: 100, ubatch_tokens: 20 };

fn decode(slot: u16) -> Pending {
    Pending { slot: SlotId(slot), work: Work::Decode, order: u64::from(slot) }
}

fn prefill(slot: u16, n_tokens: u32) -> Pending {
    Pending { slot: SlotId(slot), work: Work::Prefill { n_tokens }, order: u64::from(slot) }
}

fn check(pending: &[Pending], expected: &[(u16, u32)]) {
    let shares: Vec<_> = plan(pending, ROOM).iter().map(|share| (share.slot.0, share.n_tokens)).collect();
    assert_eq!(shares, expected);
}

#[test]
fn gives_a_lone_prompt_the_whole_batch() {
    check(&[prefill(0, 70)], &[(0, 70)]);
    check(&[prefill(0, 101)], &[(0, 100)]);
    check(&[], &[]);
}

#[test]
fn keeps_to_one_micro_batch_while_anything_decodes() {
    check(&[prefill(0, 4000), decode(1)], &[(0, 19), (1, 1)]);
    check(&[decode(0), decode(1)], &[(0, 1), (1, 1)]);
}

#[test]
fn lets_short_prompts_pass_without_stopping_the_first() {
    check(&[prefill(0, 4000), prefill(1, 3000), prefill(2, 10)], &[(0, 50), (1, 40), (2, 10)]);
    check(&[prefill(0, 4000), prefill(1, 30), prefill(2, 10)], &[(0, 60), (1, 30), (2, 10)]);
}

#[test]
fn shares_out_by_arrival_and_lines_up_by_slot() {
    let late = Pending { order: 9, ..prefill(0, 4000) };
    check(&[late, prefill(1, 4000)], &[(1, 100)]);
    check(&[late, prefill(1, 50)], &[(0, 50), (1, 50)]);
}

fn pending() -> impl Strategy<Value = Vec<Pending>> {
    let work = prop_oneof![Just(Work::Decode), (1_u32..500).prop_map(|n_tokens| Work::Prefill { n_tokens })];
    prop::collection::vec((work, 0_u64..50), 0..16).prop_map(|works| {
        let pending = |(slot, (work, order))| Pending { slot: SlotId(slot), work, order };
        (0..).zip(works).map(pending).collect()
    })
}

proptest! {
    #[test]
    fn fills_the_room_without_forgetting_anyone_who_decodes(pending in pending(), ubatch in 17_u32..64, more in 0_u32..200) {
        let room = Room { batch_tokens: ubatch + more, ubatch_tokens: ubatch };
        let shares = plan(&pending, room);
        let share = |slot| shares.iter().find(|share| share.slot == slot).map_or(0, |share| share.n_tokens);
        let n_decoding = pending.iter().filter(|sequence| sequence.work == Work::Decode).count() as u32;
        let limit = if n_decoding > 0 { room.ubatch_tokens } else { room.batch_tokens };
        let n_wanted: u32 = pending.iter().map(|sequence| match sequence.work {
            Work::Decode => 1,
            Work::Prefill { n_tokens } => n_tokens,
        }).sum();
        let n_shared: u32 = shares.iter().map(|share| share.n_tokens).sum();
        prop_assert_eq!(n_shared, n_wanted.min(limit));
        prop_assert!(shares.iter().all(|share| share.n_tokens > 0));
        for sequence in &pending {
            let n = share(sequence.slot);
            match sequence.work {
                Work::Decode => prop_assert_eq!(n, 1),
                Work::Prefill { n_tokens } => prop_assert!(n <= n_tokens),
            }
        }
        let prompts = pending.iter().filter(|sequence| sequence.work != Work::Decode);
        if let Some(first) = prompts.min_by_key(|sequence| (sequence.order, sequence.slot)) {
            prop_assert!(share(first.slot) > 0, "the first prompt stands still");
        }
    }
}
