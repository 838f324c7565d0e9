//! Refuses requests whose `Host` is not one of the router's names.
//!
//! Not here: the names (`warmpath_shell::hosts`).

use axum::extract::{Request, State};
use axum::middleware::Next;
use axum::response::Response;
use warmpath_shell::refusal::Refusal;

use super::state::App;
use crate::error::RequestError;

/// Passes a client's request on if its host is allowed.
pub async fn clients(State(app): State<App>, request: Request, next: Next) -> Result<Response, RequestError> {
    app.resources.hosts.clients.check(&request).map_err(Refusal::from)?;
    Ok(next.run(request).await)
}

/// Passes an operator's request on if its host is allowed.
pub async fn operators(State(app): State<App>, request: Request, next: Next) -> Result<Response, RequestError> {
    app.resources.hosts.operators.check(&request).map_err(Refusal::from)?;
    Ok(next.run(request).await)
}
