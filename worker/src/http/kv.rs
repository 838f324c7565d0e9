//! `/internal/v1/kv/{key}`: stored KV state for another worker, as the disk tier's records.
//!
//! Not here: finding the state (the engine), the bytes (`store::exchange`), fetching it from others (`kv_transfer`).

use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::body::Body;
use axum::extract::{Query, State};
use axum::http::{Uri, header};
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use futures::{Stream, StreamExt, stream};
use serde::Deserialize;
use warmpath_common::block_hash::BlockHash;
use warmpath_common::model::Fingerprint;
use warmpath_shell::refusal::Name;

use super::state::App;
use crate::engine::{Exchange, SendError, SentRun};
use crate::error::RequestError;
use crate::metrics::Metrics;
use crate::store::exchange::SentPart;

/// Longest time for a run to be read; then the response ends early.
///
/// Source: own choice: twice the time that a worker waits for state of others, so that none is cut off that reads.
const READ_TIME_MAX: Duration = Duration::from_secs(60);

/// Longest part of a payload that is passed on at once. Units: bytes.
///
/// Source: own choice: a slow link has sent it long before a reader counts as gone.
const FRAME_BYTES: usize = 1 << 20;

/// Query of a worker that wants state.
#[derive(Debug, Deserialize)]
struct Wanted {
    /// Number of blocks that end with the named one.
    blocks: usize,
    /// Identity of the state that it can use.
    layout: Fingerprint,
}

/// Responds with the state of a run of blocks, or 404 at once if this worker does not hold the last one.
pub async fn send(State(app): State<App>, Name(key): Name, uri: Uri) -> Result<Response, RequestError> {
    let began = Instant::now();
    let found = find(&app, &key, &uri).await;
    let result = match &found {
        Ok(_) => None,
        Err(RequestError::Send(SendError::Missing)) => Some("missing"),
        Err(RequestError::Send(SendError::Layout)) => Some("layout"),
        Err(RequestError::Send(SendError::Busy)) => Some("busy"),
        Err(_) => Some("failed"),
    };
    if let Some(result) = result {
        app.metrics.kv_transfers.with_label_values(&["sent", result]).inc();
    }
    let (run, exchange) = found?;
    let count = Count { metrics: Arc::clone(&app.metrics), began, is_complete: false };
    let body = Body::from_stream(body(run, exchange, count).take_until(tokio::time::sleep(READ_TIME_MAX)));
    Ok(([(header::CONTENT_TYPE, "application/octet-stream"), (header::CACHE_CONTROL, "no-store")], body)
        .into_response())
}

async fn find(app: &App, key: &str, uri: &Uri) -> Result<(SentRun, Exchange), RequestError> {
    let serving = app.serving()?;
    let exchange = serving.engine.facts().exchange.filter(|_| app.transfers.is_some()).ok_or(SendError::Off)?;
    let wanted = Query::<Wanted>::try_from_uri(uri);
    let Query(wanted) = wanted.map_err(|error| RequestError::Query { reason: error.body_text() })?;
    let mut last = BlockHash([0; 32]);
    if hex::decode_to_slice(key, &mut last.0).is_err() {
        return Err(RequestError::field("key", "`key` must be the 64 hexadecimal digits of a block's chain hash"));
    }
    if wanted.blocks == 0 {
        return Err(RequestError::field("blocks", "`blocks` must be at least 1"));
    }
    if wanted.layout != exchange.identity.fingerprint() {
        return Err(SendError::Layout.into());
    }
    Ok((serving.engine.run_to(last, wanted.blocks).await?, exchange))
}

/// Returns the records of a run, whose place is free again when the stream is dropped.
fn body(run: SentRun, exchange: Exchange, count: Count) -> impl Stream<Item = Result<Bytes, std::io::Error>> {
    let parts = stream::unfold((run, count, 0), move |(run, count, idx): (SentRun, Count, usize)| async move {
        let Some(part) = run.parts.get(idx).cloned() else {
            count.complete();
            return None;
        };
        let frames = record(part, exchange, &count.metrics).await;
        Some((frames, (run, count, idx + 1)))
    });
    parts.flat_map(stream::iter)
}

/// Returns a record in frames, or an error that ends the response.
async fn record(part: SentPart, exchange: Exchange, metrics: &Metrics) -> Vec<Result<Bytes, std::io::Error>> {
    let hashed = part.clone();
    // A checksum of some megabytes would hold up other connections.
    let head = tokio::task::spawn_blocking(move || hashed.head(exchange.identity)).await;
    let head = match head.map_err(std::io::Error::other).flatten() {
        Ok(head) => Bytes::from(head),
        Err(error) => return vec![Err(error)],
    };
    metrics.kv_transfer_bytes.with_label_values(&["sent"]).inc_by((head.len() + part.bytes.len()) as u64);
    metrics.kv_transfer_blocks.with_label_values(&["sent"]).inc_by(part.record.blocks.len() as u64);
    let payload = Bytes::from_owner(part.payload).slice(part.bytes);
    let starts = (0..payload.len()).step_by(FRAME_BYTES);
    let frames = starts.map(|start| payload.slice(start..payload.len().min(start + FRAME_BYTES)));
    std::iter::once(head).chain(frames).map(Ok).collect()
}

/// Count of one response, which it ends when it is dropped.
struct Count {
    metrics: Arc<Metrics>,
    began: Instant,
    is_complete: bool,
}

impl Count {
    fn complete(mut self) {
        self.is_complete = true;
    }
}

impl Drop for Count {
    fn drop(&mut self) {
        let result = if self.is_complete { "ok" } else { "cut_off" };
        self.metrics.kv_transfers.with_label_values(&["sent", result]).inc();
        self.metrics.kv_transfer.with_label_values(&["sent"]).observe(self.began.elapsed().as_secs_f64());
    }
}
