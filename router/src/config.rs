//! The router's configuration: flags in, checked values out.
//!
//! Each part receives its own struct and nothing else. Not here: the flags themselves (`flags`), values that no flag
//! sets (`limits`).

mod discovery;
mod error;
pub mod flags;
mod limits;
mod web;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use url::Url;
use warmpath_router_core::fleet::membership::MembershipOptions;
use warmpath_router_core::ledger::LedgerOptions;
use warmpath_router_core::overload::retry::{BudgetOptions, RetryOptions};
use warmpath_shell::body::room_bytes;
use warmpath_shell::hosts::AllowedHosts;
use warmpath_shell::image_urls::ImageHost;
use warmpath_shell::tls::{CertFiles, ClientFiles, ServerFiles};
use warmpath_shell::trace::export::TraceConfig;

pub use self::discovery::{
    DiscoveryConfig, DnsName, KubernetesPort, KubernetesService, Scheme, WorkerAddress, WorkerApi, worker_address,
};
pub use self::error::{ConfigError, WorkerUrlError};
use self::flags::Flags;
pub use self::limits::*;
pub use self::web::{Cors, WebConfig};

/// Bytes per millisecond of a bandwidth of 1 Gbit/s.
const BYTES_PER_MS_OF_GBIT: f64 = 125_000.0;

/// Configuration of a router.
#[derive(Debug, Clone)]
pub struct Config {
    /// Address for clients.
    pub listen: SocketAddr,
    /// Address for operators.
    pub admin_listen: SocketAddr,
    /// Time that running responses get to finish after SIGTERM.
    pub drain_timeout: Duration,
    /// Sources of worker addresses.
    pub discovery: DiscoveryConfig,
    /// Settings of the fleet.
    pub fleet: FleetConfig,
    /// File of the API keys that clients must present; `None` if no key is required.
    pub keys_file: Option<PathBuf>,
    /// TLS files of the listener for clients; `None` for plain HTTP.
    pub tls: Option<ServerFiles>,
    /// Settings for browsers.
    pub web: WebConfig,
    /// Longest time for a request's head, including the idle time before it.
    pub head_timeout: Duration,
    /// Most connections of clients at a time.
    pub connections_max: usize,
    /// Host names by which clients may address this router.
    pub allowed_hosts: AllowedHosts,
    /// Host names by which operators may address it.
    pub admin_allowed_hosts: AllowedHosts,
    /// Destination of traces; `None` if there are no traces.
    pub trace: Option<TraceConfig>,
    /// Settings of requests.
    pub requests: RequestConfig,
}

/// Settings of the fleet and its connections.
#[derive(Debug, Clone)]
pub struct FleetConfig {
    /// Hosts, whose workers join the fleet.
    pub hosts: Vec<WorkerAddress>,
    /// Limits on the fleet's members.
    pub membership: MembershipOptions,
    /// Vocabularies for stock servers.
    pub vocabularies: Vec<VocabularyFile>,
    /// Most memory of the prefix index. Units: bytes.
    pub index_bytes_max: usize,
    /// Settings of the routing decision.
    pub dispatch: LedgerOptions,
    /// Longest time after the start in which requests wait for the first contact with all workers.
    pub first_contact_timeout: Duration,
    /// Longest time to establish a connection to a worker, TLS included.
    pub connect_timeout: Duration,
    /// Files of the keys that are sent to stock servers.
    pub worker_keys: Vec<WorkerKeyFile>,
    /// File of the tokens that are sent to workers; `None` if they require none.
    pub token_file: Option<PathBuf>,
    /// TLS files for connections to workers.
    pub tls: ClientFiles,
    /// Settings of the trial of downloaded vocabularies.
    pub trial: TrialConfig,
}

/// Settings of the process that tries a downloaded vocabulary.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TrialConfig {
    /// Program to start: this one.
    pub program: PathBuf,
    /// Longest time that the process may take.
    pub timeout: Duration,
}

impl Default for TrialConfig {
    fn default() -> Self {
        Self { program: own_program(), timeout: VOCABULARY_TRIAL_TIMEOUT }
    }
}

/// Returns a path to this program that stays valid when another release replaces the file.
fn own_program() -> PathBuf {
    let running = PathBuf::from("/proc/self/exe");
    if running.exists() { running } else { std::env::current_exe().unwrap_or(running) }
}

/// A GGUF file with the vocabulary of stock servers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VocabularyFile {
    /// Name of the model that the file is for; `None` if it is for every model.
    pub name: Option<String>,
    /// Path of the file.
    pub path: PathBuf,
}

/// A file with the key of one or all stock servers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WorkerKeyFile {
    /// Server that the key is for; `None` for every stock server without a key of its own.
    pub url: Option<Url>,
    /// Path of the file.
    pub path: PathBuf,
}

/// Limits on requests.
#[derive(Debug, Clone)]
pub struct RequestConfig {
    /// Most requests at a time.
    pub requests_max: usize,
    /// Longest body. Units: bytes.
    pub body_bytes_max: usize,
    /// Longest time for a body to arrive.
    pub body_timeout: Duration,
    /// Most memory of request bodies. Units: bytes.
    pub body_memory_bytes_max: usize,
    /// Limits on the attempts at one request.
    pub retry: RetryOptions,
    /// Limits on the retries of all requests together.
    pub retry_budget: BudgetOptions,
    /// Most times that a stream is continued at another worker.
    pub failover_max: u32,
    /// Most requests of one model that wait in the router.
    pub queue_max: usize,
    /// Longest time after its arrival that a request may wait there.
    pub queue_timeout: Duration,
    /// Longest time after its arrival that a request is held while its model is loading.
    pub wait: Duration,
    /// Whether a model name that no worker has means the only model.
    pub any_model_name: bool,
    /// Hosts from which images are fetched.
    pub image_url_hosts: Vec<ImageHost>,
    /// Longest time until a worker begins its response.
    pub response_timeout: Duration,
    /// Longest pause within a response, both of the worker that sends it and of the client that reads it.
    pub idle_timeout: Duration,
}

/// Returns the configuration that the flags describe.
///
/// Errors: any [`ConfigError`]; it names the flag.
pub fn resolve(flags: Flags) -> Result<Config, ConfigError> {
    at_least_one("--attempts-max", flags.attempts_max as usize)?;
    at_least_one("--requests-max", flags.requests_max)?;
    at_least_one("--body-max", flags.body_max)?;
    if !(0.0..=1.0).contains(&flags.retry_budget) {
        return Err(ConfigError::Range { flag: "--retry-budget", range: "a share, 0 to 1" });
    }
    if flags.kv_gbits.is_some_and(|gbits| !gbits.is_finite() || gbits <= 0.0) {
        return Err(ConfigError::Range { flag: "--kv-gbits", range: "a bandwidth, more than 0" });
    }
    let index_bytes_max = flags.index_max.checked_mul(1 << 20);
    Ok(Config {
        listen: flags.listen,
        admin_listen: flags.admin_listen,
        drain_timeout: seconds("--drain-timeout", flags.drain_timeout)?,
        discovery: discovery::resolve(&flags)?,
        fleet: FleetConfig {
            hosts: discovery::hosts(&flags.hosts)?,
            membership: MembershipOptions { workers_max: WORKERS_MAX, linger: LINGER, vacancy: VACANCY },
            vocabularies: flags.vocabularies.iter().map(|text| vocabulary_file(text)).collect::<Result<_, _>>()?,
            index_bytes_max: index_bytes_max
                .ok_or(ConfigError::Range { flag: "--index-max", range: "a size that a machine can address" })?,
            dispatch: LedgerOptions {
                policy: flags.policy,
                worker_wait_max: Some(seconds("--worker-wait-max", flags.worker_wait_max)?),
                kv_bytes_per_ms: flags.kv_gbits.map(|gbits| gbits * BYTES_PER_MS_OF_GBIT),
            },
            first_contact_timeout: FIRST_CONTACT_TIMEOUT,
            connect_timeout: seconds("--connect-timeout", flags.connect_timeout)?,
            worker_keys: flags.worker_key_files.iter().map(|text| worker_key_file(text)).collect::<Result<_, _>>()?,
            token_file: flags.fleet_token_file,
            tls: ClientFiles { ca: flags.worker_ca, own: CertFiles::of(flags.worker_cert, flags.worker_key) },
            trial: TrialConfig::default(),
        },
        keys_file: flags.api_keys_file,
        tls: flags.tls.files(),
        web: WebConfig { cors: web::cors(&flags.cors_origins)?, chat_page: flags.ui },
        head_timeout: seconds("--head-timeout", flags.head_timeout)?,
        connections_max: flags.listener.connections_max(),
        allowed_hosts: flags.listener.allowed_hosts(flags.listen)?,
        admin_allowed_hosts: flags.listener.admin_allowed_hosts()?,
        trace: flags.trace.config(),
        requests: RequestConfig {
            requests_max: flags.requests_max,
            body_bytes_max: flags.body_max,
            body_timeout: seconds("--body-timeout", flags.body_timeout)?,
            body_memory_bytes_max: room_bytes(flags.body_max),
            retry: RetryOptions { attempts_max: flags.attempts_max, elapsed_max: RETRY_TIMEOUT },
            retry_budget: BudgetOptions { per_request: flags.retry_budget, ..BudgetOptions::default() },
            failover_max: flags.failover_max,
            queue_max: flags.queue_max,
            queue_timeout: seconds("--queue-timeout", flags.queue_timeout)?,
            wait: seconds("--wait", flags.wait)?,
            any_model_name: flags.any_model_name,
            image_url_hosts: flags.images.image_url_hosts,
            response_timeout: seconds("--response-timeout", flags.response_timeout)?,
            idle_timeout: seconds("--idle-timeout", flags.idle_timeout)?,
        },
    })
}

/// Longest time that a flag may set. Units: seconds. Source: own choice: 30 years; a `Duration` holds it, and so does a
/// point in time that far away.
const SECONDS_MAX: f64 = 1e9;

fn seconds(flag: &'static str, value: f64) -> Result<Duration, ConfigError> {
    if (0.0..=SECONDS_MAX).contains(&value) {
        Ok(Duration::from_secs_f64(value))
    } else {
        Err(ConfigError::Range { flag, range: "a number of seconds, 0 or more" })
    }
}

fn at_least_one(flag: &'static str, value: usize) -> Result<(), ConfigError> {
    if value > 0 { Ok(()) } else { Err(ConfigError::Range { flag, range: "1 or more" }) }
}

fn vocabulary_file(text: &str) -> Result<VocabularyFile, ConfigError> {
    let (name, path) = text.split_once('=').map_or((None, text), |(name, path)| (Some(name.to_owned()), path));
    if path.is_empty() || name.as_ref().is_some_and(String::is_empty) {
        return Err(ConfigError::Vocabulary { text: text.to_owned() });
    }
    Ok(VocabularyFile { name, path: path.into() })
}

fn worker_key_file(text: &str) -> Result<WorkerKeyFile, ConfigError> {
    // A file name may contain the equals sign, a worker's URL cannot.
    let parts = text.split_once('=').filter(|(url, _)| url.contains("://"));
    let (url, path) = parts.map_or((None, text), |(url, path)| (Some(url), path));
    let refuse = || ConfigError::WorkerKeyFile { text: discovery::shown(url.unwrap_or_default()) };
    let url = url.map(worker_address).transpose().map_err(|_| refuse())?.map(|worker| worker.url);
    if path.is_empty() { Err(refuse()) } else { Ok(WorkerKeyFile { url, path: path.into() }) }
}

#[cfg(test)]
mod tests;
