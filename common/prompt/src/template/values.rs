//! JSON as values of a template.

use minijinja::value::Value;
use serde_json::Value as Json;

/// Returns a JSON value as a template's value.
pub(crate) fn to_template_value(json: &Json) -> Value {
    to_template_value_with(json, &mut |text| Value::from(text))
}

/// Returns a JSON value as a template's value; every string in it (keys too) is converted by `string`.
pub(crate) fn to_template_value_with(json: &Json, string: &mut impl FnMut(&str) -> Value) -> Value {
    match json {
        Json::Null => Value::from(()),
        Json::Bool(flag) => Value::from(*flag),
        Json::Number(number) => match (number.as_i64(), number.as_u64()) {
            (Some(number), _) => Value::from(number),
            (None, Some(number)) => Value::from(number),
            (None, None) => number.as_f64().map_or_else(|| Value::from(()), Value::from),
        },
        Json::String(text) => string(text),
        Json::Array(items) => items.iter().map(|item| to_template_value_with(item, string)).collect::<Vec<_>>().into(),
        Json::Object(fields) => {
            let pairs: Vec<_> =
                fields.iter().map(|(key, value)| (string(key), to_template_value_with(value, string))).collect();
            Value::from_pairs(pairs)
        }
    }
}
