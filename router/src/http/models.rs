//! `/v1/models`: the models of the fleet, under each of their names.

use axum::Json;
use axum::extract::{Path, State};
use serde_json::{Value, json};
use warmpath_router_core::fleet::FleetView;

use super::state::App;
use crate::error::RequestError;

/// Answers with every name that the fleet serves.
pub async fn list(State(app): State<App>) -> Json<Value> {
    let view = app.fleet.view();
    let models: Vec<Value> = view.names().iter().filter_map(|name| describe(&app, &view, name).ok()).collect();
    Json(json!({"object": "list", "data": models}))
}

/// Answers with the model of one name.
pub async fn show(State(app): State<App>, Path(name): Path<String>) -> Result<Json<Value>, RequestError> {
    describe(&app, &app.fleet.view(), &name).map(Json)
}

fn describe(app: &App, view: &FleetView, name: &str) -> Result<Value, RequestError> {
    let model = view.lookup(Some(name))?;
    let n_workers = view.workers.iter().filter(|worker| worker.serves(name)).count();
    Ok(json!({
        "id": name,
        "object": "model",
        "created": app.started_s,
        "owned_by": "warmpath",
        "meta": {
            "fingerprint": model.fingerprint,
            "n_vocab": model.n_vocab,
            "n_ctx": model.context_tokens,
            "n_workers": n_workers,
        },
    }))
}
