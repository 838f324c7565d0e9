//! The events that end a response, by dialect, and whether an event carries a part of a response that has not begun.
//!
//! Servers open a stream with the role of a message, its id, an empty item or block, counts or progress. None of it is
//! a part of the response, so another server may still give all of it.

use serde_json::Value;

/// Event that completes a stream, by dialect.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EndMark {
    /// `data: [DONE]`: OpenAI's chat completions and completions.
    Done,
    /// `[DONE]`, or an object with the `finish_reason` of the only choice, from a server that may leave out `[DONE]`.
    DoneOrFinished,
    /// The last object of every choice, whose `stop` is not `false`: llama-server's own completions, which have no
    /// `[DONE]`.
    Stop {
        /// Number of requested choices, of all prompts together.
        n_choices: u32,
    },
    /// `message_stop`: Anthropic's messages.
    MessageStop,
    /// `response.completed`, `response.incomplete` or `response.failed`: OpenAI's responses.
    Response,
}

/// Progress of the response that an event shows, the least first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum StreamProgress {
    /// No progress: comments, events without data, Anthropic's `ping`, OpenAI's `keepalive`, and
    /// `response.in_progress`, with which servers keep a stream of responses alive until it has an item.
    Nothing,
    /// The response has begun, and nothing is generated yet.
    Opening,
    /// An event without a part of the response: a role, an empty item or block. The server generates, but the first
    /// part may still come from another one.
    Empty,
    /// A part of the response (text, reasoning, a call, a refusal), its end or an error, and every event behind a part.
    Content,
}

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
