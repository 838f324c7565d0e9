//! A running router: binds both addresses, serves until it is stopped, and lets running responses finish.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;

use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::task::JoinSet;
use warmpath_shell::fleet_token::{FleetTokens, TokenError};
use warmpath_shell::listen::{self, ConnectionLimits, Connections, Door};
use warmpath_shell::tls::{ServerFiles, TlsError};
use warmpath_shell::trace::Tracer;
use warmpath_shell::trace::export::TraceError;

use crate::config::{CUT_OFF_TIMEOUT, Config, Cors, FleetConfig, TRACE_FLUSH_TIMEOUT};
use crate::discovery::{self, DiscoveryError};
use crate::fleet::Fleet;
use crate::fleet::client::Clients;
use crate::fleet::vocabulary_files::{LoadedVocabulary, VocabularyFileError};
use crate::fleet::worker_keys::{WorkerKeyError, WorkerKeys};
use crate::http::state::{App, Doors, Hosts};
use crate::http::{admin_routes, client_routes};
use crate::keys::{Keys, KeysError};
use crate::metrics::Metrics;

/// Reason why a router does not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// An address cannot be bound.
    #[error("cannot listen on {address}")]
    Bind {
        /// The address.
        address: SocketAddr,
        /// The system's error.
        #[source]
        source: std::io::Error,
    },
    /// A vocabulary cannot be used.
    #[error(transparent)]
    Vocabulary(#[from] VocabularyFileError),
    /// The file of API keys cannot be used.
    #[error("--api-keys-file {path}", path = .path.display())]
    Keys {
        /// The file.
        path: PathBuf,
        /// Reason.
        #[source]
        source: KeysError,
    },
    /// TLS for clients cannot be set up.
    #[error("--tls-cert, --tls-key, --tls-client-ca")]
    Tls(#[source] TlsError),
    /// TLS for workers cannot be set up.
    #[error("--worker-ca, --worker-cert, --worker-key")]
    WorkerTls(#[source] TlsError),
    /// Traces cannot be sent.
    #[error(transparent)]
    Trace(TraceError),
    /// The file of the fleet's tokens cannot be used.
    #[error("--fleet-token-file {path}", path = .path.display())]
    Token {
        /// The file.
        path: PathBuf,
        /// Reason.
        #[source]
        source: TokenError,
    },
    /// The file of a stock server's key cannot be used.
    #[error("--worker-key-file {path}", path = .path.display())]
    WorkerKey {
        /// The file.
        path: PathBuf,
        /// Reason.
        #[source]
        source: WorkerKeyError,
    },
    /// Discovery cannot start.
    #[error(transparent)]
    Discovery(#[from] DiscoveryError),
}

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
    _tasks: JoinSet<()>,
}

impl Server {
    /// Binds both addresses and starts to serve; workers are connected meanwhile.
    ///
    /// Errors: [`StartError`].
    pub async fn start(config: Config) -> Result<Self, StartError> {
        let listener = bind(config.listen).await?;
        let admin_listener = bind(config.admin_listen).await?;
        let address = listener.local_addr().unwrap_or(config.listen);
        let admin_address = admin_listener.local_addr().unwrap_or(config.admin_listen);
        let metrics = Arc::new(Metrics::new());
        let mut tasks = JoinSet::new();
        let given = config.fleet.vocabularies.iter().map(LoadedVocabulary::open).collect::<Result<_, _>>()?;
        let found = discovery::start(&config.discovery, &metrics, &mut tasks).await?;
        let clients = open_clients(&config.fleet, &metrics, &mut tasks)?;
        let fleet = Fleet::start(&config.fleet, (given, found, clients), Arc::clone(&metrics), &mut tasks);
        let keys = open_keys(config.keys_file, &metrics, &mut tasks)?;
        let tracer = config.trace.as_ref().map(|trace| Tracer::start(trace, "warmpath-router", &mut tasks));
        let tracer = tracer.transpose().map_err(StartError::Trace)?.unwrap_or_default();
        let connections = Connections::new(config.connections);
        let hosts = Arc::new(Hosts { clients: config.allowed_hosts, operators: config.admin_allowed_hosts });
        let doors = Doors { connections: Arc::clone(&connections), hosts };
        let app = App::new(fleet, config.requests, (keys, metrics, tracer), doors);
        tasks.spawn(Arc::clone(&app.recent).keep(Arc::clone(&app.metrics)));
        let (stop, stopped) = watch::channel(false);
        let (never, stopped_never) = watch::channel(false);
        let mut listeners = JoinSet::new();
        let tls = config.tls.as_ref().map(ServerFiles::open).transpose().map_err(StartError::Tls)?;
        if let (Some(files), Some(tls)) = (config.tls, &tls) {
            let (tls, metrics) = (tls.clone(), Arc::clone(&app.metrics));
            tasks.spawn(async move { files.watch(tls, || metrics.tls_failures.inc()).await });
        }
        let scheme = if tls.is_some() { "https" } else { "http" };
        if config.cors == Some(Cors::Any) {
            tracing::warn!("--cors-origin *: every web page that somebody opens may ask, with whatever key it has");
        }
        let routes = client_routes(app.clone(), config.cors.as_ref());
        let head_timeout = config.head_timeout;
        let reader_timeout = app.requests.idle_timeout;
        let door = Door { tls, head_timeout, reader_timeout, connections };
        listeners.spawn(listen::serve(listener, routes, door, stopped));
        // The admin listener serves until the last response has ended.
        let connections = Connections::new(ConnectionLimits::ADMIN);
        let admin = Door { tls: None, head_timeout, reader_timeout, connections };
        tasks.spawn(listen::serve(admin_listener, admin_routes(app.clone()), admin, stopped_never));
        tracing::info!("listening on {scheme}://{address}");
        if !app.requests.wait.is_zero() {
            let seconds = app.requests.wait.as_secs_f64();
            tracing::info!(seconds, "requests are held while workers load their model");
        }
        tracing::info!("admin: listening on http://{admin_address}");
        let drain_timeout = config.drain_timeout;
        Ok(Self { address, admin_address, app, stop, drain_timeout, listeners, _never: never, _tasks: tasks })
    }

    /// Accepts no further connections, lets running responses finish within the drain timeout, and ends; clients of
    /// longer responses get an error.
    pub async fn stop(mut self) {
        self.app.drain();
        self.stop.send_replace(true);
        let mut all = std::pin::pin!(async { while self.listeners.join_next().await.is_some() {} });
        if tokio::time::timeout(self.drain_timeout, &mut all).await.is_err() {
            tracing::warn!(seconds = self.drain_timeout.as_secs_f64(), "answers were cut off by the drain timeout");
            self.app.cut_off.cancel();
            // An error means that some clients do not read.
            let _ = tokio::time::timeout(CUT_OFF_TIMEOUT, all).await;
        }
        // An error means that the collector is too slow to wait for.
        let _ = tokio::time::timeout(TRACE_FLUSH_TIMEOUT, self.app.tracer.flush()).await;
    }
}

fn open_keys(
    path: Option<PathBuf>,
    metrics: &Arc<Metrics>,
    tasks: &mut JoinSet<()>,
) -> Result<Option<Arc<Keys>>, StartError> {
    let Some(path) = path else { return Ok(None) };
    let keys = Keys::open(&path).map_err(|source| StartError::Keys { path: path.clone(), source })?;
    let keys = Arc::new(keys);
    tasks.spawn(Arc::clone(&keys).watch(path, Arc::clone(metrics)));
    Ok(Some(keys))
}

/// Returns the factory of connections to workers, and watches its files.
fn open_clients(config: &FleetConfig, metrics: &Arc<Metrics>, tasks: &mut JoinSet<()>) -> Result<Clients, StartError> {
    let tls = config.tls.open().map_err(StartError::WorkerTls)?;
    let (files, followed, counted) = (config.tls.clone(), Arc::clone(&tls), Arc::clone(metrics));
    tasks.spawn(async move { files.watch(followed, || counted.tls_failures.inc()).await });
    let keys = WorkerKeys::open(&config.worker_keys);
    let keys = Arc::new(keys.map_err(|(path, source)| StartError::WorkerKey { path, source })?);
    for key in keys.all() {
        let counted = Arc::clone(metrics);
        tasks.spawn(async move { key.watch(|| counted.worker_key_failures.inc()).await });
    }
    let clients = |tokens| Clients::new(config.connect_timeout, tls, tokens).with_keys(keys);
    let Some(path) = config.token_file.clone() else { return Ok(clients(None)) };
    let tokens = FleetTokens::open(&path).map_err(|source| StartError::Token { path: path.clone(), source })?;
    let tokens = Arc::new(tokens);
    let (followed, counted) = (Arc::clone(&tokens), Arc::clone(metrics));
    tasks.spawn(async move { followed.watch(path, || counted.token_file_failures.inc()).await });
    Ok(clients(Some(tokens)))
}

async fn bind(address: SocketAddr) -> Result<TcpListener, StartError> {
    TcpListener::bind(address).await.map_err(|source| StartError::Bind { address, source })
}
