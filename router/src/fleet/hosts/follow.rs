//! The task that follows one host: reads its stream of summaries, and opens it again whenever it ends.
//!
//! Nothing that a host sends is trusted: an invalid summary ends the stream and changes nothing else. While the stream
//! is lost, the last summary stays, and so do the workers in it, because they may serve without their host.
//!
//! Not here: bytes and limits of a stream (the core's `hosts::stream`).

use std::sync::Arc;

use axum::http::StatusCode;
use futures::TryStreamExt;
use tokio::time::Instant;
use url::{Host, Url};
use warmpath_common::host::{EVENTS_PATH, HostSummary, ModelState};
use warmpath_router_core::fleet::membership::DiscoveredWorker;
use warmpath_router_core::hosts::stream::{HostFault, HostStream};
use warmpath_router_core::hosts::{HostLink, HostView};
use warmpath_shell::{chain, event_stream};

use super::{HostClient, worker_name};
use crate::config::{
    HOST_FIRST_SUMMARY_TIMEOUT, HOST_SILENCE_MAX, WorkerAddress, WorkerApi, WorkerUrlError, worker_address,
};
use crate::discovery::Source;
use crate::fleet::client::CallError;
use crate::fleet::subscriber::{Closed, FleetEvents, ReconnectPause};
use crate::fleet::{Fleet, TrackerMessage};

/// Reason why the stream of a host ended or could not be opened.
#[derive(Debug, thiserror::Error)]
enum HostStreamError {
    #[error(transparent)]
    Connect(#[from] CallError),
    #[error("the host rejects this router: it requires another fleet token (--fleet-token-file)")]
    Refused,
    #[error("the host answered {status}")]
    Status { status: u16 },
    #[error("the host answered with another content type")]
    ContentType,
    #[error("the stream broke")]
    Broken(#[source] axum::Error),
    #[error("the stream ended")]
    Ended,
    #[error("no whole event arrived in time")]
    Late,
    #[error(transparent)]
    Fault(#[from] HostFault),
    #[error("the address of a worker cannot be used: {0}")]
    WorkerUrl(#[from] WorkerUrlError),
    #[error("a worker has a loopback address, and its host is another machine")]
    ForeignLoopback,
}

impl HostStreamError {
    /// Returns a short name for metrics.
    fn label(&self) -> &'static str {
        match self {
            Self::Connect(error) if error.is_tls() => "tls",
            Self::Connect(_) => "connect",
            Self::Refused => "refused",
            Self::Status { .. } => "status",
            Self::ContentType => "content_type",
            Self::Broken(_) => "broken",
            Self::Ended => "ended",
            Self::Late => "late",
            Self::Fault(fault) => fault.label(),
            Self::WorkerUrl(_) | Self::ForeignLoopback => "worker_url",
        }
    }
}

/// Follows one host as long as the router runs.
pub(in crate::fleet) async fn follow(fleet: Arc<Fleet>, host_idx: usize, source: Source, outbox: FleetEvents) {
    let HostClient { address, client } = fleet.hosts.host(host_idx).clone();
    let view = HostView::clone(&fleet.view().hosts.hosts[host_idx]);
    let mut follower = Follower { fleet, host_idx, address, source, outbox, view, workers: None };
    let mut pause = ReconnectPause::default();
    let mut last_label = "";
    let url = client.url(EVENTS_PATH);
    loop {
        let start = Instant::now();
        let opened = tokio::time::timeout(HOST_FIRST_SUMMARY_TIMEOUT, client.get(&url));
        let result = match opened.await {
            Err(_) => Err(HostStreamError::Late),
            Ok(Err(error)) => Err(error.into()),
            Ok(Ok(response)) => follower.read(response).await,
        };
        let Err(error) = result else { return };
        follower.fleet.metrics.host_stream_ends.with_label_values(&[error.label()]).inc();
        let reason = chain(&error);
        // A host that is down is tried every second; it is logged once.
        if error.label() != last_label {
            tracing::warn!(host = %follower.view.name, reason, "stream of a host ended");
        }
        last_label = if follower.view.link == HostLink::Live { "" } else { error.label() };
        if follower.lost(reason).await.is_err() {
            return;
        }
        tokio::time::sleep(pause.after(start.elapsed(), rand::random())).await;
    }
}

struct Follower {
    fleet: Arc<Fleet>,
    host_idx: usize,
    address: WorkerAddress,
    source: Source,
    outbox: FleetEvents,
    view: HostView,
    /// Workers of the last summary; `None` before the first.
    workers: Option<Vec<DiscoveredWorker<WorkerAddress>>>,
}

impl Follower {
    /// Reads one stream to its end; `Ok` means that the router is shutting down.
    async fn read(&mut self, response: axum::http::Response<axum::body::Body>) -> Result<(), HostStreamError> {
        match response.status() {
            StatusCode::OK => {}
            StatusCode::UNAUTHORIZED => return Err(HostStreamError::Refused),
            status => return Err(HostStreamError::Status { status: status.as_u16() }),
        }
        if !event_stream::is_event_stream(response.headers()) {
            return Err(HostStreamError::ContentType);
        }
        let mut pieces = response.into_body().into_data_stream();
        let mut stream = HostStream::new(Instant::now().into_std());
        let mut deadline = Instant::now() + HOST_FIRST_SUMMARY_TIMEOUT;
        let mut has_summary = false;
        loop {
            let piece = tokio::time::timeout_at(deadline, pieces.try_next()).await;
            let piece = piece.map_err(|_| HostStreamError::Late)?.map_err(HostStreamError::Broken)?;
            let piece = piece.ok_or(HostStreamError::Ended)?;
            if let Some(summary) = stream.take(&piece, Instant::now().into_std())? {
                has_summary = true;
                if self.accept(summary).await?.is_err() {
                    return Ok(());
                }
            }
            // An event that never ends is no sign of life.
            if has_summary && stream.is_between_events() {
                deadline = Instant::now() + HOST_SILENCE_MAX;
            }
        }
    }

    /// Publishes a summary, and the workers in it.
    ///
    /// Errors: `WorkerUrl`, `ForeignLoopback`; then nothing has changed.
    async fn accept(&mut self, mut summary: HostSummary) -> Result<Result<(), Closed>, HostStreamError> {
        // The addresses of the workers.
        let mut workers = Vec::new();
        for model in &mut summary.models {
            let is_ending = matches!(model.state, ModelState::Unloading { .. });
            let (ModelState::Loaded { worker_url: url, .. }
            | ModelState::Unloading { worker_url: url }
            | ModelState::Loading { worker_url: Some(url), .. }) = &mut model.state
            else {
                continue;
            };
            let address = address_of(url, &self.address)?;
            *url = worker_name(&address.url);
            workers.push(DiscoveredWorker { address, is_ending });
        }
        // What has been loaded since the last summary.
        let newly_loaded = newly_loaded(self.view.summary.as_deref(), &summary);
        if self.view.summary.is_some() {
            self.fleet.metrics.model_loads.inc_by(newly_loaded.len() as u64);
        }
        // The view comes before the workers, so that their models are known when they join.
        self.view.link = HostLink::Live;
        (self.view.summary, self.view.trouble) = (Some(Arc::new(summary)), None);
        if let Err(closed) = self.tell().await {
            return Ok(Err(closed));
        }
        if self.workers.as_ref() != Some(&workers) {
            self.source.set(workers.clone());
            self.workers = Some(workers);
        }
        newly_loaded.iter().for_each(|url| self.fleet.reconnect(url));
        Ok(Ok(()))
    }

    /// Records that the stream is lost.
    async fn lost(&mut self, reason: String) -> Result<(), Closed> {
        if self.view.link == HostLink::Live {
            self.view.link = HostLink::Lost { since: std::time::Instant::now() };
        }
        self.view.trouble = Some(reason.into());
        self.tell().await
    }

    async fn tell(&self) -> Result<(), Closed> {
        let (host_idx, view) = (self.host_idx, Box::new(self.view.clone()));
        self.outbox.tell(TrackerMessage::Host { host_idx, view }).await
    }
}

/// Returns the address of a worker of a host.
///
/// A loopback address of another machine would be one of this machine, which would get the fleet's token.
fn address_of(url: &str, host: &WorkerAddress) -> Result<WorkerAddress, HostStreamError> {
    let address = worker_address(url)?;
    if address.api != WorkerApi::Warmpath {
        return Err(WorkerUrlError::Stock.into());
    }
    if is_loopback(&address.url) && !is_loopback(&host.url) {
        return Err(HostStreamError::ForeignLoopback);
    }
    Ok(address)
}

fn is_loopback(url: &Url) -> bool {
    match url.host() {
        Some(Host::Ipv4(address)) => address.is_loopback(),
        Some(Host::Ipv6(address)) => address.is_loopback(),
        Some(Host::Domain(name)) => name == "localhost" || name.ends_with(".localhost"),
        None => false,
    }
}

/// Returns the URLs of the workers that serve a model and did not in the last summary.
fn newly_loaded(last: Option<&HostSummary>, summary: &HostSummary) -> Vec<String> {
    let url = |state: &ModelState| match state {
        ModelState::Loaded { worker_url, .. } => Some(worker_url.clone()),
        _ => None,
    };
    let was = |name: &str| url(&last?.models.iter().find(|model| model.name == name)?.state);
    let loaded = summary.models.iter().filter_map(|model| Some((was(&model.name), url(&model.state)?)));
    loaded.filter(|(was, url)| was.as_ref() != Some(url)).map(|(_, url)| url).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_worker_at_a_loopback_address_belongs_to_a_host_on_this_machine() {
        let check = |host: &str, worker: &str, expected: &str| {
            let host = worker_address(host).expect("a good address");
            let found =
                address_of(worker, &host).map_or_else(|error| error.label().to_owned(), |found| found.url.into());
            assert_eq!(found, expected, "{host:?} {worker}");
        };
        check("http://127.0.0.1:9190", "http://127.0.0.1:8081", "http://127.0.0.1:8081/");
        check("http://localhost:9190", "http://[::1]:8081", "http://[::1]:8081/");
        check("http://10.0.0.5:9190", "http://10.0.0.5:8081", "http://10.0.0.5:8081/");
        check("http://10.0.0.5:9190", "http://127.0.0.2:8081", "worker_url");
        check("http://10.0.0.5:9190", "http://localhost:8081", "worker_url");
        check("http://10.0.0.5:9190", "openai+http://10.0.0.5:8081", "worker_url");
        check("http://10.0.0.5:9190", "http://user@10.0.0.5:8081", "worker_url");
    }
}
