//! Examples of batch plans, and properties of random ones.

use proptest::prelude::*;

use super::*;

const ROOM: BatchLimits = BatchLimits { batch_tokens: 100, ubatch_tokens: 20, passes: Passes::Together };
const USUAL: Duration = Duration::from_millis(100);
/// Speed of a worker that has measured nothing except the time of a usual prompt.
const PACE: BatchTiming = BatchTiming { usual_prompt: USUAL, batch: Duration::ZERO, token: Duration::ZERO };

fn decode(slot: u16) -> RunningSequence {
    RunningSequence { slot: SlotId(slot), work: Work::Decode, waited: Duration::ZERO, passed_tokens: 0 }
}

fn prefill(slot: u16, n_tokens: u32) -> RunningSequence {
    waited(slot, n_tokens, 1000)
}

fn waited(slot: u16, n_tokens: u32, ms: u64) -> RunningSequence {
    RunningSequence {
        slot: SlotId(slot),
        work: Work::Prefill { n_tokens, ends: true },
        waited: Duration::from_millis(ms),
        passed_tokens: 0,
    }
}

#[track_caller]
fn check(pending: &[RunningSequence], expected: &[(u16, u32)]) {
    check_at(PACE, pending, expected);
}

#[track_caller]
fn check_apart(pending: &[RunningSequence], expected: &[(u16, u32)]) {
    check_in(BatchLimits { passes: Passes::Apart, ..ROOM }, PACE, pending, expected);
}

fn stream(slot: u16, passed_tokens: u32) -> RunningSequence {
    RunningSequence { passed_tokens, ..decode(slot) }
}

#[track_caller]
fn check_at(timing: BatchTiming, pending: &[RunningSequence], expected: &[(u16, u32)]) {
    check_in(ROOM, timing, pending, expected);
}

#[track_caller]
fn check_in(room: BatchLimits, timing: BatchTiming, pending: &[RunningSequence], expected: &[(u16, u32)]) {
    let shares: Vec<_> = plan(pending, room, timing, 0).iter().map(|share| (share.slot.0, share.n_tokens)).collect();
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
fn short_prompts_overtake_longer_ones_of_the_same_age() {
    check(&[prefill(0, 4000), prefill(1, 3000), prefill(2, 10)], &[(1, 90), (2, 10)]);
    check(&[prefill(0, 4000), prefill(1, 30), prefill(2, 10)], &[(0, 60), (1, 30), (2, 10)]);
    check(&[waited(0, 4000, 0), waited(1, 60, 0), waited(2, 70, 0)], &[(1, 60), (2, 40)]);
}

#[test]
fn prefers_the_longest_wait_per_remaining_token() {
    // Priorities with the 100 ms of a usual prompt; without it 4,000 ms / 4,000 tokens and 60 ms / 60 tokens would be
    // equal.
    check(&[waited(0, 4000, 4000), waited(1, 60, 60)], &[(0, 40), (1, 60)]);
    check(&[waited(0, 4000, 10_600), waited(1, 60, 59)], &[(0, 100)]);
    check(&[waited(0, 4000, 10_500), waited(1, 60, 60)], &[(0, 40), (1, 60)]);
    check(&[waited(0, 50, 10), waited(1, 50, 10), waited(2, 50, 11)], &[(0, 50), (2, 50)]);
    check(&[waited(0, 90, 0), waited(1, 80, 0)], &[(0, 20), (1, 80)]);
}

#[test]
fn a_prompt_that_ends_waits_for_others_only_if_waiting_saves_more() {
    let timing = |batch_ms, token_ms| BatchTiming {
        batch: Duration::from_millis(batch_ms),
        token: Duration::from_millis(token_ms),
        ..PACE
    };
    let two = [prefill(0, 40), prefill(1, 30)];
    check_at(timing(0, 1), &two, &[(1, 30)]);
    check_at(timing(39, 1), &two, &[(1, 30)]);
    check_at(timing(40, 1), &two, &[(0, 40), (1, 30)]);
    // Two prompts wait, so the second joins; the third does not, because it would make two prompts end later.
    let three = [prefill(0, 10), prefill(1, 20), prefill(2, 30)];
    check_at(timing(10, 1), &three, &[(0, 10), (1, 20)]);
    check_at(timing(9, 1), &three, &[(0, 10)]);
    check_at(timing(60, 1), &three, &[(0, 10), (1, 20), (2, 30)]);
    // A prompt that continues in the next batch anyway does not wait for others.
    check_at(timing(0, 1), &[prefill(0, 4000), prefill(1, 10), decode(2)], &[(1, 10), (2, 1)]);
    check_at(timing(0, 1), &[waited(0, 300, 60_000), waited(1, 10, 0)], &[(0, 100)]);
    check_at(timing(0, 1), &[decode(0), decode(1), prefill(2, 5)], &[(0, 1), (1, 1), (2, 5)]);
}

#[test]
fn requests_that_wait_for_a_slot_count_in_the_saving_of_a_shared_batch() {
    let timing = BatchTiming { batch: Duration::from_millis(10), token: Duration::from_millis(1), ..PACE };
    let two = [prefill(0, 40), prefill(1, 30)];
    assert_eq!(plan(&two, ROOM, timing, 2).len(), 1);
    assert_eq!(plan(&two, ROOM, timing, 3).len(), 2);
}

#[test]
fn prompts_and_streams_in_separate_passes_take_turns() {
    check_apart(&[decode(0), prefill(1, 8), decode(2)], &[(1, 8)]);
    check_apart(&[stream(0, 8), decode(1), decode(2)], &[(0, 1), (1, 1), (2, 1)]);
    // Another prompt that ends within the micro-batch also goes first; one that would not end waits for the streams.
    check_apart(&[stream(0, 8), prefill(1, 12)], &[(1, 12)]);
    check_apart(&[stream(0, 8), stream(2, 3), prefill(1, 13)], &[(0, 1), (2, 1)]);
    check_apart(&[stream(0, 20), prefill(1, 2)], &[(0, 1)]);
    // A long prompt takes a micro-batch, and then it is the streams' turn.
    check_apart(&[decode(0), prefill(1, 4000)], &[(1, 20)]);
    check_apart(&[stream(0, 20), prefill(1, 3980)], &[(0, 1)]);
    check_apart(&[prefill(0, 70)], &[(0, 70)]);
}

#[test]
fn the_last_token_of_a_prompt_is_computed_with_the_streams() {
    check_apart(&[decode(0), prefill(1, 1), decode(2)], &[(0, 1), (1, 1), (2, 1)]);
    check_apart(&[decode(0), prefill(1, 1), waited(2, 15, 0)], &[(0, 1), (1, 1)]);
    check_apart(&[decode(0), waited(1, 1, 0), waited(2, 15, 60_000)], &[(1, 1), (2, 15)]);
}

#[test]
fn streams_do_not_wait_for_single_tokens_in_their_own_pass() {
    assert_eq!(passed_tokens(Passes::Apart, 3, 2), 0);
    assert_eq!(passed_tokens(Passes::Apart, 20, 0), 20);
    assert_eq!(passed_tokens(Passes::Together, 15, 5), 15);
}

#[test]
fn a_part_of_a_prompt_takes_a_turn() {
    let piece = |n_tokens| RunningSequence { work: Work::Prefill { n_tokens, ends: false }, ..prefill(1, n_tokens) };
    check_apart(&[decode(0), piece(5)], &[(1, 5)]);
    check_apart(&[stream(0, 5), piece(5)], &[(0, 1)]);
    // No prompt ends in this batch, so another prompt in it delays none.
    let timing = BatchTiming { token: Duration::from_millis(1), ..PACE };
    check_at(timing, &[piece(5), prefill(2, 30)], &[(1, 5), (2, 30)]);
}

#[test]
fn a_long_prompt_gets_turns_even_if_short_ones_could_fill_every_batch() {
    let mut left = vec![1000_u32];
    let mut came_ms = vec![0_u64];
    for now_ms in (0..200_000).step_by(100) {
        (0..10).for_each(|_| {
            left.push(10);
            came_ms.push(now_ms);
        });
        let open: Vec<usize> = (0..left.len()).filter(|idx| left[*idx] > 0).collect();
        let pending: Vec<RunningSequence> =
            (0_u16..).zip(&open).map(|(slot, idx)| waited(slot, left[*idx], now_ms - came_ms[*idx])).collect();
        for share in plan(&pending, ROOM, PACE, 0) {
            left[open[usize::from(share.slot.0)]] -= share.n_tokens;
        }
        if left[0] == 0 {
            return;
        }
    }
    panic!("the long prompt is not computed: {} tokens are left", left[0]);
}

fn pending() -> impl Strategy<Value = Vec<RunningSequence>> {
    let work =
        prop_oneof![Just(Work::Decode), (1_u32..500).prop_map(|n_tokens| Work::Prefill { n_tokens, ends: true })];
    prop::collection::vec((work, 0_u64..50), 0..16).prop_map(|works| {
        let pending = |(slot, (work, ms))| RunningSequence {
            slot: SlotId(slot),
            work,
            waited: Duration::from_millis(ms),
            passed_tokens: 0,
        };
        (0..).zip(works).map(pending).collect()
    })
}

proptest! {
    #[test]
    fn fills_the_batch_without_omitting_a_stream(
        pending in pending(),
        (ubatch, more) in (17_u32..64, 0_u32..200),
        (batch_ms, token_ms) in (0_u64..200, 0_u64..3),
        n_queued in 0_usize..4,
    ) {
        let room = BatchLimits { batch_tokens: ubatch + more, ubatch_tokens: ubatch, passes: Passes::Together };
        let (batch, token) = (Duration::from_millis(batch_ms), Duration::from_millis(token_ms));
        let shares = plan(&pending, room, BatchTiming { batch, token, ..PACE }, n_queued);
        let share = |slot| shares.iter().find(|share| share.slot == slot).map_or(0, |share| share.n_tokens);
        let n_decoding = pending.iter().filter(|sequence| sequence.work == Work::Decode).count() as u32;
        let limit = if n_decoding > 0 { room.ubatch_tokens } else { room.batch_tokens };
        let n_wanted: u32 = pending.iter().map(|sequence| match sequence.work {
            Work::Decode => 1,
            Work::Prefill { n_tokens, .. } => n_tokens,
        }).sum();
        let n_shared: u32 = shares.iter().map(|share| share.n_tokens).sum();
        let ends = pending.iter().any(|sequence| sequence.work == Work::Prefill { n_tokens: share(sequence.slot), ends: true });
        prop_assert!(n_shared == n_wanted.min(limit) || n_shared < limit && ends && token_ms > 0);
        prop_assert!(shares.iter().all(|share| share.n_tokens > 0));
        for sequence in &pending {
            let n = share(sequence.slot);
            match sequence.work {
                Work::Decode => prop_assert_eq!(n, 1),
                Work::Prefill { n_tokens, .. } => prop_assert!(n <= n_tokens),
            }
        }
        // A prompt without a full share never has a higher priority than a prompt with one.
        let prompts = || pending.iter().filter_map(|sequence| match sequence.work {
            Work::Decode => None,
            Work::Prefill { n_tokens, .. } => {
                Some(((sequence.waited + USUAL).as_secs_f64() / f64::from(n_tokens), share(sequence.slot), n_tokens))
            }
        });
        for (claim, ..) in prompts().filter(|(_, n_given, n_tokens)| n_given < n_tokens) {
            for (served, ..) in prompts().filter(|(_, n_given, _)| *n_given > 0) {
                prop_assert!(served >= claim - 1e-12);
            }
        }
    }

    /// A worker that plans until all work is done, checked after each batch.
    #[test]
    fn in_separate_passes_streams_wait_for_at_most_one_micro_batch(
        mut pending in pending(),
        (ubatch, more) in (17_u32..64, 0_u32..200),
        token_ms in 0_u64..3,
        n_answer in 1_u32..20,
    ) {
        let room = BatchLimits { batch_tokens: ubatch + more, ubatch_tokens: ubatch, passes: Passes::Apart };
        let timing = BatchTiming { token: Duration::from_millis(token_ms), ..PACE };
        let mut n_answered = vec![0; pending.len()];
        for _ in 0..10_000 {
            let going: Vec<RunningSequence> =
                (0..).zip(&pending).filter(|(idx, _): &(usize, _)| n_answered[*idx] < n_answer).map(|(_, p)| *p).collect();
            if going.is_empty() {
                return Ok(());
            }
            let shares = plan(&going, room, timing, 0);
            prop_assert!(!shares.is_empty() && shares.is_sorted_by_key(|share| share.slot));
            let has_streams = going.iter().any(|sequence| sequence.work == Work::Decode);
            let (mut n_prefill, mut n_single, mut n_streams) = (0, 0, 0);
            for share in &shares {
                let idx = usize::from(share.slot.0);
                match pending[idx].work {
                    Work::Decode => {
                        prop_assert_eq!(share.n_tokens, 1);
                        n_streams += 1;
                        n_answered[idx] += 1;
                        pending[idx].passed_tokens = 0;
                    }
                    Work::Prefill { n_tokens, ends } => {
                        prop_assert!((1..=n_tokens).contains(&share.n_tokens));
                        n_prefill += share.n_tokens;
                        n_single += u32::from(n_tokens == 1);
                        let left = n_tokens - share.n_tokens;
                        pending[idx].work =
                            if left == 0 { Work::Decode } else { Work::Prefill { n_tokens: left, ends } };
                    }
                }
            }
            prop_assert!(n_streams == 0 || n_prefill == n_single, "a prompt waits for the streams' pass");
            let most = if has_streams { ubatch } else { room.batch_tokens };
            prop_assert!(n_prefill <= most);
            for sequence in &mut pending {
                let is_served = shares.iter().any(|share| share.slot == sequence.slot);
                let was_stream = going.iter().any(|was| was.slot == sequence.slot && was.work == Work::Decode);
                if was_stream && !is_served {
                    sequence.passed_tokens += n_prefill;
                    prop_assert!(sequence.passed_tokens <= ubatch, "{sequence:?}");
                }
            }
        }
        prop_assert!(false, "a sequence never ends: {pending:?}");
    }
}
