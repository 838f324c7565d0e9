//! One subscriber per worker: reads its summary stream, and opens it again whenever it ends.
//!
//! Nothing that a worker sends is trusted. Frames are limited in size and rate, silence is limited, and any
//! inconsistency ends the stream. The next stream resumes after the last valid update, or starts with a new snapshot.
//!
//! Not here: the check of frames (the core's `summary_reader`), their effect (`tracker`).

use std::sync::Arc;
use std::time::Duration;

use axum::body::Body as AxumBody;
use axum::http::header::CONTENT_TYPE;
use axum::http::{HeaderMap, Response, StatusCode};
use futures::{StreamExt, TryStreamExt};
use serde::Deserialize;
use tokio::sync::{mpsc, watch};
use tokio::time::Instant;
use tokio_util::codec::{FramedRead, LengthDelimitedCodec};
use tokio_util::io::StreamReader;
use url::Url;
use warmpath_common::headers;
use warmpath_common::summary::{
    self, AFTER_PARAMETER, Body, DecodeError, FRAME_BYTES_MAX, Frame, Loading, STREAM_PATH, Stamp,
};
use warmpath_router_core::WorkerIdx;
use warmpath_router_core::fleet::compatibility::NAME_BYTES_MAX;
use warmpath_router_core::fleet::summary_reader::{FrameEffect, SummaryLimits, SummaryReader, Violation};
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

/// Reason why a stream ended or could not be opened.
#[derive(Debug, thiserror::Error)]
enum StreamError {
    #[error(transparent)]
    Connect(#[from] CallError),
    #[error("the worker rejects this router: it requires another fleet token (--fleet-token-file)")]
    Refused,
    #[error("the worker answers 503: it is not ready, for example because it loads its model")]
    Unready,
    #[error("the worker is loading its model ({} %)", .0.percent)]
    Loading(Loading),
    #[error("the worker answered {status}")]
    Status { status: u16 },
    #[error("the worker answered with another content type")]
    ContentType,
    #[error("the stream broke")]
    Broken(#[source] std::io::Error),
    #[error("the stream ended")]
    Ended,
    #[error("nothing arrived for {} ms", .0.as_millis())]
    Idle(Duration),
    #[error("the snapshot did not end within {} s", SNAPSHOT_TIMEOUT.as_secs())]
    SlowSnapshot,
    #[error("{what} arrived faster than the limit allows")]
    Flood { what: &'static str },
    #[error("a frame could not be read")]
    Frame(#[from] DecodeError),
    #[error(transparent)]
    Violation(#[from] Violation),
    #[error(transparent)]
    StaleReport(#[from] StaleReport),
}

impl StreamError {
    /// Returns a short name for metrics.
    fn label(&self) -> &'static str {
        match self {
            Self::Connect(error) if error.is_tls() => "tls",
            Self::Connect(_) => "connect",
            Self::Refused => "refused",
            Self::Unready => "unready",
            Self::Loading(_) => "loading",
            Self::Status { .. } => "status",
            Self::ContentType => "content_type",
            Self::Broken(error) if error.kind() == std::io::ErrorKind::InvalidData => "frame_too_long",
            Self::Broken(_) => "broken",
            Self::Ended => "ended",
            Self::Idle(_) => "idle",
            Self::SlowSnapshot => "slow_snapshot",
            Self::Flood { .. } => "flood",
            Self::Frame(DecodeError::Version { .. }) => "protocol_version",
            Self::Frame(_) => "malformed",
            Self::Violation(violation) => violation.label(),
            Self::StaleReport(stale_report) => stale_report.label(),
        }
    }

    /// Returns whether everything before the end of the stream was valid. For invalid frames the summary reader decides
    /// that itself.
    fn keeps_view(&self) -> bool {
        match self {
            Self::Ended | Self::SlowSnapshot | Self::Violation(_) => true,
            Self::Broken(error) => error.kind() != std::io::ErrorKind::InvalidData,
            _ => false,
        }
    }

    /// Returns whether this router cannot use the worker.
    fn is_unreachable(&self) -> bool {
        let is_answer =
            matches!(self, Self::Refused | Self::Unready | Self::Loading(_) | Self::Status { .. } | Self::ContentType);
        is_answer || matches!(self, Self::Connect(_) | Self::Idle(_) | Self::Frame(DecodeError::Version { .. }))
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
    let stale_reports = member.stale_reports.listen();
    let follower = SummaryReader::new(SummaryLimits { blocks_max: WORKER_BLOCKS_MAX });
    let mut subscriber = Subscriber { fleet, worker, member, client, outbox, stale_reports, follower };
    let mut pause = RECONNECT_MIN;
    let mut last_label = "";
    loop {
        let opened = Instant::now();
        let after = subscriber.follower.open();
        let Err(error) = subscriber.read(&behind(&url, after)).await else { return };
        let fleet = &subscriber.fleet;
        fleet.metrics.summary_stream_ends.with_label_values(&[error.label()]).inc();
        // A worker that is down is tried every second; it is logged once.
        if error.label() != last_label {
            tracing::warn!(worker = %subscriber.member.url, reason = %chain(&error), "summary stream ended");
        }
        last_label = error.label();
        if subscriber.lost(&error).await.is_err() {
            return;
        }
        if opened.elapsed() >= STEADY_AFTER {
            pause = RECONNECT_MIN;
        }
        tokio::time::sleep(pause.mul_f64(rand::random_range(0.5..=1.0))).await;
        pause = (pause * 2).min(RECONNECT_MAX);
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
    follower: SummaryReader,
}

impl Subscriber {
    /// Reports that a stream has ended, and how much of the view is still valid.
    async fn lost(&mut self, error: &StreamError) -> Result<(), Closed> {
        let worker = self.worker;
        if !error.keeps_view() {
            self.follower.forget();
        }
        if error.is_unreachable() {
            self.outbox.tell(TrackerMessage::Unreachable { worker, trouble: error.trouble() }).await
        } else {
            self.outbox.tell(TrackerMessage::Lost { worker }).await
        }
    }

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
        let bytes = StreamReader::new(response.into_body().into_data_stream().map_err(std::io::Error::other));
        let codec = LengthDelimitedCodec::builder().max_frame_length(FRAME_BYTES_MAX).new_codec();
        let mut frames = FramedRead::new(bytes, codec);
        let mut gate = FloodGate::new();
        let snapshot_deadline = Instant::now() + SNAPSHOT_TIMEOUT;
        // The frames of a snapshot may be large and the network slow.
        let mut silence_max = SUMMARY_IDLE_MAX;
        loop {
            let bytes = tokio::select! {
                next = unless_lost((&self.fleet, self.worker), frames.next(), silence_max) => {
                    next?.ok_or(StreamError::Ended)?.map_err(StreamError::Broken)?
                }
                stale_report = stale_report(&mut self.stale_reports) => return Err(stale_report.into()),
            };
            let frame = Frame::decode(&bytes)?;
            self.fleet.heard(&self.member);
            self.fleet.metrics.summary_frames.inc();
            // The bytes of a snapshot are limited by its blocks.
            let is_update = matches!(frame.body, Body::Update { .. });
            gate.pass(if is_update { bytes.len() } else { 0 })?;
            let step = self.follower.apply(frame)?;
            if step == FrameEffect::Partial && Instant::now() > snapshot_deadline {
                return Err(StreamError::SlowSnapshot);
            }
            if step != FrameEffect::Partial {
                silence_max = announced_silence_max;
            }
            if self.pass_on(step).await.is_err() {
                return Ok(());
            }
        }
    }

    /// Reports the changes of a frame.
    async fn pass_on(&self, step: FrameEffect) -> Result<(), Closed> {
        let worker = self.worker;
        let started = |start| self.fleet.metrics.summary_streams.with_label_values(&[start]).inc();
        let report = match step {
            FrameEffect::Partial => return Ok(()),
            FrameEffect::Opened(new) => {
                started("snapshot");
                TrackerMessage::Opened { worker, new }
            }
            FrameEffect::Replace(view) => TrackerMessage::Replaced { worker, runs: view.runs },
            FrameEffect::Resumed => {
                started("resumed");
                TrackerMessage::Resumed { worker }
            }
            FrameEffect::Update { changes, load, digest } => TrackerMessage::Update { worker, changes, load, digest },
        };
        self.outbox.tell(report).await
    }
}

/// Returns the next frame of a worker, unless it is lost.
///
/// A router that receives nothing from any other worker may itself be cut off, and waits longer. Errors: `Idle`.
async fn unless_lost<T>(
    (fleet, worker): (&Fleet, WorkerIdx),
    next: impl Future<Output = T>,
    silence_max: Duration,
) -> Result<T, StreamError> {
    let mut next = std::pin::pin!(next);
    let start = Instant::now();
    // The last part is a wait of its own: a router that was stopped for a while finds the frames that arrived
    // meanwhile.
    let last_part = silence_max / SILENT_HEARTBEATS_MAX;
    if let Ok(next) = tokio::time::timeout(silence_max - last_part, &mut next).await {
        return Ok(next);
    }
    loop {
        if let Ok(next) = tokio::time::timeout(last_part, &mut next).await {
            return Ok(next);
        }
        if start.elapsed() >= SUMMARY_IDLE_MAX {
            return Err(StreamError::Idle(SUMMARY_IDLE_MAX));
        }
        // Had the router been cut off when this worker fell silent, the others would have been silent for as long.
        if fleet.hears_another(worker, 2 * last_part) {
            return Err(StreamError::Idle(silence_max));
        }
    }
}

/// Returns the longest silence of a stream with these headers.
fn silence_max(described: &HeaderMap) -> Duration {
    let announced = described.get(headers::HEARTBEAT_MS).and_then(|ms| ms.to_str().ok()?.parse().ok());
    let silence_max = announced.map(|ms: u32| Duration::from_millis(ms.into()) * SILENT_HEARTBEATS_MAX);
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
        // The fleet holds the other end as long as this task runs.
        if stale_reports.changed().await.is_err() {
            std::future::pending::<()>().await;
        }
        if let Some(stale_report) = *stale_reports.borrow_and_update() {
            return stale_report;
        }
    }
}

/// Rate limit on frames, and on the bytes of updates, in windows of one second.
struct FloodGate {
    window: Instant,
    n_frames: u32,
    n_bytes: usize,
}

impl FloodGate {
    fn new() -> Self {
        Self { window: Instant::now(), n_frames: 0, n_bytes: 0 }
    }

    fn pass(&mut self, n_bytes: usize) -> Result<(), StreamError> {
        if self.window.elapsed() >= Duration::from_secs(1) {
            *self = Self::new();
        }
        self.n_frames += 1;
        self.n_bytes += n_bytes;
        if self.n_frames > SUMMARY_FRAMES_PER_S_MAX {
            return Err(StreamError::Flood { what: "frames" });
        }
        if self.n_bytes > SUMMARY_BYTES_PER_S_MAX {
            return Err(StreamError::Flood { what: "bytes" });
        }
        Ok(())
    }
}
