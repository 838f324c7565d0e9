//! Flags and their environment variables, with the same rules for router and worker: empty variables are unset,
//! switches accept the usual words, and the last value of a repeated flag counts.
//!
//! The flags themselves belong to router and worker.
//!
//! Manifests and service files set every known variable, some of them to nothing, write switches as `1` and `0`, and
//! append flags to existing ones. clap alone takes an empty text as a value, accepts only `true` and `false`, and no
//! repeated flag.

use std::ffi::OsString;

use clap::builder::{BoolishValueParser, Resettable};
use clap::{Arg, ArgAction, Parser};

/// Returns the flags from a command line and the environment; the first argument is the program.
///
/// Errors: clap's, which also carry `--help` and `--version`.
pub fn parse<T: Parser>(arguments: impl IntoIterator<Item = OsString>) -> Result<T, clap::Error> {
    let mut command = T::command().args_override_self(true).mut_args(usual);
    let matches = command.try_get_matches_from_mut(arguments)?;
    T::from_arg_matches(&matches).map_err(|error| error.format(&mut command))
}

/// Returns the flag with the usual handling of its variable.
fn usual(flag: Arg) -> Arg {
    let is_empty = |name: &std::ffi::OsStr| std::env::var_os(name).is_some_and(|value| value.is_empty());
    let flag = if flag.get_env().is_some_and(is_empty) { flag.env(Resettable::Reset) } else { flag };
    if matches!(flag.get_action(), ArgAction::SetTrue) { flag.value_parser(BoolishValueParser::new()) } else { flag }
}
