//! Prefetch: prefixes that a router names before requests need them, from a worker that drains, or from all workers if
//! this one is new.
//!
//! Prefixes are fetched one after the other, during at most half of the time, so that the network and the other
//! worker's engine stay free for requests. Prefixes that are stored already, are faster to compute or do not fit are
//! skipped, so a list that several routers send is fetched once. Not here: the choice of the prefixes (the router's
//! `fleet::prefetch`), storing them (the engine).

use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::http::StatusCode;
use tokio::sync::oneshot;
use tokio::time::sleep;
use tracing::info;
use warmpath_common::prefetch::HotPrefix;

use super::peer::{FetchError, FetchProgress};
use super::{Fetch, PeerHint, StateFetcher};
use crate::engine::{EngineHandle, FetchOrder, PeerOffer};

/// Maximum number of lists that are being fetched or wait to be.
///
/// Source: each of a few routers sends one when a worker joins or drains.
pub const LISTS_MAX: usize = 8;

/// Label in metrics of state that was fetched before a request needed it.
const PREFETCHED: &str = "prefetched";

/// Divisor of the store's size: one list may always fill a quarter of the store, even if other state must be evicted.
///
/// Source: the stored state was used at this worker, and the new state only at other workers.
const ROOM_PART: u64 = 4;

/// Longest pause between two prefixes.
///
/// Source: shorter than [`QUIET`], so that a draining worker does not exit between two prefixes.
const PAUSE_MAX: Duration = Duration::from_millis(500);

/// Pause before another attempt at a worker that sends its maximum number of runs.
///
/// Source: [`TRIES_MAX`] attempts take a second.
const BUSY_PAUSE: Duration = Duration::from_millis(100);

/// Maximum number of attempts at one prefix.
///
/// Source: a worker that stays busy for a second is overloaded.
const TRIES_MAX: usize = 10;

/// Time without a request for state after which a draining worker's transfers count as complete.
///
/// Source: routers notice the drain within some milliseconds; this is longer than [`PAUSE_MAX`] and a step of a slow
/// engine.
const QUIET: Duration = Duration::from_secs(2);

/// Interval at which a draining worker checks whether a router subscribes.
///
/// Source: far shorter than [`QUIET`].
const LOOK: Duration = Duration::from_millis(100);

/// Error: too many lists wait.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("this worker is fetching {LISTS_MAX} lists of prefixes already")]
pub struct TooManyPrefetches;

/// A prefix, and the worker from which it is fetched.
#[derive(Debug, Clone)]
pub struct PeerPrefix {
    /// The other worker, and how many of the prefix's blocks it has.
    pub hint: PeerHint,
    /// The prefix.
    pub prefix: HotPrefix,
}

impl StateFetcher {
    /// Returns whether all clients that can reach this worker may see each other's prompts.
    pub fn is_private(&self) -> bool {
        self.access.tokens.is_some() || self.access.is_local
    }

    /// Fetches prefixes in the background, each from the worker of its hint.
    ///
    /// Errors: [`TooManyPrefetches`].
    pub fn prefetch(
        self: &Arc<Self>,
        prefixes: Vec<PeerPrefix>,
        engine: &EngineHandle,
    ) -> Result<(), TooManyPrefetches> {
        let place = Arc::clone(&self.lists).try_acquire_owned().map_err(|_| TooManyPrefetches)?;
        let (transfers, engine) = (Arc::clone(self), engine.clone());
        tokio::spawn(async move {
            let _place = place;
            let _turn = transfers.turn.lock().await;
            tokio::select! {
                () = transfers.fetch_all(prefixes, &engine) => {}
                () = engine.stopped() => {}
            }
        });
        Ok(())
    }

    async fn fetch_all(&self, prefixes: Vec<PeerPrefix>, engine: &EngineHandle) {
        let Some(exchange) = engine.facts().exchange else { return };
        let n_stored = engine.cache_totals().ram.n_bytes;
        let room_bytes = exchange.ram_bytes.saturating_sub(n_stored).max(exchange.ram_bytes / ROOM_PART);
        let (began, mut n_left, mut n_fetched) = (Instant::now(), room_bytes, 0);
        let n_prefixes = prefixes.len();
        for PeerPrefix { hint, prefix } in prefixes {
            let start = Instant::now();
            let Some(progress) = self.fetch_ahead(&hint, prefix, n_left, engine).await else { continue };
            // The engine has stored the verified blocks of a failed run, too.
            n_left = n_left.saturating_sub(progress.state_bytes());
            n_fetched += usize::from(progress.n_blocks() > 0);
            if progress.n_bytes() > 0 {
                sleep(start.elapsed().min(PAUSE_MAX)).await;
            }
        }
        let (mib, took_s) = ((room_bytes - n_left) >> 20, began.elapsed().as_secs_f64());
        info!(n_prefixes, n_fetched, mib, took_s, "fetched prefixes from other workers");
    }

    /// Fetches the missing part of a prefix, and returns how much of it was received; `None` if nothing was ordered, or
    /// the other worker stays busy.
    async fn fetch_ahead(
        &self,
        hint: &PeerHint,
        prefix: HotPrefix,
        room: u64,
        engine: &EngineHandle,
    ) -> Option<FetchProgress> {
        let exchange = engine.facts().exchange?;
        let peer = self.peer(hint)?;
        for _ in 0..TRIES_MAX {
            // A worker without a speed has failed recently.
            let speed = peer.speed(Instant::now())?;
            let (order, ordered) = oneshot::channel::<FetchOrder>();
            let offer = PeerOffer { n_blocks: hint.n_blocks(), speed, order };
            engine.prefetch(prefix.clone(), room, offer);
            let order = ordered.await.ok()?;
            let (peer, engine, tokens) = (Arc::clone(&peer), engine.clone(), self.access.tokens.clone());
            let layout = exchange.identity.fingerprint();
            let fetch = Fetch { peer, engine, tokens, layout, direction: PREFETCHED };
            match fetch.run(order, &self.metrics).await {
                (Err(FetchError::Refused(StatusCode::SERVICE_UNAVAILABLE)), _) => sleep(BUSY_PAUSE).await,
                (_, progress) => return Some(progress),
            }
        }
        None
    }

    /// Records that another worker or a router has requested state, or has received it.
    pub fn asked(&self) {
        self.state_requests.send_replace(());
    }

    /// Returns once a draining worker has sent the state that others fetch, or no router subscribes.
    pub async fn handed_over(&self, engine: &EngineHandle, has_routers: impl Fn() -> bool) {
        let mut requests = self.state_requests.subscribe();
        let mut last = Instant::now();
        while engine.is_sending() || (last.elapsed() < QUIET && has_routers()) {
            if tokio::time::timeout(LOOK, requests.changed()).await.is_ok() {
                last = Instant::now();
            }
        }
    }
}
