//! The hosts of the fleet: one task follows each of them, and one task for each model posts what its requests demand.
//!
//! The tracker owns the view of the hosts, as it owns that of the workers. What is kept here are the clients of the
//! hosts and the requests that wait.
//!
//! Not here: the choice of a host and the texts for clients (the core's `hosts`).

mod demands;
mod follow;

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use axum::body::Bytes;
use axum::http::header::CONTENT_TYPE;
use axum::http::{HeaderMap, HeaderValue, Method, StatusCode};
use tokio::sync::Notify;
use url::Url;
use warmpath_common::clean_text;
use warmpath_router_core::hosts::waiting::WaitingRequests;
use warmpath_router_core::hosts::{HostLink, HostView, HostsView};

use super::client::{CallError, Clients, WorkerClient};
use crate::config::{HOST_ANSWER_BYTES_MAX, HOST_CALL_TIMEOUT, WorkerAddress};

pub use self::demands::ModelDemand;
pub(super) use self::follow::follow;

/// Clients of the hosts, and the requests that wait for their models.
pub struct Hosts {
    hosts: Vec<HostClient>,
    /// Name of this router in its demands, another one after each start.
    router: String,
    /// The lock is held for one entry, never across `.await`.
    waiting: Mutex<WaitingRequests>,
    /// Notified when the client of a model's last request has left.
    withdrawals: Notify,
}

/// A configured host.
#[derive(Clone)]
pub(super) struct HostClient {
    pub(super) address: WorkerAddress,
    pub(super) client: WorkerClient,
}

/// Reason why a host did not do what it was told.
#[derive(Debug, thiserror::Error)]
pub enum HostCallError {
    /// The host did not begin to respond.
    #[error("the host cannot be reached")]
    Call(#[from] CallError),
    /// The host did not respond in time.
    #[error("the host did not respond within {} s", HOST_CALL_TIMEOUT.as_secs())]
    Late,
    /// The response broke off, or is too long.
    #[error("the host's answer broke off")]
    Broken(#[source] axum::Error),
    /// The host refused.
    #[error("the host refused: {reason}")]
    Refused {
        /// Its status.
        status: StatusCode,
        /// Its reason, without paths.
        reason: String,
    },
}

impl Hosts {
    /// Returns the hosts at these addresses, none of which is followed yet.
    pub(super) fn new(addresses: &[WorkerAddress], clients: &Clients) -> Self {
        let host = |address: &WorkerAddress| HostClient { address: address.clone(), client: clients.of(address) };
        Self {
            hosts: addresses.iter().map(host).collect(),
            router: uuid::Uuid::new_v4().simple().to_string(),
            waiting: Mutex::default(),
            withdrawals: Notify::new(),
        }
    }

    /// Returns the view of hosts that have not been reached yet.
    pub(super) fn first_view(&self) -> HostsView {
        let view = |host: &HostClient| HostView {
            name: worker_name(&host.address.url),
            link: HostLink::Connecting,
            summary: None,
            trouble: None,
        };
        HostsView { hosts: self.hosts.iter().map(|host| Arc::new(view(host))).collect() }
    }

    /// Returns the host at an index.
    pub(super) fn host(&self, host_idx: usize) -> &HostClient {
        &self.hosts[host_idx]
    }

    /// Returns the number of requests that wait for models.
    pub fn n_waiting(&self) -> usize {
        self.waiting().n_waiting()
    }

    fn waiting(&self) -> MutexGuard<'_, WaitingRequests> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Posts an order in JSON, or none, to a host; returns its answer.
    ///
    /// Errors: every [`HostCallError`].
    pub async fn post(&self, host_idx: usize, path: &str, order: Bytes) -> Result<Bytes, HostCallError> {
        let client = &self.host(host_idx).client;
        let headers = HeaderMap::from_iter([(CONTENT_TYPE, HeaderValue::from_static("application/json"))]);
        let call = async {
            let response = client.call(Method::POST, &client.url(path), headers, order).await?;
            let (parts, body) = response.into_parts();
            let body = axum::body::to_bytes(body, HOST_ANSWER_BYTES_MAX).await.map_err(HostCallError::Broken)?;
            if parts.status.is_success() {
                return Ok(body);
            }
            Err(HostCallError::Refused { status: parts.status, reason: reason_of(parts.status, &body) })
        };
        tokio::time::timeout(HOST_CALL_TIMEOUT, call).await.map_err(|_| HostCallError::Late)?
    }
}

/// Returns the message of an error object, or the status.
fn reason_of(status: StatusCode, body: &[u8]) -> String {
    let body: serde_json::Value = serde_json::from_slice(body).unwrap_or_default();
    let message = body["error"]["message"].as_str().filter(|message| !message.is_empty());
    message.map_or_else(|| status.to_string(), clean_text::without_paths)
}

/// Returns the form of a URL that is the name of its worker.
fn worker_name(url: &Url) -> String {
    url.as_str().trim_end_matches('/').to_owned()
}
