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
use crate::lifecycle::ReadPrompt;
use crate::serving::Serving;

/// Answers a chat completion request.
pub async fn create(State(app): State<App>, context: RequestContext, body: Body) -> Result<Response, RequestError> {
    answer::create(&app, Endpoint { shape: Shape::Chat, read_prompts }, context, body).await
}

fn read_prompts(serving: &Serving, body: &Body) -> Result<Vec<ReadPrompt>, RequestError> {
    let chat = read_chat(body)?;
    let tokens = serving.prompts.chat(&chat)?.tokens;
    // Others resume anywhere, so the second rendering would be for nothing.
    let needs_checkpoints = !serving.model.memory.stored_state_rewinds();
    let last_message_token =
        if needs_checkpoints { serving.prompts.last_user_message_start(&chat, &tokens) } else { None };
    Ok(vec![ReadPrompt { tokens, last_message_token }])
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
