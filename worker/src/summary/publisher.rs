//! The task that owns the published view and sends every subscriber the same frames.
//!
//! Because the view has one owner, a snapshot and the updates after it neither overlap nor have a gap. Because the
//! broadcast channel is bounded, a slow subscriber is disconnected and reconnects. Not here: the view itself
//! (`published`), HTTP.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::{BufMut, Bytes, BytesMut};
use futures::{Stream, StreamExt};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, broadcast, mpsc, oneshot};
use tokio::task::JoinHandle;
use tokio::time::Instant;
use tokio_stream::wrappers::BroadcastStream;
use tokio_stream::wrappers::errors::BroadcastStreamRecvError;
use tracing::{info, warn};
use warmpath_common::block_hash::BlockKey;
use warmpath_common::model::ModelInfo;
use warmpath_common::summary::{
    Body, Change, Digest, Frame, KEYS_PER_FRAME_MAX, Load, ReplayBuffer, ReplayLimits, Snapshot, Stamp,
};
use warmpath_worker_core::pending_prefills::PendingPrefills;
use warmpath_worker_core::unadmitted_requests::Arrivals;

use super::published::Published;
use crate::engine::EngineUpdate;
use crate::error::RequestError;
use crate::metrics::Metrics;

/// Maximum number of subscribers at a time. Source: more router replicas than a fleet has, and some for inspection.
const SUBSCRIBERS_MAX: usize = 64;

/// Maximum number of updates queued for a subscriber; a subscriber with more is disconnected.
///
/// Source: about ten seconds of load updates at their highest rate, one every 10 ms.
const STREAM_UPDATES_MAX: usize = 1024;

/// Limits of the replay buffer for subscribers that reconnect.
///
/// Source: more than a minute of load updates at their highest rate, or the announcement of a million blocks.
const REPLAY_LIMITS: ReplayLimits = ReplayLimits { updates_max: 8192, bytes_max: 8 << 20 };

/// Longest silence of a stream.
///
/// Source: a router that receives no frame for a second has missed three, and a frame takes microseconds.
pub const HEARTBEAT: Duration = Duration::from_millis(250);

/// Shortest time between two frames that report only new requests.
///
/// Source: requests within this time share a frame, which limits the number of frames.
const ARRIVALS_INTERVAL: Duration = Duration::from_millis(1);

/// Maximum number of queued requests for a snapshot or a subscription.
///
/// Source: a fleet has fewer routers.
const COMMANDS_MAX: usize = 16;

/// Handle of the publisher's task.
#[derive(Debug, Clone)]
pub struct SummaryPublisher {
    commands: mpsc::Sender<PublisherCommand>,
    places: Arc<Semaphore>,
    metrics: Arc<Metrics>,
}

/// Stream of one subscriber: the frames of a snapshot or of the missed updates, then of every further update. It ends
/// when the subscriber lags.
///
/// Shape: each item is one frame after its length as a big-endian u32.
pub struct Subscription {
    frames: futures::stream::Iter<std::vec::IntoIter<Bytes>>,
    updates: BroadcastStream<Bytes>,
    /// Place of the subscriber, freed when the stream is dropped.
    _place: OwnedSemaphorePermit,
    metrics: Arc<Metrics>,
}

#[derive(Debug)]
enum PublisherCommand {
    Snapshot(oneshot::Sender<Snapshot>),
    Subscribe(Option<Stamp>, oneshot::Sender<(StreamStart, broadcast::Receiver<Bytes>)>),
}

/// Start of a stream.
#[derive(Debug)]
enum StreamStart {
    /// The subscriber has the view as of this stamp, and gets the later updates.
    Resumed(Stamp, Vec<Bytes>),
    /// The subscriber gets the whole view.
    Snapshot(Box<Snapshot>),
}

impl StreamStart {
    /// Returns the stream's first frames.
    async fn into_frames(self) -> Result<Vec<Bytes>, RequestError> {
        match self {
            Self::Resumed(stamp, missed) => {
                let first = on_wire(&Frame { stamp, body: Body::Resumed });
                Ok(std::iter::once(first).chain(missed).collect())
            }
            Self::Snapshot(snapshot) => {
                // A million blocks take some tens of milliseconds, too long for a thread that serves streams.
                let encode = || snapshot.into_frames().iter().map(on_wire).collect();
                let encoded = tokio::task::spawn_blocking(encode).await;
                encoded.map_err(|_| RequestError::Internal { reason: "encoding a snapshot failed".to_owned() })
            }
        }
    }

    fn label(&self) -> &'static str {
        match self {
            Self::Resumed(..) => "resumed",
            Self::Snapshot(_) => "snapshot",
        }
    }
}

impl SummaryPublisher {
    /// Starts the task; it ends when the engine does.
    ///
    /// `first` is the view before the first update.
    pub fn start(
        first: (Stamp, ModelInfo),
        updates: mpsc::UnboundedReceiver<EngineUpdate>,
        metrics: Arc<Metrics>,
    ) -> (Self, JoinHandle<()>) {
        let (commands, receiver) = mpsc::channel(COMMANDS_MAX);
        let (stamp, model) = first;
        let task = PublisherTask {
            replay_buffer: ReplayBuffer::new(REPLAY_LIMITS, stamp),
            model,
            published: Published::default(),
            pending_prefills: PendingPrefills::default(),
            arrivals: Arrivals::default(),
            untold: Vec::new(),
            is_behind: false,
            told: None,
            silent_until: Instant::now() + HEARTBEAT,
            counted: Load::default(),
            load: Load::default(),
            stream: broadcast::Sender::new(STREAM_UPDATES_MAX),
            metrics: Arc::clone(&metrics),
        };
        let handle = tokio::spawn(task.run(receiver, updates));
        (Self { commands, places: Arc::new(Semaphore::new(SUBSCRIBERS_MAX)), metrics }, handle)
    }

    /// Returns whether there is a subscriber.
    pub fn has_subscribers(&self) -> bool {
        self.places.available_permits() < SUBSCRIBERS_MAX
    }

    /// Returns the present view.
    ///
    /// Errors: `Internal` once the engine has stopped.
    pub async fn snapshot(&self) -> Result<Snapshot, RequestError> {
        self.ask(PublisherCommand::Snapshot).await
    }

    /// Returns a stream of the updates after the view of `after`, or of the whole view and all later updates.
    ///
    /// Errors: `SubscribersFull`; `Internal` once the engine has stopped.
    pub async fn subscribe(&self, after: Option<Stamp>) -> Result<Subscription, RequestError> {
        let place = Arc::clone(&self.places).try_acquire_owned();
        let place = place.map_err(|_| RequestError::SubscribersFull { subscribers_max: SUBSCRIBERS_MAX })?;
        let (start, updates) = self.ask(|reply| PublisherCommand::Subscribe(after, reply)).await?;
        self.metrics.summary_streams.with_label_values(&[start.label()]).inc();
        let frames = start.into_frames().await?;
        self.metrics.summary_frames.inc_by(frames.len() as u64);
        self.metrics.summary_subscribers.inc();
        let metrics = Arc::clone(&self.metrics);
        Ok(Subscription {
            frames: futures::stream::iter(frames),
            updates: BroadcastStream::new(updates),
            _place: place,
            metrics,
        })
    }

    async fn ask<T>(&self, command: impl FnOnce(oneshot::Sender<T>) -> PublisherCommand) -> Result<T, RequestError> {
        let (reply, answer) = oneshot::channel();
        let gone = || RequestError::Internal { reason: "the summary publisher has stopped".to_owned() };
        self.commands.send(command(reply)).await.map_err(|_| gone())?;
        answer.await.map_err(|_| gone())
    }
}

impl Stream for Subscription {
    type Item = Bytes;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Bytes>> {
        if let Poll::Ready(Some(frame)) = self.frames.poll_next_unpin(context) {
            return Poll::Ready(Some(frame));
        }
        let update = match self.updates.poll_next_unpin(context) {
            Poll::Pending => return Poll::Pending,
            Poll::Ready(None) => None,
            Poll::Ready(Some(Ok(frame))) => Some(frame),
            Poll::Ready(Some(Err(BroadcastStreamRecvError::Lagged(n_missed)))) => {
                warn!(n_missed, "a summary subscriber is too slow and is disconnected");
                self.metrics.summary_cut_off.inc();
                None
            }
        };
        self.metrics.summary_frames.inc_by(u64::from(update.is_some()));
        Poll::Ready(update)
    }
}

impl Drop for Subscription {
    fn drop(&mut self) {
        self.metrics.summary_subscribers.dec();
    }
}

/// State of the task.
struct PublisherTask {
    /// Replay buffer: recent updates with their numbers.
    replay_buffer: ReplayBuffer<Bytes>,
    model: ModelInfo,
    published: Published,
    /// Early announcements: blocks of requests that have not started. The published view combines them with the
    /// engine's blocks.
    pending_prefills: PendingPrefills,
    arrivals: Arrivals,
    /// Changes in the published view that subscribers have not received yet.
    untold: Vec<Change>,
    /// Whether there were arrivals or departures of requests since the last frame.
    is_behind: bool,
    /// Time of the last frame that reported changes.
    told: Option<Instant>,
    /// Time at which the next heartbeat is due.
    silent_until: Instant,
    /// Load as the engine last reported it.
    counted: Load,
    /// Load as it was last sent: the engine's and the arrivals.
    load: Load,
    stream: broadcast::Sender<Bytes>,
    metrics: Arc<Metrics>,
}

impl PublisherTask {
    async fn run(
        mut self,
        mut commands: mpsc::Receiver<PublisherCommand>,
        mut updates: mpsc::UnboundedReceiver<EngineUpdate>,
    ) {
        loop {
            tokio::select! {
                update = updates.recv() => {
                    let Some(update) = update else { break };
                    self.take_in(update);
                }
                Some(command) = commands.recv() => {
                    self.tell();
                    self.answer(command);
                }
                () = tokio::time::sleep_until(self.due()), if self.is_behind => self.tell(),
                () = tokio::time::sleep_until(self.silent_until) => {
                    let (load, digest) = (self.load.clone(), self.published.digest());
                    self.send(Vec::new(), Some(load), Some(digest));
                }
            }
        }
        info!("the engine has ended, so the summary ends");
    }

    fn answer(&self, command: PublisherCommand) {
        // An error of a reply means that its receiver has gone.
        match command {
            PublisherCommand::Snapshot(reply) => drop(reply.send(self.snapshot())),
            PublisherCommand::Subscribe(after, reply) => {
                let missed = after.and_then(|after| Some((after, self.replay_buffer.since(after)?)));
                let start = match missed {
                    Some((after, missed)) => StreamStart::Resumed(after, missed),
                    None => StreamStart::Snapshot(Box::new(self.snapshot())),
                };
                drop(reply.send((start, self.stream.subscribe())));
            }
        }
    }

    fn snapshot(&self) -> Snapshot {
        Snapshot {
            stamp: self.replay_buffer.last(),
            model: self.model.clone(),
            runs: self.published.runs(),
            load: self.load.clone(),
        }
    }

    fn take_in(&mut self, update: EngineUpdate) {
        match update {
            EngineUpdate::Step { changes, load, counted } => {
                self.metrics.prefill_rate.set(load.rates.prefill_tokens_per_s.unwrap_or_default().into());
                counted.into_iter().for_each(|id| self.arrivals.leave(id));
                self.counted = load;
                let changes = changes.into_iter().flat_map(|change| self.pending_prefills.pass(change)).collect();
                self.publish(changes);
                self.tell();
            }
            EngineUpdate::Arrived { id, request, n_tokens, keys, is_filling } => {
                self.arrivals.come(id, self.n_uncached(n_tokens, &keys));
                let keys = if is_filling { keys } else { Vec::new() };
                let mut changes = self.pending_prefills.make(id, keys, |_, key| self.published.has(key));
                // After the blocks, so that it is sent with the load that counts the request.
                changes.push(Change::Accepted(request));
                self.publish(changes);
                self.tell_soon();
            }
            EngineUpdate::Resolved(id) => {
                self.arrivals.leave(id);
                let changes = self.pending_prefills.resolve(id).into_iter().collect();
                self.publish(changes);
                self.tell_soon();
            }
        }
    }

    /// Returns the number of prompt tokens to compute, by the published view: at least one, for its logits.
    fn n_uncached(&self, n_tokens: u32, keys: &[BlockKey]) -> u32 {
        let n_blocks = keys.iter().take_while(|key| self.published.has(key)).count();
        let n_cached = u32::try_from(n_blocks).unwrap_or(u32::MAX).saturating_mul(self.model.block_size_tokens);
        n_tokens.saturating_sub(n_cached).max(1)
    }

    /// Returns when arrivals and departures may be sent.
    fn due(&self) -> Instant {
        self.told.map_or_else(Instant::now, |told| told + ARRIVALS_INTERVAL)
    }

    /// Sends pending changes as soon as that is allowed.
    fn tell_soon(&mut self) {
        self.is_behind = true;
        if self.due() <= Instant::now() {
            self.tell();
        }
    }

    fn publish(&mut self, changes: Vec<Change>) {
        changes.iter().for_each(|change| self.published.apply(change));
        self.untold.extend(changes);
    }

    /// Sends pending changes, and the load if it has changed.
    fn tell(&mut self) {
        self.is_behind = false;
        let load = self.arrivals.beside(&self.counted);
        let load = (load != self.load).then(|| {
            self.load = load.clone();
            load
        });
        let changes = std::mem::take(&mut self.untold);
        let digest = (!changes.is_empty()).then(|| self.published.digest());
        let mut batches = batches(changes);
        let last = batches.pop().unwrap_or_default();
        batches.into_iter().for_each(|batch| self.send(batch, None, None));
        if !last.is_empty() || load.is_some() {
            self.told = Some(Instant::now());
            self.send(last, load, digest);
        }
    }

    fn send(&mut self, changes: Vec<Change>, load: Option<Load>, digest: Option<Digest>) {
        self.metrics.summary_updates.inc();
        self.silent_until = Instant::now() + HEARTBEAT;
        let bytes = self.replay_buffer.push(|stamp| {
            let bytes = on_wire(&Frame { stamp, body: Body::Update { changes, load, digest } });
            let n_bytes = bytes.len();
            (bytes, n_bytes)
        });
        // An error means that there is no subscriber. The next one starts from a snapshot or from the replay buffer.
        let _ = self.stream.send(bytes);
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

/// Returns the frame's bytes after their length as a big-endian u32.
fn on_wire(frame: &Frame) -> Bytes {
    let content = frame.encode();
    let mut bytes = BytesMut::with_capacity(4 + content.len());
    bytes.put_u32(u32::try_from(content.len()).expect("a frame is below 1 MiB"));
    bytes.put_slice(&content);
    bytes.freeze()
}

#[cfg(test)]
mod tests;
