//! The servers that are compared: the worker and llama-server, each started with the flags of its settings, and their
//! inspection.
//!
//! The requests are made in `traffic`, `throughput` and `state`. Every run gets a new process, so that its cache is
//! really cold, with the same model, slots, threads and context.

use std::path::PathBuf;
use std::sync::Arc;

use anyhow::Context as _;
use clap::{Args, ValueEnum};
use serde_json::Value;
use tempfile::TempDir;

use crate::client::ChatClient;
use crate::fleet::{Server, bin_dir};
use crate::model::real::ModelChoice;
use crate::servers::peers::{self, LOAD_TIMEOUT};

/// Flags of the servers that a benchmark starts.
#[derive(Debug, Args)]
pub struct ServerArgs {
    /// Model that every server serves: a GGUF file, `smollm2` (SmolLM2-135M-Instruct, fetched once) or `made` (made by
    /// code).
    #[arg(long, value_name = "FILE|NAME")]
    pub model: ModelChoice,
    /// Server to compare with; it is built first if it is missing. The default is to measure only the worker.
    #[arg(long, value_name = "PEER")]
    against: Option<Peer>,
    /// Folder that holds warmpath-worker. The default is this program's folder.
    #[arg(long, value_name = "DIR")]
    bin_dir: Option<PathBuf>,
    /// Threads of each server.
    #[arg(long, default_value_t = 2)]
    threads: u16,
}

/// A server to compare with.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Peer {
    /// llama.cpp's own server.
    LlamaServer,
}

impl ServerArgs {
    /// Returns the programs, with an empty cache of the self-test; the setting of llama-server is not chosen yet.
    ///
    /// Errors: a program or the model cannot be built, fetched or found.
    pub fn programs(&self) -> anyhow::Result<Programs> {
        Ok(Programs {
            worker: bin_dir(self.bin_dir.as_deref())?.join("warmpath-worker"),
            peer: self.against.map(|Peer::LlamaServer| peers::llama_server()).transpose()?,
            peer_chosen: Vec::new(),
            model: self.model.file()?,
            threads: self.threads,
            self_test_cache: Arc::new(tempfile::tempdir()?),
        })
    }
}

/// One of the servers that are compared, with its settings.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Contender {
    /// `warmpath-worker` at its defaults.
    Worker,
    /// `warmpath-worker --disable-prefix-cache`.
    WorkerUncached,
    /// llama-server with the setting that the worker's self-test chose.
    PeerChosen,
    /// llama-server at its defaults.
    PeerDefaults,
}

impl Contender {
    /// Returns the name in tables.
    pub fn name(self) -> &'static str {
        match self {
            Self::Worker => "warmpath-worker",
            Self::WorkerUncached => "warmpath-worker, cache off",
            Self::PeerChosen => "llama-server, chosen",
            Self::PeerDefaults => "llama-server, defaults",
        }
    }

    /// Returns whether it is llama-server.
    pub fn is_peer(self) -> bool {
        matches!(self, Self::PeerChosen | Self::PeerDefaults)
    }
}

/// Size of a server, the same for all that are compared.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Setup {
    /// Number of slots.
    pub n_slots: u16,
    /// Context of each slot. Units: tokens.
    pub slot_context_tokens: u32,
    /// Limit of the state kept in RAM, where it is not the server's default. Units: MiB.
    pub cache_ram_mib: Option<u64>,
    /// Folder for state that survives the process; llama-server has none.
    pub cache_disk: Option<PathBuf>,
    /// Further flags of the worker.
    pub worker_flags: Vec<String>,
    /// Further flags of llama-server.
    pub peer_flags: Vec<String>,
}

/// Number of slots that llama-server has by default.
const PEER_SLOTS_DEFAULT: u16 = 4;

/// Returns the command line of `contender`, without port and model.
///
/// With its default of four slots, llama-server has one KV buffer for all of them; with any given number, split ones.
/// `peer_chosen` is the setting that the self-test chose; its RAM cache is on by default.
pub fn settings(contender: Contender, setup: &Setup, peer_chosen: &[String]) -> Vec<String> {
    let mut args: Vec<String> = Vec::new();
    let context_tokens_total = u32::from(setup.n_slots) * setup.slot_context_tokens;
    args.extend(["--ctx-size".to_owned(), context_tokens_total.to_string()]);
    if contender != Contender::PeerDefaults || setup.n_slots != PEER_SLOTS_DEFAULT {
        args.extend(["--parallel".to_owned(), setup.n_slots.to_string()]);
    }
    if contender == Contender::WorkerUncached {
        args.push("--disable-prefix-cache".to_owned());
    }
    if contender == Contender::PeerChosen {
        args.extend_from_slice(peer_chosen);
    }
    if let Some(mib) = setup.cache_ram_mib {
        args.extend(["--cache-ram".to_owned(), mib.to_string()]);
    }
    if let Some(dir) = setup.cache_disk.as_ref().filter(|_| contender == Contender::Worker) {
        args.extend(["--cache-disk".to_owned(), dir.display().to_string()]);
    }
    args.extend_from_slice(if contender.is_peer() { &setup.peer_flags } else { &setup.worker_flags });
    args
}

/// Paths of the programs and of the model.
#[derive(Debug, Clone)]
pub struct Programs {
    /// Path of `warmpath-worker`.
    pub worker: PathBuf,
    /// Path of `llama-server`, if it takes part.
    pub peer: Option<PathBuf>,
    /// Flags of llama-server that the worker's self-test chose.
    pub peer_chosen: Vec<String>,
    /// GGUF file that all serve.
    pub model: PathBuf,
    /// Number of threads of each server.
    pub threads: u16,
    /// Folder of this run in which workers keep the result of their self-test; an older result may be from a busier
    /// machine.
    pub self_test_cache: Arc<TempDir>,
}

impl Programs {
    /// Starts `contender`, waits until it responds, and sends it a first request, so that nothing is measured on first
    /// use.
    ///
    /// Errors: it does not start or does not respond; its log is in the message.
    pub async fn start(&self, contender: Contender, setup: &Setup) -> anyhow::Result<Running> {
        let (program, args) = self.command(contender, setup)?;
        let (server, client) = peers::start_warm(contender.name(), &program, &args).await?;
        Ok(Running { server, client })
    }

    /// Returns the program and the arguments that start `contender` on a free port.
    ///
    /// Errors: no llama-server takes part.
    pub fn command(&self, contender: Contender, setup: &Setup) -> anyhow::Result<(PathBuf, Vec<String>)> {
        let (program, mut args) = if contender.is_peer() {
            let peer = self.peer.clone().context("no llama-server takes part")?;
            (peer, ["--host", "127.0.0.1", "--port", "0"].map(str::to_owned).to_vec())
        } else {
            let cache = format!("XDG_CACHE_HOME={}", self.self_test_cache.path().display());
            let args = [&cache, &self.worker.display().to_string(), "--listen", "127.0.0.1:0"].map(str::to_owned);
            (PathBuf::from("env"), args.to_vec())
        };
        args.extend(["--model".to_owned(), self.model.display().to_string()]);
        args.extend(["--threads".to_owned(), self.threads.to_string()]);
        args.extend(settings(contender, setup, &self.peer_chosen));
        Ok((program, args))
    }
}

/// A running server.
#[derive(Debug)]
pub struct Running {
    server: Server,
    /// Client of the server.
    pub client: ChatClient,
}

impl Running {
    /// Ends the server with SIGTERM and waits for its end.
    ///
    /// Errors: it does not end, or not with status 0.
    pub async fn stop(mut self) -> anyhow::Result<()> {
        let status = self.server.terminate(LOAD_TIMEOUT).await?;
        anyhow::ensure!(status.success(), "it ended with {status}; its log:\n{}", self.server.log());
        Ok(())
    }

    /// Returns the address of its API.
    pub fn base_url(&self) -> String {
        self.server.base_url()
    }

    /// Returns the last lines of its log.
    pub fn log(&self) -> String {
        self.server.log()
    }

    /// Returns the worker's settings of attention and buffer; absent for llama-server.
    pub fn settled(&self) -> Option<String> {
        peers::settled(&self.log())
    }

    /// Returns the resident memory of its process; absent if the system does not report it (other than Linux).
    ///
    /// Units: bytes.
    pub fn rss_bytes(&self) -> Option<u64> {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.server.pid()?)).ok()?;
        let kib = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
        Some(kib.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()? * 1024)
    }

    /// Returns the worker's `/cache`.
    ///
    /// Errors: it does not respond, or not with JSON.
    pub async fn cache(&self) -> anyhow::Result<Value> {
        self.get("/cache").await
    }

    /// Returns whether any slot runs a request.
    ///
    /// Errors: as [`Self::cache`].
    pub async fn is_busy(&self) -> anyhow::Result<bool> {
        let slots = self.get("/slots").await?;
        let slots = slots.as_array().context("/slots lists none")?;
        Ok(slots.iter().any(|slot| slot["is_processing"] == true))
    }

    async fn get(&self, path: &str) -> anyhow::Result<Value> {
        let http = reqwest::Client::builder().no_proxy().timeout(LOAD_TIMEOUT).build()?;
        let response = http.get(format!("{}{path}", self.server.base_url())).send().await?.error_for_status()?;
        Ok(response.json().await?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(contender: Contender, setup: &Setup) -> String {
        settings(contender, setup, &["--chosen".to_owned()]).join(" ")
    }

    #[test]
    fn all_get_the_same_context_and_slots() {
        let setup = Setup { n_slots: 4, slot_context_tokens: 8192, ..Setup::default() };
        assert_eq!(line(Contender::Worker, &setup), "--ctx-size 32768 --parallel 4");
        assert_eq!(line(Contender::WorkerUncached, &setup), "--ctx-size 32768 --parallel 4 --disable-prefix-cache");
        let chosen = "--ctx-size 32768 --parallel 4 --chosen";
        assert_eq!(line(Contender::PeerChosen, &setup), chosen);
    }

    #[test]
    fn the_peers_defaults_name_the_slots_only_where_they_are_not_its_own() {
        let setup = |n_slots| Setup { n_slots, slot_context_tokens: 1024, ..Setup::default() };
        assert_eq!(line(Contender::PeerDefaults, &setup(4)), "--ctx-size 4096");
        assert_eq!(line(Contender::PeerDefaults, &setup(8)), "--ctx-size 8192 --parallel 8");
    }

    #[test]
    fn limits_go_to_all_but_a_folder_and_further_flags_only_to_the_worker() {
        let (cache_disk, worker_flags) = (Some("/d".into()), vec!["--tools-first".to_owned()]);
        let setup = Setup { cache_ram_mib: Some(32), cache_disk, worker_flags, ..Setup::default() };
        assert!(line(Contender::Worker, &setup).ends_with("--cache-ram 32 --cache-disk /d --tools-first"));
        assert!(line(Contender::PeerChosen, &setup).ends_with("--chosen --cache-ram 32"));
    }
}
