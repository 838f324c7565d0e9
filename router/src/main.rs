//! `warmpath-router`: reads the command line, serves, and stops on SIGTERM or SIGINT.

use std::io::{IsTerminal as _, Write as _};

use anyhow::Context as _;
use clap::Parser as _;
use tokio::signal::unix::{SignalKind, signal};
use tracing_subscriber::EnvFilter;
use warmpath_router::config::flags::{Flags, LogFormat};
use warmpath_router::config::{Config, resolve};
use warmpath_router::server::Server;

/// Replaces the system's allocator, which takes a seventh of the time of a long prompt (docs/decisions/0021-prompt-path.md).
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Is what is logged where `RUST_LOG` says nothing: llama.cpp says hundreds of lines about every vocabulary it loads.
const LOG_FILTER: &str = "info,llama-cpp-2=warn";

fn main() -> anyhow::Result<()> {
    let flags = Flags::parse();
    if let Some(name) = &flags.new_key {
        return print_new_key(name);
    }
    start_log(flags.log_format);
    let config = resolve(flags)?;
    raise_file_limit(&config);
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().context("starting the runtime")?;
    runtime.block_on(async {
        let mut terminate = signal(SignalKind::terminate()).context("listening for SIGTERM")?;
        let mut interrupt = signal(SignalKind::interrupt()).context("listening for SIGINT")?;
        let server = Server::start(config).await?;
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
        }
        tracing::info!("stopping");
        tokio::select! {
            () = server.stop() => {}
            _ = interrupt.recv() => tracing::warn!("stopping at once"),
        }
        Ok(())
    })
}

/// Prints a new key, which is kept nowhere, and its entry.
fn print_new_key(name: &str) -> anyhow::Result<()> {
    let (key, entry) = warmpath_router::keys::new_key(name)?;
    writeln!(std::io::stdout(), "# The key, shown this once: {key}\n{entry}").context("writing the key")
}

/// Raises the soft limit on open files as far as it goes: a request takes two.
fn raise_file_limit(config: &Config) {
    let wanted = u64::try_from(config.requests.requests_max).unwrap_or(u64::MAX).saturating_mul(2);
    match rlimit::increase_nofile_limit(u64::MAX) {
        Ok(limit) if limit >= wanted => {}
        Ok(limit) => tracing::warn!(limit, wanted, "fewer open files are allowed than --requests-max may need"),
        Err(error) => tracing::warn!(%error, "the limit on open files cannot be raised"),
    }
}

fn start_log(format: LogFormat) {
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new(LOG_FILTER));
    let colours = std::io::stderr().is_terminal() && std::env::var_os("NO_COLOR").is_none();
    let log = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).with_ansi(colours);
    match format {
        LogFormat::Text => log.init(),
        LogFormat::Json => log.json().init(),
    }
}
