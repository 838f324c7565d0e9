//! The task that owns the models of a host: it tells the swaps what happens, does what they decide, and publishes the
//! summary.

mod orders;

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::{Semaphore, mpsc, oneshot, watch};
use tokio::task::AbortHandle;
use tokio_util::sync::CancellationToken;
use warmpath_common::clean_text;
use warmpath_common::host::{Demand, FetchedBytes, HostModel, HostSummary, MemoryProjection, ModelState, RAM};
use warmpath_host_core::catalogue::Entry;
use warmpath_host_core::memory::DeviceBytes;
use warmpath_host_core::swaps::{ANNOUNCE_MS, Action, Swaps};
use warmpath_shell::fleet_token::FleetTokens;
use warmpath_shell::log;

use super::disk_room::DiskRoom;
use super::error::HostError;
use super::listing::CatalogueFiles;
use super::metrics::Metrics;
use super::model_files::{self, Download};
use super::projection;
use super::worker_command::{self, WorkerCommands};
use super::worker_process::{Order, Report, WorkerProcess};

/// Time between two steps while nothing happens. Source: own choice: times to live are seconds.
const IDLE_STEP: Duration = Duration::from_secs(1);
/// Time between two summaries while only times change: progress is shown to people. Source: own choice.
const PROGRESS_INTERVAL: Duration = Duration::from_millis(500);
/// Models whose memory is projected at a time. Source: own choice: each takes a processor for a moment.
const PROJECTIONS_MAX: usize = 2;
/// Orders that a worker has not taken yet. Source: it gets two at most.
const ORDERS_MAX: usize = 4;
/// Requests and reports that wait for the owner. Source: own choice: it takes each within microseconds.
pub const REQUESTS_MAX: usize = 256;

/// A request to the owner.
#[derive(Debug)]
pub enum Request {
    /// Returns the summary.
    Summary(oneshot::Sender<HostSummary>),
    /// Something about one model; returns the model, or nothing if there is none of this name.
    Model {
        /// Name, or an alias.
        name: String,
        /// What is wanted.
        wish: Wish,
        /// Receiver of the model.
        reply: oneshot::Sender<Option<HostModel>>,
    },
    /// Downloads a model of Hugging Face; returns the summary.
    Download {
        /// Name of the repository.
        name: String,
        /// Receiver of the summary.
        reply: oneshot::Sender<Result<HostSummary, HostError>>,
    },
    /// Removes a model that was downloaded in this way, with its files; returns the summary.
    Remove {
        /// Name, or an alias.
        name: String,
        /// Receiver of the summary.
        reply: oneshot::Sender<Result<HostSummary, HostError>>,
    },
    /// Returns the metrics in Prometheus' text format.
    Metrics(oneshot::Sender<String>),
    /// Reads the catalogue again; returns the summary, or the error in the catalogue.
    Reload(oneshot::Sender<Result<HostSummary, HostError>>),
}

/// Something that is wanted of one model.
#[derive(Debug)]
pub enum Wish {
    /// Requests wait for it.
    Demand(Demand),
    /// A person loads it.
    Load,
    /// A person unloads it.
    Unload,
}

/// Something that has happened.
enum Event {
    Worker { model: String, report: Report },
    Projected { entry: Box<Entry>, result: anyhow::Result<MemoryProjection> },
    Fetching { model: String, bytes: FetchedBytes },
    Fetched { model: String, result: anyhow::Result<()> },
}

/// What a host is started with.
pub struct OwnerOptions {
    /// Address of the host: its name for people, and the address of its workers, with other ports.
    pub address: SocketAddr,
    /// Tokens that workers require; `None` for none.
    pub tokens: Option<Arc<FleetTokens>>,
    /// Origins of the catalogue.
    pub files: CatalogueFiles,
    /// Commands of workers.
    pub commands: WorkerCommands,
    /// Room on disk.
    pub disk_room: Arc<DiskRoom>,
    /// Whether requests load models.
    pub autoload: Autoload,
}

/// Whether requests load models.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Autoload {
    /// They do.
    On,
    /// They do not.
    Off,
}

/// The owner of a host's models.
pub struct Owner {
    options: OwnerOptions,
    swaps: Swaps,
    start: Instant,
    /// Orders to the workers, by model.
    workers: BTreeMap<String, mpsc::Sender<Order>>,
    /// Contexts of models whose default does not fit. Units: tokens.
    ctx_sizes: BTreeMap<String, u32>,
    /// Downloads that a person has ordered, by model.
    downloads: BTreeMap<String, AbortHandle>,
    http: reqwest::Client,
    events: mpsc::Sender<Event>,
    inbox: mpsc::Receiver<Event>,
    projections: Arc<Semaphore>,
    metrics: Metrics,
    sequence: u64,
    summary: watch::Sender<Arc<HostSummary>>,
    published: Instant,
}

impl Owner {
    /// Returns the owner and its summaries.
    ///
    /// Errors: the HTTP client cannot be made.
    pub fn new(options: OwnerOptions, swaps: Swaps) -> anyhow::Result<(Self, watch::Receiver<Arc<HostSummary>>)> {
        let http = reqwest::Client::builder().no_proxy().build()?;
        let (events, inbox) = mpsc::channel(REQUESTS_MAX);
        let empty_summary = HostSummary { host: options.address.to_string(), ..HostSummary::default() };
        let (summary, summaries) = watch::channel(Arc::new(empty_summary));
        let start = Instant::now();
        let projections = Arc::new(Semaphore::new(PROJECTIONS_MAX));
        let (workers, ctx_sizes, downloads) = (BTreeMap::new(), BTreeMap::new(), BTreeMap::new());
        let owner = Self {
            options,
            swaps,
            start,
            workers,
            ctx_sizes,
            downloads,
            http,
            events,
            inbox,
            projections,
            metrics: Metrics::new(),
            sequence: 0,
            summary,
            published: start,
        };
        Ok((owner, summaries))
    }

    /// Returns the names of the models.
    pub fn model_names(&self) -> Vec<String> {
        self.summary_now().models.into_iter().map(|model| model.name).collect()
    }

    /// Owns the models until `ends`, and then until the last worker has ended; `kill` ends these at once.
    pub async fn run(
        mut self,
        mut requests: mpsc::Receiver<Request>,
        ends: CancellationToken,
        kill: CancellationToken,
    ) {
        self.model_names().iter().for_each(|name| self.project(name, Download::Never));
        self.publish(self.summary_now());
        loop {
            let pause = if self.swaps.is_settling() { Duration::from_millis(ANNOUNCE_MS) } else { IDLE_STEP };
            tokio::select! {
                Some(request) = requests.recv() => self.answer(request),
                Some(event) = self.inbox.recv() => self.take(event),
                () = tokio::time::sleep(pause) => {}
                () = ends.cancelled() => break,
            }
            self.step();
            self.publish_changes();
        }
        self.order_all(Order::Drain);
        while !self.workers.is_empty() {
            tokio::select! {
                Some(event) = self.inbox.recv() => self.take(event),
                () = kill.cancelled() => {
                    self.order_all(Order::Kill);
                    break;
                }
            }
        }
    }

    fn now_ms(&self) -> u64 {
        u64::try_from(self.start.elapsed().as_millis()).unwrap_or(u64::MAX)
    }

    fn answer(&mut self, request: Request) {
        let now_ms = self.now_ms();
        // A client that has gone needs no reply.
        match request {
            Request::Summary(reply) => drop(reply.send(self.summary_now())),
            Request::Metrics(reply) => drop(reply.send(self.metrics_text())),
            Request::Reload(reply) => drop(reply.send(self.reload())),
            Request::Download { name, reply } => drop(reply.send(self.download(&name))),
            Request::Remove { name, reply } => self.remove(&name, reply),
            Request::Model { name, wish, reply } => {
                let Some(name) = self.swaps.entry(&name).map(|entry| entry.name.clone()) else {
                    drop(reply.send(None));
                    return;
                };
                match wish {
                    Wish::Demand(demand) => self.swaps.demand(&demand, now_ms),
                    Wish::Load => self.swaps.load(&name, now_ms),
                    Wish::Unload => {
                        self.cancel_download(&name);
                        self.swaps.unload(&name);
                    }
                }
                self.step();
                drop(reply.send(self.summary_now().models.into_iter().find(|model| model.name == name)));
            }
        }
    }

    fn reload(&mut self) -> Result<HostSummary, HostError> {
        self.read_catalogue()?;
        for name in self.model_names().iter().filter(|name| !self.workers.contains_key(*name)) {
            self.project(name, Download::Never);
        }
        Ok(self.published())
    }

    fn read_catalogue(&mut self) -> Result<(), HostError> {
        let entries = self.options.files.read();
        let entries = entries.map_err(|error| HostError::Catalogue { reason: format!("{error:#}") })?;
        self.swaps.replace_catalogue(entries);
        Ok(())
    }

    fn take(&mut self, event: Event) {
        let now_ms = self.now_ms();
        match event {
            Event::Worker { model, report } => match report {
                Report::Listening(url) => self.swaps.listening(&model, url),
                Report::Progress(share) => self.swaps.progressed(&model, share),
                Report::Ready(bytes) => {
                    let times = self.swaps.ready(&model, bytes.map(DeviceBytes::ram), now_ms);
                    self.metrics.count_load(&model, times);
                    log::line(&format!("warmpath: {model} is loaded"));
                }
                Report::Running(n_running) => self.swaps.running(&model, n_running, now_ms),
                Report::Kept(tokens) => self.metrics.kv_kept.with_label_values(&[&model]).inc_by(tokens),
                Report::Reused(tokens) => self.metrics.kv_reused.with_label_values(&[&model]).inc_by(tokens),
                Report::Measured(bytes) => self.swaps.measured(&model, DeviceBytes::ram(bytes)),
                Report::Exited(reason) => {
                    self.workers.remove(&model);
                    self.options.disk_room.leave(&worker_command::folder_name(&model));
                    log::line(&format!("warmpath: {model}: {reason}"));
                    let ended = self.swaps.exited(&model, clean_text::without_paths(&reason), now_ms);
                    self.metrics.count_end(&model, ended);
                }
            },
            Event::Projected { entry, result } => self.take_projection(&entry, result),
            Event::Fetching { model, bytes } => self.swaps.downloading(&model, bytes),
            Event::Fetched { model, result } => self.take_download(&model, result),
        }
    }

    fn take_projection(&mut self, entry: &Entry, result: anyhow::Result<MemoryProjection>) {
        // The catalogue may have changed meanwhile.
        if self.swaps.entry(&entry.name).is_none_or(|entry_before| entry_before.flags != entry.flags) {
            return;
        }
        match result {
            Ok(MemoryProjection { is_local: false, .. }) => self.swaps.remote(&entry.name),
            Ok(MemoryProjection { fingerprint, ctx_size, devices, .. }) => {
                for device in devices.iter().filter(|device| device.device != RAM) {
                    // A device that does not report its memory is not limited.
                    self.swaps.know_device(&device.device, device.available_bytes.unwrap_or(u64::MAX));
                }
                match ctx_size {
                    Some(tokens) => drop(self.ctx_sizes.insert(entry.name.clone(), tokens)),
                    None => drop(self.ctx_sizes.remove(&entry.name)),
                }
                let bytes = devices.into_iter().map(|device| (device.device, device.bytes)).collect();
                self.swaps.projected(&entry.name, bytes);
                self.swaps.identified(&entry.name, fingerprint);
            }
            Err(error) => {
                let reason = format!("{error:#}");
                log::line(&format!("warmpath: {} cannot be loaded: {reason}", entry.name));
                self.swaps.projection_failed(&entry.name, clean_text::without_paths(&reason), self.now_ms());
            }
        }
    }

    /// Does what the swaps decide now.
    fn step(&mut self) {
        for action in self.swaps.step(self.now_ms()) {
            match action {
                Action::Project(name) => self.project(&name, Download::Allowed),
                Action::Start(name) => self.start(&name),
                Action::Drain(name, cause) => {
                    self.metrics.count_unload(&name, cause);
                    self.order(&name, Order::Drain);
                }
                Action::Kill(name) => self.order(&name, Order::Kill),
            }
        }
    }

    fn project(&self, name: &str, download: Download) {
        let Some(entry) = self.swaps.entry(name).cloned() else { return };
        let (program, args) = (self.options.commands.program.clone(), self.options.commands.flags_of(&entry));
        let (events, places) = (self.events.clone(), Arc::clone(&self.projections));
        tokio::spawn(async move {
            // The semaphore is never closed.
            let _place = places.acquire().await;
            let projected = async {
                if download == Download::Allowed {
                    let model = &entry.name;
                    let report = |bytes| drop(events.try_send(Event::Fetching { model: model.clone(), bytes }));
                    model_files::fetch(&program, args.clone(), report).await?;
                }
                projection::project(&program, args).await
            };
            let result = projected.await;
            let _ = events.send(Event::Projected { entry: Box::new(entry), result }).await;
        });
    }

    fn start(&mut self, name: &str) {
        let Some(entry) = self.swaps.entry(name) else { return };
        let address = match worker_command::free_address(self.options.address.ip()) {
            Ok(address) => address,
            Err(error) => {
                let reason = format!("there is no free port: {error}");
                let ended = self.swaps.exited(name, reason, self.now_ms());
                return self.metrics.count_end(name, ended);
            }
        };
        let program = self.options.commands.serve(entry, address, self.ctx_sizes.get(name).copied());
        let (orders, worker_orders) = mpsc::channel(ORDERS_MAX);
        let (reports, mut worker_reports) = mpsc::channel(ORDERS_MAX);
        let (url, http) = (format!("http://{address}"), self.http.clone());
        let tokens = self.options.tokens.clone();
        let worker = WorkerProcess { program, url, http, tokens, reports, orders: worker_orders };
        let (events, model) = (self.events.clone(), name.to_owned());
        let disk_room = Arc::clone(&self.options.disk_room);
        disk_room.enter(worker_command::folder_name(name));
        tokio::spawn(async move {
            // A panic there leaves the disk as it is.
            let _ = tokio::task::spawn_blocking(move || disk_room.make()).await;
            worker.run().await;
        });
        tokio::spawn(async move {
            while let Some(report) = worker_reports.recv().await {
                let _ = events.send(Event::Worker { model: model.clone(), report }).await;
            }
        });
        self.workers.insert(name.to_owned(), orders);
        log::line(&format!("warmpath: loading {name}"));
    }

    fn order(&self, name: &str, order: Order) {
        if let Some(orders) = self.workers.get(name) {
            // A worker that has ended needs no order.
            let _ = orders.try_send(order);
        }
    }

    fn order_all(&self, order: Order) {
        self.workers.keys().for_each(|name| self.order(name, order));
    }

    fn summary_now(&self) -> HostSummary {
        let is_autoloaded = |_: &Entry| self.options.autoload == Autoload::On;
        HostSummary {
            host: self.options.address.to_string(),
            sequence: self.sequence,
            models_max: u32::try_from(self.swaps.models_max()).unwrap_or(u32::MAX),
            memory: self.swaps.memory(),
            models: self.swaps.models(is_autoloaded, self.now_ms()),
        }
    }

    fn metrics_text(&self) -> String {
        self.metrics.copy(&self.summary_now(), self.swaps.worker_memory());
        self.metrics.encode()
    }

    /// Publishes the summary if something has changed, or if people look at progress.
    fn publish_changes(&mut self) {
        let (now, before) = (self.summary_now(), Arc::clone(&self.summary.borrow()));
        let is_timed = self.swaps.is_settling() && self.published.elapsed() >= PROGRESS_INTERVAL;
        if is_timed || now.memory != before.memory || without_times(&now.models) != without_times(&before.models) {
            self.publish(now);
        }
    }

    /// Publishes the summary, and returns it with its number, for which a router waits.
    fn published(&mut self) -> HostSummary {
        self.publish(self.summary_now());
        HostSummary::clone(&self.summary.borrow())
    }

    fn publish(&mut self, summary: HostSummary) {
        self.sequence += 1;
        self.published = Instant::now();
        self.summary.send_replace(Arc::new(HostSummary { sequence: self.sequence, ..summary }));
    }
}

/// Returns the models without what changes by itself.
fn without_times(models: &[HostModel]) -> Vec<HostModel> {
    let mut models = models.to_vec();
    for model in &mut models {
        match &mut model.state {
            ModelState::Loaded { idle_ms, .. } => *idle_ms = 0,
            ModelState::Loading { progress, remaining_ms, .. } => (*progress, *remaining_ms) = (0.0, 0),
            ModelState::Impossible { retry_ms, .. } => *retry_ms = None,
            ModelState::Downloading(bytes) => *bytes = FetchedBytes::default(),
            // The wait of a model whose requests wait becomes shorter.
            ModelState::Loadable { wait_ms, .. } => *wait_ms = wait_ms.div_ceil(10_000),
            ModelState::Unloading { .. } => {}
        }
    }
    models
}
