//! `/tokenize`, `/detokenize` and `/apply-template`, as in llama-server's API.
//!
//! A short body may request a long answer. So an answer is written while it is computed, on a thread for long work, and
//! refused as soon as it exceeds its limit.

use std::io;
use std::sync::Arc;

use axum::extract::State;
use axum::http::header;
use axum::response::{IntoResponse, Response};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize, Serializer};
use warmpath_common::ids::Token;
use warmpath_common::whole::Whole;
use warmpath_prompt::{AddSpecial, ParseSpecial, PromptMaker};

use crate::app::App;
use crate::error::RequestError;
use crate::http::body::Body;
use crate::request::read_chat;

/// Longest portion of a text that is tokenized without interruption. Units: bytes.
///
/// Source: it takes less than a second; the time grows in proportion to the length.
const PORTION_BYTES_MAX: usize = 1 << 20;

/// Length of the longest answer. Units: lengths of the longest body.
///
/// Source: own choice: prose takes up to seven times its length with pieces, so half of the longest text has room.
const ANSWER_BODIES_MAX: usize = 4;

#[derive(Debug, Deserialize, JsonSchema)]
pub struct TokenizeRequest {
    content: String,
    add_special: Option<bool>,
    parse_special: Option<bool>,
    with_pieces: Option<bool>,
}

#[derive(Debug, Deserialize, JsonSchema)]
pub struct DetokenizeRequest {
    tokens: Vec<Whole<Token>>,
}

/// Response with tokens: a list, or [`Pieces`].
#[derive(Serialize)]
struct TokensAnswer<T> {
    tokens: T,
}

/// Tokens with their pieces. Each piece exists only while it is written: all of them would take several times the
/// memory of the answer.
struct Pieces<'a> {
    prompts: &'a PromptMaker,
    tokens: &'a [Token],
}

#[derive(Serialize)]
struct TokenWithPiece {
    id: Token,
    piece: Piece,
}

/// Text of a token, or its bytes if they are not valid text.
#[derive(Serialize)]
#[serde(untagged)]
enum Piece {
    Text(String),
    Bytes(Vec<u8>),
}

/// Response with a text.
#[derive(Serialize)]
struct TextAnswer {
    content: String,
}

/// Response with a rendered conversation.
#[derive(Serialize)]
struct PromptAnswer {
    prompt: String,
}

/// Longest answer to a request.
#[derive(Debug, Clone, Copy)]
struct AnswerLimit {
    bytes_max: usize,
}

/// An answer in writing, up to its limit.
struct LimitedAnswer {
    bytes: Vec<u8>,
    bytes_max: usize,
}

/// Responds with the tokens of a text, and their pieces if requested.
pub async fn tokenize(State(app): State<App>, body: Body) -> Result<Response, RequestError> {
    let limit = AnswerLimit::of(&app);
    let loaded_model = app.loaded_model()?;
    let reader = loaded_model.clone();
    let answer = loaded_model.common().pools.count.run(move || {
        let common = reader.common();
        let request: TokenizeRequest = body.parse()?;
        let tokens = tokens(&common.prompts, &request)?;
        if request.with_pieces == Some(true) {
            let tokens = Pieces { prompts: &common.prompts, tokens: &tokens };
            return limit.write(&TokensAnswer { tokens }, "content");
        }
        limit.write(&TokensAnswer { tokens }, "content")
    });
    Ok(json_response(answer.await?))
}

/// Responds with the text of tokens.
pub async fn detokenize(State(app): State<App>, body: Body) -> Result<Response, RequestError> {
    let limit = AnswerLimit::of(&app);
    let loaded_model = app.loaded_model()?;
    let reader = loaded_model.clone();
    let answer = loaded_model.common().pools.count.run(move || {
        let common = reader.common();
        let request: DetokenizeRequest = body.parse()?;
        let n_vocab = common.model.n_vocab;
        let tokens: Vec<Token> = request.tokens.into_iter().map(|Whole(token)| token).collect();
        if let Some(token) = tokens.iter().find(|token| **token >= n_vocab) {
            let reason = format!("`tokens` has token {token}; the vocabulary has {n_vocab} tokens");
            return Err(RequestError::field("tokens", reason));
        }
        let content = common.prompts.detokenize_within(&tokens, limit.bytes_max);
        let content = content.ok_or_else(|| limit.exceeded("tokens"))?;
        limit.write(&TextAnswer { content }, "tokens")
    });
    Ok(json_response(answer.await?))
}

/// Responds with the text that the chat template makes of a conversation.
pub async fn apply_template(State(app): State<App>, body: Body) -> Result<Response, RequestError> {
    let limit = AnswerLimit::of(&app);
    let generator = app.generator()?;
    let reader = Arc::clone(&generator);
    let answer = generator.common.pools.count.run(move || {
        let prompt = reader.common.prompts.render(&read_chat(&body.0, "")?)?;
        limit.write(&PromptAnswer { prompt }, "messages")
    });
    Ok(json_response(answer.await?))
}

/// Returns the tokens of a request's text.
///
/// Errors: `Field` if a part of the text that cannot be cut takes too long.
fn tokens(prompts: &PromptMaker, request: &TokenizeRequest) -> Result<Vec<Token>, RequestError> {
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
    Ok(prompts.tokenize(&request.content, add_special, parse_special))
}

fn json_response(answer: Vec<u8>) -> Response {
    ([(header::CONTENT_TYPE, "application/json")], answer).into_response()
}

impl AnswerLimit {
    fn of(app: &App) -> Self {
        Self { bytes_max: app.bodies.bytes_max.saturating_mul(ANSWER_BODIES_MAX) }
    }

    /// Returns an answer as JSON.
    ///
    /// Errors: `Field` for `param`, from which the answer is computed, if it is too long.
    fn write(self, answer: &impl Serialize, param: &'static str) -> Result<Vec<u8>, RequestError> {
        let mut output = LimitedAnswer { bytes: Vec::new(), bytes_max: self.bytes_max };
        // Nothing else can fail: numbers and texts are always valid JSON.
        serde_json::to_writer(&mut output, answer).map_err(|_| self.exceeded(param))?;
        Ok(output.bytes)
    }

    /// Returns the error of an answer that is too long.
    fn exceeded(self, param: &'static str) -> RequestError {
        let bytes_max = self.bytes_max;
        let reason = format!("`{param}` is too long: the answer would have more than {bytes_max} bytes");
        RequestError::field(param, reason)
    }
}

impl io::Write for LimitedAnswer {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if bytes.len() > self.bytes_max - self.bytes.len() {
            return Err(io::ErrorKind::FileTooLarge.into());
        }
        self.bytes.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Serialize for Pieces<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let with_piece = |token: &Token| TokenWithPiece { id: *token, piece: Piece::of(self.prompts.piece(*token)) };
        serializer.collect_seq(self.tokens.iter().map(with_piece))
    }
}

impl Piece {
    fn of(bytes: Vec<u8>) -> Self {
        String::from_utf8(bytes).map_or_else(|error| Self::Bytes(error.into_bytes()), Self::Text)
    }
}
