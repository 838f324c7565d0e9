//! What handlers know of a request before its body: its id, its arrival and its sender.

use std::time::Instant;

use axum::http::request::Parts;
use warmpath_common::ids::RequestId;
use warmpath_shell::body::Sender;
use warmpath_shell::listen::ClientAddress;

use crate::keys::ApiKey;

/// A request's id and arrival, for its handlers.
#[derive(Debug, Clone)]
pub struct RequestContext {
    /// Id of the request.
    pub id: RequestId,
    /// Time when its head arrived.
    pub arrived: Instant,
}

/// Returns the sender of a body.
pub fn sender(parts: &Parts, key: Option<&ApiKey>) -> Sender {
    let at = || parts.extensions.get::<ClientAddress>().map(|client| Sender::at(client.0));
    key.map(|key| Sender::Key(key.name().to_owned())).or_else(at).unwrap_or(Sender::Unknown)
}
