//! Checks of the `Host` header, and of the fleet's token if it is required.
//!
//! Not here: the names (`warmpath_shell::hosts`), the token (`warmpath_shell::fleet_token`). Health and metrics need no
//! token, because probes and scrapers have none and the responses contain no text of prompts.

use axum::extract::{Request, State};
use axum::http::{HeaderValue, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use warmpath_shell::bearer;
use warmpath_shell::refusal::Refusal;

use crate::app::App;
use crate::error::RequestError;

/// Paths of probes and scrapers. They need no token and are not counted as requests.
pub const PROBES: [&str; 5] = ["/health", "/v1/health", "/livez", "/readyz", "/metrics"];

/// Passes a request on if its token is valid, or it needs none.
pub async fn check_token(State(app): State<App>, request: Request, next: Next) -> Response {
    let Some(tokens) = &app.tokens else { return next.run(request).await };
    let is_known = bearer::presented(request.headers()).is_some_and(|token| tokens.accept(token));
    if is_known || PROBES.contains(&request.uri().path()) {
        return next.run(request).await;
    }
    app.metrics.auth_failures.inc();
    let mut response = RequestError::Unauthorized.into_response();
    response.headers_mut().insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
    response
}

/// Passes a client's request on if its host is allowed.
pub async fn check_client_host(State(app): State<App>, request: Request, next: Next) -> Result<Response, RequestError> {
    app.allowed_hosts.check(&request).map_err(Refusal::from)?;
    Ok(next.run(request).await)
}

/// Passes a probe's or scraper's request on if its host is allowed.
pub async fn check_probe_host(State(app): State<App>, request: Request, next: Next) -> Result<Response, RequestError> {
    app.admin_allowed_hosts.check(&request).map_err(Refusal::from)?;
    Ok(next.run(request).await)
}
