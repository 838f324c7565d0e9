//! Lets web pages of other origins ask, where the operator says which (cross-origin resource sharing).
//!
//! Not here: the flag (`config::cors`), keys (`access`). A preflight is answered before keys are looked at: a browser sends none with it.

use std::time::Duration;

use axum::http::{HeaderName, Method};
use tower_http::cors::{AllowHeaders, AllowOrigin, CorsLayer};
use warmpath_common::dialects::anthropic;
use warmpath_common::headers;

use crate::config::Cors;

/// Is how long a browser may remember what a preflight has said.
///
/// Source: own choice: saves a round trip for most requests, and a change of the flag is seen soon.
const MAX_AGE: Duration = Duration::from_secs(600);

/// Lists the headers of an answer that a page may read, besides those that every page may.
const EXPOSED: [&str; 12] = [
    headers::REQUEST_ID,
    anthropic::REQUEST_ID,
    headers::WORKER,
    headers::SLOT,
    headers::PROMPT_TOKENS,
    headers::CACHED_TOKENS,
    headers::PREDICTED_CACHED_TOKENS,
    headers::ROUTE,
    headers::PREFIX_BREAK,
    headers::LEFT_OUT_TOOLS,
    headers::UNCONSTRAINED_TOOLS,
    headers::ANSWER_BREAK,
];

/// Returns what answers preflights and marks answers. Cookies and the like are never allowed: keys are sent by the page itself.
pub fn layer(cors: &Cors) -> CorsLayer {
    let origins = match cors {
        Cors::Any => AllowOrigin::any(),
        Cors::Origins(origins) => AllowOrigin::list(origins.iter().cloned()),
    };
    let exposed = EXPOSED.map(HeaderName::from_static).into_iter().chain([axum::http::header::RETRY_AFTER]);
    CorsLayer::new()
        .allow_origin(origins)
        .allow_methods([Method::GET, Method::POST, Method::DELETE])
        // Clients' libraries send headers of their own, which none of ours depend on.
        .allow_headers(AllowHeaders::mirror_request())
        .expose_headers(exposed.collect::<Vec<_>>())
        .max_age(MAX_AGE)
}
