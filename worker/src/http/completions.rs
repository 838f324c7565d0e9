//! `/v1/completions`: one raw prompt or several, as text or tokens; all else is the common lifecycle.

use axum::extract::State;
use axum::response::Response;
use serde::Deserialize;
use serde::de::IgnoredAny;
use warmpath_common::ids::Token;
use warmpath_common::openai::{CompletionPrompt, PromptField};

use super::answer::{self, Endpoint};
use super::body::Body;
use super::context::RequestContext;
use super::state::App;
use super::wire::Shape;
use crate::error::RequestError;
use crate::lifecycle::ReadPrompt;
use crate::serving::Serving;

/// Answers a completion request.
pub async fn create(State(app): State<App>, context: RequestContext, body: Body) -> Result<Response, RequestError> {
    answer::create(&app, Endpoint { shape: Shape::Completion, read_prompts }, context, body).await
}

#[derive(Deserialize)]
struct Presence {
    prompt: Option<IgnoredAny>,
}

fn read_prompts(serving: &Serving, body: &Body) -> Result<Vec<ReadPrompt>, RequestError> {
    let prompts = read_tokens(serving, body)?;
    Ok(prompts.into_iter().map(|tokens| ReadPrompt { tokens, last_message_token: None }).collect())
}

/// Returns the tokens of each prompt that a body holds, at least one.
///
/// Errors: `Unreadable`, `Field`.
pub fn read_tokens(serving: &Serving, body: &Body) -> Result<Vec<Vec<Token>>, RequestError> {
    if body.parse::<Presence>()?.prompt.is_none() {
        return Err(RequestError::field("prompt", "`prompt` is missing"));
    }
    let request: CompletionPrompt = body.parse()?;
    let n_prompts = match &request.prompt {
        PromptField::Text(_) | PromptField::Tokens(_) => 1,
        PromptField::Texts(texts) => texts.len(),
        PromptField::TokenLists(lists) => lists.len(),
    };
    if n_prompts == 0 {
        return Err(RequestError::field("prompt", "the prompt is empty"));
    }
    if n_prompts > serving.n_places() {
        let reason = format!("{n_prompts} prompts are given; this worker holds at most {}", serving.n_places());
        return Err(RequestError::field("prompt", reason));
    }
    Ok(match request.prompt {
        PromptField::Text(text) => vec![serving.prompts.text(&text)],
        PromptField::Texts(texts) => texts.iter().map(|text| serving.prompts.text(text)).collect(),
        PromptField::Tokens(tokens) => vec![tokens],
        PromptField::TokenLists(lists) => lists,
    })
}
