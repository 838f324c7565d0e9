//! Errors in responses to clients: their class, which decides the status, and OpenAI's error object.
//!
//! Not here: the errors themselves (`refusal`, `error` of router and worker).

use std::time::Duration;

use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::{Extension, Json};
use warmpath_common::openai::{ErrorBody, ErrorObject, PromptExcess};

use crate::http::body::coding::CODINGS;
use crate::http::dialect_errors::ErrorMark;

/// Longest `Retry-After`; a longer time is in the message.
///
/// Source: after a longer one OpenAI's client never retries (`MAX_RETRY_AFTER_DELAY`, `openai` 3.57 for Python).
pub const RETRY_AFTER_MAX: Duration = Duration::from_secs(120);

/// `Retry-After` of a refusal whose end nobody knows.
///
/// Source: own choice: capacity is free and a lost worker is back within seconds; Codex 0.171 never retries without the
/// header.
pub const RETRY_AFTER_DEFAULT: Duration = Duration::from_secs(2);

/// Kind of a failure, which decides its status.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Class {
    /// The request can never succeed as it is.
    Client,
    /// The request is not authenticated.
    Unauthorized,
    /// The request may come from a web page of another site.
    Forbidden,
    /// The object does not exist.
    NotFound,
    /// The path exists, but not with this method.
    Method,
    /// The body exceeds the limit.
    TooLong,
    /// The body took too long.
    TooLate,
    /// The body has an unknown content coding.
    Coding,
    /// The model does not support the request, or the server was started without a flag that the request needs.
    NotSupported,
    /// The capacity is exhausted for the moment.
    Overload,
    /// No worker is available at the moment.
    Unavailable,
    /// A router's worker failed.
    Upstream,
    /// A router's worker took too long.
    UpstreamLate,
    /// The server failed.
    Internal,
}

impl Class {
    /// Returns the status of such errors.
    pub fn status(self) -> StatusCode {
        match self {
            Self::Client => StatusCode::BAD_REQUEST,
            Self::Unauthorized => StatusCode::UNAUTHORIZED,
            Self::Forbidden => StatusCode::FORBIDDEN,
            Self::NotFound => StatusCode::NOT_FOUND,
            Self::Method => StatusCode::METHOD_NOT_ALLOWED,
            Self::TooLong => StatusCode::PAYLOAD_TOO_LARGE,
            Self::TooLate => StatusCode::REQUEST_TIMEOUT,
            Self::Coding => StatusCode::UNSUPPORTED_MEDIA_TYPE,
            Self::NotSupported => StatusCode::NOT_IMPLEMENTED,
            Self::Overload => StatusCode::TOO_MANY_REQUESTS,
            Self::Unavailable => StatusCode::SERVICE_UNAVAILABLE,
            Self::Upstream => StatusCode::BAD_GATEWAY,
            Self::UpstreamLate => StatusCode::GATEWAY_TIMEOUT,
            Self::Internal => StatusCode::INTERNAL_SERVER_ERROR,
        }
    }

    /// Returns the `type` of such errors in OpenAI's error object.
    pub fn kind(self) -> &'static str {
        match self {
            Self::Client | Self::NotFound | Self::Method | Self::TooLong | Self::TooLate | Self::Coding => {
                "invalid_request_error"
            }
            Self::Unauthorized => "authentication_error",
            Self::Forbidden => "permission_error",
            Self::NotSupported => "not_supported_error",
            Self::Overload => "rate_limit_error",
            Self::Unavailable => "unavailable_error",
            Self::Upstream | Self::UpstreamLate | Self::Internal => "server_error",
        }
    }

    /// Returns the response to such an error; `retry_after` is the time after which the client may retry, if it is
    /// known. Every refusal for the moment has a `Retry-After`.
    fn response(self, mut body: ErrorBody, retry_after: Option<Duration>) -> Response {
        let is_momentary = matches!(self, Self::Overload | Self::Unavailable);
        let retry_after = retry_after.or(is_momentary.then_some(RETRY_AFTER_DEFAULT));
        if let Some(wait) = retry_after.filter(|wait| *wait > RETRY_AFTER_MAX) {
            body.error.message = with_wait(&body.error.message, wait);
        }
        let mut response = (self.status(), Extension(ErrorMark::of(&body)), Json(body)).into_response();
        if let Some(wait) = retry_after {
            set_retry_after(response.headers_mut(), wait);
        }
        if self == Self::Coding {
            response.headers_mut().insert(header::ACCEPT_ENCODING, HeaderValue::from_static(CODINGS));
        }
        response
    }
}

/// An error in a response to a client.
pub trait ApiError: std::error::Error {
    /// Returns the kind of the error.
    fn class(&self) -> Class;

    /// Returns the path of the field at fault, if there is one.
    fn param(&self) -> Option<String>;

    /// Returns the error's machine-readable code, if it has one.
    fn code(&self) -> Option<&'static str>;

    /// Returns how far the prompt exceeds the context, if that is the error.
    fn excess(&self) -> Option<PromptExcess>;

    /// Returns OpenAI's error object, as a response body or as the last event of a stream.
    fn body(&self) -> ErrorBody {
        let (message, kind) = (self.to_string(), self.class().kind().to_owned());
        let code = self.code().map(str::to_owned);
        ErrorBody { error: ErrorObject { message, kind, param: self.param(), code, excess: self.excess() } }
    }

    /// Returns the time after which a retry may succeed, if it is known.
    fn retry_after(&self) -> Option<Duration>;

    /// Logs the error: its causes only if a server failed, because the client then sees none.
    fn log(&self) {
        match self.class() {
            Class::Internal => tracing::error!(error = ?self, "a request failed"),
            Class::Upstream | Class::UpstreamLate => tracing::warn!(error = %self, "a request failed"),
            class => tracing::debug!(error = %self, code = self.code(), ?class, "a request is refused"),
        }
    }

    /// Returns the response, and logs the error.
    fn response(&self) -> Response {
        self.log();
        self.class().response(self.body(), self.retry_after())
    }
}

/// Sets `Retry-After` in whole seconds, rounded up, so that no client retries too early, and not beyond the limit.
pub fn set_retry_after(headers: &mut HeaderMap, wait: Duration) {
    headers.insert(header::RETRY_AFTER, HeaderValue::from(whole_seconds(wait.min(RETRY_AFTER_MAX))));
}

/// Returns an error's message with the time after which the client may retry.
pub fn with_wait(message: &str, wait: Duration) -> String {
    // The words of OpenAI's servers, which clients look for.
    format!("{message}; try again in {} s", whole_seconds(wait))
}

fn whole_seconds(wait: Duration) -> u64 {
    wait.as_secs().saturating_add(u64::from(wait.subsec_nanos() > 0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn every_refusal_for_the_moment_has_retry_after_and_a_long_wait_is_in_its_message() {
        let check = async |class: Class, wait_ms: Option<u64>, expected: Option<&str>, message: &str| {
            let kind = class.kind().to_owned();
            let error = ErrorObject { message: "full".to_owned(), kind, param: None, code: None, excess: None };
            let response = class.response(ErrorBody { error }, wait_ms.map(Duration::from_millis));
            let header = response.headers().get(header::RETRY_AFTER).map(|value| value.to_str().expect("seconds"));
            assert_eq!(header, expected, "{class:?} {wait_ms:?}");
            let body = axum::body::to_bytes(response.into_body(), 1 << 10).await.expect("a body");
            let body: ErrorBody = serde_json::from_slice(&body).expect("an error");
            assert_eq!(body.error.message, message, "{class:?} {wait_ms:?}");
        };
        for class in [Class::Overload, Class::Unavailable] {
            check(class, None, Some("2"), "full").await;
            check(class, Some(0), Some("0"), "full").await;
            check(class, Some(1001), Some("2"), "full").await;
            check(class, Some(120_000), Some("120"), "full").await;
            check(class, Some(120_001), Some("120"), "full; try again in 121 s").await;
            check(class, Some(3_600_000), Some("120"), "full; try again in 3600 s").await;
        }
        for class in [Class::Client, Class::Upstream, Class::Internal] {
            check(class, None, None, "full").await;
        }
    }
}
