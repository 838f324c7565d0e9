//! `/v1/chat/completions`: a conversation. Requests in other dialects are converted into this type.
//!
//! Not here: its prompt's tokens and what constrains its answer (`lifecycle::chat`).

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::Deserialize;
use serde_json::{Map, Value};
use warmpath_common::cache_breakpoints::CacheBreakpoint;
use warmpath_common::openai::{ChatPrompt, messages_to_show, schemas};
use warmpath_common::{empty_maps, fields};

use super::{AnswerFields, CommonFields, Request, UntokenizedPrompts};
use crate::error::RequestError;
use crate::tools::ToolFields;

/// A chat completion request.
#[derive(Debug, Deserialize, JsonSchema)]
pub struct ChatRequest {
    #[serde(deserialize_with = "messages_to_show")]
    #[schemars(schema_with = "schemas::messages")]
    messages: Vec<Map<String, Value>>,
    #[serde(default, deserialize_with = "empty_maps::optional_object")]
    #[schemars(schema_with = "schemas::template_variables")]
    chat_template_kwargs: Option<Map<String, Value>>,
    /// Reasoning effort of the model, if its template supports it; `none` switches reasoning off.
    reasoning_effort: Option<String>,
    /// Whether the prompt ends with the opening of the assistant's message; absent means yes.
    add_generation_prompt: Option<bool>,
    /// Cannot be combined with `add_generation_prompt`, as in vLLM.
    continue_final_message: Option<bool>,
    #[serde(default)]
    #[schemars(skip)]
    cache_breakpoints: Vec<CacheBreakpoint>,
    #[serde(default)]
    #[schemars(schema_with = "never_echo")]
    echo: Option<bool>,
    #[serde(flatten, deserialize_with = "fields::part")]
    tools: ToolFields,
    #[serde(flatten, deserialize_with = "fields::part")]
    shared: CommonFields,
}

impl ChatRequest {
    /// Reads a chat completion request.
    ///
    /// Errors: `Unreadable`, `Field`, `Unsupported`.
    pub fn read(body: &[u8]) -> Result<Request, RequestError> {
        let request: Self = fields::read_untyped(body)?;
        request.check()?;
        let Self { messages, chat_template_kwargs, reasoning_effort, add_generation_prompt, .. } = request;
        let Self { cache_breakpoints, tools, shared, .. } = request;
        let chat = ChatPrompt {
            model: shared.options.model.clone(),
            messages,
            tools: tools.offered(),
            tool_choice: tools.tool_choice().cloned(),
            chat_template_kwargs,
            reasoning_effort,
            add_generation_prompt,
            cache_salt: shared.options.cache_salt.clone(),
            cache_breakpoints,
        };
        Ok(Request { shared, prompt: UntokenizedPrompts::Chat(Box::new(chat), tools), answer: AnswerFields::default() })
    }

    fn check(&self) -> Result<(), RequestError> {
        if self.echo == Some(true) {
            return Err(RequestError::Unsupported { param: "echo", only: Some("only false") });
        }
        if self.add_generation_prompt == Some(true) && self.continue_final_message == Some(true) {
            let reason = "`continue_final_message` cannot be combined with `add_generation_prompt`";
            return Err(RequestError::field("continue_final_message", reason));
        }
        check_messages(&self.messages)
    }
}

/// Returns the conversation of a request that only uses its prompt. `salt` comes from the headers; a salt in the body
/// takes precedence.
///
/// Errors: `Unreadable`, `Field`.
pub fn read_chat(body: &[u8], salt: &str) -> Result<ChatPrompt, RequestError> {
    let mut chat: ChatPrompt = fields::read_untyped(body)?;
    check_messages(&chat.messages)?;
    chat.cache_salt.get_or_insert_with(|| salt.to_owned());
    Ok(chat)
}

fn check_messages(messages: &[Map<String, Value>]) -> Result<(), RequestError> {
    if messages.is_empty() { Err(RequestError::field("messages", "`messages` is empty")) } else { Ok(()) }
}

fn never_echo(_: &mut SchemaGenerator) -> Schema {
    json_schema!({"enum": [false, null], "description": "Supported for completions only."})
}
