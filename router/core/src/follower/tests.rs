//! Tests of the follower: what is followed, and everything that ends a stream.

use proptest::prelude::*;
use warmpath_common::block_hash::BlockKey;
use warmpath_common::ids::{SlotId, WorkerUid};
use warmpath_common::summary::{Rates, Resume, RunState, Snapshot, Tier};

use super::*;
use crate::testing::{idle, model};

const LIMITS: FollowerLimits = FollowerLimits { blocks_max: 100 };

fn stamp(seq: u64) -> Stamp {
    Stamp { worker_uid: WorkerUid(1), boot_epoch: 2, seq }
}

fn run(n: u64) -> Run {
    Run {
        keys: (0..n).map(BlockKey).collect(),
        tier: Tier::Resident,
        state: RunState::Ready,
        resume: Resume::EveryBlock,
        slot: Some(SlotId(3)),
    }
}

fn begin() -> Body {
    Body::Begin(Box::new(model()))
}

fn update(changes: Vec<Change>, load: Option<Load>) -> Body {
    Body::Update { changes, load }
}

/// Feeds frames, each with its sequence number, and returns the last answer.
fn feed(frames: Vec<(u64, Body)>) -> Result<Step, Violation> {
    let mut follower = Follower::new(LIMITS);
    let mut last = Ok(Step::Partial);
    for (seq, body) in frames {
        assert!(last.is_ok(), "only the last frame is wrong: {last:?}");
        last = follower.apply(Frame { stamp: stamp(seq), body });
    }
    last
}

fn live(frames: Vec<(u64, Body)>) -> Result<Step, Violation> {
    feed([(5, begin()), (5, Body::End(idle()))].into_iter().chain(frames).collect())
}

#[test]
fn a_snapshot_replaces_the_view_only_when_it_is_whole() {
    let mut follower = Follower::new(LIMITS);
    let snapshot = Snapshot { stamp: stamp(5), model: model(), runs: vec![run(3), run(4)], load: idle() };
    let mut frames = snapshot.clone().into_frames();
    let end = frames.pop().expect("a snapshot has an end");
    for frame in frames {
        assert_eq!(follower.apply(frame), Ok(Step::Partial));
    }
    let Snapshot { stamp, model, runs, load } = snapshot;
    assert_eq!(follower.apply(end), Ok(Step::Replace(Box::new(NewView { stamp, model, runs, load }))));
}

#[test]
fn updates_follow_one_by_one() {
    let changes = vec![Change::Stored(run(2)), Change::Removed(vec![BlockKey(9)])];
    let second = update(changes.clone(), Some(idle()));
    assert_eq!(
        live(vec![(6, update(Vec::new(), None)), (7, second)]),
        Ok(Step::Update { changes, load: Some(idle()) })
    );
}

#[test]
fn a_frame_out_of_place_ends_the_stream() {
    for (frames, got) in [
        (vec![(5, Body::Runs(vec![run(1)]))], "runs"),
        (vec![(5, Body::End(idle()))], "end"),
        (vec![(5, update(Vec::new(), None))], "update"),
        (vec![(5, begin()), (5, begin())], "begin"),
        (vec![(5, begin()), (5, update(Vec::new(), None))], "update"),
        (vec![(5, begin()), (5, Body::End(idle())), (6, Body::Runs(vec![run(1)]))], "runs"),
        (vec![(5, begin()), (5, Body::End(idle())), (6, begin())], "begin"),
    ] {
        let answer = feed(frames);
        assert!(matches!(answer, Err(Violation::OutOfPlace { got: named, .. }) if named == got), "{answer:?}");
    }
}

#[test]
fn a_gap_or_a_duplicate_ends_the_stream() {
    assert_eq!(live(vec![(7, update(Vec::new(), None))]), Err(Violation::Gap { got: 7, expected: 6 }));
    assert_eq!(live(vec![(5, update(Vec::new(), None))]), Err(Violation::Duplicate { got: 5 }));
    assert_eq!(live(vec![(4, update(Vec::new(), None))]), Err(Violation::Duplicate { got: 4 }));
}

#[test]
fn another_life_ends_the_stream() {
    let mut follower = Follower::new(LIMITS);
    follower.apply(Frame { stamp: stamp(1), body: begin() }).expect("a snapshot begins");
    follower.apply(Frame { stamp: stamp(1), body: Body::End(idle()) }).expect("a snapshot ends");
    let reborn = Stamp { boot_epoch: 3, ..stamp(2) };
    let answer = follower.apply(Frame { stamp: reborn, body: update(Vec::new(), None) });
    assert_eq!(answer, Err(Violation::Identity));
}

#[test]
fn a_snapshot_of_two_moments_ends_the_stream() {
    assert_eq!(feed(vec![(5, begin()), (6, Body::End(idle()))]), Err(Violation::TornSnapshot));
}

#[test]
fn more_blocks_than_believed_end_the_stream() {
    let limit = Err(Violation::TooManyBlocks { blocks_max: 100 });
    assert_eq!(feed(vec![(5, begin()), (5, Body::Runs(vec![run(100)])), (5, Body::Runs(vec![run(1)]))]), limit);
    assert_eq!(Follower::new(LIMITS).check_n_blocks(101).map(|()| Step::Partial), limit);
    assert_eq!(Follower::new(LIMITS).check_n_blocks(100), Ok(()));
}

#[test]
fn what_cannot_be_ends_the_stream() {
    let slot = |slot| Run { slot: Some(SlotId(slot)), ..run(1) };
    let unknown = Err(Violation::UnknownSlot { slot: 4, n_slots: 4 });
    assert_eq!(feed(vec![(5, begin()), (5, Body::Runs(vec![slot(4)]))]), unknown);
    assert_eq!(live(vec![(6, update(vec![Change::Stored(slot(4))], None))]), unknown);
    assert_eq!(live(vec![(6, update(vec![Change::Stored(run(0))], None))]), Err(Violation::EmptyRun));
    let busy = Load { busy_slots: vec![SlotId(4)], ..idle() };
    assert_eq!(live(vec![(6, update(Vec::new(), Some(busy.clone())))]), unknown);
    assert_eq!(feed(vec![(5, begin()), (5, Body::End(busy))]), unknown);
    for rate in [0.0, -1.0, f32::NAN, f32::INFINITY] {
        let load = Load { rates: Rates { prefill_tokens_per_s: Some(rate), ..Rates::default() }, ..idle() };
        let answer = live(vec![(6, update(Vec::new(), Some(load)))]);
        assert!(matches!(answer, Err(Violation::Load { field: "prefill_tokens_per_s", .. })), "{answer:?}");
    }
    let load = Load { n_decoding: 5, ..idle() };
    assert!(matches!(live(vec![(6, update(Vec::new(), Some(load)))]), Err(Violation::Load { .. })));
}

proptest! {
    #[test]
    fn frames_in_any_order_never_panic_and_only_a_whole_snapshot_replaces(
        frames in proptest::collection::vec((0u64..4, 0usize..4), 0..20)
    ) {
        let mut follower = Follower::new(LIMITS);
        let mut seen = Vec::new();
        for (seq, kind) in frames {
            let body = [begin(), Body::Runs(vec![run(1)]), Body::End(idle()), update(Vec::new(), None)][kind].clone();
            seen.push((seq, kind));
            match follower.apply(Frame { stamp: stamp(seq), body }) {
                Ok(Step::Replace(_)) => {
                    prop_assert_eq!(seen[0].1, 0);
                    prop_assert!(seen.iter().all(|&(of, _)| of == seq));
                }
                Ok(_) => {}
                Err(_) => break,
            }
        }
    }
}
