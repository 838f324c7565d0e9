//! `/lora-adapters`: the loaded adapters and their scales, in llama-server's fields.
//!
//! The default adapter is part of a worker's declaration to routers, and workers with the same model name must have the
//! same one. So it can only be set when a worker starts. For another adapter, a client names it in the request.

use axum::Json;
use axum::extract::State;
use serde_json::{Value, json};
use warmpath_common::lora::{RequestedAdapter, Scale, chosen};

use crate::app::App;
use crate::error::RequestError;
use crate::http::body::Body;

/// Responds with every adapter; `scale` is the scale in requests that name no adapter.
pub async fn list(State(app): State<App>) -> Result<Json<Value>, RequestError> {
    let generator = app.generator()?;
    let model = &generator.common.model;
    let in_force = |id: usize| {
        model
            .adapter_in_force
            .filter(|adapter_in_force| usize::from(adapter_in_force.adapter) == id)
            .map_or(Scale::ZERO, |adapter_in_force| adapter_in_force.scale)
    };
    let files = &generator.adapter_files;
    let describe = |(id, adapter): (usize, &warmpath_common::lora::AdapterInfo)| {
        json!({
            "id": id,
            "path": files.get(id),
            "scale": in_force(id),
            "name": adapter.name,
            "named_scale": adapter.scale,
            "fingerprint": adapter.fingerprint,
        })
    };
    Ok(Json(model.adapters.iter().enumerate().map(describe).collect()))
}

/// Accepts scales that are already in force, and refuses others.
pub async fn set(State(app): State<App>, body: Body) -> Result<Json<Value>, RequestError> {
    let generator = app.open_generator()?;
    let requested_adapters: Vec<RequestedAdapter> = body.parse_list()?;
    if chosen(generator.common.model.adapters.len(), &requested_adapters)? != generator.common.model.adapter_in_force {
        let what = "changing the default adapter of a running worker";
        return Err(RequestError::NotEnabled {
            what,
            flag: "--lora-scaled, or set `lora` or MODEL:NAME in the request",
        });
    }
    Ok(Json(json!({"success": true})))
}
