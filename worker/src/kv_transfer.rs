//! KV state from other workers: a router names a worker that has more of a prompt, and missing blocks are fetched. A
//! router may also name prefixes to fetch before requests need them (`ahead`).
//!
//! When the request arrives, the engine decides which blocks to fetch and how long to wait for them; the request keeps
//! its place in the queue. Received state is verified here and stored by the engine. After a failure the rest of the
//! prompt is computed, and the other worker gets no requests for some time.
//!
//! Not here: sending state (`http::fleet::kv`), the decision and the wait (`engine::kv::receiving`), the connection
//! (`peer`).

mod ahead;
mod hint;
mod peer;

use std::sync::Arc;
use std::time::{Duration, Instant};

use rustls::pki_types::ServerName;
use tokio::sync::{Mutex, Semaphore, oneshot, watch};
use tracing::{debug, warn};
use warmpath_common::model::Fingerprint;
use warmpath_shell::fleet_token::FleetTokens;
use warmpath_shell::tls::CurrentClient;

pub use ahead::{PeerPrefix, TooManyPrefetches};
pub use hint::PeerHint;
pub use peer::SHORTER_MAX;
use peer::{FetchError, FetchProgress, Peer};

use crate::engine::{EngineHandle, FetchOrder, PeerOffer};
use crate::metrics::Metrics;

/// Maximum number of runs that are fetched at a time; further requests compute their prompts.
///
/// Source: they share the network, and each needs memory for a run; a worker also sends at most four.
const FETCHES_MAX: usize = 4;

/// Label in metrics of state that a request waits for.
const RECEIVED: &str = "received";

/// Maximum number of remembered other workers; beyond it the least recently used one is removed.
///
/// Source: more workers than a router sends one worker's requests to.
const PEERS_MAX: u64 = 256;

/// Access control between workers and routers.
pub struct Access {
    /// Tokens of the fleet, one of which every request to a worker must have.
    pub tokens: Option<Arc<FleetTokens>>,
    /// Whether the worker listens only on the loopback interface.
    pub is_local: bool,
}

/// Fetcher of KV state from other workers.
pub struct StateFetcher {
    tls: CurrentClient,
    /// Name in other workers' certificates; `None` for the host in their URLs.
    peer_name: Option<ServerName<'static>>,
    access: Access,
    metrics: Arc<Metrics>,
    peers: moka::sync::Cache<String, Arc<Peer>>,
    places: Arc<Semaphore>,
    /// Places of the lists that are being fetched or wait for it.
    lists: Arc<Semaphore>,
    /// Lock of the list that is being fetched; held across `.await` until all of it is fetched.
    turn: Mutex<()>,
    /// Signal that another worker or a router has requested or received state.
    state_requests: watch::Sender<()>,
}

impl StateFetcher {
    /// Returns a fetcher with these TLS settings.
    pub fn new(
        tls: CurrentClient,
        peer_name: Option<ServerName<'static>>,
        access: Access,
        metrics: Arc<Metrics>,
    ) -> Self {
        Self {
            tls,
            peer_name,
            access,
            metrics,
            peers: moka::sync::Cache::new(PEERS_MAX),
            places: Arc::new(Semaphore::new(FETCHES_MAX)),
            lists: Arc::new(Semaphore::new(ahead::LISTS_MAX)),
            turn: Mutex::new(()),
            state_requests: watch::Sender::new(()),
        }
    }

    /// Returns the offer of a router's hint for one submission, and fetches what the engine then orders.
    ///
    /// Returns `None` if the hint is ignored: it cannot be trusted, its worker has just failed, or too many runs are
    /// being fetched.
    pub fn offer(&self, hint: &PeerHint, engine: &EngineHandle) -> Option<PeerOffer> {
        let exchange = engine.facts().exchange?;
        let peer = self.peer(hint)?;
        let speed = peer.speed(Instant::now())?;
        let place = Arc::clone(&self.places).try_acquire_owned().ok()?;
        let (order, ordered) = oneshot::channel::<FetchOrder>();
        let (engine, metrics, tokens) = (engine.clone(), Arc::clone(&self.metrics), self.access.tokens.clone());
        tokio::spawn(async move {
            let _place = place;
            let Ok(order) = ordered.await else { return };
            let layout = exchange.identity.fingerprint();
            let fetch = Fetch { peer, engine, tokens, layout, direction: RECEIVED };
            // The engine already has the received blocks.
            let _ = fetch.run(order, &metrics).await;
        });
        Some(PeerOffer { n_blocks: hint.n_blocks(), speed, order })
    }

    /// Returns the worker of a hint; `None` if the hint must be ignored.
    ///
    /// Without a fleet token any client may have sent the hint, so the worker must not connect to other machines.
    fn peer(&self, hint: &PeerHint) -> Option<Arc<Peer>> {
        if self.access.tokens.is_none() && !hint.is_loopback() {
            return None;
        }
        let name = hint.url().as_str();
        if let Some(peer) = self.peers.get(name) {
            return Some(peer);
        }
        let peer = Arc::new(Peer::new(hint.url(), &self.tls, self.peer_name.clone())?);
        self.peers.insert(name.to_owned(), Arc::clone(&peer));
        Some(peer)
    }
}

/// One run from one worker.
struct Fetch {
    peer: Arc<Peer>,
    engine: EngineHandle,
    tokens: Option<Arc<FleetTokens>>,
    layout: Fingerprint,
    /// Label in metrics.
    direction: &'static str,
}

impl Fetch {
    /// Executes an order; the progress counts what was received whatever the outcome.
    async fn run(self, order: FetchOrder, metrics: &Metrics) -> (Result<(), FetchError>, FetchProgress) {
        let began = Instant::now();
        let mut progress = FetchProgress::new(&order);
        let tokens = self.tokens.as_deref();
        let fetch_result = self.peer.fetch(&order, self.layout, tokens, &mut progress, &self.engine);
        let fetch_result = tokio::select! {
            fetch_result = tokio::time::timeout_at(order.deadline.into(), fetch_result) => {
                fetch_result.unwrap_or(Err(FetchError::Late))
            }
            // The engine closes the inbox at the deadline, too.
            () = order.inbox.closed() => {
                Err(if Instant::now() < order.deadline { FetchError::NotWanted } else { FetchError::Late })
            }
        };
        let took = began.elapsed();
        // Counted before the request continues, so that a client with its response sees the new count.
        self.peer.learn(&fetch_result, &progress, took, Instant::now());
        self.count(&fetch_result, &progress, took, metrics);
        order.inbox.end(took);
        self.engine.wake();
        (fetch_result, progress)
    }

    fn count(
        &self,
        fetch_result: &Result<(), FetchError>,
        progress: &FetchProgress,
        took: Duration,
        metrics: &Metrics,
    ) {
        let result = fetch_result.as_ref().err().map_or("ok", FetchError::name);
        let direction = self.direction;
        metrics.kv_transfers.with_label_values(&[direction, result]).inc();
        metrics.kv_transfer_bytes.with_label_values(&[direction]).inc_by(progress.n_bytes());
        metrics.kv_transfer_blocks.with_label_values(&[direction]).inc_by(progress.n_blocks() as u64);
        metrics.kv_transfer.with_label_values(&[direction]).observe(took.as_secs_f64());
        let (peer, n_blocks, ms) = (self.peer.url(), progress.n_blocks(), took.as_millis());
        match fetch_result {
            Err(error) if error.is_fault() => {
                warn!(%peer, n_blocks, error = warmpath_shell::chain(error), "cannot use the KV state of another worker");
            }
            _ => debug!(%peer, n_blocks, ms, result, "fetched KV state"),
        }
    }
}
