//! `/v1/completions`: one raw prompt or several, as text or tokens; all else is the common lifecycle.

use axum::extract::State;
use axum::response::Response;
use serde::Deserialize;
use serde::de::IgnoredAny;
use warmpath_common::ids::Token;
use warmpath_common::prompts::CompletionPrompt;
use warmpath_prompt::{RawError, Scope};

use super::answer::{self, Endpoint};
use super::body::Body;
use super::context::RequestContext;
use super::state::App;
use super::wire::Shape;
use crate::error::RequestError;
use crate::lifecycle::ReadPrompt;
use crate::room::SlotRoom;
use crate::serving::Serving;

/// Responds to a completion request.
pub async fn create(State(app): State<App>, context: RequestContext, body: Body) -> Result<Response, RequestError> {
    answer::create(&app, Endpoint { shape: Shape::Completion, read_prompts }, context, body).await
}

#[derive(Deserialize)]
struct EchoField {
    echo: Option<bool>,
}

#[derive(Deserialize)]
struct Presence {
    prompt: Option<IgnoredAny>,
}

fn read_prompts(serving: &Serving, body: &Body, salt: &str) -> Result<Vec<ReadPrompt>, RequestError> {
    let is_echoed = body.parse::<EchoField>()?.echo == Some(true);
    let read = |tokens: Vec<Token>| {
        let text = is_echoed.then(|| serving.prompts.detokenize(&tokens));
        ReadPrompt { tokens, last_message_token: None, is_echoed, answer: None, text, left_out: Vec::new() }
    };
    Ok(read_tokens(serving, body, salt)?.into_iter().map(read).collect())
}

/// Returns the tokens of each prompt in a body, at least one.
///
/// Errors: `Unreadable`, `Field`, `Unsupported`.
pub fn read_tokens(serving: &Serving, body: &Body, salt: &str) -> Result<Vec<Vec<Token>>, RequestError> {
    if body.parse::<Presence>()?.prompt.is_none() {
        return Err(RequestError::field("prompt", "`prompt` is missing"));
    }
    let prompts = body.parse::<CompletionPrompt>()?.into_prompts();
    let prompts = prompts.map_err(|unusable| RequestError::field(unusable.param(), unusable.to_string()))?;
    let n_prompts = prompts.len();
    if n_prompts > serving.n_places() {
        let reason = format!("{n_prompts} prompts are given; this worker holds at most {}", serving.n_places());
        return Err(RequestError::field("prompt", reason));
    }
    let tokens_of = |prompt| {
        let room = SlotRoom::of(&serving.model);
        serving.prompts.raw(prompt, room.context_tokens, Scope::of(salt)).map_err(|error| match error {
            RawError::NoFim => RequestError::Unsupported { param: "suffix", only: Some("the model cannot fill gaps") },
            error => RequestError::of_raw(error, room),
        })
    };
    prompts.iter().map(tokens_of).collect()
}
