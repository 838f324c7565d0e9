//! `/v1/models`: the model under each of its names.

use axum::Json;
use axum::extract::{Path, State};
use serde_json::{Value, json};

use super::state::App;
use crate::error::RequestError;
use crate::serving::Serving;

/// Answers with every name of the model.
pub async fn list(State(app): State<App>) -> Result<Json<Value>, RequestError> {
    let serving = app.serving()?;
    let models: Vec<Value> = serving.model.names.iter().map(|name| describe(&serving, name)).collect();
    Ok(Json(json!({"object": "list", "data": models})))
}

/// Answers with the model under one name.
pub async fn show(State(app): State<App>, Path(name): Path<String>) -> Result<Json<Value>, RequestError> {
    let serving = app.serving()?;
    serving.check_model(Some(&name))?;
    Ok(Json(describe(&serving, &name)))
}

fn describe(serving: &Serving, name: &str) -> Value {
    let facts = serving.engine.facts();
    json!({
        "id": name,
        "object": "model",
        "created": serving.loaded_at_s,
        "owned_by": "warmpath",
        "meta": {
            "description": facts.description,
            "fingerprint": serving.model.fingerprint,
            "n_vocab": facts.n_vocab,
            "n_ctx": facts.context_tokens,
            "n_ctx_train": facts.n_ctx_train,
            "n_params": facts.n_params,
            "size": facts.model_bytes,
        },
    })
}
