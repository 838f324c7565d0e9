//! The task that owns the summary's writer and sends every subscriber the same frames.
//!
//! With one owner, a snapshot and the updates after it neither overlap nor leave a gap. With one bounded broadcast
//! channel, a slow subscriber is disconnected and starts again.
//!
//! Not here: the published view and the frames (`warmpath_worker_core::reports::summary_writer`), HTTP.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;
use futures::{Stream, StreamExt};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, broadcast, mpsc, oneshot};
use tokio::task::JoinHandle;
use tokio::time::Instant;
use tokio_stream::wrappers::BroadcastStream;
use tokio_stream::wrappers::errors::BroadcastStreamRecvError;
use tracing::{info, warn};
use warmpath_common::model::ModelInfo;
use warmpath_common::summary::{Snapshot, Stamp};
use warmpath_worker_core::reports::summary_writer::{
    EngineUpdate, FrameBytes, REPLAY_LIMITS, StreamStart, SummaryWriter,
};

use crate::engine::EngineError;
use crate::error::RequestError;
use crate::metrics::Metrics;

/// Maximum number of subscribers at a time. Source: more router replicas than a fleet has, and some for inspection.
const SUBSCRIBERS_MAX: usize = 64;

/// Maximum number of updates queued for a subscriber; a subscriber with more is disconnected.
///
/// Source: about ten seconds of load updates at their highest rate, one every 10 ms.
const STREAM_UPDATES_MAX: usize = 1024;

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
    frames: futures::stream::Iter<std::vec::IntoIter<FrameBytes>>,
    updates: BroadcastStream<FrameBytes>,
    /// Place of the subscriber, freed when the stream is dropped.
    _place: OwnedSemaphorePermit,
    metrics: Arc<Metrics>,
}

#[derive(Debug)]
enum PublisherCommand {
    Snapshot(oneshot::Sender<Snapshot>),
    Subscribe(Option<Stamp>, oneshot::Sender<(StreamStart, broadcast::Receiver<FrameBytes>)>),
}

impl SummaryPublisher {
    /// Starts the task; it ends when the engine does.
    ///
    /// The first update has the number after that of `stamp`.
    pub fn start(
        stamp: Stamp,
        model: ModelInfo,
        updates: mpsc::UnboundedReceiver<EngineUpdate>,
        metrics: Arc<Metrics>,
    ) -> (Self, JoinHandle<()>) {
        let (commands, receiver) = mpsc::channel(COMMANDS_MAX);
        let task = PublisherTask {
            writer: SummaryWriter::new(stamp, model, REPLAY_LIMITS, now()),
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
    /// Errors: `Engine` once the engine has stopped.
    pub async fn snapshot(&self) -> Result<Snapshot, RequestError> {
        self.ask(PublisherCommand::Snapshot).await
    }

    /// Returns a stream of the updates after the view of `after`, or of the whole view and all later updates.
    ///
    /// Errors: `SubscribersFull`; `Engine` once the engine has stopped.
    pub async fn subscribe(&self, after: Option<Stamp>) -> Result<Subscription, RequestError> {
        let place = Arc::clone(&self.places).try_acquire_owned();
        let place = place.map_err(|_| RequestError::SubscribersFull { subscribers_max: SUBSCRIBERS_MAX })?;
        let (start, updates) = self.ask(|reply| PublisherCommand::Subscribe(after, reply)).await?;
        self.metrics.summary_streams.with_label_values(&[start.label()]).inc();
        let frames = match start {
            StreamStart::Resumed(..) => start.into_frames(),
            // A million blocks take some tens of milliseconds, too long for a thread that serves streams.
            StreamStart::Snapshot(_) => tokio::task::spawn_blocking(|| start.into_frames())
                .await
                .map_err(|_| RequestError::Internal { reason: "encoding a snapshot failed".to_owned() })?,
        };
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
        // It stops with the engine, after the last answer of a worker that drains.
        self.commands.send(command(reply)).await.map_err(|_| EngineError::Draining)?;
        Ok(answer.await.map_err(|_| EngineError::Draining)?)
    }
}

impl Stream for Subscription {
    type Item = Bytes;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Bytes>> {
        if let Poll::Ready(Some(frame)) = self.frames.poll_next_unpin(context) {
            return Poll::Ready(Some(Bytes::from_owner(frame)));
        }
        let update = match self.updates.poll_next_unpin(context) {
            Poll::Pending => return Poll::Pending,
            Poll::Ready(None) => None,
            Poll::Ready(Some(Ok(frame))) => Some(Bytes::from_owner(frame)),
            Poll::Ready(Some(Err(BroadcastStreamRecvError::Lagged(n_missed)))) => {
                warn!(n_missed, "a summary subscriber does not keep up and is disconnected");
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
    writer: SummaryWriter,
    stream: broadcast::Sender<FrameBytes>,
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
                    if let EngineUpdate::Step { load, .. } = &update {
                        self.metrics.prefill_rate.set(load.rates.prefill_tokens_per_s.unwrap_or_default().into());
                    }
                    self.writer.apply(update, now());
                    self.send();
                }
                Some(command) = commands.recv() => self.answer(command),
                () = tokio::time::sleep_until(self.writer.due().into()) => {
                    self.writer.tick(now());
                    self.send();
                }
            }
        }
        info!("the engine has ended, and so has the summary");
    }

    fn answer(&mut self, command: PublisherCommand) {
        // An error of a reply means that its receiver has left.
        match command {
            PublisherCommand::Snapshot(reply) => {
                let snapshot = self.writer.snapshot(now());
                self.send();
                drop(reply.send(snapshot));
            }
            PublisherCommand::Subscribe(after, reply) => {
                let start = self.writer.start(after, now());
                self.send();
                drop(reply.send((start, self.stream.subscribe())));
            }
        }
    }

    /// Sends the frames that the writer has made.
    fn send(&mut self) {
        for frame in self.writer.take_frames() {
            self.metrics.summary_updates.inc();
            // An error means that there is no subscriber. The next one starts from a snapshot or the replay buffer.
            let _ = self.stream.send(frame);
        }
    }
}

/// Returns the current time; a test may pause it.
fn now() -> std::time::Instant {
    Instant::now().into_std()
}

#[cfg(test)]
mod tests;
