//! Conversion of Anthropic's messages into a chat.
//!
//! The worker writes the response. Anthropic's own fields are taken out of the body and written as fields of a chat;
//! all other fields stay, so `seed`, `min_p`, `cache_salt` and the like mean what they mean in a chat.
//! Source: Anthropic's API reference, "Create a Message" and "Count Message tokens", version 2023-06-01.

mod error;
mod settings;
mod tools;

use serde_json::{Map, Value, json};

pub use error::{ErrorBody, OVERLOADED, REQUEST_ID, THREAD_UNSUPPORTED, is_path, prompt_too_long, status};
pub use tools::CLIENT_KINDS;

use super::conversation::{Call, Conversation, Part};
use super::field::{Field, Object, unsupported, wrong};
use super::spelling::{Origins, RenamedField, renamed};
use super::tools::Listing;
use super::{Converted, DialectError, Spelling, drop_meaningless, read_object, write, write_breakpoints};
use crate::api::history::new_message;
use crate::api::openai::tool_kinds::{TOOL_SEARCH, kind_left_out, left_out_kind};
use crate::api::openai::{document_text, result_text};
use crate::json::empty_maps::is_empty_list;
use settings::{read_format, read_thinking};
use tools::{read_definition, read_tool_choice};

/// Priority that `cache_control` gives to the KV state that a request leaves in the cache.
///
/// Source: own choice: above the usual 0, so that it outlives state without `cache_control`, and far below what an
/// operator's own requests can ask for with `priority`. Nothing is pinned: pins are few and reserved for operators.
const PRIORITY_SHORT: i32 = 1;
/// The same priority for `"ttl": "1h"`.
///
/// Source: as [`PRIORITY_SHORT`]; only the order counts.
const PRIORITY_LONG: i32 = 2;

/// Beginning of a line that Claude Code puts before the system prompt and that changes with each request.
///
/// Source: <https://github.com/vllm-project/vllm/pull/36829>: with that line, no two requests share a prefix.
const CLIENT_LINE: &str = "x-anthropic-billing-header:";

/// Error of a request in which every tool waits for a search. Source: Anthropic's page of the tool search tool.
const ALL_DEFERRED: &str = "All tools have defer_loading set. At least one tool must be non-deferred.";

/// Kind of tools of a request's own MCP servers.
const MCP_KIND: &str = "mcp";

/// Kind of the tools that run code on Anthropic's servers, such as `bash_code_execution`.
const CODE_KIND: &str = "code_execution";

/// Fields that mean nothing in messages, besides those that mean nothing in any dialect.
pub const DROPPED: &[&str] = &["parallel_tool_calls", "prompt", "top_logprobs"];

/// Field names of a chat, each with its name in messages.
const RENAMED: &[RenamedField] = &[
    renamed("stop", "stop_sequences"),
    renamed("response_format.json_schema.schema", "output_config.format.schema"),
    renamed("response_format", "output_config.format"),
    renamed("reasoning_effort", "output_config.effort"),
    renamed("parallel_tool_calls", "tool_choice.disable_parallel_tool_use"),
    renamed("tool_choice.function", "tool_choice"),
    renamed("chat_template_kwargs.enable_thinking", "thinking.type"),
    renamed("thinking_budget_tokens", "thinking.budget_tokens"),
];

/// Returns the chat of a request for a message.
///
/// Errors: every [`DialectError`]; `max_tokens` is required.
pub fn messages(body: &[u8]) -> Result<Converted, DialectError> {
    let mut fields = read_object(body)?;
    if fields.take("thread").is_some_and(|thread| !is_empty_list(&thread.value)) {
        return Err(DialectError::Thread);
    }
    if let Some(compaction) = fields.optional_object("compaction")? {
        return Err(unsupported(
            &compaction.path,
            "conversations are not summarized here; ask for a summary in a message",
        ));
    }
    if fields.fields.get("max_tokens").is_none_or(Value::is_null) {
        return Err(wrong("max_tokens", "is missing"));
    }
    convert(fields)
}

/// Returns the chat whose tokens a request asks to count.
///
/// Errors: every [`DialectError`].
pub fn count_tokens(body: &[u8]) -> Result<Converted, DialectError> {
    convert(read_object(body)?)
}

fn convert(mut fields: Object) -> Result<Converted, DialectError> {
    // What cannot be served is refused first, and what means nothing is dropped.
    refuse_containers(&mut fields)?;
    drop_meaningless(&mut fields, DROPPED);
    let mut reader = Reader::default();
    if !fields.optional_items("mcp_servers")?.is_empty() {
        reader.tools.leave_out(MCP_KIND);
    }
    // The newest message's end has a checkpoint anyway.
    reader.note_cache(&mut fields)?;
    reader.is_marked = false;
    // The tools come before the messages, which name them.
    let mut has_marked_tools = false;
    let has_tools = fields.fields.get("tools").is_some_and(|tools| !tools.is_null());
    for tool in fields.optional_items("tools")? {
        let mut tool = tool.object()?;
        reader.note_cache(&mut tool)?;
        reader.tools.list(read_definition(tool)?);
        has_marked_tools |= std::mem::take(&mut reader.is_marked);
    }
    if reader.tools.is_all_deferred() {
        return Err(unsupported("tools", ALL_DEFERRED));
    }
    // The conversation: system text, then one message after the other.
    reader.read_system(&mut fields)?;
    let messages = fields.required("messages")?.items()?;
    if messages.is_empty() {
        return Err(wrong("messages", "is empty"));
    }
    let messages = messages.into_iter().map(Field::object).collect::<Result<_, _>>()?;
    let messages = reader.read_scopes(messages)?;
    let newest = new_message(messages.iter().map(|message| Some(&message.fields)));
    for (idx, message) in messages.into_iter().enumerate() {
        reader.is_new = newest == Some(idx);
        reader.read_message(message)?;
    }
    if has_marked_tools {
        reader.conversation.mark_tools();
    }
    // The fields with another name or form in a chat.
    let mut chat = Map::new();
    read_tool_choice(&mut fields, &reader.tools, &mut chat)?;
    read_format(&mut fields, &mut chat)?;
    if let Some(effort) = reader.effort {
        chat.insert("reasoning_effort".to_owned(), effort.into());
    }
    read_thinking(&mut fields)?;
    if let Some(stop) = fields.take("stop_sequences") {
        let texts: Result<Vec<_>, _> = stop.items()?.into_iter().map(Field::text).collect();
        chat.insert("stop".to_owned(), texts?.into());
    }
    // The chat: what was read, over the fields that mean the same in both APIs.
    write_breakpoints(&reader.conversation, &mut chat);
    let (messages, message_origins) = reader.conversation.finish();
    let (functions, tool_origins, tools) = reader.tools.finish();
    chat.insert("messages".to_owned(), messages.into());
    if has_tools || !functions.is_empty() {
        chat.insert("tools".to_owned(), functions.into());
    }
    if let Some(priority) = reader.priority {
        fields.fields.entry("priority").or_insert(priority.into());
    }
    let Object { fields: mut rest, .. } = fields;
    rest.append(&mut chat);
    let origins = Origins { messages: message_origins, tools: tool_origins };
    Ok(Converted { body: write(&rest), spelling: Spelling::new(RENAMED, "input_schema", origins), tools })
}

/// Refuses files and skills, which only Anthropic's own servers have.
fn refuse_containers(fields: &mut Object) -> Result<(), DialectError> {
    let is_neutral = |value: &Value| match value {
        Value::Object(fields) => fields.values().all(|field| field.is_null() || is_empty_list(field)),
        value => is_empty_list(value) || *value == json!(""),
    };
    match fields.take("container").filter(|field| !is_neutral(&field.value)) {
        Some(field) => Err(unsupported(&field.path, "there are no containers")),
        None => Ok(()),
    }
}

/// State of reading a request.
#[derive(Default)]
struct Reader {
    conversation: Conversation,
    tools: Listing,
    /// Priority that the request's `cache_control` fields request.
    priority: Option<i32>,
    /// Effort that a system message asks for in the current turn.
    effort: Option<String>,
    /// Whether the current block has a `cache_control`.
    is_marked: bool,
    /// Whether the user has just written the current message; all others are history.
    is_new: bool,
}

impl Reader {
    /// Takes out an object's `cache_control` and records what it asks for.
    fn note_cache(&mut self, object: &mut Object) -> Result<(), DialectError> {
        let Some(mut control) = object.optional_object("cache_control")? else { return Ok(()) };
        let kind = control.text("type")?;
        if kind != "ephemeral" {
            return Err(wrong(&control.path_of("type"), "must be \"ephemeral\""));
        }
        let priority = match control.optional_text("ttl")?.as_deref() {
            None | Some("5m") => PRIORITY_SHORT,
            Some("1h") => PRIORITY_LONG,
            Some(_) => return Err(wrong(&control.path_of("ttl"), "must be \"5m\" or \"1h\"")),
        };
        self.priority = self.priority.max(Some(priority));
        self.is_marked = true;
        Ok(())
    }

    fn read_system(&mut self, fields: &mut Object) -> Result<(), DialectError> {
        let Some(system) = fields.take("system") else { return Ok(()) };
        let blocks = match system.value {
            Value::String(text) => {
                self.add_system(&text, &system.path);
                return Ok(());
            }
            Value::Array(_) => system.items()?,
            _ => return Err(wrong(&system.path, "must be a string or an array of blocks")),
        };
        for block in blocks {
            let (text, path) = self.read_text_block(block.object()?)?;
            self.add_system(&text, &path);
            self.mark();
        }
        Ok(())
    }

    /// Returns the messages without the system messages that were for an earlier turn alone, and notes the effort of
    /// this turn.
    fn read_scopes(&mut self, messages: Vec<Object>) -> Result<Vec<Object>, DialectError> {
        let (mut kept, mut is_followed, mut is_earlier) = (Vec::new(), false, false);
        for mut message in messages.into_iter().rev() {
            match message.fields.get("role").and_then(Value::as_str) {
                Some("user") => is_followed = true,
                // A turn ends with an answer that calls no tool, unless the answer is to be continued.
                Some("assistant") => is_earlier |= is_followed && !has_block(&message, "tool_use"),
                Some("system") => {
                    let is_cleared = message.optional_text("clear_at")?.is_some_and(|at| at == "next_user_message");
                    let config = message.optional_object("output_config")?;
                    let is_alone = config.is_some() && message.fields.get("content").is_none_or(Value::is_null);
                    let effort = config.and_then(|mut config| config.take("effort")).map(Field::text).transpose()?;
                    if !is_earlier {
                        self.effort = self.effort.take().or(effort);
                    }
                    if is_alone || (is_cleared && is_followed) {
                        continue;
                    }
                }
                _ => {}
            }
            kept.push(message);
        }
        kept.reverse();
        Ok(kept)
    }

    fn add_system(&mut self, text: &str, path: &str) {
        let text = without_client_line(text);
        if !text.is_empty() {
            self.conversation.add_text("system", text.to_owned(), path);
        }
    }

    /// Adds the breakpoint of the block that has just been read, if it has one.
    fn mark(&mut self) {
        if std::mem::take(&mut self.is_marked) {
            self.conversation.mark();
        }
    }

    fn read_message(&mut self, mut message: Object) -> Result<(), DialectError> {
        let role = message.text("role")?;
        if !matches!(role.as_str(), "user" | "assistant" | "system") {
            return Err(wrong(&message.path_of("role"), "must be \"user\" or \"assistant\""));
        }
        if self.is_new {
            self.conversation.begin_new();
        }
        let content = message.nullable("content")?;
        let path = message.path;
        let Some(content) = content else {
            self.conversation.begin(&role, &path);
            return Ok(());
        };
        match content.value {
            Value::String(text) => self.conversation.add_text(&role, text, &path),
            Value::Array(_) => {
                let blocks = content.items()?;
                if blocks.is_empty() {
                    self.conversation.begin(&role, &path);
                }
                for block in blocks {
                    self.read_block(&role, block.object()?)?;
                    self.mark();
                }
            }
            _ => return Err(wrong(&content.path, "must be a string or an array of blocks")),
        }
        Ok(())
    }

    fn read_block(&mut self, role: &str, mut block: Object) -> Result<(), DialectError> {
        self.note_cache(&mut block)?;
        let kind = block.text("type")?;
        match (kind.as_str(), role) {
            ("text", _) => {
                let text = block.nullable_text("text")?;
                self.conversation.add_text(role, text, &block.path);
            }
            ("tool_result", "user") => self.read_result(block)?,
            ("tool_use", "assistant") => {
                let input = block.required("input")?.object()?.fields;
                let arguments = Value::Object(input).to_string();
                let call = Call { id: block.text("id")?, name: block.text("name")?, arguments };
                self.conversation.call(call, &block.path);
            }
            ("thinking", "assistant") => {
                let thought = block.nullable_text("thinking")?;
                self.conversation.add_reasoning(thought, &block.path);
            }
            // It is encrypted, and this model did not write it.
            ("redacted_thinking", "assistant") => {}
            ("server_tool_use" | "tool_search_tool_result", "assistant") if self.tools.has_waiting() => {
                self.read_search(&kind, block)?;
            }
            ("tool_addition" | "tool_removal", "system") => self.read_tool_change(role, &kind, block)?,
            // It marks where another model went on, and its owner shows the model nothing of it.
            ("fallback", "assistant") => {}
            ("compaction", _) if is_failed_compaction(&block) => {}
            ("tool_result" | "tool_use" | "thinking" | "redacted_thinking", _) => {
                return Err(wrong(
                    &block.path_of("type"),
                    &format!("cannot be `{kind}` in a message of role `{role}`"),
                ));
            }
            _ => {
                if let Some(tool) = server_tool(&kind, &block).filter(|_| role == "assistant") {
                    self.tools.leave_out(tool);
                    return Ok(());
                }
                let path = block.path.clone();
                let changes = if kind == "compaction" { block.optional_items("tool_changes")? } else { Vec::new() };
                let part = self.read_shown(block, &kind)?;
                self.conversation.add(role, part, &path);
                for change in changes {
                    let mut change = change.object()?;
                    self.read_tool_change(role, &change.text("type")?, change)?;
                }
            }
        }
        Ok(())
    }

    /// Reads the call of a search that Anthropic's servers ran, or its result: a call and a result as of any tool,
    /// since tools that it found wait in the list. Calls of other tools of the servers are left out.
    fn read_search(&mut self, kind: &str, mut block: Object) -> Result<(), DialectError> {
        if kind == "server_tool_use" {
            let name = block.text("name")?;
            if left_out_kind(&name) == Some(TOOL_SEARCH) {
                let arguments = Value::Object(block.required("input")?.object()?.fields).to_string();
                self.conversation.call(Call { id: block.text("id")?, name, arguments }, &block.path);
            }
            return Ok(());
        }
        let id = block.text("tool_use_id")?;
        let mut result = block.required("content")?.object()?;
        let parts = match result.optional_text("error_code")? {
            Some(code) => vec![Part::Text(code)],
            None => {
                let references = result.optional_items("tool_references")?.into_iter();
                references.map(|reference| read_reference(reference.object()?)).collect::<Result<_, _>>()?
            }
        };
        self.conversation.result(id, parts, &block.path);
        Ok(())
    }

    /// Reads a block that offers a tool from there on, or withdraws one.
    fn read_tool_change(&mut self, role: &str, kind: &str, mut block: Object) -> Result<(), DialectError> {
        let mut tool = block.required("tool")?.object()?;
        let name = match tool.text("type")?.as_str() {
            "tool_reference" => Some(tool.text("name")?),
            "tool_definition" => self.tools.define(read_definition(tool.required("definition")?.object()?)?),
            "mcp_tool_reference" | "mcp_toolset_reference" => {
                self.tools.leave_out(MCP_KIND);
                None
            }
            kind => {
                let reason = format!("references of type `{kind}` are not known");
                return Err(unsupported(&tool.path_of("type"), reason));
            }
        };
        if let Some(name) = name {
            let part = if kind == "tool_addition" { Part::ToolReference(name) } else { Part::ToolRemoval(name) };
            self.conversation.add(role, part, &block.path);
        }
        Ok(())
    }

    /// Reads an image, a document, or a block that only marks history.
    fn read_shown(&self, mut block: Object, kind: &str) -> Result<Part, DialectError> {
        if let Some(text) = document_text(kind, &block.fields) {
            return Ok(Part::Text(text));
        }
        let source = block.fields.get("source").and_then(|source| source.get("type")?.as_str());
        if kind == "image" && (self.is_new || matches!(source, None | Some("base64"))) {
            return read_image(block);
        }
        if self.is_new {
            return Err(refuse_block(&block, kind));
        }
        block.fields.insert("type".to_owned(), kind.into());
        Ok(Part::Unread(block.fields))
    }

    fn read_result(&mut self, mut block: Object) -> Result<(), DialectError> {
        let id = block.text("tool_use_id")?;
        let parts = match block.take("content") {
            None => Vec::new(),
            Some(Field { value: Value::String(text), .. }) => vec![Part::Text(text)],
            Some(content) => match result_text(&content.value) {
                Some(text) => vec![Part::Text(text)],
                None => {
                    let parts = content.items()?.into_iter().map(|part| self.read_result_part(part.object()?));
                    parts.collect::<Result<_, _>>()?
                }
            },
        };
        self.conversation.result(id, parts, &block.path);
        Ok(())
    }

    fn read_result_part(&mut self, mut block: Object) -> Result<Part, DialectError> {
        self.note_cache(&mut block)?;
        match block.text("type")?.as_str() {
            "text" => block.nullable_text("text").map(Part::Text),
            "tool_reference" => read_reference(block),
            kind => self.read_shown(block, kind),
        }
    }

    fn read_text_block(&mut self, mut block: Object) -> Result<(String, String), DialectError> {
        self.note_cache(&mut block)?;
        let kind = block.text("type")?;
        if kind != "text" {
            return Err(refuse_block(&block, &kind));
        }
        Ok((block.nullable_text("text")?, block.path))
    }
}

/// Reads a block that names a tool which a search has found.
fn read_reference(mut block: Object) -> Result<Part, DialectError> {
    block.text("tool_name").map(Part::ToolReference)
}

/// Reads an image whose bytes are in the request.
fn read_image(mut block: Object) -> Result<Part, DialectError> {
    let mut source = block.required("source")?.object()?;
    let kind = source.text("type")?;
    if kind != "base64" {
        let reason = format!("images of type `{kind}` are not supported; `base64` is, with the image in `data`");
        return Err(unsupported(&source.path_of("type"), reason));
    }
    Ok(Part::Image(format!("data:{};base64,{}", source.text("media_type")?, source.text("data")?)))
}

/// Returns a text without the line that Claude Code puts before the system prompt.
fn without_client_line(text: &str) -> &str {
    let Some(text_behind) = text.strip_prefix(CLIENT_LINE) else { return text };
    text_behind.split_once('\n').map_or("", |(_, text_behind)| text_behind)
}

/// Returns the kind of tool, run by Anthropic's servers, that a block of the assistant is about: its call, its result
/// or its listing; `None` for any other block. Which tools there are is open-ended, but not how types of such blocks
/// end.
fn server_tool(kind: &str, block: &Object) -> Option<&'static str> {
    if kind == "mcp_tool_listing" {
        return Some(MCP_KIND);
    }
    let tool = kind.strip_suffix("_tool_result").or_else(|| kind.strip_suffix("_tool_use"))?;
    let name = block.fields.get("name").and_then(Value::as_str).filter(|_| tool == "server");
    let tool = name.unwrap_or(tool);
    Some(if tool.ends_with(CODE_KIND) { CODE_KIND } else { kind_left_out(tool) })
}

/// Returns whether a block is a summary that could not be made.
fn is_failed_compaction(block: &Object) -> bool {
    let is_absent = |name: &str| block.fields.get(name).is_none_or(Value::is_null);
    is_absent("content") && is_absent("encrypted_content")
}

fn has_block(message: &Object, kind: &str) -> bool {
    let blocks = message.fields.get("content").and_then(Value::as_array);
    blocks.is_some_and(|blocks| blocks.iter().any(|block| block["type"] == kind))
}

fn refuse_block(block: &Object, kind: &str) -> DialectError {
    let reason = format!("blocks of type `{kind}` are not supported; texts, images, tools' calls and results are");
    unsupported(&block.path_of("type"), reason)
}

#[cfg(test)]
mod tests;
