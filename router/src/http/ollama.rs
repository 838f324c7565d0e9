//! Ollama's API: a request becomes one of OpenAI's API before its way through the router, and its answer is converted
//! behind it. So its queue, routing, reuse, retries and failover are those of every request.
//!
//! Not here: the conversions (`warmpath_common::dialects::ollama`, `warmpath_router_core::ollama`).

mod lines;
pub mod models;
mod times;

use std::sync::Arc;

use axum::body::{Bytes, to_bytes};
use axum::extract::{Request, State};
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::{Extension, Json};
use serde_json::json;
use warmpath_common::dialects::DialectError;
use warmpath_common::dialects::ollama::{self, OllamaRequest, OllamaTask};
use warmpath_router_core::fleet::FleetView;
use warmpath_router_core::ollama::{AnswerWriter, error, vectors};
use warmpath_router_core::overload::retry::WorkerFailure;
use warmpath_shell::body::BodyRoom;
use warmpath_shell::event_stream;
use warmpath_shell::refusal::{Refusal, respelled};
use warmpath_shell::timestamps;

use super::completions::ReceivedRequest;
use super::context::RequestContext;
use super::model_orders::{check_rights, unload_everywhere};
use super::models::find;
use crate::app::App;
use crate::endpoint::EndpointKind;
use crate::error::RequestError;
use crate::keys::{ApiKey, check_model};
use times::AnswerTimes;

/// Longest answer in one piece that is converted. Units: bytes.
///
/// Source: 2,048 texts of 2,048 dimensions, some 12 bytes a number, fit into it.
const ANSWER_BYTES_MAX: usize = 64 << 20;

/// Longest error of a server. Units: bytes. Source: own choice: one that repeats a schema has kilobytes.
const ERROR_BYTES_MAX: usize = 256 << 10;

/// Type of a stream of lines.
const LINES: HeaderValue = HeaderValue::from_static("application/x-ndjson");

/// Converter of a body.
type Convert = fn(&[u8]) -> Result<OllamaRequest, DialectError>;

/// Responds to a chat.
pub async fn chat(
    State(app): State<App>,
    Extension(context): Extension<RequestContext>,
    request: Request,
) -> Result<Response, RequestError> {
    answer(app, context, request, ollama::chat).await
}

/// Responds to a prompt.
pub async fn generate(
    State(app): State<App>,
    Extension(context): Extension<RequestContext>,
    request: Request,
) -> Result<Response, RequestError> {
    answer(app, context, request, ollama::generate).await
}

/// Responds with vectors of texts.
pub async fn embed(
    State(app): State<App>,
    Extension(context): Extension<RequestContext>,
    request: Request,
) -> Result<Response, RequestError> {
    answer(app, context, request, ollama::embed).await
}

/// Responds with the vector of a text.
pub async fn embeddings(
    State(app): State<App>,
    Extension(context): Extension<RequestContext>,
    request: Request,
) -> Result<Response, RequestError> {
    answer(app, context, request, ollama::embeddings).await
}

async fn answer(
    app: App,
    context: RequestContext,
    request: Request,
    convert: Convert,
) -> Result<Response, RequestError> {
    let mut received_request = ReceivedRequest::read(&app, context, request).await?;
    app.first_contact().await?;
    // The converted request takes the place of the body, also in the account of memory.
    let body = std::mem::take(&mut received_request.body);
    let view = app.fleet.view();
    let n_bytes = body.len();
    let read = move || {
        let mut ollama_request = convert(&body)?;
        let name = ollama_request.model.as_deref().map(|name| served_name(&view, name).to_owned());
        let body = ollama_request.take_body(name.as_deref());
        Ok::<_, DialectError>((ollama_request, name, Bytes::from(body)))
    };
    let (ollama_request, name, body) = app.preparing.on_body(n_bytes, read).await??;
    let (endpoint, path, body) = match ollama_request.task {
        OllamaTask::Chat => (EndpointKind::Chat, "/v1/chat/completions", body),
        OllamaTask::Completion => (EndpointKind::Completion, "/v1/completions", body),
        OllamaTask::Embeddings => (EndpointKind::Embeddings, "/v1/embeddings", body),
        // Any request that needs the model loads it.
        OllamaTask::Load => {
            let nothing = json!({"model": name, "content": ""}).to_string();
            (EndpointKind::Passthrough(None), "/tokenize", nothing.into())
        }
        OllamaTask::Unload => return unload(app, received_request.key, name.as_deref(), ollama_request).await,
    };
    let body = BodyRoom::claimed(&app.bodies.room, &received_request.sender, body).map_err(Refusal::from)?;
    received_request.set_json(body);
    let times = AnswerTimes::of(&received_request);
    let response = received_request.answer(&app, endpoint, path.to_owned()).await;
    let response = response.map_err(|error| respelled(error, &ollama_request.spelling))?;
    respond(&app, response, ollama_request, times).await
}

/// Returns the name that a client means: without the tag `latest`, unless the fleet has a model of that name.
fn served_name<'n>(view: &FleetView, name: &'n str) -> &'n str {
    let Some(untagged) = name.strip_suffix(ollama::LATEST).filter(|untagged| !untagged.is_empty()) else { return name };
    if view.hosts.knows(name) || find(view, name).is_ok() { name } else { untagged }
}

/// Has the hosts unload a model, and responds as Ollama does.
async fn unload(
    app: App,
    key: Option<Arc<ApiKey>>,
    name: Option<&str>,
    ollama_request: OllamaRequest,
) -> Result<Response, RequestError> {
    let name = name.ok_or_else(|| RequestError::field("model", "`model` is missing"))?;
    check_model(key.as_ref(), name)?;
    let view = app.fleet.view();
    if !view.hosts.knows(name) {
        find(&view, name)?;
        let reason = format!("`keep_alive`: no host runs the model `{name}`, so it stays loaded");
        return Err(RequestError::field("keep_alive", reason));
    }
    if view.hosts.running(name).next().is_some() {
        check_rights(key.as_ref())?;
        unload_everywhere(&app, name).await?;
    }
    let writer = AnswerWriter::new(ollama_request.form, ollama_request.model, ollama_request.spelling);
    Ok(Json(writer.without_prompt("unload", &timestamps::now())).into_response())
}

/// Returns a response of OpenAI's API in Ollama's format, with its headers.
async fn respond(
    app: &App,
    response: Response,
    ollama_request: OllamaRequest,
    times: AnswerTimes,
) -> Result<Response, RequestError> {
    let (parts, body) = response.into_parts();
    let OllamaRequest { model, task, form, spelling, .. } = ollama_request;
    let mut writer = AnswerWriter::new(form, model.clone(), spelling);
    if task == OllamaTask::Load && is_loaded(parts.status) {
        let answer = writer.without_prompt("load", &timestamps::now());
        return Ok((without_content(parts.headers), Json(answer)).into_response());
    }
    if !parts.status.is_success() {
        // What is too long for an error is left out.
        let body = to_bytes(body, ERROR_BYTES_MAX).await.unwrap_or_default();
        let answer = Json(error(&writer.error_message(&body)));
        return Ok((parts.status, without_content(parts.headers), answer).into_response());
    }
    let broken = || RequestError::Upstream { n_attempts: 1, last: WorkerFailure::Broken };
    if event_stream::is_encoded(&parts.headers) {
        return Err(broken());
    }
    let is_stream = event_stream::is_event_stream(&parts.headers);
    let mut headers = without_content(parts.headers);
    if is_stream {
        headers.insert(header::CONTENT_TYPE, LINES);
        return Ok((headers, lines::body(body, writer, times)).into_response());
    }
    let body = to_bytes(body, ANSWER_BYTES_MAX).await.map_err(|_| broken())?;
    let (n_bytes, now) = (body.len(), timestamps::now());
    let convert = move || match task {
        OllamaTask::Embeddings => vectors(form, model.as_deref(), &body, &times.measured()),
        _ => writer.whole(&body, &now, &times.measured()).map(|answer| answer.to_string().into_bytes()),
    };
    let answer = app.preparing.on_body(n_bytes, convert).await?.map_err(|error| {
        tracing::warn!(%error, "an answer cannot be converted");
        broken()
    })?;
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    Ok((headers, answer).into_response())
}

/// Returns whether a response to a request for tokens shows that the model is loaded: a stock server may have no such
/// endpoint.
fn is_loaded(status: StatusCode) -> bool {
    status.is_success() || matches!(status.as_u16(), 400 | 404 | 405 | 422 | 501)
}

/// Returns a response's headers without those about its content.
fn without_content(mut headers: HeaderMap) -> HeaderMap {
    for name in [header::CONTENT_TYPE, header::CONTENT_LENGTH, header::CONTENT_ENCODING] {
        headers.remove(name);
    }
    headers
}
