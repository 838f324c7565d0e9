//! A [`RequestError`] becomes OpenAI's error object.
//!
//! Not here: why a request fails (`error`), its status (`warmpath_shell::refusal`). The client gets the error's own
//! message, the log also its causes.

use std::time::Duration;

use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use serde_json::json;
use warmpath_common::dialects::anthropic;
use warmpath_common::openai::{ErrorBody, ErrorObject, PromptExcess};
use warmpath_shell::refusal::Class;

use crate::error::RequestError;
use crate::prompt::EndpointKind;

/// Returns the error's object.
pub fn error_body(error: &RequestError) -> ErrorBody {
    let code = error.code().map(str::to_owned);
    let excess = match error {
        RequestError::PromptTooLong { n_tokens, context_tokens } => {
            Some(PromptExcess { n_prompt_tokens: n_tokens.number(), n_ctx: *context_tokens })
        }
        _ => None,
    };
    let (message, kind) = (error.to_string(), error.class().kind().to_owned());
    ErrorBody { error: ErrorObject { message, kind, param: error.param(), code, excess } }
}

/// Returns the last event of a stream that broke off after `n_events`: it tells the client that the response is
/// incomplete.
pub fn broken_stream_event(worker: &str, endpoint: EndpointKind, n_events: u32) -> String {
    failed_stream_event((&format!("the worker {worker} ended its response early"), "worker_failed"), endpoint, n_events)
}

/// Returns the event that ends a stream after `n_events` with a reason.
pub fn failed_stream_event((message, code): (&str, &str), endpoint: EndpointKind, n_events: u32) -> String {
    let code = code.to_owned();
    let named = |error: String| format!("event: error\ndata: {error}\n\n");
    match endpoint {
        EndpointKind::Messages => {
            let error = anthropic::ErrorBody::new(StatusCode::BAD_GATEWAY.as_u16(), message);
            named(serde_json::to_string(&error).expect("strings have a JSON form"))
        }
        EndpointKind::Responses => {
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

impl IntoResponse for RequestError {
    fn into_response(self) -> Response {
        match self.class() {
            Class::Internal => tracing::error!(error = ?self, "a request failed"),
            Class::Upstream | Class::UpstreamLate => tracing::warn!(error = %self, "a request failed"),
            class => tracing::debug!(error = %self, ?class, "a request is refused"),
        }
        // Whole seconds, rounded up, so that no client retries too early.
        let seconds = |after: Duration| after.as_secs() + u64::from(after.subsec_nanos() > 0);
        self.class().response(&error_body(&self), self.retry_after().map(seconds))
    }
}
