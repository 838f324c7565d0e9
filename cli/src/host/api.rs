//! The HTTP interface of a host, for routers, and for people of the same machine.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use axum::extract::rejection::JsonRejection;
use axum::extract::{DefaultBodyLimit, Request, State};
use axum::http::header::CONTENT_TYPE;
use axum::http::{Method, Uri};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::sse::{Event, KeepAlive, Sse};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use futures::{Stream, StreamExt as _};
use tokio::sync::{mpsc, oneshot, watch};
use tokio_stream::wrappers::WatchStream;
use tokio_util::sync::CancellationToken;
use warmpath_common::host::{
    DEMAND_PATH, DOWNLOAD_PATH, Demand, EVENTS_PATH, HostModel, HostSummary, LOAD_PATH, ModelName, ModelState,
    RELOAD_PATH, REMOVE_PATH, SUMMARY_PATH, UNLOAD_PATH,
};
use warmpath_shell::bearer;
use warmpath_shell::fleet_token::FleetTokens;
use warmpath_shell::hosts::AllowedHosts;
use warmpath_shell::refusal::Refusal;

use super::error::HostError;
use super::owner::{Request as OwnerRequest, Wish};

/// Longest body. Source: own choice: a demand has some hundred bytes.
const BODY_BYTES_MAX: usize = 64 << 10;
/// Silence of a stream after which it has a comment, so that a router notices a host that is gone. Source: as a
/// worker's stream of tokens.
const KEEP_ALIVE: Duration = Duration::from_secs(5);

/// Path that answers while the host runs, without a token.
const LIVEZ_PATH: &str = "/livez";
/// Path of the metrics, without a token, as a worker's.
const METRICS_PATH: &str = "/metrics";

/// What the handlers use.
#[derive(Clone)]
pub struct Api {
    /// The owner of the models.
    pub owner: mpsc::Sender<OwnerRequest>,
    /// Its last summary.
    pub summary: watch::Receiver<Arc<HostSummary>>,
    /// Names by which clients may address the host.
    pub hosts: AllowedHosts,
    /// Tokens of which every request needs one; `None` for none.
    pub tokens: Option<Arc<FleetTokens>>,
    /// Cancelled when streams must end.
    pub ends: CancellationToken,
}

type JsonBody<T> = Result<Json<T>, JsonRejection>;

/// Returns the routes of a host.
pub fn routes(api: Api) -> Router {
    Router::new()
        .route(SUMMARY_PATH, get(summary))
        .route(EVENTS_PATH, get(events))
        .route(DEMAND_PATH, post(demand))
        .route(LOAD_PATH, post(load))
        .route(UNLOAD_PATH, post(unload))
        .route(DOWNLOAD_PATH, post(download))
        .route(REMOVE_PATH, post(remove))
        .route(RELOAD_PATH, post(reload))
        .route(LIVEZ_PATH, get(async || "ok"))
        .route(METRICS_PATH, get(metrics))
        .fallback(async |uri: Uri| HostError::from(Refusal::path(&uri)))
        .method_not_allowed_fallback(async |uri: Uri, method: Method| HostError::from(Refusal::method(&uri, &method)))
        .layer(DefaultBodyLimit::max(BODY_BYTES_MAX))
        .layer(from_fn_with_state(api.clone(), check_access))
        .with_state(api)
}

/// Passes a request on if its host is allowed, since a web page of another site could reach the loopback interface, and
/// its token is valid.
async fn check_access(State(api): State<Api>, request: Request, next: Next) -> Result<Response, HostError> {
    api.hosts.check(&request).map_err(Refusal::from)?;
    let is_probe = [LIVEZ_PATH, METRICS_PATH].contains(&request.uri().path());
    let is_known = |tokens: &Arc<FleetTokens>| bearer::presented(request.headers()).is_some_and(|t| tokens.accept(t));
    if !is_probe && !api.tokens.as_ref().is_none_or(is_known) {
        return Err(HostError::Unauthorized);
    }
    Ok(next.run(request).await)
}

async fn summary(State(api): State<Api>) -> Result<Json<HostSummary>, HostError> {
    let (sender, receiver) = oneshot::channel();
    ask(&api, OwnerRequest::Summary(sender), receiver).await.map(Json)
}

async fn metrics(State(api): State<Api>) -> Result<impl IntoResponse, HostError> {
    let (sender, receiver) = oneshot::channel();
    let text = ask(&api, OwnerRequest::Metrics(sender), receiver).await?;
    Ok(([(CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")], text))
}

async fn events(State(api): State<Api>) -> Sse<impl Stream<Item = Result<Event, Infallible>>> {
    let event = |summary: Arc<HostSummary>| {
        let text = serde_json::to_string(&*summary).expect("a summary has a JSON form");
        Ok(Event::default().data(text))
    };
    let summaries = WatchStream::new(api.summary).map(event).take_until(api.ends.cancelled_owned());
    Sse::new(summaries).keep_alive(KeepAlive::new().interval(KEEP_ALIVE))
}

async fn demand(State(api): State<Api>, body: JsonBody<Demand>) -> Result<Json<HostModel>, HostError> {
    let demand = parsed(body)?;
    wish(&api, demand.model.clone(), Wish::Demand(demand)).await
}

async fn load(State(api): State<Api>, body: JsonBody<ModelName>) -> Result<Json<HostModel>, HostError> {
    let model = wish(&api, parsed(body)?.model, Wish::Load).await?;
    let Json(HostModel { name, state, .. }) = &model;
    match state {
        ModelState::Impossible { reason, .. } => {
            Err(HostError::ModelImpossible { model: name.clone(), reason: reason.clone() })
        }
        _ => Ok(model),
    }
}

async fn unload(State(api): State<Api>, body: JsonBody<ModelName>) -> Result<Json<HostModel>, HostError> {
    wish(&api, parsed(body)?.model, Wish::Unload).await
}

async fn download(State(api): State<Api>, body: JsonBody<ModelName>) -> Result<Json<HostSummary>, HostError> {
    let (sender, receiver) = oneshot::channel();
    let order = OwnerRequest::Download { name: parsed(body)?.model, reply: sender };
    ask(&api, order, receiver).await?.map(Json)
}

async fn remove(State(api): State<Api>, body: JsonBody<ModelName>) -> Result<Json<HostSummary>, HostError> {
    let (sender, receiver) = oneshot::channel();
    let order = OwnerRequest::Remove { name: parsed(body)?.model, reply: sender };
    ask(&api, order, receiver).await?.map(Json)
}

async fn reload(State(api): State<Api>) -> Result<Json<HostSummary>, HostError> {
    let (sender, receiver) = oneshot::channel();
    ask(&api, OwnerRequest::Reload(sender), receiver).await?.map(Json)
}

async fn wish(api: &Api, model: String, wish: Wish) -> Result<Json<HostModel>, HostError> {
    let (sender, receiver) = oneshot::channel();
    let request = OwnerRequest::Model { name: model.clone(), wish, reply: sender };
    ask(api, request, receiver).await?.map(Json).ok_or(HostError::ModelUnknown { model })
}

async fn ask<T>(api: &Api, request: OwnerRequest, reply: oneshot::Receiver<T>) -> Result<T, HostError> {
    api.owner.send(request).await.map_err(|_| HostError::Ending)?;
    reply.await.map_err(|_| HostError::Ending)
}

fn parsed<T>(body: JsonBody<T>) -> Result<T, HostError> {
    body.map(|Json(value)| value).map_err(|rejection| HostError::Body { reason: rejection.body_text() })
}
