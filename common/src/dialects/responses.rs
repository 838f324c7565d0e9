//! OpenAI's responses as a chat.
//!
//! Not here: the answer's shape (the worker). The idea: the fields of responses are taken out of the body and written as a chat
//! spells them; every other field stays as it is. Nothing is stored, so what refers to something stored is refused.
//! Source: OpenAI's API reference, "Create a model response".

use serde_json::{Map, Value, json};

use super::conversation::{Call, Conversation};
use super::field::{Field, Object, unsupported, wrong};
use super::{Converted, DialectError, Spelling, drop_meaningless, read_object, write};

/// Lists the fields that mean nothing in responses, besides those that mean nothing in any dialect.
pub const DROPPED: &[&str] = &["include", "max_tokens", "max_tool_calls", "messages", "store", "truncation", "user"];

/// Lists what a chat's fields are called here.
const RENAMED: &[(&str, &str)] = &[
    ("max_completion_tokens", "max_output_tokens"),
    ("messages", "input"),
    ("response_format.json_schema", "text.format"),
    ("response_format", "text.format"),
    ("reasoning_effort", "reasoning.effort"),
    ("tool_choice.function", "tool_choice"),
];

/// Returns the chat that a request for a response means.
///
/// Errors: every [`DialectError`].
pub fn responses(body: &[u8]) -> Result<Converted, DialectError> {
    let mut fields = read_object(body)?;
    refuse_stored(&mut fields)?;
    refuse_logprobs(&mut fields)?;
    drop_meaningless(&mut fields, DROPPED);
    let mut talk = Conversation::default();
    if let Some(instructions) = fields.optional_text("instructions")? {
        talk.say("system", instructions, "instructions");
    }
    read_input(fields.required("input")?, &mut talk)?;
    let mut chat = Map::new();
    if let Some(tools) = fields.take("tools") {
        let tools = tools.items()?.into_iter().map(|tool| read_tool(tool.object()?));
        chat.insert("tools".to_owned(), tools.collect::<Result<_, _>>()?);
    }
    read_tool_choice(&mut fields, &mut chat)?;
    read_format(&mut fields, &mut chat)?;
    if let Some(effort) = fields.optional_object("reasoning")?.and_then(|mut reasoning| reasoning.take("effort")) {
        chat.insert("reasoning_effort".to_owned(), effort.text()?.into());
    }
    if let Some(max) = fields.take("max_output_tokens") {
        chat.insert("max_completion_tokens".to_owned(), max.value);
    }
    let (messages, origins) = talk.finish();
    chat.insert("messages".to_owned(), messages.into());
    let Object { fields: mut rest, .. } = fields;
    rest.append(&mut chat);
    Ok(Converted { body: write(&rest), spelling: Spelling::new(RENAMED, "parameters", origins) })
}

/// Refuses what needs a response that was stored, or one that is made while nobody waits.
fn refuse_stored(fields: &mut Object) -> Result<(), DialectError> {
    let stored = "responses are not stored here; send the whole conversation in `input`";
    let refused = [
        ("previous_response_id", stored),
        ("conversation", stored),
        ("prompt", "prompts are not stored here; send `instructions` and `input`"),
        ("background", "a response is made while its client waits; leave it out or say false"),
    ];
    for (name, reason) in refused {
        if let Some(field) = fields.take(name).filter(|field| field.value != Value::Bool(false)) {
            return Err(unsupported(&field.path, reason));
        }
    }
    Ok(())
}

fn refuse_logprobs(fields: &mut Object) -> Result<(), DialectError> {
    let reason = "log probabilities are not given in responses; chat completions have them";
    if let Some(top) = fields.take("top_logprobs").filter(|top| top.value.as_f64() != Some(0.0)) {
        return Err(unsupported(&top.path, reason));
    }
    match fields.optional_items("include")?.into_iter().find(|item| item.value == "message.output_text.logprobs") {
        Some(item) => Err(unsupported(&item.path, reason)),
        None => Ok(()),
    }
}

fn read_input(input: Field, talk: &mut Conversation) -> Result<(), DialectError> {
    match input.value {
        Value::String(text) => talk.say("user", text, &input.path),
        Value::Array(_) => {
            let path = input.path.clone();
            let items = input.items()?;
            if items.is_empty() {
                return Err(wrong(&path, "is empty"));
            }
            for item in items {
                read_item(item.object()?, talk)?;
            }
        }
        _ => return Err(wrong(&input.path, "must be a string or an array of items")),
    }
    Ok(())
}

fn read_item(mut item: Object, talk: &mut Conversation) -> Result<(), DialectError> {
    let kind = item.optional_text("type")?;
    match kind.as_deref().unwrap_or("message") {
        "message" => read_message(item, talk),
        "function_call" => {
            let call = Call { id: item.text("call_id")?, name: item.text("name")?, arguments: item.text("arguments")? };
            talk.call(call, &item.path);
            Ok(())
        }
        "function_call_output" => {
            let id = item.text("call_id")?;
            let output = read_texts(item.required("output")?)?;
            talk.result(id, output, &item.path);
            Ok(())
        }
        "reasoning" => read_reasoning(item, talk),
        "item_reference" => {
            let reason = "items are not stored here; send the item itself";
            Err(unsupported(&item.path_of("type"), reason))
        }
        kind => {
            let reason =
                format!("items of type `{kind}` are not supported; messages, function calls and reasoning are");
            Err(unsupported(&item.path_of("type"), reason))
        }
    }
}

fn read_message(mut item: Object, talk: &mut Conversation) -> Result<(), DialectError> {
    let role = item.text("role")?;
    if !matches!(role.as_str(), "user" | "assistant" | "system" | "developer") {
        return Err(wrong(&item.path_of("role"), "must be \"user\", \"assistant\", \"system\" or \"developer\""));
    }
    let texts = read_texts(item.required("content")?)?;
    if texts.is_empty() {
        talk.begin(&role, &item.path);
    }
    texts.into_iter().for_each(|text| talk.say(&role, text, &item.path));
    Ok(())
}

/// Returns the texts of a field that is one text or an array of parts.
fn read_texts(field: Field) -> Result<Vec<String>, DialectError> {
    match field.value {
        Value::String(text) => Ok(vec![text]),
        Value::Array(_) => field.items()?.into_iter().map(|part| read_part(part.object()?)).collect(),
        _ => Err(wrong(&field.path, "must be a string or an array of parts")),
    }
}

fn read_part(mut part: Object) -> Result<String, DialectError> {
    match part.text("type")?.as_str() {
        "input_text" | "output_text" | "text" => part.text("text"),
        "refusal" => part.text("refusal"),
        kind => {
            let reason = format!("parts of type `{kind}` are not supported; only text is");
            Err(unsupported(&part.path_of("type"), reason))
        }
    }
}

/// Reads what the model thought before; where only a summary came back, that is what is left of it.
fn read_reasoning(mut item: Object, talk: &mut Conversation) -> Result<(), DialectError> {
    let thoughts = read_thoughts(item.optional_items("content")?)?;
    let summary = read_thoughts(item.optional_items("summary")?)?;
    let thoughts = if thoughts.is_empty() { summary } else { thoughts };
    thoughts.into_iter().for_each(|thought| talk.think(thought, &item.path));
    Ok(())
}

fn read_thoughts(parts: Vec<Field>) -> Result<Vec<String>, DialectError> {
    parts.into_iter().map(|part| part.object()?.text("text")).collect()
}

fn read_tool(mut tool: Object) -> Result<Value, DialectError> {
    let kind = tool.text("type")?;
    if kind != "function" {
        let reason = format!("tools of type `{kind}` are not run here; only functions are known");
        return Err(unsupported(&tool.path_of("type"), reason));
    }
    let mut function = Map::new();
    function.insert("name".to_owned(), tool.text("name")?.into());
    for name in ["description", "parameters", "strict"] {
        if let Some(field) = tool.take(name) {
            function.insert(name.to_owned(), field.value);
        }
    }
    Ok(json!({"type": "function", "function": function}))
}

fn read_tool_choice(fields: &mut Object, chat: &mut Map<String, Value>) -> Result<(), DialectError> {
    let Some(choice) = fields.take("tool_choice") else { return Ok(()) };
    let written = match choice.value {
        Value::String(word) => word.into(),
        Value::Object(_) => {
            let mut choice = choice.object()?;
            let kind = choice.text("type")?;
            if kind != "function" {
                let reason = format!("choices of type `{kind}` are not supported; name a function");
                return Err(unsupported(&choice.path_of("type"), reason));
            }
            json!({"type": "function", "function": {"name": choice.text("name")?}})
        }
        _ => return Err(wrong(&choice.path, "must be a string or an object")),
    };
    chat.insert("tool_choice".to_owned(), written);
    Ok(())
}

fn read_format(fields: &mut Object, chat: &mut Map<String, Value>) -> Result<(), DialectError> {
    let Some(mut text) = fields.optional_object("text")? else { return Ok(()) };
    let Some(mut format) = text.optional_object("format")? else { return Ok(()) };
    let kind = format.text("type")?;
    let written = match kind.as_str() {
        "text" => return Ok(()),
        "json_object" => json!({"type": "json_object"}),
        "json_schema" => {
            let name = format.text("name")?;
            format.fields.insert("name".to_owned(), name.into());
            json!({"type": "json_schema", "json_schema": format.fields})
        }
        _ => return Err(wrong(&format.path_of("type"), "must be \"text\", \"json_object\" or \"json_schema\"")),
    };
    chat.insert("response_format".to_owned(), written);
    Ok(())
}

#[cfg(test)]
mod tests;
