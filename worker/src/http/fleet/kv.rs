//! `/internal/v1/kv/{key}`: stored KV state for another worker, as records of the disk tier. `/internal/v1/kv`: lists
//! this worker's prefixes, and makes it fetch prefixes from other workers.
//!
//! Not here: finding the state (the engine), the bytes (`store::exchange`), fetching it from others (`kv_transfer`).

use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::Json;
use axum::body::Body as ResponseBody;
use axum::extract::{Query, State};
use axum::http::{Uri, header};
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use futures::{Stream, StreamExt, stream};
use serde::Deserialize;
use serde_json::{Value, json};
use warmpath_common::block_hash::BlockHash;
use warmpath_common::model::Fingerprint;
use warmpath_common::prefetch::{HotList, LIST_TOKENS_MAX, Prefetch, pack, unpack};
use warmpath_shell::refusal::Name;

use crate::app::App;
use crate::engine::{Exchange, RunEnd, SendError, SentRun};
use crate::error::RequestError;
use crate::http::body::Body;
use crate::kv_transfer::{PeerPrefix, SHORTER_MAX, StateFetcher};
use crate::loaded_model::generator::Generator;
use crate::metrics::Metrics;
use crate::store::exchange::SentPart;

/// Time limit for sending a run; then the response ends early.
///
/// Source: twice the time that a worker waits for state of another one, so that no active reader is disconnected.
const READ_TIME_MAX: Duration = Duration::from_secs(60);

/// Maximum size of a frame of a payload. Units: bytes.
///
/// Source: even a slow link sends it long before the idle timeout of its reader.
const FRAME_BYTES: usize = 1 << 20;

/// Query of a worker for state.
#[derive(Debug, Deserialize)]
struct StateQuery {
    /// Number of blocks that end with the named one.
    blocks: usize,
    /// Identity of the state that it can use.
    layout: Fingerprint,
    /// Shorter runs that it accepts if this worker does not have the named one, the longest first: `HASH.BLOCKS`,
    /// separated by commas.
    #[serde(default)]
    or: String,
}

impl StateQuery {
    /// Returns the wanted runs, the longest first.
    ///
    /// Errors: `Field`.
    fn ends(&self, key: &str) -> Result<Vec<RunEnd>, RequestError> {
        let read_hash = |hash: &str, n_blocks: usize| {
            let mut last = BlockHash([0; 32]);
            hex::decode_to_slice(hash, &mut last.0).ok().filter(|()| n_blocks > 0)?;
            Some(RunEnd { last, n_blocks })
        };
        if self.blocks == 0 {
            return Err(RequestError::field("blocks", "`blocks` must be at least 1"));
        }
        let first = read_hash(key, self.blocks).ok_or_else(|| {
            RequestError::field("key", "`key` must be the 64 hexadecimal digits of a block's chain hash")
        })?;
        let shorter = self.or.split(',').filter(|text| !text.is_empty()).map(|text| {
            let (hash, n_blocks) = text.split_once('.')?;
            read_hash(hash, n_blocks.parse().ok()?)
        });
        let ends: Option<Vec<RunEnd>> = std::iter::once(Some(first)).chain(shorter).collect();
        ends.filter(|ends| ends.len() <= 1 + SHORTER_MAX).ok_or_else(|| {
            let reason = format!("`or` must be at most {SHORTER_MAX} of `HASH.BLOCKS`, separated by commas");
            RequestError::field("or", reason)
        })
    }
}

/// Query of a router for this worker's prefixes.
#[derive(Debug, Deserialize)]
struct HotListQuery {
    /// Maximum number of tokens of all prefixes together.
    tokens: usize,
}

/// Responds with the most valuable prefixes.
pub async fn list(State(app): State<App>, uri: Uri) -> Result<Json<HotList>, RequestError> {
    let (generator, transfers) = exchanging(&app)?;
    transfers.asked();
    let query = Query::<HotListQuery>::try_from_uri(&uri);
    let Query(query) = query.map_err(|error| RequestError::Query { reason: error.body_text() })?;
    let prefixes = generator.engine.hot_prefixes(query.tokens.min(LIST_TOKENS_MAX)).await?;
    let block_size_tokens = generator.common.model.block_size_tokens;
    // Hashing some hundred thousand tokens would delay other connections.
    let packed_prefixes = tokio::task::spawn_blocking(move || pack(&prefixes, block_size_tokens)).await;
    let prefixes = packed_prefixes.map_err(|error| RequestError::Internal { reason: error.to_string() })?;
    transfers.asked();
    Ok(Json(HotList { block_size_tokens, prefixes }))
}

/// Fetches the prefixes of the body in the background, and responds with their number.
pub async fn prefetch(State(app): State<App>, body: Body) -> Result<Json<Value>, RequestError> {
    app.open_generator()?;
    let (generator, transfers) = exchanging(&app)?;
    let Prefetch { prefixes } = body.parse()?;
    let unpacked_prefixes = unpack(prefixes.iter().map(|item| &item.prefix));
    let unpacked_prefixes = unpacked_prefixes.map_err(|error| RequestError::field("prefixes", error.to_string()))?;
    let block_size_tokens = generator.common.model.block_size_tokens as usize;
    let mut peer_prefixes = Vec::new();
    for (item, prefix) in prefixes.iter().zip(unpacked_prefixes) {
        let n_blocks = prefix.tokens.len() / block_size_tokens;
        let hint = format!("{};blocks={n_blocks}", item.peer).parse().map_err(|_| {
            RequestError::field(
                "prefixes",
                "each must have the base URL of a worker as `peer`, and at least a block of `tokens`",
            )
        })?;
        // Longer prefixes cannot be part of a prompt.
        if prefix.tokens.len() <= generator.common.model.context_tokens as usize {
            peer_prefixes.push(PeerPrefix { hint, prefix });
        }
    }
    let n_prefixes = peer_prefixes.len();
    transfers.prefetch(peer_prefixes, &generator.engine)?;
    Ok(Json(json!({"prefixes": n_prefixes})))
}

/// Returns the parts that exchange prefixes with the fleet.
///
/// Errors: like [`App::generator`]; `Send(Off)`; `NotEnabled` if clients without a token can reach this worker, because
/// prefixes have text of prompts.
fn exchanging(app: &App) -> Result<(Arc<Generator>, &Arc<StateFetcher>), RequestError> {
    let generator = app.generator()?;
    let transfers = app.transfers.as_ref().filter(|_| generator.engine.facts().exchange.is_some());
    let transfers = transfers.ok_or(SendError::Off)?;
    if !transfers.is_private() {
        return Err(RequestError::NotEnabled { what: "listing and fetching prefixes", flag: "--fleet-token-file" });
    }
    Ok((generator, transfers))
}

/// Responds with the state of a run of blocks, or immediately with 404 if this worker does not have the last one.
pub async fn send(State(app): State<App>, Name(key): Name, uri: Uri) -> Result<Response, RequestError> {
    let began = Instant::now();
    app.transfers.iter().for_each(|transfers| transfers.asked());
    let lookup = find(&app, &key, &uri).await;
    let result = match &lookup {
        Ok(_) => None,
        Err(RequestError::Send(SendError::Missing)) => Some("missing"),
        Err(RequestError::Send(SendError::Layout)) => Some("layout"),
        Err(RequestError::Send(SendError::Busy)) => Some("busy"),
        Err(_) => Some("failed"),
    };
    if let Some(result) = result {
        app.metrics.kv_transfers.with_label_values(&["sent", result]).inc();
    }
    let (run, exchange) = lookup?;
    let count =
        Count { metrics: Arc::clone(&app.metrics), transfers: app.transfers.clone(), began, is_complete: false };
    let body = ResponseBody::from_stream(body(run, exchange, count).take_until(tokio::time::sleep(READ_TIME_MAX)));
    Ok(([(header::CONTENT_TYPE, "application/octet-stream"), (header::CACHE_CONTROL, "no-store")], body)
        .into_response())
}

async fn find(app: &App, key: &str, uri: &Uri) -> Result<(SentRun, Exchange), RequestError> {
    let generator = app.generator()?;
    let exchange = generator.engine.facts().exchange.filter(|_| app.transfers.is_some()).ok_or(SendError::Off)?;
    let query = Query::<StateQuery>::try_from_uri(uri);
    let Query(query) = query.map_err(|error| RequestError::Query { reason: error.body_text() })?;
    let ends = query.ends(key)?;
    if query.layout != exchange.identity.fingerprint() {
        return Err(SendError::Layout.into());
    }
    Ok((generator.engine.run_to(ends).await?, exchange))
}

/// Returns the records of a run; dropping the stream frees its place.
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
    let part_to_hash = part.clone();
    // A checksum of some megabytes would delay other connections.
    let head = tokio::task::spawn_blocking(move || part_to_hash.head(exchange.identity)).await;
    let head = match head.map_err(std::io::Error::other).flatten() {
        Ok(head) => Bytes::from(head),
        Err(error) => return vec![Err(error)],
    };
    metrics.kv_transfer_bytes.with_label_values(&["sent"]).inc_by((head.len() + part.bytes.len()) as u64);
    metrics.kv_transfer_blocks.with_label_values(&["sent"]).inc_by(part.record.blocks.len() as u64);
    let payload = part.payload.slice(part.bytes);
    let starts = (0..payload.len()).step_by(FRAME_BYTES);
    let frames = starts.map(|start| payload.slice(start..payload.len().min(start + FRAME_BYTES)));
    std::iter::once(head).chain(frames).map(Ok).collect()
}

/// Guard that counts a response when it is dropped.
struct Count {
    metrics: Arc<Metrics>,
    transfers: Option<Arc<StateFetcher>>,
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
        self.transfers.iter().for_each(|transfers| transfers.asked());
        self.metrics.kv_transfers.with_label_values(&["sent", result]).inc();
        self.metrics.kv_transfer.with_label_values(&["sent"]).observe(self.began.elapsed().as_secs_f64());
    }
}
