//! The name that stands in a path, as of a model: what is no text is the name of nothing.
//!
//! Not here: what is found under it.

use axum::extract::{FromRequestParts, Path};
use axum::http::request::Parts;

use crate::error::RequestError;

/// Is the part of a path that its route leaves open, decoded.
pub struct Name(pub String);

impl<S: Send + Sync> FromRequestParts<S> for Name {
    type Rejection = RequestError;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, RequestError> {
        match Path::from_request_parts(parts, state).await {
            Ok(Path(name)) => Ok(Self(name)),
            Err(_) => Err(RequestError::PathUnknown { path: parts.uri.path().to_owned() }),
        }
    }
}
