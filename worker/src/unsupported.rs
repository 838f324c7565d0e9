//! Fields of OpenAI and llama-server that change the response and that this worker does not support: refused, not
//! ignored.
//!
//! One table lists the fields, each with the values that request nothing; the rest of the body is skipped unread.
//! Fields that only advise (`user`, `metadata`, ...) are ignored, as `docs/api.md` says.

use serde::Deserialize;
use serde::de::{Deserializer, IgnoredAny, MapAccess, Visitor};
use serde_json::{Value, json};

use crate::error::RequestError;

/// A line of the table.
struct Refused {
    param: &'static str,
    /// Supported values, for the error; `None` if there are none.
    only: Option<&'static str>,
    asks_for_nothing: fn(&Value) -> bool,
    /// Returns the JSON schema of such values, for the API's document.
    schema: fn() -> Value,
}

const REFUSED: &[Refused] = &[
    refused("best_of", Some("only 1"), ONE),
    refused("functions", Some("use `tools`"), EMPTY),
    refused("function_call", Some("use `tool_choice`"), NO_CALL),
    refused("modalities", Some("only [\"text\"]"), TEXT_ONLY),
    refused("audio", None, EMPTY),
];

/// Values that request nothing, besides null, and their schema.
type Neutral = (fn(&Value) -> bool, fn() -> Value);

const ONE: Neutral = (|value| value.as_f64() == Some(1.0), || json!({"enum": [1, null]}));
const NO_CALL: Neutral = (|value| value == "auto" || value == "none", || json!({"enum": ["auto", "none", null]}));
const TEXT_ONLY: Neutral = (
    |value| value.as_array().is_some_and(|all| all.iter().all(|one| one == "text")),
    || json!({"type": ["array", "null"], "items": {"const": "text"}}),
);
const EMPTY: Neutral = (
    is_empty,
    || json!({"type": ["string", "array", "object", "null"], "maxLength": 0, "maxItems": 0, "maxProperties": 0}),
);

const fn refused(param: &'static str, only: Option<&'static str>, neutral: Neutral) -> Refused {
    Refused { param, only, asks_for_nothing: neutral.0, schema: neutral.1 }
}

/// Returns each refused field's name and the schema of the values that pass.
pub fn schemas() -> impl Iterator<Item = (&'static str, Value)> {
    REFUSED.iter().map(|line| (line.param, (line.schema)()))
}

fn is_empty(value: &Value) -> bool {
    match value {
        Value::String(text) => text.is_empty(),
        Value::Array(items) => items.is_empty(),
        Value::Object(fields) => fields.is_empty(),
        _ => false,
    }
}

/// First field of a body that requests something unsupported, if there is one.
pub struct Unsupported(Option<&'static Refused>);

impl Unsupported {
    /// Returns an error if a field requests something unsupported.
    ///
    /// Errors: `Unsupported`, naming the field.
    pub fn check(&self) -> Result<(), RequestError> {
        match self.0 {
            Some(line) => Err(RequestError::Unsupported { param: line.param, only: line.only }),
            None => Ok(()),
        }
    }
}

impl<'de> Deserialize<'de> for Unsupported {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(FindRefused)
    }
}

struct FindRefused;

impl<'de> Visitor<'de> for FindRefused {
    type Value = Unsupported;

    fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("a JSON object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Unsupported, A::Error> {
        let mut found = None;
        while let Some(key) = map.next_key::<std::borrow::Cow<'de, str>>()? {
            let Some(line) = REFUSED.iter().find(|line| line.param == key) else {
                map.next_value::<IgnoredAny>()?;
                continue;
            };
            let value: Value = map.next_value()?;
            if found.is_none() && !value.is_null() && !(line.asks_for_nothing)(&value) {
                found = Some(line);
            }
        }
        Ok(Unsupported(found))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(body: &str, expected: Option<&str>) {
        let unsupported: Unsupported = serde_json::from_str(body).expect(body);
        let param = unsupported.check().err().and_then(|error| error.param());
        assert_eq!(param.as_deref(), expected, "{body}");
    }

    #[test]
    fn refuses_what_would_change_the_answer_and_lets_neutral_values_pass() {
        check(r#"{"messages": [{"functions": [1]}], "user": "u"}"#, None);
        check(r#"{"functions": [1]}"#, Some("functions"));
        check(r#"{"functions": [], "audio": null, "best_of": 1, "suffix": ""}"#, None);
        check(r#"{"web_search_options": {}}"#, None);
        check(r#"{"best_of": 2}"#, Some("best_of"));
        check(r#"{"modalities": ["text"]}"#, None);
        check(r#"{"modalities": ["text", "audio"]}"#, Some("modalities"));
    }
}
