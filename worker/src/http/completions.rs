//! `/v1/completions`: answers to raw prompts, as OpenAI has them.
//!
//! Not here: what a body has (`request`), llama-server's answers (`http::llama_server`). All else is the common
//! lifecycle.

use axum::extract::State;
use axum::response::Response;

use super::answer::{self, Endpoint};
use super::body::Body;
use super::context::RequestContext;
use super::state::App;
use super::wire::Shape;
use crate::error::RequestError;
use crate::request::CompletionRequest;

/// Responds to a completion request.
pub async fn create(State(app): State<App>, context: RequestContext, body: Body) -> Result<Response, RequestError> {
    answer::create(&app, Endpoint { shape: Shape::Completion, read: CompletionRequest::read }, context, body).await
}
