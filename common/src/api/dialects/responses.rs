//! Conversion of OpenAI's responses into a chat.
//!
//! The worker writes the response. The fields of responses are taken out of the body and written as fields of a chat;
//! all other fields stay. Nothing is stored, so references to stored items are refused.
//! Source: OpenAI's API reference, "Create a model response".

mod tools;

use serde_json::{Map, Value, json};

use super::conversation::{Call, Conversation, Part};
use super::field::{Field, Object, unsupported, wrong};
use super::spelling::{Origins, RenamedField, renamed};
use super::tools::{CallForm, Listing};
use super::{Converted, DialectError, Spelling, drop_meaningless, read_object, write, write_breakpoints};
use crate::api::cache_breakpoints::is_marked;
use crate::api::history::new_message;
use crate::api::openai::custom_tools::free_text_arguments;
use crate::api::openai::tool_kinds::{OTHER_KIND, TOOL_SEARCH, left_out_kind};
use crate::api::openai::{document_text, result_text, thought};
use crate::json::empty_maps::is_empty_list;
use tools::{read_definitions, read_tool_choice, take_tool};

/// Fields that mean nothing in responses, besides those that mean nothing in any dialect.
pub const DROPPED: &[&str] = &["include", "max_tokens", "max_tool_calls", "messages", "store", "truncation", "user"];

/// Types of parts, which are no items.
const PART_KINDS: &[&str] =
    &["text", "input_text", "output_text", "refusal", "input_image", "image_url", "input_audio", "thinking"];

/// Field names of a chat, each with its name in responses.
const RENAMED: &[RenamedField] = &[
    renamed("max_completion_tokens", "max_output_tokens"),
    renamed("messages", "input"),
    renamed("response_format.json_schema", "text.format"),
    renamed("response_format", "text.format"),
    renamed("reasoning_effort", "reasoning.effort"),
    renamed("tool_choice.function", "tool_choice"),
    renamed("tool_choice.allowed_tools", "tool_choice"),
];

/// Returns the chat of a request for a response.
///
/// Errors: every [`DialectError`].
pub fn responses(body: &[u8]) -> Result<Converted, DialectError> {
    let mut fields = read_object(body)?;
    refuse_stored(&mut fields)?;
    refuse_logprobs(&mut fields)?;
    drop_meaningless(&mut fields, DROPPED);
    // The tools come before the items, which name them.
    let mut chat = Map::new();
    let mut reader = Reader::default();
    let has_tools = fields.fields.get("tools").is_some_and(|tools| !tools.is_null());
    for tool in fields.optional_items("tools")? {
        read_definitions(tool.object()?)?.into_iter().for_each(|definition| reader.tools.list(definition));
    }
    // The conversation: instructions, then one item after the other.
    if let Some(instructions) = fields.optional_text("instructions")? {
        reader.conversation.add_text("system", instructions, "instructions");
    }
    let mut reasoning = fields.optional_object("reasoning")?;
    if let Some(context) = reasoning.as_mut().and_then(|reasoning| reasoning.take("context")) {
        reader.is_reasoning_forgotten = context.text()? == "current_turn";
    }
    reader.read_input(fields.required("input")?)?;
    // The fields with another name or form in a chat; an item of the conversation may have set some of them.
    read_tool_choice(&mut fields, &reader.tools, &mut chat)?;
    let text = fields.optional_object("text")?;
    read_format(reader.text.take().or(text), &mut chat)?;
    let effort = reasoning.and_then(|mut reasoning| reasoning.take("effort"));
    if let Some(effort) = reader.effort.take().or(effort) {
        chat.insert("reasoning_effort".to_owned(), effort.text()?.into());
    }
    if let Some(max) = fields.take("max_output_tokens") {
        chat.insert("max_completion_tokens".to_owned(), max.value);
    }
    if wants_prewarm(&fields)? {
        chat.insert("max_completion_tokens".to_owned(), 0.into());
    }
    // The chat: what was read, over the fields that mean the same in both APIs.
    write_breakpoints(&reader.conversation, &mut chat);
    let (messages, message_origins) = reader.conversation.finish();
    let (functions, tool_origins, tools) = reader.tools.finish();
    chat.insert("messages".to_owned(), messages.into());
    if has_tools || !functions.is_empty() {
        chat.insert("tools".to_owned(), functions.into());
    }
    let Object { fields: mut rest, .. } = fields;
    rest.append(&mut chat);
    let origins = Origins { messages: message_origins, tools: tool_origins };
    Ok(Converted { body: write(&rest), spelling: Spelling::new(RENAMED, "parameters", origins), tools })
}

/// Refuses fields that need something stored, or a response that is generated in the background. An empty id names
/// nothing.
fn refuse_stored(fields: &mut Object) -> Result<(), DialectError> {
    let not_stored = "responses are not stored here; send the whole conversation in `input`";
    let fields_with_reasons = [
        ("previous_response_id", not_stored),
        ("conversation", not_stored),
        ("prompt", "prompts are not stored here; send `instructions` and `input`"),
        ("personality", "there are no presets of style; write one into `instructions`"),
        ("background", "responses are generated while their client waits; leave it out or set it to false"),
    ];
    for (name, reason) in fields_with_reasons {
        let is_neutral = |value: &Value| {
            *value == Value::Bool(false) || is_empty_list(value) || value.as_str().is_some_and(str::is_empty)
        };
        if let Some(field) = fields.take(name).filter(|field| !is_neutral(&field.value)) {
            return Err(unsupported(&field.path, reason));
        }
    }
    Ok(())
}

/// Returns whether the request only fills the cache.
fn wants_prewarm(fields: &Object) -> Result<bool, DialectError> {
    let options = match fields.fields.get("prompt_cache_options") {
        None | Some(Value::Null) => return Ok(false),
        Some(options) if is_empty_list(options) => return Ok(false),
        Some(options) => options.as_object().ok_or_else(|| wrong("prompt_cache_options", "must be an object"))?,
    };
    match options.get("prewarm") {
        None | Some(Value::Null) => Ok(false),
        Some(Value::Bool(prewarm)) => Ok(*prewarm),
        Some(_) => Err(wrong("prompt_cache_options.prewarm", "must be true or false")),
    }
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

/// State of reading a request.
#[derive(Default)]
struct Reader {
    conversation: Conversation,
    tools: Listing,
    /// Whether the user has just written the current message; all other items are history, unless one is alone.
    is_new: bool,
    /// Whether no item follows the current one.
    is_last: bool,
    /// Whether the model is not to see what it thought in earlier turns.
    is_reasoning_forgotten: bool,
    /// Whether the current item is of the current turn: no message of the user follows.
    is_of_current_turn: bool,
    /// Effort that an item sets for the responses behind it.
    effort: Option<Field>,
    /// Form of the output that an item sets for the responses behind it.
    text: Option<Object>,
}

impl Reader {
    fn read_input(&mut self, input: Field) -> Result<(), DialectError> {
        let path = input.path.clone();
        match input.value {
            Value::String(text) => self.conversation.add_text("user", text, &path),
            Value::Array(_) => {
                let items = input.items()?;
                let newest = new_message(items.iter().map(|item| item.value.as_object()));
                let last_said = items.iter().rposition(|item| item.value["role"] == "user");
                let (is_alone, idx_max) = (items.len() == 1, items.len().saturating_sub(1));
                for (idx, item) in items.into_iter().enumerate() {
                    self.is_new = is_alone || newest == Some(idx);
                    self.is_last = idx == idx_max;
                    self.is_of_current_turn = last_said.is_none_or(|last| last < idx);
                    self.read_item(item.object()?)?;
                }
            }
            _ => return Err(wrong(&path, "must be a string or an array of items")),
        }
        if self.conversation.is_empty() {
            return Err(wrong(&path, "is empty, and there are no `instructions`"));
        }
        Ok(())
    }

    fn read_item(&mut self, mut item: Object) -> Result<(), DialectError> {
        let kind = item.optional_text("type")?;
        match kind.as_deref().unwrap_or("message") {
            "message" => self.read_message(item),
            // Calls and their results.
            "function_call" => {
                let id = item.text("call_id")?;
                let name = self.tools.function_name(&take_tool(&mut item, CallForm::Function)?);
                self.conversation.call(Call { id, name, arguments: read_arguments(&mut item)? }, &item.path);
                Ok(())
            }
            "custom_tool_call" => {
                let id = item.text("call_id")?;
                let name = self.tools.function_name(&take_tool(&mut item, CallForm::Custom)?);
                self.conversation
                    .call(Call { id, name, arguments: free_text_arguments(&item.text("input")?) }, &item.path);
                Ok(())
            }
            "function_call_output" | "custom_tool_call_output" => {
                let id = item.optional_text("call_id")?.unwrap_or_default();
                let output = item.nullable("output")?.map_or_else(|| Ok(Vec::new()), |output| self.read_output(output));
                self.conversation.result(id, output?, &item.path);
                Ok(())
            }
            kind @ ("tool_search_call" | "tool_search_output") if self.has_searches() => self.read_search(kind, item),
            // What changes the rest of the conversation.
            "additional_tools" => self.read_additional_tools(item),
            "reasoning" => self.read_reasoning(item),
            "configuration_update" => self.read_configuration(item),
            // What would need something that is not here.
            "compaction_trigger" => Err(unsupported(
                &item.path_of("type"),
                "conversations are not compacted here; ask for a summary instead",
            )),
            "mcp_approval_response" if self.is_last => {
                let reason = "tools of MCP servers are not run here, so none waits for an approval";
                Err(unsupported(&item.path_of("type"), reason))
            }
            "item_reference" => {
                let reason = "items are not stored here; send the item itself, as clients do with `store: false` (AI SDK: \
                              `providerOptions: { openai: { store: false } }`)";
                Err(unsupported(&item.path_of("type"), reason))
            }
            // Every other type: left out, refused in the new message, or unread in the history.
            kind => {
                if let Some(left_out) = left_out_item(kind) {
                    self.tools.leave_out(left_out);
                    return Ok(());
                }
                if self.is_new || PART_KINDS.contains(&kind) {
                    let reason =
                        format!("items of type `{kind}` are not supported; messages, tool calls and reasoning are");
                    return Err(unsupported(&item.path_of("type"), reason));
                }
                item.fields.insert("type".to_owned(), kind.into());
                self.conversation.add_to_last(Part::Unread(item.fields), &item.path);
                Ok(())
            }
        }
    }

    /// Reads a search for tools: its call, or its result with the tools that it found.
    fn read_search(&mut self, kind: &str, mut item: Object) -> Result<(), DialectError> {
        // Searches that OpenAI's servers ran have none.
        let id = item.optional_text("call_id")?.unwrap_or_else(|| TOOL_SEARCH.to_owned());
        if kind == "tool_search_call" {
            let name = self.search_name();
            self.conversation.call(Call { id, name, arguments: read_arguments(&mut item)? }, &item.path);
        } else {
            let parts = self.read_loaded(&mut item)?;
            self.conversation.result(id, parts, &item.path);
        }
        Ok(())
    }

    fn read_additional_tools(&mut self, mut item: Object) -> Result<(), DialectError> {
        let role = item.optional_text("role")?.unwrap_or_else(|| "developer".to_owned());
        for part in self.read_loaded(&mut item)? {
            self.conversation.add(&role, part, &item.path);
        }
        Ok(())
    }

    /// Returns whether searches for tools are calls and results: the client runs them, or tools wait in the list.
    fn has_searches(&self) -> bool {
        self.tools.client_search().is_some() || self.tools.has_waiting()
    }

    /// Returns the name of the function that searches for tools.
    fn search_name(&self) -> String {
        self.tools.client_search().map_or_else(|| TOOL_SEARCH.to_owned(), |search| self.tools.function_name(search))
    }

    /// Reads the tools that an item brings; the model may call them from there on.
    fn read_loaded(&mut self, item: &mut Object) -> Result<Vec<Part>, DialectError> {
        let mut names = Vec::new();
        for tool in item.optional_items("tools")? {
            names.extend(read_definitions(tool.object()?)?.into_iter().filter_map(|tool| self.tools.define(tool)));
        }
        Ok(names.into_iter().map(Part::ToolReference).collect())
    }

    fn read_message(&mut self, mut item: Object) -> Result<(), DialectError> {
        let role = item.text("role")?;
        if !matches!(role.as_str(), "user" | "assistant" | "system" | "developer") {
            return Err(wrong(&item.path_of("role"), "must be \"user\", \"assistant\", \"system\" or \"developer\""));
        }
        if self.is_new {
            self.conversation.begin_new();
        }
        let content = item.nullable("content")?;
        let parts = match content {
            Some(Field { value: Value::String(text), .. }) => {
                self.conversation.add_text(&role, text, &item.path);
                return Ok(());
            }
            Some(content) if content.value.is_array() => content.items()?,
            Some(content) => return Err(wrong(&content.path, "must be a string or an array of parts")),
            None => Vec::new(),
        };
        if parts.is_empty() {
            self.conversation.begin(&role, &item.path);
        }
        for part in parts {
            match thought(&part.value).filter(|_| role == "assistant") {
                Some(thought) if thought.is_empty() || self.forgets() => {}
                Some(thought) => self.conversation.add_reasoning(thought, &item.path),
                None => {
                    let part = part.object()?;
                    let is_marked = is_marked(&part.fields);
                    self.conversation.add(&role, self.read_part(part)?, &item.path);
                    if is_marked {
                        self.conversation.mark();
                    }
                }
            }
        }
        Ok(())
    }

    /// Returns the parts of a tool's result: one text, an array of parts, or any other JSON, which is a text.
    fn read_output(&self, output: Field) -> Result<Vec<Part>, DialectError> {
        if let Some(text) = result_text(&output.value) {
            return Ok(vec![Part::Text(text)]);
        }
        match output.value {
            Value::String(text) => Ok(vec![Part::Text(text)]),
            _ => output.items()?.into_iter().map(|part| self.read_part(part.object()?)).collect(),
        }
    }

    fn read_part(&self, mut part: Object) -> Result<Part, DialectError> {
        let kind = part.text("type")?;
        if let Some(text) = document_text(&kind, &part.fields) {
            return Ok(Part::Text(text));
        }
        let file = part.fields.get("file_id").filter(|file| !file.is_null());
        match (kind.as_str(), file) {
            ("input_text" | "output_text" | "text", _) => part.nullable_text("text").map(Part::Text),
            ("refusal", _) => part.nullable_text("refusal").map(Part::Text),
            ("input_image", None) => part.text("image_url").map(Part::Image),
            ("input_audio", _) => Ok(Part::Audio(part.required("input_audio")?.object()?.fields)),
            _ if !self.is_new => {
                part.fields.insert("type".to_owned(), kind.into());
                Ok(Part::Unread(part.fields))
            }
            ("input_image", Some(_)) => {
                let reason = "files are not stored here; send the image in `image_url`";
                Err(unsupported(&part.path_of("file_id"), reason))
            }
            (kind, _) => {
                let reason = format!("parts of type `{kind}` are not supported; texts, images and audio are");
                Err(unsupported(&part.path_of("type"), reason))
            }
        }
    }

    /// Reads an item that changes what the responses behind it are to be.
    fn read_configuration(&mut self, mut item: Object) -> Result<(), DialectError> {
        let effort = item.optional_object("reasoning")?.and_then(|mut reasoning| reasoning.take("effort"));
        self.effort = effort.or(self.effort.take());
        self.text = item.optional_object("text")?.or(self.text.take());
        Ok(())
    }

    /// Returns whether the current item's reasoning is not shown to the model.
    fn forgets(&self) -> bool {
        self.is_reasoning_forgotten && !self.is_of_current_turn
    }

    /// Reads the model's earlier reasoning; its summary if the client did not send the content back.
    fn read_reasoning(&mut self, mut item: Object) -> Result<(), DialectError> {
        let reasoning = read_reasoning(item.optional_items("content")?)?;
        let summary = read_reasoning(item.optional_items("summary")?)?;
        let reasoning = if reasoning.is_empty() { summary } else { reasoning };
        if self.forgets() {
            return Ok(());
        }
        reasoning.into_iter().for_each(|thought| self.conversation.add_reasoning(thought, &item.path));
        Ok(())
    }
}

/// Returns the kind of tool that an item is about if it is left out: a call, a result or a listing. Which tools there
/// are is open-ended, but not how types of such items end.
fn left_out_item(kind: &str) -> Option<&'static str> {
    let is_of_tool = kind.ends_with("_call") || kind.ends_with("_output");
    left_out_kind(kind).or(is_of_tool.then_some(OTHER_KIND))
}

/// Returns a call's arguments as JSON text; some clients send the object.
fn read_arguments(call: &mut Object) -> Result<String, DialectError> {
    let arguments = call.required("arguments")?;
    match arguments.value {
        Value::Object(_) | Value::Array(_) => Ok(Value::Object(arguments.object()?.fields).to_string()),
        _ => arguments.text(),
    }
}

fn read_reasoning(parts: Vec<Field>) -> Result<Vec<String>, DialectError> {
    parts.into_iter().map(|part| part.object()?.text("text")).collect()
}

fn read_format(text: Option<Object>, chat: &mut Map<String, Value>) -> Result<(), DialectError> {
    let Some(mut text) = text else { return Ok(()) };
    let Some(mut format) = text.optional_object("format")? else { return Ok(()) };
    let kind = format.text("type")?;
    let chat_format = match kind.as_str() {
        "text" => return Ok(()),
        "json_object" => json!({"type": "json_object"}),
        "json_schema" => {
            let name = format.text("name")?;
            format.fields.insert("name".to_owned(), name.into());
            json!({"type": "json_schema", "json_schema": format.fields})
        }
        _ => return Err(wrong(&format.path_of("type"), "must be \"text\", \"json_object\" or \"json_schema\"")),
    };
    chat.insert("response_format".to_owned(), chat_format);
    Ok(())
}

#[cfg(test)]
mod tests;
