//! The summary of a fake worker: a snapshot that its owner may change, and updates for every open stream.

use axum::body::{Body, Bytes};
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse, Response};
use futures::{StreamExt as _, stream};
use tokio::sync::broadcast;
use warmpath_common::summary::{
    self, Change, Digest, Frame, FrameBody, Load, ReplayBuffer, ReplayLimits, SizedUpdate, Snapshot, Stamp, with_length,
};

/// Limits of the replay buffer.
const REPLAY_LIMITS: ReplayLimits = ReplayLimits { updates_max: 1000, bytes_max: 1 << 20 };
/// Updates that a stream may be behind: more than any test sends at once.
const UPDATES_MAX: usize = 100_000;

/// Summary of one fake worker.
pub struct FakeSummary {
    /// Content of the next snapshot; its stamp is that of the last update.
    pub snapshot: Snapshot,
    replay_buffer: ReplayBuffer<Bytes>,
    /// Bytes for every open stream; no bytes end it.
    streams: broadcast::Sender<Bytes>,
}

impl FakeSummary {
    /// Returns a summary that begins with this snapshot.
    pub fn new(snapshot: Snapshot) -> Self {
        let replay_buffer = ReplayBuffer::new(REPLAY_LIMITS, snapshot.stamp);
        Self { snapshot, replay_buffer, streams: broadcast::channel(UPDATES_MAX).0 }
    }

    /// Continues from another stamp, without the updates before it.
    pub fn set_stamp(&mut self, stamp: Stamp) {
        self.snapshot.stamp = stamp;
        self.replay_buffer = ReplayBuffer::new(REPLAY_LIMITS, stamp);
    }

    /// Begins the next boot, without blocks.
    pub fn restart(&mut self) {
        let stamp = self.snapshot.stamp;
        self.set_stamp(Stamp { boot_epoch: stamp.boot_epoch + 1, seq: 0, ..stamp });
        self.snapshot.runs.clear();
    }

    /// Sends an update. Its load becomes that of the snapshot; its changes do not change the snapshot.
    pub fn update(&mut self, changes: Vec<Change>, load: Option<Load>, digest: Option<Digest>) {
        if let Some(load) = &load {
            self.snapshot.load = load.clone();
        }
        let bytes = self.replay_buffer.push(|stamp| {
            let body = FrameBody::Update { changes, load, digest };
            let update = Bytes::from(with_length(&Frame { stamp, body }.encode()));
            SizedUpdate { n_bytes: update.len(), update }
        });
        self.snapshot.stamp = self.replay_buffer.last();
        self.send_raw(bytes);
    }

    /// Sends bytes on every stream; no bytes end the streams.
    pub fn send_raw(&self, bytes: Bytes) {
        // Without a stream there is no receiver.
        let _ = self.streams.send(bytes);
    }

    /// Returns whether a stream is open.
    pub fn has_stream(&self) -> bool {
        self.streams.receiver_count() > 0
    }

    /// Returns the first bytes of a stream: the updates after `after`, or the whole snapshot.
    pub fn head(&self, after: Option<Stamp>) -> Vec<u8> {
        let missed_updates = after.and_then(|after| Some((after, self.replay_buffer.since(after)?)));
        match missed_updates {
            Some((stamp, missed_updates)) => {
                let resumed_frame = with_length(&Frame { stamp, body: FrameBody::Resumed }.encode());
                [resumed_frame, missed_updates.concat()].concat()
            }
            None => self.snapshot.clone().into_frames().iter().flat_map(|frame| with_length(&frame.encode())).collect(),
        }
    }

    /// Returns a stream of these first bytes and every later update.
    pub fn stream(&self, head: Vec<u8>) -> Response {
        let updates = stream::unfold(self.streams.subscribe(), |mut updates| async {
            let bytes = updates.recv().await.ok().filter(|bytes| !bytes.is_empty())?;
            Some((Ok::<_, std::io::Error>(bytes), updates))
        });
        let head = stream::once(async move { Ok(Bytes::from(head)) });
        ([(CONTENT_TYPE, summary::CONTENT_TYPE)], Body::from_stream(head.chain(updates))).into_response()
    }
}
