//! JSON schemas of fields that have an open type in Rust, for the OpenAPI document.
//!
//! The worker's test `the_document_and_the_readers_agree_field_by_field` compares the schemas with what is accepted.

use schemars::{Schema, SchemaGenerator, json_schema};
use serde_json::{Value, json};

/// Pattern of an image's URL: the image itself, in base64, or its place on a host that the operator lists.
pub const IMAGE_URL: &str = "^(data:[^,]*;base64,|https?://)";

/// Returns the schema of audio in a request.
pub fn audio() -> Schema {
    json_schema!({
        "type": "object",
        "properties": {
            "data": {"type": "string", "description": "The file in base64."},
            "format": {"description": "The file's format. It is ignored: the file's first bytes say it."},
        },
        "required": ["data"],
    })
}

/// Returns the schema of a conversation.
pub fn messages(_: &mut SchemaGenerator) -> Schema {
    let text = json_schema!({
        "type": "object",
        "properties": {
            "type": {"enum": ["text", "input_text", "output_text"]}, "text": {"type": ["string", "null"]},
        },
        "required": ["type", "text"],
    });
    let refusal = json_schema!({
        "type": "object",
        "properties": {"type": {"const": "refusal"}, "refusal": {"type": ["string", "null"]}},
        "required": ["type", "refusal"],
    });
    let url = json_schema!({
        "type": "object",
        "properties": {"url": {"type": "string", "pattern": IMAGE_URL}},
        "required": ["url"],
    });
    let image = json_schema!({
        "type": "object",
        "description": "An image, where the model reads images.",
        "properties": {"type": {"const": "image_url"}, "image_url": url},
        "required": ["type", "image_url"],
    });
    let audio = json_schema!({
        "type": "object",
        "description": "Audio, where the model reads audio.",
        "properties": {"type": {"const": "input_audio"}, "input_audio": audio()},
        "required": ["type", "input_audio"],
    });
    let other = other(&["text", "input_text", "output_text"]);
    let part = json_schema!({"anyOf": [text, refusal, image, audio, other]});
    let calls = json_schema!({"type": ["array", "null"], "items": {"type": "object"}});
    let result = json_schema!({
        "type": "object",
        "description": "A tool's result: text, parts, or any other JSON.",
        "properties": {"role": {"enum": ["tool", "function"]}, "content": result(part.as_value()), "tool_calls": calls},
        "required": ["role"],
    });
    let message = json_schema!({
        "type": "object",
        "properties": {
            "role": {"type": "string", "pattern": "^[A-Za-z0-9_. -]{1,64}$"},
            "content": {"anyOf": [{"type": "string"}, {"type": "array", "items": part}, {"type": "null"}]},
            "tool_calls": calls,
        },
        "required": ["role"],
    });
    json_schema!({
        "description": "The conversation, with each message as the template receives it.",
        "type": "array",
        "minItems": 1,
        "items": {"anyOf": [message, result]},
    })
}

/// Returns the schema of parts, blocks or items whose type is none of `known`.
pub fn other(known_types: &[&str]) -> Schema {
    json_schema!({
        "type": "object",
        "description": "Another type: in the history a short text is in its place, in the new message it is refused.",
        "properties": {"type": {"type": "string", "not": {"enum": known_types}}},
        "required": ["type"],
    })
}

/// Returns the schema of a tool's result: text, parts, or other JSON, which is a text.
pub fn result(part: &Value) -> Schema {
    let typed_part = json!({"type": "object", "properties": {"type": {"type": "string"}}, "required": ["type"]});
    json_schema!({
        "anyOf": [
            {"type": ["string", "null", "boolean", "number", "object"]},
            {"type": "array", "items": part},
            {"type": "array", "contains": {"not": typed_part}},
        ],
    })
}

/// Returns the schema of the template's variables.
pub fn template_variables(_: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "description": "Further variables for the chat template.",
        "type": ["object", "null"],
        "properties": {
            "enable_thinking": {"type": ["boolean", "null"]},
            "messages": false,
            "tools": false,
        },
    })
}
