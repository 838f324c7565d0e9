//! The prediction of when a full fleet can start one more request.

use std::sync::Arc;
use std::time::Instant;

use warmpath_common::model::ModelInfo;

use super::candidates::answer_share_ms;
use super::state::Ledger;
use crate::fleet::{FleetView, WorkerView};
use crate::overload::admission::{CapacityForecast, RETURN};
use crate::routing::choose::worker_load;
use crate::routing::cost::Speeds;

/// Least assumed service time of a request. Units: milliseconds.
///
/// Source: own choice: it only prevents a division by zero.
const SERVICE_MS_MIN: f64 = 1.0;

impl Ledger {
    /// Returns when the workers that serve `model`, or all of them, can start one more request.
    ///
    /// The first start follows after the shortest wait. From then on, requests start at the rate at which all workers
    /// together complete them.
    pub fn capacity_forecast(&self, fleet: &FleetView, model: Option<&ModelInfo>, now: Instant) -> CapacityForecast {
        let serves = |worker: &&Arc<WorkerView>| {
            let has = |model: &ModelInfo| worker.models().any(|other| other.fingerprint == model.fingerprint);
            worker.excluded.is_none() && model.is_none_or(has)
        };
        let names = model.map(|model| &model.names[..]);
        let serving: Vec<_> = fleet.workers.iter().filter(serves).collect();
        let assumed_speeds = Speeds::assumed(serving.iter().map(|worker| &worker.load.rates));
        let (mut wait_ms, mut starts_per_ms) = (RETURN.as_secs_f64() * 1e3, 0.0);
        let mut is_first = true;
        for worker in serving.into_iter().filter(|worker| worker.unavailable(now).is_none()) {
            let worker_load = worker_load(worker, self.sent.unreported(worker.idx), assumed_speeds, now);
            let away_ms = self.health.away(worker.idx, names, now).as_secs_f64() * 1e3;
            let worker_wait_ms = worker_load.queue_delay_ms().max(away_ms);
            wait_ms = if is_first { worker_wait_ms } else { wait_ms.min(worker_wait_ms) };
            is_first = false;
            let service_ms = self.sent.service_ms(worker.idx).unwrap_or_else(|| answer_share_ms(&worker_load));
            starts_per_ms += 1.0 / service_ms.max(SERVICE_MS_MIN);
        }
        CapacityForecast { wait_ms, interval_ms: if starts_per_ms > 0.0 { 1.0 / starts_per_ms } else { 0.0 } }
    }
}
