//! `warmpath`: starts a fleet on one machine, shows the state of a fleet, and computes how many workers it needs.
//!
//! `serve` starts the programs warmpath-worker and warmpath-router as child processes, `host` only workers.

use std::ffi::OsString;
use std::io::Write as _;
use std::process::ExitCode;

use clap::{Parser, Subcommand};
use warmpath_cli::{capacity, host, serve, status};
use warmpath_shell::command_line::{self, DescribeFlags, ParsedCommandLine};
use warmpath_shell::log;

#[derive(Debug, Parser)]
#[command(name = "warmpath", version, about = "Starts a fleet on one machine and shows the state of any fleet")]
struct Cli {
    #[command(subcommand)]
    command: Command,

    #[command(flatten)]
    describe: DescribeFlags,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Starts workers and a router on this machine, and restarts those that end
    ///
    /// Flags that are not listed here are passed to each worker: see `warmpath-worker --help`. Flags after `--` are
    /// passed to the router: see `warmpath-router --help`. Worker and router inherit the environment variables.
    #[command(override_usage = "warmpath serve [OPTIONS] [FLAGS OF WORKERS] [-- FLAGS OF THE ROUTER]")]
    Serve(serve::Settings),
    /// Runs several models on this machine, each loaded when a router's client requests it
    ///
    /// Flags that are not listed here are passed to each worker: see `warmpath-worker --help`. A router follows the
    /// host by its flag --host.
    #[command(override_usage = "warmpath host [OPTIONS] [FLAGS OF WORKERS]")]
    Host(host::Settings),
    /// Shows workers, hit ratio and the last decisions of a router
    Status(status::Settings),
    /// Computes how many workers a load needs, from the measurements of a fleet or from flags
    Capacity(capacity::Settings),
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> ExitCode {
    let arguments: Vec<OsString> = std::env::args_os().collect();
    let (command_line, flags) = serve::split(arguments);
    let cli: Cli = match command_line::parse(command_line).unwrap_or_else(|error| error.exit()) {
        ParsedCommandLine::Run(cli) => cli,
        ParsedCommandLine::Text(text) => {
            let result = std::io::stdout().write_all(text.as_bytes());
            return if result.is_ok() { ExitCode::SUCCESS } else { ExitCode::FAILURE };
        }
    };
    let _log = log::start_lines();
    let result = match cli.command {
        Command::Serve(settings) => serve::run(settings, flags).await,
        Command::Host(settings) => host::run(settings, &flags).await,
        Command::Status(settings) => status::run(&settings).await,
        Command::Capacity(settings) => capacity::run(&settings).await,
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            log::line(&format!("warmpath: {error:#}"));
            ExitCode::FAILURE
        }
    }
}
