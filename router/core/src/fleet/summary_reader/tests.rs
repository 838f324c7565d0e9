//! Tests of the summary reader: the frames that it accepts, and everything that ends a stream.

use proptest::prelude::*;
use warmpath_common::block_hash::BlockKey;
use warmpath_common::ids::{SlotId, WorkerUid};
use warmpath_common::summary::{Rates, Resume, RunState, Snapshot, Tier};

use super::*;
use crate::testing::{idle, model};

const BLOCKS_MAX: usize = 100;

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

fn opening() -> SnapshotHeader {
    SnapshotHeader { model: model(), load: idle() }
}

fn begin() -> FrameBody {
    FrameBody::Begin(Box::new(opening()))
}

fn end(runs: &[Run]) -> FrameBody {
    FrameBody::End(Digest::of(runs.iter().flat_map(|run| &run.keys)))
}

fn update(changes: Vec<Change>, load: Option<Load>) -> FrameBody {
    FrameBody::Update { changes, load, digest: None }
}

fn frame(stamp: Stamp, body: FrameBody) -> Frame {
    Frame { stamp, body }
}

/// Applies frames, each with its sequence number, and returns the last result.
fn feed(frames: Vec<(u64, FrameBody)>) -> Result<FrameEffect, Violation> {
    let mut reader = SummaryReader::new(BLOCKS_MAX);
    assert_eq!(reader.open(), None);
    let mut last = Ok(FrameEffect::Partial);
    for (seq, body) in frames {
        assert!(last.is_ok(), "only the last frame is wrong: {last:?}");
        last = reader.apply(Frame { stamp: stamp(seq), body });
    }
    last
}

fn live(frames: Vec<(u64, FrameBody)>) -> Result<FrameEffect, Violation> {
    feed([(5, begin()), (5, end(&[]))].into_iter().chain(frames).collect())
}

#[test]
fn a_snapshot_replaces_the_view_only_when_it_is_whole() {
    let mut reader = SummaryReader::new(BLOCKS_MAX);
    reader.open();
    let snapshot = Snapshot { stamp: stamp(5), model: model(), runs: vec![run(3), run(4)], load: idle() };
    let mut frames = snapshot.clone().into_frames().into_iter();
    let mut next = || reader.apply(frames.next().expect("begin, runs and end"));
    assert_eq!(next(), Ok(FrameEffect::Opened(Box::new(NewWorker { stamp: stamp(5), opening: opening() }))));
    assert_eq!(next(), Ok(FrameEffect::Partial));
    assert_eq!(next(), Ok(FrameEffect::Replace(Box::new(NewView { stamp: stamp(5), runs: snapshot.runs }))));
    assert!(frames.next().is_none());
}

#[test]
fn updates_follow_one_by_one() {
    let changes = vec![Change::Stored(run(2)), Change::Removed(vec![BlockKey(9)])];
    let second = update(changes.clone(), Some(idle()));
    assert_eq!(
        live(vec![(6, update(Vec::new(), None)), (7, second)]),
        Ok(FrameEffect::Update { changes, load: Some(idle()), digest: None })
    );
}

#[test]
fn a_frame_out_of_place_ends_the_stream() {
    for (frames, got) in [
        (vec![(5, FrameBody::Runs(vec![run(1)]))], "runs"),
        (vec![(5, end(&[]))], "end"),
        (vec![(5, update(Vec::new(), None))], "update"),
        (vec![(5, begin()), (5, begin())], "begin"),
        (vec![(5, begin()), (5, update(Vec::new(), None))], "update"),
        (vec![(5, begin()), (5, FrameBody::Resumed)], "resumed"),
        (vec![(5, begin()), (5, end(&[])), (6, FrameBody::Runs(vec![run(1)]))], "runs"),
        (vec![(5, begin()), (5, end(&[])), (6, begin())], "begin"),
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

/// Returns a reader whose view is that of `stamp` and whose stream has ended.
fn known(stamp: Stamp) -> SummaryReader {
    let mut reader = SummaryReader::new(BLOCKS_MAX);
    reader.open();
    reader.apply(frame(stamp, begin())).expect("a snapshot begins");
    reader.apply(frame(stamp, end(&[]))).expect("a snapshot ends");
    reader
}

#[test]
fn another_life_ends_the_stream() {
    let mut reader = known(stamp(1));
    let reborn = Stamp { boot_epoch: 3, ..stamp(2) };
    assert_eq!(reader.apply(frame(reborn, update(Vec::new(), None))), Err(Violation::Identity));
    assert_eq!(reader.open(), None, "only a snapshot shows its blocks");
}

#[test]
fn a_lost_stream_continues_where_it_was_lost() {
    let mut reader = known(stamp(5));
    assert_eq!(reader.open(), Some(stamp(5)));
    assert_eq!(reader.apply(frame(stamp(5), FrameBody::Resumed)), Ok(FrameEffect::Resumed));
    assert!(reader.apply(frame(stamp(6), update(Vec::new(), None))).is_ok());
    let gap = Err(Violation::Gap { got: 8, expected: 7 });
    assert_eq!(reader.apply(frame(stamp(8), update(Vec::new(), None))), gap);
    assert_eq!(reader.open(), Some(stamp(6)), "the missing updates are requested");
    assert!(reader.apply(frame(stamp(6), FrameBody::Resumed)).is_ok());
    assert_eq!(reader.apply(frame(stamp(6), update(Vec::new(), None))), Err(Violation::Duplicate { got: 6 }));
    assert_eq!(reader.open(), None, "it is not continued a second time");
}

#[test]
fn after_an_incomplete_snapshot_the_old_view_can_be_continued() {
    let mut reader = known(stamp(5));
    reader.open();
    let opened = reader.apply(frame(stamp(9), begin()));
    assert!(matches!(opened, Ok(FrameEffect::Opened(_))), "{opened:?}");
    assert_eq!(reader.open(), Some(stamp(5)));
}

#[test]
fn only_the_requested_position_is_resumed() {
    let mut reader = SummaryReader::new(BLOCKS_MAX);
    reader.open();
    assert_eq!(reader.apply(frame(stamp(5), FrameBody::Resumed)), Err(Violation::Identity));
    let mut reader = known(stamp(5));
    reader.open();
    assert_eq!(reader.apply(frame(stamp(6), FrameBody::Resumed)), Err(Violation::Identity));
    let mut reader = known(stamp(5));
    reader.forget();
    assert_eq!(reader.open(), None);
    assert_eq!(reader.apply(frame(stamp(5), FrameBody::Resumed)), Err(Violation::Identity));
}

#[test]
fn an_older_state_is_accepted_only_from_a_second_stream() {
    let older_life = Stamp { boot_epoch: 1, ..stamp(70) };
    for old in [older_life, stamp(4)] {
        let mut reader = known(stamp(5));
        reader.forget();
        reader.open();
        let refused = Err(Violation::OldBoot { got: old, newest: stamp(5) });
        assert_eq!(reader.apply(frame(old, begin())), refused);
        assert_eq!(reader.open(), None);
        assert!(matches!(reader.apply(frame(old, begin())), Ok(FrameEffect::Opened(_))), "its clock was set back");
    }
    for (streams, why) in [
        (
            vec![(older_life, false), (stamp(6), true), (older_life, false), (stamp(6), true)],
            "of two alternating states only the newer is accepted",
        ),
        (vec![(older_life, false), (stamp(4), false), (stamp(4), true)], "the second stream is of another boot"),
        (vec![(stamp(4), false), (stamp(3), false), (stamp(3), true)], "the second stream is older than the first"),
    ] {
        let mut reader = known(stamp(5));
        for (next, is_accepted) in streams {
            reader.open();
            let answer = reader.apply(frame(next, begin()));
            assert_eq!(answer.is_ok(), is_accepted, "{why}: {answer:?}");
        }
    }
    let other = Stamp { worker_uid: WorkerUid(9), boot_epoch: 1, seq: 0 };
    let mut reader = known(stamp(5));
    reader.open();
    assert!(reader.apply(frame(other, begin())).is_ok(), "another worker has its own time");
}

#[test]
fn a_snapshot_of_two_moments_ends_the_stream() {
    assert_eq!(feed(vec![(5, begin()), (6, end(&[]))]), Err(Violation::TornSnapshot));
}

#[test]
fn a_snapshot_that_lacks_a_part_ends_the_stream() {
    let runs = [run(1), run(3)];
    let lacking = vec![(5, begin()), (5, FrameBody::Runs(vec![run(3)])), (5, end(&runs))];
    assert_eq!(feed(lacking), Err(Violation::TornSnapshot));
}

#[test]
fn more_blocks_than_allowed_end_the_stream() {
    let limit = Err(Violation::TooManyBlocks { blocks_max: 100 });
    assert_eq!(
        feed(vec![(5, begin()), (5, FrameBody::Runs(vec![run(100)])), (5, FrameBody::Runs(vec![run(1)]))]),
        limit
    );
    assert_eq!(SummaryReader::new(BLOCKS_MAX).check_n_blocks(101).map(|()| FrameEffect::Partial), limit);
    assert_eq!(SummaryReader::new(BLOCKS_MAX).check_n_blocks(100), Ok(()));
}

#[test]
fn impossible_frames_end_the_stream() {
    let slot = |slot| Run { slot: Some(SlotId(slot)), ..run(1) };
    let unknown = Err(Violation::UnknownSlot { slot: 4, n_slots: 4 });
    assert_eq!(feed(vec![(5, begin()), (5, FrameBody::Runs(vec![slot(4)]))]), unknown);
    assert_eq!(live(vec![(6, update(vec![Change::Stored(slot(4))], None))]), unknown);
    assert_eq!(live(vec![(6, update(vec![Change::Stored(run(0))], None))]), Err(Violation::EmptyRun));
    let busy = Load { busy_slots: vec![SlotId(4)], ..idle() };
    assert_eq!(live(vec![(6, update(Vec::new(), Some(busy.clone())))]), unknown);
    let opening = SnapshotHeader { load: busy, ..opening() };
    assert_eq!(feed(vec![(5, FrameBody::Begin(Box::new(opening)))]), unknown);
    for rate in [0.0, -1.0, f32::NAN, f32::INFINITY] {
        let load = Load { rates: Rates { prefill_tokens_per_s: Some(rate), ..Rates::default() }, ..idle() };
        let answer = live(vec![(6, update(Vec::new(), Some(load)))]);
        assert!(matches!(answer, Err(Violation::Load { field: "prefill_tokens_per_s", .. })), "{answer:?}");
    }
    let repeated = Load { busy_slots: vec![SlotId(0); 5], ..idle() };
    for load in [repeated, Load { n_decoding: 5, ..idle() }] {
        assert!(matches!(live(vec![(6, update(Vec::new(), Some(load)))]), Err(Violation::Load { .. })));
    }
    let all_busy = Load { busy_slots: (0..4).map(SlotId).collect(), n_decoding: 4, ..idle() };
    assert!(live(vec![(6, update(Vec::new(), Some(all_busy)))]).is_ok(), "every slot may be busy");
}

proptest! {
    #[test]
    fn frames_in_any_order_never_panic_and_only_a_whole_snapshot_replaces(
        frames in proptest::collection::vec((0u64..4, 0usize..4), 0..20)
    ) {
        let mut reader = SummaryReader::new(BLOCKS_MAX);
        reader.open();
        let mut seen = Vec::new();
        for (seq, kind) in frames {
            let body = [begin(), FrameBody::Runs(vec![run(1)]), end(&[run(1)]), update(Vec::new(), None)][kind].clone();
            seen.push((seq, kind));
            match reader.apply(Frame { stamp: stamp(seq), body }) {
                Ok(FrameEffect::Replace(_)) => {
                    prop_assert_eq!(seen[0].1, 0);
                    prop_assert!(seen.iter().all(|&(of, _)| of == seq));
                }
                Ok(_) => {}
                Err(_) => break,
            }
        }
    }
}
