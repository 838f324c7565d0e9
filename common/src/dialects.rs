//! Other ways to ask for a chat: Anthropic's messages and OpenAI's responses, each turned into the chat completion request
//! that means the same.
//!
//! Not here: what becomes of the chat, and the answers' shapes (the worker). The idea: a conversion is a pure function from
//! bytes to bytes that router and worker both call, so the router hashes exactly the prompt that the worker runs, and everything
//! behind it is the one lifecycle of chats. A [`Spelling`] turns the names in its errors back into those that the client wrote.

pub mod anthropic;
mod conversation;
mod field;
pub mod responses;
mod spelling;
mod tools;

use serde_json::{Map, Value};

use crate::fields::{self, ReadError};

pub use spelling::Spelling;
pub use tools::{CallForm, FREE_TEXT, LEFT_OUT_KINDS, Tool, ToolNames};

/// Is a dialect's request as a chat completion request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Converted {
    /// Is the chat completion request, JSON.
    pub body: Vec<u8>,
    /// Turns the names of its fields back into the dialect's.
    pub spelling: Spelling,
    /// Tools that the chat's functions stand for.
    pub tools: ToolNames,
}

/// Says why no chat can be made of a request.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum DialectError {
    /// The body is not JSON, or a field is missing, of a wrong type or of a value that it cannot have.
    #[error(transparent)]
    Read(#[from] ReadError),
    /// A field asks for something that Warmpath does not do.
    #[error("`{param}`: {reason}")]
    Unsupported {
        /// Is the field's path.
        param: String,
        /// Says what is not done, and what to do instead where there is something.
        reason: String,
    },
}

impl DialectError {
    /// Returns the field that is to blame, where one is.
    pub fn param(&self) -> Option<&str> {
        match self {
            Self::Read(ReadError::Field { param, .. }) => param.as_deref(),
            Self::Read(ReadError::Json { .. }) => None,
            Self::Unsupported { param, .. } => Some(param),
        }
    }
}

/// Returns a body's fields.
fn read_object(body: &[u8]) -> Result<field::Object, DialectError> {
    let fields: Map<String, Value> = fields::read(body)?;
    Ok(field::Object::whole(fields))
}

/// Lists a chat's fields that are no fields of any dialect or mean nothing there, besides those that a conversion sets.
pub const DROPPED: &[&str] = &[
    "add_generation_prompt",
    "best_of",
    "context_management",
    "echo",
    "function_call",
    "functions",
    "logprobs",
    "max_completion_tokens",
    "metadata",
    "n",
    "n_predict",
    "n_probs",
    "reasoning_effort",
    "response_format",
    "service_tier",
    "stop",
    "stream_options",
    "suffix",
];

/// Takes out the fields that mean nothing: those of every dialect and one dialect's `own`.
fn drop_meaningless(fields: &mut field::Object, own: &[&str]) {
    for name in DROPPED.iter().chain(own) {
        fields.fields.remove(*name);
    }
}

/// Returns a chat as JSON.
fn write(chat: &Map<String, Value>) -> Vec<u8> {
    serde_json::to_vec(chat).expect("a JSON object has a JSON form")
}

#[cfg(test)]
mod tests;
