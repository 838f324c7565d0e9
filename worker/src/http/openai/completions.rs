//! `/v1/completions`: responses to raw prompts, as in OpenAI's API.
//!
//! Not here: the fields of a body (`request`), llama-server's responses (`http::llama_server`), running a request
//! (`lifecycle`).

use axum::extract::State;
use axum::response::Response;

use super::answer::{self, Endpoint};
use super::wire::ObjectKind;
use crate::app::App;
use crate::error::RequestError;
use crate::http::body::Body;
use crate::http::context::RequestContext;
use crate::request::CompletionRequest;

/// Responds to a completion request.
pub async fn create(State(app): State<App>, context: RequestContext, body: Body) -> Result<Response, RequestError> {
    answer::create(&app, Endpoint { shape: ObjectKind::Completion, read: CompletionRequest::read }, context, body).await
}
