//! One subscriber for each worker: reads its summary stream, and opens it again whenever it ends.
//!
//! Not here: whether frames make sense (the core's `follower`), what they change (`tracker`).
//! The idea: nothing a worker sends is trusted. Frames are bounded in size and rate, silence is bounded, and anything
//! out of order ends the stream; the next one starts with a fresh snapshot.

use std::sync::Arc;
use std::time::Duration;

use futures::{StreamExt, TryStreamExt};
use reqwest::header::CONTENT_TYPE;
use tokio::sync::mpsc;
use tokio::time::Instant;
use tokio_util::codec::{FramedRead, LengthDelimitedCodec};
use tokio_util::io::StreamReader;
use url::Url;
use warmpath_common::summary::{self, Body, DecodeError, FRAME_BYTES_MAX, Frame, STREAM_PATH};
use warmpath_router_core::WorkerIdx;
use warmpath_router_core::follower::{Follower, FollowerLimits, Step, Violation};

use super::{Fleet, Report};
use crate::config::{
    RECONNECT_MAX, RECONNECT_MIN, SNAPSHOT_TIMEOUT, STEADY_AFTER, SUMMARY_BYTES_PER_S_MAX, SUMMARY_FRAMES_PER_S_MAX,
    SUMMARY_IDLE_MAX, WORKER_BLOCKS_MAX,
};

/// Says why a stream ended or could not be opened.
#[derive(Debug, thiserror::Error)]
enum StreamError {
    #[error("no connection")]
    Connect(#[source] reqwest::Error),
    #[error("the worker answered {status}")]
    Status { status: u16 },
    #[error("the worker answered with another content type")]
    ContentType,
    #[error("the stream broke")]
    Broken(#[source] std::io::Error),
    #[error("the stream ended")]
    Ended,
    #[error("nothing came for {} ms", SUMMARY_IDLE_MAX.as_millis())]
    Idle,
    #[error("the snapshot did not end within {} s", SNAPSHOT_TIMEOUT.as_secs())]
    SlowSnapshot,
    #[error("{what} came faster than is believed")]
    Flood { what: &'static str },
    #[error("a frame could not be read")]
    Frame(#[from] DecodeError),
    #[error(transparent)]
    Violation(#[from] Violation),
}

impl StreamError {
    /// Returns a short name for metrics.
    fn label(&self) -> &'static str {
        match self {
            Self::Connect(_) => "connect",
            Self::Status { .. } => "status",
            Self::ContentType => "content_type",
            Self::Broken(error) if error.kind() == std::io::ErrorKind::InvalidData => "frame_too_long",
            Self::Broken(_) => "broken",
            Self::Ended => "ended",
            Self::Idle => "idle",
            Self::SlowSnapshot => "slow_snapshot",
            Self::Flood { .. } => "flood",
            Self::Frame(_) => "malformed",
            Self::Violation(violation) => violation.label(),
        }
    }

    /// Returns whether the worker itself cannot be used, as far as one can see from here.
    fn is_unreachable(&self) -> bool {
        matches!(self, Self::Connect(_) | Self::Status { .. } | Self::ContentType | Self::Idle)
    }
}

/// Follows one worker for as long as the router runs.
pub async fn follow(fleet: Arc<Fleet>, worker: WorkerIdx, connect_timeout: Duration, reports: mpsc::Sender<Report>) {
    let url = endpoint(fleet.url(worker), STREAM_PATH);
    let client = client(connect_timeout);
    let mut pause = RECONNECT_MIN;
    let mut last_label = "";
    loop {
        let opened = Instant::now();
        let error = match read(&fleet, worker, client.get(url.clone()), &reports).await {
            Ok(()) => return,
            Err(error) => error,
        };
        fleet.metrics.resyncs.with_label_values(&[error.label()]).inc();
        // A worker that is down is tried every second; it is said once.
        if error.label() != last_label {
            tracing::warn!(worker = %fleet.url(worker), reason = %chain(&error), "summary stream ended");
        }
        last_label = error.label();
        let report = if error.is_unreachable() { Report::Unreachable { worker } } else { Report::Lost { worker } };
        if reports.send(report).await.is_err() {
            return;
        }
        if opened.elapsed() >= STEADY_AFTER {
            pause = RECONNECT_MIN;
        }
        tokio::time::sleep(pause.mul_f64(rand::random_range(0.5..=1.0))).await;
        pause = (pause * 2).min(RECONNECT_MAX);
    }
}

/// Returns a client for the workers' internal endpoints: no proxy, no redirects.
pub(super) fn client(connect_timeout: Duration) -> reqwest::Client {
    reqwest::Client::builder()
        .no_proxy()
        .redirect(reqwest::redirect::Policy::none())
        .connect_timeout(connect_timeout)
        .build()
        .expect("a client without TLS has nothing to fail on")
}

/// Returns the URL of one of a worker's endpoints.
pub(crate) fn endpoint(base: &Url, path: &str) -> Url {
    let mut url = base.clone();
    url.set_path(path);
    url
}

/// Returns an error's text with those of its causes.
pub(crate) fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        text.push_str(": ");
        text.push_str(&cause.to_string());
        source = cause.source();
    }
    text
}

/// Reads one stream to its end; `Ok` means that the router ends.
async fn read(
    fleet: &Fleet,
    worker: WorkerIdx,
    request: reqwest::RequestBuilder,
    reports: &mpsc::Sender<Report>,
) -> Result<(), StreamError> {
    let response = tokio::time::timeout(SUMMARY_IDLE_MAX, request.send()).await;
    let response = response.map_err(|_| StreamError::Idle)?.map_err(StreamError::Connect)?;
    if response.status() != reqwest::StatusCode::OK {
        return Err(StreamError::Status { status: response.status().as_u16() });
    }
    if response.headers().get(CONTENT_TYPE).is_none_or(|kind| kind != summary::CONTENT_TYPE) {
        return Err(StreamError::ContentType);
    }
    let bytes = StreamReader::new(response.bytes_stream().map_err(std::io::Error::other));
    let codec = LengthDelimitedCodec::builder().max_frame_length(FRAME_BYTES_MAX).new_codec();
    let mut frames = FramedRead::new(bytes, codec);
    let mut follower = Follower::new(FollowerLimits { blocks_max: WORKER_BLOCKS_MAX });
    let mut gate = FloodGate::new();
    let snapshot_deadline = Instant::now() + SNAPSHOT_TIMEOUT;
    let mut has_view = false;
    loop {
        let next = tokio::time::timeout(SUMMARY_IDLE_MAX, frames.next()).await.map_err(|_| StreamError::Idle)?;
        let bytes = next.ok_or(StreamError::Ended)?.map_err(StreamError::Broken)?;
        let frame = Frame::decode(&bytes)?;
        fleet.heard(worker);
        fleet.metrics.summary_frames.inc();
        // The bytes of a snapshot are bounded by its blocks.
        let is_update = matches!(frame.body, Body::Update { .. });
        gate.pass(if is_update { bytes.len() } else { 0 })?;
        let report = match follower.apply(frame)? {
            Step::Partial if Instant::now() > snapshot_deadline => return Err(StreamError::SlowSnapshot),
            Step::Partial => continue,
            Step::Replace(view) => {
                has_view = true;
                Report::Snapshot { worker, view }
            }
            Step::Update { changes, load } => Report::Update { worker, changes, load },
        };
        // The tracker's count is some frames behind; the limit is against lies, not a budget.
        if has_view {
            follower.check_n_blocks(fleet.view().workers[worker.0 as usize].n_blocks)?;
        }
        if reports.send(report).await.is_err() {
            return Ok(());
        }
    }
}

/// Counts frames, and bytes of updates, in windows of a second.
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
