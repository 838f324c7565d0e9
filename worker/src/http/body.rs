//! From a request's body to typed fields, with errors that name the field.
//!
//! Every reader deserializes its own fields from the same bytes, so unknown fields are ignored. Not here: the meaning
//! of the fields.

use axum::body::Bytes;
use axum::extract::{FromRequest, Request};
use serde::de::DeserializeOwned;
use warmpath_common::fields;
use warmpath_shell::body::Sender;
use warmpath_shell::listen::ClientAddress;
use warmpath_shell::refusal::Refusal;

use crate::app::App;
use crate::error::RequestError;

/// A request's whole body, decoded and not yet parsed, at most `--body-max` long, with data in place of the URLs of
/// images.
pub struct Body(pub Bytes);

impl FromRequest<App> for Body {
    type Rejection = RequestError;

    async fn from_request(request: Request, app: &App) -> Result<Self, RequestError> {
        let (mut parts, body) = request.into_parts();
        let client = parts.extensions.get::<ClientAddress>();
        let sender = client.map_or(Sender::Unknown, |client| Sender::at(client.0));
        let body = app.bodies.read(&mut parts.headers, body, sender.clone()).await.map_err(Refusal::from)?;
        match &app.image_urls {
            Some(image_urls) => Ok(Self(image_urls.inline(body, &app.bodies, &sender).await?)),
            None => Ok(Self(body)),
        }
    }
}

impl Body {
    /// Returns the fields of the body that `T` names.
    ///
    /// Errors: `Unreadable`.
    pub fn parse<T: DeserializeOwned>(&self) -> Result<T, RequestError> {
        Ok(fields::read(&self.0)?)
    }

    /// Returns the items of a body that is an array.
    ///
    /// Errors: `Unreadable`.
    pub fn parse_list<T: DeserializeOwned>(&self) -> Result<Vec<T>, RequestError> {
        Ok(fields::read_list(&self.0)?)
    }
}
