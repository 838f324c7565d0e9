//! Joins successive messages that a template refuses because it requires user and assistant to alternate.
//!
//! A message is joined to the one before it. So the prompt of a longer conversation begins with that of the shorter
//! one, up to the end of the message that grew.
//!
//! A user's message behind a tool's result becomes a part of the result. The other way is an invented answer between
//! the two: text that no model wrote, at each call of an agent that adds a reminder to each result. Some of Mistral's
//! templates write the tools in front of the last user's message, so each such turn would also move the tools.
//!
//! An empty message of the user opens a conversation that the template refuses because it begins with the assistant, or
//! has no message of the user at all, as after a compaction. Only the template's own marks are added, and no text.

use serde_json::{Map, Value as Json, json};

use crate::messages::content::{has_role, is_answer, join, part_text};
use crate::template::caps::Caps;

/// Separator of joined messages.
///
/// Source: mistral-common joins successive messages in this way before it renders them (`_aggregate_user_messages`).
pub(crate) const JOINT: &str = "\n\n";

/// Returns the messages with each pair joined that the template refuses.
///
/// Cost: O(n).
pub(crate) fn joined(messages: Vec<Map<String, Json>>, caps: &Caps) -> Vec<Map<String, Json>> {
    let refused_pairs = caps.refused_pairs;
    let mut turns: Vec<Map<String, Json>> = Vec::with_capacity(messages.len());
    // Calls and results are no turns. A user's message behind them is one if the assistant has answered the last one.
    let mut has_answered = true;
    for message in messages {
        let is_user = has_role(&message, &["user"]);
        let is_joined = turns.last().is_some_and(|last| {
            (refused_pairs.users && is_user && has_role(last, &["user"]))
                || (refused_pairs.result_and_user && is_user && !has_answered && has_role(last, &["tool"]))
                || (refused_pairs.assistants && is_answer(&message) && is_answer(last))
        });
        has_answered = !is_user && (has_answered || is_answer(&message));
        match turns.last_mut().filter(|_| is_joined) {
            Some(last) => append(last, message),
            None => turns.push(message),
        }
    }
    turns
}

/// Returns the messages with an empty one of the user behind the system messages, if the template requires it.
///
/// Cost: O(n).
pub(crate) fn opened(mut messages: Vec<Map<String, Json>>, caps: &Caps) -> Vec<Map<String, Json>> {
    let refused_openings = caps.refused_openings;
    let is_system = |message: &Map<String, Json>| has_role(message, &["system", "developer"]);
    let start = messages.iter().position(|message| !is_system(message)).unwrap_or(messages.len());
    let begins_with_assistant = messages.get(start).is_some_and(|first| !has_role(first, &["user"]));
    let has_user = messages[start..].iter().any(|message| has_role(message, &["user"]));
    if (refused_openings.assistant && begins_with_assistant) || (refused_openings.without_user && !has_user) {
        let fields = [("role", json!("user")), ("content", caps.content("user").wrapped(""))];
        let opening = fields.into_iter().map(|(name, value)| (name.to_owned(), value)).collect();
        messages.insert(start, opening);
    }
    messages
}

/// Appends the content of `more` to a message: as text if both are texts, since a separator between parts is lost in
/// templates that trim each of them. Nothing separates empty content.
///
/// Cost: that of the appended content, as many messages may be joined to one.
fn append(message: &mut Map<String, Json>, mut more: Map<String, Json>) {
    if is_empty(&more) {
        return;
    }
    if is_empty(message) {
        message.insert("content".to_owned(), more["content"].take());
        return;
    }
    if join(message, &more, JOINT) {
        return;
    }
    let mut parts = take_parts(message);
    parts.push(json!({"type": "text", "text": JOINT}));
    parts.append(&mut take_parts(&mut more));
    message.insert("content".to_owned(), Json::Array(parts));
}

/// Returns whether a message has no text and no media.
fn is_empty(message: &Map<String, Json>) -> bool {
    match message.get("content") {
        Some(Json::Array(parts)) => parts.iter().all(|part| part_text(part) == Ok("")),
        content => content.is_none_or(|content| content.is_null() || content == ""),
    }
}

/// Takes a message's content as a list of parts.
fn take_parts(message: &mut Map<String, Json>) -> Vec<Json> {
    match message.get_mut("content").map(Json::take) {
        Some(Json::Array(parts)) => parts,
        Some(text) => vec![json!({"type": "text", "text": text})],
        None => Vec::new(),
    }
}
