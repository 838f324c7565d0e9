//! The log on stderr.
//!
//! Not here: what is logged.

use std::io::IsTerminal as _;

use clap::ValueEnum;
use tracing_subscriber::EnvFilter;

/// Is what is logged where `RUST_LOG` says nothing: llama.cpp says hundreds of lines about every file it loads, and the Kubernetes client
/// an error at each try to reach an API server that is away, which discovery says once.
const LOG_FILTER: &str = "info,llama-cpp-2=warn,kube_client=off";

/// Is the form of log lines.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum LogFormat {
    /// For people.
    Text,
    /// One JSON object a line.
    Json,
}

/// Starts the log of this process; to be called once.
pub fn start(format: LogFormat) {
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new(LOG_FILTER));
    let colours = std::io::stderr().is_terminal() && std::env::var_os("NO_COLOR").is_none();
    let log = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).with_ansi(colours);
    match format {
        LogFormat::Text => log.init(),
        LogFormat::Json => log.json().init(),
    }
}
