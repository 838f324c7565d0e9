//! Conversion of custom tools, which take one free text, to functions of a chat: the tools, their calls, and those in a
//! chat.
//!
//! Chat templates and llama.cpp's chat formats know only functions. Router and worker convert a chat when they read it,
//! so both render the same prompt. A tool or call that does not have OpenAI's shape stays as it is, and the worker's
//! checks refuse it.

use serde_json::{Map, Value, json};

/// Type of a custom tool, of a call to it and of the choice that requires one.
pub const CUSTOM: &str = "custom";

/// Name of the argument of a tool that takes one free text.
pub const FREE_TEXT: &str = "input";

/// Returns a tool's description with the grammar of its text. The model sees the grammar, and nothing enforces it,
/// because the text is written as a JSON string.
pub(crate) fn description_with_grammar(description: &str, syntax: &str, definition: &str) -> String {
    let joint = if description.is_empty() { "" } else { "\n\n" };
    format!("{description}{joint}The input must follow this {syntax} grammar:\n{definition}")
}

/// Returns the fields, beside its name, of a function that takes a custom tool's text.
pub(crate) fn free_text_fields(description: &str) -> Map<String, Value> {
    let mut fields = Map::new();
    if !description.is_empty() {
        fields.insert("description".to_owned(), description.into());
    }
    let parameters = json!({
        "type": "object",
        "properties": {FREE_TEXT: {"type": "string"}},
        "required": [FREE_TEXT],
        "additionalProperties": false,
    });
    fields.insert("parameters".to_owned(), parameters);
    fields
}

/// Returns the arguments of a call that has one free text.
pub(crate) fn free_text_arguments(text: &str) -> String {
    json!({FREE_TEXT: text}).to_string()
}

/// Returns a chat's custom tool as a function; absent for other tools.
pub fn function_of_custom(tool: &Value) -> Option<Value> {
    let custom = tool.get(CUSTOM)?.as_object().filter(|_| tool["type"] == CUSTOM)?;
    let name = custom.get("name")?.as_str()?;
    let description = custom.get("description").and_then(Value::as_str).unwrap_or_default();
    let with_grammar = |grammar: &Value| {
        Some(description_with_grammar(description, grammar["syntax"].as_str()?, grammar["definition"].as_str()?))
    };
    let grammar = custom.get("format").and_then(|format| format.get("grammar"));
    let description = grammar.and_then(with_grammar).unwrap_or_else(|| description.to_owned());
    let mut function = Map::from_iter([("name".to_owned(), name.into())]);
    function.extend(free_text_fields(&description));
    Some(json!({"type": "function", "function": function}))
}

/// Writes the calls of a chat's message to custom tools as calls of functions.
pub(crate) fn write_custom_calls(message: &mut Map<String, Value>) {
    let Some(Value::Array(calls)) = message.get_mut("tool_calls") else { return };
    for call in calls.iter_mut().filter(|call| call["type"] == CUSTOM) {
        let (Some(name), Some(input)) = (call[CUSTOM]["name"].as_str(), call[CUSTOM]["input"].as_str()) else {
            continue;
        };
        let mut function =
            json!({"type": "function", "function": {"name": name, "arguments": free_text_arguments(input)}});
        if let Some(id) = call.get("id") {
            function["id"] = id.clone();
        }
        *call = function;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_chat_s_custom_tool_is_a_function_of_one_text() {
        let format = json!({"type": "grammar", "grammar": {"syntax": "lark", "definition": "start: /x+/"}});
        let tool = json!({"type": "custom", "custom": {"name": "patch", "description": "Edits.", "format": format}});
        let function = function_of_custom(&tool).expect("it is custom")["function"].clone();
        assert_eq!(function["name"], "patch");
        assert_eq!(function["description"], "Edits.\n\nThe input must follow this lark grammar:\nstart: /x+/");
        assert_eq!(function["parameters"]["required"], json!(["input"]));
        let plain = function_of_custom(&json!({"type": "custom", "custom": {"name": "p", "format": {"type": "text"}}}));
        assert_eq!(plain.expect("it is custom")["function"].get("description"), None);
        for other in [
            json!({"type": "function", "function": {"name": "f"}, "custom": {"name": "f"}}),
            json!({"type": "custom", "name": "f"}),
            json!({"type": "custom", "custom": {"name": 5}}),
            json!("custom"),
            json!(null),
        ] {
            assert_eq!(function_of_custom(&other), None, "{other}");
        }
    }

    #[test]
    fn calls_to_custom_tools_become_calls_of_functions_and_others_stay() {
        let own = json!({"id": "a", "type": "function", "function": {"name": "f", "arguments": "{}"}});
        let broken = json!({"id": "b", "type": "custom", "custom": {"name": "p"}});
        let custom = json!({"id": "c", "type": "custom", "custom": {"name": "p", "input": "say \"x\"\n"}});
        let mut message = json!({"role": "assistant", "tool_calls": [own, broken, custom, 5]});
        write_custom_calls(message.as_object_mut().expect("an object"));
        let arguments = "{\"input\":\"say \\\"x\\\"\\n\"}";
        let function = json!({"id": "c", "type": "function", "function": {"name": "p", "arguments": arguments}});
        assert_eq!(message["tool_calls"], json!([own, broken, function, 5]));
    }
}
