//! The start of a fake worker: at once, only when a test allows it, or loading its model first.

use std::time::Duration;

use axum::Json;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use serde_json::json;
use warmpath_common::summary::Loading;

/// A worker's response to a request for its summary.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Opening {
    /// The summary.
    AtOnce,
    /// None until the script changes.
    Held,
    /// The model is loading, with the names under which it will serve.
    Loading(&'static [&'static str]),
}

/// Returns the worker's refusal, if it refuses; waits as long as the script holds the response back.
pub async fn refusal(opening: impl Fn() -> Opening) -> Option<Response> {
    loop {
        match opening() {
            Opening::AtOnce => return None,
            Opening::Held => tokio::time::sleep(Duration::from_millis(5)).await,
            Opening::Loading(names) => {
                let names = names.iter().map(|&name| name.to_owned()).collect();
                let error = json!({"message": "scripted", "type": "unavailable_error", "code": "model_loading"});
                let body = Json(json!({"error": error, Loading::FIELD: Loading { names, percent: 40 }}));
                return Some((StatusCode::SERVICE_UNAVAILABLE, body).into_response());
            }
        }
    }
}
