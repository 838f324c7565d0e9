//! Command lines, with the same rules for every program: flags, their environment variables, a configuration file,
//! shell completions and manual pages.
//!
//! A flag on the command line overrides its variable, and the variable overrides the file. An empty variable counts as
//! unset, switches accept the usual words, and the last value of a repeated flag counts. Not here: the flags
//! themselves.
//!
//! Manifests and service files set every known variable, some of them to an empty text, write switches as `1` and `0`,
//! and append flags to existing ones. clap alone takes an empty text as a value, and accepts neither `1` and `0` nor a
//! repeated flag.

mod config_file;
mod effective;
#[cfg(test)]
mod tests;

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use clap::builder::{BoolishValueParser, Resettable};
use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{Arg, ArgAction, ArgMatches, Args, Command, Parser};
use clap_complete::Shell;

use config_file::ConfigFile;

/// Flags about the configuration as a whole.
#[derive(Debug, Clone, Default, Args)]
pub struct ConfigFlags {
    /// TOML file that sets flags by their long names, as `queue-max = 64`; flags on the command line and variables
    /// override it.
    #[arg(long, env = "WARMPATH_CONFIG", value_name = "FILE")]
    pub config: Option<PathBuf>,

    /// Print the configuration as such a file, with the origin of each value, then exit.
    #[arg(long)]
    pub print_config: bool,

    /// Check the configuration and the files that it names, then exit.
    #[arg(long)]
    pub check: bool,

    /// Flags that describe the program.
    #[command(flatten)]
    pub describe: DescribeFlags,
}

/// Flags that describe a program to shells and readers.
#[derive(Debug, Clone, Default, Args)]
pub struct DescribeFlags {
    /// Print the completions for a shell, then exit.
    #[arg(long, value_name = "SHELL")]
    pub completions: Option<Shell>,

    /// Write the manual pages into a folder, then exit.
    #[arg(long, value_name = "DIR")]
    pub man_pages: Option<PathBuf>,
}

/// Action that a command line requests.
#[derive(Debug)]
pub enum ParsedCommandLine<T> {
    /// Run with these flags.
    Run(T),
    /// Print this text on stdout and exit.
    Text(String),
}

impl<T> ParsedCommandLine<T> {
    /// Returns the flags of a run.
    pub fn run(self) -> Option<T> {
        match self {
            Self::Run(flags) => Some(flags),
            Self::Text(_) => None,
        }
    }

    /// Applies a function to the flags of a run.
    pub fn map<U>(self, change: impl FnOnce(T) -> U) -> ParsedCommandLine<U> {
        match self {
            Self::Run(flags) => ParsedCommandLine::Run(change(flags)),
            Self::Text(text) => ParsedCommandLine::Text(text),
        }
    }
}

/// Reads a command line, whose first argument is the program, with the environment and the file in `--config`.
///
/// Errors: clap's own, which also stand for `--help` and `--version`, and those of the configuration file.
pub fn parse<T: Parser>(arguments: impl IntoIterator<Item = OsString>) -> Result<ParsedCommandLine<T>, clap::Error> {
    let mut arguments: Vec<OsString> = arguments.into_iter().collect();
    let mut command = T::command().args_override_self(true).mut_args(usual);
    // The file sets flags that are missing here, so errors are reported only after it has been read.
    let first_matches = command.clone().ignore_errors(true).try_get_matches_from(&arguments)?;
    if let Some(text) = described::<T>(&first_matches)? {
        return Ok(ParsedCommandLine::Text(text));
    }
    let mut file = None;
    if let Some(path) = value::<PathBuf>(&first_matches, "config") {
        let config_file = ConfigFile::read(path, &command, &first_matches);
        let config_file =
            config_file.map_err(|error| command.error(ErrorKind::ValueValidation, crate::chain(&error)))?;
        let behind_program = arguments.len().min(1);
        drop(arguments.splice(behind_program..behind_program, config_file.arguments().cloned()));
        command = command.mut_args(|flag| config_file.with_whole_elements(flag));
        file = Some(config_file);
    }
    let matches = command.try_get_matches_from_mut(arguments).map_err(|error| match &file {
        Some(file) => file.with_origin(error),
        None => error,
    })?;
    if value::<bool>(&matches, "print_config").is_some_and(|is_asked_for| *is_asked_for) {
        return Ok(ParsedCommandLine::Text(effective::text(&command, &matches, file.as_ref())));
    }
    T::from_arg_matches(&matches).map(ParsedCommandLine::Run).map_err(|error| error.format(&mut command))
}

/// Adds a tip below an error's message.
pub fn with_tip(mut error: clap::Error, tip: String) -> clap::Error {
    let mut tips = match error.remove(ContextKind::Suggested) {
        Some(ContextValue::StyledStrs(tips)) => tips,
        _ => Vec::new(),
    };
    tips.push(tip.into());
    error.insert(ContextKind::Suggested, ContextValue::StyledStrs(tips));
    error
}

/// Returns the flag with these rules for its variable.
fn usual(flag: Arg) -> Arg {
    let is_empty = |name: &std::ffi::OsStr| std::env::var_os(name).is_some_and(|value| value.is_empty());
    let flag = if flag.get_env().is_some_and(is_empty) { flag.env(Resettable::Reset) } else { flag };
    if matches!(flag.get_action(), ArgAction::SetTrue) { flag.value_parser(BoolishValueParser::new()) } else { flag }
}

/// Returns a flag's value; `None` also if the program has no such flag.
fn value<'a, V: Clone + Send + Sync + 'static>(matches: &'a ArgMatches, id: &str) -> Option<&'a V> {
    matches.try_get_one(id).ok().flatten()
}

/// Returns the text that [`DescribeFlags`] request.
///
/// Errors: `Io` if a manual page cannot be written.
fn described<T: Parser>(matches: &ArgMatches) -> Result<Option<String>, clap::Error> {
    if let Some(shell) = value::<Shell>(matches, "completions") {
        let mut script = Vec::new();
        let mut command = T::command();
        let name = command.get_name().to_owned();
        clap_complete::generate(*shell, &mut command, name, &mut script);
        return Ok(Some(String::from_utf8_lossy(&script).into_owned()));
    }
    let Some(dir) = value::<PathBuf>(matches, "man_pages") else { return Ok(None) };
    write_pages(T::command(), dir).map(|()| Some(String::new())).map_err(|error| {
        let reason = format!("--man-pages {}: {error}", dir.display());
        T::command().error(ErrorKind::Io, reason)
    })
}

/// Writes a manual page for a program and one for each of its commands.
fn write_pages(command: Command, dir: &Path) -> std::io::Result<()> {
    std::fs::create_dir_all(dir)?;
    clap_mangen::generate_to(command, dir)
}
