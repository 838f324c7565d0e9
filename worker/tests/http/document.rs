//! The OpenAPI document and the parsers of requests agree: every documented field is sent with valid and invalid
//! values, and the worker refuses exactly the bodies that do not match the document.
//!
//! Each example is changed in one place at a time, at every place that the example or the document has, to values of
//! every type and at every bound; the schema and the worker must agree on the result. Conditions that a schema cannot
//! express are listed as exceptions, by the worker's error. Not here: responses (`contract`).

use std::collections::HashSet;

use futures::StreamExt;
use serde_json::{Map, Value, json};

use crate::contract::{DOCUMENT, validator};
use crate::harness::{TestWorker, user};

/// Errors of the worker for bodies that match the document, for reasons that no schema can express.
const EXCEPTIONS: &[&str] = &[
    "the prompt is empty",
    "the vocabulary has",
    "`prompt` has a text that is empty",
    "choices are requested",
    "prompts are given",
    "the grammar does not parse",
    "needs `logprobs` to be true",
    "cannot be combined with",
    "cannot be used with a JSON schema",
    "requires a call, but there are no `tools`",
    "does not run tools of these types and left out",
    "are not run here and were left out",
    "names a tool that is not among",
    "names a tool that is not listed",
    "none of the tools that it allows",
    "the conversation has loaded none",
    "the conversation has not loaded",
    "All tools have defer_loading set",
    "two tools have the same name",
    "cannot be continued",
    "are not supported here",
    "are not supported; texts",
    "are not supported; messages",
    "not stored here",
    "does not offer the tools",
    "needs a `prompt` of text",
    "is not a known JSON type",
    "`logit_bias` has",
    "the schema cannot be followed",
    "Unexpected message role",
    "the chat template failed",
    "this model reads text only",
];

/// Returns values of every type, among them those that often have a special meaning.
fn pool() -> Vec<Value> {
    vec![
        json!(null),
        json!(true),
        json!(false),
        json!(0),
        json!(1),
        json!(-1),
        json!(2),
        json!(0.5),
        json!(-0.5),
        json!(1.5),
        json!(-2),
        json!(1e12),
        json!(""),
        json!("x"),
        json!("auto"),
        json!("a b/c?"),
        json!([]),
        json!([1]),
        json!(["x"]),
        json!([[1, "x"]]),
        json!([{}]),
        json!({}),
        json!({"x": 1}),
        json!({"type": "x"}),
        json!({"type": "text"}),
        json!({"type": "function"}),
    ]
}

/// An endpoint and a body that it accepts.
struct Example {
    path: &'static str,
    body: Value,
}

fn examples() -> Vec<Example> {
    let function = json!({"name": "f", "description": "d", "parameters": {"type": "object"}, "strict": true});
    let tool = json!({"type": "function", "function": function});
    let grammar = json!({"syntax": "regex", "definition": "x"});
    let custom = json!({"name": "p", "description": "d", "format": {"type": "grammar", "grammar": grammar}});
    let custom = json!({"type": "custom", "custom": custom});
    let messages = json!([
        {"role": "system", "content": "s"},
        {"role": "user", "content": [{"type": "text", "text": "a"}]},
        {"role": "assistant", "content": null, "tool_calls": [
            {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}
        ]},
        {"role": "tool", "tool_call_id": "c", "content": "t"},
        {"role": "user", "content": "b"},
    ]);
    let short = |path: &'static str, mut body: Value| {
        body["max_tokens"] = json!(1);
        Example { path, body }
    };
    let schema = json!({"name": "n", "description": "d", "strict": true, "schema": {"type": "integer"}});
    vec![
        short(
            "/v1/chat/completions",
            json!({"messages": messages, "tools": [tool], "tool_choice": "none", "chat_template_kwargs": {},
                "stream_options": {}}),
        ),
        short(
            "/v1/chat/completions",
            json!({"messages": user("a"), "tools": [tool], "tool_choice": {"type": "function", "function": {"name": "f"}}}),
        ),
        short(
            "/v1/chat/completions",
            json!({"messages": user("a"), "tools": [tool, custom], "tool_choice": {"type": "custom", "custom": {"name": "p"}}}),
        ),
        short(
            "/v1/chat/completions",
            json!({"messages": user("a"), "tools": [tool], "tool_choice": {"type": "allowed_tools", "allowed_tools": {
                "mode": "auto", "tools": [{"type": "function", "function": {"name": "f"}}, {"type": "mcp"}]}}}),
        ),
        short(
            "/v1/chat/completions",
            json!({"messages": user("a"), "response_format": {"type": "json_schema", "json_schema": schema}}),
        ),
        short("/v1/completions", json!({"prompt": ["a", [1, "b"], {"prompt_string": "c", "multimodal_data": []}]})),
        short("/v1/completions", json!({"prompt": "a", "logit_bias": [[5, 1.0], ["x", false]], "stop": ["x"]})),
        short("/completion", json!({"prompt": "a", "response_fields": ["content"]})),
        short(
            "/infill",
            json!({"input_prefix": "a", "input_suffix": "b", "prompt": "c", "input_extra": [{"text": "d", "filename": "e"}]}),
        ),
        Example { path: "/v1/messages", body: message() },
        Example { path: "/v1/messages/count_tokens", body: message() },
        Example { path: "/v1/responses", body: response() },
        Example { path: "/v1/responses/input_tokens", body: response() },
        Example { path: "/tokenize", body: json!({"content": "a"}) },
        Example { path: "/detokenize", body: json!({"tokens": [1, 2]}) },
        Example { path: "/apply-template", body: json!({"messages": user("a")}) },
    ]
}

fn message() -> Value {
    let cache = json!({"type": "ephemeral", "ttl": "1h"});
    json!({
        "max_tokens": 1,
        "system": [{"type": "text", "text": "s", "cache_control": cache}],
        "messages": [
            {"role": "user", "content": [{"type": "text", "text": "a"}]},
            {"role": "assistant", "content": [
                {"type": "thinking", "thinking": "h", "signature": ""},
                {"type": "redacted_thinking", "data": ""},
                {"type": "text", "text": "t"},
                {"type": "tool_use", "id": "c", "name": "f", "input": {}},
            ]},
            {"role": "user", "content": [
                {"type": "tool_result", "tool_use_id": "c", "content": [{"type": "text", "text": "r"}]},
            ]},
        ],
        "tools": [
            {"type": "custom", "name": "f", "description": "d", "strict": true, "input_schema": {"type": "object"}},
            {"type": "bash_20250124", "name": "bash"},
            {"type": "web_search_20250305", "name": "web_search"},
        ],
        "tool_choice": {"type": "none"},
        "thinking": {"type": "disabled"},
        "output_config": {"effort": "low"},
        "stop_sequences": ["x"],
    })
}

fn response() -> Value {
    json!({
        "max_output_tokens": 1,
        "instructions": "s",
        "input": [
            {"role": "user", "content": [{"type": "input_text", "text": "a"}]},
            {"type": "reasoning", "content": [{"type": "reasoning_text", "text": "h"}], "summary": []},
            {"type": "message", "role": "assistant", "content": [{"type": "refusal", "refusal": "no"}]},
            {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"},
            {"type": "function_call", "call_id": "n", "name": "f", "namespace": "n", "arguments": "{}"},
            {"type": "custom_tool_call", "call_id": "p", "name": "p", "input": "x"},
            {"type": "function_call_output", "call_id": "c", "output": "r"},
            {"type": "custom_tool_call_output", "call_id": "p", "output": "r"},
        ],
        "tools": [
            {"type": "function", "name": "f", "description": "d", "strict": true, "parameters": {"type": "object"}},
            {"type": "namespace", "name": "n", "tools": [{"type": "function", "name": "f"}]},
            {"type": "custom", "name": "p", "format": {"type": "grammar", "syntax": "lark", "definition": "start: /x/"}},
            {"type": "web_search"},
        ],
        "tool_choice": {"type": "allowed_tools", "mode": "auto", "tools": [
            {"type": "function", "name": "f", "namespace": "n"}, {"type": "custom", "name": "p"}, {"type": "web_search"},
        ]},
        "text": {"format": {"type": "text"}},
        "reasoning": {"effort": "low"},
    })
}

/// Returns a schema, and all schemas that it refers to or combines.
fn parts(schema: &'static Value) -> Vec<&'static Value> {
    let mut found = vec![schema];
    if let Some(name) = schema["$ref"].as_str().and_then(|path| path.rsplit('/').next()) {
        found.extend(parts(&DOCUMENT["components"]["schemas"][name]));
    }
    for combination in ["anyOf", "oneOf", "allOf"] {
        found.extend(schema[combination].as_array().into_iter().flatten().flat_map(parts));
    }
    found
}

/// Returns the values that a schema names: constants, and numbers at its bounds and next to them.
fn told(schema: &'static Value) -> Vec<Value> {
    let mut values = Vec::new();
    for part in parts(schema) {
        values.extend(part.get("const").cloned());
        values.extend(part["enum"].as_array().into_iter().flatten().cloned());
        let is_integer = part["type"].to_string().contains("integer");
        for bound in [&part["minimum"], &part["maximum"]] {
            if let Some(bound) = bound.as_i64().filter(|_| is_integer) {
                values.extend([json!(bound), json!(bound.saturating_sub(1)), json!(bound.saturating_add(1))]);
                // To a schema, a whole number is an integer in any form.
                values.extend((bound.abs() < 1 << 53).then_some(json!(bound as f64)));
            } else if let Some(bound) = bound.as_f64().filter(|bound| bound.abs() < 1e9) {
                values.extend([json!(bound), json!(bound - 0.001), json!(bound + 0.001)]);
            }
        }
    }
    values
}

/// Returns copies of `value`, which is at `place`, that differ in one place.
///
/// A field that no example of an endpoint has is added to the first example only; `tried` has the places of such
/// fields.
fn changed(value: &Value, schemas: &[&'static Value], place: &str, tried: &mut HashSet<String>) -> Vec<Value> {
    let mut found = Vec::new();
    match value {
        Value::Object(fields) => {
            let described = schemas.iter().filter_map(|schema| schema["properties"].as_object());
            let mut names: Vec<&str> = described.flat_map(Map::keys).chain(fields.keys()).map(String::as_str).collect();
            names.sort_unstable();
            names.dedup();
            for name in names {
                let place = format!("{place}.{name}");
                if !fields.contains_key(name) && !tried.insert(place.clone()) {
                    continue;
                }
                let with = |new: Value| {
                    let mut copy = fields.clone();
                    copy.insert(name.to_owned(), new);
                    Value::Object(copy)
                };
                let inner: Vec<_> = schemas.iter().filter_map(|schema| schema["properties"].get(name)).collect();
                let inner: Vec<_> = inner.into_iter().flat_map(parts).collect();
                found.extend(pool().into_iter().chain(inner.iter().flat_map(|schema| told(schema))).map(with));
                if let Some(field) = fields.get(name) {
                    let mut without = fields.clone();
                    without.shift_remove(name);
                    found.push(Value::Object(without));
                    found.extend(changed(field, &inner, &place, tried).into_iter().map(with));
                }
            }
        }
        Value::Array(items) => {
            let inner: Vec<_> = schemas.iter().filter_map(|schema| schema.get("items")).flat_map(parts).collect();
            for (idx, item) in items.iter().enumerate() {
                let with = |new: Value| {
                    let mut copy = items.clone();
                    copy[idx] = new;
                    Value::Array(copy)
                };
                let places = format!("{place}[{}]", item["type"]);
                found.extend(pool().into_iter().chain(changed(item, &inner, &places, tried)).map(with));
            }
        }
        _ => {}
    }
    found
}

/// Whether a body matches the document.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Match {
    Fits,
    /// It does with a map or nothing in place of an empty list, or without its empty fields; the worker may accept it.
    WithMaps,
    Differs,
}

impl Match {
    fn of(validator: &jsonschema::Validator, body: &Value) -> Self {
        let with = |new: &Value| {
            (0..).map_while(|idx| with_empty_list_replaced(body, new, idx)).any(|changed| validator.is_valid(&changed))
        };
        match validator.is_valid(body) {
            true => Self::Fits,
            false if with(&json!({})) || with(&json!(null)) || validator.is_valid(&without_empty(body)) => {
                Self::WithMaps
            }
            false => Self::Differs,
        }
    }
}

/// Returns a body without its fields that are an empty text or map, which stand for absent ones.
fn without_empty(body: &Value) -> Value {
    let mut body = body.clone();
    if let Some(fields) = body.as_object_mut() {
        fields.retain(|_, value| *value != json!("") && *value != json!({}));
    }
    body
}

/// Returns a body with a value in place of its empty list `idx`; `None` if it has fewer.
fn with_empty_list_replaced(body: &Value, new: &Value, idx: usize) -> Option<Value> {
    let (mut body, mut n_before) = (body.clone(), idx);
    replace_empty_list(&mut body, new, &mut n_before).then_some(body)
}

/// Replaces the empty list behind `n_before` others; returns whether there is one.
fn replace_empty_list(value: &mut Value, new: &Value, n_before: &mut usize) -> bool {
    match value {
        Value::Array(items) if items.is_empty() => {
            if *n_before > 0 {
                *n_before -= 1;
                return false;
            }
            *value = new.clone();
            true
        }
        Value::Array(items) => items.iter_mut().any(|item| replace_empty_list(item, new, n_before)),
        Value::Object(fields) => fields.values_mut().any(|field| replace_empty_list(field, new, n_before)),
        _ => false,
    }
}

/// Returns the disagreement between the worker and the schema about a body, if there is one.
async fn difference(worker: &TestWorker, path: &str, (body, fits): (Value, Match)) -> Option<String> {
    let response = worker.post_bytes(path, body.to_string()).await;
    let status = response.status().as_u16();
    let text = response.text().await.expect("a body");
    let is_excepted = || EXCEPTIONS.iter().any(|exception| text.contains(exception)) || is_about_a_schema(&text);
    let is_right = match status {
        200 | 404 => fits != Match::Differs,
        400 => fits != Match::Fits || is_excepted(),
        _ => false,
    };
    (!is_right).then(|| format!("{path}: {status} {}\n   for a body that {fits:?}: {body}", text.trim()))
}

/// Returns whether an error is about a part of a JSON schema, which the document does not describe.
fn is_about_a_schema(text: &str) -> bool {
    let error: Value = serde_json::from_str(text).unwrap_or_default();
    let param = error["error"]["param"].as_str().unwrap_or_default();
    let message = error["error"]["message"].as_str().unwrap_or_default();
    ["json_schema", "schema.", "parameters", "input_schema"].iter().any(|part| {
        let inside =
            |text: &str| text.contains(&format!("{part}.")) || text.contains("cannot be converted to a grammar");
        inside(param) || (part.contains("schema") && inside(message))
    })
}

#[tokio::test]
async fn the_document_and_the_parsers_agree_field_by_field() {
    let worker = TestWorker::start("--slots 4 --queue-max 64 --ctx-size 4096").await;
    let served = worker.get_json("/openapi.json").await;
    assert_eq!(served, *DOCUMENT);
    let mut seen = HashSet::new();
    let mut tried = HashSet::new();
    let mut differences = Vec::new();
    for Example { path, body } in examples() {
        let schema = &DOCUMENT["paths"][path]["post"]["requestBody"]["content"]["application/json"]["schema"];
        let validator = validator(&DOCUMENT, schema);
        assert!(validator.is_valid(&body), "{path}: {body}");
        let bodies = changed(&body, &parts(schema), path, &mut tried)
            .into_iter()
            .filter(|body| seen.insert(format!("{path} {body}")));
        let cases: Vec<_> = bodies
            .map(|body| {
                let fits = Match::of(&validator, &body);
                (body, fits)
            })
            .collect();
        let is_any = |wanted| cases.iter().any(|(_, fits)| *fits == wanted);
        assert!(is_any(Match::Fits) && is_any(Match::Differs), "{path}");
        let found = futures::stream::iter(cases).map(|case| difference(&worker, path, case));
        differences.extend(found.buffer_unordered(8).filter_map(std::future::ready).collect::<Vec<_>>().await);
    }
    let n = differences.len();
    assert!(differences.is_empty(), "{n} differences:\n{}", differences[..n.min(40)].join("\n"));
}
