//! Reasons why router and worker refuse a request alike.
//!
//! Not here: the errors of one program (`error` of router and worker).

use std::time::Duration;

use axum::extract::{FromRequestParts, Path};
use axum::http::request::Parts;
use axum::http::{Method, Uri};
use axum::response::{IntoResponse, Response};
use warmpath_common::dialects::{DialectError, Spelling};
use warmpath_common::fields::ReadError;
use warmpath_common::headers::CACHE_SALT;
use warmpath_common::openai::PromptExcess;
use warmpath_common::salt::SaltError;

use crate::http::api_error::{ApiError, Class};
use crate::http::body::BodyError;
use crate::net::hosts::HostRefusal;

/// Reason why router and worker refuse a request alike.
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
    /// Ollama's API has this endpoint, which manages models or accounts, and this server does not.
    #[error("{path} is not offered: models are files that the operator's workers or hosts serve (docs/ollama.md)")]
    NotManaged {
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
    /// The body is not JSON, or a field of it is missing or has the wrong type.
    #[error(transparent)]
    Unreadable(#[from] ReadError),
    /// The salt in the headers cannot be used.
    #[error(transparent)]
    Salt(#[from] SaltError),
    /// A dialect's request cannot be converted to a chat.
    #[error(transparent)]
    Dialect(#[from] DialectError),
    /// A field has a value that cannot be used.
    #[error("{reason}")]
    Field {
        /// Path of the field.
        param: String,
        /// Reason.
        reason: String,
    },
    /// The chat converted from a dialect's request cannot be answered; described with the client's field names.
    #[error("{message}")]
    Respelled {
        /// Reason, with the client's names.
        message: String,
        /// Path of the field.
        param: String,
        /// Kind of the error about the chat.
        class: Class,
        /// Its code.
        code: Option<&'static str>,
    },
    /// There is no stored response with this id.
    #[error("there is no response `{id}`: responses are not stored here")]
    NotStored {
        /// The requested id.
        id: String,
    },
}

impl Refusal {
    /// Returns the refusal of a path.
    pub fn path(uri: &Uri) -> Self {
        let path = uri.path().to_owned();
        if is_of_api(&path) {
            Self::NotOffered { path }
        } else if is_of_ollama(&path) {
            Self::NotManaged { path }
        } else {
            Self::PathUnknown { path }
        }
    }

    /// Returns the refusal of a path's method.
    pub fn method(uri: &Uri, method: &Method) -> Self {
        Self::MethodRefused { path: uri.path().to_owned(), method: method.to_string() }
    }

    /// Returns an error about the field `param`.
    pub fn field(param: impl Into<String>, reason: impl Into<String>) -> Self {
        Self::Field { param: param.into(), reason: reason.into() }
    }
}

impl ApiError for Refusal {
    fn class(&self) -> Class {
        match self {
            Self::Respelled { class, .. } => *class,
            Self::Host(HostRefusal::NotOne)
            | Self::Body(BodyError::Unread | BodyError::Undecodable { .. })
            | Self::Unreadable(_)
            | Self::Salt(_)
            | Self::Dialect(_)
            | Self::Field { .. } => Class::Client,
            Self::Host(HostRefusal::Unknown { .. }) => Class::Forbidden,
            Self::Body(BodyError::TooLong { .. }) => Class::TooLong,
            Self::Body(BodyError::UnknownCoding) => Class::Coding,
            Self::Body(BodyError::Late { .. } | BodyError::Silent { .. }) => Class::TooLate,
            Self::Body(BodyError::NoRoom) => Class::Overload,
            Self::PathUnknown { .. } | Self::NotOffered { .. } | Self::NotManaged { .. } | Self::NotStored { .. } => {
                Class::NotFound
            }
            Self::MethodRefused { .. } => Class::Method,
        }
    }

    fn param(&self) -> Option<String> {
        match self {
            Self::Unreadable(ReadError::Field { param, .. }) => param.clone(),
            Self::Salt(_) => Some(CACHE_SALT.to_owned()),
            Self::Dialect(error) => error.param().map(str::to_owned),
            Self::Field { param, .. } | Self::Respelled { param, .. } => Some(param.clone()),
            _ => None,
        }
    }

    fn code(&self) -> Option<&'static str> {
        match self {
            Self::Host(refusal) => refusal.code(),
            Self::Body(error) => error.code(),
            Self::NotOffered { .. } | Self::NotManaged { .. } => Some("endpoint_not_offered"),
            Self::Unreadable(ReadError::Json { .. }) => Some("invalid_json"),
            Self::Dialect(error) => error.code(),
            Self::Respelled { code, .. } => *code,
            _ => None,
        }
    }

    fn excess(&self) -> Option<PromptExcess> {
        None
    }

    fn retry_after(&self) -> Option<Duration> {
        None
    }
}

/// Returns an error about a chat with the field names of the dialect from which the chat was converted.
pub fn respelled<E: ApiError + From<Refusal>>(error: E, spelling: &Spelling) -> E {
    let Some(chat_param) = error.param() else { return error };
    let param = spelling.param(&chat_param);
    if param == chat_param {
        return error;
    }
    let message = spelling.text(&error.to_string(), &chat_param);
    Refusal::Respelled { message, param, class: error.class(), code: error.code() }.into()
}

/// Implements the conversion of these errors to a program's own error, through [`Refusal`].
#[macro_export]
macro_rules! convert_refusals {
    ($own:ty: $($error:ty),+) => {$(
        impl From<$error> for $own {
            fn from(error: $error) -> Self {
                Self::from($crate::refusal::Refusal::from(error))
            }
        }
    )+};
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
    let segment = behind.strip_prefix('/').map(|path_left| path_left.split('/').next().unwrap_or_default());
    segment.is_some_and(|segment| API_SEGMENTS.contains(&segment))
}

/// First segments, behind `/api/`, of the endpoints of Ollama's API that no server here offers.
///
/// Source: Ollama 0.33, `server/routes.go`.
const OLLAMA_SEGMENTS: [&str; 10] =
    ["blobs", "copy", "create", "delete", "experimental", "me", "pull", "push", "signout", "user"];

/// Returns whether a path is one of Ollama's API that is not offered.
fn is_of_ollama(path: &str) -> bool {
    let segment = path.strip_prefix("/api/").map(|path_left| path_left.split('/').next().unwrap_or_default());
    segment.is_some_and(|segment| OLLAMA_SEGMENTS.contains(&segment))
}

/// Returns the id of the stored response that a request of OpenAI's API is about; `None` if the API has no such
/// request. `path_left` is the path behind `/v1/responses/`.
///
/// Source: OpenAI's API reference, "Responses".
pub fn stored_response<'a>(method: &Method, path_left: &'a str) -> Option<&'a str> {
    match (method, path_left.split_once('/')) {
        (&Method::GET | &Method::HEAD | &Method::DELETE, None) => Some(path_left),
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
        refusal.response()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn endpoints_of_the_api_that_are_not_offered_are_named_as_such() {
        let code = |path: &'static str| Refusal::path(&Uri::from_static(path)).code();
        for path in [
            "/v1/responses/compact",
            "/v1/files",
            "/files",
            "/v1/batches/b/cancel",
            "/v1/chat/completions/chatcmpl-1",
            "/api/blobs/sha256:1",
        ] {
            assert_eq!(code(path), Some("endpoint_not_offered"), "{path}");
        }
        for path in ["/v1/nothing", "/nothing", "/", "/v1", "/v1/", "/v2/files", "/filesystem", "/api", "/api/x"] {
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
