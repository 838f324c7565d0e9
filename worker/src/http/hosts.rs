//! Refuses requests that call the worker by a name that is not its own.
//!
//! Not here: which names these are (`warmpath_shell::hosts`).

use axum::extract::{Request, State};
use axum::middleware::Next;
use axum::response::Response;

use super::state::App;
use crate::error::RequestError;

/// Lets a client's request through that calls the worker by an allowed name.
pub async fn clients(State(app): State<App>, request: Request, next: Next) -> Result<Response, RequestError> {
    app.allowed_hosts.check(&request)?;
    Ok(next.run(request).await)
}

/// Lets a probe's or scraper's request through that calls the worker by an allowed name.
pub async fn probes(State(app): State<App>, request: Request, next: Next) -> Result<Response, RequestError> {
    app.admin_allowed_hosts.check(&request)?;
    Ok(next.run(request).await)
}
