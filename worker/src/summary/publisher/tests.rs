//! Tests of the publisher: sequence numbers, heartbeats, limits, disconnection of slow subscribers.

use warmpath_common::block_hash::BlockKey;
use warmpath_common::ids::{RequestId, SlotId, WorkerUid};
use warmpath_common::model::Fingerprint;
use warmpath_common::summary::{Change, Digest, Frame, FrameBody, Load, Resume, Run, RunState, Tier};
use warmpath_worker_core::reports::pending_prefills::AnnouncementId;
use warmpath_worker_core::reports::summary_writer::HEARTBEAT;

use super::*;

fn model() -> ModelInfo {
    ModelInfo { names: vec!["m".to_owned()], ..ModelInfo::text(Fingerprint([7; 32]), 32, 512, 2, 300) }
}

fn start() -> (SummaryPublisher, mpsc::UnboundedSender<EngineUpdate>) {
    let (updates, receiver) = mpsc::unbounded_channel();
    let stamp = Stamp { worker_uid: WorkerUid(1), boot_epoch: 2, seq: 0 };
    let (publisher, _) = SummaryPublisher::start(stamp, model(), receiver, Arc::new(Metrics::new()));
    (publisher, updates)
}

fn stored(keys: std::ops::Range<u64>) -> Change {
    Change::Stored(Run {
        keys: keys.map(BlockKey).collect(),
        tier: Tier::Resident,
        state: RunState::Ready,
        resume: Resume::EveryBlock,
        slot: Some(SlotId(0)),
    })
}

fn update(changes: Vec<Change>, n_decoding: u32) -> EngineUpdate {
    EngineUpdate::Step { changes, load: Load { n_decoding, ..Load::default() }, counted: Vec::new() }
}

/// Starts a publisher and returns a stream of it after the two frames of its empty snapshot.
async fn follow() -> (SummaryPublisher, mpsc::UnboundedSender<EngineUpdate>, Subscription) {
    let (publisher, updates) = start();
    let mut subscription = publisher.subscribe(None).await.unwrap();
    next(&mut subscription).await;
    next(&mut subscription).await;
    (publisher, updates, subscription)
}

/// Returns the arrival of a request of 100 tokens, which starts with the blocks `keys`.
fn come(id: AnnouncementId, keys: Vec<BlockKey>) -> EngineUpdate {
    let request = RequestId::new("r").unwrap();
    EngineUpdate::Arrived { id, request, n_tokens: 100, keys, is_filling: true }
}

async fn next(subscription: &mut Subscription) -> Frame {
    let bytes = subscription.next().await.expect("the stream goes on");
    assert_eq!(bytes[..4], u32::try_from(bytes.len() - 4).unwrap().to_be_bytes());
    Frame::decode(&bytes[4..]).expect("the frame decodes")
}

#[tokio::test(start_paused = true)]
async fn an_update_follows_the_snapshot_with_the_next_number() {
    let (publisher, updates) = start();
    updates.send(update(vec![stored(0..3)], 1)).unwrap();
    let snapshot = async {
        loop {
            let snapshot = publisher.snapshot().await.unwrap();
            if snapshot.stamp.seq == 1 {
                break snapshot;
            }
        }
    };
    let snapshot = snapshot.await;
    assert_eq!((snapshot.runs.len(), snapshot.load.n_decoding), (1, 1));

    let mut subscription = publisher.subscribe(None).await.unwrap();
    for _ in 0..3 {
        assert_eq!(next(&mut subscription).await.stamp.seq, 1, "the frames of the snapshot");
    }
    updates.send(update(vec![Change::Removed(vec![BlockKey(2)])], 1)).unwrap();
    let frame = next(&mut subscription).await;
    assert_eq!(frame.stamp.seq, 2);
    let changes = vec![Change::Removed(vec![BlockKey(2)])];
    let digest = Some(Digest::of(&[BlockKey(0), BlockKey(1)]));
    assert_eq!(frame.body, FrameBody::Update { changes, load: None, digest }, "the load has not changed");
}

#[tokio::test(start_paused = true)]
async fn pending_blocks_are_announced_until_the_engine_announces_them() {
    let (publisher, updates, mut subscription) = follow().await;
    let keys: Vec<BlockKey> = (0..3).map(BlockKey).collect();
    for id in [AnnouncementId(0), AnnouncementId(1)] {
        updates.send(come(id, keys.clone())).unwrap();
    }
    updates.send(update(vec![stored(0..1)], 1)).unwrap();
    updates.send(EngineUpdate::Resolved(AnnouncementId(0))).unwrap();
    updates.send(EngineUpdate::Resolved(AnnouncementId(1))).unwrap();
    let (tier, state, resume) = (Tier::Resident, RunState::Filling, Resume::EveryBlock);
    let announced = Change::Stored(Run { keys: keys.clone(), tier, state, resume, slot: None });
    let accepted = || Change::Accepted(RequestId::new("r").unwrap());
    // The second announcement and the end of the first change no blocks. Changes at the same time share a frame.
    for (said, held) in [
        (vec![announced, accepted()], Some(&keys[..])),
        (vec![accepted(), stored(0..1)], Some(&keys[..])),
        (vec![Change::Removed(keys[1..].to_vec())], Some(&keys[..1])),
    ] {
        let FrameBody::Update { changes, digest, .. } = next(&mut subscription).await.body else { panic!("an update") };
        assert_eq!((changes, digest), (said, held.map(Digest::of)));
    }
    assert_eq!(
        publisher.snapshot().await.unwrap().runs,
        [Run { keys: keys[..1].to_vec(), state: RunState::Ready, tier, resume, slot: Some(SlotId(0)) }]
    );
}

#[tokio::test(start_paused = true)]
async fn an_arrived_request_is_in_the_load_until_the_engine_counts_it_or_it_leaves() {
    let (_publisher, updates, mut subscription) = follow().await;
    updates.send(update(vec![stored(0..2)], 1)).unwrap();
    next(&mut subscription).await;
    let counted = |n_queued, queued_prefill_tokens, counted| EngineUpdate::Step {
        changes: Vec::new(),
        load: Load { n_queued, queued_prefill_tokens, n_decoding: 1, ..Load::default() },
        counted,
    };
    // Two blocks of 32 tokens of the first are cached, none of the second, all of the third and one more block.
    let first = come(AnnouncementId(0), (0..3).map(BlockKey).collect());
    let second = come(AnnouncementId(1), Vec::new());
    let third = come(AnnouncementId(2), [0, 1, 2, 3].map(BlockKey).to_vec());
    for (update, expected) in [
        (first, (1, 36)),
        (second, (2, 136)),
        (third, (3, 140)),
        (EngineUpdate::Resolved(AnnouncementId(1)), (2, 40)),
        (counted(1, 30, vec![AnnouncementId(0)]), (2, 34)),
        (counted(2, 31, vec![AnnouncementId(2)]), (2, 31)),
    ] {
        updates.send(update).unwrap();
        let FrameBody::Update { load, .. } = next(&mut subscription).await.body else { panic!("an update") };
        let load = load.expect("it has changed");
        assert_eq!((load.n_queued, load.queued_prefill_tokens, load.n_decoding), (expected.0, expected.1, 1));
    }
}

#[tokio::test(start_paused = true)]
async fn arrivals_are_reported_together_once_a_millisecond() {
    let (_publisher, updates, mut subscription) = follow().await;
    for n in 0..100 {
        updates.send(come(AnnouncementId(n), Vec::new())).unwrap();
    }
    let mut n_told = Vec::new();
    for _ in 0..2 {
        let FrameBody::Update { changes, load, .. } = next(&mut subscription).await.body else { panic!("an update") };
        n_told.push((changes.len(), load.expect("it has changed").n_queued));
    }
    assert_eq!(n_told, [(1, 1), (99, 100)]);
}

#[tokio::test(start_paused = true)]
async fn a_silent_worker_sends_heartbeats_in_time() {
    let (_publisher, updates, mut subscription) = follow().await;
    for seq in 1..4 {
        let before = Instant::now();
        // Steps that change nothing send no frames.
        for _ in 0..3 {
            tokio::time::sleep(HEARTBEAT / 4).await;
            updates.send(update(Vec::new(), 0)).unwrap();
        }
        let frame = next(&mut subscription).await;
        assert_eq!(frame.stamp.seq, seq);
        let digest = Some(Digest::default());
        assert_eq!(frame.body, FrameBody::Update { changes: Vec::new(), load: Some(Load::default()), digest });
        assert!(before.elapsed() <= HEARTBEAT);
    }
    drop(updates);
    assert!(subscription.next().await.is_none(), "the stream ends with the engine");
}

#[tokio::test(start_paused = true)]
async fn one_subscriber_over_the_limit_is_refused_until_another_leaves() {
    let (publisher, _updates) = start();
    let mut subscriptions = Vec::new();
    for _ in 0..SUBSCRIBERS_MAX {
        subscriptions.push(publisher.subscribe(None).await.unwrap());
    }
    assert!(matches!(publisher.subscribe(None).await, Err(RequestError::SubscribersFull { .. })));
    subscriptions.pop();
    assert!(publisher.subscribe(None).await.is_ok());
}

#[tokio::test(start_paused = true)]
async fn a_slow_subscriber_is_disconnected() {
    let (publisher, updates) = start();
    let mut subscription = publisher.subscribe(None).await.unwrap();
    for n in 0..=STREAM_UPDATES_MAX {
        updates.send(update(Vec::new(), u32::try_from(n).unwrap() + 1)).unwrap();
    }
    while publisher.snapshot().await.unwrap().stamp.seq <= STREAM_UPDATES_MAX as u64 {}
    next(&mut subscription).await;
    next(&mut subscription).await;
    assert!(subscription.next().await.is_none());
}

#[tokio::test(start_paused = true)]
async fn a_reconnecting_subscriber_gets_the_missed_updates_from_the_replay_buffer() {
    let (publisher, updates) = start();
    let at = async |seq: u64| while publisher.snapshot().await.unwrap().stamp.seq < seq {};
    let after = |seq| Some(Stamp { worker_uid: WorkerUid(1), boot_epoch: 2, seq });
    updates.send(update(vec![stored(0..3)], 1)).unwrap();
    updates.send(update(vec![stored(3..5)], 1)).unwrap();
    at(2).await;
    let mut subscription = publisher.subscribe(after(1)).await.unwrap();
    assert_eq!(next(&mut subscription).await, Frame { stamp: after(1).unwrap(), body: FrameBody::Resumed });
    let missed = next(&mut subscription).await;
    assert_eq!(missed.stamp.seq, 2);
    let (changes, digest) = (vec![stored(3..5)], Some(Digest::of(&(0..5).map(BlockKey).collect::<Vec<_>>())));
    assert_eq!(missed.body, FrameBody::Update { changes, load: None, digest });
    updates.send(update(Vec::new(), 2)).unwrap();
    assert_eq!(next(&mut subscription).await.stamp.seq, 3, "the later updates follow");

    for n in 0..REPLAY_LIMITS.updates_max as u32 {
        updates.send(update(Vec::new(), n % 2)).unwrap();
        at(u64::from(n) + 4).await;
    }
    for (asked, is_kept) in [(3, true), (2, false)] {
        let frame = next(&mut publisher.subscribe(after(asked)).await.unwrap()).await;
        assert_eq!(frame.body == FrameBody::Resumed, is_kept, "after {asked}: {frame:?}");
    }
}
