//! Flags and their variables, read alike by router and worker: empty variables are unset, switches have their usual words, and of a
//! flag that is given twice the last counts.
//!
//! Not here: the flags. The idea: manifests and service files set every variable that they know, some of them to nothing, write
//! switches as `1` and `0`, and add flags behind those that are there; clap alone takes an empty text for a value, only `true` and
//! `false`, and no flag twice.

use std::ffi::OsString;

use clap::builder::{BoolishValueParser, Resettable};
use clap::{Arg, ArgAction, Parser};

/// Returns the flags that a command line and the environment spell; the first argument is the program.
///
/// Errors: clap's, which also carries `--help` and `--version`.
pub fn parse<T: Parser>(arguments: impl IntoIterator<Item = OsString>) -> Result<T, clap::Error> {
    let mut command = T::command().args_override_self(true).mut_args(usual);
    let matches = command.try_get_matches_from_mut(arguments)?;
    T::from_arg_matches(&matches).map_err(|error| error.format(&mut command))
}

/// Returns a flag that reads its variable as it is usual.
fn usual(flag: Arg) -> Arg {
    let is_empty = |name: &std::ffi::OsStr| std::env::var_os(name).is_some_and(|value| value.is_empty());
    let flag = if flag.get_env().is_some_and(is_empty) { flag.env(Resettable::Reset) } else { flag };
    if matches!(flag.get_action(), ArgAction::SetTrue) { flag.value_parser(BoolishValueParser::new()) } else { flag }
}
