//! Liveness and readiness of the worker, and its metrics.

use axum::Json;
use axum::extract::State;
use axum::http::{HeaderName, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde_json::json;
use warmpath_shell::metrics::server_text;

use crate::app::App;
use crate::app::Phase;
use crate::error::RequestError;

/// Responds to `/livez`: the process serves HTTP.
pub async fn livez() -> Response {
    Json(json!({"status": "ok"})).into_response()
}

/// Responds to `/readyz`: requests are accepted; otherwise the reason and the loaded share of the model.
pub async fn readyz(State(app): State<App>) -> Response {
    let (status, progress) = match &*app.phase.borrow() {
        Phase::Ready(_) => return Json(json!({"status": "ok"})).into_response(),
        Phase::Downloading { percent } => ("downloading", f64::from(*percent) / 100.0),
        Phase::Loading { percent } => ("loading", f64::from(*percent) / 100.0),
        Phase::Draining(_) => ("draining", 1.0),
    };
    (StatusCode::SERVICE_UNAVAILABLE, Json(json!({"status": status, "progress": progress}))).into_response()
}

/// Responds to `/health` like llama-server: 200 when ready, otherwise 503 with an error object.
pub async fn health(State(app): State<App>) -> Result<Response, RequestError> {
    app.open_model()?;
    Ok(Json(json!({"status": "ok"})).into_response())
}

/// Header with the start time of the process, for scrapers of llama-server.
const PROCESS_START_TIME: HeaderName = HeaderName::from_static("process-start-time-unix");

/// Responds to `/metrics` in Prometheus' text format, with the engine's counters also under llama-server's names.
pub async fn metrics(State(app): State<App>) -> Response {
    let as_llama_server = app.loaded_model().map(|loaded_model| {
        let (counters, cache) = loaded_model.counted();
        app.metrics.copy_engine(&counters, &cache)
    });
    let of_server = server_text("warmpath_worker", &app.connections, &app.bodies.room, &app.tracer);
    let headers =
        [(header::CONTENT_TYPE, prometheus::TEXT_FORMAT.to_owned()), (PROCESS_START_TIME, app.started_s.to_string())];
    (headers, app.metrics.encode() + &of_server + &as_llama_server.unwrap_or_default()).into_response()
}
