//! A running router: binds both addresses, serves until it is stopped, and lets running responses finish.

mod error;
mod files;

use std::net::SocketAddr;
use std::sync::Arc;

use tokio::sync::watch;
use tokio::task::{JoinError, JoinSet};
use warmpath_shell::descriptors::ADMIN_CONNECTIONS_MAX;
use warmpath_shell::listen::{self, Connections, HEAD_BYTES_MAX, ListenerOptions};
use warmpath_shell::server::{ServerError, ServerResources, bind_address};
use warmpath_shell::trace::Tracer;

use crate::app::{App, Hosts, HttpResources};
use crate::config::{CUT_OFF_TIMEOUT, Config, Cors, FleetConfig, TRACE_FLUSH_TIMEOUT};
use crate::discovery;
use crate::fleet::Fleet;
use crate::fleet::client::Clients;
use crate::http::{admin_routes, client_routes};
use crate::metrics::Metrics;
pub use error::StartError;
use files::Files;

/// A running router; dropping it ends it at once.
pub struct Server {
    /// Address for clients.
    pub address: SocketAddr,
    /// Address for operators.
    pub admin_address: SocketAddr,
    app: App,
    stop: watch::Sender<bool>,
    drain_timeout: std::time::Duration,
    listeners: JoinSet<()>,
    /// Stop signal of the admin listener, never sent; the listener ends with the server.
    _never: watch::Sender<bool>,
    /// Tasks of the fleet and the admin listener; they end with the server.
    tasks: JoinSet<()>,
}

impl Server {
    /// Checks the files that the configuration names, without starting anything.
    ///
    /// Errors: those of [`StartError`] that are about files.
    pub fn check(config: &Config) -> Result<(), StartError> {
        Files::open(config)?;
        Ok(discovery::check(&config.discovery)?)
    }

    /// Binds both addresses and starts to serve; workers are connected meanwhile.
    ///
    /// Errors: [`StartError`].
    pub async fn start(config: Config) -> Result<Self, StartError> {
        let (listener, address) = bind_address(config.listen).await?;
        let (admin_listener, admin_address) = bind_address(config.admin_listen).await?;
        let metrics = Arc::new(Metrics::new());
        let mut tasks = JoinSet::new();
        let files = Files::open(&config)?;
        let found = discovery::start(&config.discovery, &metrics, &mut tasks).await?;
        let clients = clients(&config.fleet, &files, &metrics, &mut tasks);
        files.server.watch(&metrics.tls_failures, &metrics.token_file_failures, &mut tasks);
        let Files { vocabularies, keys, server: ServerResources { tls, image_urls, .. }, .. } = files;
        let fleet = Fleet::start(&config.fleet, vocabularies, found, clients, Arc::clone(&metrics), &mut tasks);
        if let (Some(keys), Some(path)) = (&keys, config.keys_file) {
            tasks.spawn(Arc::clone(keys).watch(path, Arc::clone(&metrics)));
        }
        let tracer = config.trace.as_ref().map(|trace| Tracer::start(trace, "warmpath-router", &mut tasks));
        let tracer = tracer.transpose().map_err(ServerError::from)?.unwrap_or_default();
        let connections = Connections::new(config.connections_max);
        let hosts = Arc::new(Hosts { clients: config.allowed_hosts, operators: config.admin_allowed_hosts });
        let resources = HttpResources { connections: Arc::clone(&connections), hosts, image_urls };
        let app = App::new(fleet, config.requests, keys, metrics, tracer, resources);
        tasks.spawn(Arc::clone(&app.recent).keep(Arc::clone(&app.metrics)));
        let (stop, stopped) = watch::channel(false);
        let (never, stopped_never) = watch::channel(false);
        let mut listeners = JoinSet::new();
        let scheme = if tls.is_some() { "https" } else { "http" };
        if config.web.cors == Some(Cors::Any) {
            tracing::warn!(
                "--cors-origin *: every web page that a user opens may send requests, with any key that it has"
            );
        }
        let routes = client_routes(app.clone(), &config.web);
        let (head_timeout, head_bytes_max) = (config.head_timeout, HEAD_BYTES_MAX);
        let reader_timeout = app.requests.idle_timeout;
        let options = ListenerOptions { tls, head_timeout, head_bytes_max, reader_timeout, connections };
        listeners.spawn(listen::serve(listener, routes, options, stopped));
        // The admin listener serves until the last response has ended.
        let connections = Connections::new(ADMIN_CONNECTIONS_MAX);
        let admin = ListenerOptions { tls: None, head_timeout, head_bytes_max, reader_timeout, connections };
        tasks.spawn(listen::serve(admin_listener, admin_routes(app.clone()), admin, stopped_never));
        tracing::info!("listening on {scheme}://{address}");
        if !app.requests.wait.is_zero() {
            let seconds = app.requests.wait.as_secs_f64();
            tracing::info!(seconds, "requests are held while workers load their model");
        }
        tracing::info!("admin: listening on http://{admin_address}");
        let drain_timeout = config.drain_timeout;
        Ok(Self { address, admin_address, app, stop, drain_timeout, listeners, _never: never, tasks })
    }

    /// Returns once a task of the fleet has panicked.
    ///
    /// Without the task the router would keep its last workers or keys forever. The task cannot be started again alone,
    /// because its channels are closed, so the router has to stop.
    pub async fn panicked(&mut self) -> JoinError {
        first_panic(&mut self.tasks).await
    }

    /// Accepts no further connections, lets running responses finish within the drain timeout, and ends. Clients of
    /// longer responses get an error.
    pub async fn stop(mut self) {
        self.app.drain();
        self.stop.send_replace(true);
        let mut all = std::pin::pin!(async { while self.listeners.join_next().await.is_some() {} });
        if tokio::time::timeout(self.drain_timeout, &mut all).await.is_err() {
            tracing::warn!(seconds = self.drain_timeout.as_secs_f64(), "the drain timeout cut off responses");
            self.app.cut_off.cancel();
            // An error means that some clients do not read.
            let _ = tokio::time::timeout(CUT_OFF_TIMEOUT, all).await;
        }
        // An error means that the collector is too slow to wait for.
        let _ = tokio::time::timeout(TRACE_FLUSH_TIMEOUT, self.app.tracer.flush()).await;
    }
}

/// Returns the factory of connections to workers, and follows its files.
fn clients(config: &FleetConfig, files: &Files, metrics: &Arc<Metrics>, tasks: &mut JoinSet<()>) -> Clients {
    let (followed, tls, counted) = (config.tls.clone(), Arc::clone(&files.worker_tls), Arc::clone(metrics));
    tasks.spawn(async move { followed.watch(tls, || counted.tls_failures.inc()).await });
    for key in files.worker_keys.all() {
        let counted = Arc::clone(metrics);
        tasks.spawn(async move { key.watch(|| counted.worker_key_failures.inc()).await });
    }
    Clients::new(config.connect_timeout, Arc::clone(&files.worker_tls), files.server.tokens.clone())
        .with_keys(Arc::clone(&files.worker_keys))
}

/// Waits until a task panics; returns its error. Tasks may end by themselves.
async fn first_panic(tasks: &mut JoinSet<()>) -> JoinError {
    while let Some(ended) = tasks.join_next().await {
        if let Err(error) = ended
            && error.is_panic()
        {
            return error;
        }
    }
    std::future::pending().await
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_task_that_panics_is_noticed_and_one_that_ends_is_not() {
        let mut tasks = JoinSet::new();
        tasks.spawn(async {});
        tasks.spawn(std::future::pending());
        let waited = tokio::time::timeout(Duration::from_secs(1), first_panic(&mut tasks)).await;
        assert!(waited.is_err());
        tasks.spawn(async { panic!("a bug") });
        let error = first_panic(&mut tasks).await;
        assert!(error.is_panic() && error.to_string().contains("a bug"), "{error}");
    }
}
