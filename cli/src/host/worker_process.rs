//! One model's worker: a process that is started once, watched, and ended on demand.
//!
//! While it loads, its readiness is polled; afterwards its summary stream tells how many requests it computes.

use std::sync::Arc;
use std::time::Duration;

use axum::http::header::AUTHORIZATION;
use futures::StreamExt as _;
use serde::Deserialize;
use tokio::sync::{Notify, mpsc};
use warmpath_common::summary::{Frame, FrameBody, LENGTH_BYTES, Load, STREAM_PATH, frame_length};
use warmpath_shell::fleet_token::FleetTokens;
use warmpath_shell::machine;

use crate::child::{self, Program, Running};

/// Time between two looks at a worker that loads. Source: own choice: short beside any load, and the look is cheap.
const READY_POLL: Duration = Duration::from_millis(50);
/// Pause before a broken summary stream is opened again. Source: own choice: a worker that has ended is noticed anyway.
const STREAM_PAUSE: Duration = Duration::from_millis(200);
/// Time between two measurements of a process's memory. Source: own choice: a cache of some GiB fills in minutes.
const MEASURE_INTERVAL: Duration = Duration::from_secs(5);
/// Shortest time between two measurements. Source: own choice: each takes a worker some milliseconds.
const MEASURE_PAUSE: Duration = Duration::from_millis(100);
/// Metric of a worker with the prompt tokens that it has reused from disk.
const REUSED_FROM_DISK: &str = "warmpath_worker_prefix_cache_tokens_total{tier=\"disk\"}";
/// Metric of a worker with the tokens whose state is on disk.
const KEPT_ON_DISK: &str = "warmpath_worker_cache_tokens{tier=\"disk\"}";
/// Longest time for a response to a look. Source: own choice: a worker that loads answers within milliseconds.
const LOOK_TIMEOUT: Duration = Duration::from_secs(2);

/// What a worker must do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Order {
    /// End after the last answer.
    Drain,
    /// End at once.
    Kill,
}

/// What has happened to a worker.
#[derive(Debug, Clone, PartialEq)]
pub enum Report {
    /// It listens at this URL, and loads its model.
    Listening(String),
    /// This share of its model is loaded, from 0 to 1.
    Progress(f32),
    /// It serves, and its process takes these bytes if the system tells.
    Ready(Option<u64>),
    /// It computes this number of requests.
    Running(u32),
    /// Its process takes these bytes.
    Measured(u64),
    /// It has found KV state of these tokens on disk.
    Kept(u64),
    /// It has reused these further prompt tokens from KV state on disk.
    Reused(u64),
    /// It has ended, for this reason.
    Exited(String),
}

/// Response of a worker to `/readyz` while it loads.
#[derive(Debug, Default, Deserialize)]
struct Unready {
    #[serde(default)]
    progress: f32,
}

/// A worker that is started.
pub struct WorkerProcess {
    /// Its command.
    pub program: Program,
    /// Its URL.
    pub url: String,
    /// Client of workers.
    pub http: reqwest::Client,
    /// Tokens that the worker requires; `None` for none.
    pub tokens: Option<Arc<FleetTokens>>,
    /// Receiver of what happens, the last of which is [`Report::Exited`].
    pub reports: mpsc::Sender<Report>,
    /// What it must do.
    pub orders: mpsc::Receiver<Order>,
}

impl WorkerProcess {
    /// Runs the worker until it has ended.
    pub async fn run(mut self) {
        let reason = match child::start(&self.program) {
            Ok(running) => self.watch_process(running).await,
            Err(error) => format!("{error:#}"),
        };
        // Without a receiver the host has ended.
        let _ = self.reports.send(Report::Exited(reason)).await;
    }

    /// Waits for the end of the process, and returns its reason.
    async fn watch_process(&mut self, mut running: Running) -> String {
        let Some(pid) = running.pid() else { return "its process ended at once".to_owned() };
        let Self { url, http, tokens, reports, .. } = &*self;
        let watch =
            Watch { url: url.clone(), pid, http: http.clone(), tokens: tokens.clone(), reports: reports.clone() };
        let mut watching = tokio::spawn(watch.run());
        let mut has_orders = false;
        let status = loop {
            tokio::select! {
                status = running.wait() => break status,
                Some(order) = self.orders.recv() => {
                    has_orders = true;
                    let signal = match order {
                        Order::Drain => libc::SIGTERM,
                        Order::Kill => libc::SIGKILL,
                    };
                    // A process that has ended has no id, which another one may have.
                    if let Some(pid) = running.pid() {
                        child::send_signal(pid, signal);
                    }
                }
            }
        };
        watching.abort();
        let _ = (&mut watching).await;
        if has_orders && status.as_ref().is_ok_and(|status| status.success()) {
            return "it has left".to_owned();
        }
        let how_it_ended = status.map_or_else(|error| error.to_string(), |status| status.to_string());
        let lines = running.last_lines();
        if lines.is_empty() {
            format!("its worker ended: {how_it_ended}")
        } else {
            format!("its worker ended: {how_it_ended}: {}", lines.join("; "))
        }
    }
}

/// Observation of a running worker.
struct Watch {
    url: String,
    pid: u32,
    http: reqwest::Client,
    tokens: Option<Arc<FleetTokens>>,
    reports: mpsc::Sender<Report>,
}

impl Watch {
    async fn run(self) {
        self.until_ready().await;
        self.report(Report::Ready(machine::resident_bytes(self.pid))).await;
        if let Some(tokens) = self.metric(KEPT_ON_DISK).await {
            self.report(Report::Kept(tokens)).await;
        }
        // A worker whose requests have ended may leave soon, and its counters with it.
        let is_quiet = Notify::new();
        let measure = async {
            let mut n_reused = 0;
            loop {
                let _ = tokio::time::timeout(MEASURE_INTERVAL, is_quiet.notified()).await;
                if let Some(bytes) = machine::resident_bytes(self.pid) {
                    self.report(Report::Measured(bytes)).await;
                }
                let n_reused_now = self.metric(REUSED_FROM_DISK).await.unwrap_or(n_reused);
                if n_reused_now > n_reused {
                    self.report(Report::Reused(n_reused_now - n_reused)).await;
                    n_reused = n_reused_now;
                }
                tokio::time::sleep(MEASURE_PAUSE).await;
            }
        };
        let follow = async {
            loop {
                // A worker that drains ends its stream; the end of its process is noticed elsewhere.
                let _ = self.follow_load(&is_quiet).await;
                tokio::time::sleep(STREAM_PAUSE).await;
            }
        };
        tokio::join!(measure, follow);
    }

    async fn until_ready(&self) {
        let url = format!("{}/readyz", self.url);
        let mut last_progress = None;
        loop {
            tokio::time::sleep(READY_POLL).await;
            let Ok(response) = self.http.get(&url).timeout(LOOK_TIMEOUT).send().await else { continue };
            if last_progress.is_none() {
                self.report(Report::Listening(self.url.clone())).await;
            }
            if response.status().is_success() {
                return;
            }
            let Unready { progress } = response.json().await.unwrap_or_default();
            if last_progress != Some(progress) {
                self.report(Report::Progress(progress)).await;
            }
            last_progress = Some(progress);
        }
    }

    /// Returns the value of a metric of the worker; `None` if it does not tell.
    async fn metric(&self, name: &str) -> Option<u64> {
        let request = self.http.get(format!("{}/metrics", self.url)).timeout(LOOK_TIMEOUT);
        let text = request.send().await.ok()?.text().await.ok()?;
        text.lines().find_map(|line| line.strip_prefix(name)?.trim().parse().ok())
    }

    /// Reports the load of the worker for as long as its summary stream lasts.
    ///
    /// Errors: the stream breaks, or is none of this version.
    async fn follow_load(&self, is_quiet: &Notify) -> anyhow::Result<()> {
        let mut request = self.http.get(format!("{}{STREAM_PATH}", self.url));
        // The worker reads the same file.
        if let Some(token) = self.tokens.iter().flat_map(|tokens| tokens.shown()).next() {
            request = request.header(AUTHORIZATION, token);
        }
        let response = request.send().await?.error_for_status()?;
        let mut parts = response.bytes_stream();
        let mut bytes = Vec::new();
        while let Some(part) = parts.next().await {
            bytes.extend_from_slice(&part?);
            while let Some(frame) = next_frame(&mut bytes)? {
                if let Some(load) = load(frame) {
                    let n_running = n_running(&load);
                    self.report(Report::Running(n_running)).await;
                    if n_running == 0 {
                        is_quiet.notify_one();
                    }
                }
            }
        }
        Ok(())
    }

    async fn report(&self, report: Report) {
        // Without a receiver the host has ended.
        let _ = self.reports.send(report).await;
    }
}

/// Takes the next whole frame from the bytes of a stream.
///
/// Errors: it is too long, or is none of this version.
fn next_frame(bytes: &mut Vec<u8>) -> anyhow::Result<Option<Frame>> {
    let Some(n_bytes) = frame_length(bytes)? else { return Ok(None) };
    let end = LENGTH_BYTES + n_bytes;
    let frame = Frame::decode(&bytes[LENGTH_BYTES..end])?;
    bytes.drain(..end);
    Ok(Some(frame))
}

fn load(frame: Frame) -> Option<Load> {
    match frame.body {
        FrameBody::Begin(header) => Some(header.load),
        FrameBody::Update { load, .. } => load,
        FrameBody::Runs(_) | FrameBody::End(_) | FrameBody::Resumed => None,
    }
}

fn n_running(load: &Load) -> u32 {
    u32::try_from(load.busy_slots.len()).unwrap_or(u32::MAX).saturating_add(load.n_queued)
}

#[cfg(test)]
mod tests {
    use warmpath_common::ids::{SlotId, WorkerUid};
    use warmpath_common::summary::{Stamp, with_length};

    use super::*;

    #[test]
    fn the_load_is_read_from_frames_that_arrive_in_parts() {
        let stamp = Stamp { worker_uid: WorkerUid(1), boot_epoch: 2, seq: 3 };
        let load_now = Load { busy_slots: vec![SlotId(0), SlotId(3)], n_queued: 5, ..Load::default() };
        let body = FrameBody::Update { changes: Vec::new(), load: Some(load_now), digest: None };
        let whole = with_length(&Frame { stamp, body }.encode());
        let mut bytes = whole[..whole.len() - 1].to_vec();
        assert!(next_frame(&mut bytes).expect("no error").is_none());
        bytes.extend([whole[whole.len() - 1], 0, 0]);
        let frame = next_frame(&mut bytes).expect("no error").expect("a frame");
        assert_eq!(load(frame).map(|load| n_running(&load)), Some(7));
        assert_eq!(bytes, [0, 0]);
        assert!(next_frame(&mut u32::MAX.to_be_bytes().to_vec()).is_err());
    }
}
