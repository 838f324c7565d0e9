//! The schemas of the dialects' requests: their own fields, and those of a chat with the same meaning.
//!
//! Not here: the conversion (`warmpath_common::dialects`), which reads its fields one by one; the test
//! `the_document_and_the_parsers_agree_field_by_field` compares.

use serde_json::{Map, Value, json};
use warmpath_common::dialects::{DROPPED, anthropic, responses};
use warmpath_common::media::ImageFormat;
use warmpath_common::openai::schemas::{self, IMAGE_URL};
use warmpath_common::openai::tool_kinds::LEFT_OUT_KINDS;

use crate::tools::{defer_loading_schema, function_name_pattern};

/// Fields of a chat that have other formats in the two dialects.
const SPELLED_OTHERWISE: &[&str] = &["messages", "tools", "tool_choice", "response_format"];

/// Returns the schema of each request by its name; `chats` has that of a chat.
pub(super) fn schemas(chats: &Map<String, Value>) -> Map<String, Value> {
    let of_chat = &chats["ChatRequest"]["properties"];
    let mut schemas = Map::new();
    let mut add = |name: &str, required_fields: &[&str], properties: Map<String, Value>| {
        schemas
            .insert(name.to_owned(), json!({"type": "object", "properties": properties, "required": required_fields}));
    };
    let own_fields = messages();
    add(
        "MessagesRequest",
        &["messages", "max_tokens"],
        with_chat(&own_fields, of_chat, &[DROPPED, anthropic::DROPPED].concat()),
    );
    add("CountTokensRequest", &["messages"], with_prompt(&own_fields, of_chat, &[]));
    let own_fields = response();
    add("ResponsesRequest", &["input"], with_chat(&own_fields, of_chat, &[DROPPED, responses::DROPPED].concat()));
    add("InputTokensRequest", &["input"], with_prompt(&own_fields, of_chat, &["parallel_tool_calls"]));
    schemas
}

/// Returns a dialect's own fields and those of a chat that it does not drop.
fn with_chat(own_fields: &Map<String, Value>, chat: &Value, dropped_fields: &[&str]) -> Map<String, Value> {
    let mut properties = own_fields.clone();
    for (name, schema) in chat.as_object().into_iter().flatten() {
        if !dropped_fields.contains(&name.as_str()) && !SPELLED_OTHERWISE.contains(&name.as_str()) {
            properties.entry(name.as_str()).or_insert_with(|| schema.clone());
        }
    }
    properties
}

/// Returns a dialect's own fields, with the fields of a chat that decide its prompt.
fn with_prompt(own_fields: &Map<String, Value>, chat: &Value, more: &[&str]) -> Map<String, Value> {
    let mut properties = own_fields.clone();
    for name in ["max_tokens", "max_output_tokens"] {
        properties.shift_remove(name);
    }
    for name in ["model", "chat_template_kwargs", "cache_salt", "reasoning_format"].iter().chain(more) {
        properties.insert((*name).to_owned(), chat[*name].clone());
    }
    properties
}

fn fields(properties: Value) -> Map<String, Value> {
    let Value::Object(properties) = properties else { return Map::new() };
    properties
}

/// Returns an object of a fixed `type`, with other fields.
fn tagged(kind: &str, properties: Value, required_fields: &[&str]) -> Value {
    let mut all = fields(json!({"type": {"const": kind}}));
    all.extend(fields(properties));
    let required_fields: Vec<&str> = ["type"].into_iter().chain(required_fields.iter().copied()).collect();
    json!({"type": "object", "properties": all, "required": required_fields})
}

/// Returns the schema of a text or a list of parts, or neither.
fn text_or(parts: &[Value]) -> Value {
    json!({"anyOf": [{"type": "string"}, {"type": "array", "items": {"anyOf": parts}}, {"type": "null"}]})
}

/// Returns the schema of a text that may be null.
fn nullable_text() -> Value {
    json!({"type": ["string", "null"]})
}

fn messages() -> Map<String, Value> {
    let cache = json!({
        "description": "Protects the request's cached state from eviction for longer.",
        "type": ["object", "null"],
        "properties": {"type": {"const": "ephemeral"}, "ttl": {"enum": ["5m", "1h", null]}},
        "required": ["type"],
    });
    let text = tagged("text", json!({"text": nullable_text(), "cache_control": cache}), &["text"]);
    let contents = text_or(std::slice::from_ref(&text));
    fields(json!({
        "messages": {
            "description": "The conversation.",
            "type": "array",
            "minItems": 1,
            "items": {"anyOf": messages_of_roles(&text, &cache)},
        },
        "system": contents,
        "max_tokens": {
            "description": "Maximum number of tokens of the response; 0 only computes the prompt, -1 is no limit.",
            "anyOf": [{"const": -1}, {"type": "integer", "minimum": 0, "maximum": i64::MAX}],
        },
        "tools": {"type": ["array", "null"], "items": tool(&cache)},
        "tool_choice": tool_choice(),
        "stop_sequences": {
            "description": "Texts before which the response ends, at most 512 bytes each.",
            "type": ["array", "null"],
            "items": {"type": "string", "maxLength": 512},
            "maxItems": 32,
        },
        "thinking": {
            "type": ["object", "null"],
            "properties": {"type": {"enum": ["enabled", "adaptive", "disabled"]}},
            "required": ["type"],
        },
        "output_config": {
            "type": ["object", "null"],
            "properties": {"effort": {"type": ["string", "null"]}, "format": output_format()},
        },
        "output_format": output_format(),
        "cache_control": cache,
        "mcp_servers": {"type": ["array", "null"], "description": "Ignored: this worker does not call MCP servers."},
        "container": {"type": ["array", "null"], "maxItems": 0},
    }))
}

/// Returns the schemas of the messages of each role; `text` is that of a block of text.
fn messages_of_roles(text: &Value, cache: &Value) -> Value {
    let other = |known_kinds: &[&str]| {
        let mut other = schemas::other(known_kinds).to_value();
        other["properties"]["cache_control"] = cache.clone();
        other
    };
    let results = schemas::result(&json!({"anyOf": [text, image(cache), other(&["text", "image"])]}));
    let other = other(&["text", "image", "tool_result", "tool_use", "thinking", "redacted_thinking"]);
    let result = json!({"tool_use_id": {"type": "string"}, "content": results, "cache_control": cache});
    let call = json!({
        "id": {"type": "string"}, "name": {"type": "string"}, "input": {"type": "object"}, "cache_control": cache,
    });
    let of_user = [text.clone(), image(cache), tagged("tool_result", result, &["tool_use_id"]), other.clone()];
    let of_assistant = [
        of_servers(cache),
        text.clone(),
        image(cache),
        other.clone(),
        tagged("tool_use", call, &["id", "name", "input"]),
        tagged("thinking", json!({"thinking": nullable_text(), "cache_control": cache}), &["thinking"]),
        tagged("redacted_thinking", json!({"cache_control": cache}), &[]),
    ];
    let of_system = [text.clone(), image(cache), other];
    let message = |role: &str, blocks: &[Value]| {
        json!({
            "type": "object",
            "properties": {"role": {"const": role}, "content": text_or(blocks)},
            "required": ["role", "content"],
        })
    };
    json!([message("user", &of_user), message("assistant", &of_assistant), message("system", &of_system)])
}

/// Returns the schema of a block with an image.
fn image(cache: &Value) -> Value {
    let media_types = ImageFormat::ALL.map(ImageFormat::media_type);
    let data = json!({"media_type": {"enum": media_types}, "data": {"type": "string"}});
    let data = tagged("base64", data, &["media_type", "data"]);
    let url = tagged("url", json!({"url": {"type": "string", "pattern": "^https?://"}}), &["url"]);
    let other = schemas::other(&["base64", "url"]);
    tagged("image", json!({"source": {"anyOf": [data, url, other]}, "cache_control": cache}), &["source"])
}

/// Returns the schema of a block about a tool that Anthropic's servers executed.
fn of_servers(cache: &Value) -> Value {
    json!({
        "type": "object",
        "description": "Ignored: a tool that Anthropic's servers executed, or a mark that no model is shown.",
        "properties": {
            "type": {"type": "string", "pattern": "^(.+_tool_(use|result)|mcp_tool_listing|fallback)$"},
            "cache_control": cache,
        },
        "required": ["type"],
    })
}

fn tool(cache: &Value) -> Value {
    let name = json!({"type": "string", "pattern": function_name_pattern()});
    let own_items = json!({
        "type": "object",
        "properties": {
            "type": {"type": ["string", "null"]},
            "name": name,
            "description": {"type": ["string", "null"]},
            "input_schema": {"type": "object", "description": "A JSON schema."},
            "input_examples": {"type": ["array", "null"], "description": "Become `examples` of the schema."},
            "strict": {"type": ["boolean", "null"]},
            "defer_loading": defer_loading_schema(),
            "cache_control": cache,
        },
        "required": ["name", "input_schema"],
    });
    let known_items = json!({
        "type": "object",
        "properties": {
            "type": {"type": "string", "pattern": format!("^({})_", anthropic::CLIENT_KINDS.join("|"))},
            "name": name,
            "defer_loading": defer_loading_schema(),
            "cache_control": cache,
        },
        "required": ["type", "name"],
    });
    let clients = format!("^(custom$|({})_)", anthropic::CLIENT_KINDS.join("|"));
    let mut left_out = left_out_tool(&clients, "input_schema");
    left_out["properties"]["cache_control"] = cache.clone();
    json!({"anyOf": [own_items, known_items, left_out]})
}

/// Returns the schema of an ignored tool or item.
fn left_out(kinds: &[&str]) -> Value {
    json!({
        "type": "object",
        "description": "Ignored: this worker does not execute it.",
        "properties": {"type": {"type": "string", "pattern": format!("^({})(_|$)", kinds.join("|"))}},
        "required": ["type"],
    })
}

/// Returns the schema of a tool that is left out: its type does not match the pattern `callable`, and it has no schema
/// in the field `schema`.
fn left_out_tool(callable: &str, schema: &str) -> Value {
    json!({
        "type": "object",
        "description": "Ignored: this worker does not execute it.",
        "properties": {"type": {"type": "string", "not": {"pattern": callable}}},
        "required": ["type"],
        "not": {"properties": {schema: {"type": "object"}}, "required": [schema]},
    })
}

fn tool_choice() -> Value {
    let parallel = json!({"disable_parallel_tool_use": {"type": ["boolean", "null"]}});
    let mut named_choice = parallel.clone();
    named_choice["name"] = json!({"type": "string"});
    json!({"anyOf": [
        tagged("auto", parallel.clone(), &[]),
        tagged("any", parallel.clone(), &[]),
        tagged("none", parallel, &[]),
        tagged("tool", named_choice, &["name"]),
        {"type": "null"},
    ]})
}

fn output_format() -> Value {
    let mut format = tagged("json_schema", json!({"schema": {"type": "object"}}), &["schema"]);
    format["type"] = json!(["object", "null"]);
    format
}

fn response() -> Map<String, Value> {
    let items = json!({"type": "array", "items": {"anyOf": response_items()}});
    let not_stored = json!({"enum": [false, null], "description": "Not supported: responses are not stored."});
    fields(json!({
        "input": {"description": "The conversation.", "anyOf": [{"type": "string"}, items]},
        "instructions": {"type": ["string", "null"], "description": "Text before the conversation."},
        "max_output_tokens": {
            "description": "Maximum number of tokens of the response; 0 only computes the prompt, -1 is no limit.",
            "anyOf": [{"const": -1}, {"type": "integer", "minimum": 0, "maximum": i64::MAX}, {"type": "null"}],
        },
        "prompt_cache_options": {
            "type": ["object", "null"],
            "properties": {
                "prewarm": {
                    "description": "Whether the request only computes the prompt, for later requests.",
                    "type": ["boolean", "null"],
                },
            },
        },
        "tools": {"type": ["array", "null"], "items": response_tool()},
        "tool_choice": response_tool_choice(),
        "text": {"type": ["object", "null"], "properties": {"format": text_format()}},
        "reasoning": {"type": ["object", "null"], "properties": {"effort": {"type": ["string", "null"]}}},
        "include": {"type": ["array", "null"], "items": {"not": {"const": "message.output_text.logprobs"}}},
        "top_logprobs": {"enum": [0, null]},
        "previous_response_id": not_stored,
        "conversation": not_stored,
        "prompt": not_stored,
        "background": not_stored,
        "personality": {"enum": [false, null], "description": "Not supported."},
    }))
}

/// Returns the schemas of the items of an input.
fn response_items() -> [Value; 8] {
    let parts = response_parts();
    let results = schemas::result(&json!({ "anyOf": parts }));
    let reasoning = json!({
        "type": ["array", "null"],
        "items": {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]},
    });
    let message = json!({
        "type": "object",
        "properties": {
            "type": {"enum": ["message", null]},
            "role": {"enum": ["user", "assistant", "system", "developer"]},
            "content": text_or(&parts),
        },
        "required": ["role", "content"],
    });
    let strings = |names: &[&str]| -> Value {
        names.iter().map(|name| ((*name).to_owned(), json!({"type": "string"}))).collect::<Map<_, _>>().into()
    };
    let call = |kind: &str, argument: &str, types: Value| {
        let names = ["call_id", "name", argument];
        let mut properties = strings(&names);
        properties[argument] = json!({"type": types});
        properties["namespace"] = json!({"type": ["string", "null"]});
        tagged(kind, properties, &names)
    };
    let output =
        |kind: &str| tagged(kind, json!({"call_id": {"type": ["string", "null"]}, "output": results}), &["output"]);
    let reasoning = tagged("reasoning", json!({"content": reasoning, "summary": reasoning}), &[]);
    [
        message,
        call("function_call", "arguments", json!(["string", "object"])),
        call("custom_tool_call", "input", json!("string")),
        output("function_call_output"),
        output("custom_tool_call_output"),
        reasoning,
        left_out(LEFT_OUT_KINDS),
        schemas::other(&[
            "message",
            "reasoning",
            "item_reference",
            "function_call",
            "function_call_output",
            "custom_tool_call",
            "custom_tool_call_output",
        ])
        .to_value(),
    ]
}

/// Returns the schemas of the parts of a message or a result.
fn response_parts() -> [Value; 8] {
    let text = |kind: &str| tagged(kind, json!({"text": nullable_text()}), &["text"]);
    let refusal = tagged("refusal", json!({"refusal": nullable_text()}), &["refusal"]);
    let image = tagged("input_image", json!({"image_url": {"type": "string", "pattern": IMAGE_URL}}), &["image_url"]);
    let audio = tagged("input_audio", json!({"input_audio": schemas::audio()}), &["input_audio"]);
    let stored_image = tagged("input_image", json!({"file_id": {"not": {"type": "null"}}}), &["file_id"]);
    let other =
        schemas::other(&["input_text", "output_text", "text", "refusal", "input_image", "input_audio"]).to_value();
    [text("input_text"), text("output_text"), text("text"), refusal, image, stored_image, audio, other]
}

fn response_tool_choice() -> Value {
    let named_tool = json!({"name": {"type": "string"}, "namespace": {"type": ["string", "null"]}});
    let function = tagged("function", named_tool.clone(), &["name"]);
    let custom = tagged("custom", named_tool, &["name"]);
    let other = left_out_tool("^(function|custom)$", "");
    let allowed_tools = json!({
        "mode": {"enum": ["auto", "required"]},
        "tools": {"type": "array", "minItems": 1, "items": {"anyOf": [&function, &custom, other]}},
    });
    json!({"anyOf": [
        {"enum": ["none", "auto", "required", null]},
        function,
        custom,
        tagged("allowed_tools", allowed_tools, &["mode", "tools"]),
    ]})
}

fn response_tool() -> Value {
    let name = json!({"type": "string", "pattern": function_name_pattern()});
    let function = json!({
        "name": name,
        "description": {"type": ["string", "null"]},
        "parameters": {"type": ["object", "null"], "description": "A JSON schema."},
        "strict": {"type": ["boolean", "null"]},
        "defer_loading": defer_loading_schema(),
    });
    let grammar = json!({"syntax": {"type": "string"}, "definition": {"type": "string"}});
    let format = json!({"anyOf": [
        tagged("text", json!({}), &[]),
        tagged("grammar", grammar, &["syntax", "definition"]),
        {"type": "null"},
    ]});
    let description = json!({"type": ["string", "null"]});
    let custom = json!({
        "name": name, "description": description, "format": format, "defer_loading": defer_loading_schema(),
    });
    let mut typed_tool = tagged("", function.clone(), &["name", "parameters"]);
    typed_tool["properties"]["type"] = json!({"type": "string", "not": {"pattern": "^(custom|namespace)$"}});
    typed_tool["properties"]["parameters"] = json!({"type": "object", "description": "A JSON schema."});
    let mut left_out = left_out_tool("^(function|custom|namespace)$", "parameters");
    left_out["not"]["required"] = json!(["name", "parameters"]);
    let (function, custom) = (tagged("function", function, &["name"]), tagged("custom", custom, &["name"]));
    let callable = [function, custom, typed_tool, left_out];
    let namespace = json!({"name": name, "tools": {"type": "array", "items": {"anyOf": &callable}}});
    let namespace = tagged("namespace", namespace, &["name", "tools"]);
    let tools: Vec<Value> = callable.into_iter().chain([namespace]).collect();
    json!({"anyOf": tools})
}

fn text_format() -> Value {
    let schema = json!({
        "name": {"type": "string"},
        "description": {"type": ["string", "null"]},
        "strict": {"type": ["boolean", "null"]},
        "schema": {"type": ["object", "boolean"]},
    });
    json!({"anyOf": [
        tagged("text", json!({}), &[]),
        tagged("json_object", json!({}), &[]),
        tagged("json_schema", schema, &["name", "schema"]),
        {"type": "null"},
    ]})
}
