//! Requests that generate: the fields of each endpoint are one type, which is read once from the body.
//!
//! The endpoints' types flatten the fields that they share, and each becomes a [`Request`] with one kind of prompt. The
//! API's document is derived from the same types. Not here: the dialects that become a chat first
//! (`warmpath_common::dialects`), what a request does (`lifecycle`).

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
pub type Read = fn(&[u8]) -> Result<Request, RequestError>;

/// A request that generates, as it was read.
#[derive(Debug)]
pub struct Request {
    /// Fields that all of them have.
    pub shared: Shared,
    /// Prompt or prompts.
    pub prompt: Prompt,
    /// What is asked of the answer's objects.
    pub answer: AnswerFields,
}

/// Fields of every request that generates.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(default)]
pub struct Shared {
    /// How the request is run and answered.
    #[serde(flatten, deserialize_with = "fields::part")]
    pub options: Options,
    /// How tokens are chosen.
    #[serde(flatten, deserialize_with = "fields::part")]
    pub generation: GenerationFields,
    /// What cannot be honoured.
    #[serde(flatten, deserialize_with = "fields::part")]
    pub refused: Refused,
}

/// Prompts of a request, not yet tokenized.
#[derive(Debug)]
pub enum Prompt {
    /// A conversation and what is wanted of its tools.
    Chat(Box<ChatPrompt>, ToolFields),
    /// Raw prompts, at least one, and how the answer repeats them.
    Raw(Vec<RawPrompt>, Repeats),
    /// A gap to fill.
    Infill(InfillPrompt),
}

/// What an answer repeats of its raw prompt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Repeats {
    /// Nothing.
    Nothing,
    /// Its text, as a field of its own.
    Text,
    /// The answer's text begins with the prompt's, and its log probabilities with those of the prompt.
    Echo,
}
