//! The one place that knows status codes: a [`RequestError`] becomes OpenAI's error object.
//!
//! The client sees the error's own message, and the log sees its chain of causes. Not here: the errors (`error`).

use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::{Extension, Json};
use warmpath_common::openai::{ErrorBody, ErrorObject, Excess};
use warmpath_shell::body::coding::CODINGS;
use warmpath_shell::dialect_errors::Refused;

use crate::error::{Class, RequestError};

/// `Retry-After` for a client that finds every place taken. Units: seconds.
///
/// Source: a queued request starts within a second or two on the machine of docs/decisions/0000-measured-before.md.
const RETRY_OVERLOAD_S: u32 = 1;

/// `Retry-After` while the worker loads or drains. Units: seconds.
const RETRY_UNAVAILABLE_S: u32 = 5;

/// Returns the error's object, as a response body or as the last event of a stream.
pub fn error_body(error: &RequestError) -> ErrorBody {
    let kind = match error.class() {
        Class::Client | Class::NotFound | Class::Method | Class::TooLong | Class::TooLate | Class::Coding => {
            "invalid_request_error"
        }
        Class::Forbidden => "permission_error",
        Class::Unauthorized => "authentication_error",
        Class::NotSupported => "not_supported_error",
        Class::Overload => "rate_limit_error",
        Class::Unavailable => "unavailable_error",
        Class::Internal => "server_error",
    };
    let code = error.code().map(str::to_owned);
    let excess = match error {
        RequestError::PromptTooLong { n_tokens, room } => {
            Some(Excess { n_prompt_tokens: n_tokens.number(), n_ctx: room.context_tokens })
        }
        _ => None,
    };
    let (message, kind) = (error.to_string(), kind.to_owned());
    ErrorBody { error: ErrorObject { message, kind, param: error.param(), code, excess } }
}

/// Logs the causes that the client does not see.
pub fn log_error(error: &RequestError) {
    if error.class() == Class::Internal {
        tracing::error!(error = ?error, "a request failed");
    } else {
        tracing::debug!(code = error.code(), class = ?error.class(), "a request is refused");
    }
}

/// Returns the status of the error.
pub fn status_of(error: &RequestError) -> u16 {
    status(error.class()).as_u16()
}

fn status(class: Class) -> StatusCode {
    match class {
        Class::Client => StatusCode::BAD_REQUEST,
        Class::Unauthorized => StatusCode::UNAUTHORIZED,
        Class::NotFound => StatusCode::NOT_FOUND,
        Class::Method => StatusCode::METHOD_NOT_ALLOWED,
        Class::Forbidden => StatusCode::FORBIDDEN,
        Class::TooLong => StatusCode::PAYLOAD_TOO_LARGE,
        Class::TooLate => StatusCode::REQUEST_TIMEOUT,
        Class::Coding => StatusCode::UNSUPPORTED_MEDIA_TYPE,
        Class::NotSupported => StatusCode::NOT_IMPLEMENTED,
        Class::Overload => StatusCode::TOO_MANY_REQUESTS,
        Class::Unavailable => StatusCode::SERVICE_UNAVAILABLE,
        Class::Internal => StatusCode::INTERNAL_SERVER_ERROR,
    }
}

impl IntoResponse for RequestError {
    fn into_response(self) -> Response {
        log_error(&self);
        let class = self.class();
        let body = error_body(&self);
        let refused = Refused::of(&body);
        let mut response = (status(class), Extension(refused), Json(body)).into_response();
        let retry_s = match class {
            Class::Overload => Some(RETRY_OVERLOAD_S),
            Class::Unavailable => Some(RETRY_UNAVAILABLE_S),
            _ => None,
        };
        if let Some(seconds) = retry_s {
            response.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from(seconds));
        }
        if class == Class::Coding {
            response.headers_mut().insert(header::ACCEPT_ENCODING, HeaderValue::from_static(CODINGS));
        }
        response
    }
}
