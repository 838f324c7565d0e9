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

/// Half-life of the excess of a measured speed's times over [`SPEED_AT_FIRST`].
///
/// Source: as in `restore_costs`: a slow worker is tried again every few minutes.
const HALF_LIFE: Duration = Duration::from_secs(60);

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
    /// Size of a block's state.
    block_bytes: u64,
    n_bytes: u64,
    /// Time from the request to the head of the response, and the time of that head.
    head: Option<(Duration, Instant)>,
}

impl FetchProgress {
    /// Returns the progress of an order that has not begun.
    pub fn new(order: &FetchOrder) -> Self {
        let reader = RunReader::new(order.run.clone());
        Self { reader, block_bytes: order.run.block_bytes, n_bytes: 0, head: None }
    }

    /// Returns the bytes that were received.
    pub fn n_bytes(&self) -> u64 {
        self.n_bytes
    }

    /// Returns the number of blocks that were received and verified.
    pub fn n_blocks(&self) -> usize {
        self.reader.n_received()
    }

    /// Returns the size of the verified blocks' state.
    pub fn state_bytes(&self) -> u64 {
        self.block_bytes * self.n_blocks() as u64
    }

    /// Returns whether there is a rest of the run, and a block of it takes longer to receive than to compute.
    fn is_slow(&self, order: &FetchOrder, now: Instant) -> bool {
        let Some((_, head_at)) = self.head.filter(|_| self.reader.n_left() > 0) else { return false };
        let elapsed_time = now.saturating_duration_since(head_at);
        // The head of a record arrives alone and does not show the rate, so the first block may take its whole time.
        let n_blocks = (self.n_bytes as f64 / self.block_bytes as f64).max(1.0);
        elapsed_time >= RATE_AFTER && elapsed_time.as_secs_f64() * 1e3 / n_blocks > order.prefill_ms_per_block
    }
}

/// Another worker.
pub struct Peer {
    base: Url,
    client: legacy::Client<Connector, Empty<Bytes>>,
    /// Measured speed and recent failures. The lock is held for a few instructions.
    state: Mutex<KnownPeer>,
}

#[derive(Debug, Clone, Copy)]
struct KnownPeer {
    /// Speed at the last measurement.
    speed: PeerSpeed,
    /// Time of the last measurement; `None` before the first one.
    measured_at: Option<Instant>,
    paused_until: Option<Instant>,
}

impl KnownPeer {
    /// Returns the speed, whose excess over the assumed one fades. Otherwise a single bad measurement would prevent
    /// fetches from the worker, and thus any better measurement, forever.
    fn speed(&self, now: Instant) -> PeerSpeed {
        let Some(measured_at) = self.measured_at else { return self.speed };
        let age = now.saturating_duration_since(measured_at);
        let share_left = 0.5_f64.powf(age.as_secs_f64() / HALF_LIFE.as_secs_f64());
        let faded_value = |measured_value: f64, first: f64| {
            measured_value.min(first + (measured_value - first).max(0.0) * share_left)
        };
        PeerSpeed {
            ms_per_byte: faded_value(self.speed.ms_per_byte, SPEED_AT_FIRST.ms_per_byte),
            latency_ms: faded_value(self.speed.latency_ms, SPEED_AT_FIRST.latency_ms),
        }
    }

    /// Updates the speed by a fetch that took this long from the request on.
    fn measure(&mut self, progress: &FetchProgress, took: Duration, now: Instant) {
        let Some((latency, _)) = progress.head.filter(|_| progress.n_bytes > 0) else { return };
        let mut speed = self.speed(now);
        speed.latency_ms += NEWEST_WEIGHT * (latency.as_secs_f64() * 1e3 - speed.latency_ms);
        // Less than a block only shows that the block's bytes take longer than this. The rate of some hundred bytes
        // would be that of a single packet.
        let is_part = progress.n_bytes < progress.block_bytes;
        let n_bytes = progress.n_bytes.max(progress.block_bytes);
        let ms_per_byte = took.saturating_sub(latency).as_secs_f64() * 1e3 / n_bytes as f64;
        if !is_part || ms_per_byte > speed.ms_per_byte {
            speed.ms_per_byte += NEWEST_WEIGHT * (ms_per_byte - speed.ms_per_byte);
        }
        (self.speed, self.measured_at) = (speed, Some(now));
    }
}

impl Peer {
    /// Returns the worker at a base URL, whose certificate must have `name`, or without one the URL's host; `None` if
    /// no certificate can have it.
    pub fn new(base: &Url, tls: &CurrentClient, name: Option<ServerName<'static>>) -> Option<Self> {
        let host = base.host_str()?.trim_matches(['[', ']']).to_owned();
        let tls_config = match base.scheme() {
            "https" => {
                let name = name.or_else(|| ServerName::try_from(host).ok())?;
                Some(Secured { config: Arc::clone(tls), name })
            }
            _ => None,
        };
        let mut builder = legacy::Client::builder(TokioExecutor::new());
        builder.pool_timer(TokioTimer::new()).pool_idle_timeout(CONNECTION_IDLE_MAX);
        let client = builder.build(Connector::new(tls_config, CONNECT_TIMEOUT));
        let peer_state = Mutex::new(KnownPeer { speed: SPEED_AT_FIRST, measured_at: None, paused_until: None });
        Some(Self { base: base.clone(), client, state: peer_state })
    }

    /// Returns its base URL.
    pub fn url(&self) -> &Url {
        &self.base
    }

    /// Returns the measured speed, which approaches the assumed one with time if it is slower; `None` during the pause
    /// after a failure.
    pub fn speed(&self, now: Instant) -> Option<PeerSpeed> {
        let peer_state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        peer_state.paused_until.is_none_or(|until| until <= now).then(|| peer_state.speed(now))
    }

    /// Updates the speed, or starts a pause, by the outcome of a fetch.
    pub fn learn(&self, fetch_result: &Result<(), FetchError>, progress: &FetchProgress, took: Duration, now: Instant) {
        let mut peer_state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if fetch_result.as_ref().is_err_and(FetchError::is_fault) {
            peer_state.paused_until = Some(now + PAUSE);
        }
        peer_state.measure(progress, took, now);
    }

    /// Fetches a run and gives the engine each of its records.
    ///
    /// Errors: all except `Late` and `NotWanted`, which the caller detects.
    pub async fn fetch(
        &self,
        order: &FetchOrder,
        layout: Fingerprint,
        tokens: Option<&FleetTokens>,
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
            for received_run in progress.reader.push(&bytes)? {
                order.inbox.push(received_run);
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
        let mut shown_tokens = tokens.map(FleetTokens::shown).unwrap_or_default().into_iter();
        loop {
            let token: Option<HeaderValue> = shown_tokens.next();
            let mut request = Request::get(url.as_str()).body(Empty::new()).expect("a URL is a valid target");
            request.headers_mut().extend(token.map(|token| (header::AUTHORIZATION, token)));
            let response = self.client.request(request).await.map_err(FetchError::Unreachable)?;
            if response.status() != StatusCode::UNAUTHORIZED || shown_tokens.len() == 0 {
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

    const BLOCK_BYTES: u64 = 1000;

    /// Returns the order of a run of blocks, of which each takes 100 ms to compute.
    fn order(n_blocks: usize, now: Instant) -> FetchOrder {
        let run = WantedRun {
            identity: Identity::new(Fingerprint([0; 32]), "", 16),
            root: BlockHash([0; 32]),
            first_block: 0,
            parent: None,
            blocks: vec![BlockHash([1; 32]); n_blocks],
            tokens: Vec::new(),
            block_bytes: BLOCK_BYTES,
        };
        FetchOrder { run, prefill_ms_per_block: 100.0, deadline: now, inbox: Arc::new(Inbox::default()) }
    }

    /// Returns whether a run of which this much has come is slow.
    fn is_slow(n_blocks_left: usize, n_bytes: u64, since_head_ms: u64) -> bool {
        let now = Instant::now();
        let order = order(n_blocks_left, now);
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

    /// Returns a worker after a fetch that ended with this outcome.
    fn after(outcome: Result<(), FetchError>, (n_bytes, latency_ms, rest_ms): (u64, u64, u64), now: Instant) -> Peer {
        let tls = warmpath_shell::tls::ClientFiles::default().open().expect("the system's roots");
        let peer = Peer::new(&Url::parse("http://127.0.0.1:1").expect("a URL"), &tls, None).expect("a host");
        let [latency, rest] = [latency_ms, rest_ms].map(Duration::from_millis);
        let progress = FetchProgress { n_bytes, head: Some((latency, now)), ..FetchProgress::new(&order(8, now)) };
        peer.learn(&outcome, &progress, latency + rest, now);
        peer
    }

    fn is_near(speed: PeerSpeed, (ms_per_byte, latency_ms): (f64, f64)) -> bool {
        let is_near = |found: f64, expected: f64| (found - expected).abs() < 1e-9;
        is_near(speed.ms_per_byte, ms_per_byte) && is_near(speed.latency_ms, latency_ms)
    }

    #[test]
    fn a_slow_worker_is_assumed_to_be_faster_as_time_passes_and_a_fast_one_stays_fast() {
        let now = Instant::now();
        let speed = |peer: &Peer, n_half_lives| peer.speed(now + n_half_lives * HALF_LIFE).expect("it did not fail");
        let first = SPEED_AT_FIRST.ms_per_byte;
        let slow = after(Err(FetchError::Slow), (2000, 105, 2000), now);
        let excess = NEWEST_WEIGHT * (1.0 - first);
        assert!(is_near(speed(&slow, 0), (first + excess, 35.0)), "{:?}", speed(&slow, 0));
        assert!(is_near(speed(&slow, 1), (first + excess / 2.0, 20.0)), "{:?}", speed(&slow, 1));
        assert!(is_near(speed(&slow, 60), (first, 5.0)), "{:?}", speed(&slow, 60));
        let fast = after(Ok(()), (8000, 0, 0), now);
        for n_half_lives in [0, 1, 60] {
            assert!(is_near(speed(&fast, n_half_lives), (0.7 * first, 3.5)), "{:?}", speed(&fast, n_half_lives));
        }
    }

    #[test]
    fn a_measurement_is_averaged_with_what_is_left_of_the_earlier_ones() {
        let now = Instant::now();
        let peer = after(Err(FetchError::Slow), (2000, 105, 2000), now);
        let later = now + 60 * HALF_LIFE;
        let progress =
            FetchProgress { n_bytes: 8000, head: Some((Duration::ZERO, later)), ..FetchProgress::new(&order(8, now)) };
        peer.learn(&Ok(()), &progress, Duration::ZERO, later);
        let speed = peer.speed(later).expect("it did not fail");
        assert!(is_near(speed, (0.7 * SPEED_AT_FIRST.ms_per_byte, 3.5)), "{speed:?}");
    }

    #[test]
    fn less_than_a_block_shows_only_that_a_block_takes_longer() {
        let now = Instant::now();
        let first = SPEED_AT_FIRST.ms_per_byte;
        for (outcome, n_bytes, rest_ms, expected) in [
            (FetchError::Slow, 10, 1000, first + NEWEST_WEIGHT * (1.0 - first)),
            (FetchError::Slow, BLOCK_BYTES - 1, 1000, first + NEWEST_WEIGHT * (1.0 - first)),
            (FetchError::NotWanted, BLOCK_BYTES - 1, 0, first),
            (FetchError::NotWanted, BLOCK_BYTES, 0, first * (1.0 - NEWEST_WEIGHT)),
        ] {
            let peer = after(Err(outcome), (n_bytes, 5, rest_ms), now);
            let speed = peer.speed(now).expect("it did not fail");
            assert!(is_near(speed, (expected, 5.0)), "{n_bytes} bytes, {rest_ms} ms: {speed:?}");
        }
    }
}
