//! Conversion of a [`RequestError`] to OpenAI's error object.
//!
//! Not here: the errors (`error`), the status (`warmpath_shell::refusal`). The client gets the error's message, and the
//! log its causes.

use std::time::Duration;

use axum::response::{IntoResponse, Response};
use warmpath_common::openai::{ErrorBody, ErrorObject, PromptExcess};
use warmpath_shell::refusal::Class;

use crate::error::RequestError;

/// `Retry-After` if the queue is full.
///
/// Source: a queued request starts within a second or two on the machine of docs/decisions/0000-measured-before.md.
const RETRY_OVERLOAD: Duration = Duration::from_secs(1);

/// `Retry-After` while the worker loads or drains.
///
/// Source: loading and draining take from seconds to minutes.
const RETRY_UNAVAILABLE: Duration = Duration::from_secs(5);

/// Returns the error's object, as a response body or as the last event of a stream.
pub fn error_body(error: &RequestError) -> ErrorBody {
    let code = error.code().map(str::to_owned);
    let excess = match error {
        RequestError::PromptTooLong { n_tokens, room } => {
            Some(PromptExcess { n_prompt_tokens: n_tokens.number(), n_ctx: room.context_tokens })
        }
        _ => None,
    };
    let (message, kind) = (error.to_string(), error.class().kind().to_owned());
    ErrorBody { error: ErrorObject { message, kind, param: error.param(), code, excess } }
}

/// Logs the causes that the client does not see.
pub fn log_error(error: &RequestError) {
    if error.class() == Class::Internal {
        tracing::error!(error = ?error, "a request failed");
    } else {
        tracing::debug!(code = error.code(), class = ?error.class(), "refused a request");
    }
}

/// Returns the status of the error.
pub fn status_of(error: &RequestError) -> u16 {
    error.class().status().as_u16()
}

impl IntoResponse for RequestError {
    fn into_response(self) -> Response {
        log_error(&self);
        let class = self.class();
        let retry_after = match class {
            Class::Overload => Some(RETRY_OVERLOAD),
            Class::Unavailable => Some(RETRY_UNAVAILABLE),
            _ => None,
        };
        class.response(error_body(&self), retry_after)
    }
}
