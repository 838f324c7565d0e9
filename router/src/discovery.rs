//! Discovery of workers: by flag, in a file, by DNS, or among the endpoints of a Kubernetes service.
//!
//! Every source keeps its own list, and the fleet is the union of the lists. A source that fails keeps its last list,
//! because workers keep working while DNS or an API server is down.
//!
//! Not here: joining and leaving (`fleet::members`, the core's `membership`).

mod dns;
mod file;
mod kubernetes;
mod source;

use std::sync::Arc;

use tokio::task::JoinSet;

use crate::config::DiscoveryConfig;
use crate::metrics::Metrics;
use source::staying;
pub use source::{Discovered, Source};

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
    let discovered = Arc::new(Discovered::default());
    Source::of(&discovered).set(config.workers.iter().cloned().map(staying).collect());
    if let Some(path) = &config.file {
        let first = file::read(path).map_err(|source| DiscoveryError::File { path: path.clone(), source })?;
        tasks.spawn(file::watch(path.clone(), Source::of(&discovered), first, Arc::clone(metrics)));
    }
    for name in &config.dns {
        tasks.spawn(dns::watch(name.clone(), config.dns_pause, Source::of(&discovered), Arc::clone(metrics)));
    }
    if !config.kubernetes.is_empty() {
        let client = kubernetes::client(config.kubeconfig.as_deref()).await.map_err(DiscoveryError::Kubernetes)?;
        for service in &config.kubernetes {
            let source = Source::of(&discovered);
            tasks.spawn(kubernetes::watch(client.clone(), service.clone(), source, Arc::clone(metrics)));
        }
    }
    Ok(discovered)
}
