//! Whether the router lives and can serve.
//!
//! Not here: why it cannot (`fleet`). Operators are told which worker stands where, clients only how many.

use axum::extract::State;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use axum::{Json, Router};
use serde_json::json;

use super::state::App;
use crate::fleet::Unready;

/// Those who are told.
#[derive(Debug, Clone, Copy)]
pub enum Audience {
    /// Everybody who reaches the public listener.
    Clients,
    /// Everybody who reaches the admin listener.
    Operators,
}

impl Audience {
    fn reason(self, unready: Unready) -> String {
        match self {
            Self::Clients => unready.for_clients,
            Self::Operators => unready.for_operators,
        }
    }
}

/// Returns the paths that say how the router is.
pub fn routes(audience: Audience) -> Router<App> {
    Router::new()
        .route("/health", get(move |state| health(state, audience)))
        .route("/livez", get(livez))
        .route("/readyz", get(move |state| readyz(state, audience)))
}

/// Answers that the process lives.
async fn livez() -> Json<serde_json::Value> {
    Json(json!({"status": "ok"}))
}

/// Answers whether clients should be sent here, and if not, why.
async fn readyz(State(app): State<App>, audience: Audience) -> Response {
    match app.unready() {
        None => Json(json!({"status": "ok"})).into_response(),
        Some(unready) => {
            let body = json!({"status": "unready", "reason": audience.reason(unready)});
            (StatusCode::SERVICE_UNAVAILABLE, Json(body)).into_response()
        }
    }
}

/// Answers as llama-server does.
async fn health(State(app): State<App>, audience: Audience) -> Response {
    match app.unready() {
        None => Json(json!({"status": "ok"})).into_response(),
        Some(unready) => {
            let message = audience.reason(unready);
            let error = json!({"error": {"code": 503, "message": message, "type": "unavailable_error"}});
            (StatusCode::SERVICE_UNAVAILABLE, Json(error)).into_response()
        }
    }
}
