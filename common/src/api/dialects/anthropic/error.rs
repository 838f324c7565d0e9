//! Anthropic's error object, with its types and statuses.
//!
//! Source: Anthropic's API reference, "Errors".

use schemars::JsonSchema;
use serde::Serialize;

use crate::ids::RequestId;

/// Path under which all responses use this dialect, errors too.
const PATH: &str = "/v1/messages";

/// Response header in which Anthropic's clients look for a request's id.
pub const REQUEST_ID: &str = "request-id";

/// Anthropic's status for "overloaded", for which other APIs use 503.
pub const OVERLOADED: u16 = 529;

/// Code of the error behind which Anthropic's clients send the whole conversation without `thread`.
pub const THREAD_UNSUPPORTED: &str = "thread_unsupported_request";

/// Body of an error response, and data of an `error` event.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
#[schemars(rename = "AnthropicError")]
pub struct ErrorBody<'a> {
    #[serde(rename = "type")]
    kind: &'static str,
    error: ErrorObject<'a>,
    #[serde(skip_serializing_if = "Option::is_none")]
    request_id: Option<&'a str>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
#[schemars(rename = "AnthropicErrorObject")]
struct ErrorObject<'a> {
    #[serde(rename = "type")]
    kind: &'static str,
    message: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    details: Option<ErrorDetails>,
}

/// Details of an error, for programs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
#[schemars(rename = "AnthropicErrorDetails")]
struct ErrorDetails {
    /// Name of the error.
    error_code: &'static str,
    /// Fields that caused it.
    unsupported: &'static [&'static str],
}

impl<'a> ErrorBody<'a> {
    /// Returns the body for an error of HTTP status `status`.
    pub fn new(status: u16, message: &'a str) -> Self {
        let kind = match status {
            401 => "authentication_error",
            403 => "permission_error",
            404 => "not_found_error",
            413 => "request_too_large",
            429 => "rate_limit_error",
            503 | OVERLOADED => "overloaded_error",
            504 => "timeout_error",
            500.. => "api_error",
            _ => "invalid_request_error",
        };
        Self { kind: "error", error: ErrorObject { kind, message, details: None }, request_id: None }
    }

    /// Returns the body with the details that Anthropic's clients look for in an error of this code.
    pub fn of_code(mut self, code: Option<&str>) -> Self {
        if code == Some(THREAD_UNSUPPORTED) {
            self.error.details = Some(ErrorDetails { error_code: THREAD_UNSUPPORTED, unsupported: &["thread"] });
        }
        self
    }

    /// Returns the body with the id of its request.
    pub fn of_request(self, id: &'a RequestId) -> Self {
        Self { request_id: Some(id.as_str()), ..self }
    }
}

/// Returns Anthropic's message for a prompt that leaves no room for output, in the wording that its clients look for.
///
/// Units: `context_tokens` is the context's size, which also has room for the first output token.
pub fn prompt_too_long(n_tokens: usize, context_tokens: u32) -> String {
    format!("prompt is too long: {n_tokens} tokens > {} maximum", context_tokens.saturating_sub(1))
}

/// Returns Anthropic's status where other APIs use `status`.
pub fn status(status: u16) -> u16 {
    if status == 503 { OVERLOADED } else { status }
}

/// Returns whether all responses at `path` use this dialect.
pub fn is_path(path: &str) -> bool {
    path.strip_prefix(PATH).is_some_and(|below| below.is_empty() || below.starts_with('/'))
}

#[cfg(test)]
mod tests {
    use serde_json::{json, to_value};

    use super::*;

    #[test]
    fn errors_have_anthropic_s_types_and_statuses() {
        for (of, kind) in [
            (400, "invalid_request_error"),
            (404, "not_found_error"),
            (405, "invalid_request_error"),
            (413, "request_too_large"),
            (429, "rate_limit_error"),
            (500, "api_error"),
            (502, "api_error"),
            (503, "overloaded_error"),
            (504, "timeout_error"),
        ] {
            let body = to_value(ErrorBody::new(of, "why")).expect("JSON");
            assert_eq!(body, json!({"type": "error", "error": {"type": kind, "message": "why"}}), "{of}");
        }
        assert_eq!((status(503), status(429)), (529, 429));
        assert_eq!(prompt_too_long(8, 8), "prompt is too long: 8 tokens > 7 maximum");
        let thread = to_value(ErrorBody::new(400, "why").of_code(Some(THREAD_UNSUPPORTED))).expect("JSON");
        let details = json!({"error_code": "thread_unsupported_request", "unsupported": ["thread"]});
        assert_eq!(thread["error"]["details"], details);
        assert_eq!(ErrorBody::new(400, "why").of_code(Some("other")), ErrorBody::new(400, "why"));
        let id = RequestId::new("r-1").expect("a name");
        assert_eq!(to_value(ErrorBody::new(400, "why").of_request(&id)).expect("JSON")["request_id"], "r-1");
    }

    #[test]
    fn the_dialect_s_paths_are_recognized() {
        assert!(is_path("/v1/messages") && is_path("/v1/messages/count_tokens") && is_path("/v1/messages/batches/x"));
        assert!(!is_path("/v1/messagesx") && !is_path("/v1/responses") && !is_path("/"));
    }
}
