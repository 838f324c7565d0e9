//! From a request's body to typed fields, with errors that name the field.
//!
//! Not here: what the fields mean. The idea: every reader deserializes what it honours from the same bytes, so unknown
//! fields cost nothing and break nothing.

use axum::body::Bytes;
use axum::extract::rejection::{BytesRejection, FailedToBufferBody};
use axum::extract::{FromRequest, Request};
use serde::de::DeserializeOwned;

use super::state::App;
use crate::error::RequestError;

/// Is a request's whole body, not yet parsed, at most `--body-max` long.
pub struct Body(pub Bytes);

impl FromRequest<App> for Body {
    type Rejection = RequestError;

    async fn from_request(request: Request, app: &App) -> Result<Self, RequestError> {
        match Bytes::from_request(request, app).await {
            Ok(bytes) => Ok(Self(bytes)),
            Err(BytesRejection::FailedToBufferBody(FailedToBufferBody::LengthLimitError(_))) => {
                Err(RequestError::BodyTooLong { bytes_max: app.body_bytes_max })
            }
            Err(_) => Err(RequestError::BodyUnread),
        }
    }
}

impl Body {
    /// Returns the fields of the body that `T` names.
    ///
    /// Errors: `Json` where the body is not JSON; `Field` where a field of `T` is missing or has another type.
    pub fn parse<T: DeserializeOwned>(&self) -> Result<T, RequestError> {
        let mut deserializer = serde_json::Deserializer::from_slice(&self.0);
        let value = serde_path_to_error::deserialize(&mut deserializer).map_err(refuse)?;
        deserializer.end().map_err(|error| RequestError::Json { reason: error.to_string() })?;
        Ok(value)
    }
}

fn refuse(error: serde_path_to_error::Error<serde_json::Error>) -> RequestError {
    let path = error.path().to_string();
    let inner = error.into_inner();
    if !inner.is_data() {
        return RequestError::Json { reason: inner.to_string() };
    }
    // A path of "." is the body itself, as when a field is missing.
    if path == "." {
        return RequestError::Field { param: None, reason: inner.to_string() };
    }
    let reason = format!("`{path}`: {inner}");
    RequestError::Field { param: Some(path), reason }
}
