//! The configuration file: TOML whose keys are the long names of flags.
//!
//! Its settings become arguments in front of the real ones, so the flags' own definitions check and read them. Settings
//! that the command line or a variable overrides are left out. The file can set every flag that has a variable; other
//! flags are only for one run.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::io::Read as _;
use std::path::{Path, PathBuf};

use clap::builder::Resettable;
use clap::error::{ContextKind, ContextValue};
use clap::parser::ValueSource;
use clap::{Arg, ArgAction, ArgMatches, Command};
use toml::Value;

use super::with_tip;

/// Longest file. Units: bytes.
///
/// Source: own choice: it holds the URLs of some thousand workers.
const FILE_BYTES_MAX: u64 = 1 << 20;

/// Least similarity of a name that is suggested for an unknown one. Source: clap.
const SIMILARITY_MIN: f64 = 0.7;

/// Reason why a configuration file cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ConfigFileError {
    /// The file cannot be read.
    #[error("--config {}: it cannot be read", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// Reason.
        #[source]
        source: std::io::Error,
    },
    /// The file is too long.
    #[error("--config {}: it has more than {FILE_BYTES_MAX} bytes", path.display())]
    TooLong {
        /// The file.
        path: PathBuf,
    },
    /// The file is not TOML.
    #[error("--config {}", path.display())]
    Syntax {
        /// The file.
        path: PathBuf,
        /// Reason, with the line.
        #[source]
        source: toml::de::Error,
    },
    /// No flag that a file can set has this name.
    #[error("--config {}: there is no setting `{name}`{}", path.display(), suggestion(nearest))]
    Unknown {
        /// The file.
        path: PathBuf,
        /// The name.
        name: String,
        /// Most similar name of a setting.
        nearest: Option<String>,
    },
    /// The flag takes another type of value.
    #[error("--config {}: `{name}` takes {wanted}, not {found}", path.display())]
    Type {
        /// The file.
        path: PathBuf,
        /// Name of the setting.
        name: String,
        /// Expected type.
        wanted: &'static str,
        /// Type in the file.
        found: &'static str,
    },
    /// Two names of one flag are set.
    #[error("--config {}: `{first}` and `{second}` are the same setting", path.display())]
    Twice {
        /// The file.
        path: PathBuf,
        /// One name.
        first: String,
        /// The other name.
        second: String,
    },
}

fn suggestion(nearest: &Option<String>) -> String {
    nearest.as_ref().map(|name| format!("; a similar one is `{name}`")).unwrap_or_default()
}

/// A setting of the file that is not overridden.
struct Setting {
    /// Long name of the flag.
    name: String,
    arguments: Vec<OsString>,
    /// Whether its value is a list, whose elements may contain commas.
    is_list: bool,
}

/// A configuration file, read for one command line.
pub struct ConfigFile {
    path: PathBuf,
    /// Settings by the id of their flag.
    settings: BTreeMap<String, Setting>,
}

impl ConfigFile {
    /// Reads a file for a program; `matches` are the flags that the command line and variables set.
    ///
    /// Errors: every [`ConfigFileError`].
    pub fn read(path: &Path, command: &Command, matches: &ArgMatches) -> Result<Self, ConfigFileError> {
        let text = read(path)?;
        let table: toml::Table =
            toml::from_str(&text).map_err(|source| ConfigFileError::Syntax { path: path.to_owned(), source })?;
        let mut settings = BTreeMap::new();
        let mut names: BTreeMap<String, &String> = BTreeMap::new();
        for (name, value) in &table {
            let Some((flag, long)) =
                settable(command).find(|(flag, long)| *long == name.as_str() || has_alias(flag, name))
            else {
                let nearest = nearest(name, command);
                return Err(ConfigFileError::Unknown { path: path.to_owned(), name: name.clone(), nearest });
            };
            // If a file sets a flag and its alias, one of the values would be ignored.
            let id = flag.get_id().to_string();
            if let Some(first) = names.insert(id.clone(), name) {
                let (first, second) = (first.clone(), name.clone());
                return Err(ConfigFileError::Twice { path: path.to_owned(), first, second });
            }
            let arguments = arguments(flag, name, value).map_err(|(wanted, found)| ConfigFileError::Type {
                path: path.to_owned(),
                name: name.clone(),
                wanted,
                found,
            })?;
            // The value is checked even if the command line or a variable overrides it.
            let wins = matches!(matches.value_source(&id), Some(ValueSource::CommandLine | ValueSource::EnvVariable));
            if !wins && !arguments.is_empty() {
                let setting = Setting { name: long.to_owned(), arguments, is_list: value.is_array() };
                settings.insert(id, setting);
            }
        }
        Ok(Self { path: path.to_owned(), settings })
    }

    /// Returns the path of the file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the settings as arguments.
    pub fn arguments(&self) -> impl Iterator<Item = &OsString> {
        self.settings.values().flat_map(|setting| &setting.arguments)
    }

    /// Returns whether the file sets a flag.
    pub fn sets(&self, flag: &Arg) -> bool {
        self.settings.contains_key(flag.get_id().as_str())
    }

    /// Returns the flag, without a delimiter if the file has a list for it: an element may contain commas.
    pub fn with_whole_elements(&self, flag: Arg) -> Arg {
        match self.settings.get(flag.get_id().as_str()) {
            Some(Setting { is_list: true, .. }) => flag.value_delimiter(Resettable::Reset),
            _ => flag,
        }
    }

    /// Adds the file to an error about a flag that it sets.
    pub fn with_origin(&self, error: clap::Error) -> clap::Error {
        let names = named(&error);
        match self.settings.values().find(|setting| names.contains(&setting.name)) {
            Some(setting) => with_tip(error, format!("{} sets `{}`", self.path.display(), setting.name)),
            None => error,
        }
    }
}

/// Returns the long names of the flags that an error is about.
fn named(error: &clap::Error) -> Vec<String> {
    let values = [ContextKind::InvalidArg, ContextKind::PriorArg].into_iter().filter_map(|kind| error.get(kind));
    let usages = values.flat_map(|value| match value {
        ContextValue::String(usage) => std::slice::from_ref(usage),
        ContextValue::Strings(usages) => usages.as_slice(),
        _ => &[],
    });
    usages.filter_map(|usage| usage.strip_prefix("--")?.split([' ', '=', '[']).next()).map(str::to_owned).collect()
}

/// Returns the flags that a file can set, each with its long name.
pub fn settable(command: &Command) -> impl Iterator<Item = (&Arg, &str)> {
    let flags = command.get_arguments().filter(|flag| flag.get_env().is_some() && flag.get_id() != "config");
    flags.filter_map(|flag| Some((flag, flag.get_long()?)))
}

fn has_alias(flag: &Arg, name: &str) -> bool {
    flag.get_visible_aliases().is_some_and(|aliases| aliases.contains(&name))
}

/// Returns the most similar name of a setting.
fn nearest(name: &str, command: &Command) -> Option<String> {
    let likeness = |known_name: &str| strsim::jaro_winkler(known_name, &name.replace('_', "-"));
    let similar = settable(command).map(|(_, known_name)| (known_name, likeness(known_name)));
    let best = similar.filter(|(_, likeness)| *likeness > SIMILARITY_MIN).max_by(|a, b| a.1.total_cmp(&b.1));
    best.map(|(known_name, _)| known_name.to_owned())
}

fn read(path: &Path) -> Result<String, ConfigFileError> {
    let fail = |source| ConfigFileError::Read { path: path.to_owned(), source };
    let mut text = String::new();
    let file = std::fs::File::open(path).map_err(fail)?;
    file.take(FILE_BYTES_MAX + 1).read_to_string(&mut text).map_err(fail)?;
    if text.len() as u64 > FILE_BYTES_MAX {
        return Err(ConfigFileError::TooLong { path: path.to_owned() });
    }
    Ok(text)
}

/// Returns a setting as arguments; no arguments if it is a switch's or a flag's unset value.
///
/// Errors: the type that the flag takes, and the type in the file.
fn arguments(flag: &Arg, name: &str, value: &Value) -> Result<Vec<OsString>, (&'static str, &'static str)> {
    if matches!(flag.get_action(), ArgAction::SetTrue) {
        let is_on = value.as_bool().ok_or(("true or false", type_name(value)))?;
        return Ok(if is_on { vec![format!("--{name}").into()] } else { Vec::new() });
    }
    let is_list = matches!(flag.get_action(), ArgAction::Append);
    let expected_form = if is_list { "texts or numbers" } else { "one text or number" };
    let elements = match value {
        Value::Array(elements) if is_list => elements.as_slice(),
        single => std::slice::from_ref(single),
    };
    let mut arguments = Vec::new();
    for element in elements {
        let text = match element {
            Value::String(text) => text.clone(),
            Value::Integer(number) => number.to_string(),
            Value::Float(number) => number.to_string(),
            Value::Boolean(word) => word.to_string(),
            Value::Datetime(_) | Value::Array(_) | Value::Table(_) => return Err((expected_form, type_name(element))),
        };
        // As in variables, an empty text sets nothing.
        if !text.is_empty() {
            arguments.push(format!("--{name}={text}").into());
        }
    }
    Ok(arguments)
}

fn type_name(value: &Value) -> &'static str {
    match value {
        Value::String(_) => "a text",
        Value::Integer(_) | Value::Float(_) => "a number",
        Value::Boolean(_) => "true or false",
        Value::Datetime(_) => "a date",
        Value::Array(_) => "a list",
        Value::Table(_) => "a table",
    }
}
