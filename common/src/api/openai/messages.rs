//! Forms in which clients write a chat's messages, converted to the one that checks and templates know.
//!
//! A conversion depends on nothing but its message, so the prompt of a longer conversation begins with that of the
//! shorter one.

use serde_json::{Map, Value, json};

use crate::json::empty_maps::is_empty_list;

/// Fields that hold the reasoning of an assistant's message; the first is the one in a chat.
///
/// Source: the fields of llama-server, of vLLM, and of Ollama and gpt-oss's template.
pub const REASONING_FIELDS: [&str; 3] = ["reasoning_content", "reasoning", "thinking"];

/// Converts a message.
pub(super) fn convert(message: &mut Map<String, Value>) {
    convert_function_call(message);
    let role = message.get("role").and_then(Value::as_str).unwrap_or_default();
    let is_assistant = role == "assistant";
    let is_result = ["tool", "function"].contains(&role);
    if let Some(content) = message.get_mut("content").filter(|_| is_result)
        && let Some(text) = result_text(content)
    {
        *content = text.into();
    }
    let mut thoughts = Vec::new();
    if let Some(Value::Array(parts)) = message.get_mut("content") {
        parts.retain_mut(|part| {
            let thought = thought(part).filter(|_| is_assistant);
            let is_kept = thought.is_none();
            thoughts.extend(thought.filter(|thought| !thought.is_empty()));
            convert_part(part);
            is_kept
        });
    }
    if is_assistant {
        convert_refusal(message);
        convert_reasoning(message, &thoughts);
    }
}

/// Returns the text of a tool's result that is neither text nor parts: compact JSON; `None` for any other.
pub(crate) fn result_text(content: &Value) -> Option<String> {
    let is_part = |item: &Value| item.get("type").is_some_and(Value::is_string);
    match content {
        Value::Null | Value::String(_) => None,
        Value::Array(items) if items.iter().all(is_part) => None,
        value => Some(value.to_string()),
    }
}

/// Returns the text of a part of an assistant's content that is reasoning; empty if it is encrypted.
pub(crate) fn thought(part: &Value) -> Option<String> {
    let (field, kind) = match part.get("type")?.as_str()? {
        "thinking" => ("thinking", "text"),
        "reasoning" => ("text", "reasoning"),
        "redacted_thinking" => return Some(String::new()),
        _ => return None,
    };
    let text = |value: &Value| match value {
        Value::String(text) => Some(text.clone()),
        // Mistral's API.
        Value::Array(parts) => Some(parts.iter().filter_map(|part| part.get("text")?.as_str()).collect()),
        _ => None,
    };
    Some(part.get(field).or_else(|| part.get(kind)).and_then(text).unwrap_or_default())
}

/// Converts the part of a content to a part of type `text` if it is one.
fn convert_part(part: &mut Value) {
    let Some(fields) = part.as_object_mut() else { return };
    let Some(kind) = fields.get("type").and_then(Value::as_str) else { return };
    if let Some(text) = document_text(kind, fields) {
        *part = json!({"type": "text", "text": text});
        return;
    }
    let field = match kind {
        "text" | "input_text" | "output_text" => "text",
        "refusal" if fields.get(kind).is_some_and(|refusal| refusal.is_string() || refusal.is_null()) => kind,
        _ => return,
    }
    .to_owned();
    match fields.shift_remove(&field) {
        Some(Value::Null) => fields.insert("text".to_owned(), "".into()),
        Some(text) => fields.insert("text".to_owned(), text),
        None => None,
    };
    fields.insert("type".to_owned(), "text".into());
}

/// Returns the text of a block of this type that is a document of text, with its title, or a summary; `None` for any
/// other block.
///
/// Source: Anthropic's API reference, the blocks `document`, `search_result` and `compaction`.
pub(crate) fn document_text(kind: &str, block: &Map<String, Value>) -> Option<String> {
    let source = block.get("source").filter(|_| kind == "document");
    let content = match (kind, source.and_then(|source| source.get("type")?.as_str())) {
        ("document", Some("text")) => source?.get("data")?,
        ("document", Some("content")) => source?.get("content")?,
        ("search_result" | "compaction", _) => block.get("content")?,
        _ => return None,
    };
    let text = |block: &Value| block.get("text").filter(|_| block["type"] == "text")?.as_str().map(str::to_owned);
    let content = match content {
        Value::String(text) => text.clone(),
        Value::Array(blocks) => blocks.iter().map(text).collect::<Option<Vec<_>>>()?.join("\n"),
        _ => return None,
    };
    let heads = ["title", "source", "context"].into_iter().filter_map(|name| block.get(name)?.as_str());
    let heads = heads.filter(|head| !head.is_empty());
    Some(heads.chain([content.as_str()]).collect::<Vec<_>>().join("\n"))
}

/// Writes the call of a function without an id, and its result, as those of a tool whose name is the id.
///
/// Source: OpenAI's API reference, `function_call`, which `tool_calls` have replaced.
fn convert_function_call(message: &mut Map<String, Value>) {
    let role = message.get("role").and_then(Value::as_str).unwrap_or_default();
    if role == "function"
        && let Some(name) = message.get("name").filter(|name| name.is_string()).cloned()
    {
        message.insert("role".to_owned(), "tool".into());
        message.insert("tool_call_id".to_owned(), name);
    } else if role == "assistant"
        && let Some(function) = message.shift_remove("function_call").filter(Value::is_object)
        && message.get("tool_calls").is_none_or(|calls| calls.is_null() || is_empty_list(calls))
    {
        let call = json!({"id": function["name"], "type": "function", "function": function});
        message.insert("tool_calls".to_owned(), json!([call]));
    }
}

/// Takes a refusal that stands in the place of the content as the content.
fn convert_refusal(message: &mut Map<String, Value>) {
    let Some(refusal) = message.get("refusal").filter(|refusal| refusal.is_string()).cloned() else { return };
    let content = message.entry("content").or_insert(Value::Null);
    if content.is_null() {
        *content = refusal;
    }
}

/// Moves reasoning to the first of its fields; `thoughts` are those of the content's parts.
fn convert_reasoning(message: &mut Map<String, Value>, thoughts: &[String]) {
    let said = |name: &&str| message.get(*name)?.as_str().filter(|text| !text.is_empty()).map(str::to_owned);
    let reasoning = REASONING_FIELDS.iter().find_map(said);
    let [first, others @ ..] = REASONING_FIELDS;
    for name in others {
        if message.get(name).is_some_and(|value| value.is_string() || value.is_null()) {
            message.shift_remove(name);
        }
    }
    let reasoning = reasoning.unwrap_or_else(|| thoughts.join("\n"));
    if !reasoning.is_empty() {
        message.insert(first.to_owned(), reasoning.into());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(message: Value, expected: Value) {
        let mut message = message.as_object().expect("an object").clone();
        convert(&mut message);
        assert_eq!(Value::Object(message), expected);
    }

    fn say(role: &str, content: Value) -> Value {
        json!({"role": role, "content": content})
    }

    fn text(text: &str) -> Value {
        json!({"type": "text", "text": text})
    }

    #[test]
    fn parts_of_text_have_one_form() {
        for part in [
            json!({"type": "input_text", "text": "a"}),
            json!({"type": "output_text", "text": "a"}),
            json!({"type": "refusal", "refusal": "a"}),
            json!({"type": "document", "source": {"type": "text", "media_type": "text/plain", "data": "a"}}),
            json!({"type": "document", "source": {"type": "content", "content": [text("a")]}}),
        ] {
            check(say("user", json!([part])), say("user", json!([text("a")])));
        }
        check(say("user", json!([{"type": "text", "text": null}])), say("user", json!([text("")])));
        check(say("user", json!([{"type": "input_text"}])), say("user", json!([{"type": "text"}])));
        let found = json!({"type": "search_result", "source": "u", "title": "t", "content": [text("a"), text("b")]});
        check(say("user", json!([found])), say("user", json!([text("t\nu\na\nb")])));
        let summary = json!({"type": "compaction", "content": "s"});
        check(say("assistant", json!([summary])), say("assistant", json!([text("s")])));
        let pdf = json!({"type": "document", "source": {"type": "base64", "data": "AA=="}});
        let kept = json!([pdf, 5, {"type": 5}, {"type": "refusal", "text": "a"}, {"type": "refusal", "refusal": 5}]);
        check(say("user", kept.clone()), say("user", kept));
    }

    #[test]
    fn a_result_that_is_neither_text_nor_parts_is_json() {
        for (content, expected) in [
            (json!(5), json!("5")),
            (json!(true), json!("true")),
            (json!({"b": 1, "a": [null]}), json!("{\"b\":1,\"a\":[null]}")),
            (json!([1, "x"]), json!("[1,\"x\"]")),
            (json!([{"name": "x"}]), json!("[{\"name\":\"x\"}]")),
            (json!(null), json!(null)),
            (json!("a"), json!("a")),
            (json!([text("a")]), json!([text("a")])),
        ] {
            check(say("tool", content.clone()), say("tool", expected.clone()));
            check(say("function", content), say("function", expected));
        }
        check(say("user", json!(5)), say("user", json!(5)));
    }

    #[test]
    fn calls_of_functions_without_an_id_are_calls_of_tools() {
        let function = json!({"name": "f", "arguments": "{}"});
        let called = json!({"role": "assistant", "content": null, "function_call": function});
        let call = json!({"id": "f", "type": "function", "function": function});
        check(called, json!({"role": "assistant", "content": null, "tool_calls": [call]}));
        let result = json!({"role": "function", "name": "f", "content": "r"});
        check(result, json!({"role": "tool", "name": "f", "content": "r", "tool_call_id": "f"}));
        let none = json!({"role": "assistant", "content": "a", "function_call": null});
        check(none, say("assistant", json!("a")));
    }

    #[test]
    fn reasoning_is_read_from_each_of_its_fields_and_parts() {
        let expected = json!({"role": "assistant", "content": "b", "reasoning_content": "a"});
        for fields in [
            json!({"reasoning_content": "a", "reasoning": "x", "thinking": null}),
            json!({"reasoning_content": "", "reasoning": "a"}),
            json!({"reasoning": null, "thinking": "a"}),
        ] {
            let mut message = say("assistant", json!("b"));
            message.as_object_mut().expect("an object").extend(fields.as_object().expect("an object").clone());
            let mut message = message.as_object().expect("an object").clone();
            convert(&mut message);
            assert_eq!(Value::Object(message), expected, "{fields}");
        }
        let thoughts = [
            json!({"type": "thinking", "thinking": "a", "signature": "s"}),
            json!({"type": "thinking", "thinking": [text("a")]}),
            json!({"type": "reasoning", "text": "a"}),
            json!({"type": "reasoning", "reasoning": "a"}),
        ];
        for thought in thoughts {
            let parts = json!([thought, {"type": "redacted_thinking", "data": "x"}, text("b")]);
            let said = json!({"role": "assistant", "content": [text("b")], "reasoning_content": "a"});
            check(say("assistant", parts.clone()), said);
            let kept = json!([parts[0], parts[1], text("b")]);
            check(say("user", parts), say("user", kept));
        }
        check(json!({"role": "user", "reasoning": "a"}), json!({"role": "user", "reasoning": "a"}));
    }

    #[test]
    fn a_refusal_in_the_place_of_the_content_is_the_content() {
        let refused = json!({"role": "assistant", "content": null, "refusal": "no"});
        check(refused, json!({"role": "assistant", "content": "no", "refusal": "no"}));
        let answered = json!({"role": "assistant", "content": "yes", "refusal": null});
        check(answered.clone(), answered);
    }
}
