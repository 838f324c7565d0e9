//! Whether an event of a response that has not begun carries a part of it.
//!
//! Servers open a stream with the role of a message, its id, an empty item or block, counts or progress. None of it is
//! a part of the response, so another server may still give all of it. Not here: events that end a response
//! (`event_stream`).

use serde_json::Value;

use super::{EndMark, StreamProgress};

/// Fields of a part that identify or describe it, and so are no content of it.
///
/// Source: the streaming references of OpenAI's chats and responses (`phase`, `call_id`, `obfuscation`) and of
/// Anthropic's messages.
const DESCRIPTIONS: [&str; 12] = [
    "type",
    "id",
    "object",
    "role",
    "status",
    "phase",
    "item_id",
    "call_id",
    "obfuscation",
    "usage",
    "model",
    "event_id",
];

/// Returns the progress that an event with this data shows, if nothing before it was a part of the response.
pub(super) fn progress(mark: EndMark, data: &[u8]) -> StreamProgress {
    // What is no object is of no known form, and may be anything.
    let Ok(event @ Value::Object(_)) = serde_json::from_slice(data) else { return StreamProgress::Content };
    let is_part = match mark {
        EndMark::Done | EndMark::DoneOrFinished => choices(&event).iter().any(is_part_of_choice),
        EndMark::Stop { .. } => is_content(&event["content"]) || event["stop"] != false,
        EndMark::MessageStop => match &event["message"] {
            Value::Null => is_content(&event),
            message => is_content(&message["content"]),
        },
        EndMark::Response => match &event["response"] {
            Value::Null => is_content(&event),
            response => is_content(&response["output"]),
        },
    };
    if is_part { StreamProgress::Content } else { StreamProgress::Empty }
}

fn choices(event: &Value) -> &[Value] {
    event["choices"].as_array().map_or(&[], Vec::as_slice)
}

/// Returns whether a choice of a chat or a completion has a part of its message, or a reason why it ended.
fn is_part_of_choice(choice: &Value) -> bool {
    ["delta", "message", "text", "finish_reason"].iter().any(|name| is_content(&choice[*name]))
}

/// Returns whether a value has a text that is not a description.
fn is_content(value: &Value) -> bool {
    match value {
        Value::String(text) => !text.is_empty(),
        Value::Array(values) => values.iter().any(is_content),
        Value::Object(fields) => {
            fields.iter().any(|(name, value)| !DESCRIPTIONS.contains(&name.as_str()) && is_content(value))
        }
        Value::Null | Value::Bool(_) | Value::Number(_) => false,
    }
}
