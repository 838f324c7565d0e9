//! A local fleet: workers and routers as child processes on loopback, which are ended when their owner is dropped.

use std::collections::VecDeque;
use std::net::{SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use clap::Args;
use serde_json::Value;
use tokio::io::{AsyncBufReadExt as _, BufReader};
use tokio::process::{Child, Command};
use tokio::sync::oneshot;

use crate::model::real::ModelChoice;

/// Number of lines of a child's log that are kept for error messages.
const LOG_LINES_MAX: usize = 200;
/// Time in which a child must bind its address; loading a model comes after that.
const BIND_TIMEOUT: Duration = Duration::from_secs(60);
/// Time between two checks of `/readyz`.
const READY_POLL: Duration = Duration::from_millis(20);

/// One child process that serves HTTP.
#[derive(Debug)]
pub struct Server {
    name: String,
    child: Child,
    address: SocketAddr,
    admin: Option<SocketAddr>,
    log: Log,
}

/// Last lines of a child's log. The lock guards these lines and is never held across an await.
#[derive(Debug, Clone, Default)]
struct Log(Arc<Mutex<VecDeque<String>>>);

impl Log {
    fn push(&self, line: String) {
        let mut lines = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if lines.len() == LOG_LINES_MAX {
            lines.pop_front();
        }
        lines.push_back(line);
    }

    fn text(&self) -> String {
        let lines = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        lines.iter().map(|line| format!("  {line}\n")).collect()
    }
}

impl Server {
    /// Starts `program` and waits until it logs the address on which it listens; a router also logs that of its admin
    /// listener.
    ///
    /// Errors: the program cannot be started, ends, or does not log an address within a minute; its log is in the
    /// message.
    pub async fn start(name: &str, program: &Path, args: &[String]) -> anyhow::Result<Self> {
        let Spawned { child, log, bound, admin } = spawn(program, args)?;
        match tokio::time::timeout(BIND_TIMEOUT, bound).await {
            Ok(Ok(address)) => {
                let wants_admin = args.iter().any(|arg| arg == "--admin-listen");
                let admin = if wants_admin { tokio::time::timeout(BIND_TIMEOUT, admin).await?.ok() } else { None };
                Ok(Self { name: name.to_owned(), child, address, admin, log })
            }
            _ => bail!("{name} did not start to listen; its log:\n{}", log.text()),
        }
    }

    /// Starts `program`, whose flags make it listen on `address`; it need not log the address.
    ///
    /// Errors: the program cannot be started.
    pub async fn start_at(name: &str, program: &Path, args: &[String], address: SocketAddr) -> anyhow::Result<Self> {
        let Spawned { child, log, .. } = spawn(program, args)?;
        Ok(Self { name: name.to_owned(), child, address, admin: None, log })
    }

    /// Returns `http://host:port`.
    pub fn base_url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Returns the address on which it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Returns `http://host:port` of the admin listener.
    ///
    /// Errors: the program was started without `--admin-listen`.
    pub fn admin_url(&self) -> anyhow::Result<String> {
        let admin = self.admin.with_context(|| format!("{} has no admin listener", self.name))?;
        Ok(format!("http://{admin}"))
    }

    /// Returns the state of the fleet that a router reports.
    ///
    /// Errors: there is no admin listener, or its response is no JSON with status 200.
    pub async fn fleet_state(&self, http: &reqwest::Client) -> anyhow::Result<Value> {
        let url = format!("{}/internal/v1/fleet", self.admin_url()?);
        Ok(http.get(url).send().await?.error_for_status()?.json().await?)
    }

    /// Returns the process id, while the process runs.
    pub fn pid(&self) -> Option<u32> {
        self.child.id()
    }

    /// Returns the last lines of the log.
    pub fn log(&self) -> String {
        self.log.text()
    }

    /// Waits until `/readyz` responds with 200.
    ///
    /// Errors: the process ends first, or `timeout` passes; its log is in the message.
    pub async fn ready(&mut self, timeout: Duration) -> anyhow::Result<()> {
        self.answers("/readyz", timeout).await
    }

    /// Waits until `path` responds with 200.
    ///
    /// Errors: the process ends first, or `timeout` passes; its log is in the message.
    pub async fn answers(&mut self, path: &str, timeout: Duration) -> anyhow::Result<()> {
        let url = format!("{}{path}", self.base_url());
        let http = reqwest::Client::builder().no_proxy().timeout(timeout).build()?;
        let start_time = Instant::now();
        loop {
            self.ensure_alive()?;
            if http.get(&url).send().await.is_ok_and(|response| response.status().is_success()) {
                return Ok(());
            }
            if start_time.elapsed() > timeout {
                bail!("{} was not ready after {timeout:?}; its log:\n{}", self.name, self.log());
            }
            tokio::time::sleep(READY_POLL).await;
        }
    }

    /// Kills the process, as a crash would, and waits for its end.
    pub async fn kill(&mut self) -> anyhow::Result<()> {
        self.child.kill().await.with_context(|| format!("killing {}", self.name))
    }

    /// Sends a signal, such as `STOP`, to the process.
    ///
    /// Errors: the process has ended, or the signal cannot be sent.
    pub async fn signal(&self, signal: &str) -> anyhow::Result<()> {
        let pid = self.pid().with_context(|| format!("{} has ended before", self.name))?;
        let status = Command::new("kill").args([&format!("-{signal}"), &pid.to_string()]).status().await?;
        if !status.success() {
            bail!("cannot send SIG{signal} to {}: kill ended with {status}", self.name);
        }
        Ok(())
    }

    /// Returns how the process has ended; `None` while it runs.
    ///
    /// Errors: the system does not know.
    pub fn ended(&mut self) -> anyhow::Result<Option<ExitStatus>> {
        self.child.try_wait().with_context(|| format!("asking for the state of {}", self.name))
    }

    /// Checks that the process runs.
    ///
    /// Errors: it has ended; its log is in the message.
    pub fn ensure_alive(&mut self) -> anyhow::Result<()> {
        match self.ended()? {
            None => Ok(()),
            Some(status) => bail!("{} ended with {status}; its log:\n{}", self.name, self.log()),
        }
    }

    /// Sends SIGTERM to the process and waits until it ends.
    ///
    /// Errors: the signal cannot be sent, or the process has not ended after `timeout`; its log is in the message.
    pub async fn terminate(&mut self, timeout: Duration) -> anyhow::Result<ExitStatus> {
        self.signal("TERM").await?;
        match tokio::time::timeout(timeout, self.child.wait()).await {
            Ok(status) => Ok(status?),
            Err(_) => bail!("{} had not ended {timeout:?} after SIGTERM; its log:\n{}", self.name, self.log()),
        }
    }

    /// Waits for the process to end by itself.
    pub async fn wait(&mut self) -> anyhow::Result<ExitStatus> {
        self.child.wait().await.with_context(|| format!("waiting for {}", self.name))
    }
}

/// A child process and the addresses in its log.
struct Spawned {
    child: Child,
    log: Log,
    bound: oneshot::Receiver<SocketAddr>,
    admin: oneshot::Receiver<SocketAddr>,
}

fn spawn(program: &Path, args: &[String]) -> anyhow::Result<Spawned> {
    let mut child = Command::new(program)
        .args(args)
        .env("NO_COLOR", "1")
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .with_context(|| format!("starting {}", program.display()))?;
    let stderr = child.stderr.take().context("the child has no stderr")?;
    let log = Log::default();
    let (address_sender, address) = oneshot::channel();
    let (admin_sender, admin) = oneshot::channel();
    tokio::spawn(read_log(BufReader::new(stderr), log.clone(), address_sender, admin_sender));
    Ok(Spawned { child, log, bound: address, admin })
}

async fn read_log(
    stderr: BufReader<tokio::process::ChildStderr>,
    log: Log,
    address_sender: oneshot::Sender<SocketAddr>,
    admin_sender: oneshot::Sender<SocketAddr>,
) {
    let (mut address_sender, mut admin_sender) = (Some(address_sender), Some(admin_sender));
    let mut lines = stderr.lines();
    while let Ok(Some(line)) = lines.next_line().await {
        if let Some(address) = listening_address(&line) {
            let sender = if line.contains("admin") { &mut admin_sender } else { &mut address_sender };
            if let Some(sender) = sender.take() {
                let _ = sender.send(address);
            }
        }
        log.push(line);
    }
}

/// Returns the address in a line that contains `listening on http://ADDRESS`.
fn listening_address(line: &str) -> Option<SocketAddr> {
    let (_, rest) = line.split_once("listening on http://")?;
    let end = rest.find(|c: char| c.is_whitespace() || c == '"').unwrap_or(rest.len());
    rest[..end].parse().ok()
}

/// Programs, model and flags of a fleet.
#[derive(Debug, Clone)]
pub struct FleetSpec {
    /// Folder that contains `warmpath-worker` and `warmpath-router`.
    pub bin_dir: PathBuf,
    /// GGUF file that every worker serves.
    pub model: PathBuf,
    /// Number of workers.
    pub n_workers: usize,
    /// Additional flags of every worker.
    pub worker_args: Vec<String>,
    /// Additional flags of the router.
    pub router_args: Vec<String>,
}

/// Context of a slot in a fleet of [`FleetArgs`]. Units: tokens.
const SLOT_CONTEXT_TOKENS: u32 = 4096;

/// Flags of the fleet that a benchmark starts: workers of one thread each.
#[derive(Debug, Args)]
pub struct FleetArgs {
    /// Model that the workers serve: a GGUF file, `smollm2` (SmolLM2-135M-Instruct, fetched once) or `made` (made by
    /// code).
    #[arg(long, value_name = "FILE|NAME")]
    model: ModelChoice,
    /// Folder that holds warmpath-worker and warmpath-router. The default is this program's folder.
    #[arg(long, value_name = "DIR")]
    bin_dir: Option<PathBuf>,
    /// Workers of the fleet.
    #[arg(long, default_value_t = 3)]
    workers: usize,
    /// Slots of each worker.
    #[arg(long, default_value_t = 3)]
    slots: u16,
}

impl FleetArgs {
    /// Returns the number of workers.
    pub fn n_workers(&self) -> usize {
        self.workers
    }

    /// Returns the fleet whose router gets `router_args`.
    ///
    /// Errors: no folder is given and that of this program cannot be determined; the model cannot be fetched or made.
    pub fn spec(&self, router_args: Vec<String>) -> anyhow::Result<FleetSpec> {
        Ok(FleetSpec {
            bin_dir: bin_dir(self.bin_dir.as_deref())?,
            model: self.model.file()?,
            n_workers: self.workers,
            worker_args: self.flags(),
            router_args,
        })
    }

    /// Returns slots, context and threads as flags of a worker, which llama-server accepts too.
    pub fn flags(&self) -> Vec<String> {
        let ctx_size = u32::from(self.slots) * SLOT_CONTEXT_TOKENS;
        let flags = [("--parallel", u32::from(self.slots)), ("--ctx-size", ctx_size), ("--threads", 1)];
        flags.iter().flat_map(|(flag, value)| [(*flag).to_owned(), value.to_string()]).collect()
    }
}

/// Returns the folder of the programs: the given one, or else that of this program.
///
/// Errors: no folder is given and that of this program cannot be determined.
pub fn bin_dir(folder: Option<&Path>) -> anyhow::Result<PathBuf> {
    match folder {
        Some(folder) => Ok(folder.to_owned()),
        None => Ok(std::env::current_exe()?.parent().context("this program lies in no folder")?.to_owned()),
    }
}

/// Returns different loopback addresses that are not in use.
///
/// Errors: no port is free.
pub fn free_addresses<const N: usize>() -> std::io::Result<[SocketAddr; N]> {
    let listeners = (0..N).map(|_| TcpListener::bind("127.0.0.1:0")).collect::<Result<Vec<_>, _>>()?;
    let mut addresses = [SocketAddr::from(([127, 0, 0, 1], 0)); N];
    for (address, listener) in addresses.iter_mut().zip(&listeners) {
        *address = listener.local_addr()?;
    }
    Ok(addresses)
}

/// Workers and one router in front of them.
#[derive(Debug)]
pub struct Fleet {
    /// Programs, model and flags.
    pub spec: FleetSpec,
    /// The workers.
    pub workers: Vec<Server>,
    /// The router.
    pub router: Server,
}

/// Time in which a model must be loaded.
const LOAD_TIMEOUT: Duration = Duration::from_secs(300);

impl Fleet {
    /// Returns the index of the worker with this name, if the fleet has one.
    pub fn worker_idx(&self, name: &str) -> Option<usize> {
        let idx = name.strip_prefix("worker-")?.parse().ok()?;
        (idx < self.workers.len()).then_some(idx)
    }

    /// Starts workers and router and waits until all are ready.
    ///
    /// Errors: one of them does not start or get ready; those already started are ended.
    pub async fn start(spec: FleetSpec) -> anyhow::Result<Self> {
        let mut workers = Vec::new();
        for worker_idx in 0..spec.n_workers {
            workers.push(start_worker(&spec, worker_idx, "127.0.0.1:0").await?);
        }
        for worker in &mut workers {
            worker.ready(LOAD_TIMEOUT).await?;
        }
        Self::of(spec, workers).await
    }

    /// Starts a router in front of workers that are ready, whatever they serve, and waits until it is ready too.
    ///
    /// Errors: it does not start or does not get ready.
    pub async fn of(spec: FleetSpec, workers: Vec<Server>) -> anyhow::Result<Self> {
        let mut router = start_router(&spec, &workers).await?;
        router.ready(LOAD_TIMEOUT).await?;
        Ok(Self { spec, workers, router })
    }

    /// Starts a further router in front of the same workers, which the caller owns, and waits until it is ready.
    ///
    /// Errors: it does not start or does not get ready.
    pub async fn replica(&self) -> anyhow::Result<Server> {
        let mut router = start_router(&self.spec, &self.workers).await?;
        router.ready(LOAD_TIMEOUT).await?;
        Ok(router)
    }

    /// Ends the router and starts another one with other flags in front of the same workers.
    ///
    /// Errors: it does not start or does not get ready.
    pub async fn restart_router(&mut self, router_args: Vec<String>) -> anyhow::Result<()> {
        self.spec.router_args = router_args;
        self.replace_router().await?;
        self.router.ready(LOAD_TIMEOUT).await
    }

    /// Replaces the router by a new process, which takes requests and is not ready yet.
    ///
    /// Errors: it does not start.
    pub async fn replace_router(&mut self) -> anyhow::Result<()> {
        self.router.kill().await?;
        self.router = start_router(&self.spec, &self.workers).await?;
        Ok(())
    }

    /// Restarts a worker at its old address, and waits until it is ready.
    ///
    /// Errors: it does not start or does not get ready.
    pub async fn restart_worker(&mut self, worker_idx: usize) -> anyhow::Result<()> {
        let address = self.workers[worker_idx].address().to_string();
        self.workers[worker_idx] = start_worker(&self.spec, worker_idx, &address).await?;
        self.workers[worker_idx].ready(LOAD_TIMEOUT).await
    }
}

async fn start_worker(spec: &FleetSpec, worker_idx: usize, listen: &str) -> anyhow::Result<Server> {
    let name = format!("worker-{worker_idx}");
    let mut args = vec!["--model".to_owned(), spec.model.display().to_string()];
    args.extend(["--listen".to_owned(), listen.to_owned(), "--name".to_owned(), name.clone()]);
    args.extend(spec.worker_args.iter().cloned());
    Server::start(&name, &spec.bin_dir.join("warmpath-worker"), &args).await
}

/// Starts a router in front of workers, which takes requests and may not be ready yet.
///
/// Errors: it does not start.
pub async fn start_router(spec: &FleetSpec, workers: &[Server]) -> anyhow::Result<Server> {
    let mut args = Vec::new();
    for flag in ["--listen", "--admin-listen"] {
        args.extend([flag.to_owned(), "127.0.0.1:0".to_owned()]);
    }
    for worker in workers {
        args.extend(["--worker".to_owned(), worker.base_url()]);
    }
    args.extend(spec.router_args.iter().cloned());
    Server::start("router", &spec.bin_dir.join("warmpath-router"), &args).await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_the_address_in_text_and_json_logs() {
        let address = "127.0.0.1:4711".parse().ok();
        assert_eq!(listening_address("2026 INFO warmpath_worker: listening on http://127.0.0.1:4711"), address);
        assert_eq!(listening_address("{\"message\":\"listening on http://127.0.0.1:4711\"}"), address);
        assert_eq!(listening_address("listening on http://127.0.0.1:4711 name=a"), address);
        assert_eq!(listening_address("listening to nobody"), None);
    }

    #[tokio::test]
    async fn a_program_that_gets_sigterm_ends_with_its_own_status() {
        let script = "trap 'exit 7' TERM; echo listening on http://127.0.0.1:9 >&2; while :; do sleep 0.01; done";
        let args = ["-c".to_owned(), script.to_owned()];
        let mut server = Server::start("worker", Path::new("/bin/sh"), &args).await.expect("it logs its address");
        let status = server.terminate(Duration::from_secs(30)).await.expect("it ends");
        assert_eq!(status.code(), Some(7));
    }

    #[tokio::test]
    async fn reports_the_log_of_a_program_that_ends() {
        let args = ["-c".to_owned(), "echo no such model >&2; exit 1".to_owned()];
        let error = Server::start("worker", Path::new("/bin/sh"), &args).await.expect_err("it never listens");
        assert!(error.to_string().contains("no such model"), "{error}");
    }
}
