//! Cross-origin resource sharing: lets web pages of the allowed origins send requests.
//!
//! A preflight is answered before keys are checked, because browsers send none with it. Not here: the flag
//! (`config::cors`), keys (`access`).

use std::time::Duration;

use axum::http::{HeaderName, Method};
use tower_http::cors::{AllowHeaders, AllowOrigin, CorsLayer};
use warmpath_common::dialects::anthropic;
use warmpath_common::headers;

use crate::config::Cors;

/// Time for which a browser may cache a preflight's result.
///
/// Source: own choice: saves a round trip for most requests, and a changed flag takes effect soon.
const MAX_AGE: Duration = Duration::from_secs(600);

/// Headers of a response that a page may read, besides those that every page may.
const EXPOSED: [&str; 14] = [
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
    headers::LEFT_OUT_PARTS,
    headers::UNCONSTRAINED_TOOLS,
    headers::TRUNCATED_TEXTS,
    headers::ANSWER_BREAK,
];

/// Returns the layer that answers preflights and marks responses. Credentials such as cookies are never allowed: the
/// page itself sends the key.
pub fn layer(cors: &Cors) -> CorsLayer {
    let origins = match cors {
        Cors::Any => AllowOrigin::any(),
        Cors::Origins(origins) => AllowOrigin::list(origins.iter().cloned()),
    };
    let exposed = EXPOSED.map(HeaderName::from_static).into_iter().chain([axum::http::header::RETRY_AFTER]);
    CorsLayer::new()
        .allow_origin(origins)
        .allow_methods([Method::GET, Method::POST, Method::DELETE])
        // Client libraries send headers of their own, and none of ours depends on them.
        .allow_headers(AllowHeaders::mirror_request())
        .expose_headers(exposed.collect::<Vec<_>>())
        .max_age(MAX_AGE)
}
