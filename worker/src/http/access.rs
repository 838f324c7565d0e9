//! Lets in who presents the fleet's token, where it is asked for.
//!
//! Not here: the token (`warmpath_shell::fleet_token`). Health and metrics are told to everybody: what probes and scrapes has no
//! token, and neither holds any text.

use axum::extract::{Request, State};
use axum::http::{HeaderValue, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use warmpath_shell::bearer;

use super::state::App;
use crate::error::RequestError;

/// Lists the paths that want no token.
const OPEN: [&str; 4] = ["/health", "/livez", "/readyz", "/metrics"];

/// Lets a request through that presents a token, or needs none.
pub async fn check(State(app): State<App>, request: Request, next: Next) -> Response {
    let Some(tokens) = &app.tokens else { return next.run(request).await };
    let is_known = bearer::presented(request.headers()).is_some_and(|token| tokens.accept(token));
    if is_known || OPEN.contains(&request.uri().path()) {
        return next.run(request).await;
    }
    app.metrics.auth_failures.inc();
    let mut response = RequestError::Unauthorized.into_response();
    response.headers_mut().insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
    response
}
