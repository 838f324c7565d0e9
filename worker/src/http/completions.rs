//! `/v1/completions`: one raw prompt or several, as text or tokens; all else is the common lifecycle.

use axum::extract::State;
use axum::response::Response;
use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::Value;
use warmpath_common::ids::Token;
use warmpath_common::prompts::CompletionPrompt;
use warmpath_prompt::NoFim;

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
struct Echo {
    echo: Option<bool>,
    logprobs: Option<Value>,
    n_probs: Option<Value>,
}

impl Echo {
    /// Returns whether the text begins with the prompt.
    ///
    /// Errors: `Field` where that is to be with log probabilities.
    fn check(&self) -> Result<bool, RequestError> {
        let is_wanted = |wish: &Value| *wish != Value::Bool(false);
        let has_probabilities = self.logprobs.as_ref().is_some_and(is_wanted)
            || self.n_probs.as_ref().is_some_and(|n_probs| n_probs.as_f64() != Some(0.0));
        let is_echo = self.echo == Some(true);
        if is_echo && has_probabilities {
            let reason = "`echo` cannot be combined with `logprobs`: those of the prompt's tokens are not computed";
            return Err(RequestError::field("echo", reason));
        }
        Ok(is_echo)
    }
}

#[derive(Deserialize)]
struct Presence {
    prompt: Option<IgnoredAny>,
}

fn read_prompts(serving: &Serving, body: &Body) -> Result<Vec<ReadPrompt>, RequestError> {
    let is_echo = body.parse::<Echo>()?.check()?;
    let read = |tokens: Vec<Token>| {
        let text = is_echo.then(|| serving.prompts.detokenize(&tokens));
        ReadPrompt { tokens, last_message_token: None, answer: None, text }
    };
    Ok(read_tokens(serving, body)?.into_iter().map(read).collect())
}

/// Returns the tokens of each prompt that a body holds, at least one.
///
/// Errors: `Unreadable`, `Field`, `Unsupported`.
pub fn read_tokens(serving: &Serving, body: &Body) -> Result<Vec<Vec<Token>>, RequestError> {
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
        let no_fim = |NoFim| RequestError::Unsupported { param: "suffix", only: Some("the model cannot fill gaps") };
        serving.prompts.raw(prompt, serving.model.context_tokens).map_err(no_fim)
    };
    prompts.iter().map(tokens_of).collect()
}
