//! OpenAI fields that would change the response and that this worker does not support: refused, not ignored.
//!
//! One table has the fields, each with the values that have no effect and are therefore allowed.

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::Deserialize;
use serde_json::Value;

use crate::error::RequestError;

/// Fields that are refused unless their value has no effect.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(default)]
pub struct Refused {
    #[schemars(schema_with = "one")]
    best_of: Option<Value>,
    #[schemars(schema_with = "nothing")]
    functions: Option<Value>,
    #[schemars(schema_with = "no_call")]
    function_call: Option<Value>,
    #[schemars(schema_with = "text_only")]
    modalities: Option<Value>,
    #[schemars(schema_with = "nothing")]
    audio: Option<Value>,
    #[schemars(schema_with = "no_block")]
    moderation: Option<Value>,
}

impl Refused {
    /// Returns an error if a field requests something unsupported.
    ///
    /// Errors: `Unsupported`, naming the field.
    pub fn check(&self) -> Result<(), RequestError> {
        let is_text = |value: &Value| value.as_array().is_some_and(|all| all.iter().all(|one| one == "text"));
        let asks = |field: &Option<Value>, is_neutral: &dyn Fn(&Value) -> bool| {
            field.as_ref().is_some_and(|value| !is_neutral(value))
        };
        let lines = [
            ("best_of", Some("only 1"), asks(&self.best_of, &|value| value.as_f64() == Some(1.0))),
            ("functions", Some("use `tools`"), asks(&self.functions, &is_empty)),
            (
                "function_call",
                Some("use `tool_choice`"),
                asks(&self.function_call, &|value| value == "auto" || value == "none" || is_empty(value)),
            ),
            ("modalities", Some("only [\"text\"]"), asks(&self.modalities, &is_text)),
            ("audio", None, asks(&self.audio, &is_empty)),
            ("moderation", Some("nothing is blocked here"), asks(&self.moderation, &blocks_nothing)),
        ];
        match lines.into_iter().find(|(.., asks)| *asks) {
            Some((param, only, _)) => Err(RequestError::Unsupported { param, only }),
            None => Ok(()),
        }
    }
}

fn is_empty(value: &Value) -> bool {
    match value {
        Value::String(text) => text.is_empty(),
        Value::Array(items) => items.is_empty(),
        Value::Object(fields) => fields.is_empty(),
        _ => false,
    }
}

/// Returns whether a moderation policy only scores texts. A score changes neither the prompt nor the answer.
fn blocks_nothing(moderation: &Value) -> bool {
    ["input", "output"].iter().all(|part| moderation["policy"][part]["mode"] != "block")
}

/// Description of each of the fields.
const DESCRIPTION: &str = "Refused unless it has no effect.";

fn one(_: &mut SchemaGenerator) -> Schema {
    json_schema!({"description": DESCRIPTION, "enum": [1, null]})
}

fn no_call(_: &mut SchemaGenerator) -> Schema {
    json_schema!({"description": DESCRIPTION, "enum": ["auto", "none", null]})
}

fn text_only(_: &mut SchemaGenerator) -> Schema {
    json_schema!({"description": DESCRIPTION, "type": ["array", "null"], "items": {"const": "text"}})
}

fn no_block(_: &mut SchemaGenerator) -> Schema {
    let part = json_schema!({"properties": {"mode": {"not": {"const": "block"}}}});
    let policy = json_schema!({"properties": {"input": part, "output": part}});
    json_schema!({"description": DESCRIPTION, "properties": {"policy": policy}})
}

fn nothing(_: &mut SchemaGenerator) -> Schema {
    let types = ["string", "array", "object", "null"];
    json_schema!({"description": DESCRIPTION, "type": types, "maxLength": 0, "maxItems": 0, "maxProperties": 0})
}

#[cfg(test)]
mod tests {
    use warmpath_shell::api_error::ApiError as _;

    use super::*;

    fn check(body: &str, expected: Option<&str>) {
        let refused: Refused = serde_json::from_str(body).expect(body);
        let param = refused.check().err().and_then(|error| error.param());
        assert_eq!(param.as_deref(), expected, "{body}");
    }

    #[test]
    fn refuses_values_that_would_change_the_response_and_accepts_neutral_ones() {
        check(r#"{"messages": [{"functions": [1]}], "user": "u"}"#, None);
        check(r#"{"functions": [1]}"#, Some("functions"));
        check(r#"{"functions": [], "audio": null, "best_of": 1, "suffix": ""}"#, None);
        check(r#"{"function_call": ""}"#, None);
        check(r#"{"web_search_options": {}}"#, None);
        check(r#"{"best_of": 2}"#, Some("best_of"));
        check(r#"{"modalities": ["text"]}"#, None);
        check(r#"{"modalities": ["text", "audio"]}"#, Some("modalities"));
        check(r#"{"moderation": {"model": "m", "policy": {"input": {"mode": "score"}, "output": null}}}"#, None);
        check(r#"{"moderation": {"policy": {"output": {"mode": "block"}}}}"#, Some("moderation"));
    }
}
