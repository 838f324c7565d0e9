//! Names of values on the command line, which tables use as well.

use clap::ValueEnum;

/// Returns the name of a value.
///
/// Panics: never; no value is hidden.
pub fn name(value: impl ValueEnum) -> String {
    value.to_possible_value().expect("no value is hidden").get_name().to_owned()
}
