//! OpenAI API types that router and worker both read: the fields that determine the prompt, and the error object.
//!
//! Sampling fields and responses belong to the worker; the router relays the rest of a body without parsing it. Each
//! reader deserializes only the fields that it uses from the same bytes; unknown fields are ignored.

pub mod custom_tools;
pub mod deferred_tools;
mod messages;
pub mod schemas;
pub mod tool_kinds;

use schemars::JsonSchema;
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::{Map, Value};

use crate::api::cache_breakpoints::{self, CacheBreakpoint};
use crate::json::empty_maps;
use custom_tools::{function_of_custom, write_custom_calls};
use tool_kinds::{left_out_of_chat, name_function};

pub use messages::REASONING_FIELDS;
pub(crate) use messages::{document_text, result_text, thought};

/// The part of a chat completion request that decides its prompt and its routing.
#[derive(Debug, Clone, Default, PartialEq, Deserialize, JsonSchema)]
pub struct ChatPrompt {
    /// Name of the model; absent means the only model.
    pub model: Option<String>,
    /// The conversation; each message as the template gets it.
    #[serde(deserialize_with = "messages_to_show")]
    #[schemars(schema_with = "schemas::messages")]
    pub messages: Vec<Map<String, Value>>,
    /// Tools that the template offers to the model, all of them functions, and those that the conversation may load.
    /// Tools that neither router nor worker executes are left out.
    #[serde(default, deserialize_with = "tools_to_offer")]
    pub tools: Option<Vec<Value>>,
    /// Whether and which tool the model must call.
    pub tool_choice: Option<Value>,
    /// Further variables of the chat template.
    #[serde(default, deserialize_with = "empty_maps::optional_object")]
    #[schemars(schema_with = "schemas::template_variables")]
    pub chat_template_kwargs: Option<Map<String, Value>>,
    /// Reasoning effort of the model, if its template supports it; `none` switches reasoning off.
    pub reasoning_effort: Option<String>,
    /// Whether the prompt ends with the opening of the assistant's message; absent means yes.
    pub add_generation_prompt: Option<bool>,
    /// Separates this request's prefixes from those with another salt.
    #[serde(default, deserialize_with = "crate::api::salt::of_body")]
    #[schemars(length(min = 1))]
    pub cache_salt: Option<String>,
    /// Breakpoints that a dialect's conversion has found.
    #[serde(default)]
    #[schemars(skip)]
    pub cache_breakpoints: Vec<CacheBreakpoint>,
}

impl ChatPrompt {
    /// Returns the breakpoints of the chat, in their order: those of a converted dialect, and those of marked parts.
    pub fn breakpoints(&self) -> Vec<CacheBreakpoint> {
        cache_breakpoints::of_messages(&self.messages, &self.cache_breakpoints)
    }
}

/// Reads a chat's messages in the one form that checks and templates know; calls of custom tools become calls of
/// functions.
pub fn messages_to_show<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<Map<String, Value>>, D::Error> {
    let mut messages = Vec::<Map<String, Value>>::deserialize(deserializer)?;
    for message in &mut messages {
        write_custom_calls(message);
        messages::convert(message);
    }
    Ok(messages)
}

/// Reads a chat's tools, custom ones as functions. Tools that neither router nor worker executes are left out, so that
/// the model does not call them.
pub fn tools_to_offer<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Vec<Value>>, D::Error> {
    Ok(tools_of_chat(deserializer)?.map(offered))
}

/// Reads a chat's tools as the client wrote them, except for empty maps in their schemas, other types of functions and
/// the place of `defer_loading`.
pub fn tools_of_chat<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Vec<Value>>, D::Error> {
    let mut tools = Option::<Vec<Value>>::deserialize(deserializer)?;
    let parameters = |tool: &'_ mut Value| tool.get_mut("function")?.get_mut("parameters").map(empty_maps::fit_schema);
    tools.iter_mut().flatten().for_each(|tool| {
        name_function(tool);
        parameters(tool);
    });
    deferred_tools::normalize(tools.as_deref_mut().unwrap_or_default());
    Ok(tools)
}

/// Returns the tools that a chat's template offers to the model, and those that the conversation may load.
pub fn offered(mut tools: Vec<Value>) -> Vec<Value> {
    tools.retain(|tool| left_out_of_chat(tool).is_none());
    for tool in &mut tools {
        if let Some(mut function) = function_of_custom(tool) {
            if deferred_tools::is_deferred(tool) {
                function[deferred_tools::DEFER_LOADING] = true.into();
            }
            *tool = function;
        }
    }
    tools
}

/// Body of every error response: `{"error": {...}}`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ErrorBody {
    /// The error.
    pub error: ErrorObject,
}

/// OpenAI's error object.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ErrorObject {
    /// Description of the error, for a person.
    pub message: String,
    /// Class of the error: `invalid_request_error`, `rate_limit_error`, `server_error`, ...
    #[serde(rename = "type")]
    pub kind: String,
    /// Names the field of the request that was wrong.
    pub param: Option<String>,
    /// Names the error for programs: `context_length_exceeded`, `model_not_found`, ...
    pub code: Option<String>,
    /// Lengths of a prompt that is too long; absent in every other error.
    #[serde(flatten)]
    pub excess: Option<PromptExcess>,
}

/// Length of a prompt that is too long, and of the context, with llama-server's names.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct PromptExcess {
    /// Length of the prompt. Units: tokens.
    pub n_prompt_tokens: usize,
    /// Length of a slot's context. Units: tokens.
    pub n_ctx: u32,
}
