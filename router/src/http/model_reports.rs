//! `/slots`, `/metrics` and `/lora-adapters` of a model (`?model=`), as in llama-server's router mode: what one of its
//! workers says.
//!
//! They show the work of all clients, so if clients need API keys, these need one with `admin`. Not here: `/props`,
//! which the router answers itself.

use std::sync::Arc;

use axum::Extension;
use axum::body::Body;
use axum::extract::{Query, Request, State};
use axum::response::Response;
use serde::Deserialize;
use serde_json::json;

use super::completions;
use super::context::RequestContext;
use super::model_orders::check_rights;
use crate::app::App;
use crate::endpoint::EndpointKind;
use crate::error::RequestError;
use crate::keys::ApiKey;

/// Query of a report.
#[derive(Deserialize)]
struct ReportQuery {
    model: Option<String>,
}

/// Responds with the report of a worker of the named model, or of the only one.
pub async fn show(
    State(app): State<App>,
    Extension(context): Extension<RequestContext>,
    key: Option<Extension<Arc<ApiKey>>>,
    request: Request,
) -> Result<Response, RequestError> {
    check_rights(key.as_deref())?;
    let model = Query::<ReportQuery>::try_from_uri(request.uri()).ok().and_then(|Query(query)| query.model);
    // The lookup finds the name in a body, which the worker does not get.
    let body = Body::from(json!({"model": model}).to_string());
    let (parts, _) = request.into_parts();
    completions::answer(app, context, Request::from_parts(parts, body), EndpointKind::Passthrough(None)).await
}
