//! Our errors in the format of other dialects.
//!
//! Every error is first made as OpenAI's error object, in `api_error`.

use axum::http::{StatusCode, header};
use axum::response::Response;
use warmpath_common::dialects::anthropic;
use warmpath_common::ids::RequestId;
use warmpath_common::openai;

/// Mark of a response that is one of our errors, with its message for other dialects.
#[derive(Debug, Clone)]
pub struct ErrorMark {
    /// Message; in Anthropic's wording if Anthropic's clients search for it.
    message: String,
    /// Machine-readable code.
    code: Option<String>,
}

impl ErrorMark {
    /// Returns the mark of a response with this body.
    pub fn of(body: &openai::ErrorBody) -> Self {
        let too_long = |excess: &openai::PromptExcess| anthropic::prompt_too_long(excess.n_prompt_tokens, excess.n_ctx);
        let message = body.error.excess.as_ref().map_or_else(|| body.error.message.clone(), too_long);
        Self { message, code: body.error.code.clone() }
    }
}

/// Returns one of our errors in Anthropic's format, and any other response unchanged.
pub fn as_anthropic(mut response: Response, id: &RequestId) -> Response {
    let Some(ErrorMark { message, code }) = response.extensions_mut().remove() else { return response };
    let status = response.status().as_u16();
    let body = anthropic::ErrorBody::new(status, &message).of_code(code.as_deref()).of_request(id);
    let body = serde_json::to_vec(&body).expect("strings have a JSON form");
    let own_status = StatusCode::from_u16(anthropic::status(status)).expect("Anthropic's statuses are below 1000");
    *response.status_mut() = own_status;
    response.headers_mut().remove(header::CONTENT_LENGTH);
    *response.body_mut() = body.into();
    response
}
