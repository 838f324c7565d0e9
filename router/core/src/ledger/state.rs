//! The state behind a router's choices: one record for each kind of observation, and the changes that concern several.

use std::time::{Duration, Instant};

use warmpath_common::ids::RequestId;
use warmpath_common::summary::Change;

use super::health::FleetHealth;
use super::records::peer_routers::PeerRouters;
use super::records::pending_prefixes::{PendingBlocks, PendingPrefixes};
use super::records::recent_work::{RecentWork, ReuseRatio};
use super::records::sent_requests::SentRequests;
use super::records::stale_blocks::StaleBlocks;
use super::records::transfer_rates::TransferRates;
use crate::WorkerIdx;
use crate::routing::choose::Policy;

/// Settings of a router's choices.
#[derive(Debug, Clone, Copy, Default)]
pub struct LedgerOptions {
    /// Routing policy.
    pub policy: Policy,
    /// Predicted wait up to which a worker without a free slot takes requests; `None` for any wait.
    pub worker_wait_max: Option<Duration>,
    /// Assumed bandwidth of KV transfers between two workers until it is measured; `None` for no transfers. Units:
    /// bytes per millisecond.
    pub kv_bytes_per_ms: Option<f64>,
}

/// Receipt for a request that was sent; it must be given back to [`Ledger::ended`] once.
#[derive(Debug, PartialEq, Eq)]
pub struct Ticket {
    pub(super) number: u64,
    pub(super) worker: WorkerIdx,
    pub(super) pending_blocks: PendingBlocks,
}

/// State of one router's choices. One lock guards all of it, so that a choice and its records are one step.
#[derive(Default)]
pub struct Ledger {
    pub(super) options: LedgerOptions,
    /// Requests in flight, and which of them their workers have reported.
    pub sent: SentRequests,
    /// Failures, refusals and breakers of the workers.
    pub health: FleetHealth,
    /// Announced blocks that were not reused.
    pub stale_blocks: StaleBlocks,
    /// Blocks that this router's requests are prefilling.
    pub(super) pending_prefixes: PendingPrefixes,
    /// Tokens reused for each token computed.
    pub(super) reuse_ratio: ReuseRatio,
    /// Prompt tokens that each worker got to compute recently.
    pub recent_work: RecentWork,
    /// Detector of other routers.
    pub(super) peer_routers: PeerRouters,
    /// Bandwidths between workers.
    pub transfer_rates: TransferRates,
}

impl Ledger {
    /// Returns a state without requests.
    pub fn new(options: LedgerOptions) -> Self {
        Self { options, ..Self::default() }
    }

    /// Records that a worker's reported load contains a request, of this router or another.
    pub fn accepted(&mut self, worker: WorkerIdx, request_id: &RequestId, now: Instant) {
        self.peer_routers.named(request_id, now);
        self.sent.reported(worker, request_id);
    }

    /// Records a worker's changes of blocks and the requests that its load contains.
    pub fn record_changes(&mut self, worker: WorkerIdx, changes: &[Change], now: Instant) {
        for change in changes {
            match change {
                Change::Stored(run) => self.stale_blocks.announced(worker, &run.keys),
                Change::Accepted(request_id) => self.accepted(worker, request_id, now),
                Change::Removed(_) => {}
            }
        }
    }

    /// Records that a request has left its worker, however it ended.
    pub fn ended(&mut self, ticket: Ticket) {
        self.sent.ended(ticket.worker, ticket.number);
        self.pending_prefixes.remove(ticket.pending_blocks);
    }

    /// Removes a worker that has left; another may get its index soon. It has no request of this router any more.
    pub fn left(&mut self, worker: WorkerIdx) {
        debug_assert_eq!(self.sent.n_in_flight(worker), 0, "a worker with requests does not leave");
        self.sent.left(worker);
        self.health.left(worker);
        self.stale_blocks.forget(worker);
        self.recent_work.left(worker);
        self.transfer_rates.left(worker);
    }
}
