//! `/v1/models`: the models of the fleet, under each of their names, with the state of those that hosts load on demand.
//!
//! Not here: loads and unloads by hand (`model_orders`), the stream of states (`model_events`).

use std::sync::Arc;
use std::time::Instant;

use axum::extract::{Query, State};
use axum::http::{HeaderMap, Uri};
use axum::{Extension, Json};
use serde::Deserialize;
use serde_json::{Value, json};
use warmpath_common::host::FetchedBytes;
use warmpath_common::model::{Capability, Fingerprint, ModelInfo};
use warmpath_common::names::is_pattern;
use warmpath_router_core::fleet::FleetView;
use warmpath_router_core::hosts::ListedState;
use warmpath_shell::models::{self, ListedModel};
use warmpath_shell::refusal::Name;

use super::model_orders;
use crate::app::App;
use crate::error::RequestError;
use crate::keys::{ApiKey, check_model};

/// Query of a list.
#[derive(Deserialize)]
struct ListQuery {
    reload: Option<String>,
}

/// Responds with every model name in the fleet; with `?reload=1` the hosts read their catalogues before.
pub async fn list(
    State(app): State<App>,
    key: Option<Extension<Arc<ApiKey>>>,
    headers: HeaderMap,
    uri: Uri,
) -> Result<Json<Value>, RequestError> {
    app.first_contact().await?;
    let query = Query::<ListQuery>::try_from_uri(&uri).ok();
    if query.and_then(|Query(query)| query.reload).is_some_and(|reload| reload == "1" || reload == "true") {
        model_orders::reload(&app, key.as_deref()).await?;
    }
    let view = app.fleet.view();
    let names = permitted_names(&view, key.as_deref()).into_iter();
    let entries = names.filter_map(|name| listed(&app, &view, name).ok()).collect();
    Ok(models::list(entries, &headers, &uri)?)
}

/// Responds with the model of one name.
pub async fn show(
    State(app): State<App>,
    key: Option<Extension<Arc<ApiKey>>>,
    Name(name): Name,
    headers: HeaderMap,
    uri: Uri,
) -> Result<Json<Value>, RequestError> {
    app.first_contact().await?;
    check_model(key.as_deref(), &name)?;
    Ok(models::show(listed(&app, &app.fleet.view(), name)?, &headers, &uri))
}

/// Returns the names that lists have for the client with this key.
pub(super) fn permitted_names(view: &FleetView, key: Option<&Arc<ApiKey>>) -> Vec<String> {
    let is_permitted = |name: &String| key.is_none_or(|key| key.may_use(name));
    view.names().into_iter().filter(|name| !is_pattern(name) && is_permitted(name)).collect()
}

pub(super) fn find(view: &FleetView, name: &str) -> Result<Arc<ModelInfo>, RequestError> {
    Ok(view.lookup(Some(name), None, Instant::now())?)
}

/// Returns the state of a listed name: over the hosts that have it in their catalogues, or that of a worker.
pub(super) fn state(view: &FleetView, name: &str) -> ListedState {
    view.hosts.listed_state(name).unwrap_or(ListedState::Loaded)
}

/// Returns llama-server's word for a state.
pub(super) fn status_value(state: ListedState) -> &'static str {
    match state {
        ListedState::Loaded => "loaded",
        ListedState::Loading { .. } => "loading",
        ListedState::Downloading(_) => "downloading",
        ListedState::Unloaded | ListedState::Failed => "unloaded",
    }
}

/// Returns llama-server's `status` of a listed model; `progress` is the share of a load that is done, or the bytes of a
/// download.
fn status(name: &str, state: ListedState) -> Value {
    let mut status = json!({"value": status_value(state)});
    match state {
        ListedState::Loading { progress } => status["progress"] = shown_share(progress),
        ListedState::Downloading(bytes) => status["progress"] = shown_bytes(name, bytes),
        ListedState::Failed => status["failed"] = json!(true),
        ListedState::Loaded | ListedState::Unloaded => {}
    }
    status
}

/// Returns the progress of a download in llama-server's form, with all files of the model as one.
pub(super) fn shown_bytes(name: &str, bytes: FetchedBytes) -> Value {
    json!({name: {"done": bytes.done_bytes, "total": bytes.total_bytes}})
}

/// Returns a share from 0 to 1 with three decimals.
pub(super) fn shown_share(share: f32) -> Value {
    json!(f64::from((share * 1000.0).round()) / 1000.0)
}

/// Returns a model that no worker has loaded, so that little is known of it.
fn unloaded(app: &App, name: String, state: ListedState) -> ListedModel {
    let unknown = ModelInfo::text(Fingerprint([0; 32]), 0, 0, 0, 0);
    let status = status(&name, state);
    let mut entry = ListedModel::new(name, app.started_s, &unknown);
    entry.object["capabilities"] = json!([]);
    entry.object["status"] = status;
    entry.object["meta"] = json!({});
    entry
}

fn listed(app: &App, view: &FleetView, name: String) -> Result<ListedModel, RequestError> {
    let (state, can_remove) = (state(view, &name), view.hosts.removable(&name).next().is_some());
    let mut entry = match find(view, &name) {
        Ok(model) => loaded(app, view, name, state, &model),
        Err(_) if view.hosts.knows(&name) => unloaded(app, name, state),
        Err(error) => return Err(error),
    };
    entry.object["can_remove"] = json!(can_remove);
    Ok(entry)
}

/// Returns a model that a worker has declared.
fn loaded(app: &App, view: &FleetView, name: String, state: ListedState, model: &Arc<ModelInfo>) -> ListedModel {
    let workers: Vec<_> = view.workers.iter().filter_map(|worker| worker.model_of_pool(&name, model)).collect();
    let serving = || workers.iter().copied();
    // One name may stand for both a generating and an embedding model.
    let can = |capability: &Capability| serving().any(|model| model.can(Some(*capability)));
    let capabilities: Vec<Capability> = Capability::ALL.into_iter().filter(can).collect();
    let embedding = serving().find_map(|model| model.embedding);
    let status = status(&name, state);
    let mut entry = ListedModel::new(name, app.started_s, model);
    entry.object["status"] = status;
    entry.object["capabilities"] = json!(capabilities);
    let meta = &mut entry.object["meta"];
    meta["n_embd_out"] = json!(embedding.map(|embedding| embedding.dimensions));
    meta["pooling"] = json!(embedding.map(|embedding| embedding.pooling));
    meta["n_workers"] = json!(workers.len());
    entry
}
