//! The operations of a router in Ollama's format, with their schemas.
//!
//! A worker has none of them. Not here: the conversion (`warmpath_common::dialects::ollama`).

use serde_json::{Map, Value, json};

use super::operation::{Operation, SuccessBody, Tag, get, post};
use super::reference;

/// Statuses of errors.
const ERRORS: &[u16] = &[400, 403, 404, 408, 413, 415, 429, 500, 501, 502, 503, 504];

/// Returns the operations.
pub(super) fn operations() -> Vec<Operation> {
    let create = |path, request, answer| Operation { tag: Tag::Ollama, errors: ERRORS, ..post(path, request, answer) };
    let read = |path, schema| Operation { tag: Tag::Ollama, ..get(path, SuccessBody::Json(schema)) };
    vec![
        Operation {
            summary: "Responds to a conversation; without messages it loads the model, or unloads it.",
            ..create("/api/chat", "OllamaChatRequest", SuccessBody::JsonOrLines("OllamaChatAnswer"))
        },
        Operation {
            summary: "Responds to a prompt; without one it loads the model, or unloads it.",
            ..create("/api/generate", "OllamaGenerateRequest", SuccessBody::JsonOrLines("OllamaGenerateAnswer"))
        },
        Operation {
            summary: "Returns the vectors of texts.",
            ..create("/api/embed", "OllamaEmbedRequest", SuccessBody::Json("OllamaVectors"))
        },
        Operation {
            summary: "Returns the vector of a text.",
            ..create("/api/embeddings", "OllamaEmbeddingsRequest", SuccessBody::Json("OllamaVector"))
        },
        Operation {
            summary: "Describes a model.",
            parameters: &[],
            ..create("/api/show", "OllamaShowRequest", SuccessBody::Json("OllamaModel"))
        },
        Operation { summary: "Returns the models.", ..read("/api/tags", "OllamaModels") },
        Operation { summary: "Returns the models that are loaded.", ..read("/api/ps", "OllamaModels") },
        Operation { summary: "Returns the version of the API.", errors: &[], ..read("/api/version", "OllamaVersion") },
    ]
}

/// Returns each schema by its name; `chats` has that of a chat.
pub(super) fn schemas(chats: &Map<String, Value>) -> Map<String, Value> {
    let schemas = [requests(&chats["ChatRequest"]["properties"]), answers()];
    schemas
        .into_iter()
        .filter_map(|schemas| if let Value::Object(schemas) = schemas { Some(schemas) } else { None })
        .flatten()
        .collect()
}

fn requests(chat: &Value) -> Value {
    let text = json!({"type": ["string", "null"]});
    let switch = json!({"type": ["boolean", "null"]});
    let count = json!({"type": ["integer", "null"]});
    let files =
        json!({"description": "Images or audio in base64.", "type": ["array", "null"], "items": {"type": "string"}});
    let mut options = Map::new();
    for name in [
        "temperature",
        "top_k",
        "top_p",
        "min_p",
        "typical_p",
        "repeat_last_n",
        "repeat_penalty",
        "presence_penalty",
        "frequency_penalty",
        "mirostat",
        "mirostat_tau",
        "mirostat_eta",
        "seed",
        "stop",
    ] {
        options.insert(name.to_owned(), chat[name].clone());
    }
    let limit =
        json!({"description": "Maximum number of tokens; 0 and below are no limit.", "type": ["integer", "null"]});
    options.insert("num_predict".to_owned(), limit);
    options.insert("num_keep".to_owned(), chat["n_keep"].clone());
    let shared = json!({
        "model": text,
        "stream": {"description": "Absent means yes.", "type": ["boolean", "null"]},
        "keep_alive": {
            "description": "0 without a prompt unloads the model; nothing else has an effect.",
            "anyOf": [{"type": ["number", "null"]}, {"type": "string", "pattern": "^[0-9]{1,3}m$"}],
        },
        "options": {"anyOf": [reference("OllamaOptions"), {"type": "null"}]},
        "format": {"anyOf": [{"enum": ["json", "", null]}, {"type": "object", "description": "A JSON schema."}]},
        "think": {"enum": [true, false, "low", "medium", "high", "max", null]},
        "logprobs": switch,
        "top_logprobs": {"type": ["integer", "null"], "minimum": 0, "maximum": 20},
        "cache_salt": chat["cache_salt"],
        "cache_prompt": chat["cache_prompt"],
        "priority": chat["priority"],
        "chat_template_kwargs": chat["chat_template_kwargs"],
    });
    let with = |own: Value| {
        let mut properties = shared.clone();
        for (name, schema) in own.as_object().into_iter().flatten() {
            properties[name] = schema.clone();
        }
        json!({"type": "object", "properties": properties})
    };
    let call = json!({
        "type": "object",
        "properties": {
            "id": text,
            "function": {
                "type": "object",
                "properties": {"name": {"type": "string"}, "arguments": {"type": ["object", "null"]}},
                "required": ["name"],
            },
        },
        "required": ["function"],
    });
    let message = json!({
        "type": "object",
        "properties": {
            "role": {"enum": ["system", "user", "assistant", "tool"]},
            "content": text,
            "thinking": text,
            "images": files,
            "tool_calls": {"type": ["array", "null"], "items": call},
            "tool_name": text,
            "tool_call_id": text,
        },
        "required": ["role"],
    });
    json!({
        "OllamaOptions": {"type": "object", "properties": options},
        "OllamaChatRequest": with(json!({
            "messages": {"type": ["array", "null"], "items": message},
            "tools": {"type": ["array", "null"], "items": {"type": "object", "description": "A function, as in a chat."}},
        })),
        "OllamaGenerateRequest": with(json!({
            "prompt": text, "suffix": text, "system": text, "raw": switch, "images": files,
        })),
        "OllamaEmbedRequest": {"type": "object", "properties": {
            "model": text,
            "input": {"anyOf": [{"type": ["string", "null"]}, {"type": "array", "items": {"type": "string"}}]},
            "truncate": switch,
            "dimensions": count,
        }},
        "OllamaEmbeddingsRequest": {"type": "object", "properties": {"model": text, "prompt": text}},
        "OllamaShowRequest": {"type": "object", "properties": {"model": text, "name": text}},
    })
}

fn answers() -> Value {
    let (text, count) = (json!({"type": "string"}), json!({"type": "integer", "minimum": 0}));
    let list = |items: Value| json!({"type": "array", "items": items});
    let object = |required: &[&str], properties: Value| json!({"type": "object", "properties": properties, "required": required});
    let figures = json!({
        "model": text, "created_at": text, "done": {"type": "boolean"}, "done_reason": text, "total_duration": count,
        "load_duration": count, "prompt_eval_count": count, "prompt_eval_duration": count, "eval_count": count,
        "eval_duration": count, "logprobs": list(json!({"type": "object"})),
    });
    let with = |required: &[&str], own: Value| {
        let mut properties = figures.clone();
        for (name, schema) in own.as_object().into_iter().flatten() {
            properties[name] = schema.clone();
        }
        object(&[&["model", "created_at", "done"][..], required].concat(), properties)
    };
    let calls = list(json!({"type": "object"}));
    let message =
        object(&["role", "content"], json!({"role": text, "content": text, "thinking": text, "tool_calls": calls}));
    let details = json!({"type": "object"});
    let capabilities = list(text.clone());
    let listed = object(
        &["name", "model", "size", "digest", "details"],
        json!({
            "name": text, "model": text, "size": count, "digest": text, "details": details, "modified_at": text,
            "capabilities": capabilities, "expires_at": text, "size_vram": count, "context_length": count,
        }),
    );
    let numbers = list(json!({"type": "number"}));
    json!({
        "OllamaChatAnswer": with(&["message"], json!({"message": message})),
        "OllamaGenerateAnswer": with(&["response"], json!({"response": text, "thinking": text})),
        "OllamaVectors": object(&["model", "embeddings"], json!({
            "model": text, "embeddings": list(numbers.clone()), "total_duration": count, "load_duration": count,
            "prompt_eval_count": count,
        })),
        "OllamaVector": object(&["embedding"], json!({"embedding": numbers})),
        "OllamaModel": object(&["details", "model_info", "capabilities"], json!({
            "modelfile": text, "parameters": text, "template": text, "details": details,
            "model_info": {"type": "object"}, "capabilities": capabilities, "modified_at": text,
        })),
        "OllamaModels": object(&["models"], json!({"models": list(listed)})),
        "OllamaVersion": object(&["version"], json!({"version": text})),
        "OllamaError": object(&["error"], json!({"error": text})),
    })
}
