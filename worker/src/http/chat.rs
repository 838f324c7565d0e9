//! `/v1/chat/completions`: the prompt of a conversation; all else is the common lifecycle.

use axum::extract::State;
use axum::response::Response;
use serde::Deserialize;
use serde::de::IgnoredAny;
use warmpath_common::openai::ChatPrompt;

use super::answer::{self, Endpoint};
use super::body::Body;
use super::context::RequestContext;
use super::state::App;
use super::wire::Shape;
use crate::error::RequestError;
use crate::lifecycle::{ReadPrompt, chat};
use crate::serving::Serving;
use crate::tools::ToolFields;

/// Answers a chat completion request.
pub async fn create(State(app): State<App>, context: RequestContext, body: Body) -> Result<Response, RequestError> {
    answer::create(&app, Endpoint { shape: Shape::Chat, read_prompts }, context, body).await
}

/// Returns the prompt of the conversation that a body holds.
///
/// Errors: `Json`, `Field`, `Unsupported`, `Prompt`.
pub fn read_prompts(serving: &Serving, body: &Body) -> Result<Vec<ReadPrompt>, RequestError> {
    if body.parse::<Echo>()?.echo == Some(true) {
        return Err(RequestError::Unsupported { param: "echo", only: Some("only false") });
    }
    let tools: ToolFields = body.parse()?;
    Ok(vec![chat::read(serving, &read_chat(body)?, &tools)?])
}

#[derive(Deserialize)]
struct Echo {
    echo: Option<bool>,
}

#[derive(Deserialize)]
struct Presence {
    messages: Option<IgnoredAny>,
}

/// Returns the conversation that a body holds.
///
/// Errors: `Json` and `Field`; there must be at least one message.
pub fn read_chat(body: &Body) -> Result<ChatPrompt, RequestError> {
    if body.parse::<Presence>()?.messages.is_none() {
        return Err(RequestError::field("messages", "`messages` is missing"));
    }
    let chat: ChatPrompt = body.parse()?;
    if chat.messages.is_empty() {
        return Err(RequestError::field("messages", "`messages` is empty"));
    }
    Ok(chat)
}
