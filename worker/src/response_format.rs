//! The fields for JSON output: OpenAI's `response_format`, and llama-server's `json_schema` and `schema`.
//!
//! Not here: the supported parts of a schema, following it (`warmpath-constraint`).

use serde_json::{Map, Value, json};
use warmpath_common::empty_maps::{fit_schema, is_empty_list};
use warmpath_constraint::schema::{self, SchemaError};

use crate::error::RequestError;

/// A schema that a response must follow, and its field.
#[derive(Debug, Clone, PartialEq)]
pub struct WantedSchema {
    /// Path of the field.
    pub param: &'static str,
    /// The schema, normalized.
    pub schema: Value,
}

/// Returns the requested schema; `None` for plain text.
///
/// Errors: `Field`, with the path in the schema if that is at fault.
pub fn read(format: Option<&Value>, json_schema: Option<&Value>) -> Result<Option<WantedSchema>, RequestError> {
    let format = format.filter(|format| !is_empty_list(format));
    let by_format = format.map(read_format).transpose()?.flatten();
    let (param, mut schema) = match (by_format, json_schema) {
        (Some(_), Some(_)) => {
            return Err(RequestError::field(
                "json_schema",
                "`json_schema` cannot be combined with a schema in `response_format`",
            ));
        }
        (Some(wanted), None) => wanted,
        (None, Some(schema)) => ("json_schema", schema.clone()),
        (None, None) => return Ok(None),
    };
    fit_schema(&mut schema);
    let schema = schema::normalize(&schema).map_err(|error| place(param, error))?;
    Ok(Some(WantedSchema { param, schema }))
}

/// Returns the schema of `response_format` and its path; `None` for plain text.
fn read_format(format: &Value) -> Result<Option<(&'static str, Value)>, RequestError> {
    let refuse = |param: &'static str, reason: &str| Err(RequestError::field(param, reason));
    let format = match format {
        Value::Object(format) => format,
        Value::String(text) if text.is_empty() => return Ok(None),
        _ => return refuse("response_format", "`response_format` must be an object"),
    };
    match format.get("type").and_then(Value::as_str) {
        Some("text") => Ok(None),
        Some("json_object") => match format.get("schema").filter(|schema| !is_nothing(schema)) {
            None => Ok(Some(("response_format", json!({ "type": "object" })))),
            Some(schema) => Ok(Some(("response_format.schema", schema.clone()))),
        },
        Some("json_schema") => match format.get("json_schema") {
            Some(Value::Object(described)) => read_described(described).map(Some),
            _ => {
                refuse("response_format.json_schema", "`response_format.json_schema` must be an object with a `schema`")
            }
        },
        _ => refuse("response_format.type", "`response_format.type` must be text, json_object or json_schema"),
    }
}

/// Returns the schema of OpenAI's `json_schema` object. It is followed whether `strict` or not, as llama-server does.
fn read_described(description: &Map<String, Value>) -> Result<(&'static str, Value), RequestError> {
    let is =
        |name: &str, fits: fn(&Value) -> bool| description.get(name).is_none_or(|value| value.is_null() || fits(value));
    let checks = [
        ("response_format.json_schema.name", is("name", Value::is_string), "a string"),
        ("response_format.json_schema.description", is("description", Value::is_string), "a string"),
        ("response_format.json_schema.strict", is("strict", Value::is_boolean), "true or false"),
    ];
    if let Some((param, _, what)) = checks.into_iter().find(|(_, fits, _)| !fits) {
        return Err(RequestError::field(param, format!("`{param}` must be {what}")));
    }
    let param = "response_format.json_schema.schema";
    match description.get("schema") {
        Some(schema) if !schema.is_null() => Ok((param, schema.clone())),
        _ => Err(RequestError::field(param, format!("`{param}` is missing"))),
    }
}

/// Returns whether a schema is empty; for `json_object` that means any object, like in llama-server.
fn is_nothing(schema: &Value) -> bool {
    schema.is_null() || is_empty_list(schema) || schema.as_object().is_some_and(Map::is_empty)
}

fn place(param: &str, error: SchemaError) -> RequestError {
    let path = if error.path.is_empty() { param.to_owned() } else { format!("{param}.{}", error.path) };
    let reason = format!("`{path}`: {}", error.reason);
    RequestError::field(path, reason)
}

#[cfg(test)]
mod tests {
    use warmpath_shell::api_error::ApiError as _;

    use super::*;

    fn wanted(body: &str) -> Result<Option<WantedSchema>, RequestError> {
        let body: Value = serde_json::from_str(body).expect(body);
        read(body.get("response_format"), body.get("json_schema"))
    }

    fn check(body: &str, param: &str, schema: &Value) {
        let found = wanted(body).expect(body).expect(body);
        assert_eq!((found.param, &found.schema), (param, schema), "{body}");
    }

    fn check_refused(body: &str, param: &str) {
        let error = wanted(body).expect_err(body);
        assert_eq!(error.param().as_deref(), Some(param), "{body}: {error}");
    }

    #[test]
    fn finds_the_schema_in_every_field() {
        assert_eq!(wanted(r#"{"response_format": {"type": "text"}}"#).unwrap(), None);
        assert_eq!(wanted("{}").unwrap(), None);
        let object = json!({ "type": "object" });
        check(r#"{"response_format": {"type": "json_object"}}"#, "response_format", &object);
        check(r#"{"response_format": {"type": "json_object", "schema": {}}}"#, "response_format", &object);
        let text = json!({ "type": "string" });
        let with_schema = r#"{"response_format": {"type": "json_object", "schema": {"type": "string"}}}"#;
        check(with_schema, "response_format.schema", &text);
        let described = r#"{"response_format": {"type": "json_schema",
            "json_schema": {"name": "a", "strict": true, "schema": {"type": "string"}}}}"#;
        check(described, "response_format.json_schema.schema", &text);
        check(r#"{"json_schema": {"type": "string"}}"#, "json_schema", &text);
        check(r#"{"json_schema": {}}"#, "json_schema", &json!({}));
        check(r#"{"json_schema": {"type": "string"}, "response_format": {"type": "text"}}"#, "json_schema", &text);
    }

    #[test]
    fn names_the_invalid_field() {
        check_refused(r#"{"response_format": "json"}"#, "response_format");
        check_refused(r#"{"response_format": {}}"#, "response_format.type");
        check_refused(r#"{"response_format": {"type": "grammar"}}"#, "response_format.type");
        check_refused(r#"{"response_format": {"type": "json_schema"}}"#, "response_format.json_schema");
        let of = |inner: &str| format!(r#"{{"response_format": {{"type": "json_schema", "json_schema": {inner}}}}}"#);
        check_refused(&of("{}"), "response_format.json_schema.schema");
        check_refused(&of(r#"{"name": 5, "schema": {}}"#), "response_format.json_schema.name");
        check_refused(&of(r#"{"strict": "yes", "schema": {}}"#), "response_format.json_schema.strict");
        check_refused(&of(r#"{"schema": 5}"#), "response_format.json_schema.schema");
        let not = of(r#"{"schema": {"properties": {"a b": {"not": {}}}}}"#);
        check_refused(&not, "response_format.json_schema.schema.properties.a b.not");
        check_refused(r#"{"json_schema": {}, "response_format": {"type": "json_object"}}"#, "json_schema");
    }
}
