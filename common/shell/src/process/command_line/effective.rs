//! `--print-config`: the configuration, as a file for `--config` that gives the same configuration.
//!
//! A flag that is set becomes a line with its origin. A default becomes a comment, so that it stays a default when the
//! file is used.

use std::fmt::Write as _;

use clap::parser::ValueSource;
use clap::{Arg, ArgAction, ArgMatches, Command};

use super::config_file::{ConfigFile, settable};

/// Returns the text of the file.
pub fn text(command: &Command, matches: &ArgMatches, file: Option<&ConfigFile>) -> String {
    let program = command.get_name();
    let version = command.get_version().unwrap_or_default();
    let mut text = format!("# Configuration of {program} {version}, a file for --config. Comments are defaults.\n");
    for (flag, name) in settable(command) {
        // Writing to a string cannot fail.
        let _ = writeln!(text, "{}", line(flag, name, matches, file));
    }
    text
}

fn line(flag: &Arg, name: &str, matches: &ArgMatches, file: Option<&ConfigFile>) -> String {
    let origin = match matches.value_source(flag.get_id().as_str()) {
        Some(ValueSource::CommandLine) => match file.filter(|file| file.sets(flag)) {
            Some(file) => file.path().display().to_string(),
            None => format!("--{name}"),
        },
        Some(ValueSource::EnvVariable) => flag.get_env().unwrap_or_default().to_string_lossy().into_owned(),
        _ => return format!("# {name} = {}", shown(flag, matches).unwrap_or_else(|| placeholder(flag))),
    };
    if flag.is_hide_env_values_set() {
        return format!("# {name} is set by {origin}, and not shown.");
    }
    match shown(flag, matches) {
        Some(value) => format!("{name} = {value}  # {origin}"),
        None => format!("# {name} is set by {origin} to a value that is not text."),
    }
}

/// Returns a flag's value in TOML; `None` if it has no value, or TOML cannot express it.
fn shown(flag: &Arg, matches: &ArgMatches) -> Option<String> {
    let id = flag.get_id().as_str();
    if matches!(flag.get_action(), ArgAction::SetTrue) {
        return Some(matches.get_flag(id).to_string());
    }
    let is_list = matches!(flag.get_action(), ArgAction::Append);
    let Some(values) = matches.get_raw(id) else { return is_list.then(|| "[]".to_owned()) };
    let values = values.map(|value| value.to_str().map(scalar)).collect::<Option<Vec<_>>>()?;
    if is_list { Some(format!("[{}]", values.join(", "))) } else { values.into_iter().next_back() }
}

/// Returns the name of a flag's value, which is shown if there is no value.
fn placeholder(flag: &Arg) -> String {
    let value_name = flag.get_value_names().and_then(<[_]>::first).map(ToString::to_string);
    let name = value_name.unwrap_or_else(|| flag.get_id().as_str().to_uppercase());
    format!("<{name}>")
}

/// Returns a text in TOML, without quotes if it is a number that has the same form in TOML.
fn scalar(text: &str) -> String {
    let is_integer = text.parse::<i64>().is_ok_and(|number| number.to_string() == text);
    let is_float = text.parse::<f64>().is_ok_and(|number| number.is_finite() && format!("{number:?}") == text);
    if is_integer || is_float { text.to_owned() } else { toml::Value::from(text).to_string() }
}
