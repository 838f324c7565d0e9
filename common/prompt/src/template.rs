//! A compiled chat template, rendered as Hugging Face's transformers renders it.
//!
//! It uses minijinja with transformers' settings; `template/python.rs` adds what minijinja lacks. Not here: the
//! conversion of a request for a template (`messages`), and tokens.

mod python;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use minijinja::syntax::SyntaxConfig;
use minijinja::value::Value;
use minijinja::{AutoEscape, Environment, ErrorKind, UndefinedBehavior};

use crate::error::PromptError;
use crate::messages::to_template_value;

/// Longest source of a chat template that is compiled.
///
/// Source: the longest of llama.cpp's models/templates has 30 kB.
pub const TEMPLATE_BYTES_MAX: usize = 1 << 20;

/// Longest text that a template may render.
///
/// Source: a million tokens of context at four bytes a token, times four.
pub const RENDERED_BYTES_MAX: usize = 16 << 20;

/// Most template instructions of one rendering; a template that runs more is taken to be in an endless loop.
///
/// Source: a chat of 1,000 messages runs at most 3.7 million in the templates of llama.cpp (Gemma 4, whose cost grows
/// with the square of the number of messages); 50 million take about two seconds.
pub const TEMPLATE_FUEL_MAX: u64 = 50_000_000;

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
        environment.set_fuel(Some(TEMPLATE_FUEL_MAX));
        environment.set_recursion_limit(TEMPLATE_RECURSION_MAX);
        let syntax = SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build();
        environment.set_syntax(syntax.map_err(failed)?);
        python::install(&mut environment, clock);
        let compiled = python::without_generation_tags(source);
        environment.add_template_owned(NAME, compiled).map_err(failed)?;
        Ok(Self { environment, source: source.to_owned() })
    }

    /// Returns the template's source.
    pub fn source(&self) -> &str {
        &self.source
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
        let template = self.environment.get_template(NAME).map_err(failed)?;
        let mut text = LimitedText { bytes: Vec::new(), full: false };
        // minijinja 3.0.5 panics on `list[::-1]` of an empty list (its ops.rs, range_step_backwards).
        let render = AssertUnwindSafe(|| template.render_captured_to(variables, &mut text).map(drop));
        let rendered = catch_unwind(render);
        if text.full {
            return Err(PromptError::TooLong { what: "the rendered prompt", bytes_max: RENDERED_BYTES_MAX });
        }
        let reason = "the template engine panicked".to_owned();
        rendered.map_err(|_| PromptError::Template { reason })?.map_err(failed)?;
        String::from_utf8(text.bytes).map_err(|error| PromptError::Template { reason: error.to_string() })
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
        if let Some(raised) = current.downcast_ref::<python::Raised>() {
            return PromptError::Refused { message: raised.0.clone() };
        }
        cause = current.source();
    }
    if error.kind() == ErrorKind::OutOfFuel {
        return PromptError::Template { reason: format!("it ran more than {TEMPLATE_FUEL_MAX} instructions") };
    }
    PromptError::Template { reason: error.to_string() }
}

#[cfg(test)]
mod tests;
