//! JSON schemas of the fields about tools, for the API's document.
//!
//! Not here: their checks (`tools`). The test `the_document_and_the_parsers_agree_field_by_field` compares both.

use schemars::{Schema, SchemaGenerator, json_schema};
use serde_json::{Value, json};

use super::{NAME_BYTES_MAX, TOOLS_MAX};

pub(super) fn web_search_options(_: &mut SchemaGenerator) -> Schema {
    json_schema!({"description": "Ignored: this worker does not search the web."})
}

pub(super) fn tools(_: &mut SchemaGenerator) -> Schema {
    let function = json_schema!({
        "type": "object",
        "properties": {
            "name": {"type": "string", "pattern": name_pattern()},
            "description": {"type": ["string", "null"]},
            "parameters": {"type": ["object", "null"], "description": "A JSON schema."},
            "strict": {"type": ["boolean", "null"]},
        },
        "required": ["name"],
    });
    json_schema!({
        "description": "Functions and custom tools that the model may call.",
        "type": ["array", "null"],
        "maxItems": TOOLS_MAX,
        "items": {"anyOf": [
            {
                "type": "object",
                "properties": {"type": {"const": "function"}, "function": function, "defer_loading": defer_loading()},
                "required": ["type", "function"],
            },
            {
                "type": "object",
                "properties": {"type": {"const": "custom"}, "custom": custom(), "defer_loading": defer_loading()},
                "required": ["type", "custom"],
            },
            {
                "description": "A function of another type: its client runs it.",
                "type": "object",
                "properties": {
                    "type": {"type": "string", "not": {"const": "custom"}},
                    "function": {"allOf": [function, has_parameters()]},
                    "defer_loading": defer_loading(),
                },
                "required": ["type", "function"],
            },
            {"allOf": [
                left_out(),
                {"not": {"properties": {"function": has_parameters()}, "required": ["function"]}},
            ]},
        ]},
    })
}

/// Returns the schema of a function with a schema of its parameters.
fn has_parameters() -> Schema {
    json_schema!({"type": "object", "properties": {"parameters": {"type": "object"}}, "required": ["parameters"]})
}

/// Returns the schema of the field with which a tool waits.
pub(super) fn defer_loading() -> Value {
    json!({
        "type": ["boolean", "null"],
        "description": "Whether the tool is not shown to the model until the conversation loads it.",
    })
}

/// Returns the schema of a custom tool.
fn custom() -> Schema {
    let grammar = json_schema!({
        "type": "object",
        "description": "Shown to the model, but not enforced.",
        "properties": {"syntax": {"type": "string"}, "definition": {"type": "string"}},
        "required": ["syntax", "definition"],
    });
    let format = json_schema!({"anyOf": [
        {"type": "object", "properties": {"type": {"const": "text"}}, "required": ["type"]},
        {
            "type": "object",
            "properties": {"type": {"const": "grammar"}, "grammar": grammar},
            "required": ["type", "grammar"],
        },
        {"type": "null"},
    ]});
    json_schema!({
        "type": "object",
        "description": "A tool that takes one free text.",
        "properties": {
            "name": {"type": "string", "pattern": name_pattern()},
            "description": {"type": ["string", "null"]},
            "format": format,
        },
        "required": ["name"],
    })
}

/// Returns the schema of a tool that is left out.
fn left_out() -> Schema {
    json_schema!({
        "type": "object",
        "description": "Ignored: this worker does not run it.",
        "properties": {"type": {"type": "string", "not": {"enum": ["function", "custom"]}}},
        "required": ["type"],
    })
}

/// Returns the pattern of function names.
pub(super) fn name_pattern() -> String {
    format!("^[A-Za-z0-9_.:/-]{{1,{NAME_BYTES_MAX}}}$")
}

pub(super) fn tool_choice(_: &mut SchemaGenerator) -> Schema {
    let named_schema = |kind: &str| {
        let tool = json_schema!({"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]});
        json_schema!({
            "type": "object",
            "properties": {"type": {"const": kind}, kind: tool},
            "required": ["type", kind],
        })
    };
    let (function, custom) = (named_schema("function"), named_schema("custom"));
    let allowed_schema = json_schema!({
        "type": "object",
        "description": "The only tools that may be called.",
        "properties": {
            "mode": {"enum": ["auto", "required"]},
            "tools": {"type": "array", "minItems": 1, "items": {"anyOf": [function, custom, left_out()]}},
        },
        "required": ["mode", "tools"],
    });
    json_schema!({
        "description": "Whether and which tools the model must or may call.",
        "anyOf": [
            {"enum": ["none", "auto", "required", null]},
            function,
            custom,
            {
                "type": "object",
                "properties": {"type": {"const": "allowed_tools"}, "allowed_tools": allowed_schema},
                "required": ["type", "allowed_tools"],
            },
        ],
    })
}

pub(super) fn reasoning_format(_: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "description": "Field for the model's reasoning: `reasoning_content` (`auto`, `deepseek`), the content (`none`), or both.",
        "enum": ["auto", "deepseek", "none", "deepseek-legacy", null],
    })
}
