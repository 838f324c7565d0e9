//! Other gateways and servers, started beside ours: nginx, SMG, llama-server; and wrk, which drives load.
//!
//! What is measured is in `overhead` and `fleets`; `scripts/` builds or fetches the programs. Each program gets a free
//! port and a temporary folder.

use std::collections::BTreeSet;
use std::fmt;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::Context as _;
use clap::ValueEnum;
use tempfile::TempDir;

use crate::client::{ChatClient, Message};
use crate::fleet::{Server, free_addresses};

/// Root of the source tree.
pub const ROOT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/..");
/// Time in which a model must be loaded, and in which its server must end.
pub const LOAD_TIMEOUT: Duration = Duration::from_secs(300);
/// Time in which a peer must respond for the first time.
const READY_TIMEOUT: Duration = Duration::from_secs(120);
/// Time in which a peer must end after SIGTERM.
const END_TIMEOUT: Duration = Duration::from_secs(10);
/// Maximum number of idle connections that nginx keeps to its workers; no benchmark uses as many at a time.
const NGINX_KEEPALIVE: u32 = 256;

/// A gateway that is compared with the router.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, ValueEnum)]
pub enum Gateway {
    /// nginx, in turn.
    NginxRoundRobin,
    /// nginx, to the worker with the fewest connections.
    NginxLeastConn,
    /// SMG with its policy `cache_aware`.
    Smg,
}

impl Gateway {
    /// All gateways.
    pub const ALL: [Self; 3] = [Self::NginxRoundRobin, Self::NginxLeastConn, Self::Smg];

    /// Returns the program that serves as this gateway.
    pub fn program(self) -> Program {
        match self {
            Self::NginxRoundRobin | Self::NginxLeastConn => Program::Nginx,
            Self::Smg => Program::Smg,
        }
    }
}

impl fmt::Display for Gateway {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::NginxRoundRobin => "nginx, round robin",
            Self::NginxLeastConn => "nginx, least_conn",
            Self::Smg => "SMG, cache_aware",
        })
    }
}

/// A program that a script fetches or builds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Program {
    /// nginx.
    Nginx,
    /// SMG.
    Smg,
    /// The load generator wrk.
    Wrk,
    /// llama-server.
    LlamaServer,
    /// Measurement of other routers' prefix indexes.
    Indexes,
}

impl Program {
    /// Returns the name for people.
    pub fn name(self) -> &'static str {
        match self {
            Self::Nginx => "nginx",
            Self::Smg => "SMG",
            Self::Wrk => "wrk",
            Self::LlamaServer => "llama-server",
            Self::Indexes => "kv-index and dynamo-kv-router",
        }
    }

    /// Returns the command that fetches or builds the program where it is missing or out of date.
    pub fn script(self) -> Command {
        let (name, part) = match self {
            Self::Nginx => ("routing-peers.sh", Some("nginx")),
            Self::Smg => ("routing-peers.sh", Some("smg")),
            Self::Wrk => ("routing-peers.sh", Some("wrk")),
            Self::LlamaServer => ("llama-server.sh", None),
            Self::Indexes => ("index-peers.sh", None),
        };
        let mut command = Command::new(Path::new(ROOT).join("scripts").join(name));
        command.args(part);
        command
    }

    /// Returns the command that prints the version; absent where no program has one for all.
    pub fn version(self) -> Option<Command> {
        let (program, args): (&str, &[&str]) = match self {
            Self::Nginx => ("nginx", &["-v"]),
            Self::Smg => (
                "smg/bin/python",
                &["-c", "import importlib.metadata; print('smg', importlib.metadata.version('smg'))"],
            ),
            Self::Wrk => ("wrk", &["-v"]),
            Self::LlamaServer => ("llama-server/llama-server", &["--version"]),
            Self::Indexes => return None,
        };
        let mut command = Command::new(peer(program));
        command.args(args).env("LD_LIBRARY_PATH", peer("routing-lib"));
        Some(command)
    }

    fn install(self) -> anyhow::Result<()> {
        let mut script = self.script();
        let status = script.status().with_context(|| format!("starting {script:?}"))?;
        anyhow::ensure!(status.success(), "{script:?} ended with {status}");
        Ok(())
    }
}

/// Fetches the programs of these gateways where they are missing.
///
/// Errors: the script fails; its output has been printed.
pub fn fetch(gateways: &[Gateway]) -> anyhow::Result<()> {
    let programs: BTreeSet<Program> = gateways.iter().map(|gateway| gateway.program()).collect();
    programs.into_iter().try_for_each(Program::install)
}

/// Returns the path of llama-server, and builds it first where it is missing or out of date.
///
/// Errors: the script fails; its output has been printed.
pub fn llama_server() -> anyhow::Result<PathBuf> {
    Program::LlamaServer.install()?;
    Ok(peer("llama-server/llama-server"))
}

/// Returns the setting of llama-server that the worker's self-test chose on the same machine with the same library:
/// split buffers, and flash attention if it pays. The test weighs a request of many answer tokens and few new prompt
/// tokens, so the setting may be slower than the defaults at prefill. `worker_log` is the log of a worker that is
/// ready.
///
/// Errors: the log does not contain the settings.
pub fn llama_server_chosen(worker_log: &str) -> anyhow::Result<[String; 3]> {
    let setting = settled(worker_log).context("the worker's log does not say on what it has settled")?;
    let flash_attn = if setting.contains("flash_attn=true") { "on" } else { "off" };
    Ok(["--flash-attn", flash_attn, "--no-kv-unified"].map(str::to_owned))
}

/// Returns a worker's settings of attention and buffer, as in its log.
pub fn settled(worker_log: &str) -> Option<String> {
    let ready = worker_log.lines().find(|line| line.contains(" ready model="))?;
    let is_wanted = |field: &&str| field.starts_with("flash_attn=") || field.starts_with("kv_unified=");
    Some(ready.split_whitespace().filter(is_wanted).collect::<Vec<_>>().join(" "))
}

/// Fetches wrk where it is missing.
///
/// Errors: the script fails; its output has been printed.
pub fn fetch_wrk() -> anyhow::Result<()> {
    Program::Wrk.install()
}

/// Returns the command of wrk, with its library path.
pub fn wrk() -> Command {
    let mut command = Command::new(peer("wrk"));
    command.env("LD_LIBRARY_PATH", peer("routing-lib"));
    command
}

fn peer(name: &str) -> PathBuf {
    Path::new(ROOT).join("target/peers").join(name)
}

/// A running gateway and the folder that it uses.
#[derive(Debug)]
pub struct RunningGateway {
    server: Server,
    _folder: TempDir,
}

impl Gateway {
    /// Starts the gateway in front of `workers` and waits until a request through it gets a response with 200.
    ///
    /// Errors: it does not start or does not respond; its log is in the message.
    pub async fn start(self, workers: &[SocketAddr]) -> anyhow::Result<RunningGateway> {
        let [address, admin_address] = free_addresses()?;
        let folder = tempfile::tempdir()?;
        let mut server = match self {
            Self::NginxRoundRobin => nginx(address, folder.path(), "", workers).await?,
            Self::NginxLeastConn => nginx(address, folder.path(), "least_conn;", workers).await?,
            Self::Smg => smg(address, admin_address, workers).await?,
        };
        server.answers("/v1/models", READY_TIMEOUT).await?;
        Ok(RunningGateway { server, _folder: folder })
    }
}

impl RunningGateway {
    /// Returns `http://host:port`.
    pub fn base_url(&self) -> String {
        self.server.base_url()
    }

    /// Ends the gateway and the processes that it started.
    ///
    /// Errors: it does not end.
    pub async fn stop(mut self) -> anyhow::Result<()> {
        self.server.terminate(END_TIMEOUT).await.map(drop)
    }
}

async fn nginx(address: SocketAddr, folder: &Path, policy: &str, workers: &[SocketAddr]) -> anyhow::Result<Server> {
    let config = folder.join("nginx.conf");
    std::fs::write(&config, nginx_config(address, folder, policy, workers))?;
    let args = ["-p", &folder.display().to_string(), "-c", &config.display().to_string()].map(str::to_owned);
    Server::start_at("nginx", &peer("nginx"), &args, address).await
}

/// Returns a configuration with persistent connections to the workers, bodies in memory and unbuffered responses.
///
/// llama-server closes a persistent connection after 5 s without a request; if nginx uses one at that moment, it tries
/// again.
fn nginx_config(address: SocketAddr, folder: &Path, policy: &str, workers: &[SocketAddr]) -> String {
    let servers: String = workers.iter().map(|worker| format!("server {worker};")).collect();
    let folder = folder.display();
    format!(
        "daemon off; worker_processes auto; pid {folder}/pid; error_log stderr warn;
events {{ worker_connections 4096; }}
http {{
  access_log off; client_max_body_size 64m; client_body_buffer_size 1m; keepalive_requests 1000000;
  client_body_temp_path {folder}/body; proxy_temp_path {folder}/proxy; fastcgi_temp_path {folder}/fastcgi;
  uwsgi_temp_path {folder}/uwsgi; scgi_temp_path {folder}/scgi;
  upstream workers {{ {policy} {servers} keepalive {NGINX_KEEPALIVE}; keepalive_requests 1000000; keepalive_timeout 3s; }}
  server {{
    listen {address};
    location / {{
      proxy_pass http://workers; proxy_http_version 1.1; proxy_set_header Connection \"\";
      proxy_buffering off; proxy_read_timeout 600s; proxy_next_upstream error timeout non_idempotent;
    }}
  }}
}}
"
    )
}

async fn smg(address: SocketAddr, admin_address: SocketAddr, workers: &[SocketAddr]) -> anyhow::Result<Server> {
    let mut args =
        ["-m", "smg", "launch", "--policy", "cache_aware", "--host", "127.0.0.1"].map(str::to_owned).to_vec();
    args.extend(["--port".to_owned(), address.port().to_string()]);
    args.extend(["--prometheus-port".to_owned(), admin_address.port().to_string()]);
    args.extend(["--log-level", "error", "--worker-urls"].map(str::to_owned));
    args.extend(workers.iter().map(|worker| format!("http://{worker}")));
    Server::start_at("smg", &peer("smg/bin/python"), &args, address).await
}

/// Starts a worker or llama-server, waits until it has loaded its model, and sends it a first request, so that nothing
/// is measured on first use.
///
/// Errors: it does not start or does not respond; its log is in the message.
pub async fn start_warm(name: &str, program: &Path, args: &[String]) -> anyhow::Result<(Server, ChatClient)> {
    let mut server = Server::start(name, program, args).await?;
    server.answers("/health", LOAD_TIMEOUT).await?;
    let client = ChatClient::new(&server.base_url(), None)?;
    client.ask_exactly(&[Message::new("user", "ready?")], 2).await.context("asking for a first word")?;
    Ok((server, client))
}

/// Starts llama-server on `model` with further flags and waits until it responds.
///
/// Errors: it does not start or does not respond; its log is in the message.
pub async fn start_llama_server(program: &Path, model: &Path, flags: &[String]) -> anyhow::Result<Server> {
    let mut args = ["--host", "127.0.0.1", "--port", "0", "--model"].map(str::to_owned).to_vec();
    args.push(model.display().to_string());
    args.extend_from_slice(flags);
    let mut server = Server::start("llama-server", program, &args).await?;
    server.answers("/health", READY_TIMEOUT).await?;
    Ok(server)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn llama_server_gets_flash_attention_where_the_worker_has_settled_on_it() {
        let log = "INFO engine: chosen flash_attn=true kv_unified=true\n  INFO start: ready model=\"b\" flash_attn=false kv_unified=true took_s=1\n";
        assert_eq!(settled(log).as_deref(), Some("flash_attn=false kv_unified=true"));
        let chosen = |log: &str| llama_server_chosen(log).map(|chosen| chosen.join(" ")).ok();
        assert_eq!(chosen(log).as_deref(), Some("--flash-attn off --no-kv-unified"));
        assert_eq!(chosen(&log.replace("false", "true")).as_deref(), Some("--flash-attn on --no-kv-unified"));
        assert_eq!(chosen("listening on http://127.0.0.1:1"), None);
    }

    #[test]
    fn nginx_is_told_of_every_worker() {
        let addresses: Vec<SocketAddr> =
            ["127.0.0.1:1", "127.0.0.1:2"].iter().map(|address| address.parse().expect("an address")).collect();
        let config =
            nginx_config("127.0.0.1:9".parse().expect("an address"), Path::new("/f"), "least_conn;", &addresses);
        assert!(
            config.contains("upstream workers { least_conn; server 127.0.0.1:1;server 127.0.0.1:2; keepalive"),
            "{config}"
        );
        assert!(config.contains("listen 127.0.0.1:9;") && config.contains("pid /f/pid;"), "{config}");
    }
}
