//! Finding workers: by flag, in a file, by DNS, or among the endpoints of a Kubernetes service.
//!
//! Not here: what joining and leaving means (`fleet::members`, the core's `membership`).
//! The idea: every source keeps its own list of what it finds, and what is found is what any of them lists. A source that
//! fails keeps its last list: workers do not become worse because DNS or an API server cannot be asked.

mod dns;
mod file;
mod kubernetes;

use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::Notify;
use tokio::task::JoinSet;
use warmpath_router_core::fleet::membership::Found;

use crate::config::{DiscoveryConfig, WorkerAddress};
use crate::metrics::Metrics;

/// Says why workers cannot be looked for.
#[derive(Debug, thiserror::Error)]
pub enum DiscoveryError {
    /// The file of workers cannot be used.
    #[error("--workers-file {path}", path = .path.display())]
    File {
        /// Is the file.
        path: std::path::PathBuf,
        /// Says why.
        #[source]
        source: file::FileError,
    },
    /// No Kubernetes cluster is known.
    #[error("--kubernetes-service needs a cluster: run in a pod, or give --kubeconfig")]
    Kubernetes(#[source] kubernetes::ClusterError),
}

/// Is what all sources find together.
#[derive(Debug, Default)]
pub struct Discovered {
    /// Guards what each source finds, absent until it has found something out; held for one copy, never across `.await`.
    lists: Mutex<Vec<Option<Vec<Found<WorkerAddress>>>>>,
    changed: Notify,
}

impl Discovered {
    /// Returns every worker that any source lists; one that several list stands there several times.
    pub fn all(&self) -> Vec<Found<WorkerAddress>> {
        self.lists.lock().unwrap_or_else(PoisonError::into_inner).iter().flatten().flatten().cloned().collect()
    }

    /// Returns whether every source has found something out, be it that there is nobody.
    pub fn is_complete(&self) -> bool {
        self.lists.lock().unwrap_or_else(PoisonError::into_inner).iter().all(Option::is_some)
    }

    /// Waits until a source has another list than at the last call.
    pub async fn changed(&self) {
        self.changed.notified().await;
    }
}

/// Is where one source says what it finds.
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

    /// Replaces what this source finds.
    fn set(&self, list: Vec<Found<WorkerAddress>>) {
        self.found.lists.lock().unwrap_or_else(PoisonError::into_inner)[self.nth] = Some(list);
        self.found.changed.notify_one();
    }
}

fn staying(address: WorkerAddress) -> Found<WorkerAddress> {
    Found { address, is_ending: false }
}

/// Starts to look for workers in every way that is configured.
///
/// Errors: every [`DiscoveryError`]. What fails later is logged, counted and tried again.
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
