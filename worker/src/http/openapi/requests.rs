//! The schemas of requests: the fields of every type that reads a body, combined for each endpoint.
//!
//! Not here: the dialects' requests (`dialects`), which are converted to a chat first.

use schemars::{JsonSchema, SchemaGenerator};
use serde_json::{Map, Value, json};
use warmpath_common::openai::ChatPrompt;
use warmpath_common::prompts::{CompletionPrompt, InfillPrompt};

use crate::engine::Generation;
use crate::fields::GenerationFields;
use crate::http::chat::Limits;
use crate::http::native::Wish;
use crate::http::props;
use crate::http::tokenize::{DetokenizeRequest, TokenizeRequest};
use crate::lifecycle::Options;
use crate::tools::ToolFields;
use crate::unsupported;

/// Returns the schema of each endpoint's request by its name.
pub(super) fn schemas(generator: &mut SchemaGenerator) -> Map<String, Value> {
    let mut made = Map::new();
    let mut add = |name: &str, fields: Fields| drop(made.insert(name.to_owned(), fields.schema()));

    let mut chat = Fields::default();
    chat.read_by::<ToolFields>(generator);
    chat.read_by::<Limits>(generator);
    chat.read_by_generation(generator);
    chat.read_by::<ChatPrompt>(generator);
    chat.add("echo", json!({"enum": [false, null], "description": "Supported for completions only."}));
    add("ChatRequest", chat);

    let mut completion = Fields::default();
    completion.read_by::<CompletionPrompt>(generator);
    completion.read_by_generation(generator);
    let echo = json!({"type": ["boolean", "null"], "description": "Whether the text begins with the prompt."});
    completion.add("echo", echo);
    add("CompletionRequest", completion);

    let mut native = Fields::default();
    native.read_by::<CompletionPrompt>(generator);
    native.read_by::<Wish>(generator);
    native.read_by_generation(generator);
    add("NativeCompletionRequest", native);

    let mut infill = Fields::default();
    infill.read_by_generation(generator);
    infill.read_by::<InfillPrompt>(generator);
    infill.read_by::<Wish>(generator);
    add("InfillRequest", infill);

    let mut template = Fields::default();
    template.read_by::<ChatPrompt>(generator);
    add("TemplateRequest", template);
    let mut tokenize = Fields::default();
    tokenize.read_by::<TokenizeRequest>(generator);
    add("TokenizeRequest", tokenize);
    let mut detokenize = Fields::default();
    detokenize.read_by::<DetokenizeRequest>(generator);
    add("DetokenizeRequest", detokenize);
    made
}

/// Fields of a body, those of several readers.
#[derive(Default)]
struct Fields {
    properties: Map<String, Value>,
    required: Vec<Value>,
}

impl Fields {
    /// Adds the fields that `T` reads; of a field that several types read, the first one's schema stays.
    fn read_by<T: JsonSchema>(&mut self, generator: &mut SchemaGenerator) {
        let mut schema = T::json_schema(generator).to_value();
        let Value::Object(properties) = schema["properties"].take() else { return };
        for (name, property) in properties {
            self.properties.entry(name).or_insert(property);
        }
        // A field that may be null may be absent.
        let is_required = |name: &&Value| name.as_str().is_some_and(|name| !takes_null(&self.properties[name]));
        self.required.extend(schema["required"].as_array().into_iter().flatten().filter(is_required).cloned());
    }

    /// Adds the fields of every generating endpoint.
    fn read_by_generation(&mut self, generator: &mut SchemaGenerator) {
        self.read_by::<Options>(generator);
        self.add("n_cache_reuse", self.properties["cache_reuse"].clone());
        self.add("n_cmpl", self.properties["n"].clone());
        self.read_by::<GenerationFields>(generator);
        let described = crate::engine::Sampling::json_schema(generator).to_value();
        let defaults = props::generation_params(&[], &Generation::default());
        for (name, property) in &mut self.properties {
            let Value::Object(property) = property else { continue };
            if let Some(text) = described["properties"][name].get("description") {
                property.entry("description").or_insert_with(|| text.clone());
            }
            let has_default = !matches!(name.as_str(), "seed" | "grammar" | "logit_bias" | "max_tokens" | "n_predict");
            if let Some(default) = defaults.get(name).filter(|_| has_default) {
                property.insert("default".to_owned(), shortened(default));
            }
        }
        for (name, mut schema) in unsupported::schemas() {
            schema["description"] = "Refused if it requests something.".into();
            self.add(name, schema);
        }
    }

    fn add(&mut self, name: &str, schema: Value) {
        self.properties.insert(name.to_owned(), schema);
    }

    fn schema(self) -> Value {
        json!({"type": "object", "properties": self.properties, "required": self.required})
    }
}

fn takes_null(schema: &Value) -> bool {
    let lists_null = |list: &Value| list.as_array().into_iter().flatten().any(|one| one == "null" || one.is_null());
    let alternatives = schema["anyOf"].as_array().into_iter().flatten();
    lists_null(&schema["type"])
        || lists_null(&schema["enum"])
        || schema["type"] == "null"
        || alternatives.into_iter().any(takes_null)
}

/// Returns a default with the digits that a person would write: 0.95, not the nearest float's.
fn shortened(default: &Value) -> Value {
    match default.as_f64() {
        Some(number) if default.is_f64() => {
            let text = (number as f32).to_string();
            text.parse::<f64>().map_or_else(|_| default.clone(), Value::from)
        }
        _ => default.clone(),
    }
}
