//! Tests of the summary protocol: round trips and hostile bytes.

use proptest::prelude::*;

use super::*;
use crate::model::{Fingerprint, KvTransfer, MediaReading, Modalities};

fn model() -> ModelInfo {
    ModelInfo {
        names: vec!["tiny".into()],
        kv_fingerprint: Fingerprint([2; 32]),
        chat_template_fingerprint: Fingerprint([3; 32]),
        kv_transfer: Some(KvTransfer { layout: Fingerprint([4; 32]), bytes_per_token: 23_040 }),
        media: Some(MediaReading {
            fingerprint: Fingerprint([5; 32]),
            modalities: Modalities { vision: true, audio: false },
        }),
        ..ModelInfo::text(Fingerprint([1; 32]), 32, 2048, 4, 1000)
    }
}

fn run(n_keys: usize) -> Run {
    Run {
        keys: (0..n_keys as u64).map(|i| BlockKey(i.wrapping_mul(0x9e37_79b9_7f4a_7c15))).collect(),
        tier: Tier::Resident,
        state: RunState::Ready,
        resume: Resume::EveryBlock,
        slot: Some(SlotId(1)),
    }
}

fn snapshot(runs: Vec<Run>) -> Snapshot {
    let stamp = Stamp { worker_uid: WorkerUid(9), boot_epoch: 5, seq: 3 };
    Snapshot { stamp, model: model(), runs, load: Load::default() }
}

#[test]
fn splits_a_large_snapshot_into_frames_within_the_limit() {
    let frames = snapshot(vec![run(150_000), run(10), run(70_000)]).into_frames();
    let mut n_keys = 0;
    for frame in &frames {
        let bytes = frame.encode();
        assert!(bytes.len() <= FRAME_BYTES_MAX);
        assert_eq!(&Frame::decode(&bytes).expect("it decodes"), frame);
        if let FrameBody::Runs(runs) = &frame.body {
            n_keys += runs.iter().map(|run| run.keys.len()).sum::<usize>();
        }
    }
    assert_eq!(n_keys, 220_010);
    assert!(matches!(frames[0].body, FrameBody::Begin(_)));
    assert!(matches!(frames[frames.len() - 1].body, FrameBody::End(Digest { n_blocks: 220_010, .. })));
}

#[test]
fn a_split_run_resumes_where_the_whole_one_does() {
    for resume in [Resume::EveryBlock, Resume::LastBlock, Resume::Nowhere] {
        for n_keys in [1, KEYS_PER_FRAME_MAX, 2 * KEYS_PER_FRAME_MAX + 5] {
            let whole = Run { resume, ..run(n_keys) };
            let behind = |run: &Run| -> Vec<bool> {
                (0..run.keys.len()).map(|idx| run.resume.is_behind(idx, run.keys.len())).collect()
            };
            let parts = whole.clone().split();
            assert!(parts.iter().all(|part| (1..=KEYS_PER_FRAME_MAX).contains(&part.keys.len())));
            assert_eq!(parts.iter().flat_map(&behind).collect::<Vec<_>>(), behind(&whole), "{resume:?}, {n_keys} keys");
            assert_eq!(parts.into_iter().flat_map(|part| part.keys).collect::<Vec<_>>(), whole.keys);
        }
    }
}

#[test]
fn a_stamp_is_read_as_it_is_written() {
    let stamp = Stamp { worker_uid: WorkerUid(9), boot_epoch: u64::MAX, seq: 0 };
    assert_eq!(stamp.to_string(), "0000000000000009.18446744073709551615.0");
    assert_eq!(stamp.to_string().parse(), Ok(stamp));
    for text in
        ["", "9.1.2", "0000000000000009.1", "0000000000000009.1.2.3", "0000000000000009.-1.2", "000000000000000g.1.2"]
    {
        assert_eq!(text.parse::<Stamp>(), Err(StampParseError), "{text}");
    }
}

#[test]
fn many_short_runs_stay_within_the_frame_limit() {
    let frames = snapshot(vec![run(1); 200_000]).into_frames();
    assert!(frames.iter().all(|frame| frame.encode().len() <= FRAME_BYTES_MAX));
}

#[test]
fn refuses_other_versions_empty_long_and_trailing_bytes() {
    let frames = snapshot(vec![]).into_frames();
    let mut bytes = frames[0].encode();
    assert!(matches!(Frame::decode(&[]), Err(DecodeError::Empty)));
    assert!(matches!(Frame::decode(&bytes[..bytes.len() - 1]), Err(DecodeError::Malformed(_))));
    bytes.push(0);
    assert!(matches!(Frame::decode(&bytes), Err(DecodeError::Trailing { n_bytes: 1 })));
    bytes[0] = 1;
    assert!(matches!(Frame::decode(&bytes), Err(DecodeError::Version { version: 1 })));
    assert!(matches!(Frame::decode(&vec![PROTOCOL_VERSION; FRAME_BYTES_MAX + 1]), Err(DecodeError::TooLong { .. })));
}

#[test]
fn is_readable_as_json() {
    let snapshot = snapshot(vec![run(2)]);
    let text = serde_json::to_string(&snapshot).expect("it serializes");
    assert!(text.contains("\"worker_uid\":\"0000000000000009\""));
    assert!(text.contains("\"tier\":\"resident\""));
    assert_eq!(serde_json::from_str::<Snapshot>(&text).expect("it reads back"), snapshot);
}

proptest! {
    #[test]
    fn never_panics_on_hostile_bytes(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
        let mut framed = vec![PROTOCOL_VERSION];
        framed.extend(bytes);
        if let Ok(frame) = Frame::decode(&framed) {
            prop_assert_eq!(Frame::decode(&frame.encode()).ok(), Some(frame));
        }
    }

    #[test]
    fn never_panics_on_a_flipped_or_cut_frame(at in 0usize..400, bit in 0u8..8, cut in 0usize..400) {
        let mut bytes = snapshot(vec![run(20)]).into_frames()[1].encode();
        let at = at % bytes.len();
        bytes[at] ^= 1 << bit;
        bytes.truncate(bytes.len() - cut % bytes.len());
        let _ = Frame::decode(&bytes);
    }
}
