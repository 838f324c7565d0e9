//! `/v1/models`: the models of the fleet, under each of their names.

use std::time::Instant;

use axum::Json;
use axum::extract::State;
use serde_json::{Value, json};
use warmpath_common::model::Capability;
use warmpath_router_core::fleet::FleetView;

use super::name::Name;
use super::state::App;
use crate::error::RequestError;

/// Answers with every name that the fleet serves.
pub async fn list(State(app): State<App>) -> Result<Json<Value>, RequestError> {
    app.first_look().await?;
    let view = app.fleet.view();
    let models: Vec<Value> = view.names().iter().filter_map(|name| describe(&app, &view, name).ok()).collect();
    Ok(Json(json!({"object": "list", "data": models})))
}

/// Answers with the model of one name.
pub async fn show(State(app): State<App>, Name(name): Name) -> Result<Json<Value>, RequestError> {
    app.first_look().await?;
    describe(&app, &app.fleet.view(), &name).map(Json)
}

fn describe(app: &App, view: &FleetView, name: &str) -> Result<Value, RequestError> {
    let model = view.lookup(Some(name), None, Instant::now())?;
    let workers: Vec<_> = view.workers.iter().filter_map(|worker| worker.model_named(name)).collect();
    let serving = || workers.iter().copied();
    // One name may stand for a model that generates and one that embeds.
    let can = |capability: &Capability| serving().any(|model| model.can(Some(*capability)));
    let capabilities: Vec<Capability> = Capability::ALL.into_iter().filter(can).collect();
    let embedding = serving().find_map(|model| model.embedding);
    Ok(json!({
        "id": name,
        "object": "model",
        "parent": model.adapter_named(name).map(|_| &model.names[0]),
        "created": app.started_s,
        "owned_by": "warmpath",
        "capabilities": capabilities,
        "meta": {
            "fingerprint": model.fingerprint,
            "n_vocab": model.n_vocab,
            "n_ctx": model.context_tokens,
            "n_ctx_train": model.n_ctx_train,
            "n_embd_out": embedding.map(|embedding| embedding.dimensions),
            "pooling": embedding.map(|embedding| embedding.pooling),
            "n_workers": workers.len(),
        },
    }))
}
