//! Behaviour of Python's jinja2, as transformers sets it up, that minijinja lacks.
//!
//! These functions, filters and methods give Python's results.

use super::Clock;
use super::source::PERCENT_FILTER;
use minijinja::value::{Tuple, Value, ValueKind};
use minijinja::{Environment, Error, ErrorKind, escape_formatter};

mod json;
mod text;

/// Message that a template raised with `raise_exception`.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(super) struct Raised(pub String);

/// Adds transformers' functions and filters to `environment`.
pub(super) fn install(environment: &mut Environment<'static>, clock: Clock) {
    environment.set_unknown_method_callback(text::method);
    environment.set_formatter(|out, state, value| match value.is_undefined() || value.as_str().is_some() {
        true => escape_formatter(out, state, value),
        false => Ok(out.write_str(&printed(value))?),
    });
    environment.add_filter("tojson", json::tojson);
    environment.add_filter("trim", text::trim);
    environment.add_filter("indent", text::indent);
    environment.add_filter(PERCENT_FILTER, text::percent_format);
    environment.add_filter("string", |value: &Value| -> Value {
        if value.as_str().is_some() { value.clone() } else { Value::from(printed(value)) }
    });
    // Python's None is no iterable; minijinja treats it as an empty one.
    environment.add_test("iterable", |value: &Value| !value.is_none() && value.try_iter().is_ok());
    // A string and a dict have a length and items, too, which is all that jinja2 asks for.
    let is_sequence = |value: &Value| {
        value.is_undefined() || matches!(value.kind(), ValueKind::Seq | ValueKind::String | ValueKind::Map)
    };
    environment.add_test("sequence", is_sequence);
    environment.add_function("raise_exception", |message: Value| -> Result<Value, Error> {
        Err(Error::new(ErrorKind::InvalidOperation, "raise_exception").with_source(Raised(message.to_string())))
    });
    environment.add_function("strftime_now", move |format: String| -> Result<String, Error> {
        jiff::fmt::strtime::format(&format, &clock())
            .map_err(|error| Error::new(ErrorKind::InvalidOperation, format!("strftime_now({format:?}): {error}")))
    });
}

/// Returns a value as Python prints it: as minijinja does, except for the exponents of floats.
fn printed(value: &Value) -> String {
    if !has_float(value) {
        return value.to_string();
    }
    let items = |open, close, items: Vec<String>| format!("{open}{}{close}", items.join(", "));
    let inner = |value: &Value| if value.as_str().is_some() { format!("{value:?}") } else { printed(value) };
    match value.kind() {
        ValueKind::Number => f64::try_from(value.clone()).map_or_else(|_| value.to_string(), json::float_repr),
        ValueKind::Map => {
            let pair = |key: Value| format!("{}: {}", inner(&key), inner(&value.get_item(&key).unwrap_or_default()));
            items("{", "}", value.try_iter().into_iter().flatten().map(pair).collect())
        }
        _ => items("[", "]", value.try_iter().into_iter().flatten().map(|item| inner(&item)).collect()),
    }
}

/// Returns whether a value is a float, or a list or dict with one.
fn has_float(value: &Value) -> bool {
    let items = || value.try_iter().into_iter().flatten();
    match value.kind() {
        ValueKind::Number => !value.is_integer(),
        ValueKind::Seq => value.downcast_object_ref::<Tuple>().is_none() && items().any(|item| has_float(&item)),
        ValueKind::Map => items().any(|key| value.get_item(&key).is_ok_and(|item| has_float(&item))),
        _ => false,
    }
}
