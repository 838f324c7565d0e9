//! Tests of a stream's bytes and limits: wherever the bytes are cut, the frames are the same.

use proptest::prelude::*;
use warmpath_common::block_hash::BlockKey;
use warmpath_common::ids::WorkerUid;
use warmpath_common::summary::{Change, FRAME_BYTES_MAX, Resume, Run, RunState, Snapshot, Stamp, Tier, with_length};

use super::*;
use crate::testing::{idle, model};

const LIMITS: StreamLimits =
    StreamLimits { frames_per_s_max: 10, update_bytes_per_s_max: 2_000, snapshot_timeout: Duration::from_secs(3) };

fn stamp(seq: u64) -> Stamp {
    Stamp { worker_uid: WorkerUid(1), boot_epoch: 2, seq }
}

fn run(keys: std::ops::Range<u64>) -> Run {
    let (tier, state, resume) = (Tier::Resident, RunState::Ready, Resume::EveryBlock);
    Run { keys: keys.map(BlockKey).collect(), tier, state, resume, slot: None }
}

fn update(seq: u64, n_keys: u64) -> Frame {
    let changes = vec![Change::Stored(run(0..n_keys))];
    Frame { stamp: stamp(seq), body: FrameBody::Update { changes, load: None, digest: None } }
}

/// Returns frames as they are sent.
fn sent(frames: &[Frame]) -> Vec<u8> {
    frames.iter().flat_map(|frame| with_length(&frame.encode())).collect()
}

fn snapshot() -> Vec<Frame> {
    Snapshot { stamp: stamp(0), model: model(), runs: vec![run(0..3)], load: idle() }.into_frames()
}

fn reader() -> SummaryReader {
    let mut reader = SummaryReader::new(1000);
    reader.open();
    reader
}

/// Reads everything that has arrived.
fn read(stream: &mut SummaryStream, reader: &mut SummaryReader, now: Instant) -> Result<Vec<FrameEffect>, StreamFault> {
    let mut effects = Vec::new();
    while let Some(effect) = stream.next(reader, now)? {
        effects.push(effect);
    }
    Ok(effects)
}

proptest! {
    #[test]
    fn frames_are_the_same_wherever_their_bytes_are_cut(cuts in prop::collection::vec(0_usize..2_000, 0..12)) {
        let bytes = sent(&snapshot().into_iter().chain([update(1, 5), update(2, 9)]).collect::<Vec<_>>());
        let now = Instant::now();
        let mut whole = SummaryStream::new(LIMITS, now);
        whole.push(&bytes);
        let expected = read(&mut whole, &mut reader(), now).expect("the frames are valid");
        prop_assert_eq!(expected.len(), 5);
        let mut cuts: Vec<usize> = cuts.into_iter().map(|cut| cut % bytes.len()).chain([0, bytes.len()]).collect();
        cuts.sort_unstable();
        let (mut stream, mut reader, mut effects) = (SummaryStream::new(LIMITS, now), reader(), Vec::new());
        for pair in cuts.windows(2) {
            stream.push(&bytes[pair[0]..pair[1]]);
            effects.extend(read(&mut stream, &mut reader, now).expect("the frames are valid"));
        }
        prop_assert_eq!(effects, expected);
        prop_assert_eq!(stream.n_waiting_bytes(), 0);
    }

    #[test]
    fn whatever_bytes_arrive_a_stream_never_panics_and_keeps_no_more_than_a_frame(
        pieces in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..300), 0..20)
    ) {
        let now = Instant::now();
        let (mut stream, mut reader) = (SummaryStream::new(LIMITS, now), reader());
        for piece in pieces {
            stream.push(&piece);
            if read(&mut stream, &mut reader, now).is_err() {
                break;
            }
            prop_assert!(stream.n_waiting_bytes() < LENGTH_BYTES + FRAME_BYTES_MAX);
        }
    }
}

/// Returns the label of the fault that ends a live stream when `bytes` arrive; `None` if there is none.
fn fault(bytes: &[u8]) -> Option<&'static str> {
    let now = Instant::now();
    let (mut stream, mut reader) = (SummaryStream::new(LIMITS, now), reader());
    stream.push(&sent(&snapshot()));
    read(&mut stream, &mut reader, now).expect("the snapshot is valid");
    stream.push(bytes);
    read(&mut stream, &mut reader, now).err().map(|fault| fault.label())
}

#[test]
fn each_limit_ends_the_stream() {
    let updates = |n, n_keys| sent(&(1..=n).map(|seq| update(seq, n_keys)).collect::<Vec<_>>());
    let longest = u32::try_from(FRAME_BYTES_MAX).expect("a frame is short");
    let mut of_other_version = updates(1, 1);
    of_other_version[LENGTH_BYTES] += 1;
    for (bytes, expected) in [
        (updates(7, 1), None),
        (updates(8, 1), Some("flood")),
        (updates(2, 250), Some("flood")),
        (longest.to_be_bytes().to_vec(), None),
        ((longest + 1).to_be_bytes().to_vec(), Some("frame_too_long")),
        (0_u32.to_be_bytes().to_vec(), Some("malformed")),
        (of_other_version, Some("protocol_version")),
        (updates(2, 1)[updates(1, 1).len()..].to_vec(), Some("gap")),
    ] {
        assert_eq!(fault(&bytes), expected, "{} bytes", bytes.len());
    }
}

#[test]
fn a_rate_is_limited_for_each_second() {
    let start = Instant::now();
    let (mut stream, mut reader) = (SummaryStream::new(LIMITS, start), reader());
    stream.push(&sent(&snapshot()));
    read(&mut stream, &mut reader, start).expect("the snapshot is valid");
    for seq in 1..40 {
        stream.push(&sent(&[update(seq, 1)]));
        let now = start + Duration::from_millis(150 * seq);
        assert!(read(&mut stream, &mut reader, now).is_ok(), "{seq}");
    }
}

#[test]
fn a_snapshot_that_takes_too_long_ends_the_stream_and_keeps_the_view() {
    let start = Instant::now();
    let frames = snapshot();
    for (seconds, expected) in [(3, None), (4, Some(("slow_snapshot", true)))] {
        let (mut stream, mut reader) = (SummaryStream::new(LIMITS, start), reader());
        stream.push(&sent(&frames[..2]));
        let now = start + Duration::from_secs(seconds);
        let fault = read(&mut stream, &mut reader, now).err();
        assert_eq!(fault.map(|fault| (fault.label(), fault.keeps_view())), expected);
    }
}

#[test]
fn a_silent_worker_is_lost_after_its_silence_if_another_sends_and_after_the_limit_in_any_case() {
    let (start, ms) = (Instant::now(), Duration::from_millis);
    let lost_after = |received_from_another: bool| {
        let mut watch = SilenceWatch::new(ms(1000), 4, ms(3500), start);
        loop {
            let now = watch.due();
            if let Some(silence) = watch.check(now, |within| received_from_another && within == ms(500)) {
                return (now - start, silence);
            }
        }
    };
    assert_eq!(lost_after(true), (ms(1000), ms(1000)));
    assert_eq!(lost_after(false), (ms(3500), ms(3500)));
    // The router was stopped: the first check is late, and one more part follows.
    let mut watch = SilenceWatch::new(ms(1000), 4, ms(3500), start);
    let late = start + ms(60_000);
    assert_eq!(watch.check(late, |_| true), None);
    assert_eq!(watch.due(), late + ms(250));
}
