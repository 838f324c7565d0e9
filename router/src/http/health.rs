//! Whether the router lives and can serve.

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use serde_json::json;

use super::state::App;

/// Answers that the process lives.
pub async fn livez() -> Json<serde_json::Value> {
    Json(json!({"status": "ok"}))
}

/// Answers whether clients should be sent here, and if not, why.
pub async fn readyz(State(app): State<App>) -> Response {
    match app.unready() {
        None => Json(json!({"status": "ok"})).into_response(),
        Some(reason) => {
            (StatusCode::SERVICE_UNAVAILABLE, Json(json!({"status": "unready", "reason": reason}))).into_response()
        }
    }
}

/// Answers as llama-server does.
pub async fn health(State(app): State<App>) -> Response {
    match app.unready() {
        None => Json(json!({"status": "ok"})).into_response(),
        Some(reason) => {
            let error = json!({"error": {"code": 503, "message": reason, "type": "unavailable_error"}});
            (StatusCode::SERVICE_UNAVAILABLE, Json(error)).into_response()
        }
    }
}
