//! `/v1/chat/completions`: responses to conversations, and the number of their prompts' tokens.
//!
//! Not here: the fields of a body (`request`), running a request (`lifecycle`).

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use axum::response::Response;
use serde_json::{Value, json};

use super::answer::{self, Endpoint};
use super::wire::ObjectKind;
use crate::app::App;
use crate::error::RequestError;
use crate::http::body::Body;
use crate::http::context::RequestContext;
use crate::request::{ChatRequest, read_chat};

/// Responds to a chat completion request.
pub async fn create(State(app): State<App>, context: RequestContext, body: Body) -> Result<Response, RequestError> {
    answer::create(&app, Endpoint { shape: ObjectKind::Chat, read: ChatRequest::read }, context, body).await
}

/// Responds with the number of tokens of a conversation's prompt.
pub async fn count_tokens(
    State(app): State<App>,
    context: RequestContext,
    body: Body,
) -> Result<Json<Value>, RequestError> {
    let salt = context.cache_salt?.unwrap_or_default();
    let generator = app.generator()?;
    let reader = Arc::clone(&generator);
    let count = move || {
        let chat = read_chat(&body.0, &salt)?;
        reader.check_model(chat.model.as_deref())?;
        reader.count_tokens(&chat)
    };
    let input_tokens = generator.common.pools.count.run(count).await?;
    Ok(Json(json!({"input_tokens": input_tokens})))
}
