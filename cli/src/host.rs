//! `warmpath host`: several models on one machine, each loaded when it is requested.
//!
//! A host runs one worker for each loaded model and tells routers which models it has and could load. What is loaded
//! when is decided in `host/core`. Not here: requests of clients (the router).

mod api;
mod disk_room;
mod error;
mod flags;
mod listing;
mod metrics;
mod model_files;
mod owner;
mod projection;
mod worker_command;
mod worker_process;

use std::ffi::OsString;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, ensure};
use tokio::net::TcpListener;
use tokio::sync::{mpsc, watch};
use tokio_util::sync::CancellationToken;
use warmpath_common::host::HostSummary;
use warmpath_host_core::disk::DiskBudget;
use warmpath_host_core::swaps::{ANNOUNCE_MS, SwapLimits, Swaps};
use warmpath_shell::fleet_token::FleetTokens;
use warmpath_shell::hosts::AllowedHosts;
use warmpath_shell::listen::{self, Connections, HEAD_BYTES_MAX, ListenerOptions};
use warmpath_shell::stop_signals::StopSignals;
use warmpath_shell::{log, machine};

use api::Api;
use disk_room::DiskRoom;
use flags::WorkerFlags;
pub use flags::{ModelsFlags, Settings};
use listing::CatalogueFiles;
use model_files::DownloadList;
use owner::{Autoload, Owner, OwnerOptions, REQUESTS_MAX};
use worker_command::WorkerCommands;

use crate::programs;
use crate::serve::Flags;

/// Default of `--models-max`. Source: llama.cpp's.
const MODELS_MAX_DEFAULT: usize = 4;
/// Memory that models leave to everything else. Units: bytes. Source: the default of a worker's `--fit-target`.
const SPARE_BYTES: u64 = 1 << 30;
/// Part of the budget that all models together use for stored KV state. Source: as of one worker's `--cache-ram`.
const CACHE_PART: u64 = 4;
/// Memory that a fitted context leaves for the process itself. Units: bytes. Source: a worker without weights takes 85
/// MiB.
const PROCESS_BYTES: u64 = 128 << 20;
/// File in the folder of KV state with the models that a person has had downloaded,
/// where no model's folder begins with a dot.
const DOWNLOADS_FILE: &str = ".downloads";
/// Connections of routers and people. Source: own choice: a machine has few routers.
const CONNECTIONS_MAX: usize = 256;
/// Time for a request's head, and for reading a response. Source: as a worker's.
const CLIENT_TIMEOUT: Duration = Duration::from_secs(60);

/// A host that listens, and loads nothing yet.
pub struct Host {
    listener: TcpListener,
    address: SocketAddr,
    /// Tokens that routers need, and their file.
    tokens: Option<(Arc<FleetTokens>, PathBuf)>,
    owner: Owner,
    summaries: watch::Receiver<Arc<HostSummary>>,
}

impl Host {
    /// Reads the catalogue and binds the address; `worker_flags` are the user's flags of every worker.
    ///
    /// Errors: flags that contradict each other, an error in the catalogue, an address that others reach without a
    /// token or that cannot be bound, a wrong file of tokens, an unknown size of the machine.
    pub async fn bind(models: ModelsFlags, worker_flags: &[OsString], worker: PathBuf) -> anyhow::Result<Self> {
        let listen = models.host_listen;
        ensure!(
            listen.ip().is_loopback() || models.host_token_file.is_some(),
            "--host-listen at an address that other machines reach needs --host-token-file"
        );
        ensure!(!listen.ip().is_unspecified(), "--host-listen needs the address at which routers reach this machine");
        let tokens =
            models.host_token_file.as_deref().map(FleetTokens::open).transpose().context("--host-token-file")?;
        let tokens = tokens.map(Arc::new);
        let WorkerFlags { flags, repositories, only_model } = match models.has_several(worker_flags) {
            true => WorkerFlags::split(worker_flags)?,
            false => WorkerFlags::of_only_model(worker_flags, &programs::settings(&worker, worker_flags).await?)?,
        };
        let ModelsFlags { models_dir, models_preset, models_max, .. } = models;
        let ttl_ms = u64::try_from(models.sleep_idle_seconds).ok().map(|seconds| seconds.saturating_mul(1000));
        let cache_dir = cache_dir(models.models_cache)?;
        let downloads = DownloadList::open(cache_dir.join(DOWNLOADS_FILE))?;
        let files = CatalogueFiles { models_dir, models_preset, repositories, downloads, only_model, ttl_ms };
        let entries = files.read()?;
        // Memory: the budget is fixed at the start, when no model is loaded.
        let available = machine::available_bytes();
        let budget = match (models.models_memory, available) {
            (Some(mib), _) => mib.saturating_mul(1 << 20),
            (None, Some(available)) => available.saturating_sub(SPARE_BYTES),
            (None, None) => anyhow::bail!("the size of this machine is unknown: set --models-memory"),
        };
        let n_loaded_max = if models_max == 0 { MODELS_MAX_DEFAULT } else { models_max };
        let cache_ram = budget / CACHE_PART / n_loaded_max as u64;
        let disk_budget = DiskBudget {
            bytes: models.models_cache_size.saturating_mul(1 << 20),
            models_max: if models_max == 0 { entries.len() } else { models_max } as u64,
        };
        let unused_bytes = available.unwrap_or(budget).saturating_sub(budget);
        let commands = WorkerCommands {
            program: worker,
            flags,
            token_file: models.host_token_file.clone(),
            cache_dir: cache_dir.clone(),
            cache_disk_mib: (disk_budget.of_loaded_model() >> 20).max(1),
            cache_ram_mib: (cache_ram >> 20).max(1),
            fit_target_mib: unused_bytes.saturating_add(PROCESS_BYTES) >> 20,
        };
        let swap_wait_max_ms = models.swap_wait_max.saturating_mul(1000);
        let limits = SwapLimits { swap_wait_max_ms, models_max, announce_ms: ANNOUNCE_MS };
        let autoload = if models.no_models_autoload { Autoload::Off } else { Autoload::On };
        let listener = TcpListener::bind(listen).await.with_context(|| format!("cannot listen on {listen}"))?;
        let address = listener.local_addr()?;
        let disk_room = Arc::new(DiskRoom::new(cache_dir, disk_budget));
        let options = OwnerOptions { address, tokens: tokens.clone(), files, commands, disk_room, autoload };
        let (owner, summaries) = Owner::new(options, Swaps::new(limits, budget, entries, 0))?;
        log::line(&format!("warmpath: host listening on http://{address}, {} MiB for models", budget >> 20));
        let tokens = tokens.zip(models.host_token_file);
        Ok(Self { listener, address, tokens, owner, summaries })
    }

    /// Returns the host's URL.
    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Returns the names of the models.
    pub fn models(&self) -> Vec<String> {
        self.owner.model_names()
    }

    /// Serves until `ends`, and then until the last worker has ended; `kill` ends these at once.
    pub async fn serve(self, ends: CancellationToken, kill: CancellationToken) -> anyhow::Result<()> {
        let Self { listener, address, tokens, owner, summaries } = self;
        let hosts = AllowedHosts::of_clients(&[], address)?;
        let (requests, inbox) = mpsc::channel(REQUESTS_MAX);
        let streams_end = CancellationToken::new();
        let api = Api {
            owner: requests,
            summary: summaries,
            hosts,
            tokens: tokens.as_ref().map(|(tokens, _)| Arc::clone(tokens)),
            ends: streams_end.clone(),
        };
        let routes = api::routes(api);
        let options = ListenerOptions {
            tls: None,
            head_timeout: CLIENT_TIMEOUT,
            head_bytes_max: HEAD_BYTES_MAX,
            reader_timeout: CLIENT_TIMEOUT,
            connections: Connections::new(CONNECTIONS_MAX),
        };
        let (close, closed) = watch::channel(false);
        let owned = async {
            owner.run(inbox, ends, kill).await;
            streams_end.cancel();
            close.send_replace(true);
        };
        let watch = async {
            match tokens {
                Some((tokens, file)) => tokens.watch(file, || ()).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            _ = async { tokio::join!(listen::serve(listener, routes, options, closed), owned) } => {}
            () = watch => {}
        }
        Ok(())
    }
}

/// Runs a host until SIGINT or SIGTERM; a second signal kills its workers.
///
/// Errors: those of [`Host::bind`]; no models, flags of a router, a missing program.
pub async fn run(settings: Settings, flags: &Flags) -> anyhow::Result<()> {
    let mut stops = StopSignals::listen().context("listening for SIGTERM and SIGINT")?;
    ensure!(flags.router.is_empty(), "a host starts no router: `--` and what follows belongs to `warmpath serve`");
    let worker_flags = &flags.workers;
    ensure!(
        settings.models.needs_host(worker_flags),
        "name the models: --models-dir DIR, --models-preset FILE, or -hf OWNER/NAME more than once"
    );
    let worker = programs::path(settings.bin_dir.as_deref(), "warmpath-worker")?;
    let host = Host::bind(settings.models, worker_flags, worker).await?;
    let (ends, kill) = (CancellationToken::new(), CancellationToken::new());
    let signals = async {
        for (token, line) in [(&ends, "warmpath: stopping"), (&kill, "warmpath: stopping at once")] {
            stops.next().await;
            log::line(line);
            token.cancel();
        }
        std::future::pending::<()>().await;
    };
    tokio::select! {
        result = host.serve(ends.clone(), kill.clone()) => result,
        () = signals => Ok(()),
    }
}

/// Returns the folder in which models keep KV state.
///
/// Errors: no folder is named, and there is no home folder.
fn cache_dir(dir_of_flag: Option<PathBuf>) -> anyhow::Result<PathBuf> {
    let absolute = |name: &str| std::env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let cache = absolute("XDG_CACHE_HOME").or_else(|| absolute("HOME").map(|home| home.join(".cache")));
    let dir = dir_of_flag.or_else(|| cache.map(|cache| cache.join("warmpath").join("kv")));
    let dir = dir.context("there is no home folder for KV state: set --models-cache")?;
    std::path::absolute(Path::new(&dir)).context("--models-cache")
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Debug, Parser)]
    struct CommandLine {
        #[command(flatten)]
        models: ModelsFlags,
    }

    #[tokio::test]
    async fn an_address_that_other_machines_reach_needs_a_token_and_must_be_one() {
        let refusal = async |flags: &str| {
            let words = ["host", "--models-dir", "/nowhere"].into_iter().chain(flags.split_whitespace());
            let CommandLine { models } = CommandLine::parse_from(words);
            match Host::bind(models, &[], "warmpath-worker".into()).await {
                Ok(_) => String::new(),
                Err(error) => format!("{error:#}"),
            }
        };
        let open = refusal("--host-listen 192.0.2.1:9190").await;
        assert!(open.contains("needs --host-token-file"), "{open}");
        let every = refusal("--host-listen 0.0.0.0:9190 --host-token-file /nowhere/token").await;
        assert!(every.contains("the address at which routers reach"), "{every}");
        let missing = refusal("--host-listen 192.0.2.1:9190 --host-token-file /nowhere/token").await;
        assert!(missing.contains("--host-token-file") && missing.contains("cannot be read"), "{missing}");
    }
}
