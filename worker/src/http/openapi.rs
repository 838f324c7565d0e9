//! `/openapi.json`: the API as an OpenAPI 3.1 document, made from the types that read requests and write responses.
//!
//! There is one table of operations. Schemas are derived from the types of requests and responses, and written by hand
//! if the code uses untyped JSON. A test sends valid and invalid values of every field to a worker and compares the
//! results with the schemas. Not here: the effect of the fields (docs/api.md).

mod dialects;
mod objects;
mod ollama;
mod operation;
mod paths;
mod requests;
mod vectors;

use std::sync::LazyLock;

use axum::http::header;
use axum::response::{IntoResponse, Response};
use schemars::generate::SchemaSettings;
use schemars::{JsonSchema, SchemaGenerator};
use serde_json::{Map, Value, json};

use self::operation::Operation;
use super::dialects::anthropic::wire as anthropic;
use super::dialects::responses::wire as responses;
use super::openai::wire;
use warmpath_common::dialects::anthropic::ErrorBody as AnthropicError;
use warmpath_common::openai::ErrorBody;

/// Path of a document's schemas.
const SCHEMAS: &str = "/components/schemas";

/// Server that a document describes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DescribedServer {
    /// A worker.
    Worker,
    /// A router's listener for clients: without the paths that only workers have.
    Router,
}

/// Returns the document of a server's API.
pub fn document(server: DescribedServer) -> Value {
    let mut paths = Map::new();
    for operation in paths::operations().filter(|operation| operation.is_served_by(server)) {
        let path = paths.entry(operation.path).or_insert_with(|| json!({}));
        path[operation.method] = operation.describe(server);
    }
    let (title, what) = match server {
        DescribedServer::Worker => ("Warmpath worker", "The HTTP API of a worker."),
        DescribedServer::Router => ("Warmpath router", "The HTTP API of a router, which sends requests to workers."),
    };
    let mut document = json!({
        "openapi": "3.1.0",
        "info": {
            "title": title,
            "version": env!("CARGO_PKG_VERSION"),
            "description": format!("{what} docs/api.md describes each field."),
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "servers": [{"url": "/"}],
        "tags": Operation::tags(),
        "paths": paths,
        "security": [{}, {"bearer": []}, {"x-api-key": []}],
        "components": {"schemas": schemas(), "securitySchemes": security_schemes(server)},
    });
    complete(&mut document["components"]["schemas"]);
    keep_used_schemas(&mut document);
    document.sort_all_objects();
    document
}

fn security_schemes(server: DescribedServer) -> Value {
    let what = match server {
        DescribedServer::Worker => "One of the fleet's tokens, if the worker was started with `--fleet-token-file`.",
        DescribedServer::Router => "An API key, if the router was started with `--api-keys-file`.",
    };
    json!({
        "bearer": {"type": "http", "scheme": "bearer", "description": what},
        "x-api-key": {"type": "apiKey", "in": "header", "name": "x-api-key", "description": what},
    })
}

/// Responds with the document of a worker.
pub async fn show() -> Response {
    static DOCUMENT: LazyLock<String> = LazyLock::new(|| document(DescribedServer::Worker).to_string());
    ([(header::CONTENT_TYPE, "application/json")], DOCUMENT.as_str()).into_response()
}

fn settings() -> SchemaSettings {
    SchemaSettings::draft2020_12().with(|settings| {
        settings.definitions_path = SCHEMAS.into();
        settings.meta_schema = None;
    })
}

/// Returns the schemas of all requests and responses by name.
fn schemas() -> Map<String, Value> {
    let mut generator = settings().for_serialize().into_generator();
    add::<wire::Object<'_>>(&mut generator);
    add::<anthropic::Message<'_>>(&mut generator);
    add::<anthropic::Event<'_>>(&mut generator);
    add::<responses::ResponseObject<'_>>(&mut generator);
    add::<responses::Numbered<'_>>(&mut generator);
    add::<ErrorBody>(&mut generator);
    add::<AnthropicError<'_>>(&mut generator);
    let mut requests = requests::schemas(settings().for_deserialize().into_generator());
    requests.append(&mut dialects::schemas(&requests));
    requests.append(&mut ollama::schemas(&requests));
    let mut schemas = generator.take_definitions(true);
    schemas.append(&mut objects::schemas());
    schemas.append(&mut vectors::schemas());
    schemas.append(&mut requests);
    schemas
}

/// Adds a type's schema to those of the generator.
fn add<T: JsonSchema>(generator: &mut SchemaGenerator) {
    generator.subschema_for::<T>();
}

/// Returns a reference to a schema.
fn reference(name: &str) -> Value {
    json!({"$ref": format!("#{SCHEMAS}/{name}")})
}

/// Adds to every number the values of its type, unless there are narrower ones; and removes redundant defaults.
fn complete(schema: &mut Value) {
    if schema.get("default").is_some_and(Value::is_null) {
        schema.as_object_mut().expect("a schema with a default is an object").remove("default");
    }
    if let Some((min, max)) = schema.get("format").and_then(Value::as_str).and_then(bounds) {
        let fields = schema.as_object_mut().expect("a schema with a format is an object");
        fields.entry("minimum").or_insert(min);
        fields.entry("maximum").or_insert(max);
        fields.remove("format");
    }
    match schema {
        Value::Object(fields) => fields.values_mut().for_each(complete),
        Value::Array(items) => items.iter_mut().for_each(complete),
        _ => {}
    }
}

fn bounds(format: &str) -> Option<(Value, Value)> {
    Some(match format {
        "int32" => (json!(i32::MIN), json!(i32::MAX)),
        "int64" => (json!(i64::MIN), json!(i64::MAX)),
        "uint8" => (json!(0), json!(u8::MAX)),
        "uint32" => (json!(0), json!(u32::MAX)),
        "uint" | "uint64" => (json!(0), json!(u64::MAX)),
        "float" | "double" => (json!(f32::MIN), json!(f32::MAX)),
        _ => return None,
    })
}

/// Removes the schemas without a reference.
fn keep_used_schemas(document: &mut Value) {
    let mut used: Vec<String> = Vec::new();
    let mut names = references(&document["paths"]);
    while let Some(name) = names.pop() {
        if !used.contains(&name) {
            names.extend(references(&document["components"]["schemas"][&name]));
            used.push(name);
        }
    }
    let schemas = document["components"]["schemas"].as_object_mut().expect("the schemas are an object");
    schemas.retain(|name, _| used.contains(name));
}

/// Returns the names of the schemas that a value refers to.
fn references(value: &Value) -> Vec<String> {
    match value {
        Value::Object(fields) => {
            let own_name = fields.get("$ref").and_then(Value::as_str).and_then(|path| path.rsplit('/').next());
            own_name.map(str::to_owned).into_iter().chain(fields.values().flat_map(references)).collect()
        }
        Value::Array(items) => items.iter().flat_map(references).collect(),
        _ => Vec::new(),
    }
}

#[cfg(test)]
mod tests;
