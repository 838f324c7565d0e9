//! Liveness and readiness of the router.
//!
//! Operators see each worker's address and state, clients only how many there are. Not here: the reasons (`fleet`).

use axum::extract::State;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use axum::{Json, Router};
use serde_json::json;

use crate::app::App;
use crate::fleet::Unready;

/// Paths of the health routes, which are not counted as requests: load balancers ask for them all the time, and a 503
/// there is no failed request.
pub const PROBES: [&str; 4] = ["/health", "/v1/health", "/livez", "/readyz"];

/// Audience of a health endpoint.
#[derive(Debug, Clone, Copy)]
pub enum Audience {
    /// Everyone who can reach the public listener.
    Clients,
    /// Everyone who can reach the admin listener.
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

/// Returns the health routes.
pub fn routes(audience: Audience) -> Router<App> {
    Router::new()
        .route("/health", get(move |state| health(state, audience)))
        // An alias that llama-server's clients use.
        .route("/v1/health", get(move |state| health(state, audience)))
        .route("/livez", get(livez))
        .route("/readyz", get(move |state| readyz(state, audience)))
}

/// Responds that the process is alive.
async fn livez() -> Json<serde_json::Value> {
    Json(json!({"status": "ok"}))
}

/// Responds whether the router is ready for clients, and the reason if not.
async fn readyz(State(app): State<App>, audience: Audience) -> Response {
    match app.unready_for_clients() {
        None => Json(json!({"status": "ok"})).into_response(),
        Some(unready) => {
            let body = json!({"status": "unready", "reason": audience.reason(unready)});
            (StatusCode::SERVICE_UNAVAILABLE, Json(body)).into_response()
        }
    }
}

/// Responds like llama-server.
async fn health(State(app): State<App>, audience: Audience) -> Response {
    match app.unready_for_clients() {
        None => Json(json!({"status": "ok"})).into_response(),
        Some(unready) => {
            let message = audience.reason(unready);
            let error = json!({"error": {"code": 503, "message": message, "type": "unavailable_error"}});
            (StatusCode::SERVICE_UNAVAILABLE, Json(error)).into_response()
        }
    }
}
