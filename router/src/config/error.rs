//! What is wrong with flags that cannot be obeyed.
//!
//! Not here: what finds it out (`config`). The idea: each message names its flag and what the flag must be.

use warmpath_shell::hosts::HostError;

use super::{WORKERS_MAX, WorkerUrlError};

/// Says why flags cannot be obeyed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ConfigError {
    /// There are too many workers.
    #[error("--worker is given {n} times; the most is {WORKERS_MAX}")]
    TooManyWorkers {
        /// Is their number.
        n: usize,
    },
    /// No way to find workers is given.
    #[error("no worker can be found: give --worker, --workers-file, --worker-dns or --kubernetes-service")]
    NoWorkers,
    /// A worker's URL is not of a form that can be used.
    #[error("--worker {url}: {source}")]
    WorkerUrl {
        /// Is the URL.
        url: String,
        /// Says what is wrong with it.
        source: WorkerUrlError,
    },
    /// A worker is listed twice.
    #[error("--worker {url}: the worker is listed twice")]
    WorkerTwice {
        /// Is its URL.
        url: String,
    },
    /// A name to be resolved is not of the form that is asked for.
    #[error("--worker-dns {text}: it must be HOST:PORT or https://HOST:PORT, with or without openai+")]
    Dns {
        /// Is what was given.
        text: String,
    },
    /// A Kubernetes service is not of the form that is asked for.
    #[error("--kubernetes-service {text}: it must be NAMESPACE/NAME:PORT, with or without https://")]
    Kubernetes {
        /// Is what was given.
        text: String,
    },
    /// A stock server's URL or the file of its key is missing.
    #[error("--worker-key-file {text}: it must be FILE or URL=FILE, with the URL of a stock server as for --worker")]
    WorkerKeyFile {
        /// Is what was given, up to the file.
        text: String,
    },
    /// A vocabulary's name or file is missing.
    #[error("--vocab {text}: it must be FILE or NAME=FILE")]
    Vocabulary {
        /// Is what was given.
        text: String,
    },
    /// An origin is not of the form in which browsers send it.
    #[error(
        "--cors-origin {text}: it must be * or as browsers send it: SCHEME://HOST or SCHEME://HOST:PORT, without a slash at its end"
    )]
    Origin {
        /// Is what was given.
        text: String,
    },
    /// A name by which the router may be called is none.
    #[error("--allowed-host {0}")]
    Host(#[from] HostError),
    /// A flag's value is out of range.
    #[error("{flag} must be {range}")]
    Range {
        /// Names the flag.
        flag: &'static str,
        /// Says what it must be.
        range: &'static str,
    },
}
