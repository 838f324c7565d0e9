//! `/models/load`, `/models/unload`, `POST` and `DELETE /models`, and `?reload=1`: what a person has the hosts do, as
//! in llama-server's router mode.
//!
//! If clients need API keys, these orders need one with `admin`, or the admin listener.
//!
//! Not here: loads that requests demand (`fleet::hosts`).

use std::sync::Arc;
use std::time::Instant;

use axum::body::Bytes;
use axum::extract::{Query, Request, State};
use axum::http::Uri;
use axum::{Extension, Json};
use serde::Deserialize;
use serde_json::{Value, json};
use warmpath_common::host::{DOWNLOAD_PATH, HostSummary, LOAD_PATH, ModelName, RELOAD_PATH, REMOVE_PATH, UNLOAD_PATH};
use warmpath_router_core::fleet::LookupError;
use warmpath_router_core::hosts::Autoload;
use warmpath_shell::refusal::Refusal;

use super::context::sender;
use crate::app::App;
use crate::config::HOST_CALL_TIMEOUT;
use crate::error::RequestError;
use crate::keys::{ApiKey, check_model};

/// The body of an order.
#[derive(Deserialize)]
struct Order {
    model: String,
}

/// Has the best host load a model; responds once the host has accepted that.
pub async fn load(
    State(app): State<App>,
    key: Option<Extension<Arc<ApiKey>>>,
    request: Request,
) -> Result<Json<Value>, RequestError> {
    let name = ordered_name(&app, key.as_deref(), request).await?;
    let (view, now) = (app.fleet.view(), Instant::now());
    if view.hosts.running(&name).next().is_some() {
        return Err(RequestError::field("model", format!("the model `{name}` is already running")));
    }
    let Some(prospect) = view.demanded(Some(&name), Autoload::On, now, &[]) else {
        let refusal = view.host_refusal(Some(&name), Autoload::On, now).map(LookupError::from);
        return Err(refusal.unwrap_or_else(|| unknown(&name, view.names())).into());
    };
    let order = order(&prospect.model.name);
    app.fleet.hosts().post(prospect.host_idx, LOAD_PATH, order).await?;
    Ok(Json(json!({"success": true})))
}

/// Has every host that runs a model unload it, once its running answers have ended.
pub async fn unload(
    State(app): State<App>,
    key: Option<Extension<Arc<ApiKey>>>,
    request: Request,
) -> Result<Json<Value>, RequestError> {
    let name = ordered_name(&app, key.as_deref(), request).await?;
    unload_everywhere(&app, &name).await?;
    Ok(Json(json!({"success": true})))
}

/// Has every host that runs a model unload it; the client's rights are checked before ([`check_rights`]).
///
/// Errors: `Lookup` if no catalogue has it, `Field` if none runs it, `HostCall`.
pub(super) async fn unload_everywhere(app: &App, name: &str) -> Result<(), RequestError> {
    let view = app.fleet.view();
    if !view.hosts.knows(name) {
        return Err(unknown(name, view.names()).into());
    }
    let running: Vec<_> = view.hosts.running(name).collect();
    if running.is_empty() {
        return Err(RequestError::field("model", format!("the model `{name}` is not running")));
    }
    for prospect in running {
        app.fleet.hosts().post(prospect.host_idx, UNLOAD_PATH, order(&prospect.model.name)).await?;
    }
    Ok(())
}

/// Has a host download a model of Hugging Face; responds once the download has begun and the model is listed.
pub async fn download(
    State(app): State<App>,
    key: Option<Extension<Arc<ApiKey>>>,
    request: Request,
) -> Result<Json<Value>, RequestError> {
    let name = ordered_name(&app, key.as_deref(), request).await?;
    let Some(host_idx) = app.fleet.view().hosts.for_download(&name) else {
        return Err(RequestError::field("model", "there is no host that could download a model"));
    };
    tell(&app, DOWNLOAD_PATH, order(&name), [host_idx]).await?;
    Ok(Json(json!({"success": true})))
}

/// Query of a removal.
#[derive(Deserialize)]
struct RemovalQuery {
    #[serde(default)]
    model: String,
}

/// Has the hosts that have downloaded a model remove it with its files; responds once the model is gone.
pub async fn remove(
    State(app): State<App>,
    key: Option<Extension<Arc<ApiKey>>>,
    uri: Uri,
) -> Result<Json<Value>, RequestError> {
    check_rights(key.as_deref())?;
    let query = Query::<RemovalQuery>::try_from_uri(&uri);
    let Query(RemovalQuery { model: name }) = query.map_err(|error| RequestError::field("model", error.body_text()))?;
    check_model(key.as_deref(), &name)?;
    app.first_contact().await?;
    let view = app.fleet.view();
    let host_idxs: Vec<usize> = view.hosts.removable(&name).map(|prospect| prospect.host_idx).collect();
    if host_idxs.is_empty() {
        if view.names().contains(&name) {
            let reason = format!("the model `{name}` cannot be removed: no order has downloaded it");
            return Err(RequestError::field("model", reason));
        }
        return Err(unknown(&name, view.names()).into());
    }
    tell(&app, REMOVE_PATH, order(&name), host_idxs).await?;
    Ok(Json(json!({"success": true})))
}

/// Has every host read its catalogue again.
pub(super) async fn reload(app: &App, key: Option<&Arc<ApiKey>>) -> Result<(), RequestError> {
    check_rights(key)?;
    let n_hosts = app.fleet.view().hosts.hosts.len();
    tell(app, RELOAD_PATH, Bytes::new(), 0..n_hosts).await
}

/// Posts an order that changes catalogues to some hosts, and waits until the view has their new ones.
async fn tell(
    app: &App,
    path: &str,
    order: Bytes,
    host_idxs: impl IntoIterator<Item = usize>,
) -> Result<(), RequestError> {
    let mut reports = app.fleet.host_reports();
    let orders = host_idxs.into_iter().map(|host_idx| {
        let answer = app.fleet.hosts().post(host_idx, path, order.clone());
        async move { answer.await.map(|answer| (host_idx, serde_json::from_slice::<HostSummary>(&answer).ok())) }
    });
    let answers = futures::future::try_join_all(orders).await?;
    let is_in_view = || {
        let view = app.fleet.view();
        answers.iter().all(|(host_idx, answer)| {
            let sequence = |summary: &HostSummary| summary.sequence;
            let sequence_seen = view.hosts.hosts[*host_idx].summary.as_deref().map(sequence);
            answer.as_ref().is_none_or(|answer| sequence_seen >= Some(answer.sequence))
        })
    };
    let all = async { while !is_in_view() && reports.changed().await.is_ok() {} };
    // Otherwise the list is the last one, as while a host is down.
    let _ = tokio::time::timeout(HOST_CALL_TIMEOUT, app.unless_draining(all)).await;
    Ok(())
}

fn order(model: &str) -> Bytes {
    serde_json::to_vec(&ModelName { model: model.to_owned() }).expect("a name has a JSON form").into()
}

/// Returns the model that the body of an order names.
async fn ordered_name(app: &App, key: Option<&Arc<ApiKey>>, request: Request) -> Result<String, RequestError> {
    check_rights(key)?;
    let (mut parts, body) = request.into_parts();
    let sender = sender(&parts, key.map(Arc::as_ref));
    let body = app.bodies.read(&mut parts.headers, body, sender).await.map_err(Refusal::from)?;
    let order: Order = serde_json::from_slice(&body)
        .map_err(|_| RequestError::field("model", "the body must be a JSON object with the `model`, a text"))?;
    check_model(key, &order.model)?;
    app.first_contact().await?;
    Ok(order.model)
}

/// Checks that a key, if one is required, may give orders.
///
/// Errors: `AdminKey`.
pub(super) fn check_rights(key: Option<&Arc<ApiKey>>) -> Result<(), RequestError> {
    if key.is_some_and(|key| !key.is_admin()) { Err(RequestError::AdminKey) } else { Ok(()) }
}

fn unknown(name: &str, known: Vec<String>) -> LookupError {
    LookupError::Unknown { name: name.to_owned(), known }
}
