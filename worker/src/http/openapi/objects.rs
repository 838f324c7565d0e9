//! The schemas of responses and small requests that are assembled as untyped JSON.
//!
//! Not here: responses with types of their own. The worker's HTTP tests compare every response that they see with these
//! schemas.

use serde_json::{Map, Value, json};

use super::reference;
use crate::http::fleet::pins;
use crate::http::llama_server::slots;

/// Returns each schema by its name.
pub(super) fn schemas() -> Map<String, Value> {
    let mut all: Map<String, Value> = [native(), tokens(), models(), slots(), cache(), transfers(), health()]
        .into_iter()
        .flatten()
        .map(|(name, fields)| (name.to_owned(), object(fields)))
        .collect();
    all.extend(requests());
    all.insert("NativeAnswers".to_owned(), one_or_many("NativeAnswer"));
    for name in ["Model", "ModelList"] {
        let shapes = ["OpenAi", "Anthropic"].map(|api| reference(&format!("{api}{name}")));
        all.insert(name.to_owned(), json!({"anyOf": shapes}));
    }
    for name in ["NativeAnswer", "NativeEvent"] {
        // Fields requested by `response_fields` are named by their path.
        all[name]["patternProperties"] = json!({"/": {}});
    }
    let slots = json!({"type": "array", "items": object(slot())});
    all.insert("Slots".to_owned(), slots);
    all
}

/// Returns the schema of an object. A field is a schema, or its type (`"string"`, `"string|null"`), or the name of
/// another schema (`"#Pin"`), or an array of one of these. All fields are required except those whose names end with a
/// question mark.
fn object(fields: Value) -> Value {
    let Value::Object(fields) = fields else { return fields };
    let mut properties = Map::new();
    let mut required_fields: Vec<Value> = Vec::new();
    for (name, field) in fields {
        match name.strip_suffix('?') {
            Some(name) => drop(properties.insert(name.to_owned(), schema(field))),
            None => {
                required_fields.push(name.clone().into());
                properties.insert(name, schema(field));
            }
        }
    }
    json!({"type": "object", "properties": properties, "required": required_fields})
}

fn schema(field: Value) -> Value {
    match field {
        Value::String(word) => match word.strip_prefix('#') {
            Some(name) => reference(name),
            None => json!({"type": word.split('|').collect::<Vec<_>>()}),
        },
        Value::Array(mut items) => json!({"type": "array", "items": schema(items.pop().unwrap_or_default())}),
        schema => schema,
    }
}

fn one_or_many(name: &str) -> Value {
    json!({"anyOf": [reference(name), {"type": "array", "items": reference(name)}]})
}

type Named = Vec<(&'static str, Value)>;

/// Returns llama-server's responses. With `response_fields` a response has only these, so none is required.
fn native() -> Named {
    let event = json!({
        "index": "integer",
        "content": "string",
        "tokens": ["integer"],
        "stop": "boolean",
        "id_slot": "integer|null",
        "tokens_predicted": "integer",
        "tokens_evaluated": "integer",
        "completion_probabilities?": ["#NativeProbability"],
    });
    let mut whole_answer = event.clone();
    let end_fields = json!({
        "model": "string|null",
        "generation_settings": "object",
        "prompt": "string|null",
        "has_new_line": "boolean",
        "truncated": "boolean",
        "stop_type": {"enum": ["eos", "word", "limit"]},
        "stopping_word": "string",
        "tokens_cached": "integer",
        "timings": "#Timings",
    });
    if let (Value::Object(whole_answer), Value::Object(end_fields)) = (&mut whole_answer, &end_fields) {
        whole_answer.extend(end_fields.clone());
    }
    let optional = |fields: &Value| -> Value {
        let fields = fields.as_object().into_iter().flatten();
        let optional_fields = fields.map(|(name, field)| (format!("{}?", name.trim_end_matches('?')), field.clone()));
        optional_fields.collect::<Map<_, _>>().into()
    };
    let likely =
        json!({"id": "integer", "token": "string", "bytes": ["integer"], "logprob?": "number", "prob?": "number"});
    let mut chosen_token = likely.clone();
    chosen_token["top_logprobs?"] = json!(["#NativeLikely"]);
    chosen_token["top_probs?"] = json!(["#NativeLikely"]);
    let last = optional(&whole_answer);
    vec![
        ("NativeAnswer", last.clone()),
        ("NativeEvent", {
            let mut event = last;
            event["error?"] = json!("#ErrorObject");
            event
        }),
        ("NativeProbability", chosen_token),
        ("NativeLikely", likely),
    ]
}

fn tokens() -> Named {
    let piece = json!({"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "integer"}}]});
    let with_piece = object(json!({"id": "integer", "piece": piece}));
    vec![
        ("Tokens", json!({"tokens": [{"anyOf": [{"type": "integer"}, with_piece]}]})),
        ("Text", json!({"content": "string"})),
        ("RenderedPrompt", json!({"prompt": "string"})),
        ("InputTokens", json!({"input_tokens": "integer"})),
        ("ResponseInputTokens", json!({"object": {"const": "response.input_tokens"}, "input_tokens": "integer"})),
    ]
}

fn models() -> Named {
    vec![
        ("ModelOrdered", json!({"success": "boolean"})),
        ("OpenAiModelList", json!({"object": {"const": "list"}, "data": ["#OpenAiModel"]})),
        (
            "AnthropicModelList",
            json!({
                "data": ["#AnthropicModel"],
                "has_more": "boolean",
                "first_id": "string|null",
                "last_id": "string|null",
            }),
        ),
        (
            "AnthropicModel",
            json!({
                "type": {"const": "model"},
                "id": "string",
                "display_name": "string",
                "created_at": "string",
                "max_input_tokens": "integer",
                "max_tokens": "integer",
            }),
        ),
        (
            "OpenAiModel",
            json!({
                "id": "string",
                "object": {"const": "model"},
                "created": "integer",
                "owned_by": "string",
                "parent?": "string|null",
                "capabilities": ["string"],
                "modalities": object(json!({"vision": "boolean", "audio": "boolean"})),
                "architecture": object(json!({"input_modalities": ["string"], "output_modalities": ["string"]})),
                "status": object(json!({"value": "string", "progress?": "number|object", "failed?": "boolean"})),
                "can_remove?": "boolean",
                "aliases?": ["string"],
                "meta": "object",
            }),
        ),
        (
            "Props",
            json!({
                "default_generation_settings": object(json!({"n_ctx": "integer", "params?": "object"})),
                "total_slots": "integer",
                "model_alias?": "string|null",
                "model_path?": "string",
                "media_marker?": "string",
                "modalities?": object(json!({"vision": "boolean", "audio": "boolean"})),
                "chat_template?": "string",
                "chat_template_caps?": "object",
                "chat_template_kwargs?": "object",
                "bos_token?": "string",
                "eos_token?": "string",
                "is_sleeping?": "boolean",
                "build_info": "string",
                "role?": "string",
                "models_autoload?": "boolean",
                "max_instances?": "integer",
                "model_info?": "object",
                "memory?": "object|null",
                "flash_attn?": "boolean",
                "kv_unified?": "boolean",
                "self_test?": {},
            }),
        ),
    ]
}

fn slot() -> Value {
    let next = object(json!({"has_next_token": "boolean", "n_remain": "integer", "n_decoded": "integer"}));
    json!({
        "id": "integer",
        "n_ctx": "integer",
        "speculative": "boolean",
        "is_processing": "boolean",
        "request_id": "string|null",
        "n_prompt_tokens": "integer",
        "n_prompt_tokens_cache": "integer",
        "n_held_tokens": "integer",
        "n_exact_tokens": "integer",
        "next_token": [next],
    })
}

fn slots() -> Named {
    let action = json!({
        "id_slot": "integer",
        "filename?": "string",
        "n_saved?": "integer",
        "n_written?": "integer",
        "n_restored?": "integer",
        "n_read?": "integer",
        "n_erased?": "integer",
        "timings?": "object",
    });
    vec![("SlotAction", action)]
}

fn cache() -> Named {
    let entry = json!({
        "id": "integer",
        "kind": {"enum": ["chunk", "checkpoint"]},
        "tier": "string",
        "on_disk": "boolean",
        "first_token": "integer",
        "tokens": "integer",
        "bytes": "integer",
        "hits": "integer",
        "age_s": "number",
        "idle_s": "number",
        "pinned": "boolean",
    });
    let limits = json!({
        "resident_tokens": "integer",
        "ram_bytes": "integer",
        "disk_bytes": "integer",
        "min_hold_s": "number",
        "block_tokens": "integer",
        "chunk_tokens": "integer",
    });
    let totals = json!({"entries": "integer", "tokens": "integer", "bytes": "integer"});
    let mut evicted_totals = totals.clone();
    evicted_totals["tier"] = json!("string");
    evicted_totals["reason"] = json!("string");
    let tenant = json!({
        "tenant": "string", "resident_tokens": "integer", "ram_bytes": "integer", "disk_bytes": "integer",
    });
    let pin = json!({
        "id": "string", "tokens": "integer", "blocks": "integer", "stored_bytes": "integer", "kept_bytes": "integer",
    });
    vec![
        ("Totals", totals),
        ("Tiers", json!({"resident": "#Totals", "ram": "#Totals", "disk": "#Totals"})),
        (
            "Cache",
            json!({
                "tiers": "#Tiers",
                "limits": object(limits),
                "evicted": [object(evicted_totals)],
                "tenants": [object(tenant)],
                "pins": ["#Pin"],
                "entries": [object(entry)],
                "next_after": "integer|null",
            }),
        ),
        ("Cleared", json!({"cleared": "#Tiers"})),
        ("Pin", pin),
        ("Pins", json!({"pins": ["#Pin"]})),
        ("Unpinned", json!({"id": "string", "unpinned": {"const": true}})),
    ]
}

fn health() -> Named {
    let error = json!({
        "message": "string", "type": "string", "code": {"type": ["string", "integer", "null"]}, "param?": "string|null",
    });
    vec![
        ("Status", json!({"status": {"const": "ok"}})),
        ("Unready", json!({"status": "string", "progress?": "number", "reason?": "string"})),
        ("Unhealthy", json!({"error": object(error)})),
        (
            "Document",
            json!({"openapi": "string", "info": "object", "servers": ["object"], "tags": ["object"], "paths": "object", "components": "object", "security": ["object"]}),
        ),
        ("Summary", json!({"stamp": {}, "model": "object", "runs": ["object"], "load": "object"})),
    ]
}

fn transfers() -> Named {
    let prefix = json!({"root": "string", "like?": ["integer"], "tokens": ["integer"]});
    let mut item = prefix.clone();
    item["peer"] = json!("string");
    vec![
        ("MediaLayout", json!({"parts": ["object"]})),
        ("HotPrefixes", json!({"block_size_tokens": "integer", "prefixes": ["#HotPrefix"]})),
        ("HotPrefix", prefix),
        ("PrefetchItem", item),
        ("PrefetchRequest", json!({"prefixes": ["#PrefetchItem"]})),
        ("Prefetching", json!({"prefixes": "integer"})),
    ]
}

/// Returns the requests of operators.
fn requests() -> Map<String, Value> {
    let filename = json!({
        "type": "string",
        "minLength": 1,
        "maxLength": slots::FILENAME_BYTES_MAX,
        "pattern": r#"^[^.\u0000-\u001f\u007f-\u009f/\\:*?"<>|][^\u0000-\u001f\u007f-\u009f/\\:*?"<>|]*$"#,
    });
    let pin = json!({
        "type": "object",
        "description": "The fields of a chat's prompt, or one `prompt`.",
        "properties": {
            "name": {"type": ["string", "null"], "pattern": format!("^[A-Za-z0-9_.-]{{1,{}}}$", pins::NAME_BYTES_MAX)},
            "cache_salt": {"type": ["string", "null"], "minLength": 1},
            "model": {"type": ["string", "null"]},
            "messages": {"type": ["array", "null"]},
            "prompt": {"type": ["string", "array", "object", "null"]},
        },
    });
    let file = json!({"type": "object", "properties": {"filename": filename}});
    let order = json!({"type": "object", "properties": {"model": {"type": "string"}}, "required": ["model"]});
    [("SlotFileRequest", file), ("PinRequest", pin), ("ModelOrder", order)]
        .map(|(name, schema)| (name.to_owned(), schema))
        .into_iter()
        .collect()
}
