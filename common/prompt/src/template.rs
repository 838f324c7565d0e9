//! A compiled chat template, rendered as Hugging Face's transformers renders it.
//!
//! It uses minijinja with transformers' settings; `template/python.rs` adds what minijinja lacks.

pub(crate) mod builtin;
pub(crate) mod caps;
pub(crate) mod fitted;
pub(crate) mod kwargs;
mod python;
pub(crate) mod shield;
mod source;
pub(crate) mod tools_first;
pub(crate) mod values;

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use minijinja::syntax::SyntaxConfig;
use minijinja::value::{Object, Value, ValueKind};
use minijinja::{AutoEscape, Environment, ErrorKind, UndefinedBehavior};

use crate::error::PromptError;
use values::to_template_value;

/// Longest source of a chat template that is compiled.
///
/// Source: the longest of llama.cpp's models/templates has 30 kB.
pub const TEMPLATE_BYTES_MAX: usize = 1 << 20;

/// Longest text that a template may render.
///
/// Source: a million tokens of context at four bytes a token, times four.
pub const RENDERED_BYTES_MAX: usize = 16 << 20;

/// Template instructions of one rendering that its texts do not have to pay for. An instruction also pays for 64 bytes
/// of the texts that the template makes.
///
/// Source: the tests' templates need 30,000 for a short chat with tools; ten million take a third of a second.
pub const TEMPLATE_FUEL_FREE: u64 = 10_000_000;

/// Template instructions that each byte of a request's texts adds, so that a long chat may take longer than a short
/// one.
///
/// Source: some templates look at every message once more for each message: gpt-oss's for a later answer, Gemma 4's for
/// an earlier turn. In 8,000 messages of 75 bytes Gemma 4's runs 236 million instructions, 250 for each byte.
pub const TEMPLATE_FUEL_PER_BYTE: u64 = 400;

/// Most template instructions of one rendering; a template that runs more is taken to be in an endless loop.
///
/// Source: they take 15 seconds, as long as it takes to tokenize the 16 MiB that a template may render.
pub const TEMPLATE_FUEL_MAX: u64 = 500_000_000;

/// Bytes that a message, a part or another value counts beside its texts. Source: what JSON needs around it.
const VALUE_BYTES: u64 = 8;

/// Deepest recursion of a template.
///
/// Source: minijinja's own safe maximum is 500, for a stack of its own; tokio's threads have 2 MiB.
pub const TEMPLATE_RECURSION_MAX: usize = 200;

/// Clock of `strftime_now`.
pub type Clock = Arc<dyn Fn() -> jiff::Zoned + Send + Sync>;

/// A compiled chat template.
#[derive(Debug)]
pub struct ChatTemplate {
    environment: Environment<'static>,
    source: String,
}

/// Name of the only template in its environment; it appears in error messages.
const NAME: &str = "chat_template";

impl ChatTemplate {
    /// Compiles `source`.
    ///
    /// Errors: `Template` if it is not valid Jinja for minijinja, `TooLong` over [`TEMPLATE_BYTES_MAX`].
    pub fn compile(source: &str, clock: Clock) -> Result<Self, PromptError> {
        if source.len() > TEMPLATE_BYTES_MAX {
            return Err(PromptError::TooLong { what: "the chat template", bytes_max: TEMPLATE_BYTES_MAX });
        }
        let mut environment = Environment::new();
        environment.set_auto_escape_callback(|_| AutoEscape::None);
        environment.set_undefined_behavior(UndefinedBehavior::Lenient);
        environment.set_recursion_limit(TEMPLATE_RECURSION_MAX);
        let syntax = SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build();
        environment.set_syntax(syntax.map_err(failed)?);
        python::install(&mut environment, clock);
        environment.add_template_owned(NAME, source::for_minijinja(source)).map_err(failed)?;
        Ok(Self { environment, source: source.to_owned() })
    }

    /// Returns the template's source.
    pub fn source(&self) -> &str {
        &self.source
    }

    /// Returns the names that the template looks up among `variables` when it renders them, in alphabetical order.
    ///
    /// minijinja's own list of undeclared variables lacks those that a template sets to a default of themselves.
    pub(crate) fn names_read(&self, variables: Value) -> BTreeSet<String> {
        let recorder = Arc::new(RecordedVariables { variables, names: Mutex::default() });
        // Whatever was read before an error counts as well.
        let _rendered = self.render(Value::from_dyn_object(Arc::clone(&recorder)));
        std::mem::take(&mut *recorder.names())
    }

    /// Renders the template with the fields of a JSON object.
    ///
    /// Errors: `Refused` if the template calls `raise_exception`, `Template` if it fails or runs too long, `TooLong`
    /// over [`RENDERED_BYTES_MAX`].
    pub fn render_json(&self, variables: &serde_json::Value) -> Result<String, PromptError> {
        self.render(to_template_value(variables))
    }

    /// Renders the template with `variables`, a map.
    pub(crate) fn render(&self, variables: Value) -> Result<String, PromptError> {
        // A copy shares everything but its settings.
        let mut environment = self.environment.clone();
        let fuel = fuel(bytes(&variables));
        environment.set_fuel(Some(fuel));
        let template = environment.get_template(NAME).map_err(failed)?;
        let mut text = LimitedText { bytes: Vec::new(), full: false };
        let result = template.render_captured_to(variables, &mut text).map(drop);
        if text.full {
            return Err(PromptError::TooLong { what: "the rendered prompt", bytes_max: RENDERED_BYTES_MAX });
        }
        result.map_err(|error| match error.kind() {
            ErrorKind::OutOfFuel => {
                let reason = format!("it ran more than {fuel} instructions, which are enough for texts of this length");
                PromptError::Template { reason }
            }
            _ => failed(error),
        })?;
        String::from_utf8(text.bytes).map_err(|error| PromptError::Template { reason: error.to_string() })
    }
}

/// Returns the number of instructions that a template may run for texts of `n_bytes`.
fn fuel(n_bytes: u64) -> u64 {
    (TEMPLATE_FUEL_FREE + n_bytes * TEMPLATE_FUEL_PER_BYTE).min(TEMPLATE_FUEL_MAX)
}

/// Returns the length of the texts in a value. Units: bytes. Cost: O(n).
fn bytes(value: &Value) -> u64 {
    let items = || value.try_iter().into_iter().flatten();
    let inner: u64 = match value.kind() {
        ValueKind::String => value.as_str().map_or(0, |text| text.len() as u64),
        ValueKind::Seq => items().map(|item| bytes(&item)).sum(),
        ValueKind::Map => items().map(|key| bytes(&key) + value.get_item(&key).map_or(0, |item| bytes(&item))).sum(),
        _ => 0,
    };
    inner + VALUE_BYTES
}

/// Variables that record which of them are looked up.
#[derive(Debug)]
struct RecordedVariables {
    variables: Value,
    /// Guards the names for the moment of an entry.
    names: Mutex<BTreeSet<String>>,
}

impl RecordedVariables {
    fn names(&self) -> MutexGuard<'_, BTreeSet<String>> {
        self.names.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Object for RecordedVariables {
    fn get_value(self: &Arc<Self>, key: &Value) -> Option<Value> {
        self.names().extend(key.as_str().map(str::to_owned));
        self.variables.get_item(key).ok().filter(|value| !value.is_undefined())
    }
}

/// Output of a template, up to the limit.
struct LimitedText {
    bytes: Vec<u8>,
    full: bool,
}

impl std::io::Write for LimitedText {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        if self.bytes.len() + bytes.len() > RENDERED_BYTES_MAX {
            self.full = true;
            return Err(std::io::Error::other("the rendered prompt is too long"));
        }
        self.bytes.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// Converts an error of minijinja: the template's own exception, or the reason and the line.
fn failed(error: minijinja::Error) -> PromptError {
    let mut cause: Option<&(dyn std::error::Error + 'static)> = Some(&error);
    while let Some(current) = cause {
        if let Some(exception) = current.downcast_ref::<python::Raised>() {
            return PromptError::Refused { message: exception.0.clone() };
        }
        cause = current.source();
    }
    PromptError::Template { reason: error.to_string() }
}

#[cfg(test)]
mod tests;
