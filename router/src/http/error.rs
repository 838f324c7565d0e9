//! The one place that knows status codes: a [`RequestError`] becomes OpenAI's error object.
//!
//! Not here: why a request fails (`error`). The client sees the error's own message, the log sees what lies behind it.

use axum::Json;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use warmpath_common::openai::{ErrorBody, ErrorObject};

use crate::error::{Class, RequestError};

/// Returns the error's object.
pub fn error_body(error: &RequestError) -> ErrorBody {
    let kind = match error.class() {
        Class::Client | Class::NotFound | Class::Method | Class::TooLong | Class::TooLate => "invalid_request_error",
        Class::Overload => "rate_limit_error",
        Class::Unavailable => "unavailable_error",
        Class::Upstream | Class::UpstreamLate | Class::Internal => "server_error",
    };
    let code = error.code().map(str::to_owned);
    ErrorBody { error: ErrorObject { message: error.to_string(), kind: kind.to_owned(), param: error.param(), code } }
}

/// Returns the last event of a stream that broke off: what the client has seen stays, and it learns that more is missing.
pub fn broken_stream_event(worker: &str) -> String {
    let error = ErrorObject {
        message: format!("the worker {worker} broke off its answer"),
        kind: "server_error".to_owned(),
        param: None,
        code: Some("worker_failed".to_owned()),
    };
    let body = serde_json::to_string(&ErrorBody { error }).expect("strings have a JSON form");
    format!("data: {body}\n\n")
}

fn status(class: Class) -> StatusCode {
    match class {
        Class::Client => StatusCode::BAD_REQUEST,
        Class::NotFound => StatusCode::NOT_FOUND,
        Class::Method => StatusCode::METHOD_NOT_ALLOWED,
        Class::TooLong => StatusCode::PAYLOAD_TOO_LARGE,
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
        let mut response = (status(self.class()), Json(error_body(&self))).into_response();
        if let Some(after) = self.retry_after() {
            // Whole seconds, and never too early.
            let seconds = after.as_secs() + u64::from(after.subsec_nanos() > 0);
            response.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from(seconds));
        }
        response
    }
}
