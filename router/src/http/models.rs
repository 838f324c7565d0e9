//! `/v1/models`: the models of the fleet, under each of their names.

use std::sync::Arc;
use std::time::Instant;

use axum::Json;
use axum::extract::State;
use axum::http::{HeaderMap, Uri};
use serde_json::{Value, json};
use warmpath_common::llama_server;
use warmpath_common::model::{Capability, ModelInfo};
use warmpath_common::names::is_pattern;
use warmpath_router_core::fleet::FleetView;
use warmpath_shell::anthropic_models::{self, Listed};
use warmpath_shell::refusal::Name;

use crate::app::App;
use crate::error::RequestError;

/// Responds with every model name in the fleet.
pub async fn list(State(app): State<App>, headers: HeaderMap, uri: Uri) -> Result<Json<Value>, RequestError> {
    app.first_contact().await?;
    let view = app.fleet.view();
    let names: Vec<String> = view.names().into_iter().filter(|name| !is_pattern(name)).collect();
    if anthropic_models::is_spoken(uri.path(), &headers) {
        let models = names.into_iter().filter_map(|name| Some(listed(&app, &*find(&view, &name).ok()?, name)));
        let page = anthropic_models::page(&models.collect::<Vec<_>>(), &uri);
        return page.map(Json).map_err(|error| RequestError::field(error.param, error.to_string()));
    }
    let models: Vec<Value> = names.iter().filter_map(|name| describe(&app, &view, name).ok()).collect();
    Ok(Json(json!({"object": "list", "data": models})))
}

/// Responds with the model of one name.
pub async fn show(
    State(app): State<App>,
    Name(name): Name,
    headers: HeaderMap,
    uri: Uri,
) -> Result<Json<Value>, RequestError> {
    app.first_contact().await?;
    let view = app.fleet.view();
    if anthropic_models::is_spoken(uri.path(), &headers) {
        let model = find(&view, &name)?;
        return Ok(Json(anthropic_models::model(&listed(&app, &model, name))));
    }
    describe(&app, &view, &name).map(Json)
}

pub(super) fn find(view: &FleetView, name: &str) -> Result<Arc<ModelInfo>, RequestError> {
    Ok(view.lookup(Some(name), None, Instant::now())?)
}

fn listed(app: &App, model: &ModelInfo, id: String) -> Listed {
    Listed { id, created_s: app.started_s, context_tokens: model.context_tokens }
}

fn describe(app: &App, view: &FleetView, name: &str) -> Result<Value, RequestError> {
    let model = find(view, name)?;
    let workers: Vec<_> = view.workers.iter().filter_map(|worker| worker.model_of_pool(name, &model)).collect();
    let serving = || workers.iter().copied();
    // One name may stand for both a generating and an embedding model.
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
        "modalities": model.modalities(),
        "architecture": llama_server::architecture(&model),
        "status": llama_server::status(),
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
