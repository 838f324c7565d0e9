//! Other API formats for a chat: Anthropic's messages, OpenAI's responses and Ollama's API, each converted into the
//! equivalent chat completion request.
//!
//! The worker runs the chat and writes the responses. A conversion is a pure function from bytes to bytes that router
//! and worker both call. So the router hashes exactly the prompt that the worker runs, and the rest of both programs
//! handles chats only. A [`Spelling`] maps the field names in error messages back to those that the client wrote.

pub mod anthropic;
mod conversation;
mod field;
pub mod ollama;
pub mod responses;
mod spelling;
mod tools;

use serde_json::{Map, Value, json};

use crate::api::cache_breakpoints;
use crate::json::fields::{self, ReadError};

pub use spelling::Spelling;
pub use tools::{CallForm, Tool, ToolNames};

/// A request of another API format, converted into a chat completion request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Converted {
    /// The chat completion request as JSON.
    pub body: Vec<u8>,
    /// Map from its field names back to the original ones.
    pub spelling: Spelling,
    /// Tools that the chat's functions represent.
    pub tools: ToolNames,
}

/// Reason why a request cannot be converted into a chat.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum DialectError {
    /// The body is not JSON, or a field is missing, has a wrong type or an impossible value.
    #[error(transparent)]
    Read(#[from] ReadError),
    /// A field requests something that Warmpath does not support.
    #[error("`{param}`: {reason}")]
    Unsupported {
        /// Path of the field.
        param: String,
        /// Unsupported part, and the alternative if there is one.
        reason: String,
    },
    /// The request begins or continues a conversation that its API's owner stores.
    #[error("`thread`: conversations are not stored here; send the whole conversation without it")]
    Thread,
}

impl DialectError {
    /// Returns the field that caused the error, if there is one.
    pub fn param(&self) -> Option<&str> {
        match self {
            Self::Read(ReadError::Field { param, .. }) => param.as_deref(),
            Self::Read(ReadError::Json { .. }) => None,
            Self::Unsupported { param, .. } => Some(param),
            Self::Thread => Some("thread"),
        }
    }

    /// Returns the error's machine-readable code, if it has one.
    pub fn code(&self) -> Option<&'static str> {
        match self {
            Self::Read(ReadError::Json { .. }) => Some("invalid_json"),
            Self::Read(ReadError::Field { .. }) => None,
            Self::Unsupported { .. } => Some("unsupported_parameter"),
            Self::Thread => Some(anthropic::THREAD_UNSUPPORTED),
        }
    }
}

/// Returns a body's fields.
fn read_object(body: &[u8]) -> Result<field::Object, DialectError> {
    let fields: Map<String, Value> = fields::read_untyped(body)?;
    Ok(field::Object::whole(fields))
}

/// Fields of a chat that no dialect has, or that mean nothing in one, besides those that a conversion sets.
pub const DROPPED: &[&str] = &[
    "add_generation_prompt",
    "best_of",
    cache_breakpoints::FIELD,
    "context_management",
    "echo",
    "function_call",
    "functions",
    "logprobs",
    "max_completion_tokens",
    "metadata",
    "n",
    "n_cmpl",
    "n_predict",
    "n_probs",
    "reasoning_effort",
    "response_format",
    "service_tier",
    "stop",
    "stream_options",
    "suffix",
    "web_search_options",
];

/// Removes the fields that mean nothing: those of every dialect and those in `own`.
fn drop_meaningless(fields: &mut field::Object, of_dialect: &[&str]) {
    for name in DROPPED.iter().chain(of_dialect) {
        fields.fields.remove(*name);
    }
}

/// Adds the breakpoints of a conversation to its chat.
fn write_breakpoints(conversation: &conversation::Conversation, chat: &mut Map<String, Value>) {
    if !conversation.breakpoints().is_empty() {
        chat.insert(cache_breakpoints::FIELD.to_owned(), json!(conversation.breakpoints()));
    }
}

/// Returns a chat as JSON.
fn write(chat: &Map<String, Value>) -> Vec<u8> {
    serde_json::to_vec(chat).expect("a JSON object has a JSON form")
}

#[cfg(test)]
mod tests;
