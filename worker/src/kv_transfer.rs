//! KV state from other workers: a router names a worker that holds more of a prompt, and missing blocks are fetched.
//!
//! The engine decides which blocks it wants when the request arrives, and by when; the request keeps its place in the
//! queue meanwhile. What arrives is verified here and stored by the engine. Whatever goes wrong, the rest of the prompt
//! is computed. A worker that failed is left alone for a while.
//!
//! Not here: sending state (`http::kv`), the decision and the wait (`engine::kv::receiving`), the connection (`peer`).

mod hint;
mod peer;

use std::sync::Arc;
use std::time::{Duration, Instant};

use rustls::pki_types::ServerName;
use tokio::sync::{Semaphore, oneshot};
use tracing::{debug, warn};
use warmpath_common::model::Fingerprint;
use warmpath_shell::fleet_token::FleetTokens;
use warmpath_shell::tls::CurrentClient;

pub use hint::PeerHint;
use peer::{FetchError, Peer, Progress};

use crate::engine::{EngineHandle, FetchOrder, PeerOffer};
use crate::metrics::Metrics;

/// Most runs that are fetched at a time; further requests compute.
///
/// Source: own choice: they share the network, and each needs memory for a run.
const FETCHES_MAX: usize = 4;

/// Most other workers that are remembered; the least recently used one is forgotten.
///
/// Source: own choice: more workers than a router sends one worker's requests to.
const PEERS_MAX: u64 = 256;

/// Fetcher of KV state from other workers.
pub struct Transfers {
    tls: CurrentClient,
    /// Name that other workers' certificates bear; `None` for the host in their URLs.
    peer_name: Option<ServerName<'static>>,
    tokens: Option<Arc<FleetTokens>>,
    metrics: Arc<Metrics>,
    peers: moka::sync::Cache<String, Arc<Peer>>,
    places: Arc<Semaphore>,
}

impl Transfers {
    /// Returns a fetcher with these TLS settings, which sends other workers one of `tokens`.
    pub fn new(
        (tls, peer_name): (CurrentClient, Option<ServerName<'static>>),
        tokens: Option<Arc<FleetTokens>>,
        metrics: Arc<Metrics>,
    ) -> Self {
        let peers = moka::sync::Cache::new(PEERS_MAX);
        Self { tls, peer_name, tokens, metrics, peers, places: Arc::new(Semaphore::new(FETCHES_MAX)) }
    }

    /// Returns the offer of a router's hint for one submission, and fetches what the engine then orders.
    ///
    /// Returns `None` if the hint is not followed: it is not to be trusted, its worker has just failed, or too many
    /// runs are being fetched.
    pub fn offer(&self, hint: &PeerHint, engine: &EngineHandle) -> Option<PeerOffer> {
        let exchange = engine.facts().exchange?;
        // Without a token anybody may have sent the hint: it must not reach out to other machines.
        let is_trusted = self.tokens.is_some() || hint.is_loopback();
        let peer = is_trusted.then(|| self.peer(hint)).flatten()?;
        let speed = peer.speed(Instant::now())?;
        let place = Arc::clone(&self.places).try_acquire_owned().ok()?;
        let (order, ordered) = oneshot::channel::<FetchOrder>();
        let (engine, metrics, tokens) = (engine.clone(), Arc::clone(&self.metrics), self.tokens.clone());
        tokio::spawn(async move {
            let _place = place;
            let Ok(order) = ordered.await else { return };
            let layout = exchange.identity.fingerprint();
            Fetch { peer, engine, tokens, layout }.run(order, &metrics).await;
        });
        Some(PeerOffer { n_blocks: hint.n_blocks(), speed, order })
    }

    fn peer(&self, hint: &PeerHint) -> Option<Arc<Peer>> {
        let name = hint.url().as_str();
        if let Some(peer) = self.peers.get(name) {
            return Some(peer);
        }
        let peer = Arc::new(Peer::new(hint.url(), (&self.tls, self.peer_name.clone()))?);
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
}

impl Fetch {
    async fn run(self, order: FetchOrder, metrics: &Metrics) {
        let began = Instant::now();
        let mut progress = Progress::new(&order);
        let tokens = self.tokens.as_deref();
        let fetched = self.peer.fetch((&order, self.layout, tokens), &mut progress, &self.engine);
        let fetched = tokio::select! {
            fetched = tokio::time::timeout_at(order.deadline.into(), fetched) => {
                fetched.unwrap_or(Err(FetchError::Late))
            }
            // The engine gives up at the deadline, too.
            () = order.inbox.closed() => {
                Err(if Instant::now() < order.deadline { FetchError::NotWanted } else { FetchError::Late })
            }
        };
        let took = began.elapsed();
        // Before the request goes on, so that its response finds it counted.
        self.peer.learn(&fetched, (&progress, took), Instant::now());
        self.count((&fetched, &progress), took, metrics);
        order.inbox.end(took);
        self.engine.wake();
    }

    fn count(&self, (fetched, progress): (&Result<(), FetchError>, &Progress), took: Duration, metrics: &Metrics) {
        let result = fetched.as_ref().err().map_or("ok", FetchError::name);
        metrics.kv_transfers.with_label_values(&["received", result]).inc();
        metrics.kv_transfer_bytes.with_label_values(&["received"]).inc_by(progress.n_bytes());
        metrics.kv_transfer_blocks.with_label_values(&["received"]).inc_by(progress.n_blocks() as u64);
        metrics.kv_transfer.with_label_values(&["received"]).observe(took.as_secs_f64());
        let (peer, n_blocks, ms) = (self.peer.url(), progress.n_blocks(), took.as_millis());
        match fetched {
            Err(error) if error.is_fault() => {
                warn!(%peer, n_blocks, error = warmpath_shell::chain(error), "KV state of another worker is not used");
            }
            _ => debug!(%peer, n_blocks, ms, result, "fetched KV state"),
        }
    }
}
