//! The requests in flight of one router: where each was sent, and whether its worker has reported it.
//!
//! Reports are some milliseconds old, and within that time a burst would all go to one worker. So a request's work is
//! added to its worker at once. It is removed when the worker reports the request, when the response ends, or after a
//! timeout. Not here: the workers' own reports (`fleet`).

use std::collections::{BTreeMap, HashMap};
use std::time::{Duration, Instant};

use warmpath_common::ids::RequestId;

use crate::WorkerIdx;
use crate::routing::cost::Unreported;

/// Weight of the newest request in the average service time.
///
/// Source: own choice: the last ten or so count.
const SERVICE_WEIGHT: f64 = 0.1;

/// Longest time for which a request's work counts although its worker has not reported the request.
///
/// Source: own choice: a live worker reports its load at least every second.
pub(in crate::ledger) const UNREPORTED_AGE_MAX: Duration = Duration::from_secs(5);

/// Requests in flight.
#[derive(Debug, Default)]
pub struct SentRequests {
    by_worker: Vec<RequestsOfWorker>,
    /// Unreported requests by number, and so by age.
    unreported: BTreeMap<u64, UnreportedRequest>,
    /// Their numbers by the id that the worker will report.
    number_by_id: HashMap<(WorkerIdx, RequestId), u64>,
    next_number: u64,
    last_worker: Option<WorkerIdx>,
}

#[derive(Debug, Clone, Default)]
struct RequestsOfWorker {
    unreported: Unreported,
    n_in_flight: u32,
    /// Average time that a request takes of the worker; `None` until a request was sent. Units: milliseconds.
    service_ms: Option<f64>,
}

#[derive(Debug)]
struct UnreportedRequest {
    worker: WorkerIdx,
    request_id: RequestId,
    n_sequences: u32,
    prefill_tokens: u64,
    at: Instant,
}

impl SentRequests {
    /// Records a request that is sent to a worker, and the worker time that it takes; returns its number.
    pub(in crate::ledger) fn add(
        &mut self,
        worker: WorkerIdx,
        request_id: &RequestId,
        n_sequences: u32,
        prefill_tokens: u64,
        service_ms: f64,
        now: Instant,
    ) -> u64 {
        let number = self.next_number;
        self.next_number += 1;
        self.last_worker = Some(worker);
        let idx = worker.0 as usize;
        if idx >= self.by_worker.len() {
            self.by_worker.resize(idx + 1, RequestsOfWorker::default());
        }
        let of_worker = &mut self.by_worker[idx];
        of_worker.n_in_flight += 1;
        of_worker.unreported.n_requests += n_sequences;
        of_worker.unreported.prefill_tokens += prefill_tokens;
        let average_ms = of_worker.service_ms;
        of_worker.service_ms = Some(average_ms.map_or(service_ms, |ms| ms + SERVICE_WEIGHT * (service_ms - ms)));
        self.number_by_id.insert((worker, request_id.clone()), number);
        let request_id = request_id.clone();
        let request = UnreportedRequest { worker, request_id, n_sequences, prefill_tokens, at: now };
        self.unreported.insert(number, request);
        number
    }

    /// Records that a worker's reported load contains a request.
    pub(in crate::ledger) fn reported(&mut self, worker: WorkerIdx, request_id: &RequestId) {
        if let Some(number) = self.number_by_id.remove(&(worker, request_id.clone())) {
            self.withdraw(number);
        }
    }

    /// Records that a request has left its worker.
    pub(in crate::ledger) fn ended(&mut self, worker: WorkerIdx, number: u64) {
        self.withdraw(number);
        self.by_worker[worker.0 as usize].n_in_flight -= 1;
    }

    /// Stops counting the work of requests that their workers should have reported by now.
    pub(in crate::ledger) fn expire(&mut self, now: Instant) {
        while let Some((&number, request)) = self.unreported.first_key_value() {
            if now.saturating_duration_since(request.at) < UNREPORTED_AGE_MAX {
                return;
            }
            self.withdraw(number);
        }
    }

    /// Forgets a worker that has left.
    pub(in crate::ledger) fn left(&mut self, worker: WorkerIdx) {
        if let Some(of_worker) = self.by_worker.get_mut(worker.0 as usize) {
            *of_worker = RequestsOfWorker::default();
        }
    }

    /// Returns the number of this router's requests at a worker.
    pub fn n_in_flight(&self, worker: WorkerIdx) -> u32 {
        self.of_worker(worker).map_or(0, |of_worker| of_worker.n_in_flight)
    }

    /// Returns the requests sent to a worker that its reported load does not contain yet.
    pub fn unreported(&self, worker: WorkerIdx) -> Unreported {
        self.of_worker(worker).map_or_else(Unreported::default, |of_worker| of_worker.unreported)
    }

    /// Returns the average time that a request takes of a worker; `None` until a request was sent. Units: milliseconds.
    pub(in crate::ledger) fn service_ms(&self, worker: WorkerIdx) -> Option<f64> {
        self.of_worker(worker)?.service_ms
    }

    /// Returns the worker that got the last request.
    pub(in crate::ledger) fn last_worker(&self) -> Option<WorkerIdx> {
        self.last_worker
    }

    /// Returns the number of requests that no worker has reported yet, and that of their ids.
    #[cfg(test)]
    pub(in crate::ledger) fn n_unreported(&self) -> [usize; 2] {
        [self.unreported.len(), self.number_by_id.len()]
    }

    fn of_worker(&self, worker: WorkerIdx) -> Option<&RequestsOfWorker> {
        self.by_worker.get(worker.0 as usize)
    }

    fn withdraw(&mut self, number: u64) {
        let Some(request) = self.unreported.remove(&number) else { return };
        let unreported_work = &mut self.by_worker[request.worker.0 as usize].unreported;
        unreported_work.n_requests -= request.n_sequences;
        unreported_work.prefill_tokens -= request.prefill_tokens;
        // A later request with the same id keeps its own entry.
        let key = (request.worker, request.request_id);
        if self.number_by_id.get(&key) == Some(&number) {
            self.number_by_id.remove(&key);
        }
    }
}
