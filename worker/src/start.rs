//! The phases of a worker: check the model's file, listen, load, serve, drain, end.
//!
//! HTTP is served before the model is loaded, so that clients can see the progress. Only this file and its submodules
//! change the phase. Not here: flags (`config`), requests (`http`).

mod kernels;
mod load;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use axum::http::HeaderValue;
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::task::{JoinHandle, JoinSet};
use tracing::{info, warn};
use warmpath_common::host::{DeviceProjection, MemoryProjection, RAM};
use warmpath_common::ids::WorkerUid;
use warmpath_common::lora;
use warmpath_gguf::{GgufError, Model};
use warmpath_prompt::{OpenError, TemplateOrigin};
use warmpath_shell::body::{BodyLimits, BodyRoom, room_bytes};
use warmpath_shell::descriptors::ADMIN_CONNECTIONS_MAX;
use warmpath_shell::listen::{self, Connections, HEAD_BYTES_MAX, ListenerOptions, WORKER_HEAD_BYTES_MAX};
use warmpath_shell::log::timed;
use warmpath_shell::server::{ServerError, ServerResources, bind_address};
use warmpath_shell::tls::{CurrentServer, TlsError};
use warmpath_shell::trace::Tracer;
use warmpath_shell::trace::export::TraceConfig;

use crate::app::App;
use crate::app::Phase;
use crate::backends::BackendError;
use crate::config::kv_transfer::KvTransferConfig;
use crate::config::{BODY_TIMEOUT, Config, HEAD_TIMEOUT, HttpConfig};
use crate::download::{self, DownloadError, DownloadProgress, ModelFiles, ModelSource};
use crate::engine::{ProjectorConfig, StartError, check_adapter};
use crate::http::{admin_router, router};
use crate::kv_transfer::{Access, StateFetcher};
use crate::loaded_model::LoadedModel;
use crate::loaded_model::common::CommonState;
use crate::metrics::Metrics;
use crate::store::{self, Reservation};

/// Time limit for sending the last parts of responses after the engine has ended.
///
/// Source: well below the 5 s that units and charts add to the drain timeout.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(2);

/// Reason why a worker does not start or cannot continue.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// The model or its projector cannot be downloaded.
    #[error("cannot get the model's files")]
    Download(#[source] DownloadError),
    /// The model's file is missing, damaged or of a kind that llama.cpp cannot run.
    #[error("cannot serve the model")]
    Model(#[source] GgufError),
    /// The address cannot be bound, or a file of the server cannot be used.
    #[error(transparent)]
    Server(#[from] ServerError),
    /// TLS with other workers cannot be set up.
    #[error("--peer-ca, --peer-cert, --peer-key")]
    PeerTls(#[source] TlsError),
    /// The vocabulary or the chat template cannot be used.
    #[error("cannot make prompts for the model")]
    Prompt(#[source] OpenError),
    /// llama.cpp has no usable backend.
    #[error("cannot load llama.cpp's backends")]
    Backends(#[source] BackendError),
    /// The engine did not start.
    #[error("cannot start the engine")]
    Engine(#[source] StartError),
    /// A thread of the worker has panicked.
    #[error("a part of the worker has panicked")]
    Panicked(#[source] tokio::task::JoinError),
    /// The engine thread has ended unexpectedly.
    #[error("the engine has stopped")]
    EngineStopped,
}

/// A worker that listens and does not load its model yet.
pub struct Bound {
    config: Config,
    listener: TcpListener,
    /// Listener for probes and scrapers.
    admin: Option<TcpListener>,
    address: SocketAddr,
    resources: HttpResources,
    /// Reservation that keeps other workers out of the folder for stored state.
    reservation: Option<Reservation>,
}

/// What requests need besides the model.
struct HttpResources {
    server: ServerResources,
    transfers: Option<Arc<StateFetcher>>,
    tracer: Tracer,
    metrics: Arc<Metrics>,
    /// Tasks that watch the files; they end with the worker.
    tasks: JoinSet<()>,
}

impl HttpResources {
    /// Reads the files.
    ///
    /// Errors: `Server`, `PeerTls`.
    fn open(config: &HttpConfig, trace: Option<&TraceConfig>) -> Result<Self, RunError> {
        let metrics = Arc::new(Metrics::new());
        let mut tasks = JoinSet::new();
        let server = ServerResources::open(config.tls.as_ref(), config.token_file.as_deref(), &config.image_url_hosts)?;
        server.watch(&metrics.tls_failures, &metrics.token_file_failures, &mut tasks);
        let mut transfers = None;
        if let Some(KvTransferConfig { tls: files, peer_name }) = config.kv_transfer.clone() {
            let tls = files.open().map_err(RunError::PeerTls)?;
            let access = Access { tokens: server.tokens.clone(), is_local: config.listen.ip().is_loopback() };
            let fetcher = StateFetcher::new(Arc::clone(&tls), peer_name, access, Arc::clone(&metrics));
            transfers = Some(Arc::new(fetcher));
            let failures = metrics.tls_failures.clone();
            tasks.spawn(async move { files.watch(tls, || failures.inc()).await });
        }
        let tracer = trace.map(|trace| Tracer::start(trace, "warmpath-worker", &mut tasks)).transpose();
        let tracer = tracer.map_err(ServerError::from)?.unwrap_or_default();
        Ok(Self { server, transfers, tracer, metrics, tasks })
    }
}

/// Identity of a worker, once its address is known.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WorkerIdentity {
    /// Name in response headers.
    pub name: String,
    /// Uid in summaries.
    pub uid: WorkerUid,
    /// Boot epoch: later starts of the process have larger ones. Units: nanoseconds since 1970.
    pub boot_epoch: u64,
}

/// Checks a local model's files, the folder for stored state, and the files for TLS and tokens, and binds the address.
///
/// Errors: `Model`, `Engine` for the folder, `Server`, `PeerTls`.
pub async fn bind(config: Config) -> Result<Bound, RunError> {
    let reservation = if config.source.local().is_some() { checked(&config).await? } else { None };
    let resources = HttpResources::open(&config.http, config.trace.as_ref())?;
    let (listener, address) = bind_address(config.http.listen).await?;
    let scheme = if resources.server.tls.is_some() { "https" } else { "http" };
    info!("listening on {scheme}://{address}");
    let mut admin = None;
    if let Some(address) = config.http.admin_listen {
        let (listener, address) = bind_address(address).await?;
        info!("listening for probes and scrapers on http://{address}");
        admin = Some(listener);
    }
    Ok(Bound { config, listener, admin, address, resources, reservation })
}

/// Checks the files that the configuration names: those of a local model and its adapters, of TLS and tokens. The
/// folder for stored state is not touched, because a running worker may use it.
///
/// Errors: `Model`, `Engine` for an adapter, `Server`, `PeerTls`.
pub async fn check(config: Config) -> Result<(), RunError> {
    // The tasks that watch the files end immediately.
    drop(HttpResources::open(&config.http, config.trace.as_ref())?);
    let check_model = move || {
        if config.source.local().is_some() {
            Model::open(&config.engine.model).map_err(RunError::Model)?;
        }
        check_draft_model(&config)?;
        config.engine.adapters.iter().try_for_each(|adapter| check_adapter(&adapter.path)).map_err(RunError::Engine)
    };
    tokio::task::spawn_blocking(check_model).await.map_err(RunError::Panicked)?
}

/// Returns the memory that the worker would take and its model's fingerprint, without loading weights. Its files are
/// downloaded first; if it may download nothing and they are not here, the projection has no memory.
///
/// Errors: `Download`, `Backends`; `Model` for a file that is no model; `Engine` for a device that does not exist, or
/// if llama.cpp cannot determine the memory.
pub async fn project_memory(mut config: Config) -> Result<MemoryProjection, RunError> {
    let phase = Arc::new(watch::channel(Phase::Loading { percent: 0 }).0);
    let files = match files(&config, &phase).await {
        Ok(files) => files,
        Err(RunError::Download(DownloadError::NotCached { .. })) => return Ok(MemoryProjection::default()),
        Err(error) => return Err(error),
    };
    (config.engine.model, config.engine.projector) = (files.model, files.projector);
    let model = config.engine.model.clone();
    let fingerprint = tokio::task::spawn_blocking(move || Model::open(&model)?.fingerprint()).await;
    let fingerprint = Some(fingerprint.map_err(RunError::Panicked)?.map_err(RunError::Model)?);
    let plan = load::project(config).await?;
    let Some(plan) = plan else { return Err(RunError::Engine(StartError::UnknownMemory)) };
    let process_bytes = warmpath_shell::machine::resident_bytes(std::process::id()).unwrap_or(0);
    let of_machine = DeviceProjection {
        device: RAM.to_owned(),
        bytes: plan.memory.total().saturating_add(process_bytes),
        available_bytes: Some(plan.memory.available),
    };
    let of_devices = plan.devices.into_iter().map(|device| DeviceProjection {
        bytes: [device.weights, device.context, device.compute].into_iter().fold(0, u64::saturating_add),
        available_bytes: Some(device.available).filter(|bytes| *bytes < u64::MAX),
        device: device.name,
    });
    let devices = std::iter::once(of_machine).chain(of_devices).collect();
    Ok(MemoryProjection { is_local: true, fingerprint, ctx_size: plan.fitted_cells, devices })
}

/// Checks the draft model's file, if there is a draft model.
///
/// Errors: `Model`.
fn check_draft_model(config: &Config) -> Result<(), RunError> {
    let Some(draft) = &config.engine.draft_model else { return Ok(()) };
    Model::open(&draft.path).map(drop).map_err(RunError::Model)
}

/// Returns the reservation of the folder for stored state, if there is one.
///
/// Errors: like [`check_files`], `Panicked`.
async fn checked(config: &Config) -> Result<Option<Reservation>, RunError> {
    let config = config.clone();
    let check = move || timed("checking files", || check_files(&config));
    tokio::task::spawn_blocking(check).await.map_err(RunError::Panicked)?
}

/// Checks the files of the model and of the draft model, and reserves the folder for stored state.
///
/// Errors: `Model`; `Engine` if no state can be stored in the folder, or another worker uses it.
fn check_files(config: &Config) -> Result<Option<Reservation>, RunError> {
    let model = Model::open(&config.engine.model).map_err(RunError::Model)?;
    check_draft_model(config)?;
    // An embedding worker has no store.
    let Some(disk) = config.engine.store.disk.as_ref().filter(|_| config.embedding.is_none()) else { return Ok(None) };
    let model = model.fingerprint().map_err(RunError::Model)?;
    let reservation = store::reserve(&disk.dir, config.engine.state_settings(model));
    reservation.map_err(StartError::Store).map_err(RunError::Engine)
}

impl Bound {
    /// Returns the bound address with its port.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Loads the model and serves it until `shutdown`, then lets running responses finish.
    ///
    /// Errors: `Download`, `Model`, `Prompt`, `Engine`, `Panicked`, `EngineStopped`.
    pub async fn serve(self, shutdown: impl Future<Output = ()>) -> Result<(), RunError> {
        let Self { config, listener, admin, address, resources, reservation } = self;
        let HttpResources { server, transfers, tracer, metrics, tasks: _tasks } = resources;
        let identity = identity(&config, address);
        info!(worker = identity.name, uid = %identity.uid, "loading {}", config.source);

        // HTTP is served while the model loads, so that probes and routers see how far it is.
        let (phase, phase_seen) = watch::channel(Phase::Loading { percent: 0 });
        let app = App {
            phase: phase_seen,
            worker: HeaderValue::from_str(&identity.name).unwrap_or(HeaderValue::from_static("unnamed")),
            started_s: identity.boot_epoch / 1_000_000_000,
            names: names(&config),
            bodies: Arc::new(BodyLimits {
                bytes_max: config.http.body_bytes_max,
                timeout: BODY_TIMEOUT,
                room: BodyRoom::new(room_bytes(config.http.body_bytes_max)),
            }),
            connections: Connections::new(config.http.connections_max),
            allowed_hosts: Arc::new(config.http.allowed_hosts.clone()),
            admin_allowed_hosts: Arc::new(config.http.admin_allowed_hosts.clone()),
            slot_save_path: config.http.slot_save_path.clone(),
            tokens: server.tokens,
            transfers,
            image_urls: server.image_urls,
            tracer: tracer.clone(),
            metrics,
            left_out_logged: Arc::default(),
        };
        let (http, close) = serve_http(listener, admin, server.tls, config.http.idle_timeout, app.clone());
        let drain_timeout = config.drain_timeout;
        let phase = Arc::new(phase);

        // Loading, which a shutdown ends at once: no client waits for anything yet.
        tokio::pin!(shutdown);
        let began = Instant::now();
        let job = load::LoadJob { config, identity, phase: Arc::clone(&phase), metrics: Arc::clone(&app.metrics) };
        let load_result = tokio::select! {
            load_result = obtain(job, reservation) => load_result,
            () = &mut shutdown => {
                info!("stopped while the model was loading");
                return Ok(());
            }
        };
        let (loaded_model, _reservation) = load_result?;
        app.metrics.load.set(began.elapsed().as_secs_f64());
        announce(&loaded_model, began.elapsed());
        phase.send_replace(Phase::Ready(loaded_model.clone()));

        // Serving, until a shutdown or the end of the engine. Then running requests may end, and new ones are refused.
        let stop_result = tokio::select! {
            () = &mut shutdown => Ok(()),
            () = loaded_model.stopped() => Err(RunError::EngineStopped),
        };
        info!(timeout_s = drain_timeout.as_secs_f64(), "draining");
        phase.send_replace(Phase::Draining(loaded_model.clone()));
        loaded_model.drain(drain_timeout, app.transfers.as_deref()).await;

        // What is left is the bytes of the last responses and spans.
        close.send_replace(true);
        if tokio::time::timeout(CLOSE_TIMEOUT, http).await.is_err() {
            warn!("some clients did not read their responses to the end");
        }
        // An error means that the collector was too slow.
        let _ = tokio::time::timeout(CLOSE_TIMEOUT, tracer.flush()).await;
        stop_result
    }
}

/// Downloads the model and its projector if necessary, and loads them. The folder for stored state stays reserved as
/// long as the returned reservation is kept.
///
/// Errors: `Download`; those of [`checked`] and [`load::load`].
async fn obtain(
    mut job: load::LoadJob,
    mut reservation: Option<Reservation>,
) -> Result<(LoadedModel, Option<Reservation>), RunError> {
    let files = files(&job.config, &job.phase).await?;
    (job.config.engine.model, job.config.engine.projector) = (files.model, files.projector);
    if job.config.source.local().is_none() {
        reservation = checked(&job.config).await?;
    }
    Ok((load::load(job).await?, reservation))
}

/// Files of a worker's model.
struct WorkerFiles {
    model: PathBuf,
    projector: Option<ProjectorConfig>,
}

/// Returns the files of the model and its projector, downloaded if necessary.
///
/// Errors: `Download`.
async fn files(config: &Config, phase: &Arc<watch::Sender<Phase>>) -> Result<WorkerFiles, RunError> {
    // The projector comes first, because it is small and its URL may be wrong.
    let named = match &config.media.named {
        Some(named) => Some(fetched(named, phase).await?.model),
        None => None,
    };
    let ModelFiles { model, projector } = fetched(&config.source, phase).await?;
    Ok(WorkerFiles { model, projector: config.media.projector(named, projector) })
}

/// Returns the files of a model or a projector, downloaded if necessary.
///
/// Errors: `Download`.
async fn fetched(source: &ModelSource, phase: &Arc<watch::Sender<Phase>>) -> Result<ModelFiles, RunError> {
    let is_remote = source.local().is_none();
    if is_remote {
        phase.send_replace(Phase::Downloading { percent: 0 });
    }
    let mut progress = DownloadProgress::new(Arc::clone(phase));
    let files = download::fetch(source, &mut progress).await.map_err(RunError::Download)?;
    drop(progress);
    if is_remote {
        let projector = files.projector.as_ref().map(|path| path.display().to_string());
        info!(%source, path = %files.model.display(), projector, "the file is on this machine");
        phase.send_replace(Phase::Loading { percent: 0 });
    }
    Ok(files)
}

fn serve_http(
    listener: TcpListener,
    admin: Option<TcpListener>,
    tls: Option<CurrentServer>,
    reader_timeout: Duration,
    app: App,
) -> (JoinHandle<()>, watch::Sender<bool>) {
    let (close, closed) = watch::channel(false);
    if let Some(admin) = admin {
        // Responses of these connections are short, so their end is not awaited.
        let connections = Connections::new(ADMIN_CONNECTIONS_MAX);
        let options = ListenerOptions {
            tls: None,
            head_timeout: HEAD_TIMEOUT,
            head_bytes_max: HEAD_BYTES_MAX,
            reader_timeout,
            connections,
        };
        tokio::spawn(listen::serve(admin, admin_router(app.clone()), options, closed.clone()));
    }
    let connections = Arc::clone(&app.connections);
    let head_bytes_max = WORKER_HEAD_BYTES_MAX;
    let options = ListenerOptions { tls, head_timeout: HEAD_TIMEOUT, head_bytes_max, reader_timeout, connections };
    let http = tokio::spawn(listen::serve(listener, router(app), options, closed));
    (http, close)
}

fn announce(loaded_model: &LoadedModel, took: Duration) {
    let CommonState { model, description, prompts, .. } = loaded_model.common();
    let took_s = took.as_secs_f64();
    match loaded_model {
        LoadedModel::Generator(generator) => {
            if prompts.chat_template_origin() == Some(TemplateOrigin::Default) {
                warn!("the model has no chat template; chats are rendered as ChatML (--chat-template sets another)");
            }
            let facts = generator.engine.facts();
            info!(
                model = model.names.first(),
                description,
                slots = facts.n_slots,
                context_tokens = facts.context_tokens,
                memory = ?facts.memory,
                flash_attn = facts.flash_attn,
                kv_unified = facts.kv_unified,
                took_s,
                "ready"
            );
        }
        LoadedModel::Embedder(embedder) => {
            let facts = embedder.handle.facts();
            info!(
                model = model.names.first(),
                description,
                embedding = %facts.embedding,
                text_tokens_max = facts.text_tokens_max,
                texts_per_batch = facts.n_sequences,
                took_s,
                "ready"
            );
        }
    }
}

/// Returns every name under which clients may request the model.
fn names(config: &Config) -> Arc<[String]> {
    let adapters = config.engine.adapters.iter().map(|adapter| adapter.name.as_str());
    lora::all_names(&config.identity.model_names, adapters).collect()
}

fn identity(config: &Config, address: SocketAddr) -> WorkerIdentity {
    let host = gethostname::gethostname().to_string_lossy().replace(|c: char| !c.is_ascii_graphic(), "-");
    let absolute = |path: &PathBuf| std::path::absolute(path).unwrap_or_else(|_| path.clone()).display().to_string();
    let model = config.source.local().map_or_else(|| config.source.to_string(), absolute);
    let hash = blake3::hash(format!("{host}\0{address}\0{model}").as_bytes());
    let (uid, _) = hash.as_bytes().split_first_chunk().expect("a hash has 32 bytes");
    let since_1970 = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    WorkerIdentity {
        name: config.identity.name.clone().unwrap_or_else(|| format!("{host}:{}", address.port())),
        uid: WorkerUid(u64::from_be_bytes(*uid)),
        boot_epoch: u64::try_from(since_1970.as_nanos()).unwrap_or(u64::MAX),
    }
}
