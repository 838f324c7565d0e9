//! The schemas of requests, derived from the types that read them.
//!
//! Not here: the dialects' requests (`dialects`), which are converted to a chat first.

use schemars::{JsonSchema, SchemaGenerator};
use serde_json::{Map, Value};
use warmpath_common::openai::ChatPrompt;

use super::add;
use crate::engine::{Generation, Sampling};
use crate::http::llama_server::props;
use crate::http::llama_server::tokenize::{DetokenizeRequest, TokenizeRequest};
use crate::http::vectors::embeddings::EmbeddingsRequest;
use crate::http::vectors::rerank::RerankRequest;
use crate::request::{ChatRequest, CompletionRequest, InfillRequest, NativeCompletionRequest};

/// Generation requests.
const GENERATING: [&str; 4] = ["ChatRequest", "CompletionRequest", "NativeCompletionRequest", "InfillRequest"];

/// Returns the schema of each endpoint's request by its name, with those that it refers to.
pub(super) fn schemas(mut generator: SchemaGenerator) -> Map<String, Value> {
    add::<ChatRequest>(&mut generator);
    add::<CompletionRequest>(&mut generator);
    add::<NativeCompletionRequest>(&mut generator);
    add::<InfillRequest>(&mut generator);
    add::<EmbeddingsRequest>(&mut generator);
    add::<RerankRequest>(&mut generator);
    add::<TokenizeRequest>(&mut generator);
    add::<DetokenizeRequest>(&mut generator);
    let template = ChatPrompt::json_schema(&mut generator).to_value();
    let sampling = Sampling::json_schema(&mut generator).to_value();
    let mut schemas = generator.take_definitions(true);
    schemas.insert("TemplateRequest".to_owned(), template);
    for name in GENERATING {
        describe(&mut schemas[name]["properties"], &sampling["properties"]);
    }
    schemas
}

/// Adds to the fields of a generation request: other names, descriptions of samplers, defaults that no worker changes.
fn describe(properties: &mut Value, sampling: &Value) {
    properties["n_cache_reuse"] = properties["cache_reuse"].clone();
    properties["n_cmpl"] = properties["n"].clone();
    let defaults = props::generation_params(&[], &Generation::default());
    for (name, property) in properties.as_object_mut().into_iter().flatten() {
        let Value::Object(property) = property else { continue };
        if let Some(text) = sampling[name].get("description") {
            property.entry("description").or_insert_with(|| text.clone());
        }
        let has_default = !matches!(name.as_str(), "seed" | "grammar" | "logit_bias" | "max_tokens" | "n_predict");
        let Some(default) = defaults.get(name).filter(|_| has_default).map(shortened) else { continue };
        // A client that is generated from this document may send a default, which then precedes the worker's own.
        if sampling.get(name).is_some() || name == "ignore_eos" {
            let text = property.get("description").and_then(Value::as_str).unwrap_or_default();
            let text = format!("{text} Absent means the worker's default (`/props`), which is {default} unless set.");
            property.insert("description".to_owned(), text.trim_start().into());
        } else {
            property.insert("default".to_owned(), default);
        }
    }
}

/// Returns a default in its shortest decimal form: 0.95, not all digits of the nearest float.
fn shortened(default: &Value) -> Value {
    match default.as_f64() {
        Some(number) if default.is_f64() => {
            let text = (number as f32).to_string();
            text.parse::<f64>().map_or_else(|_| default.clone(), Value::from)
        }
        _ => default.clone(),
    }
}
