//! Lets in who presents an API key, where keys are asked for.
//!
//! Not here: the keys and their limits (`keys`). Health is told to everybody: load balancers have no key.

use axum::extract::{Request, State};
use axum::http::{HeaderMap, HeaderValue, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};

use super::state::App;
use crate::error::RequestError;
use crate::lifecycle::turn::API_KEY;

/// Is what stands before a key in the header `authorization`.
const BEARER: &str = "bearer ";

/// Lets a request through with the key that it presents; the key itself goes no further.
pub async fn check(State(app): State<App>, mut request: Request, next: Next) -> Response {
    let Some(keys) = &app.keys else { return next.run(request).await };
    let Some(key) = presented(request.headers()).and_then(|key| keys.find(key)) else {
        app.metrics.refused_keys.inc();
        let mut response = RequestError::Unauthorized.into_response();
        response.headers_mut().insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        return response;
    };
    request.headers_mut().remove(header::AUTHORIZATION);
    request.headers_mut().remove(API_KEY);
    request.extensions_mut().insert(key);
    next.run(request).await
}

fn presented(headers: &HeaderMap) -> Option<&[u8]> {
    match headers.get(header::AUTHORIZATION) {
        Some(value) => {
            let (scheme, key) = value.as_bytes().split_at_checked(BEARER.len())?;
            scheme.eq_ignore_ascii_case(BEARER.as_bytes()).then_some(key)
        }
        None => headers.get(API_KEY).map(HeaderValue::as_bytes),
    }
}
