//! Ollama's messages as those of a chat.
//!
//! A call has no id in most requests, and its result names the tool. Each call gets an id by its place, so that the
//! prompt of a longer conversation begins with that of the shorter one.

use serde_json::{Map, Value, json};

use super::super::DialectError;
use super::super::field::{Field, Object, wrong};

/// First characters of an image's base64, each with the registered media type. Source: the formats' first bytes.
const IMAGE_STARTS: [(&str, &str); 4] =
    [("iVBORw0KGgo", "image/png"), ("/9j/", "image/jpeg"), ("UklGR", "image/webp"), ("R0lGOD", "image/gif")];

/// Reader of a conversation.
#[derive(Debug, Default)]
pub(super) struct Reader {
    messages: Vec<Value>,
    /// Path of each message.
    origins: Vec<String>,
    /// Calls of the last message of the assistant that have no result yet.
    open_calls: Vec<OpenCall>,
    n_calls: usize,
}

/// A call without a result.
#[derive(Debug)]
struct OpenCall {
    id: String,
    tool: String,
}

impl Reader {
    /// Reads the next message.
    pub fn read(&mut self, mut message: Object) -> Result<(), DialectError> {
        let role = message.text("role")?.to_lowercase();
        let mut chat_message = Map::new();
        if role == "tool" {
            let name = optional(&mut message, "tool_name")?.or(optional(&mut message, "name")?);
            let id = optional(&mut message, "tool_call_id")?;
            chat_message.insert("tool_call_id".to_owned(), self.close_call(id, name.as_deref()).into());
            chat_message.extend(name.map(|name| ("name".to_owned(), name.into())));
        }
        if role == "assistant" {
            self.open_calls.clear();
        }
        chat_message.insert("role".to_owned(), role.into());
        if let Some(thinking) = optional(&mut message, "thinking")? {
            chat_message.insert("reasoning_content".to_owned(), thinking.into());
        }
        let text = message.optional_text("content")?.unwrap_or_default();
        let images = message.optional_items("images")?;
        let mut calls = Vec::new();
        for call in message.optional_items("tool_calls")? {
            calls.push(self.read_call(call.object()?)?);
        }
        let is_call_only = text.is_empty() && images.is_empty() && !calls.is_empty();
        let content = if is_call_only { Value::Null } else { content(text, images)? };
        chat_message.insert("content".to_owned(), content);
        if !calls.is_empty() {
            chat_message.insert("tool_calls".to_owned(), calls.into());
        }
        self.messages.push(chat_message.into());
        self.origins.push(message.path);
        Ok(())
    }

    /// Returns the messages, and the path of each.
    pub fn finish(self) -> (Vec<Value>, Vec<String>) {
        (self.messages, self.origins)
    }

    fn read_call(&mut self, mut call: Object) -> Result<Value, DialectError> {
        let mut function = call.required("function")?.object()?;
        let name = function.text("name")?;
        let arguments = match function.take("arguments") {
            None => "{}".to_owned(),
            // As in OpenAI's API.
            Some(Field { value: Value::String(arguments), .. }) => arguments,
            Some(Field { value: arguments @ Value::Object(_), .. }) => arguments.to_string(),
            Some(Field { path, .. }) => return Err(wrong(&path, "must be an object")),
        };
        let id = optional(&mut call, "id")?.unwrap_or_else(|| format!("call_{}", self.n_calls));
        self.n_calls += 1;
        self.open_calls.push(OpenCall { id: id.clone(), tool: name.clone() });
        Ok(json!({"id": id, "type": "function", "function": {"name": name, "arguments": arguments}}))
    }

    /// Returns the id of the call that a result is about: the one with its id, or the first one of its tool, or the
    /// first one.
    fn close_call(&mut self, id: Option<String>, tool: Option<&str>) -> String {
        let is_meant = |call: &OpenCall| match (&id, tool) {
            (Some(id), _) => call.id == *id,
            (None, Some(tool)) => call.tool == tool,
            (None, None) => true,
        };
        let position = self.open_calls.iter().position(is_meant);
        let call = position.map(|idx| self.open_calls.remove(idx).id);
        id.or(call).or(tool.map(str::to_owned)).unwrap_or_else(|| "call".to_owned())
    }
}

/// Takes out a text that is not empty.
fn optional(message: &mut Object, name: &str) -> Result<Option<String>, DialectError> {
    Ok(message.optional_text(name)?.filter(|text| !text.is_empty()))
}

/// Returns a message's content: its images, which Ollama puts in front, and its text.
pub(super) fn content(text: String, images: Vec<Field>) -> Result<Value, DialectError> {
    if images.is_empty() {
        return Ok(text.into());
    }
    let mut parts: Vec<Value> = Vec::new();
    for image in images {
        parts.push(medium(&image.text()?));
    }
    if !text.is_empty() {
        parts.push(json!({"type": "text", "text": text}));
    }
    Ok(parts.into())
}

/// Returns the part for an image or audio, whose file is in base64 or in a data URL. The server checks the file.
fn medium(file: &str) -> Value {
    let data = file.strip_prefix("data:").and_then(|url| url.split_once(";base64,")).map_or(file, |(_, data)| data);
    if let Some(format) = audio_format(data) {
        return json!({"type": "input_audio", "input_audio": {"data": data, "format": format}});
    }
    let format = IMAGE_STARTS.iter().find(|(start, _)| data.starts_with(start));
    let media_type = format.map_or("image/png", |(_, media_type)| *media_type);
    json!({"type": "image_url", "image_url": {"url": format!("data:{media_type};base64,{data}")}})
}

/// Returns OpenAI's name for the format of audio in base64; `None` for anything else.
fn audio_format(data: &str) -> Option<&'static str> {
    // The last three letters of `WAVE` are behind the file's length; an MP3 frame begins with eleven set bits.
    if data.starts_with("UklGR") && data.get(12..16) == Some("QVZF") {
        Some("wav")
    } else if data.starts_with("SUQz") || data.starts_with("//") {
        Some("mp3")
    } else {
        data.starts_with("ZkxhQ").then_some("flac")
    }
}
