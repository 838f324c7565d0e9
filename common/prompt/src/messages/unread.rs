//! Parts of a conversation that the model cannot read. In the history a short text says what they were; in the message
//! that the user has just written they are refused.
//!
//! Agents repeat their history in each request, so a part that is refused once ends the conversation. A text depends on
//! its part alone, so the prompt of a longer conversation begins with that of the shorter one.

use std::borrow::Cow;

use serde_json::{Map, Value as Json, json};
use warmpath_common::history::{HISTORY_FIELD, new_message};
use warmpath_common::openai::ChatPrompt;

use crate::error::PromptError;
use crate::media::{MediaError, MediaKind};
use crate::messages::content::{has_role, part_text};

/// Longest name or type of a part in its text. Units: characters.
///
/// Source: own choice: longer than the names of most files.
const NAME_CHARS_MAX: usize = 200;

/// Kind of all other parts.
const OTHER: &str = "other";

/// A chat whose every part the model reads.
#[derive(Debug)]
pub(crate) struct Readable<'r> {
    pub chat: Cow<'r, ChatPrompt>,
    /// Kinds of the parts that became texts, without duplicates.
    pub left_out: Vec<&'static str>,
}

/// Returns a chat with texts in place of the parts of its history that the model cannot read, and of those that load
/// tools; `read` reads a medium.
///
/// Media of an answer to continue count as unread, since that is a text.
/// Cost: a look at each part, and a copy of the chat if a part becomes a text. Errors: `Messages` for such a part in
/// the new message, and for media that are too much for a prompt.
pub(crate) fn readable<'r>(
    request: &'r ChatPrompt,
    mut read: impl FnMut(MediaKind, &Json) -> Result<(), MediaError>,
) -> Result<Readable<'r>, PromptError> {
    let request = request.with_loaded_tools();
    let messages = &request.messages;
    // Answers at the end may be continued, which takes text alone.
    let newest = new_message(messages.iter().map(Some));
    let is_assistant = |message: &&Map<String, Json>| has_role(message, &["assistant"]);
    let n_continued = messages.iter().rev().take_while(is_assistant).count();
    // Places of the parts to replace; media that the model reads are read on the way.
    let mut unread = Vec::new();
    for (index, message) in messages.iter().enumerate() {
        let is_continued = index > 0 && index >= messages.len() - n_continued;
        for (place, part) in parts_of(message).iter().enumerate() {
            let error_of = |reason| PromptError::Messages { index, reason };
            let reason = match MediaKind::of(part) {
                Some(kind) if !is_continued => match read(kind, part) {
                    Ok(()) => continue,
                    Err(MediaError::TooMuch(reason)) => return Err(error_of(reason)),
                    Err(MediaError::Unread(reason)) => reason,
                },
                _ => match part_text(part) {
                    Err(reason) if part.get("type").is_some_and(|kind| kind.is_string() && kind != "text") => reason,
                    // Nothing that a model could read stands in a malformed part.
                    Ok(_) | Err(_) => continue,
                },
            };
            if newest == Some(index) && part.get(HISTORY_FIELD) != Some(&Json::Bool(true)) {
                return Err(error_of(reason));
            }
            unread.push((index, place));
        }
    }
    // The chat is copied only if a part becomes a text.
    if unread.is_empty() {
        return Ok(Readable { chat: request, left_out: Vec::new() });
    }
    let (mut chat, mut left_out) = (request.into_owned(), Vec::new());
    for (index, place) in unread {
        let part = &mut chat.messages[index]["content"][place];
        let kind = kind_of(part);
        *part = json!({"type": "text", "text": text_of(part, kind)});
        if !left_out.contains(&kind) {
            left_out.push(kind);
        }
    }
    Ok(Readable { chat: Cow::Owned(chat), left_out })
}

fn parts_of(message: &Map<String, Json>) -> &[Json] {
    message.get("content").and_then(Json::as_array).map_or(&[][..], Vec::as_slice)
}

fn type_of(part: &Json) -> &str {
    part["type"].as_str().unwrap_or_default()
}

/// Returns the kind of a part in any dialect, for a header and a metric.
fn kind_of(part: &Json) -> &'static str {
    match type_of(part) {
        "image" | "image_url" | "input_image" => "image",
        "audio" | "audio_url" | "input_audio" => "audio",
        "video" | "video_url" | "input_video" => "video",
        "document" => "document",
        "file" | "input_file" => "file",
        _ => OTHER,
    }
}

/// Returns the text in the place of a part: its kind, or its type, with its name and its media type.
fn text_of(part: &Json, kind: &str) -> String {
    let names = [&part["title"], &part["filename"], &part["name"], &part["file"]["filename"]];
    let name = names.into_iter().find_map(|name| name.as_str().filter(|name| !name.is_empty()));
    let media_type = part["source"]["media_type"].as_str().filter(|_| kind != "image");
    let details: Vec<String> = name.into_iter().chain(media_type).map(shortened).collect();
    let what = if kind == OTHER { shortened(type_of(part)) } else { kind.to_owned() };
    let details = if details.is_empty() { String::new() } else { format!(" ({})", details.join(", ")) };
    format!("[{what}{details}: this model cannot read it]")
}

fn shortened(name: &str) -> String {
    name.chars().take(NAME_CHARS_MAX).collect()
}

#[cfg(test)]
mod tests;
