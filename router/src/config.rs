//! The router's configuration: flags in, checked values out, and every limit that no flag sets.
//!
//! Not here: the flags themselves (`flags`), what is wrong with them (`error`). The idea: each part receives its own struct and nothing else.

mod cors;
mod discovery;
mod error;
pub mod flags;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use url::Url;
use warmpath_router_core::fleet::membership::MembershipOptions;
use warmpath_router_core::ledger::LedgerOptions;
use warmpath_router_core::overload::admission::AdmissionOptions;
use warmpath_router_core::overload::retry::{BudgetOptions, RetryOptions};
use warmpath_shell::hosts::AllowedHosts;
use warmpath_shell::listen::ConnectionLimits;
use warmpath_shell::tls::{CertFiles, ClientFiles, ServerFiles};
use warmpath_shell::trace::export::TraceConfig;

pub use self::cors::Cors;
pub use self::discovery::{
    DiscoveryConfig, DnsName, KubernetesPort, KubernetesService, Scheme, WorkerAddress, WorkerApi, WorkerUrlError,
    worker_address,
};
pub use self::error::ConfigError;
use self::flags::Flags;

/// Is the most workers that one router follows.
///
/// Source: own choice; a worker costs one connection and one task, the index packs 24 bits of them.
pub const WORKERS_MAX: usize = 10_000;

/// Is the most reports of workers that wait for the tracker; one more makes its subscriber wait, and then the worker.
pub const REPORTS_QUEUED_MAX: usize = 1024;

/// Is how long a summary stream may be silent before it counts as lost.
///
/// Source: the protocol has a worker send at least every second; three may be late.
pub const SUMMARY_IDLE_MAX: Duration = Duration::from_millis(3500);

/// Is how long a snapshot may take from its first frame to its last.
pub const SNAPSHOT_TIMEOUT: Duration = Duration::from_secs(30);

/// Is the most blocks that one worker may claim: 67 million tokens at the default block size.
pub const WORKER_BLOCKS_MAX: usize = 1 << 21;

/// Is the most frames of one summary stream in a second; more is a flood.
///
/// Source: a worker pushes load at most 100 times a second, and blocks at most once a step of a millisecond or more.
pub const SUMMARY_FRAMES_PER_S_MAX: u32 = 5_000;

/// Is the most bytes of one summary stream's updates in a second; more is a flood. A snapshot is bounded by its blocks.
pub const SUMMARY_BYTES_PER_S_MAX: usize = 32 << 20;

/// Is the shortest pause before a lost summary stream is opened again.
pub const RECONNECT_MIN: Duration = Duration::from_millis(50);

/// Is the longest pause before a lost summary stream is opened again.
///
/// Source: a worker that returns must be back within seconds.
pub const RECONNECT_MAX: Duration = Duration::from_secs(1);

/// Is how long a stream must have lasted for the next pause to be short again.
pub const STEADY_AFTER: Duration = Duration::from_secs(5);

/// Longest answer of a worker that loads to a subscriber. Units: bytes.
///
/// Source: the most names that are taken, each with some adapters, at a usual length.
pub const LOADING_BYTES_MAX: usize = 1 << 20;

/// Is the longest vocabulary that is downloaded. Units: bytes.
///
/// Source: the largest of llama.cpp's vocabularies has 16 MB.
pub const VOCABULARY_BYTES_MAX: usize = 256 << 20;

/// Is how long the download of a vocabulary may take.
pub const VOCABULARY_TIMEOUT: Duration = Duration::from_secs(60);

/// How long trying a vocabulary in a process of its own may take.
///
/// Source: own choice: a large one takes a second of a quiet machine; this is a busy one.
pub const VOCABULARY_TRIAL_TIMEOUT: Duration = Duration::from_secs(120);

/// Most memory of that process. Units: bytes of address space.
///
/// Source: own choice: the allocator reserves 1 GiB at once, and the largest of llama.cpp's vocabularies takes a fifth of the rest.
pub const TRIAL_MEMORY_BYTES_MAX: u64 = 2 << 30;

/// Most processor time of that process. Source: own choice, twenty times what the largest of llama.cpp's vocabularies takes.
pub const TRIAL_PROCESSOR_TIME_MAX: Duration = Duration::from_secs(20);

/// Is the most vocabularies that are kept at a time; models beyond are routed by load.
pub const VOCABULARIES_MAX: usize = 32;

/// Is the first pause before a vocabulary that could not be had is tried again; it doubles.
pub const VOCABULARY_RETRY_MIN: Duration = Duration::from_millis(500);

/// Is the longest such pause.
pub const VOCABULARY_RETRY_MAX: Duration = Duration::from_secs(30);

/// Is the longest answer without streaming that is held back until it is whole, so that it can be retried. Units: bytes.
pub const WHOLE_ANSWER_BYTES_MAX: usize = 8 << 20;

/// Longest beginning of an event that waits for the event's end; of a longer one the beginning is passed on. Units: bytes.
///
/// Source: the longest events repeat a request's tools and instructions, or a whole answer: some hundred KiB.
pub const EVENT_HELD_BYTES_MAX: usize = 1 << 20;

/// Time that a worker's words for a refusal may take behind its status; after it the request goes on without them.
///
/// Source: an error object comes with its head; what takes longer is a server in trouble, and the request can be elsewhere.
pub const REFUSAL_TIMEOUT: Duration = Duration::from_secs(2);

/// Is the most prompts that wait to be tokenized; one more is routed by load.
pub const PROMPTS_WAITING_MAX: usize = 256;

/// Is the pause after which the request that is next asks again whether a worker has room.
///
/// Source: a worker pushes its load at most every 10 ms.
pub const QUEUE_POLL: Duration = Duration::from_millis(10);

/// The longest pause before a request asks again whose model every worker has refused for a time.
///
/// Source: own choice: a server that begins anew takes requests again sooner than it had said.
pub const QUEUE_REST: Duration = Duration::from_millis(250);

/// Is the pause between two looks at a stock server.
///
/// Source: own choice: a server that is lost is found out within about a second, as a summary stream's end is.
pub const STOCK_POLL: Duration = Duration::from_secs(1);

/// Looks at a stock server in a row that it does not answer until what was asked of it counts as lost.
///
/// Source: own choice: one that is late may be busy; two are six seconds in which it has not said a word.
pub const STOCK_SILENT_LOOKS: u32 = 2;

/// Silence of an answer behind which the loss of its worker ends it; one that goes on shows that its worker lives.
///
/// Source: own choice: a worker is lost after 3.5 s without a word, so an answer that hangs with it has been silent for longer.
pub const LOST_SILENCE: Duration = Duration::from_secs(1);

/// How long after the start requests wait until every worker that was found first has been looked at.
///
/// Source: own choice: longer than a worker may be silent ([`SUMMARY_IDLE_MAX`]) or a stock server takes to answer
/// ([`STOCK_ANSWER_TIMEOUT`]), shorter than clients' patience.
pub const FIRST_LOOK_MAX: Duration = Duration::from_secs(5);

/// Is how long a worker that is found no longer keeps its place, and what is known of it; it gets nothing meanwhile.
///
/// Source: own choice: longer than a look at DNS or an endpoint's flap, shorter than an operator's patience.
pub const LINGER: Duration = Duration::from_secs(30);

/// Is how long the place of a worker that has left stays empty.
///
/// Source: own choice: a view of the fleet is read for milliseconds, what is told of a worker waits for less than seconds.
pub const VACANCY: Duration = Duration::from_secs(60);

/// Is the pause between two looks at who is found.
///
/// Source: own choice: a change of what is found is seen at once; this is for those whose time has come to leave.
pub const MEMBERSHIP_PAUSE: Duration = Duration::from_secs(1);

/// Is the longest file of workers. Units: bytes.
pub const WORKERS_FILE_BYTES_MAX: usize = 4 << 20;

/// Is how long a connection to a worker is kept that nothing uses.
///
/// Source: below a worker's own patience (`HEAD_TIMEOUT`), so that it is not the worker that ends it.
pub const CONNECTION_IDLE_MAX: Duration = Duration::from_secs(90);

/// Time for the last events of answers that the drain timeout cuts off.
///
/// Source: with the last spans below the 5 s that units and charts add to the drain timeout; an event takes milliseconds.
pub const CUT_OFF_TIMEOUT: Duration = Duration::from_secs(2);

/// Time for which a connection to a stock server is kept that nothing uses.
///
/// Source: llama-server (cpp-httplib) and vLLM (uvicorn) end one after 5 s.
pub const STOCK_CONNECTION_IDLE_MAX: Duration = Duration::from_secs(4);

/// Time in which a worker's machine must take what is sent to it, or the connection is given up; of a stock server only while
/// that fits the window of its connection.
///
/// Source: own choice: behind `SUMMARY_IDLE_MAX`, which finds out sooner that a worker is lost and says so of the worker.
pub const WORKER_PATIENCE: Duration = Duration::from_secs(6);

/// Is how long the end of a router waits for the last spans to be sent.
///
/// Source: own choice: well below the 5 s that units and charts add to the drain timeout.
pub const TRACE_FLUSH_TIMEOUT: Duration = Duration::from_secs(2);

/// Is how many decisions a router keeps for people to look at: some 50 KB.
pub const DECISIONS_KEPT: usize = 100;

/// Is the pause between two notes of what a router has counted.
///
/// Source: own choice: a page that is looked at for minutes shows a change within one.
pub const HISTORY_PAUSE: Duration = Duration::from_secs(10);

/// Is how many of these notes are kept: an hour's, some 80 KB.
pub const HISTORY_NOTES: usize = 361;

/// Is the longest file of API keys. Units: bytes.
pub const KEYS_FILE_BYTES_MAX: usize = 4 << 20;

/// Is how long a look at DNS may take.
pub const DNS_TIMEOUT: Duration = Duration::from_secs(10);

/// Is how long a stock server may take to say how it is.
///
/// Source: own choice: llama-server answers `/health` while it computes.
pub const STOCK_ANSWER_TIMEOUT: Duration = Duration::from_secs(2);

/// Is the longest answer to that. Units: bytes.
pub const STOCK_ANSWER_BYTES_MAX: usize = 4 << 20;

/// Most models of one stock server; those that it lists behind them are left out.
///
/// Source: own choice: some ten times what a llama-server with a folder of models lists.
pub const STOCK_MODELS_MAX: usize = 1024;

/// Is the number of requests that a stock server is taken to run at a time if it does not say.
///
/// Source: own choice.
pub const STOCK_SLOTS_DEFAULT: u16 = 8;

/// Is the context that each of them is taken to have if the server does not say. Units: tokens.
///
/// Source: own choice.
pub const STOCK_CONTEXT_DEFAULT: u32 = 8192;

/// Is what a router does.
#[derive(Debug, Clone)]
pub struct Config {
    /// Is the address for clients.
    pub listen: SocketAddr,
    /// Is the address for operators.
    pub admin_listen: SocketAddr,
    /// Is how long running answers get after the order to stop.
    pub drain_timeout: Duration,
    /// Says where workers are looked for.
    pub discovery: DiscoveryConfig,
    /// Is the fleet's part.
    pub fleet: FleetConfig,
    /// Is the file of the API keys that clients must present; absent where everybody may ask.
    pub keys_file: Option<PathBuf>,
    /// Is the files from which clients are spoken to by TLS; absent where they are not.
    pub tls: Option<ServerFiles>,
    /// Says which web pages may ask; absent where none of another origin may.
    pub cors: Option<Cors>,
    /// Is how long a connection may take to send a request's head, the time before it included.
    pub head_timeout: Duration,
    /// Bounds the connections of clients.
    pub connections: ConnectionLimits,
    /// Names by which clients may call this router.
    pub allowed_hosts: AllowedHosts,
    /// Names by which operators may.
    pub admin_allowed_hosts: AllowedHosts,
    /// Says where traces go; absent where there are none.
    pub trace: Option<TraceConfig>,
    /// Is the requests' part.
    pub requests: RequestConfig,
}

/// Is how the fleet is followed.
#[derive(Debug, Clone)]
pub struct FleetConfig {
    /// Bounds who is in the fleet.
    pub membership: MembershipOptions,
    /// Lists the vocabularies for stock servers.
    pub vocabularies: Vec<VocabularyFile>,
    /// Is the most memory of the prefix index. Units: bytes.
    pub index_bytes_max: usize,
    /// Directs the choice.
    pub dispatch: LedgerOptions,
    /// How long after the start requests wait for the first look at all workers.
    pub first_look_max: Duration,
    /// Is how long a worker may take to accept a connection, TLS included.
    pub connect_timeout: Duration,
    /// Files of the keys that stock servers are shown.
    pub worker_keys: Vec<WorkerKeyFile>,
    /// Is the file of the tokens that workers are shown; absent where they want none.
    pub token_file: Option<PathBuf>,
    /// Is the files from which workers are spoken to by TLS.
    pub tls: ClientFiles,
    /// How vocabularies that workers serve are tried.
    pub trial: TrialConfig,
}

/// How vocabularies that workers serve are tried in a process of their own.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TrialConfig {
    /// The program to start: this one.
    pub program: PathBuf,
    /// Time that it may take.
    pub timeout: Duration,
}

impl Default for TrialConfig {
    fn default() -> Self {
        Self { program: own_program(), timeout: VOCABULARY_TRIAL_TIMEOUT }
    }
}

/// Returns a path that leads to this program, also when another release has taken the place of its file.
fn own_program() -> PathBuf {
    let running = PathBuf::from("/proc/self/exe");
    if running.exists() { running } else { std::env::current_exe().unwrap_or(running) }
}

/// Is a GGUF file that stock servers tokenize like.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VocabularyFile {
    /// Is the name under which they serve the model; absent where the file is for all of them.
    pub name: Option<String>,
    /// Is the file.
    pub path: PathBuf,
}

/// A file that holds the key which stock servers want.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WorkerKeyFile {
    /// Server that is shown the key; absent where every stock server is that has no key of its own.
    pub url: Option<Url>,
    /// File of the key.
    pub path: PathBuf,
}

/// Bounds requests.
#[derive(Debug, Clone)]
pub struct RequestConfig {
    /// Is the most requests at a time.
    pub requests_max: usize,
    /// Is the longest body. Units: bytes.
    pub body_bytes_max: usize,
    /// Is how long a body may take to arrive.
    pub body_timeout: Duration,
    /// Most memory of the bodies that are arriving. Units: bytes.
    pub body_memory_bytes_max: usize,
    /// Bounds the attempts at one request.
    pub retry: RetryOptions,
    /// Bounds the repetitions of all requests together.
    pub retry_budget: BudgetOptions,
    /// Is the most requests that wait in the router for a worker of one model.
    pub queue_max: usize,
    /// Is how long after its arrival a request may wait there.
    pub queue_timeout: Duration,
    /// Time after its arrival in which a request is held while its model is being loaded.
    pub wait: Duration,
    /// Is how long a worker may take to begin its answer.
    pub response_timeout: Duration,
    /// Time in which a worker must go on with an answer that has begun, and its client take something of it.
    pub idle_timeout: Duration,
}

/// Returns the configuration that flags ask for.
///
/// Errors: any [`ConfigError`]; it names the flag.
pub fn resolve(flags: Flags) -> Result<Config, ConfigError> {
    at_least_one("--attempts-max", flags.attempts_max as usize)?;
    at_least_one("--requests-max", flags.requests_max)?;
    at_least_one("--body-max", flags.body_max)?;
    if !(0.0..=1.0).contains(&flags.retry_budget) {
        return Err(ConfigError::Range { flag: "--retry-budget", range: "a share, 0 to 1" });
    }
    let admission = AdmissionOptions { wait_max: seconds("--worker-wait-max", flags.worker_wait_max)? };
    let index_bytes_max = flags.index_max.checked_mul(1 << 20);
    Ok(Config {
        listen: flags.listen,
        admin_listen: flags.admin_listen,
        drain_timeout: seconds("--drain-timeout", flags.drain_timeout)?,
        discovery: discovery::resolve(&flags)?,
        fleet: FleetConfig {
            membership: MembershipOptions { workers_max: WORKERS_MAX, linger: LINGER, vacancy: VACANCY },
            vocabularies: flags.vocabularies.iter().map(|text| vocabulary_file(text)).collect::<Result<_, _>>()?,
            index_bytes_max: index_bytes_max
                .ok_or(ConfigError::Range { flag: "--index-max", range: "what a machine may have" })?,
            dispatch: LedgerOptions { policy: flags.policy, admission: Some(admission), ..LedgerOptions::default() },
            first_look_max: FIRST_LOOK_MAX,
            connect_timeout: seconds("--connect-timeout", flags.connect_timeout)?,
            worker_keys: flags.worker_key_files.iter().map(|text| worker_key_file(text)).collect::<Result<_, _>>()?,
            token_file: flags.fleet_token_file,
            tls: ClientFiles { ca: flags.worker_ca, own: CertFiles::of(flags.worker_cert, flags.worker_key) },
            trial: TrialConfig::default(),
        },
        keys_file: flags.api_keys_file,
        tls: flags.tls.files(),
        cors: cors::resolve(&flags.cors_origins)?,
        head_timeout: seconds("--head-timeout", flags.head_timeout)?,
        connections: flags.listener.limits(),
        allowed_hosts: flags.listener.allowed_hosts(flags.listen)?,
        admin_allowed_hosts: flags.listener.admin_allowed_hosts()?,
        trace: flags.trace.config(),
        requests: RequestConfig {
            requests_max: flags.requests_max,
            body_bytes_max: flags.body_max,
            body_timeout: seconds("--body-timeout", flags.body_timeout)?,
            body_memory_bytes_max: flags
                .listener
                .body_memory(flags.body_max)
                .ok_or(ConfigError::Range { flag: "--body-memory-max", range: "three times --body-max or more" })?,
            retry: RetryOptions {
                attempts_max: flags.attempts_max,
                elapsed_max: seconds("--retry-timeout", flags.retry_timeout)?,
            },
            retry_budget: BudgetOptions { per_request: flags.retry_budget, ..BudgetOptions::default() },
            queue_max: flags.queue_max,
            queue_timeout: seconds("--queue-timeout", flags.queue_timeout)?,
            wait: seconds("--wait", flags.wait)?,
            response_timeout: seconds("--response-timeout", flags.response_timeout)?,
            idle_timeout: seconds("--idle-timeout", flags.idle_timeout)?,
        },
    })
}

/// Is the longest time that a flag may set. Units: seconds.
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
    // The name of a file may hold the sign, a worker's URL cannot.
    let parts = text.split_once('=').filter(|(url, _)| url.contains("://"));
    let (url, path) = parts.map_or((None, text), |(url, path)| (Some(url), path));
    let refuse = || ConfigError::WorkerKeyFile { text: discovery::shown(url.unwrap_or_default()) };
    let url = url.map(worker_address).transpose().map_err(|_| refuse())?.map(|worker| worker.url);
    if path.is_empty() { Err(refuse()) } else { Ok(WorkerKeyFile { url, path: path.into() }) }
}

#[cfg(test)]
mod tests;
