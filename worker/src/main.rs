//! `warmpath-worker`: reads the command line, sets up the log, serves until it is asked to stop.
//!
//! Not here: everything else, beginning with `warmpath_worker::start`.

use std::ffi::OsString;
use std::io::Write as _;
use std::path::Path;
use std::process::ExitCode;

use anyhow::Context;
use warmpath_shell::command_line::ParsedCommandLine;
use warmpath_shell::stop_signals::StopSignals;
use warmpath_shell::{descriptors, log, runtime};
use warmpath_worker::backends::{self, BackendConfig};
use warmpath_worker::config::flags::Flags;
use warmpath_worker::{config, engine, model_files, start};

fn main() -> ExitCode {
    let arguments: Vec<OsString> = std::env::args_os().collect();
    if let [_, command, library] = &arguments[..]
        && command == backends::CHECK_COMMAND
    {
        return check(library.as_ref());
    }
    let flags = match Flags::from_command_line(arguments).unwrap_or_else(|error| error.exit()) {
        ParsedCommandLine::Run(flags) => flags,
        ParsedCommandLine::Text(text) => return print(&text),
    };
    let _log = log::start(flags.log_format);
    if flags.placement.list_devices {
        return list_devices(config::backends(&flags));
    }
    flags.log_ignored();
    match runtime::block_on(run(flags)).context("cannot start the runtime").flatten() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            tracing::error!("{error:#}");
            ExitCode::FAILURE
        }
    }
}

/// Checks CPU kernels, in a process that a worker has started for this.
fn check(library: &Path) -> ExitCode {
    match serde_json::to_writer(std::io::stdout(), &backends::check(library)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(_) => ExitCode::FAILURE,
    }
}

/// Prints the devices that llama.cpp can compute on here, a line for each.
#[tokio::main]
async fn list_devices(backends: BackendConfig) -> ExitCode {
    if let Err(error) = backends::load(&backends).await {
        tracing::error!("{:#}", anyhow::Error::new(error));
        return ExitCode::FAILURE;
    }
    let mut lines = String::from("Available devices:\n");
    for device in engine::list_devices() {
        let (total, free) = (device.memory_total >> 20, device.memory_free >> 20);
        lines += &format!("  {}: {} ({total} MiB, {free} MiB free)\n", device.name, device.description);
    }
    print(&lines)
}

fn print(text: &str) -> ExitCode {
    match std::io::stdout().write_all(text.as_bytes()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(_) => ExitCode::FAILURE,
    }
}

async fn run(flags: Flags) -> anyhow::Result<()> {
    // This comes before the configuration is resolved, because the configuration depends on the limit.
    if let Err(error) = descriptors::raise() {
        tracing::warn!(%error, "the limit on open files cannot be raised");
    }
    let (checks, prints_memory, files) = (flags.config.check, flags.print_memory, flags.files);
    let config = config::resolve(flags)?;
    if checks {
        start::check(config).await?;
        return std::io::stdout().write_all(b"the configuration can be used\n").context("cannot write to stdout");
    }
    if prints_memory {
        let projection = serde_json::to_string(&start::project_memory(config).await?)?;
        return writeln!(std::io::stdout(), "{projection}").context("cannot write to stdout");
    }
    if let Some(action) = files {
        return model_files::run(config, action).await.map_err(Into::into);
    }
    let mut signals = StopSignals::listen().context("cannot watch for SIGTERM and SIGINT")?;
    let listeners = start::bind(config).await?;
    let (asked, shutdown) = tokio::sync::oneshot::channel();
    tokio::spawn(async move {
        signals.next().await;
        let _ = asked.send(());
        signals.next().await;
        tracing::warn!("received a second signal to stop; exiting immediately");
        std::process::exit(1);
    });
    listeners.serve(async { shutdown.await.unwrap_or_default() }).await?;
    tracing::info!("stopped");
    Ok(())
}
