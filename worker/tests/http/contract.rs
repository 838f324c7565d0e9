//! Compares every response in these tests with the worker's OpenAPI document.
//!
//! The schemas are made strict first, so a field that is missing in the document is an error, too. Not here: requests
//! (`document`).

use std::collections::HashMap;
use std::sync::{LazyLock, Mutex};

use jsonschema::Validator;
use serde_json::{Value, json};
use warmpath_worker::openapi::{DescribedServer, document};

/// OpenAPI document of a worker.
pub static DOCUMENT: LazyLock<Value> = LazyLock::new(|| document(DescribedServer::Worker));

/// The document with objects that allow no undescribed fields.
static STRICT: LazyLock<Value> = LazyLock::new(|| {
    let mut document = DOCUMENT.clone();
    let schemas = document["components"]["schemas"].as_object_mut().expect("schemas");
    schemas.values_mut().for_each(close);
    document
});

/// Returns the validator of the schema at a path of `document`.
pub fn validator(document: &Value, schema: &Value) -> Validator {
    let mut whole = json!({"components": document["components"]});
    whole["allOf"] = json!([schema]);
    jsonschema::validator_for(&whole).expect("the schema is one")
}

/// Checks a response's status and object against the document's operation.
pub fn check(method: &str, path: &str, status: u16, object: &Value) {
    let Some(operation) = operation(method, path) else { return };
    // Every path may respond with 405, and its body is not described.
    if status == 405 {
        return;
    }
    let response = &operation["responses"][status.to_string()];
    assert!(response.is_object(), "the document does not have status {status} of {method} {path}: {object}");
    conforms(&response["content"]["application/json"]["schema"], object, &format!("{status} of {method} {path}"));
}

/// Checks one event of a stream.
pub fn check_event(path: &str, event: &Value) {
    let Some(operation) = operation("post", path) else { return };
    let schema = &operation["responses"]["200"]["content"]["text/event-stream"]["x-event-schema"];
    assert!(schema.is_object(), "the document does not have a stream for {path}");
    if event.get("error").is_none() && event.is_object() {
        conforms(schema, event, &format!("an event of {path}"));
    }
}

/// Returns the operation of a path.
fn operation(method: &str, path: &str) -> Option<&'static Value> {
    let path = path.split('?').next().unwrap_or_default();
    let fits = |described: &str| match described.split_once('{') {
        None => described == path,
        Some((before, _)) => path.strip_prefix(before).is_some_and(|rest| !rest.is_empty()),
    };
    let paths = DOCUMENT["paths"].as_object().expect("paths");
    // A path without parameters takes precedence.
    let exact = paths.get(path);
    let found = exact.or_else(|| paths.iter().find(|(described, _)| fits(described)).map(|(_, found)| found));
    found?.get(method)
}

fn conforms(schema: &Value, object: &Value, what: &str) {
    // Validators by schema. The lock is held while a response is checked.
    static MADE: LazyLock<Mutex<HashMap<String, Validator>>> = LazyLock::new(Mutex::default);
    let mut made = MADE.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    let validator = made.entry(schema.to_string()).or_insert_with(|| validator(&STRICT, schema));
    let errors: Vec<String> =
        validator.iter_errors(object).map(|error| format!("{} at {}", error, error.instance_path())).collect();
    assert!(errors.is_empty(), "{what} differs from the document: {}\n{object}", errors.join("; "));
}

/// Makes every object schema with described fields refuse other fields.
fn close(schema: &mut Value) {
    match schema {
        Value::Object(fields) => {
            // Each part of a combination describes only some of the fields, so the whole is made strict and not the
            // parts.
            let is_whole = fields.contains_key("properties");
            for (name, inner) in fields.iter_mut() {
                let is_combination = is_whole && matches!(name.as_str(), "oneOf" | "anyOf" | "allOf");
                match inner {
                    Value::Array(parts) if is_combination => parts.iter_mut().for_each(close_inside),
                    _ => close(inner),
                }
            }
            if is_whole && fields.get("type").is_some_and(|kind| kind == "object") {
                fields.entry("unevaluatedProperties").or_insert(Value::Bool(false));
            }
        }
        Value::Array(items) => items.iter_mut().for_each(close),
        _ => {}
    }
}

/// Makes the schemas inside a part of a combination strict, but not the part itself.
fn close_inside(part: &mut Value) {
    if let Some(properties) = part.get_mut("properties").and_then(Value::as_object_mut) {
        properties.values_mut().for_each(close);
    }
}
