//! State that another worker offers for a submission, and its way to the engine.
//!
//! Not here: the decision and the wait (`kv::receiving`), the connection and the verification (`crate::kv_transfer`).

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::oneshot;
use tokio_util::sync::CancellationToken;

use crate::store::exchange::{Received, WantedRun};

/// Speed of another worker.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct PeerSpeed {
    /// Time per byte. Units: milliseconds.
    pub ms_per_byte: f64,
    /// Time until the first byte. Units: milliseconds.
    pub latency_ms: f64,
}

/// State for a submission that another worker offers.
#[derive(Debug)]
pub struct PeerOffer {
    /// Number of blocks, from the prompt's start.
    pub n_blocks: usize,
    /// Speed of the other worker.
    pub speed: PeerSpeed,
    /// Channel for the order; dropped if the engine orders nothing.
    pub order: oneshot::Sender<FetchOrder>,
}

/// The engine's order to fetch state.
#[derive(Debug)]
pub struct FetchOrder {
    /// Wanted blocks.
    pub run: WantedRun,
    /// Time in which this worker computes a block. Units: milliseconds.
    pub prefill_ms_per_block: f64,
    /// Time at which the engine stops waiting for the transfer.
    pub deadline: Instant,
    /// Destination of verified state.
    pub inbox: Arc<Inbox>,
}

/// Verified state on its way to the engine thread.
#[derive(Debug, Default)]
pub struct Inbox {
    /// The lock is held for a few instructions, never across `.await`.
    state: Mutex<InboxState>,
    closed: CancellationToken,
}

#[derive(Debug, Default)]
struct InboxState {
    received: Vec<Received>,
    /// Time that the transfer took; `None` until it has ended.
    took: Option<Duration>,
}

impl Inbox {
    /// Adds verified state.
    pub fn push(&self, run: Received) {
        self.state.lock().unwrap_or_else(PoisonError::into_inner).received.push(run);
    }

    /// Records that the transfer has ended.
    pub fn end(&self, took: Duration) {
        self.state.lock().unwrap_or_else(PoisonError::into_inner).took = Some(took);
    }

    /// Records that the engine no longer waits.
    pub(in crate::engine) fn close(&self) {
        self.closed.cancel();
    }

    /// Returns once the engine no longer waits.
    pub async fn closed(&self) {
        self.closed.cancelled().await;
    }

    /// Takes the state that has arrived; also returns the time of the transfer, once it has ended.
    pub(in crate::engine) fn take(&self) -> (Vec<Received>, Option<Duration>) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        (std::mem::take(&mut state.received), state.took)
    }
}

/// State that was fetched for a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FetchedState {
    /// Size of the verified state. Units: bytes.
    pub n_bytes: u64,
    /// Time from the order to the end.
    pub took: Duration,
}
