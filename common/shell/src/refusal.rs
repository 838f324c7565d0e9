//! Errors that router and worker share: classes with their statuses, and refusals of requests before they are read.
//!
//! Not here: other errors (`error` of router and worker), their error object (`http::error` of both).

use std::time::Duration;

use axum::extract::{FromRequestParts, Path};
use axum::http::request::Parts;
use axum::http::{HeaderMap, HeaderValue, Method, StatusCode, Uri, header};
use axum::response::{IntoResponse, Response};
use axum::{Extension, Json};
use warmpath_common::openai::{ErrorBody, ErrorObject};

use crate::body::BodyError;
use crate::body::coding::CODINGS;
use crate::dialect_errors::ErrorMark;
use crate::hosts::HostRefusal;

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
    pub fn response(self, mut body: ErrorBody, retry_after: Option<Duration>) -> Response {
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

/// Reason why a request is refused before its content is read.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum Refusal {
    /// The request names no host, or one that is not a name of this server.
    #[error(transparent)]
    Host(#[from] HostRefusal),
    /// The body did not arrive, or exceeds a limit.
    #[error(transparent)]
    Body(#[from] BodyError),
    /// No endpoint has this path.
    #[error("the path {path} does not exist")]
    PathUnknown {
        /// The path.
        path: String,
    },
    /// OpenAI's or Anthropic's API has this endpoint, and this server does not.
    #[error("the path {path} does not exist: this server does not offer that endpoint of the API")]
    NotOffered {
        /// The path.
        path: String,
    },
    /// The path does not support this method.
    #[error("{path} does not support the method {method}")]
    MethodRefused {
        /// The path.
        path: String,
        /// The method.
        method: String,
    },
}

impl Refusal {
    /// Returns the refusal of a path.
    pub fn path(uri: &Uri) -> Self {
        let path = uri.path().to_owned();
        if is_of_api(&path) { Self::NotOffered { path } } else { Self::PathUnknown { path } }
    }

    /// Returns the refusal of a path's method.
    pub fn method(uri: &Uri, method: &Method) -> Self {
        Self::MethodRefused { path: uri.path().to_owned(), method: method.to_string() }
    }

    /// Returns the kind of the error.
    pub fn class(&self) -> Class {
        match self {
            Self::Host(HostRefusal::NotOne) | Self::Body(BodyError::Unread | BodyError::Undecodable { .. }) => {
                Class::Client
            }
            Self::Host(HostRefusal::Unknown { .. }) => Class::Forbidden,
            Self::Body(BodyError::TooLong { .. }) => Class::TooLong,
            Self::Body(BodyError::UnknownCoding) => Class::Coding,
            Self::Body(BodyError::Late { .. } | BodyError::Silent { .. }) => Class::TooLate,
            Self::Body(BodyError::NoRoom) => Class::Overload,
            Self::PathUnknown { .. } | Self::NotOffered { .. } => Class::NotFound,
            Self::MethodRefused { .. } => Class::Method,
        }
    }

    /// Returns the error's machine-readable code, if it has one.
    pub fn code(&self) -> Option<&'static str> {
        match self {
            Self::Host(refusal) => refusal.code(),
            Self::Body(error) => error.code(),
            Self::NotOffered { .. } => Some("endpoint_not_offered"),
            Self::PathUnknown { .. } | Self::MethodRefused { .. } => None,
        }
    }
}

/// First segments, behind `/v1/`, of the endpoints of OpenAI's and Anthropic's APIs that no server here offers, or of
/// which it offers only some.
///
/// Source: the API references of OpenAI and Anthropic, 2026-11.
const API_SEGMENTS: [&str; 22] = [
    "assistants",
    "audio",
    "batches",
    "chat",
    "chatkit",
    "containers",
    "conversations",
    "evals",
    "files",
    "fine_tuning",
    "images",
    "messages",
    "moderations",
    "organization",
    "realtime",
    "responses",
    "skills",
    "threads",
    "uploads",
    "vector_stores",
    "videos",
    "webhooks",
];

/// Returns whether a path is one of OpenAI's or Anthropic's API, or below one.
fn is_of_api(path: &str) -> bool {
    let behind = path.strip_prefix("/v1").unwrap_or(path);
    let segment = behind.strip_prefix('/').map(|rest| rest.split('/').next().unwrap_or_default());
    segment.is_some_and(|segment| API_SEGMENTS.contains(&segment))
}

/// Returns the id of the stored response that a request of OpenAI's API is about; `None` if the API has no such
/// request. `rest` is the path behind `/v1/responses/`.
///
/// Source: OpenAI's API reference, "Responses".
pub fn stored_response<'a>(method: &Method, rest: &'a str) -> Option<&'a str> {
    match (method, rest.split_once('/')) {
        (&Method::GET | &Method::HEAD | &Method::DELETE, None) => Some(rest),
        (&Method::GET | &Method::HEAD, Some((id, "input_items"))) | (&Method::POST, Some((id, "cancel"))) => Some(id),
        _ => None,
    }
}

/// Variable part of a path, decoded, for example the name of a model. A part that is not UTF-8 names nothing.
pub struct Name(pub String);

/// Refusal of a path without a [`Name`].
pub struct NoName(Refusal);

impl<S: Send + Sync> FromRequestParts<S> for Name {
    type Rejection = NoName;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, NoName> {
        match Path::from_request_parts(parts, state).await {
            Ok(Path(name)) => Ok(Self(name)),
            Err(_) => Err(NoName(Refusal::path(&parts.uri))),
        }
    }
}

impl IntoResponse for NoName {
    fn into_response(self) -> Response {
        let Self(refusal) = self;
        let (message, kind) = (refusal.to_string(), refusal.class().kind().to_owned());
        let error = ErrorObject { message, kind, param: None, code: None, excess: None };
        refusal.class().response(ErrorBody { error }, None)
    }
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

    #[test]
    fn endpoints_of_the_api_that_are_not_offered_are_named_as_such() {
        let code = |path: &'static str| Refusal::path(&Uri::from_static(path)).code();
        for path in
            ["/v1/responses/compact", "/v1/files", "/files", "/v1/batches/b/cancel", "/v1/chat/completions/chatcmpl-1"]
        {
            assert_eq!(code(path), Some("endpoint_not_offered"), "{path}");
        }
        for path in ["/v1/nothing", "/nothing", "/", "/v1", "/v1/", "/v2/files", "/filesystem"] {
            assert_eq!(code(path), None, "{path}");
        }
    }

    #[test]
    fn only_requests_of_the_api_are_about_a_stored_response() {
        for (method, rest, expected) in [
            (Method::GET, "resp_1", Some("resp_1")),
            (Method::DELETE, "resp_1", Some("resp_1")),
            (Method::GET, "resp_1/input_items", Some("resp_1")),
            (Method::POST, "resp_1/cancel", Some("resp_1")),
            (Method::POST, "compact", None),
            (Method::POST, "resp_1", None),
            (Method::GET, "resp_1/cancel", None),
            (Method::PUT, "resp_1", None),
            (Method::POST, "a/b/cancel", None),
        ] {
            assert_eq!(stored_response(&method, rest), expected, "{method} {rest}");
        }
    }
}
