//! An error that a stock server reports in a response whose status is a success.
//!
//! A server that has sent the head of a stream can report an error only inside the stream, and some servers and proxies
//! give every response the status 200. Not here: finding errors in a stream (`event_stream`), their consequences (the
//! router's upstream module).

use serde_json::{Map, Value};

/// Longest whole response that is searched for an error. Units: bytes.
///
/// Source: own choice: longer than an error with its details, and shorter than the bodies whose parsing costs time.
const ERROR_BYTES_MAX: usize = 16 << 10;

/// Fields of an object that an error is reported in, besides `error`.
///
/// Source: Anthropic's API ("Errors": `type`, `request_id`), vLLM's `ErrorResponse` (`object`).
const BESIDE_ERROR: [&str; 3] = ["type", "request_id", "object"];

/// An error in place of a response.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ReportedError {
    /// HTTP status that the error names; `None` if it names none.
    pub status: Option<u16>,
}

/// Returns the error that a whole response consists of; `None` if it has other content. No content is an error, too.
pub fn in_body(body: &[u8]) -> Option<ReportedError> {
    if body.trim_ascii().is_empty() {
        return Some(ReportedError::default());
    }
    if body.len() > ERROR_BYTES_MAX {
        return None;
    }
    let fields: Map<String, Value> = serde_json::from_slice(body).ok()?;
    let error = fields.get("error").filter(|error| !error.is_null())?;
    let is_alone = fields.keys().all(|name| name == "error" || BESIDE_ERROR.contains(&name.as_str()));
    is_alone.then(|| ReportedError { status: status(error) })
}

/// Returns the HTTP status that an error object names; `None` if it names none.
///
/// Source: llama-server and vLLM have the status in `code`. OpenAI and Anthropic have only a `type`, which is
/// `invalid_request_error` for their status 400.
pub fn status(error: &Value) -> Option<u16> {
    let code = error["code"].as_u64().and_then(|code| u16::try_from(code).ok());
    code.or_else(|| (error["type"] == "invalid_request_error").then_some(400))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_alone_is_distinguished_from_a_response() {
        let named = |status| Some(ReportedError { status });
        for (body, expected) in [
            ("", named(None)),
            (" \r\n", named(None)),
            (r#"{"error": "no"}"#, named(None)),
            (r#"{"error": {"message": "no", "code": null}}"#, named(None)),
            (r#"{"error": {"code": 503, "message": "Loading model", "type": "unavailable_error"}}"#, named(Some(503))),
            (r#"{"error": {"code": "bad", "type": "invalid_request_error"}}"#, named(Some(400))),
            (r#"{"error": {"code": 99999}}"#, named(None)),
            (r#"{"type": "error", "error": {"type": "api_error"}, "request_id": "r"}"#, named(None)),
            (r#"{"error": null}"#, None),
            (r#"{"error": {}, "choices": []}"#, None),
            (r#"{"id": "r", "status": "failed", "error": {"code": "server_error"}}"#, None),
            (r#"{"data": []}"#, None),
            (r#"["error"]"#, None),
            ("{}", None),
            ("error", None),
        ] {
            assert_eq!(in_body(body.as_bytes()), expected, "{body}");
        }
        let long = format!(r#"{{"error": "{}"}}"#, "x".repeat(ERROR_BYTES_MAX));
        assert_eq!(in_body(long.as_bytes()), None);
    }
}
