//! The command line of `warmpath-router`.
//!
//! Not here: the checks that values fit together (`resolve` in `config`).

use std::net::SocketAddr;
use std::path::PathBuf;

use clap::{Parser, Subcommand};
use warmpath_router_core::routing::choose::Policy;
use warmpath_shell::command_line::ConfigFlags;
use warmpath_shell::image_urls::ImageUrlFlags;
use warmpath_shell::listen::ListenFlags;
use warmpath_shell::log::LogFormat;
use warmpath_shell::tls::TlsFlags;
use warmpath_shell::trace::export::TraceFlags;

/// Flags of the command line, unchecked.
#[derive(Debug, Clone, Parser)]
#[command(name = "warmpath-router", version, about = "Routes OpenAI requests to the worker that will answer soonest")]
pub struct Flags {
    /// URL of a worker, as http://10.0.0.5:8081 (https:// for TLS), or of any OpenAI-compatible server, as
    /// openai+http://10.0.0.6:8080, with the path before its API if there is one; may be repeated, or a list with
    /// commas.
    #[arg(long = "worker", env = "WARMPATH_WORKER", value_name = "URL", value_delimiter = ',')]
    pub workers: Vec<String>,

    /// File that lists workers, one URL per line as for --worker; read again every second.
    #[arg(long, env = "WARMPATH_WORKERS_FILE", value_name = "FILE")]
    pub workers_file: Option<PathBuf>,

    /// Name whose addresses are workers, as workers.example:8081 (with https:// before it for TLS) or
    /// openai+llama.example:8080; may be repeated, or a list with commas.
    #[arg(long = "worker-dns", env = "WARMPATH_WORKER_DNS", value_name = "[https://]HOST:PORT", value_delimiter = ',')]
    pub worker_dns: Vec<String>,

    /// Kubernetes service whose endpoints are workers, with the port's number or name, and https:// before it for TLS;
    /// may be repeated, or a list with commas.
    #[arg(
        long = "kubernetes-service",
        env = "WARMPATH_KUBERNETES_SERVICE",
        value_name = "[https://]NAMESPACE/NAME:PORT",
        value_delimiter = ','
    )]
    pub kubernetes_services: Vec<String>,

    /// File with the address of the Kubernetes API server; the default is KUBECONFIG or the pod's own service account.
    #[arg(long, env = "WARMPATH_KUBECONFIG", value_name = "FILE")]
    pub kubeconfig: Option<PathBuf>,

    /// URL of a host that loads models on demand, as http://10.0.0.5:9190 (https:// for TLS); its workers are found
    /// through it. May be repeated, or a list with commas.
    #[arg(long = "host", env = "WARMPATH_HOST", value_name = "URL", value_delimiter = ',')]
    pub hosts: Vec<String>,

    /// GGUF file with the vocabulary of the OpenAI-compatible servers that serve NAME, or of all of them; may be
    /// repeated. Without one their prompts are compared as text.
    #[arg(long = "vocab", env = "WARMPATH_VOCAB", value_name = "[NAME=]FILE", value_delimiter = ',')]
    pub vocabularies: Vec<String>,

    /// File with the key of the OpenAI-compatible server at URL, or of all of them, sent in place of a client's key;
    /// read again when it changes; may be repeated.
    #[arg(
        long = "worker-key-file",
        env = "WARMPATH_WORKER_KEY_FILE",
        value_name = "[URL=]FILE",
        value_delimiter = ','
    )]
    pub worker_key_files: Vec<String>,

    /// Address to serve clients on; port 0 takes a free one.
    #[arg(long, env = "WARMPATH_LISTEN", value_name = "ADDR:PORT", default_value = "127.0.0.1:8080")]
    pub listen: SocketAddr,

    /// Address to serve metrics and the fleet's state on; port 0 takes a free one.
    #[arg(long, env = "WARMPATH_ADMIN_LISTEN", value_name = "ADDR:PORT", default_value = "127.0.0.1:9090")]
    pub admin_listen: SocketAddr,

    /// Routing policy: predicted-ttft, least-loaded or round-robin.
    #[arg(long, env = "WARMPATH_POLICY", value_name = "POLICY", default_value_t)]
    pub policy: Policy,

    /// Lets requests go to workers that fetch KV state from others for them. The value is the network's bandwidth in
    /// Gbit/s, assumed until transfers have been measured. Without it, state moves only when workers join or drain.
    #[arg(long, env = "WARMPATH_KV_GBITS", value_name = "GBITS")]
    pub kv_gbits: Option<f64>,

    /// Most memory of the prefix index.
    #[arg(long, env = "WARMPATH_INDEX_MAX", value_name = "MIB", default_value_t = 1024)]
    pub index_max: usize,

    /// Most requests at a time; further requests get status 429.
    #[arg(long, env = "WARMPATH_REQUESTS_MAX", value_name = "N", default_value_t = 4096)]
    pub requests_max: usize,

    /// Longest request body.
    #[arg(long, env = "WARMPATH_BODY_MAX", value_name = "BYTES", default_value_t = 16 << 20)]
    pub body_max: usize,

    /// Most workers that a request is tried on, the first included.
    #[arg(long, env = "WARMPATH_ATTEMPTS_MAX", value_name = "N", default_value_t = 3)]
    pub attempts_max: u32,

    /// Share of the requests that may be retried; ten more per second are always allowed.
    #[arg(long, env = "WARMPATH_RETRY_BUDGET", value_name = "RATIO", default_value_t = 0.2)]
    pub retry_budget: f64,

    /// Most times that a stream is continued at another worker when its worker fails in the middle. 0 turns it off,
    /// also for responses that are not streamed.
    #[arg(long, env = "WARMPATH_FAILOVER_MAX", value_name = "N", default_value_t = 2)]
    pub failover_max: u32,

    /// Predicted queue delay in seconds up to which a worker without a free slot gets requests; other requests wait in
    /// the router.
    #[arg(long, env = "WARMPATH_WORKER_WAIT_MAX", value_name = "SECONDS", default_value_t = 2.0)]
    pub worker_wait_max: f64,

    /// Most requests of one model that wait in the router; further requests get status 429.
    #[arg(long, env = "WARMPATH_QUEUE_MAX", value_name = "N", default_value_t = 1024)]
    pub queue_max: usize,

    /// Seconds after its arrival that a request may wait in the router; then it gets status 429.
    #[arg(long, env = "WARMPATH_QUEUE_TIMEOUT", value_name = "SECONDS", default_value_t = 60.0)]
    pub queue_timeout: f64,

    /// Seconds after its arrival for which a request is held while no worker is ready for its model and one is loading
    /// it, or a host can load it. After that time, or at once if it is 0, the request gets status 503.
    #[arg(long, env = "WARMPATH_WAIT", value_name = "SECONDS", default_value_t = 0.0)]
    pub wait: f64,

    /// Accepts any model name if the fleet serves one model: the router replaces an unknown name by the model's own.
    /// Without it, a request with an unknown name gets status 404.
    #[arg(long, env = "WARMPATH_ANY_MODEL_NAME")]
    pub any_model_name: bool,

    /// Seconds within which a worker must accept a connection.
    #[arg(long, env = "WARMPATH_CONNECT_TIMEOUT", value_name = "SECONDS", default_value_t = 1.0)]
    pub connect_timeout: f64,

    /// Seconds within which a worker must begin its response; this includes its queue, the prompt and, without
    /// streaming, the whole response.
    #[arg(long, env = "WARMPATH_RESPONSE_TIMEOUT", value_name = "SECONDS", default_value_t = 600.0)]
    pub response_timeout: f64,

    /// Seconds within which a worker must send the next part of a streamed response (comments do not count), and its
    /// client must read some of it.
    #[arg(long, env = "WARMPATH_IDLE_TIMEOUT", value_name = "SECONDS", default_value_t = 300.0)]
    pub idle_timeout: f64,

    /// Seconds within which a client must send its whole request.
    #[arg(long, env = "WARMPATH_BODY_TIMEOUT", value_name = "SECONDS", default_value_t = 60.0)]
    pub body_timeout: f64,

    /// File of the API keys that clients must present, as hashes; read again when it changes. Without it, no key is
    /// required.
    #[arg(long, env = "WARMPATH_API_KEYS_FILE", value_name = "FILE")]
    pub api_keys_file: Option<PathBuf>,

    /// Flags of the listener for clients.
    #[command(flatten)]
    pub listener: ListenFlags,

    /// Flags of TLS for clients.
    #[command(flatten)]
    pub tls: TlsFlags,

    /// Flags of images by URL.
    #[command(flatten)]
    pub images: ImageUrlFlags,

    /// Origin of web pages that may send requests, as http://localhost:3000, or * for all; may be repeated, or a list
    /// with commas. Without it, browsers let no page of another origin read responses.
    #[arg(long = "cors-origin", env = "WARMPATH_CORS_ORIGIN", value_name = "ORIGIN", value_delimiter = ',')]
    pub cors_origins: Vec<String>,

    /// Serves a chat page at / of --listen. If API keys are required, the user enters one on the page.
    #[arg(long, env = "WARMPATH_UI")]
    pub ui: bool,

    /// File of the fleet's token, which the router sends to workers (their own --fleet-token-file): one per line, the
    /// first is sent; read again when it changes.
    #[arg(long, env = "WARMPATH_FLEET_TOKEN_FILE", value_name = "FILE")]
    pub fleet_token_file: Option<PathBuf>,

    /// PEM file of the root certificates for https:// workers [default: the system's]; read again when it changes.
    #[arg(long, env = "WARMPATH_WORKER_CA", value_name = "FILE")]
    pub worker_ca: Option<PathBuf>,

    /// PEM file of the client certificate for workers that request one, with the intermediate certificates.
    #[arg(long, env = "WARMPATH_WORKER_CERT", value_name = "FILE", requires = "worker_key")]
    pub worker_cert: Option<PathBuf>,

    /// PEM file of that certificate's private key.
    #[arg(long, env = "WARMPATH_WORKER_KEY", value_name = "FILE", requires = "worker_cert")]
    pub worker_key: Option<PathBuf>,

    /// Seconds within which a client must send the head of its next request; then an idle connection is closed.
    #[arg(long, env = "WARMPATH_HEAD_TIMEOUT", value_name = "SECONDS", default_value_t = 75.0)]
    pub head_timeout: f64,

    /// Seconds that running responses get to finish after SIGTERM.
    #[arg(long, env = "WARMPATH_DRAIN_TIMEOUT", value_name = "SECONDS", default_value_t = 30.0)]
    pub drain_timeout: f64,

    /// Flags of traces.
    #[command(flatten)]
    pub trace: TraceFlags,

    /// Format of the log lines on stderr.
    #[arg(long, env = "WARMPATH_LOG_FORMAT", value_name = "FORMAT", default_value = "text")]
    pub log_format: LogFormat,

    /// Flags of the configuration.
    #[command(flatten)]
    pub config: ConfigFlags,

    /// Command to run in place of a router.
    #[command(subcommand)]
    pub command: Option<RouterCommand>,
}

/// A command that the program runs in place of a router.
#[derive(Debug, Clone, Subcommand)]
pub enum RouterCommand {
    /// Print a new API key and its entry for --api-keys-file.
    NewKey {
        /// Name of the key, which logs and metrics show.
        name: String,
    },
}
