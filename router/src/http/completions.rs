//! The endpoints that workers serve: chats in their dialects, completions, embeddings, scores, and the small ones
//! around the tokenizer.
//!
//! Not here: the path of a request, which is the same for all of them (`lifecycle`).

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Instant;

use axum::Extension;
use axum::extract::{Query, Request, State};
use axum::http::request::Parts;
use axum::http::{HeaderValue, Method, Uri, header};
use axum::response::Response;
use bytes::Bytes;
use serde::Deserialize;
use warmpath_common::model::Capability;
use warmpath_router_core::hosts::Autoload;
use warmpath_shell::body::Sender;
use warmpath_shell::refusal::{Name, Refusal, stored_response};

use super::context::{RequestContext, sender};
use crate::app::{App, RequestPlace};
use crate::endpoint::EndpointKind;
use crate::error::RequestError;
use crate::keys::ApiKey;
use crate::lifecycle::{self, IncomingRequest, ModelWait};
use crate::salt::Salt;

/// Responds to a chat.
pub async fn chat(
    State(app): State<App>,
    Extension(context): Extension<RequestContext>,
    request: Request,
) -> Result<Response, RequestError> {
    answer(app, context, request, EndpointKind::Chat).await
}

/// Responds to a completion.
pub async fn text(
    State(app): State<App>,
    Extension(context): Extension<RequestContext>,
    request: Request,
) -> Result<Response, RequestError> {
    answer(app, context, request, EndpointKind::Completion).await
}

/// Responds to a request to fill in the middle.
pub async fn infill(
    State(app): State<App>,
    Extension(context): Extension<RequestContext>,
    request: Request,
) -> Result<Response, RequestError> {
    answer(app, context, request, EndpointKind::Infill).await
}

/// Responds to a chat in Anthropic's dialect (messages).
pub async fn messages(
    State(app): State<App>,
    Extension(context): Extension<RequestContext>,
    request: Request,
) -> Result<Response, RequestError> {
    answer(app, context, request, EndpointKind::Messages).await
}

/// Responds to a chat in OpenAI's newer dialect (responses).
pub async fn responses(
    State(app): State<App>,
    Extension(context): Extension<RequestContext>,
    request: Request,
) -> Result<Response, RequestError> {
    answer(app, context, request, EndpointKind::Responses).await
}

/// Responds to any request for a stored response, or below the path of responses.
pub async fn stored(method: Method, uri: Uri, Name(path): Name) -> Result<Infallible, RequestError> {
    match stored_response(&method, &path) {
        Some(id) => Err(Refusal::NotStored { id: id.to_owned() }.into()),
        None => Err(Refusal::path(&uri).into()),
    }
}

/// Responds with embeddings of texts.
pub async fn embeddings(
    State(app): State<App>,
    Extension(context): Extension<RequestContext>,
    request: Request,
) -> Result<Response, RequestError> {
    answer(app, context, request, EndpointKind::Embeddings).await
}

/// Responds with scores of documents.
pub async fn rerank(
    State(app): State<App>,
    Extension(context): Extension<RequestContext>,
    request: Request,
) -> Result<Response, RequestError> {
    answer(app, context, request, EndpointKind::Rerank).await
}

/// Passes a request to any worker of its model.
pub async fn pass(
    State(app): State<App>,
    Extension(context): Extension<RequestContext>,
    request: Request,
) -> Result<Response, RequestError> {
    answer(app, context, request, EndpointKind::Passthrough(None)).await
}

/// Passes a request about a chat to any worker that could serve the chat.
pub async fn pass_chat(
    State(app): State<App>,
    Extension(context): Extension<RequestContext>,
    request: Request,
) -> Result<Response, RequestError> {
    answer(app, context, request, EndpointKind::Passthrough(Some(Capability::Completion))).await
}

/// Query of a request for a model.
#[derive(Deserialize)]
struct LoadQuery {
    autoload: Option<String>,
}

/// Returns whether a request loads its model (`?autoload=`, as llama-server in router mode reads it). A look loads none
/// by itself, so that a monitor does not keep models loaded.
fn autoload(method: &Method, uri: &Uri) -> Result<Autoload, RequestError> {
    // Other parameters are the worker's.
    let Ok(Query(LoadQuery { autoload: Some(autoload) })) = Query::try_from_uri(uri) else {
        return Ok(if method == Method::POST { Autoload::ByModel } else { Autoload::Off });
    };
    match autoload.as_str() {
        "true" | "1" => Ok(Autoload::On),
        "false" | "0" => Ok(Autoload::Off),
        _ => Err(RequestError::field("autoload", "`autoload` must be true or false")),
    }
}

/// Responds to a request by the path that all of them take.
///
/// Errors: every [`RequestError`].
pub(super) async fn answer(
    app: App,
    context: RequestContext,
    request: Request,
    endpoint: EndpointKind,
) -> Result<Response, RequestError> {
    let mut received_request = ReceivedRequest::read(&app, context, request).await?;
    let body = std::mem::take(&mut received_request.body);
    received_request.body = app.with_images(body, endpoint, &received_request.sender).await?;
    app.first_contact().await?;
    let path = received_request.parts.uri.path().to_owned();
    received_request.answer(&app, endpoint, path).await
}

/// A request that has arrived whole and has its place among the running ones.
pub(super) struct ReceivedRequest {
    context: RequestContext,
    parts: Parts,
    salt: Salt,
    place: RequestPlace,
    /// API key that it presented, if keys are required.
    pub key: Option<Arc<ApiKey>>,
    /// Sender of its body.
    pub sender: Sender,
    /// Body.
    pub body: Bytes,
    /// Time for which it has waited for its model.
    pub model_wait: ModelWait,
}

impl ReceivedRequest {
    /// Reads a request.
    ///
    /// Errors: those of its key, its headers and its body; `RequestsFull`.
    pub async fn read(app: &App, context: RequestContext, request: Request) -> Result<Self, RequestError> {
        let (mut parts, body) = request.into_parts();
        let key = parts.extensions.remove::<Arc<ApiKey>>();
        // If the key's limits refuse a request, its body is not read. Only requests that have arrived whole take a
        // place.
        key.as_deref().map_or(Ok(()), ApiKey::count)?;
        let salt = Salt::of(&parts.headers, key.as_deref())?;
        let sender = sender(&parts, key.as_deref());
        let body = app.bodies.read(&mut parts.headers, body, sender.clone()).await.map_err(Refusal::from)?;
        let place = app.place(key.as_deref())?;
        Ok(Self { context, parts, salt, place, key, sender, body, model_wait: ModelWait::default() })
    }

    /// Takes JSON in the place of the body.
    pub fn set_json(&mut self, body: Bytes) {
        self.body = body;
        self.parts.headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    }

    /// Returns the time of its arrival.
    pub fn arrived(&self) -> Instant {
        self.context.arrived
    }

    /// Returns the response of a worker's endpoint at this path.
    ///
    /// Errors: as of [`lifecycle::answer`].
    pub async fn answer(self, app: &App, endpoint: EndpointKind, path: String) -> Result<Response, RequestError> {
        let Self { context, parts, salt, place, key, sender, body, model_wait } = self;
        let mut span = app.tracer.request(&parts.headers, "router.request", context.arrived);
        span.name("http.route", parts.uri.path());
        span.name("warmpath.request_id", context.id.as_str());
        let request = IncomingRequest {
            identity: None,
            span,
            id: context.id,
            at: context.arrived,
            queued_from: context.arrived,
            model_wait,
            autoload: autoload(&parts.method, &parts.uri)?,
            method: parts.method,
            path,
            query: parts.uri.query().map(str::to_owned),
            headers: parts.headers,
            body,
            endpoint,
            key,
            sender,
            salt,
            place,
        };
        lifecycle::answer(app, request).await
    }
}
