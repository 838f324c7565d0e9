//! Our errors in the format of other dialects.
//!
//! Every error is first made as OpenAI's error object, in `api_error`.

use axum::http::{StatusCode, header};
use axum::response::Response;
use serde_json::json;
use warmpath_common::dialects::anthropic;
use warmpath_common::ids::RequestId;
use warmpath_common::openai::{ErrorBody, ErrorObject, PromptExcess};

/// Mark of a response that is one of our errors.
#[derive(Debug, Clone)]
pub struct ErrorMark {
    error: ErrorObject,
}

impl ErrorMark {
    /// Returns the mark of a response with this body.
    pub fn of(body: &ErrorBody) -> Self {
        Self { error: body.error.clone() }
    }
}

/// Returns one of our errors in Anthropic's format, and any other response unchanged.
pub fn as_anthropic(mut response: Response, id: &RequestId) -> Response {
    let Some(ErrorMark { error }) = response.extensions_mut().remove() else { return response };
    let status = response.status().as_u16();
    // Anthropic's clients search for these words.
    let too_long = |excess: &PromptExcess| anthropic::prompt_too_long(excess.n_prompt_tokens, excess.n_ctx);
    let message = error.excess.as_ref().map_or(error.message, too_long);
    let body = anthropic::ErrorBody::new(status, &message).of_code(error.code.as_deref()).of_request(id);
    let body = serde_json::to_vec(&body).expect("strings have a JSON form");
    let own_status = StatusCode::from_u16(anthropic::status(status)).expect("Anthropic's statuses are below 1000");
    *response.status_mut() = own_status;
    with_body(response, body)
}

/// Returns one of our errors in Ollama's format, and any other response unchanged.
pub fn as_ollama(mut response: Response) -> Response {
    let Some(ErrorMark { error }) = response.extensions_mut().remove() else { return response };
    with_body(response, json!({"error": error.message}).to_string().into_bytes())
}

fn with_body(mut response: Response, body: Vec<u8>) -> Response {
    response.headers_mut().remove(header::CONTENT_LENGTH);
    *response.body_mut() = body.into();
    response
}
