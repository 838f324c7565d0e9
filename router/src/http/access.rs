//! Checks of the `Host` header, and of API keys if keys are required.
//!
//! Not here: the names (`warmpath_shell::hosts`), the keys and their limits (`keys`). Health endpoints need no key,
//! because load balancers have none.

use axum::extract::{Request, State};
use axum::http::{HeaderValue, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use warmpath_shell::bearer;
use warmpath_shell::refusal::Refusal;

use crate::app::App;
use crate::error::RequestError;

/// Passes a request on if its key is valid; the key itself is removed.
pub async fn check_key(State(app): State<App>, mut request: Request, next: Next) -> Response {
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

/// Passes a client's request on if its host is allowed.
pub async fn check_client_host(State(app): State<App>, request: Request, next: Next) -> Result<Response, RequestError> {
    app.resources.hosts.clients.check(&request).map_err(Refusal::from)?;
    Ok(next.run(request).await)
}

/// Passes an operator's request on if its host is allowed.
pub async fn check_operator_host(
    State(app): State<App>,
    request: Request,
    next: Next,
) -> Result<Response, RequestError> {
    app.resources.hosts.operators.check(&request).map_err(Refusal::from)?;
    Ok(next.run(request).await)
}
