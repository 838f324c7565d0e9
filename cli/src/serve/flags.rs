//! The command line of `warmpath serve`: its own flags, and those that are passed on to workers and router.

use std::ffi::OsString;
use std::net::SocketAddr;
use std::path::PathBuf;

use anyhow::ensure;
use clap::{Args, Command};

use crate::host::{self, ModelsFlags};

/// Flags of `warmpath serve` itself.
#[derive(Debug, Clone, Args)]
pub struct Settings {
    /// Workers to start. One is best on a machine without GPUs, several on one with several GPUs
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub workers: u16,
    /// Address for clients
    #[arg(long, value_name = "ADDR:PORT", default_value = "127.0.0.1:8080")]
    pub listen: SocketAddr,
    /// Address of metrics and the fleet page
    #[arg(long, value_name = "ADDR:PORT", default_value = "127.0.0.1:9090")]
    pub admin_listen: SocketAddr,
    /// Address of the first worker; each further worker takes the next port
    #[arg(long, value_name = "ADDR:PORT", default_value = "127.0.0.1:8081")]
    pub worker_listen: SocketAddr,
    /// Folder of warmpath-worker and warmpath-router. The default is this program's folder
    #[arg(long, value_name = "DIR")]
    pub bin_dir: Option<PathBuf>,
    /// Serve no chat page. By default there is one at / if --listen is a loopback address; on others the router's --ui
    /// serves it
    #[arg(long)]
    pub no_ui: bool,
    /// Flags of several models.
    #[command(flatten)]
    pub models: ModelsFlags,
}

impl Settings {
    /// Checks the settings and the flags that are passed on.
    ///
    /// Errors: no worker, flags that this program sets itself.
    pub fn check(&self, flags: &Flags) -> anyhow::Result<()> {
        ensure!(self.workers > 0, "--workers must be at least 1");
        ensure!(
            !has(&flags.workers, "--name"),
            "--name can only be set for one worker: `warmpath serve` names its workers"
        );
        ensure!(
            self.workers == 1 || !self.models.needs_host(&flags.workers),
            "--workers is the number of workers of one model: models that come and go have one worker each"
        );
        for flag in ["--listen", "--admin-listen", "--worker", "--host"] {
            ensure!(!has(&flags.router, flag), "{flag} is set by `warmpath serve`; give it before `--`");
        }
        Ok(())
    }
}

/// Flags that are passed on.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Flags {
    /// Flags of each worker.
    pub workers: Vec<OsString>,
    /// Flags of the router.
    pub router: Vec<OsString>,
}

/// Returns the command line for this program itself, and the flags that it passes on.
///
/// For `warmpath serve` and `warmpath host` these are the flags of their settings, anywhere before `--`; for any other
/// command, everything.
pub fn split(arguments: Vec<OsString>) -> (Vec<OsString>, Flags) {
    let command = match arguments.get(1).and_then(|command| command.to_str()) {
        Some("serve") => Settings::augment_args(Command::new("serve")),
        Some("host") => host::Settings::augment_args(Command::new("host")),
        _ => return (arguments, Flags::default()),
    };
    let argument_of =
        |flag: &str| command.get_arguments().find(|argument| argument.get_long() == flag.strip_prefix("--"));
    let mut arguments = arguments.into_iter();
    let mut command_line: Vec<OsString> = arguments.by_ref().take(2).collect();
    let mut flags = Flags::default();
    while let Some(flag) = arguments.next() {
        // A flag is ours if clap knows it; its value is the next argument unless it stands behind `=`.
        let text = flag.to_str().unwrap_or_default();
        let name = text.split_once('=').map_or(text, |(name, _)| name);
        match text {
            "--" => {
                flags.router = arguments.collect();
                break;
            }
            "-h" | "--help" => command_line.push(flag),
            _ => match argument_of(name).filter(|_| name.starts_with("--")) {
                Some(argument) => {
                    let value_follows = argument.get_action().takes_values() && name.len() == text.len();
                    command_line.push(flag);
                    command_line.extend(if value_follows { arguments.next() } else { None });
                }
                None => flags.workers.push(flag),
            },
        }
    }
    (command_line, flags)
}

/// Returns whether a flag is given.
fn has(flags: &[OsString], name: &str) -> bool {
    let names_it = |flag: &str| flag.strip_prefix(name).is_some_and(|value| value.is_empty() || value.starts_with('='));
    flags.iter().filter_map(|flag| flag.to_str()).any(names_it)
}

#[cfg(test)]
mod tests {
    use std::ffi::OsStr;

    use super::*;

    fn words(line: &str) -> Vec<OsString> {
        line.split_whitespace().map(OsString::from).collect()
    }

    fn text(args: &[OsString]) -> String {
        args.join(OsStr::new(" ")).into_string().expect("text")
    }

    #[test]
    fn each_flag_is_passed_to_its_program_wherever_it_stands() {
        let line =
            "warmpath serve -hf a/b --workers 3 --no-ui -c 8192 --listen=0.0.0.0:80 --no-mmap -- --wait 5 --workers 2";
        let (command_line, flags) = split(words(line));
        assert_eq!(text(&command_line), "warmpath serve --workers 3 --no-ui --listen=0.0.0.0:80");
        assert_eq!(text(&flags.workers), "-hf a/b -c 8192 --no-mmap");
        assert_eq!(text(&flags.router), "--wait 5 --workers 2");
        let (command_line, flags) = split(words("warmpath host --models-max=2 -c 5 --models-dir /m -hf a/b"));
        assert_eq!(text(&command_line), "warmpath host --models-max=2 --models-dir /m");
        assert_eq!(text(&flags.workers), "-c 5 -hf a/b");
        let (command_line, flags) = split(words("warmpath status --json"));
        assert_eq!((text(&command_line).as_str(), flags), ("warmpath status --json", Flags::default()));
        assert_eq!(text(&split(words("warmpath serve -h")).0), "warmpath serve -h");
    }
}
