//! `/models/load`, `/models/unload` and `?reload=1`: what a person has the hosts do, as in llama-server's router mode.
//!
//! If clients need API keys, these orders need one with `admin`, or the admin listener.
//!
//! Not here: loads that requests demand (`fleet::hosts`).

use std::sync::Arc;
use std::time::Instant;

use axum::body::Bytes;
use axum::extract::{Request, State};
use axum::{Extension, Json};
use serde::Deserialize;
use serde_json::{Value, json};
use warmpath_common::host::{HostSummary, LOAD_PATH, ModelName, RELOAD_PATH, UNLOAD_PATH};
use warmpath_router_core::fleet::LookupError;
use warmpath_router_core::hosts::Autoload;
use warmpath_shell::refusal::Refusal;

use super::context::sender;
use super::models::check_model;
use crate::app::App;
use crate::config::HOST_CALL_TIMEOUT;
use crate::error::RequestError;
use crate::keys::ApiKey;

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
    let view = app.fleet.view();
    if !view.hosts.knows(&name) {
        return Err(unknown(&name, view.names()).into());
    }
    let running: Vec<_> = view.hosts.running(&name).collect();
    if running.is_empty() {
        return Err(RequestError::field("model", format!("the model `{name}` is not running")));
    }
    for prospect in running {
        app.fleet.hosts().post(prospect.host_idx, UNLOAD_PATH, order(&prospect.model.name)).await?;
    }
    Ok(Json(json!({"success": true})))
}

/// Has every host read its catalogue again, and waits until the view has the new ones.
pub(super) async fn reload(app: &App, key: Option<&Arc<ApiKey>>) -> Result<(), RequestError> {
    check_rights(key)?;
    let mut reports = app.fleet.host_reports();
    let n_hosts = app.fleet.view().hosts.hosts.len();
    let orders = (0..n_hosts).map(|host_idx| app.fleet.hosts().post(host_idx, RELOAD_PATH, Bytes::new()));
    let answers = futures::future::try_join_all(orders).await?;
    let numbers: Vec<Option<u64>> = answers
        .iter()
        .map(|answer| serde_json::from_slice::<HostSummary>(answer).ok().map(|summary| summary.sequence))
        .collect();
    let is_in_view = || {
        let view = app.fleet.view();
        view.hosts.hosts.iter().zip(&numbers).all(|(host, number)| {
            let seen = host.summary.as_ref().map(|summary| summary.sequence);
            number.is_none_or(|number| seen >= Some(number))
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
