//! A [`RequestError`] as a response, or as the last event of a stream, in the form of the endpoint's dialect.
//!
//! Not here: why a request fails (`error`), its status and OpenAI's error object (`warmpath_shell::api_error`).

use axum::http::{HeaderName, HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use serde_json::{Value, json};
use warmpath_common::dialects::anthropic;
use warmpath_common::openai::{ErrorBody, ErrorObject};
use warmpath_router_core::fleet::LookupError;
use warmpath_router_core::hosts::ModelRefusal;
use warmpath_shell::api_error::{ApiError as _, Class, with_wait};

use crate::endpoint::EndpointKind;
use crate::error::RequestError;

/// Header that keeps the clients of OpenAI and Anthropic from repeating a request.
///
/// Source: measured with their packages for Python and npm (2026-11-30): one request in place of three.
const SHOULD_RETRY: HeaderName = HeaderName::from_static("x-should-retry");

/// Returns the last event of a stream that broke off after `n_events`: it tells the client that the response is
/// incomplete.
pub fn broken_stream_event(worker: &str, endpoint: EndpointKind, n_events: u32) -> String {
    let message = format!("the worker {worker} ended its response early");
    failed_stream_event(Class::Upstream.status(), worker_failed(message), endpoint, n_events)
}

/// Returns the event that ends a stream after `n_events` because of one of our own errors.
pub fn error_event(error: &RequestError, endpoint: EndpointKind, n_events: u32) -> String {
    let ErrorBody { error: mut object } = error.body();
    // An event has no `Retry-After`.
    if let Some(wait) = error.retry_after() {
        object.message = with_wait(&object.message, wait);
    }
    failed_stream_event(error.class().status(), object, endpoint, n_events)
}

/// Returns the event for a worker's response in one piece that takes the place of a stream: its own error, if it has
/// one.
pub fn refused_stream_event(status: StatusCode, body: &[u8], endpoint: EndpointKind) -> String {
    let body: Value = serde_json::from_slice(body).unwrap_or_default();
    let error = body.get("error").unwrap_or(&body);
    let text = |name: &str| error.get(name).and_then(Value::as_str).map(str::to_owned);
    let object = match text("message") {
        Some(message) => {
            let kind = text("type").unwrap_or_else(|| "server_error".to_owned());
            ErrorObject { message, kind, param: text("param"), code: text("code"), excess: None }
        }
        None => worker_failed(format!("a worker answered with status {} and no events", status.as_u16())),
    };
    // A response with a status of success is no error of the client either.
    let status = if status.is_success() { Class::Upstream.status() } else { status };
    failed_stream_event(status, object, endpoint, 0)
}

fn worker_failed(message: String) -> ErrorObject {
    let (kind, code) = (Class::Upstream.kind().to_owned(), Some("worker_failed".to_owned()));
    ErrorObject { message, kind, param: None, code, excess: None }
}

/// Returns an error as the last event of a stream, in the form of the endpoint's dialect.
fn failed_stream_event(status: StatusCode, error: ErrorObject, endpoint: EndpointKind, n_events: u32) -> String {
    let named = |error: String| format!("event: error\ndata: {error}\n\n");
    match endpoint {
        EndpointKind::Messages => {
            let error = anthropic::ErrorBody::new(status.as_u16(), &error.message);
            named(serde_json::to_string(&error).expect("strings have a JSON form"))
        }
        EndpointKind::Responses => {
            let ErrorObject { message, kind, param, code, .. } = error;
            let code = code.unwrap_or(kind);
            let error =
                json!({"type": "error", "code": code, "message": message, "param": param, "sequence_number": n_events});
            named(error.to_string())
        }
        _ => {
            let body = serde_json::to_string(&ErrorBody { error }).expect("strings have a JSON form");
            format!("data: {body}\n\n")
        }
    }
}

impl IntoResponse for RequestError {
    fn into_response(self) -> Response {
        let mut response = self.response();
        if matches!(self, Self::Lookup(LookupError::Host(ModelRefusal::Impossible { .. }))) {
            // The clients of OpenAI and Anthropic would repeat the request twice at once.
            response.headers_mut().insert(SHOULD_RETRY, HeaderValue::from_static("false"));
        }
        response
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use warmpath_common::ids::RequestId;
    use warmpath_router_core::ledger::NoWorker;
    use warmpath_router_core::overload::retry::WorkerFailure;
    use warmpath_shell::body::BodyError;
    use warmpath_shell::dialect_errors::as_anthropic;
    use warmpath_shell::refusal::Refusal;

    use super::*;
    use crate::keys::RateLimited;

    /// Returns every refusal for the moment, with a wait where it has one.
    fn refusals(retry_after: Duration) -> Vec<RequestError> {
        let name = || "team".to_owned();
        let upstream = |last| RequestError::Upstream { n_attempts: 2, last };
        vec![
            RequestError::NoWorker { refusal: NoWorker::counting([]), retry_after },
            RequestError::Paused { retry_after },
            RequestError::QueueFull { waiting_max: 1, retry_after },
            RequestError::QueueLate { seconds: 1.0, retry_after },
            RequestError::RequestsFull { requests_max: 1, retry_after },
            RateLimited::Rate { name: name(), per_minute: 1, retry_after }.into(),
            RateLimited::AtOnce { name: name(), at_once: 1 }.into(),
            Refusal::Body(BodyError::NoRoom).into(),
            LookupError::NoWorkers { n_known: 1, n_connected: 0, name: None }.into(),
            LookupError::Loading { name: None }.into(),
            LookupError::Undeclared { name: None, n_undeclared: 1 }.into(),
            upstream(WorkerFailure::Full),
            upstream(WorkerFailure::Unready),
            upstream(WorkerFailure::Shortage),
            RequestError::ShuttingDown,
        ]
    }

    #[test]
    fn every_refusal_for_the_moment_has_a_retry_after_that_every_client_accepts_in_every_dialect() {
        for wait in [Duration::from_millis(1), Duration::from_secs(3600)] {
            for (idx, error) in refusals(wait).into_iter().enumerate() {
                let text = format!("{error:?}");
                let class = error.class();
                assert!(matches!(class, Class::Overload | Class::Unavailable), "{text}");
                let mut response = error.into_response();
                if idx % 2 == 0 {
                    response = as_anthropic(response, &RequestId::new("a").expect("an id"));
                }
                assert!(matches!(response.status().as_u16(), 429 | 503 | 529), "{text}");
                let seconds = response.headers()["retry-after"].to_str().expect("digits").parse::<u64>();
                assert!((1..=120).contains(&seconds.expect("seconds")), "{text}");
            }
        }
    }
}
