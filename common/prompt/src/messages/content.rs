//! Role and content of one message: texts, or parts of which some are texts.

use std::borrow::Cow;

use serde_json::{Map, Value as Json, json};

/// Returns whether a message has one of these roles.
pub(crate) fn has_role(message: &Map<String, Json>, roles: &[&str]) -> bool {
    message.get("role").and_then(Json::as_str).is_some_and(|role| roles.contains(&role))
}

/// Appends `joint` and the content of `other` to a message's text, or to the text of its last part; returns whether
/// both are texts, which can be joined.
///
/// The earlier parts stay as they are, so the message is still rendered with the same beginning.
/// Cost: that of the appended text, as many messages may be joined to one.
pub(crate) fn join(message: &mut Map<String, Json>, other: &Map<String, Json>, joint: &str) -> bool {
    let Some(more) = other.get("content").and_then(text_of) else { return false };
    let last = match message.get_mut("content") {
        Some(Json::Array(parts)) => {
            if parts.is_empty() {
                parts.push(json!({"type": "text", "text": ""}));
            }
            parts.last_mut().filter(|part| part_text(part).is_ok()).and_then(|part| part.get_mut("text"))
        }
        content => content,
    };
    let Some(Json::String(text)) = last else { return false };
    text.push_str(joint);
    text.push_str(&more);
    true
}

/// Returns the text of a content; `None` if it is not only text.
fn text_of(content: &Json) -> Option<Cow<'_, str>> {
    match content {
        Json::String(text) => Some(Cow::Borrowed(text.as_str())),
        Json::Array(parts) => {
            let texts: Result<Vec<&str>, String> = parts.iter().map(part_text).collect();
            Some(Cow::Owned(texts.ok()?.join("\n")))
        }
        _ => None,
    }
}

/// Returns whether a message has calls of tools.
pub(crate) fn has_calls(message: &Map<String, Json>) -> bool {
    message.get("tool_calls").and_then(Json::as_array).is_some_and(|calls| !calls.is_empty())
}

/// Returns whether a message is an answer of the assistant, and not calls.
pub(crate) fn is_answer(message: &Map<String, Json>) -> bool {
    has_role(message, &["assistant"]) && !message.contains_key("tool_calls")
}

/// Returns the text of a part of a content.
///
/// Errors: the reason if it is no text.
pub(crate) fn part_text(part: &Json) -> Result<&str, String> {
    let kind = part.get("type").and_then(Json::as_str).ok_or("each part of content must have a type")?;
    match (kind, part.get("text")) {
        ("text", Some(Json::String(text))) => Ok(text),
        ("text", _) => Err("a content part of type text must have a text".to_owned()),
        (kind, _) => Err(format!("content parts of type {kind:?} are not supported here")),
    }
}
