//! Generation requests: each endpoint has one type, deserialized once from the body.
//!
//! The endpoints' types flatten the fields that they share, and each becomes a [`Request`] with one kind of prompt. The
//! API's document is derived from the same types. Not here: the dialects that are converted into a chat first
//! (`warmpath_common::dialects`), running a request (`lifecycle`).

mod chat;
mod completion;
pub mod generation;
mod options;
mod refused;

use schemars::JsonSchema;
use serde::Deserialize;
use warmpath_common::fields;
use warmpath_common::openai::ChatPrompt;
use warmpath_common::prompts::{InfillPrompt, RawPrompt};

use crate::error::RequestError;
use crate::tools::ToolFields;

pub use chat::{ChatRequest, read_chat};
pub use completion::{AnswerFields, CompletionRequest, InfillRequest, NativeCompletionRequest, read_raw};
use generation::GenerationFields;
pub use options::{Delivery, Options, PRIORITY_ABS_MAX, ShiftFields, silence_max};
use refused::Refused;

/// Reader of an endpoint's bodies.
pub type BodyReader = fn(&[u8]) -> Result<Request, RequestError>;

/// A parsed generation request.
#[derive(Debug)]
pub struct Request {
    /// Fields common to all endpoints.
    pub shared: CommonFields,
    /// Prompt or prompts.
    pub prompt: UntokenizedPrompts,
    /// Fields about the form of the response objects.
    pub answer: AnswerFields,
}

/// Fields common to all generation requests.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(default)]
pub struct CommonFields {
    /// Options of running the request and delivering its response.
    #[serde(flatten, deserialize_with = "fields::part")]
    pub options: Options,
    /// Options of generation.
    #[serde(flatten, deserialize_with = "fields::part")]
    pub generation: GenerationFields,
    /// OpenAI fields that the worker does not support.
    #[serde(flatten, deserialize_with = "fields::part")]
    pub refused: Refused,
}

/// Prompts of a request, not yet tokenized.
#[derive(Debug)]
pub enum UntokenizedPrompts {
    /// A conversation and its tool fields.
    Chat(Box<ChatPrompt>, ToolFields),
    /// Raw prompts, at least one, and what the response repeats of them.
    Raw(Vec<RawPrompt>, Repeats),
    /// A gap to fill.
    Infill(InfillPrompt),
}

/// Part of a response that repeats its raw prompt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Repeats {
    /// Nothing.
    Nothing,
    /// A separate field with the prompt's text.
    Text,
    /// The prompt at the start of the response's text, and its log probabilities at the start of the response's.
    Echo,
}
