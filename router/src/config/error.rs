//! Errors of the command line.
//!
//! Each message names its flag and the values it takes. Not here: the checks (`config`).

use warmpath_shell::hosts::HostError;

use super::limits::{HOSTS_MAX, WORKERS_MAX};

/// Reason why the flags cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ConfigError {
    /// There are too many workers.
    #[error("--worker is given {n} times; the maximum is {WORKERS_MAX}")]
    TooManyWorkers {
        /// Number of workers.
        n: usize,
    },
    /// No source of workers is given.
    #[error("no worker can be found: give --worker, --workers-file, --worker-dns, --kubernetes-service or --host")]
    NoWorkers,
    /// There are too many hosts.
    #[error("--host is given {n} times; the maximum is {HOSTS_MAX}")]
    TooManyHosts {
        /// Number of hosts.
        n: usize,
    },
    /// A host's URL cannot be used.
    #[error("--host {url}: {source}")]
    HostUrl {
        /// The URL.
        url: String,
        /// Reason.
        source: WorkerUrlError,
    },
    /// A host is listed twice.
    #[error("--host {url}: the host is listed twice")]
    HostTwice {
        /// Its URL.
        url: String,
    },
    /// A worker's URL cannot be used.
    #[error("--worker {url}: {source}")]
    WorkerUrl {
        /// The URL.
        url: String,
        /// Reason.
        source: WorkerUrlError,
    },
    /// A worker is listed twice.
    #[error("--worker {url}: the worker is listed twice")]
    WorkerTwice {
        /// Its URL.
        url: String,
    },
    /// A name to resolve does not have the required form.
    #[error("--worker-dns {text}: it must be HOST:PORT or https://HOST:PORT, with or without openai+")]
    Dns {
        /// The flag's value.
        text: String,
    },
    /// A Kubernetes service does not have the required form.
    #[error("--kubernetes-service {text}: it must be NAMESPACE/NAME:PORT, with or without https://")]
    Kubernetes {
        /// The flag's value.
        text: String,
    },
    /// A stock server's URL or the file of its key is missing.
    #[error("--worker-key-file {text}: it must be FILE or URL=FILE, with the URL of a stock server as for --worker")]
    WorkerKeyFile {
        /// The flag's value up to the file.
        text: String,
    },
    /// A vocabulary's name or file is missing.
    #[error("--vocab {text}: it must be FILE or NAME=FILE")]
    Vocabulary {
        /// The flag's value.
        text: String,
    },
    /// An origin is not spelled as browsers send it.
    #[error(
        "--cors-origin {text}: it must be * or as browsers send it: SCHEME://HOST or SCHEME://HOST:PORT, without a slash at its end"
    )]
    Origin {
        /// The flag's value.
        text: String,
    },
    /// A host name of the router is not valid.
    #[error("--allowed-host {0}")]
    Host(#[from] HostError),
    /// A flag's value is out of range.
    #[error("{flag} must be {range}")]
    Range {
        /// Name of the flag.
        flag: &'static str,
        /// Description of the range.
        range: &'static str,
    },
}

/// Reason why a worker's URL cannot be used.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum WorkerUrlError {
    /// The text is no URL.
    #[error("it is not a URL")]
    NoUrl,
    /// The scheme is not supported.
    #[error("the scheme must be http or https, or openai+ and one of these")]
    Scheme,
    /// The URL is that of a stock server.
    #[error("a host is no stock server")]
    Stock,
    /// The URL has no host.
    #[error("the host is missing")]
    NoHost,
    /// The host is not a name that a certificate could have.
    #[error("the host is neither a name nor an address")]
    NoName,
    /// The URL has a user name or a password.
    #[error("a URL cannot have a user or a password; give a stock server's key by --worker-key-file")]
    Credentials,
    /// The URL has a query or a fragment.
    #[error("only scheme, host, port and path can be given")]
    TooMuch,
}
