//! Refuses requests that call the router by a name that is not its own.
//!
//! Not here: which names these are (`warmpath_shell::hosts`).

use axum::extract::{Request, State};
use axum::middleware::Next;
use axum::response::Response;

use super::state::App;
use crate::error::RequestError;

/// Lets a client's request through that calls the router by an allowed name.
pub async fn clients(State(app): State<App>, request: Request, next: Next) -> Result<Response, RequestError> {
    app.doors.hosts.clients.check(&request)?;
    Ok(next.run(request).await)
}

/// Lets an operator's request through that calls the router by an allowed name.
pub async fn operators(State(app): State<App>, request: Request, next: Next) -> Result<Response, RequestError> {
    app.doors.hosts.operators.check(&request)?;
    Ok(next.run(request).await)
}
