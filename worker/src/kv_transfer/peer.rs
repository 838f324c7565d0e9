//! The connection to another worker, its measured speed, and one fetch from it.
//!
//! A run is read record by record. The fetch ends as soon as computing the rest would be faster than receiving it, at
//! the rate so far. Not here: the choice of workers and blocks (`kv_transfer`, the engine), the records
//! (`store::exchange`).

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use axum::body::Body;
use axum::http::{HeaderValue, Request, StatusCode, header};
use bytes::Bytes;
use http_body_util::{BodyExt, Empty};
use hyper_util::client::legacy;
use hyper_util::rt::{TokioExecutor, TokioTimer};
use rustls::pki_types::ServerName;
use url::Url;
use warmpath_common::model::Fingerprint;
use warmpath_common::summary::KV_PATH;
use warmpath_shell::connect::{Connector, Secured};
use warmpath_shell::fleet_token::FleetTokens;
use warmpath_shell::tls::CurrentClient;

use crate::engine::{EngineHandle, FetchOrder, PeerSpeed};
use crate::store::exchange::{RunReader, Untrusted};

/// Time limit for connecting to another worker.
///
/// Source: the workers of a fleet are in one network, where connecting takes milliseconds, and a request is waiting.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(1);

/// Time after which an unused connection is closed; the other worker's listener closes it after 120 s.
const CONNECTION_IDLE_MAX: Duration = Duration::from_secs(90);

/// Time without requests to a worker after it failed or sent unusable state.
///
/// Source: with it, an unreachable worker costs one wait in ten seconds.
const PAUSE: Duration = Duration::from_secs(10);

/// Assumed speed before the first fetch. Source: a link of 1 Gbit/s, and a step of the other worker's engine.
const SPEED_AT_FIRST: PeerSpeed = PeerSpeed { ms_per_byte: 8e-6, latency_ms: 5.0 };

/// Weight of the newest measurement in an average. Source: as in `restore_costs`.
const NEWEST_WEIGHT: f64 = 0.3;

/// Time after a run's first byte from which its measured rate is used.
///
/// Source: the first bytes arrive in bursts.
const RATE_AFTER: Duration = Duration::from_millis(20);

/// Maximum number of shorter runs in a request, in addition to the wanted one.
///
/// Source: if the other worker has evicted the end of a run, at most a 32nd of the run is lost in addition, and the URL
/// stays below 4 KB.
pub const SHORTER_MAX: usize = 32;

/// Reason why a run was not received completely.
#[derive(Debug, thiserror::Error)]
pub enum FetchError {
    /// No response has begun.
    #[error("no answer")]
    Unreachable(#[source] legacy::Error),
    /// The other worker refused.
    #[error("it responded with {0}")]
    Refused(StatusCode),
    /// The connection broke.
    #[error("the connection broke")]
    Broken(#[source] axum::Error),
    /// The response ended before the run's last block.
    #[error("the response ended early")]
    CutOff,
    /// The other worker has only the first blocks.
    #[error("it has only a part")]
    Partial,
    /// The received state cannot be used.
    #[error(transparent)]
    Untrusted(#[from] Untrusted),
    /// Computing the rest is faster.
    #[error("computing the rest is faster")]
    Slow,
    /// The deadline has passed, so computing would have been faster.
    #[error("it took too long")]
    Late,
    /// The engine no longer waits for the run.
    #[error("no request waits for it any more")]
    NotWanted,
}

impl FetchError {
    /// Returns the name of the error in metrics.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Unreachable(_) => "unreachable",
            Self::Refused(StatusCode::NOT_FOUND) => "missing",
            Self::Refused(_) => "refused",
            Self::Broken(_) | Self::CutOff => "cut_off",
            Self::Partial => "partial",
            Self::Untrusted(_) => "untrusted",
            Self::Slow | Self::Late => "late",
            Self::NotWanted => "cancelled",
        }
    }

    /// Returns whether the other worker is at fault, so that it gets no requests for some time.
    pub fn is_fault(&self) -> bool {
        match self {
            Self::Unreachable(_) | Self::Broken(_) | Self::Untrusted(_) | Self::Late => true,
            Self::Refused(status) => !matches!(*status, StatusCode::NOT_FOUND | StatusCode::SERVICE_UNAVAILABLE),
            Self::CutOff | Self::Partial | Self::Slow | Self::NotWanted => false,
        }
    }
}

/// Received part of a run.
#[derive(Debug)]
pub struct FetchProgress {
    reader: RunReader,
    n_bytes: u64,
    /// Time from the request to the head of the response, and the time of that head.
    head: Option<(Duration, Instant)>,
}

impl FetchProgress {
    /// Returns the progress of an order that has not begun.
    pub fn new(order: &FetchOrder) -> Self {
        Self { reader: RunReader::new(order.run.clone()), n_bytes: 0, head: None }
    }

    /// Returns the bytes that were received.
    pub fn n_bytes(&self) -> u64 {
        self.n_bytes
    }

    /// Returns the number of blocks that were received and verified.
    pub fn n_blocks(&self) -> usize {
        self.reader.n_received()
    }

    /// Returns whether there is a rest of the run, and a block of it takes longer to receive than to compute.
    fn is_slow(&self, order: &FetchOrder, now: Instant) -> bool {
        let Some((_, head_at)) = self.head.filter(|_| self.reader.n_left() > 0) else { return false };
        let elapsed = now.saturating_duration_since(head_at);
        // The head of a record arrives alone and does not show the rate, so the first block may take its whole time.
        let n_blocks = (self.n_bytes as f64 / order.run.block_bytes as f64).max(1.0);
        elapsed >= RATE_AFTER && elapsed.as_secs_f64() * 1e3 / n_blocks > order.prefill_ms_per_block
    }
}

/// Another worker.
pub struct Peer {
    base: Url,
    client: legacy::Client<Connector, Empty<Bytes>>,
    /// Measured speed and recent failures. The lock is held for a few instructions.
    known: Mutex<KnownPeer>,
}

#[derive(Debug, Clone, Copy)]
struct KnownPeer {
    speed: PeerSpeed,
    paused_until: Option<Instant>,
}

impl Peer {
    /// Returns the worker at a base URL, whose certificate must have `name`, or without one the URL's host; `None` if
    /// no certificate can have it.
    pub fn new(base: &Url, (tls, name): (&CurrentClient, Option<ServerName<'static>>)) -> Option<Self> {
        let host = base.host_str()?.trim_matches(['[', ']']).to_owned();
        let secured = match base.scheme() {
            "https" => {
                let name = name.or_else(|| ServerName::try_from(host).ok())?;
                Some(Secured { config: Arc::clone(tls), name })
            }
            _ => None,
        };
        let mut pooled = legacy::Client::builder(TokioExecutor::new());
        pooled.pool_timer(TokioTimer::new()).pool_idle_timeout(CONNECTION_IDLE_MAX);
        let client = pooled.build(Connector::new(secured, CONNECT_TIMEOUT));
        let known = Mutex::new(KnownPeer { speed: SPEED_AT_FIRST, paused_until: None });
        Some(Self { base: base.clone(), client, known })
    }

    /// Returns its base URL.
    pub fn url(&self) -> &Url {
        &self.base
    }

    /// Returns the measured speed; `None` during the pause after a failure.
    pub fn speed(&self, now: Instant) -> Option<PeerSpeed> {
        let known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        known.paused_until.is_none_or(|until| until <= now).then_some(known.speed)
    }

    /// Updates the speed, or starts a pause, by the outcome of a fetch.
    pub fn learn(&self, fetched: &Result<(), FetchError>, (progress, took): (&FetchProgress, Duration), now: Instant) {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        if fetched.as_ref().is_err_and(FetchError::is_fault) {
            known.paused_until = Some(now + PAUSE);
        }
        let Some((latency, _)) = progress.head.filter(|_| progress.n_bytes > 0) else { return };
        let latency_ms = latency.as_secs_f64() * 1e3;
        let ms_per_byte = (took.as_secs_f64() * 1e3 - latency_ms).max(0.0) / progress.n_bytes as f64;
        known.speed.latency_ms += NEWEST_WEIGHT * (latency_ms - known.speed.latency_ms);
        known.speed.ms_per_byte += NEWEST_WEIGHT * (ms_per_byte - known.speed.ms_per_byte);
    }

    /// Fetches a run and gives the engine each of its records.
    ///
    /// Errors: all except `Late` and `NotWanted`, which the caller detects.
    pub async fn fetch(
        &self,
        (order, layout, tokens): (&FetchOrder, Fingerprint, Option<&FleetTokens>),
        progress: &mut FetchProgress,
        engine: &EngineHandle,
    ) -> Result<(), FetchError> {
        let began = Instant::now();
        let response = self.ask(&self.url_of(order, layout), tokens).await?;
        if response.status() != StatusCode::OK {
            return Err(FetchError::Refused(response.status()));
        }
        progress.head = Some((began.elapsed(), Instant::now()));
        let mut body = response.into_body();
        while progress.reader.n_left() > 0 {
            let Some(frame) = body.frame().await else {
                return Err(if progress.reader.is_between_records() {
                    FetchError::Partial
                } else {
                    FetchError::CutOff
                });
            };
            let frame = frame.map_err(FetchError::Broken)?;
            // Trailers have no state.
            let Ok(bytes) = frame.into_data() else { continue };
            progress.n_bytes += bytes.len() as u64;
            for received in progress.reader.push(&bytes)? {
                order.inbox.push(received);
                engine.wake();
            }
            if progress.is_slow(order, Instant::now()) {
                return Err(FetchError::Slow);
            }
        }
        Ok(())
    }

    fn url_of(&self, order: &FetchOrder, layout: Fingerprint) -> Url {
        let mut url = self.base.clone();
        let (blocks, first_block) = (&order.run.blocks, order.run.first_block);
        let last = blocks.last().copied().unwrap_or(order.run.root);
        // Chunks end at multiples of their length from the chain's start.
        let step = blocks.len().div_ceil(SHORTER_MAX);
        let ends = (1..blocks.len()).rev().filter(|n_blocks| (first_block + n_blocks).is_multiple_of(step));
        let shorter: Vec<String> = ends.map(|n_blocks| format!("{}.{n_blocks}", blocks[n_blocks - 1])).collect();
        // Joining would replace the path of the base URL.
        url.set_path(&format!("{}{KV_PATH}/{last}", self.base.path().trim_end_matches('/')));
        url.set_query(Some(&format!("blocks={}&layout={layout}&or={}", blocks.len(), shorter.join(","))));
        url
    }

    /// Sends the request. If a token is refused, the next one is tried, because token files change at different times.
    async fn ask(&self, url: &Url, tokens: Option<&FleetTokens>) -> Result<axum::http::Response<Body>, FetchError> {
        let mut shown = tokens.map(FleetTokens::shown).unwrap_or_default().into_iter();
        loop {
            let token: Option<HeaderValue> = shown.next();
            let mut request = Request::get(url.as_str()).body(Empty::new()).expect("a URL is a valid target");
            request.headers_mut().extend(token.map(|token| (header::AUTHORIZATION, token)));
            let response = self.client.request(request).await.map_err(FetchError::Unreachable)?;
            if response.status() != StatusCode::UNAUTHORIZED || shown.len() == 0 {
                return Ok(response.map(Body::new));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use warmpath_common::block_hash::BlockHash;

    use super::*;
    use crate::engine::Inbox;
    use crate::store::Identity;
    use crate::store::exchange::WantedRun;

    /// Returns whether a run of which this much has come is slow, if computing a block of 1,000 bytes takes 100 ms.
    fn is_slow(n_blocks_left: usize, n_bytes: u64, since_head_ms: u64) -> bool {
        let run = WantedRun {
            identity: Identity::new(Fingerprint([0; 32]), "", 16),
            root: BlockHash([0; 32]),
            first_block: 0,
            parent: None,
            blocks: vec![BlockHash([1; 32]); n_blocks_left],
            tokens: Vec::new(),
            block_bytes: 1000,
        };
        let now = Instant::now();
        let order = FetchOrder { run, prefill_ms_per_block: 100.0, deadline: now, inbox: Arc::new(Inbox::default()) };
        let progress = FetchProgress { n_bytes, head: Some((Duration::ZERO, now)), ..FetchProgress::new(&order) };
        progress.is_slow(&order, now + Duration::from_millis(since_head_ms))
    }

    #[test]
    fn the_rest_of_a_run_is_slow_if_its_blocks_are_computed_faster() {
        assert!(!is_slow(8, 4000, 399));
        assert!(is_slow(8, 4000, 401));
    }

    #[test]
    fn a_head_without_a_block_has_the_time_of_one() {
        assert!(!is_slow(8, 300, 99));
        assert!(is_slow(8, 300, 101));
    }

    #[test]
    fn a_run_that_has_come_is_not_slow() {
        assert!(!is_slow(0, 8000, 5000));
    }
}
