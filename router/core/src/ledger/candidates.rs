//! The candidates for a request: the workers that can take it now, each with the request's cost there.
//!
//! Not here: the formula (`cost`), which candidate gets the request (`choose`), whether a worker is healthy (`health`).

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use warmpath_common::model::ModelInfo;

use super::health::Trust;
use super::no_worker::NoWorker;
use super::records::recent_work::WorkSenders;
use super::route_request::RouteRequest;
use super::state::Ledger;
use crate::fleet::{FleetView, Unavailable, WorkerView};
use crate::index::Match;
use crate::overload::admission::{Capacity, capacity};
use crate::overload::breaker;
use crate::routing::choose::{Candidate, PromptView, TieBreak, add_pressure, worker_load};
use crate::routing::cost::{Speeds, WorkerLoad};
use crate::routing::transfer::{self, TransferPeer};

/// Cached prefixes of a prompt at the workers.
#[derive(Debug, Default)]
pub(super) struct CachedPrefixes {
    /// Matches without stale blocks and with the blocks that this router's requests are prefilling; `None` if they
    /// equal the announced ones.
    pub(super) matches: Option<Vec<Match>>,
    /// Workers from which others can fetch state of the prompt.
    pub(super) peers: Vec<TransferPeer>,
}

/// A worker that may get the request.
struct ScoredWorker<'a> {
    candidate: Candidate<'a>,
    capacity: Capacity,
    trust: Trust,
}

impl Ledger {
    /// Returns the cached prefixes of a prompt at the workers, corrected for stale blocks and for this router's
    /// requests in flight.
    pub(super) fn cached_prefixes(&self, fleet: &FleetView, prompt: PromptView<'_>) -> CachedPrefixes {
        let PromptView::Known { keys, matches, .. } = prompt else { return CachedPrefixes::default() };
        let corrected_matches = self.stale_blocks.correct(keys, matches);
        let announced_matches = corrected_matches.as_deref().unwrap_or(matches);
        // What is being prefilled cannot be fetched yet.
        let peers = self.options.kv_bytes_per_ms.map(|_| transfer::peers(fleet, announced_matches)).unwrap_or_default();
        let matches = self.pending_prefixes.extend(keys, announced_matches).or(corrected_matches);
        CachedPrefixes { matches, peers }
    }

    /// Returns the workers that can take the request: the most trusted ones, at least one of which has capacity.
    ///
    /// A breaker protects its worker only while other workers serve: the last workers get requests whatever they have
    /// failed.
    pub(super) fn candidates<'a>(
        &self,
        fleet: &'a FleetView,
        request: &RouteRequest<'_>,
        peers: &[TransferPeer],
    ) -> Result<Vec<Candidate<'a>>, NoWorker> {
        let serving = serving(fleet, request);
        let assumed_speeds = Speeds::assumed(serving.iter().map(|worker| &worker.load.rates));
        let mut reasons = BTreeMap::new();
        let mut pause: Option<Duration> = None;
        let mut workers = Vec::with_capacity(serving.len());
        // Workers that cannot take the request are counted by cause; the others get its cost.
        for worker in serving {
            if let Some(why) = self.unavailable(worker, request) {
                *reasons.entry(why).or_insert(0) += 1;
                if let (Unavailable::Full | Unavailable::Unready, Some((left, _))) =
                    (why, self.health.pause(worker.idx, request.quota(), request.now))
                {
                    pause = Some(pause.map_or(left, |shortest| shortest.min(left)));
                }
                continue;
            }
            let trust = self.health.trust(worker.idx, request.now);
            let (candidate, capacity) = self.score(worker, request, assumed_speeds, peers);
            workers.push(ScoredWorker { candidate, capacity, trust });
        }
        // A failing worker is left out if a healthy worker serves, or if a full worker takes requests again soon.
        let is_back_soon = pause.is_some_and(|pause| pause <= breaker::OPEN_MAX);
        let are_others_back = is_back_soon && reasons.contains_key(&Unavailable::Full);
        if are_others_back || workers.iter().any(|worker| worker.trust != Trust::Failing) {
            let n_before = workers.len();
            workers.retain(|worker| worker.trust != Trust::Failing);
            if n_before > workers.len() {
                reasons.insert(Unavailable::BreakerOpen, n_before - workers.len());
            }
        }
        // Without a worker that has capacity the request waits in the router's queue.
        let may_use = |worker: &&ScoredWorker<'_>| !request.awaited.contains(&worker.candidate.worker.idx);
        let with_capacity = workers.iter().filter(|worker| worker.capacity == Capacity::Yes).filter(may_use);
        let Some(least_trust) = with_capacity.map(|worker| worker.trust).min() else {
            if !workers.is_empty() {
                reasons.insert(Unavailable::Busy, workers.len());
            }
            let busy = workers.iter().map(|worker| worker.candidate.worker.idx).collect();
            return Err(NoWorker { reasons, busy, pause });
        };
        // The others stay candidates even when full, since waiting for a long prefix can pay. They must be trusted as
        // much as the best worker with capacity.
        let is_candidate = |worker: &&ScoredWorker<'_>| {
            worker.trust <= least_trust && worker.capacity != Capacity::Unmeasured && may_use(worker)
        };
        let mut candidates: Vec<_> = workers.iter().filter(is_candidate).map(|worker| worker.candidate).collect();
        add_pressure(&mut candidates, self.reuse_ratio.ratio());
        Ok(candidates)
    }

    /// Returns a worker with the request's cost there, and its capacity.
    pub(super) fn score<'a>(
        &self,
        worker: &'a WorkerView,
        request: &RouteRequest<'_>,
        assumed_speeds: Speeds,
        peers: &[TransferPeer],
    ) -> (Candidate<'a>, Capacity) {
        let senders = if self.peer_routers.may_be_there(request.now) { WorkSenders::All } else { WorkSenders::Own };
        let worker_load = worker_load(worker, self.sent.unreported(worker.idx), assumed_speeds, request.now);
        let block_size_tokens = request.model.block_size_tokens;
        let mut candidate = Candidate::score(worker, request.prompt, block_size_tokens, worker_load);
        if let Some(assumed_bytes_per_ms) = self.options.kv_bytes_per_ms {
            let rates = &self.transfer_rates;
            let bytes_per_ms = |peer| rates.bytes_per_ms(worker.idx, peer, assumed_bytes_per_ms, request.now);
            candidate = candidate.with_transfer(request.prompt, block_size_tokens, peers, bytes_per_ms);
        }
        candidate.recent_tokens = self.recent_work.of(worker.idx, senders);
        let capacity = self.options.worker_wait_max.map_or(Capacity::Yes, |wait_max| capacity(&worker_load, wait_max));
        if capacity == Capacity::No {
            // A full worker queues the request: all of its work comes first.
            candidate.cost.wait_ms = candidate.cost.wait_ms.max(worker_load.queue_delay_ms());
        }
        (candidate, capacity)
    }

    /// Returns the cause why a worker cannot take the request; `None` if it can.
    pub(super) fn unavailable(&self, worker: &WorkerView, request: &RouteRequest<'_>) -> Option<Unavailable> {
        worker
            .unavailable(request.now)
            .or_else(|| self.health.pause(worker.idx, request.quota(), request.now).map(|(_, why)| why))
            .or_else(|| request.tried.contains(&worker.idx).then_some(Unavailable::Tried))
    }

    /// Returns the inputs that break ties of cost and load.
    pub(super) fn ties(&self, request: &RouteRequest<'_>) -> TieBreak {
        TieBreak { last: self.sent.last_worker(), first_new_block: request.prompt.first_new_block() }
    }
}

/// Returns the workers that serve the requested model.
pub(super) fn serving<'a>(fleet: &'a FleetView, request: &RouteRequest<'_>) -> Vec<&'a WorkerView> {
    let is_named = |worker: &&'a WorkerView| match request.model_name {
        Some(name) => worker.model_of_pool(name, request.model).is_some(),
        // Compared by name as well: the tokenizer of a stock server may have changed since the prompt was made.
        None => {
            let is_meant = |model: &Arc<ModelInfo>| {
                model.fingerprint == request.model.fingerprint
                    || model.names.iter().any(|name| request.model.names.contains(name))
            };
            worker.model.is_none() || worker.models().any(is_meant)
        }
    };
    fleet.workers.iter().map(|worker| &**worker).filter(|worker| worker.can(request.wanted)).filter(is_named).collect()
}

/// Returns a response's share of a worker's time. Units: milliseconds.
pub(super) fn answer_share_ms(worker_load: &WorkerLoad<'_>) -> f64 {
    worker_load.speeds.answer_tokens * worker_load.speeds.decode_step_ms / f64::from(worker_load.n_slots.max(1))
}
