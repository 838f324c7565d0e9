//! The fields that a response repeats from its request.
//!
//! Not here: their meaning. Source: OpenAI's API reference, "The response object".

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

/// Fields that a response repeats from its request.
#[derive(Debug, Default, Deserialize, Serialize, JsonSchema)]
#[serde(default)]
pub struct Repeated {
    instructions: Option<Value>,
    max_output_tokens: Option<Value>,
    max_tool_calls: Option<Value>,
    metadata: Option<Value>,
    parallel_tool_calls: Option<Value>,
    prompt_cache_key: Option<Value>,
    reasoning: Option<Value>,
    safety_identifier: Option<Value>,
    temperature: Option<Value>,
    text: Option<Value>,
    tool_choice: Option<Value>,
    tools: Option<Value>,
    top_p: Option<Value>,
    user: Option<Value>,
}

impl Repeated {
    /// Fills absent fields with the values that OpenAI's clients expect.
    pub fn filled(mut self) -> Self {
        self.metadata.get_or_insert_with(|| json!({}));
        self.parallel_tool_calls.get_or_insert_with(|| json!(true));
        self.reasoning.get_or_insert_with(|| json!({"effort": null, "summary": null}));
        self.tool_choice.get_or_insert_with(|| json!("auto"));
        self.tools.get_or_insert_with(|| json!([]));
        let text = self.text.get_or_insert_with(|| json!({}));
        if let Value::Object(text) = text {
            text.entry("format").or_insert_with(|| json!({"type": "text"}));
        }
        self
    }
}
