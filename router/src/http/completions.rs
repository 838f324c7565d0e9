//! The endpoints that workers answer: chats in their dialects, completions, and the small ones around the tokenizer.
//!
//! Not here: everything they have in common, which is nearly all (`lifecycle`).

use std::convert::Infallible;

use axum::Extension;
use axum::body::{Body, Bytes};
use axum::extract::{Path, Request, State};
use axum::response::Response;
use http_body_util::{BodyExt, LengthLimitError, Limited};

use super::Context;
use super::state::App;
use crate::error::RequestError;
use crate::lifecycle::{self, Arrival};
use crate::prompt::Shape;

/// Answers a chat.
pub async fn chat(
    State(app): State<App>,
    Extension(context): Extension<Context>,
    request: Request,
) -> Result<Response, RequestError> {
    answer(app, context, request, Shape::Chat).await
}

/// Answers a completion.
pub async fn text(
    State(app): State<App>,
    Extension(context): Extension<Context>,
    request: Request,
) -> Result<Response, RequestError> {
    answer(app, context, request, Shape::Completion).await
}

/// Answers a request to fill a gap.
pub async fn infill(
    State(app): State<App>,
    Extension(context): Extension<Context>,
    request: Request,
) -> Result<Response, RequestError> {
    answer(app, context, request, Shape::Infill).await
}

/// Answers a request for a message, Anthropic's word for a chat's answer.
pub async fn messages(
    State(app): State<App>,
    Extension(context): Extension<Context>,
    request: Request,
) -> Result<Response, RequestError> {
    answer(app, context, request, Shape::Messages).await
}

/// Answers a request for a response, OpenAI's newer word for a chat's answer.
pub async fn responses(
    State(app): State<App>,
    Extension(context): Extension<Context>,
    request: Request,
) -> Result<Response, RequestError> {
    answer(app, context, request, Shape::Responses).await
}

/// Answers whatever is asked of a response that was made before.
pub async fn stored(Path(id): Path<String>) -> Result<Infallible, RequestError> {
    Err(RequestError::NotStored { id })
}

/// Passes a request on to any worker of its model.
pub async fn pass(
    State(app): State<App>,
    Extension(context): Extension<Context>,
    request: Request,
) -> Result<Response, RequestError> {
    answer(app, context, request, Shape::None).await
}

async fn answer(app: App, context: Context, request: Request, shape: Shape) -> Result<Response, RequestError> {
    let place = app.place()?;
    let (parts, body) = request.into_parts();
    let body = read_whole(&app, body).await?;
    let arrival = Arrival {
        id: context.id,
        at: context.arrived,
        method: parts.method,
        path: parts.uri.path().to_owned(),
        headers: parts.headers,
        body,
        shape,
        place,
    };
    lifecycle::answer(&app, arrival).await
}

/// Returns the whole body.
///
/// Errors: `BodyTooLong`, `BodyLate`, `BodyUnread`.
pub(super) async fn read_whole(app: &App, body: Body) -> Result<Bytes, RequestError> {
    let (bytes_max, timeout) = (app.requests.body_bytes_max, app.requests.body_timeout);
    let read = tokio::time::timeout(timeout, Limited::new(body, bytes_max).collect()).await;
    match read.map_err(|_| RequestError::BodyLate { seconds: timeout.as_secs_f64() })? {
        Ok(collected) => Ok(collected.to_bytes()),
        Err(error) if error.is::<LengthLimitError>() => Err(RequestError::BodyTooLong { bytes_max }),
        Err(_) => Err(RequestError::BodyUnread),
    }
}
