//! `const` and `enum`: values that a response must contain literally.
//!
//! Not here: their spelling (the compiler).

use serde_json::Value;

use super::numbers::is_exact;
use super::{At, Budget, SchemaError};

/// Maximum number of values in all constants, nested ones included.
///
/// Source: OpenAI accepts 1,000 in an enum; 20,000 numbers cost the compiler 300 ms and 30 MB (docs/decisions/0023).
const CONSTANTS_MAX: usize = 5000;

/// Returns a checked constant.
pub(super) fn one(budget: &mut Budget, value: &Value, at: &At<'_>) -> Result<Value, SchemaError> {
    check(budget, value, at)?;
    Ok(value.clone())
}

/// Returns a checked list of constants.
pub(super) fn list(budget: &mut Budget, value: &Value, at: &At<'_>) -> Result<Value, SchemaError> {
    let values = value.as_array().filter(|values| !values.is_empty());
    let values = values.ok_or_else(|| at.refuse("`enum` must be a list of values that is not empty"))?;
    values.iter().try_for_each(|value| check(budget, value, at))?;
    Ok(value.clone())
}

/// Returns whether a character must be written as `\u` and digits, which responses never contain
/// (`compiler`).
fn is_unspellable(c: char) -> bool {
    c.is_ascii_control() && !matches!(c, '\u{8}' | '\u{c}' | '\n' | '\r' | '\t')
}

fn check(budget: &mut Budget, value: &Value, at: &At<'_>) -> Result<(), SchemaError> {
    budget.n_constants += 1;
    if budget.n_constants > CONSTANTS_MAX {
        return Err(at.refuse(format!("the schema has more than {CONSTANTS_MAX} constants")));
    }
    match value {
        Value::Null | Value::Bool(_) => Ok(()),
        Value::Number(number) if is_exact(number) => Ok(()),
        Value::Number(number) => Err(at.refuse(format!("the constant {number} has too many digits"))),
        Value::String(text) if text.chars().any(is_unspellable) => {
            Err(at.refuse("constants with control characters other than \\b, \\f, \\n, \\r and \\t are not supported"))
        }
        Value::String(text) => budget.take_text(text, at),
        Value::Array(items) => items.iter().try_for_each(|item| check(budget, item, at)),
        Value::Object(fields) => fields.iter().try_for_each(|(name, field)| {
            budget.take_text(name, at)?;
            check(budget, field, at)
        }),
    }
}
