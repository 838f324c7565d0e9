//! Settings of an answer: options, format, reasoning, log probabilities, and the time that a model stays loaded.

use serde_json::{Map, Value, json};

use super::super::DialectError;
use super::super::field::{Field, Object, unsupported, wrong};
use super::{OllamaTask, RENAMED};
use crate::json::whole::Whole;

/// Fields that Ollama does not have, and that mean the same as in a chat.
pub(super) const PASSED: [&str; 6] =
    ["cache_prompt", "cache_salt", "chat_template_kwargs", "parallel_tool_calls", "priority", "tool_choice"];

/// Largest `top_logprobs`. Source: Ollama's own limit, which is also that of OpenAI's API.
const TOP_LOGPROBS_MAX: u32 = 20;

/// Units of a duration, longer names before their own prefixes. Source: Go's `time.ParseDuration`.
const DURATION_UNITS: [&str; 8] = ["ns", "us", "µs", "μs", "ms", "s", "m", "h"];

/// Returns what a request without a prompt is for.
pub(super) fn read_keep_alive(fields: &mut Object) -> Result<OllamaTask, DialectError> {
    let Some(keep_alive) = fields.take("keep_alive") else { return Ok(OllamaTask::Load) };
    let is_zero = match &keep_alive.value {
        Value::Number(seconds) => Some(seconds.as_f64() == Some(0.0)),
        Value::String(duration) => is_zero_duration(duration),
        _ => None,
    };
    let form = "must be a number of seconds, or a duration such as \"5m\"";
    let is_zero = is_zero.ok_or_else(|| wrong(&keep_alive.path, form))?;
    Ok(if is_zero { OllamaTask::Unload } else { OllamaTask::Load })
}

/// Returns whether a duration such as `1h30m` is zero; `None` if it has another form. Without a unit it counts seconds.
fn is_zero_duration(text: &str) -> Option<bool> {
    let mut text_left = text.strip_prefix(['-', '+']).unwrap_or(text);
    let mut is_zero = true;
    loop {
        let number_len = text_left.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text_left.len());
        let (number, behind) = text_left.split_at(number_len);
        is_zero &= number.parse::<f64>().ok()? == 0.0;
        if behind.is_empty() {
            return Some(is_zero);
        }
        let unit = DURATION_UNITS.iter().find(|unit| behind.starts_with(**unit))?;
        text_left = &behind[unit.len()..];
        if text_left.is_empty() {
            return Some(is_zero);
        }
    }
}

/// Reads the settings of chats and completions.
pub(super) fn read_shared(fields: &mut Object, request: &mut Map<String, Value>) -> Result<(), DialectError> {
    if take_switch(fields, "_debug_render_only")? == Some(true) {
        return Err(unsupported("_debug_render_only", "a chat is rendered by `/apply-template`"));
    }
    for name in PASSED {
        request.extend(fields.take(name).map(|field| (name.to_owned(), field.value)));
    }
    let is_streamed = take_switch(fields, "stream")?.unwrap_or(true);
    request.insert("stream".to_owned(), is_streamed.into());
    if is_streamed {
        request.insert("stream_options".to_owned(), json!({"include_usage": true}));
    }
    read_format(fields, request)?;
    read_options(fields, request)
}

/// Passes the salt on, the one field of a request for vectors that Ollama does not have.
pub(super) fn pass_salt(fields: &mut Object, request: &mut Map<String, Value>) {
    request.extend(fields.take("cache_salt").map(|field| ("cache_salt".to_owned(), field.value)));
}

fn read_options(fields: &mut Object, request: &mut Map<String, Value>) -> Result<(), DialectError> {
    let Some(mut options) = fields.optional_object("options")? else { return Ok(()) };
    for field in RENAMED {
        let Some(name) = field.dialect.strip_prefix("options.") else { continue };
        let Some(option) = options.take(name) else { continue };
        // In Ollama 0 and negative numbers are no limit.
        if name == "num_predict" && option.value.as_f64().is_some_and(|n_tokens| n_tokens <= 0.0) {
            continue;
        }
        request.insert(field.chat.to_owned(), option.value);
    }
    Ok(())
}

fn read_format(fields: &mut Object, request: &mut Map<String, Value>) -> Result<(), DialectError> {
    let Some(format) = fields.take("format") else { return Ok(()) };
    let format = match format {
        Field { value: Value::String(name), .. } if name.is_empty() => return Ok(()),
        Field { value: Value::String(name), .. } if name == "json" => json!({"type": "json_object"}),
        Field { value: schema @ Value::Object(_), .. } => {
            json!({"type": "json_schema", "json_schema": {"name": "answer", "schema": schema, "strict": true}})
        }
        Field { path, .. } => return Err(wrong(&path, "must be \"json\" or a JSON schema")),
    };
    request.insert("response_format".to_owned(), format);
    Ok(())
}

/// Reads whether the model is to reason first, and how much; where the request does not set it, the chat template
/// decides.
pub(super) fn read_thinking(fields: &mut Object, chat: &mut Map<String, Value>) -> Result<(), DialectError> {
    let Some(think) = fields.take("think") else { return Ok(()) };
    let thinks = match think.value {
        Value::Bool(thinks) => thinks,
        Value::String(level) if ["low", "medium", "high", "max"].contains(&level.as_str()) => {
            chat.insert("reasoning_effort".to_owned(), level.into());
            true
        }
        _ => return Err(wrong(&think.path, "must be true, false, \"low\", \"medium\", \"high\" or \"max\"")),
    };
    let variables = chat.entry("chat_template_kwargs").or_insert_with(|| json!({}));
    if let Value::Object(variables) = variables {
        variables.entry("enable_thinking").or_insert(thinks.into());
    }
    Ok(())
}

/// Reads the requested log probabilities of a chat.
pub(super) fn read_logprobs_of_chat(fields: &mut Object, chat: &mut Map<String, Value>) -> Result<(), DialectError> {
    if let Some(n_top) = take_logprobs(fields)? {
        chat.insert("logprobs".to_owned(), true.into());
        chat.insert("top_logprobs".to_owned(), n_top.into());
    }
    Ok(())
}

/// Reads the requested log probabilities of a completion, in which one number requests them.
pub(super) fn read_logprobs_of_completion(
    fields: &mut Object,
    completion: &mut Map<String, Value>,
) -> Result<(), DialectError> {
    completion.extend(take_logprobs(fields)?.map(|n_top| ("logprobs".to_owned(), n_top.into())));
    Ok(())
}

/// Takes out the number of most likely tokens at each position; `None` if no log probabilities are requested.
fn take_logprobs(fields: &mut Object) -> Result<Option<u32>, DialectError> {
    let is_requested = take_switch(fields, "logprobs")?.unwrap_or_default();
    let Some(top) = fields.take("top_logprobs") else { return Ok(is_requested.then_some(0)) };
    match serde_json::from_value(top.value) {
        Ok(Whole(n_top)) if n_top <= TOP_LOGPROBS_MAX => Ok(is_requested.then_some(n_top)),
        _ => Err(wrong(&top.path, &format!("must be 0 to {TOP_LOGPROBS_MAX}"))),
    }
}

/// Takes out a field that is true or false.
pub(super) fn take_switch(fields: &mut Object, name: &str) -> Result<Option<bool>, DialectError> {
    match fields.take(name) {
        None => Ok(None),
        Some(Field { value: Value::Bool(is_on), .. }) => Ok(Some(is_on)),
        Some(Field { path, .. }) => Err(wrong(&path, "must be true or false")),
    }
}
