//! One subscriber per worker: reads its summary stream, and opens it again whenever it ends.
//!
//! Nothing that a worker sends is trusted: any inconsistency ends the stream. The next stream resumes after the last
//! valid update, or starts with a new snapshot.
//!
//! Not here: bytes and limits of a stream (the core's `summary_stream`), the check of frames (the core's
//! `summary_reader`), their effect (`tracker`).

use std::sync::Arc;
use std::time::Duration;

use axum::body::Body as AxumBody;
use axum::http::header::CONTENT_TYPE;
use axum::http::{HeaderMap, Response, StatusCode};
use bytes::Bytes;
use futures::{Stream, TryStreamExt};
use serde::Deserialize;
use tokio::sync::{mpsc, watch};
use tokio::time::Instant;
use url::Url;
use warmpath_common::headers;
use warmpath_common::summary::{self, AFTER_PARAMETER, Loading, STREAM_PATH, Stamp};
use warmpath_router_core::WorkerIdx;
use warmpath_router_core::fleet::compatibility::NAME_BYTES_MAX;
use warmpath_router_core::fleet::summary_reader::{FrameEffect, SummaryReader};
use warmpath_router_core::fleet::summary_stream::{SilenceWatch, StreamFault, StreamLimits, SummaryStream};
use warmpath_shell::chain;

use super::client::CallError;
use super::client::WorkerClient;
use super::members::Member;
use super::tracker::StaleReport;
use super::{Fleet, FollowError, FollowErrorKind, TrackerMessage};
use crate::config::{
    LOADING_BYTES_MAX, RECONNECT_MAX, RECONNECT_MIN, SILENT_HEARTBEATS_MAX, SNAPSHOT_TIMEOUT, STEADY_AFTER,
    SUMMARY_BYTES_PER_S_MAX, SUMMARY_FRAMES_PER_S_MAX, SUMMARY_IDLE_MAX, SUMMARY_IDLE_MIN, WORKER_BLOCKS_MAX,
};

/// Limits on every stream.
pub const STREAM_LIMITS: StreamLimits = StreamLimits {
    frames_per_s_max: SUMMARY_FRAMES_PER_S_MAX,
    update_bytes_per_s_max: SUMMARY_BYTES_PER_S_MAX,
    snapshot_timeout: SNAPSHOT_TIMEOUT,
};

/// Reason why a stream ended or could not be opened.
#[derive(Debug, thiserror::Error)]
pub enum StreamError {
    /// The worker did not begin to respond.
    #[error(transparent)]
    Connect(#[from] CallError),
    /// The worker rejects the fleet token (401).
    #[error("the worker rejects this router: it requires another fleet token (--fleet-token-file)")]
    Refused,
    /// The worker is not ready (503).
    #[error("the worker answers 503: it is not ready, for example because it is loading its model")]
    Unready,
    /// The worker is loading its model (503).
    #[error("the worker is loading its model ({} %)", .0.percent)]
    Loading(Loading),
    /// The worker responded with another status.
    #[error("the worker answered {status}")]
    Status {
        /// The status.
        status: u16,
    },
    /// The response is no summary stream.
    #[error("the worker answered with another content type")]
    ContentType,
    /// The connection broke.
    #[error("the stream broke")]
    Broken(#[source] axum::Error),
    /// The worker closed the stream.
    #[error("the stream ended")]
    Ended,
    /// The worker was silent for too long.
    #[error("nothing arrived for {} ms", .0.as_millis())]
    Idle(Duration),
    /// The bytes of the stream are not valid.
    #[error(transparent)]
    Fault(#[from] StreamFault),
    /// The index and the worker do not have the same blocks.
    #[error(transparent)]
    StaleReport(#[from] StaleReport),
}

impl StreamError {
    /// Returns a short name for metrics.
    pub fn label(&self) -> &'static str {
        match self {
            Self::Connect(error) if error.is_tls() => "tls",
            Self::Connect(_) => "connect",
            Self::Refused => "refused",
            Self::Unready => "unready",
            Self::Loading(_) => "loading",
            Self::Status { .. } => "status",
            Self::ContentType => "content_type",
            Self::Broken(_) => "broken",
            Self::Ended => "ended",
            Self::Idle(_) => "idle",
            Self::Fault(fault) => fault.label(),
            Self::StaleReport(stale_report) => stale_report.label(),
        }
    }

    /// Returns whether everything before the end of the stream was valid.
    fn keeps_view(&self) -> bool {
        match self {
            Self::Ended | Self::Broken(_) => true,
            Self::Connect(error) => error.is_shortage(),
            Self::Fault(fault) => fault.keeps_view(),
            _ => false,
        }
    }

    /// Returns whether this router cannot use the worker.
    fn is_unreachable(&self) -> bool {
        match self {
            // A shortage on this machine shows nothing about the worker: its view ages meanwhile.
            Self::Connect(error) => !error.is_shortage(),
            Self::Fault(fault) => fault.is_other_version(),
            Self::Refused | Self::Unready | Self::Loading(_) | Self::Status { .. } | Self::ContentType => true,
            Self::Idle(_) => true,
            Self::Broken(_) | Self::Ended | Self::StaleReport(_) => false,
        }
    }

    /// Returns the reason why this router cannot use the worker.
    fn trouble(&self) -> FollowError {
        let kind = match self {
            Self::Refused => FollowErrorKind::Refusal,
            Self::Loading(loading) => FollowErrorKind::Loading { names: loading.names.clone() },
            Self::Idle(_) => FollowErrorKind::Loss,
            Self::Connect(error) if error.is_away() => FollowErrorKind::Loss,
            _ => FollowErrorKind::Other,
        };
        FollowError { kind, reason: chain(self).into() }
    }

    /// Returns the report of the stream's end. If its view is not valid, the next stream starts with a snapshot.
    pub fn report(&self, worker: WorkerIdx, reader: &mut SummaryReader) -> TrackerMessage {
        if !self.keeps_view() {
            reader.forget();
        }
        if self.is_unreachable() {
            TrackerMessage::Unreachable { worker, trouble: self.trouble() }
        } else {
            TrackerMessage::Lost { worker, reason: chain(self).into() }
        }
    }
}

/// Returns the report of a frame's effect; `None` if it changes nothing yet.
pub fn report(worker: WorkerIdx, effect: FrameEffect) -> Option<TrackerMessage> {
    match effect {
        FrameEffect::Partial => None,
        FrameEffect::Opened(new) => Some(TrackerMessage::Opened { worker, new }),
        FrameEffect::Replace(view) => Some(TrackerMessage::Replaced { worker, runs: view.runs }),
        FrameEffect::Resumed => Some(TrackerMessage::Resumed { worker }),
        FrameEffect::Update { changes, load, digest } => Some(TrackerMessage::Update { worker, changes, load, digest }),
    }
}

/// Pause before a stream is opened again: it doubles until a stream has lasted.
#[derive(Debug)]
pub struct ReconnectPause {
    next: Duration,
}

impl Default for ReconnectPause {
    fn default() -> Self {
        Self { next: RECONNECT_MIN }
    }
}

impl ReconnectPause {
    /// Returns the pause after a stream that has lasted this long; `jitter` is a random number from 0 to 1.
    pub fn after(&mut self, duration: Duration, jitter: f64) -> Duration {
        if duration >= STEADY_AFTER {
            self.next = RECONNECT_MIN;
        }
        let pause = self.next.mul_f64((1.0 + jitter) / 2.0);
        self.next = (self.next * 2).min(RECONNECT_MAX);
        pause
    }
}

/// A subscriber's channel to the tracker.
#[derive(Clone)]
pub struct FleetEvents(pub(super) mpsc::Sender<TrackerMessage>);

/// The router is shutting down.
pub(super) struct Closed;

impl FleetEvents {
    pub(super) async fn tell(&self, report: TrackerMessage) -> Result<(), Closed> {
        self.0.send(report).await.map_err(|_| Closed)
    }
}

/// Follows one worker as long as it is in the fleet.
pub async fn follow(fleet: Arc<Fleet>, worker: WorkerIdx, client: WorkerClient, outbox: FleetEvents) {
    let member = fleet.member(worker);
    let url = client.url(STREAM_PATH);
    let stale_reports = member.stale_reports.subscribe();
    let reader = SummaryReader::new(WORKER_BLOCKS_MAX);
    let mut subscriber = Subscriber { fleet, worker, member, client, outbox, stale_reports, reader };
    let mut pause = ReconnectPause::default();
    let mut last_label = "";
    loop {
        let start = Instant::now();
        let after = subscriber.reader.open();
        let Err(error) = subscriber.read(&behind(&url, after)).await else { return };
        let fleet = &subscriber.fleet;
        fleet.metrics.summary_stream_ends.with_label_values(&[error.label()]).inc();
        let is_loading = matches!(error, StreamError::Loading(_));
        if is_loading {
            // A worker that loads responds to every attempt, so it is not silent.
            fleet.record_message(&subscriber.member);
        }
        // A worker that is down is tried every second; it is logged once. The tracker logs that a worker loads.
        if error.label() != last_label && !is_loading {
            let (worker_url, reason) = (&subscriber.member.url, chain(&error));
            if fleet.view().worker(worker).is_some_and(|view| view.is_leaving) {
                tracing::info!(worker = %worker_url, reason, "summary stream ended");
            } else {
                tracing::warn!(worker = %worker_url, reason, "summary stream ended");
            }
        }
        last_label = error.label();
        let report = error.report(worker, &mut subscriber.reader);
        if subscriber.outbox.tell(report).await.is_err() {
            return;
        }
        tokio::select! {
            () = tokio::time::sleep(pause.after(start.elapsed(), rand::random())) => {}
            () = subscriber.member.reconnect.notified() => {}
        }
    }
}

/// Returns the URL of a stream that resumes after a stamp.
fn behind(url: &Url, after: Option<Stamp>) -> Url {
    let mut url = url.clone();
    if let Some(after) = after {
        url.query_pairs_mut().append_pair(AFTER_PARAMETER, &after.to_string());
    }
    url
}

struct Subscriber {
    fleet: Arc<Fleet>,
    worker: WorkerIdx,
    member: Arc<Member>,
    client: WorkerClient,
    outbox: FleetEvents,
    stale_reports: watch::Receiver<Option<StaleReport>>,
    reader: SummaryReader,
}

impl Subscriber {
    /// Reads one stream to its end; `Ok` means that the router is shutting down.
    async fn read(&mut self, url: &Url) -> Result<(), StreamError> {
        let response = tokio::time::timeout(SUMMARY_IDLE_MAX, self.client.get(url)).await;
        let response = response.map_err(|_| StreamError::Idle(SUMMARY_IDLE_MAX))??;
        match response.status() {
            StatusCode::OK => {}
            StatusCode::UNAUTHORIZED => return Err(StreamError::Refused),
            StatusCode::SERVICE_UNAVAILABLE => return Err(unready(response).await),
            status => return Err(StreamError::Status { status: status.as_u16() }),
        }
        if response.headers().get(CONTENT_TYPE).is_none_or(|kind| kind != summary::CONTENT_TYPE) {
            return Err(StreamError::ContentType);
        }
        // A name that is not text or could be an address is ignored: the worker keeps the name that this router gave
        // it.
        let name = response.headers().get(headers::WORKER).and_then(|name| name.to_str().ok());
        name.into_iter().for_each(|name| self.member.named(name));
        let announced_silence_max = silence_max(response.headers());
        let mut chunks = response.into_body().into_data_stream();
        let mut stream = SummaryStream::new(STREAM_LIMITS, now());
        // The frames of a snapshot may be large and the network slow.
        let mut silence_max = SUMMARY_IDLE_MAX;
        loop {
            let next = next_effect(&mut chunks, &mut stream, &mut self.reader);
            let effect = tokio::select! {
                next = unless_lost(&self.fleet, self.worker, next, silence_max) => next??,
                stale_report = stale_report(&mut self.stale_reports) => return Err(stale_report.into()),
            };
            self.fleet.record_message(&self.member);
            self.fleet.metrics.summary_frames.inc();
            if effect != FrameEffect::Partial {
                silence_max = announced_silence_max;
            }
            if self.pass_on(effect).await.is_err() {
                return Ok(());
            }
        }
    }

    /// Reports the changes of a frame.
    async fn pass_on(&self, effect: FrameEffect) -> Result<(), Closed> {
        let started = match effect {
            FrameEffect::Opened(_) => Some("snapshot"),
            FrameEffect::Resumed => Some("resumed"),
            _ => None,
        };
        if let Some(started) = started {
            self.fleet.metrics.summary_streams.with_label_values(&[started]).inc();
        }
        match report(self.worker, effect) {
            Some(report) => self.outbox.tell(report).await,
            None => Ok(()),
        }
    }
}

/// Returns the effect of a stream's next frame.
async fn next_effect(
    chunks: &mut (impl Stream<Item = Result<Bytes, axum::Error>> + Unpin),
    stream: &mut SummaryStream,
    reader: &mut SummaryReader,
) -> Result<FrameEffect, StreamError> {
    loop {
        if let Some(effect) = stream.next(reader, now())? {
            return Ok(effect);
        }
        let bytes = chunks.try_next().await.map_err(StreamError::Broken)?;
        stream.push(&bytes.ok_or(StreamError::Ended)?);
    }
}

/// Returns the current time; a test may pause it.
fn now() -> std::time::Instant {
    Instant::now().into_std()
}

/// Returns the next frame of a worker, unless it is lost. Errors: `Idle`.
async fn unless_lost<T>(
    fleet: &Fleet,
    worker: WorkerIdx,
    next: impl Future<Output = T>,
    silence_max: Duration,
) -> Result<T, StreamError> {
    let mut next = std::pin::pin!(next);
    let mut watch = SilenceWatch::new(silence_max, SILENT_HEARTBEATS_MAX, SUMMARY_IDLE_MAX, now());
    loop {
        if let Ok(next) = tokio::time::timeout_at(watch.due().into(), &mut next).await {
            return Ok(next);
        }
        if let Some(silence) = watch.check(now(), |within| fleet.received_from_another(worker, within)) {
            return Err(StreamError::Idle(silence));
        }
    }
}

/// Returns the longest silence of a stream with these headers.
fn silence_max(headers_of_worker: &HeaderMap) -> Duration {
    let heartbeat_ms = headers_of_worker.get(headers::HEARTBEAT_MS).and_then(|ms| ms.to_str().ok()?.parse().ok());
    let silence_max = heartbeat_ms.map(|ms: u32| Duration::from_millis(ms.into()) * SILENT_HEARTBEATS_MAX);
    silence_max.map_or(SUMMARY_IDLE_MAX, |silence| silence.clamp(SUMMARY_IDLE_MIN, SUMMARY_IDLE_MAX))
}

/// The part of a worker's refusal that gives the reason.
#[derive(Deserialize)]
struct Unready {
    loading: Loading,
}

/// Returns the reason why a worker does not serve yet; while its model loads it lists its future names.
async fn unready(response: Response<AxumBody>) -> StreamError {
    let body = axum::body::to_bytes(response.into_body(), LOADING_BYTES_MAX);
    let Ok(Ok(body)) = tokio::time::timeout(SUMMARY_IDLE_MAX, body).await else {
        return StreamError::Unready;
    };
    match serde_json::from_slice(&body) {
        Ok(Unready { mut loading }) => {
            loading.names.retain(|name| (1..=NAME_BYTES_MAX).contains(&name.len()));
            StreamError::Loading(loading)
        }
        Err(_) => StreamError::Unready,
    }
}

/// Waits until the tracker reports that the view cannot be trusted.
async fn stale_report(stale_reports: &mut watch::Receiver<Option<StaleReport>>) -> StaleReport {
    loop {
        // The fleet holds the sender as long as this task runs.
        if stale_reports.changed().await.is_err() {
            std::future::pending::<()>().await;
        }
        if let Some(stale_report) = *stale_reports.borrow_and_update() {
            return stale_report;
        }
    }
}
