//! A request on its way through the router.

use std::sync::Arc;
use std::time::Instant;

use axum::http::{HeaderMap, Method};
use bytes::Bytes;
use warmpath_common::ids::RequestId;
use warmpath_router_core::hosts::Autoload;
use warmpath_router_core::overload::admission_queue::TenantKey;
use warmpath_shell::body::Sender;
use warmpath_shell::trace::Span;

use super::hold::ModelWait;
use crate::app::{App, RequestPlace};
use crate::endpoint::EndpointKind;
use crate::keys::ApiKey;
use crate::salt::Salt;

/// A request that has arrived whole.
pub struct IncomingRequest {
    /// Id of the request.
    pub id: RequestId,
    /// Its span, which ends with its response.
    pub span: Span,
    /// Time when its head arrived.
    pub at: Instant,
    /// Start of its time in the queue: its arrival, or the time at which its model was ready.
    pub queued_from: Instant,
    /// Time for which it has waited for its model.
    pub model_wait: ModelWait,
    /// Method.
    pub method: Method,
    /// Path.
    pub path: String,
    /// Query after the path, sent to workers unchanged; `None` if there is none.
    pub query: Option<String>,
    /// Whether it loads its model.
    pub autoload: Autoload,
    /// Headers of the client.
    pub headers: HeaderMap,
    /// Body, with data in place of the URLs of images; sent to workers unchanged, except that a model name that no
    /// worker has may be replaced.
    pub body: Bytes,
    /// Kind of its endpoint.
    pub endpoint: EndpointKind,
    /// API key that it presented, if keys are required.
    pub key: Option<Arc<ApiKey>>,
    /// Sender of its body.
    pub sender: Sender,
    /// Salt in its headers.
    pub salt: Salt,
    /// Identity of its response, if the response may be continued at another worker.
    pub identity: Option<String>,
    /// Its place among the running requests.
    pub place: RequestPlace,
}

impl IncomingRequest {
    /// Returns the account of a request that presents a key which the router does not check; `None` without one.
    pub(super) fn account(&self, app: &App) -> Option<TenantKey> {
        if self.key.is_some() { None } else { app.queue.account(&self.headers) }
    }
}
