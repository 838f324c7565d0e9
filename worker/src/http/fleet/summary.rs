//! The internal endpoints for routers: the summary as a snapshot and as a stream, the vocabulary, media layouts.

use std::sync::Arc;

use axum::Json;
use axum::body::Body;
use axum::extract::{Query, State};
use axum::http::{HeaderMap, StatusCode, Uri, header};
use axum::response::{IntoResponse, Response};
use futures::StreamExt;
use serde::Deserialize;
use serde_json::json;
use warmpath_common::headers::{HEARTBEAT_MS, MODEL_FINGERPRINT};
use warmpath_common::media::{MediaLayout, SizeQuery};
use warmpath_common::summary::{CONTENT_TYPE, Loading, Snapshot};
use warmpath_prompt::{MediaReader as _, is_readable};
use warmpath_shell::api_error::ApiError as _;
use warmpath_worker_core::reports::summary_writer::HEARTBEAT;

use crate::app::App;
use crate::error::RequestError;

/// Responds with the whole view as JSON.
pub async fn snapshot(State(app): State<App>) -> Result<Json<Snapshot>, RequestError> {
    app.loaded_model()?.common().publisher.snapshot().await.map(Json)
}

/// Query of a subscriber.
#[derive(Debug, Deserialize)]
struct StreamQuery {
    /// The last stamp that the subscriber has; the stream resumes there if possible.
    after: Option<String>,
}

/// Responds with the whole view, or the changes that the subscriber has missed, and every later change as frames, until
/// the subscriber disconnects or lags.
pub async fn stream(State(app): State<App>, uri: Uri) -> Result<Response, RequestError> {
    let subscriber = Query::<StreamQuery>::try_from_uri(&uri);
    let Query(subscriber) = subscriber.map_err(|error| RequestError::Query { reason: error.body_text() })?;
    // An invalid stamp counts like a stamp of another worker: the stream starts with a snapshot.
    let after = subscriber.after.and_then(|after| after.parse().ok());
    let loaded_model = match app.loaded_model() {
        Err(error @ (RequestError::Loading { percent } | RequestError::Downloading { percent })) => {
            return Ok(loading(&app, error, percent));
        }
        loaded_model => loaded_model?,
    };
    let subscription = loaded_model.common().publisher.subscribe(after).await?;
    let body = Body::from_stream(subscription.map(Ok::<_, std::convert::Infallible>));
    let headers = [
        (header::CONTENT_TYPE.as_str(), CONTENT_TYPE.to_owned()),
        (header::CACHE_CONTROL.as_str(), "no-store".to_owned()),
        (HEARTBEAT_MS, HEARTBEAT.as_millis().to_string()),
    ];
    Ok((headers, body).into_response())
}

/// Returns the error of a loading worker, with the model names that it will serve, so that routers can hold requests.
fn loading(app: &App, error: RequestError, percent: u8) -> Response {
    let mut body = json!(error.body());
    body[Loading::FIELD] = json!(Loading { names: app.names.to_vec(), percent });
    let mut response = error.into_response();
    response.headers_mut().remove(header::CONTENT_LENGTH);
    *response.body_mut() = Body::from(body.to_string());
    response
}

/// Responds with the model's metadata as a GGUF file without tensors, or with 304 to a router that has it.
pub async fn vocabulary(State(app): State<App>, request: HeaderMap) -> Result<Response, RequestError> {
    let loaded_model = app.loaded_model()?;
    let common = loaded_model.common();
    let file = &common.vocabulary;
    // With an invalid tag the file is sent.
    let known_etags = request.get_all(header::IF_NONE_MATCH).iter().filter_map(|tags| tags.to_str().ok());
    let is_known = known_etags
        .flat_map(|tags| tags.split(','))
        .any(|tag| matches!(tag.trim(), tag if tag == file.etag || tag == "*"));
    let headers = [
        (header::ETAG.as_str(), file.etag.clone()),
        (MODEL_FINGERPRINT, common.model.fingerprint.to_string()),
        (header::CONTENT_TYPE.as_str(), "application/octet-stream".to_owned()),
    ];
    if is_known {
        return Ok((StatusCode::NOT_MODIFIED, headers).into_response());
    }
    Ok((headers, file.bytes.clone()).into_response())
}

/// Responds with the tokens that stand for a medium of a size.
pub async fn media_layout(State(app): State<App>, uri: Uri) -> Result<Json<MediaLayout>, RequestError> {
    let query = Query::<SizeQuery>::try_from_uri(&uri);
    let Query(query) = query.map_err(|error| RequestError::Query { reason: error.body_text() })?;
    let reason = "a size is `width` and `height` of an image, or `n_samples` and `sample_rate` of audio".to_owned();
    let size = query.size().ok_or(RequestError::Query { reason })?;
    let generator = app.generator()?;
    let reader = Arc::clone(&generator);
    let layout = generator.common.pools.compute.run(move || {
        let missing = RequestError::NotEnabled { what: "reading images and audio", flag: "--mmproj" };
        let projector = reader.engine.projector().ok_or(missing)?;
        let layout = if is_readable(size) { projector.layout(size) } else { None };
        let reason = || RequestError::Query { reason: format!("{size} cannot be read by this model's projector") };
        layout.ok_or_else(reason)
    });
    Ok(Json(MediaLayout::clone(&*layout.await?)))
}
