//! `/v1/models`: the model under each of its names.

use axum::Json;
use axum::extract::State;
use axum::http::{HeaderMap, Uri};
use serde_json::{Value, json};
use warmpath_common::llama_server;
use warmpath_common::names::is_pattern;
use warmpath_shell::anthropic_models::{self, Listed};
use warmpath_shell::refusal::Name;

use super::state::App;
use crate::app_state::check_model;
use crate::error::RequestError;
use crate::model_kind::CommonState;

/// Responds with every name of the model.
pub async fn list(State(app): State<App>, headers: HeaderMap, uri: Uri) -> Result<Json<Value>, RequestError> {
    let served = app.served()?;
    let common = served.common();
    let names = common.model.all_names().filter(|name| !is_pattern(name));
    if anthropic_models::is_spoken(uri.path(), &headers) {
        let page = anthropic_models::page(&names.map(|name| listed(common, name)).collect::<Vec<_>>(), &uri);
        return page.map(Json).map_err(|error| RequestError::field(error.param, error.to_string()));
    }
    let models: Vec<Value> = names.map(|name| describe(common, &name)).collect();
    Ok(Json(json!({"object": "list", "data": models})))
}

/// Responds with the model under one name.
pub async fn show(
    State(app): State<App>,
    Name(name): Name,
    headers: HeaderMap,
    uri: Uri,
) -> Result<Json<Value>, RequestError> {
    let served = app.served()?;
    let common = served.common();
    check_model(&common.model, Some(&name))?;
    if anthropic_models::is_spoken(uri.path(), &headers) {
        return Ok(Json(anthropic_models::model(&listed(common, name))));
    }
    Ok(Json(describe(common, &name)))
}

fn listed(common: &CommonState, id: String) -> Listed {
    Listed { id, created_s: common.loaded_at_s, context_tokens: common.model.context_tokens }
}

fn describe(common: &CommonState, name: &str) -> Value {
    let model = &common.model;
    json!({
        "id": name,
        "object": "model",
        "parent": model.adapter_named(name).map(|_| &model.names[0]),
        "created": common.loaded_at_s,
        "owned_by": "warmpath",
        "capabilities": model.capabilities,
        "modalities": model.modalities(),
        "architecture": llama_server::architecture(model),
        "status": llama_server::status(),
        "aliases": model.names,
        "meta": {
            "description": common.description,
            "fingerprint": model.fingerprint,
            "n_vocab": model.n_vocab,
            "n_ctx": model.context_tokens,
            "n_ctx_train": model.n_ctx_train,
            "n_embd_out": model.embedding.map(|embedding| embedding.dimensions),
            "pooling": model.embedding.map(|embedding| embedding.pooling),
            "n_params": common.n_params,
            "size": common.model_bytes,
        },
    })
}
