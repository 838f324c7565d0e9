//! `warmpath-router`: reads the command line, serves, and stops on SIGTERM or SIGINT.

use anyhow::Context as _;
use clap::Parser as _;
use tokio::signal::unix::{SignalKind, signal};
use tracing_subscriber::EnvFilter;
use warmpath_router::config::flags::{Flags, LogFormat};
use warmpath_router::config::resolve;
use warmpath_router::server::Server;

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
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new("info"));
    let log = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr);
    match format {
        LogFormat::Text => log.init(),
        LogFormat::Json => log.json().init(),
    }
}
