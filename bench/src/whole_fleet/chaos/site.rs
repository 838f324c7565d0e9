//! The processes of a chaos run: starting, ending and pausing them, and restarting them at their old addresses.
//!
//! Not here: the times of faults (`faults`), the network (`network`).

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use anyhow::Context as _;

use super::network::{Network, Place};
use crate::fleet::Server;
use crate::model::Preset;
use crate::model::cache::cached_model;
use crate::servers::cgroup::Cgroup;

/// Name under which every worker serves its model.
const ALIAS: &str = "chaos";
/// Time in which a process must be ready.
const READY_TIMEOUT: Duration = Duration::from_secs(60);
/// Time in which a process must end after SIGTERM.
const END_TIMEOUT: Duration = Duration::from_secs(60);
/// Time that a worker or router has for running responses after SIGTERM. Units: seconds.
const DRAIN_S: &str = "30";
/// Size of the file system that is too small for the first worker's disk cache. Units: MiB.
const SMALL_DISK_MB: u32 = 16;
/// Size of a worker's disk cache. Units: MiB.
const DISK_CACHE_MB: &str = "64";

/// Programs, models and folders with which processes are started.
#[derive(Debug)]
pub struct Site {
    /// The network.
    pub network: Network,
    /// Folder of the programs.
    pub bin_dir: PathBuf,
    /// Model of the fleet.
    model: PathBuf,
    /// Model that a misconfigured worker serves.
    other_model: PathBuf,
    folder: tempfile::TempDir,
    /// Mounted file system of the first worker's disk cache; `None` if it could not be mounted.
    small_disk: Option<SmallDisk>,
}

/// Model with which a worker is started.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Served {
    /// The fleet's model.
    #[default]
    Fleets,
    /// Another model under the same name.
    Other,
}

/// Options with which a worker is started.
#[derive(Debug, Clone, Copy, Default)]
pub struct Start<'a> {
    /// Its model.
    pub served: Served,
    /// Its address; `None` for the default address of its place.
    pub address: Option<SocketAddr>,
    /// Control group in which it runs.
    pub cgroup: Option<&'a Cgroup>,
}

impl Site {
    /// Makes models and folders.
    ///
    /// Errors: a file cannot be written.
    pub fn prepare(network: Network, bin_dir: PathBuf) -> anyhow::Result<Self> {
        let models = Path::new(env!("CARGO_MANIFEST_DIR")).join("../target/models");
        std::fs::create_dir_all(&models)?;
        let folder = tempfile::tempdir()?;
        let disk = folder.path().join(Place::Worker(0).name());
        std::fs::create_dir_all(&disk)?;
        Ok(Self {
            network,
            bin_dir,
            model: cached_model(Preset::Tiny, 1, &models)?,
            other_model: cached_model(Preset::Tiny, 2, &models)?,
            small_disk: SmallDisk::mount(disk),
            folder,
        })
    }

    /// Returns whether the first worker's disk is too small for its cache.
    pub fn has_small_disk(&self) -> bool {
        self.small_disk.is_some()
    }

    /// Starts the worker that gives the reference answers: it reuses nothing.
    ///
    /// Errors: it does not start or get ready; its log is in the message.
    pub async fn start_reference(&self) -> anyhow::Result<Server> {
        let mut flags = self.worker_flags(Served::Fleets);
        flags.extend(["--slots", "1", "--ctx-size", "4096", "--disable-prefix-cache"].map(str::to_owned));
        self.start(Place::Reference, "warmpath-worker", flags, Start::default()).await
    }

    /// Starts a worker.
    ///
    /// Errors: it does not start or get ready; its log is in the message.
    pub async fn start_worker(&self, idx: usize, start: Start<'_>) -> anyhow::Result<Server> {
        let place = Place::Worker(idx);
        let disk = self.folder.path().join(place.name()).display().to_string();
        let mut flags = self.worker_flags(start.served);
        flags.extend(["--slots", "4", "--ctx-size", "16384", "--cache-ram", "64"].map(str::to_owned));
        flags.extend(["--drain-timeout", DRAIN_S, "--cache-disk-size", DISK_CACHE_MB].map(str::to_owned));
        flags.extend(["--cache-disk".to_owned(), disk, "--name".to_owned(), place.name()]);
        self.start(place, "warmpath-worker", flags, start).await
    }

    /// Starts a router of these workers, at its former address if it had one.
    ///
    /// Errors: it does not start or get ready; its log is in the message.
    pub async fn start_router(
        &self,
        idx: usize,
        workers: &[String],
        address: Option<SocketAddr>,
    ) -> anyhow::Result<Server> {
        let mut flags = ["--admin-listen", "127.0.0.1:0", "--drain-timeout", DRAIN_S].map(str::to_owned).to_vec();
        flags.extend(workers.iter().flat_map(|url| ["--worker".to_owned(), url.clone()]));
        self.start(Place::Router(idx), "warmpath-router", flags, Start { address, ..Start::default() }).await
    }

    fn worker_flags(&self, served_model: Served) -> Vec<String> {
        let model = match served_model {
            Served::Fleets => &self.model,
            Served::Other => &self.other_model,
        };
        let model = model.display().to_string();
        let flags = ["--model", &model, "--alias", ALIAS, "--threads", "1"];
        // Without flash attention reuse is exact, and no self-test is needed at each start.
        let exact = ["--flash-attn", "off", "--kv-unified", "off"];
        flags.iter().chain(&exact).map(|&flag| flag.to_owned()).collect()
    }

    async fn start(
        &self,
        place: Place,
        program: &str,
        flags: Vec<String>,
        Start { address, cgroup, .. }: Start<'_>,
    ) -> anyhow::Result<Server> {
        let (mut program, mut args) = self.network.command(place, &self.bin_dir.join(program));
        if let Some(cgroup) = cgroup {
            let (outer, outer_args) = cgroup.command(&program);
            (program, args) = (outer, outer_args.into_iter().chain(args).collect());
        }
        let address = address.unwrap_or_else(|| self.network.address(place));
        args.extend(["--listen".to_owned(), address.to_string()]);
        args.extend(flags);
        let mut server = Server::start(&place.name(), &program, &args).await?;
        server.ready(READY_TIMEOUT).await?;
        Ok(server)
    }
}

impl Place {
    /// Returns the name of its process.
    pub fn name(self) -> String {
        match self {
            Self::Reference => "reference".to_owned(),
            Self::Worker(idx) => format!("worker-{idx}"),
            Self::Router(idx) => format!("router-{idx}"),
        }
    }
}

/// A mounted file system in memory; dropping it unmounts it.
#[derive(Debug)]
struct SmallDisk(PathBuf);

impl SmallDisk {
    /// Mounts it; `None` if that fails, as without root.
    fn mount(folder: PathBuf) -> Option<Self> {
        let size = format!("size={SMALL_DISK_MB}m");
        let mut command = Command::new("mount");
        command.args(["-t", "tmpfs", "-o", &size, "warmpath-chaos"]).arg(&folder);
        command.output().is_ok_and(|output| output.status.success()).then_some(Self(folder))
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let _ = Command::new("umount").args(["--lazy"]).arg(&self.0).output();
    }
}

/// The fleet under test.
#[derive(Debug)]
pub struct Fleet {
    /// Programs, models and folders.
    pub site: Site,
    /// Workers.
    pub workers: Vec<Server>,
    /// Routers.
    pub routers: Vec<Server>,
    /// State of the fleet that clients and observers can see.
    pub state: Arc<FleetState>,
}

impl Fleet {
    /// Starts workers and routers.
    ///
    /// Errors: one of them does not start or get ready.
    pub async fn start(site: Site, n_workers: usize, n_routers: usize) -> anyhow::Result<Self> {
        let mut workers = Vec::new();
        for idx in 0..n_workers {
            workers.push(site.start_worker(idx, Start::default()).await?);
        }
        let urls: Vec<String> = workers.iter().map(Server::base_url).collect();
        let mut routers = Vec::new();
        for idx in 0..n_routers {
            routers.push(site.start_router(idx, &urls, None).await?);
        }
        let urls = routers.iter().map(Server::base_url).collect();
        let fleet = Self { site, workers, routers, state: Arc::new(FleetState::new(urls)) };
        fleet.note_pids();
        Ok(fleet)
    }

    /// Kills a worker.
    ///
    /// Errors: it has ended by itself before.
    pub async fn kill_worker(&mut self, idx: usize) -> anyhow::Result<()> {
        self.ensure_alive()?;
        self.workers[idx].kill().await
    }

    /// Sends SIGTERM to a worker, and waits until it has ended.
    ///
    /// Errors: it has ended by itself before, or does not end in time.
    pub async fn drain_worker(&mut self, idx: usize) -> anyhow::Result<()> {
        self.ensure_alive()?;
        let status = self.workers[idx].terminate(END_TIMEOUT).await?;
        anyhow::ensure!(status.success(), "worker-{idx} ended with {status}:\n{}", self.workers[idx].log());
        Ok(())
    }

    /// Starts a worker that has ended at its old address.
    ///
    /// Errors: it does not start or get ready.
    pub async fn restart_worker(&mut self, idx: usize, served_model: Served) -> anyhow::Result<()> {
        let address = Some(self.workers[idx].address());
        self.start_worker(idx, Start { served: served_model, address, cgroup: None }).await
    }

    /// Starts a worker that has ended.
    ///
    /// Errors: it does not start or get ready.
    pub async fn start_worker(&mut self, idx: usize, start: Start<'_>) -> anyhow::Result<()> {
        self.workers[idx] = self.site.start_worker(idx, start).await?;
        self.note_pids();
        Ok(())
    }

    /// Kills a router and starts it again at its old address after a while.
    ///
    /// Errors: it has ended by itself before, or does not start or get ready.
    pub async fn kill_router(&mut self, idx: usize, down_for: Duration) -> anyhow::Result<()> {
        self.ensure_alive()?;
        self.state.killed(idx);
        self.routers[idx].kill().await?;
        tokio::time::sleep(down_for).await;
        self.restart_router(idx).await
    }

    /// Sends SIGTERM to a router, waits until it has ended, and starts it again at its old address.
    ///
    /// Errors: as [`Self::kill_router`]; it does not end in time.
    pub async fn roll_router(&mut self, idx: usize) -> anyhow::Result<()> {
        self.ensure_alive()?;
        self.state.leaves(idx);
        let status = self.routers[idx].terminate(END_TIMEOUT).await?;
        anyhow::ensure!(status.success(), "router-{idx} ended with {status}:\n{}", self.routers[idx].log());
        self.restart_router(idx).await
    }

    async fn restart_router(&mut self, idx: usize) -> anyhow::Result<()> {
        let address = self.routers[idx].address();
        let urls: Vec<String> = self.workers.iter().map(Server::base_url).collect();
        self.routers[idx] = self.site.start_router(idx, &urls, Some(address)).await?;
        self.state.come_back(idx);
        self.note_pids();
        Ok(())
    }

    /// Checks that no process has ended by itself.
    ///
    /// Errors: one has; its log is in the message.
    pub fn ensure_alive(&mut self) -> anyhow::Result<()> {
        for server in self.workers.iter_mut().chain(&mut self.routers) {
            server.ensure_alive().context("it ended by itself")?;
        }
        Ok(())
    }

    /// Sends a signal to a worker.
    ///
    /// Errors: it has ended.
    pub async fn signal_worker(&self, idx: usize, signal: &str) -> anyhow::Result<()> {
        self.workers[idx].signal(signal).await
    }

    fn note_pids(&self) {
        let name_and_pid = |(idx, server): (usize, &Server), place: fn(usize) -> Place| {
            server.pid().map(|pid| (place(idx).name(), pid))
        };
        let workers =
            self.workers.iter().enumerate().filter_map(|indexed_server| name_and_pid(indexed_server, Place::Worker));
        let routers =
            self.routers.iter().enumerate().filter_map(|indexed_server| name_and_pid(indexed_server, Place::Router));
        *self.state.pids() = workers.chain(routers).collect();
    }
}

/// State of the fleet that clients and observers can see.
#[derive(Debug)]
pub struct FleetState {
    /// URLs of the routers.
    pub routers: Vec<String>,
    /// State of each router. The lock is held for one entry.
    states: Mutex<Vec<RouterState>>,
    /// Names and ids of the running processes. The lock is held for one copy.
    pids: Mutex<Vec<(String, u32)>>,
}

/// State of a router.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct RouterState {
    /// Whether it got SIGTERM or was killed, and has not been started again.
    pub is_leaving: bool,
    /// Number of times that it was killed.
    pub n_kills: u32,
}

impl FleetState {
    fn new(routers: Vec<String>) -> Self {
        let states = Mutex::new(vec![RouterState::default(); routers.len()]);
        Self { routers, states, pids: Mutex::default() }
    }

    /// Returns the state of a router.
    pub fn router(&self, router: usize) -> RouterState {
        self.states()[router]
    }

    /// Returns the names and ids of the running processes.
    pub fn running(&self) -> Vec<(String, u32)> {
        self.pids().clone()
    }

    fn killed(&self, router: usize) {
        self.states()[router].n_kills += 1;
        self.leaves(router);
    }

    fn leaves(&self, router: usize) {
        self.states()[router].is_leaving = true;
    }

    fn come_back(&self, router: usize) {
        self.states()[router].is_leaving = false;
    }

    fn states(&self) -> MutexGuard<'_, Vec<RouterState>> {
        self.states.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn pids(&self) -> MutexGuard<'_, Vec<(String, u32)>> {
        self.pids.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
