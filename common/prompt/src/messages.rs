//! Converts a request's messages to the form that a chat template accepts.
//!
//! Messages are passed unchanged, except where OpenAI's format and Hugging Face's templates are known to differ. A
//! message that no template can render is refused with its index.

mod calls;
pub(crate) mod content;
pub(crate) mod tool_keys;
mod turns;
pub(crate) mod unread;

use std::borrow::Cow;

use serde_json::{Map, Value as Json, json};
use warmpath_common::openai::{ChatPrompt, REASONING_FIELDS};

use crate::error::PromptError;
use crate::media::{MediaKind, mark};
use crate::messages::calls::{add_ids, fit_calls, one_call_each};
use crate::messages::turns::{JOINT, joined, opened};
use crate::template::caps::{Caps, ContentShapes, SystemPlaces};
use crate::template::kwargs::{ENABLE_THINKING, TemplateKwargs};
use content::{has_calls, has_role, is_answer, join, part_text};

/// Longest role.
///
/// Source: the longest role of llama.cpp's models/templates has 14 bytes (`ipython`, `tool_response`, ...).
pub(crate) const ROLE_BYTES_MAX: usize = 64;

/// Separator between the parts of a continued message. Source: llama.cpp's `common_chat_msg::render_content`.
const CONTINUED_PARTS_JOINT: &str = "\n\n";

/// Returns a request's template variables as JSON; `defaults` are those of its model.
pub(crate) fn variables(
    request: &ChatPrompt,
    caps: &Caps,
    defaults: &TemplateKwargs,
) -> Result<Map<String, Json>, PromptError> {
    let (enable_thinking, mut variables) = defaults.switches(request)?;
    variables.insert(ENABLE_THINKING.to_owned(), Json::Bool(enable_thinking));
    if request.messages.is_empty() {
        return Err(PromptError::Field { field: "messages", reason: "there are none".to_owned() });
    }
    let mut messages = Vec::with_capacity(request.messages.len());
    let mut n_media = 0;
    for (index, message) in placed(&request.messages, caps.system_places) {
        let error_of = |reason: String| PromptError::Messages { index, reason };
        messages.push(fit(&message, caps, &mut n_media).map_err(error_of)?);
    }
    add_ids(&mut messages, caps);
    // Media are counted by now, so messages may change places.
    let messages = opened(joined(one_call_each(messages, caps), caps), caps);
    variables.insert("messages".to_owned(), messages.into_iter().map(Json::Object).collect());
    // As in transformers, which always defines these two.
    let tools = request.tools.clone().filter(|tools| !tools.is_empty());
    variables.insert("tools".to_owned(), tools.map_or(Json::Null, Json::Array));
    variables.entry("documents").or_insert(Json::Null);
    if let Some(add) = request.add_generation_prompt {
        variables.insert("add_generation_prompt".to_owned(), Json::Bool(add));
    } else {
        variables.entry("add_generation_prompt").or_insert(Json::Bool(true));
    }
    Ok(variables)
}

/// An assistant message at the end that is continued.
pub(crate) struct Continued<'m> {
    pub reasoning: Cow<'m, str>,
    pub content: Cow<'m, str>,
}

/// Returns the message to continue, if the last one is the assistant's and has others before it. Answers before it
/// that the template refuses there are a part of it, as everywhere else ([`joined`]).
///
/// Errors: `Messages` if it cannot be continued, like llama-server.
pub(crate) fn continued<'m>(request: &'m ChatPrompt, caps: &Caps) -> Result<Option<Continued<'m>>, PromptError> {
    let messages = &request.messages;
    let Some((message, before)) = messages.split_last().filter(|(last, _)| has_role(last, &["assistant"])) else {
        return Ok(None);
    };
    if !before.is_empty() && has_calls(message) {
        let reason = "an assistant's message with tool calls cannot be continued; the calls' results must follow";
        return Err(PromptError::Messages { index: before.len(), reason: reason.to_owned() });
    }
    let is_joined = |message: &&Map<String, Json>| has_role(message, &["assistant"]) && !has_calls(message);
    let n_joined = before.iter().rev().take_while(is_joined).count();
    let first = if caps.refused_pairs.assistants { before.len() - n_joined } else { before.len() };
    if first == 0 {
        return Ok(None);
    }
    let content = |(index, message)| said(message).map_err(|reason| PromptError::Messages { index, reason });
    let mut contents = (first..).zip(&messages[first..]).map(content).collect::<Result<Vec<_>, _>>()?;
    contents.retain(|text| !text.is_empty());
    let reasoning = messages[first].get("reasoning_content").and_then(Json::as_str).unwrap_or_default().into();
    let content = if contents.len() == 1 { contents.remove(0) } else { contents.join(JOINT).into() };
    Ok(Some(Continued { reasoning, content }))
}

/// Returns the text of an answer.
///
/// Errors: the reason if it is not only text.
fn said(message: &Map<String, Json>) -> Result<Cow<'_, str>, String> {
    match message.get("content") {
        Some(Json::String(text)) => Ok(text.into()),
        Some(Json::Array(parts)) => {
            let texts = parts.iter().map(part_text).collect::<Result<Vec<_>, _>>()?;
            Ok(texts.join(CONTINUED_PARTS_JOINT).into())
        }
        _ => Ok("".into()),
    }
}

/// Returns the messages with their indexes. System messages that the template does not render are joined to other
/// messages: those at the beginning to the first one if that is rendered, others to the user's turn that they are in.
///
/// A later system message stays in its place, so that the prompt still begins with the prompts of earlier turns.
fn placed(messages: &[Map<String, Json>], places: SystemPlaces) -> Vec<(usize, Cow<'_, Map<String, Json>>)> {
    let mut placed_messages: Vec<(usize, Cow<'_, Map<String, Json>>)> = Vec::with_capacity(messages.len());
    let mut is_beginning = true;
    // Whether a system message was moved into the last turn.
    let mut holds_system = false;
    for (index, message) in messages.iter().enumerate() {
        let is_system = has_role(message, &["system", "developer"]);
        is_beginning &= is_system;
        let is_rendered = if is_beginning { places.first } else { places.later };
        let is_moved = is_system && !is_rendered;
        let is_joined = match placed_messages.last() {
            Some((_, last)) if is_moved => has_role(last, &["user"]),
            Some(_) if is_system && is_beginning => !places.several_first,
            Some((_, last)) => holds_system && has_role(message, &["user"]) && has_role(last, &["user"]),
            None => false,
        };
        let last = placed_messages.last_mut().filter(|_| is_joined);
        let is_joined = last.is_some_and(|(_, last)| join(last.to_mut(), message, "\n"));
        holds_system = is_moved || (holds_system && is_joined);
        if is_moved && !is_joined {
            let mut turn = message.clone();
            turn.insert("role".to_owned(), "user".into());
            placed_messages.push((index, Cow::Owned(turn)));
        } else if !is_joined {
            placed_messages.push((index, Cow::Borrowed(message)));
        }
    }
    placed_messages
}

/// Returns `message` in the form that the template accepts, with marks for its media; `n_media` counts them.
fn fit(message: &Map<String, Json>, caps: &Caps, n_media: &mut usize) -> Result<Map<String, Json>, String> {
    let role = role(message, caps)?.to_owned();
    let content = match message.get("content") {
        Some(Json::Array(parts)) => fit_parts(parts, caps.content(&role), n_media)?,
        content => fit_content(content, &role, caps)?,
    };
    // Long texts are copied only once.
    let copied =
        |(name, value): (&String, &Json)| (name.clone(), if name == "content" { Json::Null } else { value.clone() });
    let mut fields: Map<String, Json> = message.iter().map(copied).collect();
    fields.insert("content".to_owned(), content);
    fields.insert("role".to_owned(), Json::String(role));
    fit_calls(&mut fields, caps)?;
    fit_thinking(&mut fields, caps);
    fit_empty(&mut fields, caps);
    Ok(fields)
}

/// Converts content without text, of calls or of an answer, to the form that the template accepts.
fn fit_empty(message: &mut Map<String, Json>, caps: &Caps) {
    let has_calls = message.contains_key("tool_calls");
    let as_part = caps.empty_answer_as_part && is_answer(message);
    let Some(content) = message.get_mut("content") else { return };
    if *content != "" && !content.as_array().is_some_and(Vec::is_empty) {
        return;
    }
    if has_calls {
        *content = caps.content_of_calls.clone();
    } else if as_part {
        *content = json!([{"type": "text", "text": ""}]);
    }
}

/// Moves reasoning to where the template reads it.
fn fit_thinking(message: &mut Map<String, Json>, caps: &Caps) {
    let as_part = caps.thinking_parts && has_role(message, &["system", "assistant"]);
    if !as_part && caps.reasoning_field == REASONING_FIELDS[0] {
        return;
    }
    let Some(Json::String(thoughts)) = message.get(REASONING_FIELDS[0]).cloned() else { return };
    // llama.cpp drops reasoning without text, too.
    if thoughts.is_empty() {
        return;
    }
    if as_part {
        let mut parts = vec![json!({"type": "thinking", "thinking": thoughts})];
        match message.get_mut("content").map(Json::take) {
            Some(Json::Array(texts)) => parts.extend(texts),
            text => parts.push(json!({"type": "text", "text": text})),
        }
        message.insert("content".to_owned(), Json::Array(parts));
        return;
    }
    message.insert(caps.reasoning_field.to_owned(), Json::String(thoughts));
    if caps.calls_without_content && message.contains_key("tool_calls") {
        message.shift_remove("content");
    }
}

fn role<'m>(message: &'m Map<String, Json>, caps: &Caps) -> Result<&'m str, String> {
    let Some(Json::String(role)) = message.get("role") else {
        return Err("role must be a string".to_owned());
    };
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"_-. ".contains(&byte);
    if role.is_empty() || role.len() > ROLE_BYTES_MAX || !role.bytes().all(plain) {
        return Err(format!("role must be 1 to {ROLE_BYTES_MAX} letters, digits, '_', '-', '.' or spaces"));
    }
    Ok(if role == "developer" && !caps.developer_role { "system" } else { role })
}

/// Returns the parts of a content in a form that the template renders.
///
/// Texts are joined by a newline, and a medium by nothing, as llama.cpp's `concat_content_parts` does.
fn fit_parts(parts: &[Json], shapes: ContentShapes, n_media: &mut usize) -> Result<Json, String> {
    let mut new_parts = Vec::with_capacity(parts.len());
    let mut joint_text = String::new();
    let mut is_behind_media = true;
    for part in parts {
        let is_medium = MediaKind::of(part).is_some();
        let text = if is_medium {
            *n_media += 1;
            Cow::Owned(mark(*n_media - 1))
        } else {
            Cow::Borrowed(part_text(part)?)
        };
        if !is_medium && !is_behind_media {
            joint_text.push('\n');
        }
        is_behind_media = is_medium;
        joint_text.push_str(&text);
        new_parts.push(if is_medium { json!({"type": "text", "text": text}) } else { part.clone() });
    }
    Ok(if shapes.parts { Json::Array(new_parts) } else { shapes.wrapped(&joint_text) })
}

/// Returns content without parts in a form that the template renders for `role`.
fn fit_content(content: Option<&Json>, role: &str, caps: &Caps) -> Result<Json, String> {
    match content {
        None | Some(Json::Null) => Ok(caps.content(role).wrapped("")),
        Some(Json::String(text)) => Ok(caps.content(role).wrapped(text)),
        Some(_) => Err("content must be a string, an array of parts or null".to_owned()),
    }
}

#[cfg(test)]
mod tests;
