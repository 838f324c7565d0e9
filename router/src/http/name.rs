//! A name in a path, such as a model's; bytes that are not text name nothing.
//!
//! Not here: the look-up of the name.

use axum::extract::{FromRequestParts, Path};
use axum::http::request::Parts;

use crate::error::RequestError;

/// The variable part of a route's path, decoded.
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
