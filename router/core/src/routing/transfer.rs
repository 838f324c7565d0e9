//! KV state from another worker: from which peer a worker would fetch a part of the prompt, and how long that takes.
//!
//! A worker that holds less of a prompt than a peer can fetch the difference instead of computing it. Fetching takes
//! time, but nothing of the worker's prefill capacity. The cost (`cost`) and the choice (`choose`) decide whether a
//! request goes to a worker that fetches or to one that holds more. Not here: measured bandwidths
//! (`ledger::transfer_rates`), the transfer itself (the workers).

use warmpath_common::model::{Fingerprint, KvTransfer};
use warmpath_common::summary::RunState;

use crate::WorkerIdx;
use crate::fleet::{ConnectionState, FleetView, WorkerView};
use crate::index::Match;

/// Maximum number of peers that are compared for each worker: those that hold most of the prompt.
///
/// Source: own choice: all workers of a large fleet hold the common start of all chats, and comparing each with each
/// would take a millisecond.
const PEERS_MAX: usize = 4;

/// Time of a transfer besides that of its bytes. Units: milliseconds.
///
/// Source: own choice: a request between two workers takes one round trip, and the peer's engine handles the request
/// after its current step. A transfer that saves less is not worth its risk.
const LATENCY_MS: f64 = 5.0;

/// A worker whose state of a prompt others can fetch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TransferPeer {
    /// The worker.
    pub worker: WorkerIdx,
    /// Leading blocks of the prompt that it holds, computed.
    pub blocks: u32,
    /// Identity of its state.
    pub layout: Fingerprint,
}

/// State that a worker would fetch for a request.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Transfer {
    /// Worker that has the state.
    pub peer: WorkerIdx,
    /// Leading blocks of the prompt that the worker has afterwards.
    pub blocks: u32,
    /// Predicted time. Units: milliseconds.
    pub ms: f64,
}

/// A request's prompt at a worker that may fetch a part of it.
#[derive(Debug, Clone, Copy)]
pub struct TransferGap {
    /// Leading blocks that the worker has itself.
    pub own_blocks: u32,
    /// Leading blocks that can be reused, whichever worker has them.
    pub blocks_max: u32,
    /// Tokens per block.
    pub block_size_tokens: u32,
    /// Prefill rate of the worker. Units: prompt tokens per millisecond.
    pub prefill_tokens_per_ms: f64,
}

/// Returns the state that a worker exchanges with others; `None` if it does not, or its connection is lost.
///
/// A worker that drains still sends its state.
pub(super) fn exchanged(worker: &WorkerView) -> Option<KvTransfer> {
    let is_live = worker.link == ConnectionState::Live && worker.excluded.is_none() && worker.stock.is_none();
    worker.model.as_ref().filter(|_| is_live)?.kv_transfer
}

/// Returns the workers that can send state of a prompt, longest first, at most `PEERS_MAX`.
///
/// `matches` are the workers' cached prefixes, longest first; blocks that are still being computed cannot be sent.
pub fn peers(fleet: &FleetView, matches: &[Match]) -> Vec<TransferPeer> {
    let ready_matches = matches.iter().filter(|prefix_match| prefix_match.state == RunState::Ready);
    let peer = |prefix_match: &Match| {
        let layout = exchanged(fleet.worker(prefix_match.worker)?)?.layout;
        Some(TransferPeer { worker: prefix_match.worker, blocks: prefix_match.blocks, layout })
    };
    ready_matches.filter_map(peer).take(PEERS_MAX).collect()
}

impl Transfer {
    /// Returns the transfer that saves a worker most time; `None` if computing takes no longer.
    ///
    /// `bytes_per_ms` is the bandwidth from a peer to the worker. Of equal peers the first one is taken.
    pub fn best(
        worker: &WorkerView,
        gap: TransferGap,
        peers: &[TransferPeer],
        bytes_per_ms: impl Fn(WorkerIdx) -> f64,
    ) -> Option<Self> {
        let own_transfer = exchanged(worker)?;
        let usable = peers.iter().filter(|peer| peer.worker != worker.idx && peer.layout == own_transfer.layout);
        let saving = |peer: &TransferPeer| {
            let blocks = peer.blocks.min(gap.blocks_max);
            let tokens = f64::from(blocks.checked_sub(gap.own_blocks)?) * f64::from(gap.block_size_tokens);
            let ms = LATENCY_MS + tokens * own_transfer.bytes_per_token as f64 / bytes_per_ms(peer.worker);
            Some((Self { peer: peer.worker, blocks, ms }, tokens / gap.prefill_tokens_per_ms - ms))
        };
        let worthwhile = usable.filter_map(saving).filter(|(_, saved_ms)| *saved_ms > 0.0);
        let best = worthwhile.reduce(|best, other| if other.1 > best.1 { other } else { best });
        best.map(|(transfer, _)| transfer)
    }
}

#[cfg(test)]
mod tests;
