//! `warmpath-router`: reads the command line, serves, and stops on SIGTERM or SIGINT.

use std::io::IsTerminal as _;

use anyhow::Context as _;
use clap::Parser as _;
use tokio::signal::unix::{SignalKind, signal};
use tracing_subscriber::EnvFilter;
use warmpath_router::config::flags::{Flags, LogFormat};
use warmpath_router::config::resolve;
use warmpath_router::server::Server;

/// Is what is logged where `RUST_LOG` says nothing: llama.cpp says hundreds of lines about every vocabulary it loads.
const LOG_FILTER: &str = "info,llama-cpp-2=warn";

fn main() -> anyhow::Result<()> {
    let flags = Flags::parse();
    start_log(flags.log_format);
    let config = resolve(flags)?;
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

fn start_log(format: LogFormat) {
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new(LOG_FILTER));
    let colours = std::io::stderr().is_terminal() && std::env::var_os("NO_COLOR").is_none();
    let log = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).with_ansi(colours);
    match format {
        LogFormat::Text => log.init(),
        LogFormat::Json => log.json().init(),
    }
}
