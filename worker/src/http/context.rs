//! The context of every request: its id, its arrival and the router's hints; the headers and metrics of its response.
//!
//! An invalid hint counts as absent; an invalid salt is an error. Not here: the use of the hints.

use std::convert::Infallible;
use std::str::FromStr;
use std::time::Instant;

use axum::extract::{FromRequestParts, MatchedPath, Request, State};
use axum::http::request::Parts;
use axum::http::{HeaderMap, HeaderName, HeaderValue};
use axum::middleware::Next;
use axum::response::{IntoResponse as _, Response};
use warmpath_common::dialects::anthropic;
use warmpath_common::headers;
use warmpath_common::ids::{RequestId, SlotId};
use warmpath_common::salt::{self, SaltError};
use warmpath_shell::dialect_errors::as_anthropic;
use warmpath_shell::models::is_anthropic;
use warmpath_shell::trace::{TRACEPARENT, TRACESTATE};
use warmpath_worker_core::tenants::TenantId;

use super::access::PROBES;
use super::body::Body;
use crate::app::App;
use crate::error::RequestError;
use crate::kv_transfer::PeerHint;
use crate::lifecycle::journal::{PastOutput, ResponseIdentity, RouterInstructions};

/// Maximum number of choices that a journal may name.
///
/// Source: more than the slots and the queue of a worker have room for.
const CHOICES_MAX: usize = 4096;

/// Context string of tenants' identities.
const TENANT_CONTEXT: &str = "warmpath 2026 tenant v1";

/// Values in a request's headers.
#[derive(Debug, Clone)]
pub struct RequestContext {
    /// Id of the request.
    pub id: RequestId,
    /// Time of arrival of its headers.
    pub arrived: Instant,
    /// Slot that the router prefers.
    pub wanted_slot: Option<SlotId>,
    /// Reused tokens that the router predicts.
    pub predicted_cached_tokens: Option<u32>,
    /// Worker that has more of the prompt, from the router.
    pub kv_peer: Option<PeerHint>,
    /// Headers of the trace.
    pub trace: HeaderMap,
    /// Salt in the headers, or the error of an invalid one.
    pub cache_salt: Result<Option<String>, SaltError>,
    /// Tenant from the router.
    pub tenant: Option<TenantId>,
    /// Highest priority that the router allows.
    pub priority_max: Option<i32>,
    /// Identity of the response, if the router keeps its journal.
    pub journal: Option<ResponseIdentity>,
    /// Length of the journal after the body. Units: bytes.
    pub journal_bytes: Option<usize>,
    /// Reused prompt tokens that were reported to the client of a continued response.
    pub told_cached_tokens: Option<u32>,
}

impl RequestContext {
    fn read(headers: &HeaderMap) -> Self {
        let id = text(headers, headers::REQUEST_ID).and_then(RequestId::new);
        Self {
            id: id.unwrap_or_else(fresh_id),
            arrived: Instant::now(),
            wanted_slot: parsed(headers, headers::SLOT).map(SlotId),
            predicted_cached_tokens: parsed(headers, headers::PREDICTED_CACHED_TOKENS),
            kv_peer: parsed(headers, headers::KV_PEER),
            trace: [TRACEPARENT, TRACESTATE]
                .into_iter()
                .filter_map(|name| Some((HeaderName::from_static(name), headers.get(name)?.clone())))
                .collect(),
            cache_salt: salt::of_header(headers.get_all(headers::CACHE_SALT).iter().map(HeaderValue::as_bytes)),
            tenant: headers.get(headers::TENANT).map(|name| tenant_id(name.as_bytes())),
            // With an invalid limit, only the default priority is allowed.
            priority_max: headers
                .contains_key(headers::PRIORITY_MAX)
                .then(|| parsed(headers, headers::PRIORITY_MAX).unwrap_or_default()),
            journal: text(headers, headers::JOURNAL).and_then(ResponseIdentity::parse),
            journal_bytes: parsed(headers, headers::JOURNAL_BYTES),
            told_cached_tokens: parsed(headers, headers::CACHED_TOKENS),
        }
    }
}

impl RequestContext {
    /// Returns the router's instructions for the response; removes the journal from the body's end.
    ///
    /// Errors: `Field` if there is no such journal.
    pub fn take_journal(&mut self, body: &mut Body) -> Result<RouterInstructions, RequestError> {
        let Some(identity) = self.journal.take() else { return Ok(RouterInstructions::nothing()) };
        let past_output = self.journal_bytes.take().map(|n_bytes| {
            let start = body.0.len().checked_sub(n_bytes);
            let start = start.ok_or_else(|| RequestError::field(headers::JOURNAL_BYTES, "the body is shorter"))?;
            let past_output = PastOutput::parse(&body.0.split_off(start), CHOICES_MAX)?;
            Ok::<_, RequestError>(PastOutput { cached_tokens: self.told_cached_tokens, ..past_output })
        });
        Ok(RouterInstructions { identity, wants_journal: true, past: past_output.transpose()? })
    }
}

/// Returns the identity of the tenant with this name.
fn tenant_id(name: &[u8]) -> TenantId {
    let hash = blake3::derive_key(TENANT_CONTEXT, name);
    TenantId(u128::from_be_bytes(*hash.first_chunk().expect("a hash has 32 bytes")))
}

/// Returns the text of a header that does not change the response; `None` if it is absent or invalid.
fn text<'a>(headers: &'a HeaderMap, name: &str) -> Option<&'a str> {
    headers.get(name)?.to_str().ok()
}

fn parsed<T: FromStr>(headers: &HeaderMap, name: &str) -> Option<T> {
    text(headers, name)?.parse().ok()
}

fn fresh_id() -> RequestId {
    RequestId::new(&uuid::Uuid::new_v4().to_string()).expect("a UUID is visible ASCII")
}

impl FromRequestParts<App> for RequestContext {
    type Rejection = Infallible;

    async fn from_request_parts(parts: &mut Parts, _: &App) -> Result<Self, Infallible> {
        Ok(parts.extensions.get::<Self>().cloned().unwrap_or_else(|| Self::read(&parts.headers)))
    }
}

/// Checks that the worker serves the model for which a router chose it. A router learns of a restart some milliseconds
/// late, and the new process may serve another model, even under the same name.
///
/// Errors: `OtherModel`.
fn check_model(app: &App, headers: &HeaderMap) -> Result<(), RequestError> {
    let (Some(meant), Ok(loaded_model)) = (headers.get(headers::MODEL_FINGERPRINT), app.loaded_model()) else {
        return Ok(());
    };
    let own_fingerprint = loaded_model.common().model.fingerprint.to_string();
    if meant.as_bytes() == own_fingerprint.as_bytes() { Ok(()) } else { Err(RequestError::OtherModel) }
}

/// Reads a request's context, runs the request, and completes and counts the response.
pub async fn around(State(app): State<App>, mut request: Request, next: Next) -> Response {
    let context = RequestContext::read(request.headers());
    let path = request.extensions().get::<MatchedPath>().map(|path| path.as_str().to_owned());
    request.extensions_mut().insert(context.clone());
    let is_anthropic = is_anthropic(request.uri().path(), request.headers());
    let mut response = match check_model(&app, request.headers()) {
        Ok(()) => next.run(request).await,
        Err(error) => error.into_response(),
    };
    if is_anthropic {
        response = as_anthropic(response, &context.id);
    }

    let endpoint = path.as_deref().unwrap_or("none");
    if !PROBES.contains(&endpoint) {
        app.metrics.requests.with_label_values(&[endpoint, response.status().as_str()]).inc();
    }
    tracing::debug!(request_id = %context.id, endpoint, status = response.status().as_u16(), "responded");
    let headers = response.headers_mut();
    headers.insert(HeaderName::from_static(headers::WORKER), app.worker);
    if let Ok(id) = HeaderValue::from_str(context.id.as_str()) {
        if is_anthropic {
            headers.insert(HeaderName::from_static(anthropic::REQUEST_ID), id.clone());
        }
        headers.insert(HeaderName::from_static(headers::REQUEST_ID), id);
    }
    if let Some(n_predicted) = context.predicted_cached_tokens {
        headers.insert(HeaderName::from_static(headers::PREDICTED_CACHED_TOKENS), HeaderValue::from(n_predicted));
    }
    response
}
