//! `/v1/models`: the model under each of its names.

use axum::Json;
use axum::extract::State;
use serde_json::{Value, json};

use super::name::Name;
use super::state::App;
use crate::error::RequestError;
use crate::served::Base;
use crate::serving::check_model;

/// Answers with every name of the model.
pub async fn list(State(app): State<App>) -> Result<Json<Value>, RequestError> {
    let served = app.served()?;
    let base = served.base();
    let models: Vec<Value> = base.model.all_names().map(|name| describe(base, &name)).collect();
    Ok(Json(json!({"object": "list", "data": models})))
}

/// Answers with the model under one name.
pub async fn show(State(app): State<App>, Name(name): Name) -> Result<Json<Value>, RequestError> {
    let served = app.served()?;
    check_model(served.base().model, Some(&name))?;
    Ok(Json(describe(served.base(), &name)))
}

fn describe(base: Base<'_>, name: &str) -> Value {
    let model = base.model;
    json!({
        "id": name,
        "object": "model",
        "parent": model.adapter_named(name).map(|_| &model.names[0]),
        "created": base.loaded_at_s,
        "owned_by": "warmpath",
        "capabilities": model.capabilities,
        "aliases": model.names,
        "meta": {
            "description": base.description,
            "fingerprint": model.fingerprint,
            "n_vocab": model.n_vocab,
            "n_ctx": model.context_tokens,
            "n_ctx_train": model.n_ctx_train,
            "n_embd_out": model.embedding.map(|embedding| embedding.dimensions),
            "pooling": model.embedding.map(|embedding| embedding.pooling),
            "n_params": base.n_params,
            "size": base.model_bytes,
        },
    })
}
