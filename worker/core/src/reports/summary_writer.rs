//! The writer of a worker's summary: takes the engine's reports, returns the frames that every subscriber gets.
//!
//! It keeps the published view, which is the view of a receiver that has applied every frame so far. A subscriber's
//! first frames are made from that view, so they and the later frames neither overlap nor leave a gap. A router reads
//! them with `SummaryReader`.
//!
//! Not here: sending frames, and subscribers that do not keep up (the worker's `summary::publisher`).

mod published;

use std::sync::Arc;
use std::time::{Duration, Instant};

use warmpath_common::block_hash::BlockKey;
use warmpath_common::ids::RequestId;
use warmpath_common::model::ModelInfo;
use warmpath_common::summary::{
    Change, Digest, Frame, FrameBody, KEYS_PER_FRAME_MAX, Load, ReplayBuffer, ReplayLimits, SizedUpdate, Snapshot,
    Stamp, with_length,
};

use self::published::Published;
use crate::reports::pending_prefills::{AnnouncementId, PendingPrefills};
use crate::reports::unadmitted_requests::Arrivals;

/// Longest silence of a stream.
///
/// Source: own choice: a router that receives nothing for a second has missed three frames, and a frame takes
/// microseconds.
pub const HEARTBEAT: Duration = Duration::from_millis(250);

/// Limits of the replay buffer for subscribers that reconnect.
///
/// Source: own choice: a minute and more of load updates at their highest rate, or the announcement of a million
/// blocks.
pub const REPLAY_LIMITS: ReplayLimits = ReplayLimits { updates_max: 8192, bytes_max: 8 << 20 };

/// Shortest time between two frames that report only new requests.
///
/// Source: own choice: requests within this time share a frame, which limits the number of frames.
const ARRIVALS_INTERVAL: Duration = Duration::from_millis(1);

/// Bytes of one frame as a stream carries them: its length as a big-endian u32, then its content.
pub type FrameBytes = Arc<[u8]>;

/// Report of the engine, in the order of the changes.
#[derive(Debug, Clone, PartialEq)]
pub enum EngineUpdate {
    /// The engine has taken a step in which something changed.
    Step {
        /// Changes, in order.
        changes: Vec<Change>,
        /// Load after the step.
        load: Load,
        /// Requests that this load includes for the first time.
        counted: Vec<AnnouncementId>,
    },
    /// A request has arrived.
    Arrived {
        /// Id of the early announcement.
        id: AnnouncementId,
        /// Id of the request; several submissions of one request share it.
        request: RequestId,
        /// Work if nothing can be reused. Units: tokens.
        n_tokens: u32,
        /// Blocks of its prompt, in the order of their chain; empty if it may not start from cached state.
        keys: Vec<BlockKey>,
        /// Whether the request will prefill those of the blocks that are not cached.
        is_filling: bool,
    },
    /// The request of this announcement has started, as an earlier step has reported, or never will.
    Resolved(AnnouncementId),
}

/// StreamStart of a stream.
#[derive(Debug)]
pub enum StreamStart {
    /// The subscriber has the view of this stamp, and gets the later updates.
    Resumed(Stamp, Vec<FrameBytes>),
    /// The subscriber gets the whole view.
    Snapshot(Box<Snapshot>),
}

impl StreamStart {
    /// Returns the stream's first frames. Cost: tens of milliseconds for a snapshot of a million blocks.
    pub fn into_frames(self) -> Vec<FrameBytes> {
        match self {
            Self::Resumed(stamp, missed) => {
                let first = on_wire(&Frame { stamp, body: FrameBody::Resumed });
                std::iter::once(first).chain(missed).collect()
            }
            Self::Snapshot(snapshot) => snapshot.into_frames().iter().map(on_wire).collect(),
        }
    }

    /// Returns a short name for metrics.
    pub fn label(&self) -> &'static str {
        match self {
            Self::Resumed(..) => "resumed",
            Self::Snapshot(_) => "snapshot",
        }
    }
}

/// Writer of one worker's summary.
#[derive(Debug)]
pub struct SummaryWriter {
    /// Replay buffer: recent updates with their numbers.
    replay_buffer: ReplayBuffer<FrameBytes>,
    model: ModelInfo,
    published: Published,
    /// Early announcements: blocks of requests that have not started. The published view combines them with the
    /// engine's blocks.
    pending_prefills: PendingPrefills,
    arrivals: Arrivals,
    /// Changes in the published view that subscribers have not received yet.
    unreported: Vec<Change>,
    /// Whether subscribers have yet to receive the latest arrivals and departures of requests.
    is_behind: bool,
    /// Time of the last frame that reported changes.
    reported_at: Option<Instant>,
    /// Time at which the next frame is due even without changes.
    silent_until: Instant,
    /// Load as the engine last reported it.
    counted: Load,
    /// Load as it was last sent: the engine's and the arrivals.
    load: Load,
    /// Frames that have not been taken yet.
    frames: Vec<FrameBytes>,
}

impl SummaryWriter {
    /// Returns the writer of a worker without blocks; the first update has the number after that of `stamp`.
    pub fn new(stamp: Stamp, model: ModelInfo, limits: ReplayLimits, now: Instant) -> Self {
        Self {
            replay_buffer: ReplayBuffer::new(limits, stamp),
            model,
            published: Published::default(),
            pending_prefills: PendingPrefills::default(),
            arrivals: Arrivals::default(),
            unreported: Vec::new(),
            is_behind: false,
            reported_at: None,
            silent_until: now + HEARTBEAT,
            counted: Load::default(),
            load: Load::default(),
            frames: Vec::new(),
        }
    }

    /// Applies a report of the engine.
    pub fn apply(&mut self, update: EngineUpdate, now: Instant) {
        match update {
            EngineUpdate::Step { changes, load, counted } => {
                counted.into_iter().for_each(|id| self.arrivals.leave(id));
                self.counted = load;
                let changes = changes.into_iter().flat_map(|change| self.pending_prefills.pass(change)).collect();
                self.publish(changes);
                self.report(now);
            }
            EngineUpdate::Arrived { id, request, n_tokens, keys, is_filling } => {
                self.arrivals.come(id, self.n_uncached(n_tokens, &keys));
                let keys = if is_filling { keys } else { Vec::new() };
                let mut changes = self.pending_prefills.make(id, keys, |_, key| self.published.has(key));
                // After the blocks, so that it is sent with the load that counts the request.
                changes.push(Change::Accepted(request));
                self.publish(changes);
                self.tell_soon(now);
            }
            EngineUpdate::Resolved(id) => {
                self.arrivals.leave(id);
                let changes = self.pending_prefills.resolve(id).into_iter().collect();
                self.publish(changes);
                self.tell_soon(now);
            }
        }
    }

    /// Returns when [`Self::tick`] is due.
    pub fn due(&self) -> Instant {
        let arrivals = self.reported_at.filter(|_| self.is_behind).map(|reported_at| reported_at + ARRIVALS_INTERVAL);
        arrivals.map_or(self.silent_until, |arrivals| arrivals.min(self.silent_until))
    }

    /// Makes the frame that is due: the arrivals and departures of requests, or a heartbeat.
    pub fn tick(&mut self, now: Instant) {
        if self.is_behind && self.may_tell(now) {
            self.report(now);
        } else if self.silent_until <= now {
            let (load, digest) = (self.load.clone(), self.published.digest());
            self.push(now, Vec::new(), Some(load), Some(digest));
        }
    }

    /// Takes the frames for every subscriber, in order.
    pub fn take_frames(&mut self) -> Vec<FrameBytes> {
        std::mem::take(&mut self.frames)
    }

    /// Returns the start of a new stream: the updates after `after`, or the whole view.
    ///
    /// Frames that are taken before the next change are not for that stream; all later frames are.
    pub fn start(&mut self, after: Option<Stamp>, now: Instant) -> StreamStart {
        self.report(now);
        match after.and_then(|after| Some((after, self.replay_buffer.since(after)?))) {
            Some((after, missed)) => StreamStart::Resumed(after, missed),
            None => StreamStart::Snapshot(Box::new(self.view())),
        }
    }

    /// Returns the present view. Frames that are taken before the next change are part of it.
    pub fn snapshot(&mut self, now: Instant) -> Snapshot {
        self.report(now);
        self.view()
    }

    fn view(&self) -> Snapshot {
        Snapshot {
            stamp: self.replay_buffer.last(),
            model: self.model.clone(),
            runs: self.published.runs(),
            load: self.load.clone(),
        }
    }

    /// Returns the number of prompt tokens to compute, by the published view: at least one, for its logits.
    fn n_uncached(&self, n_tokens: u32, keys: &[BlockKey]) -> u32 {
        let n_blocks = keys.iter().take_while(|key| self.published.has(key)).count();
        let n_cached = u32::try_from(n_blocks).unwrap_or(u32::MAX).saturating_mul(self.model.block_size_tokens);
        n_tokens.saturating_sub(n_cached).max(1)
    }

    /// Returns whether arrivals and departures may be sent.
    fn may_tell(&self, now: Instant) -> bool {
        self.reported_at.is_none_or(|reported_at| reported_at + ARRIVALS_INTERVAL <= now)
    }

    /// Sends pending changes as soon as that is allowed.
    fn tell_soon(&mut self, now: Instant) {
        self.is_behind = true;
        if self.may_tell(now) {
            self.report(now);
        }
    }

    fn publish(&mut self, changes: Vec<Change>) {
        changes.iter().for_each(|change| self.published.apply(change));
        self.unreported.extend(changes);
    }

    /// Sends pending changes, and the load if it has changed.
    fn report(&mut self, now: Instant) {
        self.is_behind = false;
        let load = self.arrivals.beside(&self.counted);
        let load = (load != self.load).then(|| {
            self.load = load.clone();
            load
        });
        let changes = std::mem::take(&mut self.unreported);
        let digest = (!changes.is_empty()).then(|| self.published.digest());
        let mut batches = batches(changes);
        let last = batches.pop().unwrap_or_default();
        batches.into_iter().for_each(|batch| self.push(now, batch, None, None));
        if !last.is_empty() || load.is_some() {
            self.reported_at = Some(now);
            self.push(now, last, load, digest);
        }
    }

    fn push(&mut self, now: Instant, changes: Vec<Change>, load: Option<Load>, digest: Option<Digest>) {
        self.silent_until = now + HEARTBEAT;
        let frame = self.replay_buffer.push(|stamp| {
            let update = on_wire(&Frame { stamp, body: FrameBody::Update { changes, load, digest } });
            SizedUpdate { n_bytes: update.len(), update }
        });
        self.frames.push(frame);
    }
}

/// Splits changes into batches that each fit into a frame, in their order.
fn batches(changes: Vec<Change>) -> Vec<Vec<Change>> {
    let mut batches = vec![Vec::new()];
    let mut n_keys = 0;
    for change in changes.into_iter().flat_map(split) {
        let weight = match &change {
            // The fields of a run, and a request id, are about as large as a few keys.
            Change::Stored(run) => run.keys.len() + 2,
            Change::Removed(keys) => keys.len() + 1,
            Change::Accepted(_) => 16,
        };
        if n_keys + weight > KEYS_PER_FRAME_MAX && n_keys > 0 {
            batches.push(Vec::new());
            n_keys = 0;
        }
        n_keys += weight;
        batches.last_mut().expect("there is a first batch").push(change);
    }
    batches
}

fn split(change: Change) -> Vec<Change> {
    match change {
        Change::Stored(run) => run.split().into_iter().map(Change::Stored).collect(),
        Change::Removed(keys) if keys.len() > KEYS_PER_FRAME_MAX => {
            keys.chunks(KEYS_PER_FRAME_MAX).map(|keys| Change::Removed(keys.to_vec())).collect()
        }
        other => vec![other],
    }
}

fn on_wire(frame: &Frame) -> FrameBytes {
    with_length(&frame.encode()).into()
}

#[cfg(test)]
mod tests {
    use warmpath_common::ids::WorkerUid;
    use warmpath_common::summary::{FRAME_BYTES_MAX, Resume, Run, RunState, Tier};

    use super::*;

    fn stored(keys: std::ops::Range<u64>) -> Change {
        let (tier, state, resume) = (Tier::Resident, RunState::Ready, Resume::EveryBlock);
        Change::Stored(Run { keys: keys.map(BlockKey).collect(), tier, state, resume, slot: None })
    }

    #[test]
    fn cuts_a_large_update_into_frames_below_the_limit() {
        let most = KEYS_PER_FRAME_MAX as u64;
        let removed = Change::Removed((0..2 * most + 5).map(BlockKey).collect());
        let batches = batches(vec![stored(0..most + 1), removed, stored(5..7)]);
        let mut view = Published::default();
        for changes in batches {
            changes.iter().for_each(|change| view.apply(change));
            let stamp = Stamp { worker_uid: WorkerUid(u64::MAX), boot_epoch: u64::MAX, seq: u64::MAX };
            let frame = Frame { stamp, body: FrameBody::Update { changes, load: Some(Load::default()), digest: None } };
            assert!(frame.encode().len() < FRAME_BYTES_MAX);
        }
        let keys: Vec<u64> = view.runs().iter().flat_map(|run| &run.keys).map(|key| key.0).collect();
        assert_eq!(keys, [5, 6]);
    }
}
