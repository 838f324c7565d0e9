//! Lets in who presents an API key, where keys are asked for.
//!
//! Not here: the keys and their limits (`keys`). Health is told to everybody: load balancers have no key.

use axum::extract::{Request, State};
use axum::http::{HeaderValue, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use warmpath_shell::bearer;

use super::state::App;
use crate::error::RequestError;

/// Lets a request through with the key that it presents; the key itself goes no further.
pub async fn check(State(app): State<App>, mut request: Request, next: Next) -> Response {
    let Some(keys) = &app.keys else { return next.run(request).await };
    let Some(key) = bearer::presented(request.headers()).and_then(|key| keys.find(key)) else {
        app.metrics.auth_failures.inc();
        let mut response = RequestError::Unauthorized.into_response();
        response.headers_mut().insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        return response;
    };
    bearer::strip(request.headers_mut());
    request.extensions_mut().insert(key);
    next.run(request).await
}
