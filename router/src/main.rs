//! `warmpath-router`: reads the command line, serves, and stops on SIGTERM or SIGINT.

use std::ffi::OsString;
use std::io::Write as _;

use anyhow::Context as _;
use warmpath_router::config::flags::{Flags, RouterCommand};
use warmpath_router::config::{Config, resolve};
use warmpath_router::fleet::trial::{TRIAL_COMMAND, try_here};
use warmpath_router::server::Server;
use warmpath_shell::command_line::{self, ParsedCommandLine};
use warmpath_shell::stop_signals::StopSignals;
use warmpath_shell::{descriptors, log, runtime};

/// Allocator of the program. The system's allocator takes a seventh of the time of a long prompt
/// (docs/decisions/0021-prompt-path.md).
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> anyhow::Result<()> {
    let arguments: Vec<OsString> = std::env::args_os().collect();
    if let [_, command, vocabulary] = &arguments[..]
        && command == TRIAL_COMMAND
    {
        let verdict = serde_json::to_string(&try_here(vocabulary.as_ref())?).context("spelling the verdict")?;
        return writeln!(std::io::stdout(), "{verdict}").context("writing the verdict");
    }
    let flags: Flags = match command_line::parse(arguments).unwrap_or_else(|error| error.exit()) {
        ParsedCommandLine::Run(flags) => flags,
        ParsedCommandLine::Text(text) => return print(&text),
    };
    if let Some(RouterCommand::NewKey { name }) = &flags.command {
        return print_new_key(name);
    }
    let checks = flags.config.check;
    let _log = log::start(flags.log_format);
    // Comes before resolving the configuration, which divides the limit.
    let limit = descriptors::raise();
    let config = resolve(flags)?;
    check_file_limit(limit, &config);
    if checks {
        Server::check(&config)?;
        return print("the configuration can be used\n");
    }
    runtime::block_on(serve(config)).context("starting the runtime")?
}

async fn serve(config: Config) -> anyhow::Result<()> {
    let mut signals = StopSignals::listen().context("listening for SIGTERM and SIGINT")?;
    let mut server = Server::start(config).await?;
    let result = tokio::select! {
        () = signals.next() => Ok(()),
        error = server.panicked() => Err(error).context("a task of the router panicked"),
    };
    tracing::info!("stopping");
    tokio::select! {
        () = server.stop() => {}
        () = signals.next() => tracing::warn!("stopping at once"),
    }
    result
}

/// Prints a new key, which is stored nowhere, and its entry.
fn print_new_key(name: &str) -> anyhow::Result<()> {
    let (key, entry) = warmpath_router::keys::new_key(name)?;
    print(&format!("# The key, shown this once: {key}\n{entry}\n"))
}

fn print(text: &str) -> anyhow::Result<()> {
    std::io::stdout().write_all(text.as_bytes()).context("writing to stdout")
}

/// Warns if the limit of open files is too low for the limit of requests; each request takes two.
fn check_file_limit(limit: std::io::Result<u64>, config: &Config) {
    let files_needed = u64::try_from(config.requests.requests_max).unwrap_or(u64::MAX).saturating_mul(2);
    match limit {
        Ok(limit) if limit >= files_needed => {}
        Ok(limit) => {
            tracing::warn!(limit, wanted = files_needed, "fewer open files are allowed than --requests-max may need")
        }
        Err(error) => tracing::warn!(%error, "the limit on open files cannot be raised"),
    }
}
