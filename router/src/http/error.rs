//! The one place that knows status codes: a [`RequestError`] becomes OpenAI's error object.
//!
//! The client sees the error's own message, and the log sees its chain of causes. Not here: the errors (`error`).

use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::{Extension, Json};
use serde_json::json;
use warmpath_common::dialects::anthropic;
use warmpath_common::openai::{ErrorBody, ErrorObject, Excess};
use warmpath_shell::body::coding::CODINGS;
use warmpath_shell::dialect_errors::Refused;

use crate::error::{Class, RequestError};
use crate::prompt::Shape;

/// Returns the error's object.
pub fn error_body(error: &RequestError) -> ErrorBody {
    let kind = match error.class() {
        Class::Client | Class::NotFound | Class::Method | Class::TooLong | Class::Coding | Class::TooLate => {
            "invalid_request_error"
        }
        Class::Unauthorized => "authentication_error",
        Class::Forbidden => "permission_error",
        Class::NotSupported => "not_supported_error",
        Class::Overload => "rate_limit_error",
        Class::Unavailable => "unavailable_error",
        Class::Upstream | Class::UpstreamLate | Class::Internal => "server_error",
    };
    let code = error.code().map(str::to_owned);
    let excess = match error {
        RequestError::PromptTooLong { n_tokens, context_tokens } => {
            Some(Excess { n_prompt_tokens: n_tokens.number(), n_ctx: *context_tokens })
        }
        _ => None,
    };
    let (message, kind) = (error.to_string(), kind.to_owned());
    ErrorBody { error: ErrorObject { message, kind, param: error.param(), code, excess } }
}

/// Returns the last event of a stream that broke off after `n_events`: it tells the client that the response is
/// incomplete.
pub fn broken_stream_event(worker: &str, shape: Shape, n_events: u32) -> String {
    failed_stream_event((&format!("the worker {worker} broke off its answer"), "worker_failed"), shape, n_events)
}

/// Returns the event that ends a stream after `n_events` with a reason.
pub fn failed_stream_event((message, code): (&str, &str), shape: Shape, n_events: u32) -> String {
    let code = code.to_owned();
    let named = |error: String| format!("event: error\ndata: {error}\n\n");
    match shape {
        Shape::Messages => {
            let error = anthropic::ErrorBody::new(StatusCode::BAD_GATEWAY.as_u16(), message);
            named(serde_json::to_string(&error).expect("strings have a JSON form"))
        }
        Shape::Responses => {
            let error =
                json!({"type": "error", "code": code, "message": message, "param": null, "sequence_number": n_events});
            named(error.to_string())
        }
        _ => {
            let error = ErrorObject {
                message: message.to_owned(),
                kind: "server_error".to_owned(),
                param: None,
                code: Some(code),
                excess: None,
            };
            let body = serde_json::to_string(&ErrorBody { error }).expect("strings have a JSON form");
            format!("data: {body}\n\n")
        }
    }
}

fn status(class: Class) -> StatusCode {
    match class {
        Class::Client => StatusCode::BAD_REQUEST,
        Class::Unauthorized => StatusCode::UNAUTHORIZED,
        Class::Forbidden => StatusCode::FORBIDDEN,
        Class::NotFound => StatusCode::NOT_FOUND,
        Class::Method => StatusCode::METHOD_NOT_ALLOWED,
        Class::TooLong => StatusCode::PAYLOAD_TOO_LARGE,
        Class::Coding => StatusCode::UNSUPPORTED_MEDIA_TYPE,
        Class::NotSupported => StatusCode::NOT_IMPLEMENTED,
        Class::TooLate => StatusCode::REQUEST_TIMEOUT,
        Class::Overload => StatusCode::TOO_MANY_REQUESTS,
        Class::Unavailable => StatusCode::SERVICE_UNAVAILABLE,
        Class::Upstream => StatusCode::BAD_GATEWAY,
        Class::UpstreamLate => StatusCode::GATEWAY_TIMEOUT,
        Class::Internal => StatusCode::INTERNAL_SERVER_ERROR,
    }
}

impl IntoResponse for RequestError {
    fn into_response(self) -> Response {
        match self.class() {
            Class::Internal => tracing::error!(error = ?self, "a request failed"),
            Class::Upstream | Class::UpstreamLate => tracing::warn!(error = %self, "a request failed"),
            class => tracing::debug!(error = %self, ?class, "a request is refused"),
        }
        let body = error_body(&self);
        let refused = Refused::of(&body);
        let mut response = (status(self.class()), Extension(refused), Json(body)).into_response();
        if let Some(after) = self.retry_after() {
            // Whole seconds, rounded up, so that no client comes too early.
            let seconds = after.as_secs() + u64::from(after.subsec_nanos() > 0);
            response.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from(seconds));
        }
        if self.class() == Class::Coding {
            response.headers_mut().insert(header::ACCEPT_ENCODING, HeaderValue::from_static(CODINGS));
        }
        response
    }
}
