//! The candidates for a request: the workers that can take it now, each with the request's cost there; and the
//! prediction of when a full fleet can start one.
//!
//! Not here: the formula (`cost`), which candidate gets the request (`choose`), whether a worker is healthy (`health`).

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use warmpath_common::model::ModelInfo;

use super::health::Trust;
use super::{Ledger, NoWorker, RouteRequest, answer_share_ms};
use crate::fleet::{FleetView, Unavailable, WorkerView};
use crate::index::Match;
use crate::ledger::recent_work::WorkSenders;
use crate::overload::admission::{Capacity, CapacityForecast, RETURN, capacity};
use crate::overload::breaker;
use crate::routing::choose::{Candidate, PromptView, add_pressure, worker_load};
use crate::routing::cost::Speeds;
use crate::routing::transfer::{self, TransferPeer};

/// Least assumed service time of a request. Units: milliseconds.
///
/// Source: own choice: it only prevents a division by zero.
const SERVICE_MS_MIN: f64 = 1.0;

/// Cached prefixes of a prompt at the workers.
#[derive(Debug, Default)]
pub(super) struct Holdings {
    /// Matches without stale blocks and with the blocks that this router's requests are prefilling; `None` if they
    /// equal the announced ones.
    pub(super) matches: Option<Vec<Match>>,
    /// Workers from which others can fetch state of the prompt.
    pub(super) peers: Vec<TransferPeer>,
}

impl Ledger {
    /// Returns the cached prefixes of a prompt at the workers, corrected for stale blocks and for this router's
    /// requests in flight.
    pub(super) fn holdings(&self, fleet: &FleetView, prompt: PromptView<'_>) -> Holdings {
        let PromptView::Known { keys, matches, .. } = prompt else { return Holdings::default() };
        let corrected = self.stale_blocks.correct(keys, matches);
        let announced = corrected.as_deref().unwrap_or(matches);
        // What is being prefilled cannot be fetched yet.
        let peers = self.options.kv_bytes_per_ms.map(|_| transfer::peers(fleet, announced)).unwrap_or_default();
        let matches = self.pending.extend(keys, announced).or(corrected);
        Holdings { matches, peers }
    }

    /// Returns the workers that can take the request: the most trusted ones, at least one of which has capacity.
    ///
    /// A breaker protects its worker only while other workers serve: the last workers get requests whatever they have
    /// failed.
    pub(super) fn candidates<'a>(
        &self,
        fleet: &'a FleetView,
        (request, peers): (&RouteRequest<'_>, &[TransferPeer]),
    ) -> Result<Vec<Candidate<'a>>, NoWorker> {
        let serving = serving(fleet, request);
        let assumed = Speeds::assumed(serving.iter().map(|worker| &worker.load.rates));
        let mut reasons = BTreeMap::new();
        let mut pause: Option<Duration> = None;
        let mut field = Vec::with_capacity(serving.len());
        for worker in serving {
            let health = &self.worker_ledger(worker.idx).health;
            if let Some(why) = self.unavailable(worker, request) {
                *reasons.entry(why).or_insert(0) += 1;
                if let (Unavailable::Full | Unavailable::Unready, Some((left, _))) =
                    (why, health.pauses.of(request.quota(), request.now))
                {
                    pause = Some(pause.map_or(left, |shortest| shortest.min(left)));
                }
                continue;
            }
            let trust = health.trust(request.now);
            let (candidate, capacity) = self.score(worker, request, (assumed, peers));
            field.push((candidate, capacity, trust));
        }
        // A failing worker is left out if a healthy worker serves, or if a full worker takes requests again soon.
        let is_back_soon = pause.is_some_and(|pause| pause <= breaker::OPEN_MAX);
        let are_others_back = is_back_soon && reasons.contains_key(&Unavailable::Full);
        if are_others_back || field.iter().any(|(_, _, trust)| *trust != Trust::Failing) {
            let n_serving = field.len();
            field.retain(|(_, _, trust)| *trust != Trust::Failing);
            if n_serving > field.len() {
                reasons.insert(Unavailable::BreakerOpen, n_serving - field.len());
            }
        }
        // Without a worker that has capacity the request waits in the router's queue.
        let may_use = |candidate: &Candidate<'_>| !request.awaited.contains(&candidate.worker.idx);
        let with_room = field.iter().filter(|(at, capacity, _)| *capacity == Capacity::Yes && may_use(at));
        let Some(least) = with_room.map(|(_, _, trust)| *trust).min() else {
            if !field.is_empty() {
                reasons.insert(Unavailable::Busy, field.len());
            }
            let busy = field.iter().map(|(candidate, ..)| candidate.worker.idx).collect();
            return Err(NoWorker { reasons, busy, pause });
        };
        // The others stay candidates even when full, since waiting for a long prefix can pay. They must be trusted as
        // much as the best worker with capacity.
        let is_candidate = |(at, capacity, trust): &(Candidate<'_>, Capacity, Trust)| {
            *trust <= least && *capacity != Capacity::Unmeasured && may_use(at)
        };
        field.retain(is_candidate);
        let mut candidates: Vec<_> = field.into_iter().map(|(candidate, _, _)| candidate).collect();
        add_pressure(&mut candidates, self.reuse.ratio());
        Ok(candidates)
    }

    pub(super) fn score<'a>(
        &self,
        worker: &'a WorkerView,
        request: &RouteRequest<'_>,
        (assumed, peers): (Speeds, &[TransferPeer]),
    ) -> (Candidate<'a>, Capacity) {
        let senders = if self.peer_routers.may_be_there(request.now) { WorkSenders::All } else { WorkSenders::Own };
        let worker_load = worker_load(worker, self.worker_ledger(worker.idx).unreported, assumed, request.now);
        let block_size_tokens = request.model.block_size_tokens;
        let mut candidate = Candidate::score(worker, request.prompt, block_size_tokens, worker_load);
        if let Some(assumed) = self.options.kv_bytes_per_ms {
            let rates = &self.transfer_rates;
            let bytes_per_ms = |peer| rates.bytes_per_ms((worker.idx, peer), assumed, request.now);
            candidate = candidate.with_transfer((request.prompt, block_size_tokens), peers, bytes_per_ms);
        }
        candidate.recent_tokens = self.recent_work.of(worker.idx, senders);
        let capacity = self.options.worker_wait_max.map_or(Capacity::Yes, |wait_max| capacity(&worker_load, wait_max));
        if capacity == Capacity::No {
            // A full worker queues the request: all of its work comes first.
            candidate.cost.wait_ms = candidate.cost.wait_ms.max(worker_load.queue_delay_ms());
        }
        (candidate, capacity)
    }

    pub(super) fn unavailable(&self, worker: &WorkerView, request: &RouteRequest<'_>) -> Option<Unavailable> {
        let worker_ledger = self.worker_ledger(worker.idx);
        worker
            .unavailable(request.now)
            .or_else(|| worker_ledger.health.pauses.of(request.quota(), request.now).map(|(_, why)| why))
            .or_else(|| request.tried.contains(&worker.idx).then_some(Unavailable::Tried))
    }

    /// Returns when the workers that serve `model`, or all of them, can start one more request.
    ///
    /// The first start follows after the shortest wait. From then on, requests start at the rate at which all workers
    /// together complete them.
    pub fn capacity_forecast(&self, fleet: &FleetView, model: Option<&ModelInfo>, now: Instant) -> CapacityForecast {
        let serves = |worker: &&Arc<WorkerView>| {
            let has = |model: &ModelInfo| worker.models().any(|own| own.fingerprint == model.fingerprint);
            worker.excluded.is_none() && model.is_none_or(has)
        };
        let names = model.map(|model| &model.names[..]);
        let serving: Vec<_> = fleet.workers.iter().filter(serves).collect();
        let assumed = Speeds::assumed(serving.iter().map(|worker| &worker.load.rates));
        let (mut wait_ms, mut starts_per_ms) = (RETURN.as_secs_f64() * 1e3, 0.0);
        let mut is_first = true;
        for worker in serving.into_iter().filter(|worker| worker.unavailable(now).is_none()) {
            let worker_ledger = self.worker_ledger(worker.idx);
            let worker_load = worker_load(worker, worker_ledger.unreported, assumed, now);
            let own_ms = worker_load.queue_delay_ms().max(worker_ledger.health.away(names, now).as_secs_f64() * 1e3);
            wait_ms = if is_first { own_ms } else { wait_ms.min(own_ms) };
            is_first = false;
            starts_per_ms +=
                1.0 / worker_ledger.service_ms.unwrap_or_else(|| answer_share_ms(&worker_load)).max(SERVICE_MS_MIN);
        }
        CapacityForecast { wait_ms, interval_ms: if starts_per_ms > 0.0 { 1.0 / starts_per_ms } else { 0.0 } }
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
