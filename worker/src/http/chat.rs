//! `/v1/chat/completions`: the prompt of a conversation; all else is the common lifecycle.

use axum::Json;
use axum::extract::State;
use axum::response::Response;
use schemars::JsonSchema;
use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::{Value, json};
use warmpath_common::openai::ChatPrompt;

use super::answer::{self, Endpoint};
use super::body::Body;
use super::context::RequestContext;
use super::state::App;
use super::wire::Shape;
use crate::error::RequestError;
use crate::fields::schemas::tokens_max_of_chat;
use crate::lifecycle::{ReadPrompt, chat};
use crate::serving::Serving;
use crate::tools::ToolFields;

/// Responds to a chat completion request.
pub async fn create(State(app): State<App>, context: RequestContext, body: Body) -> Result<Response, RequestError> {
    answer::create(&app, Endpoint { shape: Shape::Chat, read_prompts }, context, body).await
}

/// Responds with the number of tokens of a conversation's prompt.
pub async fn count_tokens(
    State(app): State<App>,
    context: RequestContext,
    body: Body,
) -> Result<Json<Value>, RequestError> {
    let salt = context.cache_salt?.unwrap_or_default();
    let count = move |serving: &Serving| {
        let chat = read_chat(&body, &salt)?;
        serving.check_model(chat.model.as_deref())?;
        Ok(serving.prompts.chat(&chat)?.tokens.len())
    };
    let input_tokens = app.serving()?.prepare(count).await?;
    Ok(Json(json!({"input_tokens": input_tokens})))
}

/// Returns the prompt of the conversation in a body.
///
/// Errors: `Json`, `Field`, `Unsupported`, `Prompt`.
pub fn read_prompts(serving: &Serving, body: &Body, salt: &str) -> Result<Vec<ReadPrompt>, RequestError> {
    let beyond: VllmFields = body.parse()?;
    if beyond.echo == Some(true) {
        return Err(RequestError::Unsupported { param: "echo", only: Some("only false") });
    }
    if beyond.add_generation_prompt == Some(true) && beyond.continue_final_message == Some(true) {
        let reason = "`continue_final_message` cannot be combined with `add_generation_prompt`";
        return Err(RequestError::field("continue_final_message", reason));
    }
    body.parse::<Limits>()?.check()?;
    let tools: ToolFields = body.parse()?;
    Ok(vec![chat::read(serving, &read_chat(body, salt)?, &tools)?])
}

/// Limits on a response's length, at least 1 for a chat, as in OpenAI's and Anthropic's APIs. Not here: llama-server's
/// `n_predict`, whose 0 computes the prompt for a later request.
#[derive(Deserialize, JsonSchema)]
pub(super) struct Limits {
    #[schemars(schema_with = "tokens_max_of_chat")]
    max_completion_tokens: Option<i64>,
    #[schemars(schema_with = "tokens_max_of_chat")]
    max_tokens: Option<i64>,
}

impl Limits {
    fn check(&self) -> Result<(), RequestError> {
        let named = [("max_completion_tokens", self.max_completion_tokens), ("max_tokens", self.max_tokens)];
        match named.into_iter().find(|(_, n)| *n == Some(0)) {
            Some((param, _)) => {
                Err(RequestError::field(param, format!("`{param}` must be at least 1, or -1 for no limit; it is 0")))
            }
            None => Ok(()),
        }
    }
}

/// Further fields of vLLM's chats.
#[derive(Deserialize)]
struct VllmFields {
    echo: Option<bool>,
    add_generation_prompt: Option<bool>,
    continue_final_message: Option<bool>,
}

#[derive(Deserialize)]
struct Presence {
    messages: Option<IgnoredAny>,
}

/// Returns the conversation in a body; `salt` is that of the headers, which one in the body replaces.
///
/// Errors: `Json` and `Field`; there must be at least one message.
pub fn read_chat(body: &Body, salt: &str) -> Result<ChatPrompt, RequestError> {
    if body.parse::<Presence>()?.messages.is_none() {
        return Err(RequestError::field("messages", "`messages` is missing"));
    }
    let mut chat: ChatPrompt = body.parse()?;
    if chat.messages.is_empty() {
        return Err(RequestError::field("messages", "`messages` is empty"));
    }
    chat.cache_salt.get_or_insert_with(|| salt.to_owned());
    Ok(chat)
}
