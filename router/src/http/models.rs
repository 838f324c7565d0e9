//! `/v1/models`: the models of the fleet, under each of their names.

use std::sync::Arc;
use std::time::Instant;

use axum::Json;
use axum::extract::State;
use axum::http::{HeaderMap, Uri};
use serde_json::{Value, json};
use warmpath_common::model::{Capability, ModelInfo};
use warmpath_common::names::is_pattern;
use warmpath_router_core::fleet::FleetView;
use warmpath_shell::models::{self, ListedModel};
use warmpath_shell::refusal::Name;

use crate::app::App;
use crate::error::RequestError;

/// Responds with every model name in the fleet.
pub async fn list(State(app): State<App>, headers: HeaderMap, uri: Uri) -> Result<Json<Value>, RequestError> {
    app.first_contact().await?;
    let view = app.fleet.view();
    let names = view.names().into_iter().filter(|name| !is_pattern(name));
    let listed = names.filter_map(|name| listed(&app, &view, name).ok()).collect();
    Ok(models::list(listed, &headers, &uri)?)
}

/// Responds with the model of one name.
pub async fn show(
    State(app): State<App>,
    Name(name): Name,
    headers: HeaderMap,
    uri: Uri,
) -> Result<Json<Value>, RequestError> {
    app.first_contact().await?;
    Ok(models::show(listed(&app, &app.fleet.view(), name)?, &headers, &uri))
}

pub(super) fn find(view: &FleetView, name: &str) -> Result<Arc<ModelInfo>, RequestError> {
    Ok(view.lookup(Some(name), None, Instant::now())?)
}

fn listed(app: &App, view: &FleetView, name: String) -> Result<ListedModel, RequestError> {
    let model = find(view, &name)?;
    let workers: Vec<_> = view.workers.iter().filter_map(|worker| worker.model_of_pool(&name, &model)).collect();
    let serving = || workers.iter().copied();
    // One name may stand for both a generating and an embedding model.
    let can = |capability: &Capability| serving().any(|model| model.can(Some(*capability)));
    let capabilities: Vec<Capability> = Capability::ALL.into_iter().filter(can).collect();
    let embedding = serving().find_map(|model| model.embedding);
    let mut listed = ListedModel::new(name, app.started_s, &model);
    listed.object["capabilities"] = json!(capabilities);
    let meta = &mut listed.object["meta"];
    meta["n_embd_out"] = json!(embedding.map(|embedding| embedding.dimensions));
    meta["pooling"] = json!(embedding.map(|embedding| embedding.pooling));
    meta["n_workers"] = json!(workers.len());
    Ok(listed)
}
