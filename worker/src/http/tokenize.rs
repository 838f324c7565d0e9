//! `/tokenize`, `/detokenize` and `/apply-template`, as in llama-server's API.

use axum::Json;
use axum::extract::State;
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Value, json};
use warmpath_common::ids::Token;
use warmpath_prompt::{AddSpecial, ParseSpecial, PromptMaker};

use super::body::Body;
use super::state::App;
use crate::error::RequestError;
use crate::request::read_chat;

/// Longest portion of a text that is tokenized without interruption. Units: bytes.
///
/// Source: it takes less than a second; the time grows in proportion to the length.
const PORTION_BYTES_MAX: usize = 1 << 20;

#[derive(Debug, Deserialize, JsonSchema)]
pub(super) struct TokenizeRequest {
    content: String,
    add_special: Option<bool>,
    parse_special: Option<bool>,
    with_pieces: Option<bool>,
}

#[derive(Debug, Deserialize, JsonSchema)]
pub(super) struct DetokenizeRequest {
    tokens: Vec<Token>,
}

/// Responds with the tokens of a text, and their pieces if requested.
pub async fn tokenize(State(app): State<App>, body: Body) -> Result<Json<Value>, RequestError> {
    let work = move |prompts: &PromptMaker| {
        let request: TokenizeRequest = body.parse()?;
        let add_special = if request.add_special == Some(true) { AddSpecial::Yes } else { AddSpecial::No };
        let parse_special = if request.parse_special == Some(false) { ParseSpecial::No } else { ParseSpecial::Yes };
        let n_bytes = prompts.longest_portion(&request.content);
        if n_bytes > PORTION_BYTES_MAX {
            let reason = format!(
                "`content` has {n_bytes} bytes without a space at which it could be split; at most \
             {PORTION_BYTES_MAX} are allowed"
            );
            return Err(RequestError::field("content", reason));
        }
        let tokens = prompts.tokenize(&request.content, add_special, parse_special);
        if request.with_pieces != Some(true) {
            return Ok(json!({"tokens": tokens}));
        }
        let pieces: Vec<Value> =
            tokens.iter().map(|token| json!({"id": token, "piece": piece(prompts, *token)})).collect();
        Ok(json!({"tokens": pieces}))
    };
    app.served()?.prepare(move |base| work(base.prompts)).await.map(Json)
}

/// Returns a token's text, or its bytes if they are not valid text.
fn piece(prompts: &PromptMaker, token: Token) -> Value {
    match String::from_utf8(prompts.piece(token)) {
        Ok(text) => json!(text),
        Err(error) => json!(error.into_bytes()),
    }
}

/// Responds with the text of tokens.
pub async fn detokenize(State(app): State<App>, body: Body) -> Result<Json<Value>, RequestError> {
    let served = app.served()?;
    let content = served.prepare(move |base| {
        let request: DetokenizeRequest = body.parse()?;
        let n_vocab = base.model.n_vocab;
        if let Some(token) = request.tokens.iter().find(|token| **token >= n_vocab) {
            let reason = format!("`tokens` has token {token}; the vocabulary has {n_vocab} tokens");
            return Err(RequestError::field("tokens", reason));
        }
        Ok(base.prompts.detokenize(&request.tokens))
    });
    Ok(Json(json!({"content": content.await?})))
}

/// Responds with the text that the chat template makes of a conversation.
pub async fn apply_template(State(app): State<App>, body: Body) -> Result<Json<Value>, RequestError> {
    let serving = app.serving()?;
    let prompt = serving.prepare(move |serving| Ok(serving.prompts.render(&read_chat(&body.0, "")?)?));
    Ok(Json(json!({"prompt": prompt.await?})))
}
