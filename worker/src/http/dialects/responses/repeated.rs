//! The fields that a response repeats from its request.
//!
//! They are kept as JSON text as long as the response runs, because a parsed value takes many times the memory. Not
//! here: their meaning. Source: OpenAI's API reference, "The response object".

use std::borrow::Cow;

use schemars::{JsonSchema, Schema, SchemaGenerator};
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::value::{RawValue, to_raw_value};
use serde_json::{Value, json};

/// Fields that a response repeats from its request.
#[derive(Debug, Default, Deserialize, Serialize, JsonSchema)]
#[serde(default)]
pub struct Repeated {
    instructions: Option<JsonText>,
    max_output_tokens: Option<JsonText>,
    max_tool_calls: Option<JsonText>,
    metadata: Option<JsonText>,
    parallel_tool_calls: Option<JsonText>,
    prompt_cache_key: Option<JsonText>,
    reasoning: Option<JsonText>,
    safety_identifier: Option<JsonText>,
    temperature: Option<JsonText>,
    text: Option<JsonText>,
    tool_choice: Option<JsonText>,
    tools: Option<JsonText>,
    top_p: Option<JsonText>,
    user: Option<JsonText>,
    /// Not repeated: the response has the answer to it.
    #[serde(skip_serializing)]
    #[schemars(skip)]
    prompt_cache_options: Option<PromptCacheOptions>,
}

/// Options of the prompt's cache that only the response is about.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct PromptCacheOptions {
    /// Id of the response with which the prompt is compared.
    comparison_response_id: Option<String>,
}

impl Repeated {
    /// Returns the id of the response with which the prompt is compared, if the request names one.
    pub fn comparison_response_id(&self) -> Option<&str> {
        self.prompt_cache_options.as_ref()?.comparison_response_id.as_deref()
    }

    /// Fills absent fields with the values that OpenAI's clients expect.
    pub fn filled(mut self) -> Self {
        self.metadata.get_or_insert_with(|| JsonText::of(&json!({})));
        self.parallel_tool_calls.get_or_insert_with(|| JsonText::of(&json!(true)));
        self.reasoning.get_or_insert_with(|| JsonText::of(&json!({"effort": null, "summary": null})));
        self.tool_choice.get_or_insert_with(|| JsonText::of(&json!("auto")));
        self.tools.get_or_insert_with(|| JsonText::of(&json!([])));
        let mut text = self.text.as_ref().map_or_else(|| json!({}), JsonText::value);
        if let Value::Object(text) = &mut text {
            text.entry("format").or_insert_with(|| json!({"type": "text"}));
        }
        self.text = Some(JsonText::of(&text));
        self
    }
}

/// The JSON text of a value, without white space: a line break in it would end a line of an event.
#[derive(Debug, Serialize)]
#[serde(transparent)]
struct JsonText(Box<RawValue>);

impl JsonText {
    fn of(value: &Value) -> Self {
        Self(to_raw_value(value).expect("a value has a JSON form"))
    }

    fn value(&self) -> Value {
        serde_json::from_str(self.0.get()).expect("the text of a value is JSON")
    }
}

impl<'de> Deserialize<'de> for JsonText {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Value::deserialize(deserializer).map(|value| Self::of(&value))
    }
}

impl JsonSchema for JsonText {
    fn inline_schema() -> bool {
        Value::inline_schema()
    }

    fn schema_name() -> Cow<'static, str> {
        Value::schema_name()
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        Value::json_schema(generator)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn repeated(request: &str) -> String {
        let repeated: Repeated = serde_json::from_str(request).expect("an object");
        serde_json::to_string(&repeated.filled()).expect("it has a JSON form")
    }

    #[test]
    fn fields_are_repeated_as_they_are_without_white_space() {
        let expected = concat!(
            r#"{"instructions":"a \n b","max_output_tokens":5,"max_tool_calls":null,"metadata":{"k":[1.0,true]},"#,
            r#""parallel_tool_calls":false,"prompt_cache_key":null,"reasoning":{"effort":"low"},"#,
            r#""safety_identifier":null,"temperature":0.5,"text":{"verbosity":"low","format":{"type":"text"}},"#,
            r#""tool_choice":"auto","tools":[{"type":"function","name":"f"}],"top_p":null,"user":"u"}"#,
        );
        let request = r#"{
            "user": "u", "tools": [ {"type": "function",
            "name": "f"} ], "temperature": 0.5, "text": {"verbosity" : "low"}, "input": "hi", "top_p": null,
            "reasoning": {"effort": "low"}, "parallel_tool_calls": false, "metadata": { "k": [1.0, true] },
            "max_output_tokens": 5, "instructions": "a \n b"
        }"#;
        assert_eq!(repeated(request), expected);
    }

    #[test]
    fn absent_fields_have_the_values_that_clients_expect() {
        let expected = concat!(
            r#"{"instructions":null,"max_output_tokens":null,"max_tool_calls":null,"metadata":{},"#,
            r#""parallel_tool_calls":true,"prompt_cache_key":null,"reasoning":{"effort":null,"summary":null},"#,
            r#""safety_identifier":null,"temperature":null,"text":{"format":{"type":"text"}},"#,
            r#""tool_choice":"auto","tools":[],"top_p":null,"user":null}"#,
        );
        assert_eq!(repeated("{}"), expected);
        assert_eq!(repeated(r#"{"text": null, "tools": null}"#), expected);
        assert!(repeated(r#"{"text": 5}"#).contains(r#""text":5,"#), "a wrong value is repeated as it is");
    }
}
