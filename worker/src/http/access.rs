//! Check of the fleet's token, if it is required.
//!
//! Not here: the token (`warmpath_shell::fleet_token`). Health and metrics need no token, because probes and scrapers
//! have none and the responses contain no text of prompts.

use axum::extract::{Request, State};
use axum::http::{HeaderValue, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use warmpath_shell::bearer;

use super::state::App;
use crate::error::RequestError;

/// Paths that need no token.
const OPEN: [&str; 4] = ["/health", "/livez", "/readyz", "/metrics"];

/// Passes a request on if its token is valid, or it needs none.
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
