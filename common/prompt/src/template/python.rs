//! Behaviour of Python's jinja2, as transformers sets it up, that minijinja lacks.
//!
//! These functions, filters and methods give Python's results. Not here: the settings that both engines have.

use minijinja::value::{Value, ValueKind};
use minijinja::{Environment, Error, ErrorKind, escape_formatter};
use minijinja_contrib::pycompat::unknown_method_callback;

use super::Clock;

mod json;

/// Message that a template raised with `raise_exception`.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(super) struct Raised(pub String);

/// Adds transformers' functions and filters to `environment`.
pub(super) fn install(environment: &mut Environment<'static>, clock: Clock) {
    environment.set_unknown_method_callback(unknown_method_callback);
    environment.set_formatter(|out, state, value| match float_text(value) {
        Some(text) => Ok(out.write_str(&text)?),
        None => escape_formatter(out, state, value),
    });
    environment.add_filter("tojson", json::tojson);
    environment.add_filter("string", |value: &Value| -> Value {
        match (value.as_str(), float_text(value)) {
            (Some(_), _) => value.clone(),
            (None, Some(text)) => Value::from(text),
            (None, None) => Value::from(value.to_string()),
        }
    });
    // Python's None is no iterable; minijinja treats it as an empty one.
    environment.add_test("iterable", |value: &Value| !value.is_none() && value.try_iter().is_ok());
    environment.add_function("raise_exception", |message: Value| -> Result<Value, Error> {
        Err(Error::new(ErrorKind::InvalidOperation, "raise_exception").with_source(Raised(message.to_string())))
    });
    environment.add_function("strftime_now", move |format: String| -> Result<String, Error> {
        jiff::fmt::strtime::format(&format, &clock())
            .map_err(|error| Error::new(ErrorKind::InvalidOperation, format!("strftime_now({format:?}): {error}")))
    });
}

/// Returns Python's text of a float; `None` for anything else.
fn float_text(value: &Value) -> Option<String> {
    let float = value.kind() == ValueKind::Number && !value.is_integer();
    float.then(|| f64::try_from(value.clone()).ok().map(json::float_repr)).flatten()
}

/// Replaces `{% generation %}` and `{% endgeneration %}`, which only mark training data, by blocks that do nothing.
pub(super) fn without_generation_tags(source: &str) -> String {
    let mut replaced = String::with_capacity(source.len());
    let mut rest = source;
    while let Some(start) = rest.find("{%") {
        // The end of a tag shares no character with its start: `{%}` begins one.
        let Some(length) = rest[start + 2..].find("%}") else { break };
        let tag = &rest[start..start + 2 + length];
        let name = tag[2..].trim_start_matches(['-', '+']).trim_end_matches(['-', '+']).trim();
        replaced.push_str(&rest[..start]);
        match name {
            "generation" => replaced.push_str(&tag.replace("generation", "if true")),
            "endgeneration" => replaced.push_str(&tag.replace("endgeneration", "endif")),
            _ => replaced.push_str(tag),
        }
        rest = &rest[start + tag.len()..];
    }
    replaced + rest
}
