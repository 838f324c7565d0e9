//! Discovery of workers: by flag, in a file, by DNS, or among the endpoints of a Kubernetes service.
//!
//! Every source keeps its own list, and the fleet is the union of the lists. A source that fails keeps its last list,
//! because workers keep working while DNS or an API server is down.
//!
//! Not here: joining and leaving (`fleet::members`, the core's `membership`).

mod dns;
mod file;
mod kubernetes;

use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::Notify;
use tokio::task::JoinSet;
use warmpath_router_core::fleet::membership::DiscoveredWorker;

use crate::config::{DiscoveryConfig, WorkerAddress};
use crate::metrics::Metrics;

/// Reason why discovery cannot start.
#[derive(Debug, thiserror::Error)]
pub enum DiscoveryError {
    /// The file of workers cannot be used.
    #[error("--workers-file {path}", path = .path.display())]
    File {
        /// The file.
        path: std::path::PathBuf,
        /// Reason.
        #[source]
        source: file::FileError,
    },
    /// No Kubernetes cluster is known.
    #[error("--kubernetes-service needs a cluster: run in a pod, or give --kubeconfig")]
    Kubernetes(#[source] kubernetes::ClusterError),
}

/// The workers found by all sources.
#[derive(Debug, Default)]
pub struct Discovered {
    /// List of each source, `None` until its first result. The lock is held for one copy, never across `.await`.
    lists: Mutex<Vec<Option<Vec<DiscoveredWorker<WorkerAddress>>>>>,
    changed: Notify,
}

impl Discovered {
    /// Returns every worker of every source; a worker of several sources appears several times.
    pub fn all(&self) -> Vec<DiscoveredWorker<WorkerAddress>> {
        self.lists.lock().unwrap_or_else(PoisonError::into_inner).iter().flatten().flatten().cloned().collect()
    }

    /// Returns whether every source has had a first result, even an empty one.
    pub fn is_complete(&self) -> bool {
        self.lists.lock().unwrap_or_else(PoisonError::into_inner).iter().all(Option::is_some)
    }

    /// Waits until a source's list differs from the one at the last call.
    pub async fn changed(&self) {
        self.changed.notified().await;
    }
}

/// One source's access to its list.
struct Source {
    found: Arc<Discovered>,
    nth: usize,
}

impl Source {
    fn of(found: &Arc<Discovered>) -> Self {
        let mut lists = found.lists.lock().unwrap_or_else(PoisonError::into_inner);
        lists.push(None);
        Self { found: Arc::clone(found), nth: lists.len() - 1 }
    }

    /// Replaces this source's list.
    fn set(&self, list: Vec<DiscoveredWorker<WorkerAddress>>) {
        self.found.lists.lock().unwrap_or_else(PoisonError::into_inner)[self.nth] = Some(list);
        self.found.changed.notify_one();
    }
}

fn staying(address: WorkerAddress) -> DiscoveredWorker<WorkerAddress> {
    DiscoveredWorker { address, is_ending: false }
}

/// Reads the file of workers, if there is one.
///
/// Errors: `File`.
pub fn check(config: &DiscoveryConfig) -> Result<(), DiscoveryError> {
    let Some(path) = &config.file else { return Ok(()) };
    file::read(path).map(drop).map_err(|source| DiscoveryError::File { path: path.clone(), source })
}

/// Starts every configured source.
///
/// Errors: every [`DiscoveryError`]. Later failures are logged, counted and retried.
pub async fn start(
    config: &DiscoveryConfig,
    metrics: &Arc<Metrics>,
    tasks: &mut JoinSet<()>,
) -> Result<Arc<Discovered>, DiscoveryError> {
    let found = Arc::new(Discovered::default());
    Source::of(&found).set(config.workers.iter().cloned().map(staying).collect());
    if let Some(path) = &config.file {
        let first = file::read(path).map_err(|source| DiscoveryError::File { path: path.clone(), source })?;
        tasks.spawn(file::watch(path.clone(), Source::of(&found), (first, Arc::clone(metrics))));
    }
    for name in &config.dns {
        tasks.spawn(dns::watch(name.clone(), config.dns_pause, (Source::of(&found), Arc::clone(metrics))));
    }
    if !config.kubernetes.is_empty() {
        let client = kubernetes::client(config.kubeconfig.as_deref()).await.map_err(DiscoveryError::Kubernetes)?;
        for service in &config.kubernetes {
            let source = Source::of(&found);
            tasks.spawn(kubernetes::watch(client.clone(), service.clone(), (source, Arc::clone(metrics))));
        }
    }
    Ok(found)
}
