//! The queues of requests: a request starts at once if a worker has capacity, else it waits in a queue.
//!
//! Every model has one queue, and every request waits in its own task. A request whose turn it is checks for capacity,
//! periodically. A request that starts or leaves notifies those whose turn it is then. When a client disconnects, its
//! guard is dropped, and with it its place in the queue.
//!
//! Not here: the order, and whose turn it is (the core's `admission_queue`), a worker's capacity (the core's
//! `admission`), the start itself (`lifecycle`).

use std::collections::HashMap;
use std::hash::{BuildHasher, Hash, RandomState};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use axum::http::{HeaderMap, HeaderValue, header};
use tokio::sync::Notify;
use warmpath_common::model::Fingerprint;
use warmpath_router_core::WorkerIdx;
use warmpath_router_core::ledger::NoWorker;
use warmpath_router_core::overload::admission_queue::{AdmissionQueue, NeedsKey, TenantKey, Waiter, WaiterId};
use warmpath_shell::bearer;

use crate::config::{QUEUE_POLL, QUEUE_REST};
use crate::metrics::Metrics;

/// All queues. Most of the time there are none.
pub struct RequestQueue {
    waiting_max: usize,
    /// The queues. The lock is held for one entry, one departure or one start, never across `.await`.
    queues: Mutex<HashMap<Fingerprint, ModelQueue>>,
    /// Number of requests in all queues, so that a request that need not wait takes no lock.
    n_waiting: AtomicUsize,
    /// Id of the next request that waits for the first time.
    next_id: AtomicU64,
    /// Keyed hash, so that clients cannot choose keys that collide.
    hasher: RandomState,
    metrics: Arc<Metrics>,
}

struct ModelQueue {
    waiters: AdmissionQueue,
    notifiers: HashMap<WaiterId, Arc<Notify>>,
}

/// Earliest time of a request's start.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum AdmitAt {
    /// As soon as a worker has capacity, possibly at once.
    #[default]
    AtOnce,
    /// After a pause, because a worker that seemed to have capacity has refused the request.
    AfterPause,
}

/// A request that is to start.
#[derive(Debug, Clone, Copy)]
pub(crate) struct QueueRequest {
    /// Fingerprint of the model.
    pub(crate) model: Fingerprint,
    pub(crate) waiter: Waiter,
    pub(crate) admit_at: AdmitAt,
    /// Former place of the request in the queue, if an earlier start failed.
    pub(crate) place: Option<WaiterId>,
}

/// Result of a start.
pub(crate) struct Admitted<T> {
    pub(crate) value: T,
    /// Worker time that the request takes. Units: milliseconds.
    pub(crate) service_ms: f64,
}

/// Reason why a request cannot start.
#[derive(Debug)]
pub(crate) enum QueueRefusal {
    /// No worker can take it, and waiting would not help.
    NoWorker(NoWorker),
    /// Every place in the queue is taken.
    Full,
    /// The request's deadline passed first.
    Late,
}

impl RequestQueue {
    /// Returns empty queues with `waiting_max` places each.
    pub fn new(waiting_max: usize, metrics: Arc<Metrics>) -> Self {
        Self {
            waiting_max,
            queues: Mutex::default(),
            n_waiting: AtomicUsize::new(0),
            next_id: AtomicU64::new(0),
            hasher: RandomState::new(),
            metrics,
        }
    }

    /// Returns the tenant of a request: that of its key, or a hash of the credential that it presents, or the shared
    /// one.
    pub(crate) fn tenant(&self, tenant: Option<&str>, headers: &HeaderMap) -> TenantKey {
        if let Some(tenant) = tenant {
            return TenantKey(self.hasher.hash_one(tenant));
        }
        TenantKey(self.hasher.hash_one(credential(headers)))
    }

    /// Returns the account at a server of a request without a key of the router: a hash of the credential that it
    /// presents; `None` without one.
    pub(crate) fn account(&self, headers: &HeaderMap) -> Option<TenantKey> {
        credential(headers).map(|credential| TenantKey(self.hasher.hash_one(credential)))
    }

    /// Returns the hash of all that decides which workers can serve a request.
    pub(crate) fn needs(&self, needs: impl Hash) -> NeedsKey {
        NeedsKey(self.hasher.hash_one(needs))
    }

    /// Returns the number of requests that wait for a model.
    pub fn n_waiting(&self, model: &Fingerprint) -> usize {
        self.lock().get(model).map_or(0, |queue| queue.waiters.len())
    }

    /// Starts a request when its turn has come; returns the result of the start, and its place in the queue.
    ///
    /// `start` gets the workers that the request must leave to others.
    /// Errors: every [`QueueRefusal`].
    pub(crate) async fn admit<T>(
        &self,
        request: QueueRequest,
        mut start: impl FnMut(&[WorkerIdx]) -> Result<Admitted<T>, NoWorker>,
    ) -> Result<(T, Option<WaiterId>), QueueRefusal> {
        // The usual case: nothing waits, and a worker has capacity. It takes no lock of the queue.
        if request.admit_at == AdmitAt::AtOnce && self.n_waiting.load(Ordering::Relaxed) == 0 {
            match start(&[]) {
                Ok(started) => return Ok((started.value, None)),
                Err(refusal) if is_worth_waiting(&refusal, request.waiter.deadline) => {}
                Err(refusal) => return Err(QueueRefusal::NoWorker(refusal)),
            }
        }
        if Instant::now() >= request.waiter.deadline {
            return Err(QueueRefusal::Late);
        }
        let mut waiting = self.enter(request)?;
        let mut step = match request.admit_at {
            AdmitAt::AtOnce => waiting.advance(&mut start),
            AdmitAt::AfterPause => NextStep::Wait(Some(QUEUE_POLL)),
        };
        loop {
            let interval = match step {
                NextStep::Admitted(value) => return Ok((value, Some(waiting.id))),
                NextStep::Refused(refused) => return Err(refused),
                NextStep::Wait(interval) => interval,
            };
            // A request whose turn it is polls, because capacity changes without a message.
            tokio::select! {
                () = waiting.notifier.notified() => {}
                () = tokio::time::sleep_until(request.waiter.deadline.into()) => {}
                () = tokio::time::sleep(interval.unwrap_or_default()), if interval.is_some() => {}
            }
            step = waiting.advance(&mut start);
        }
    }

    fn enter(&self, request: QueueRequest) -> Result<QueuedRequest<'_>, QueueRefusal> {
        let mut queues = self.lock();
        let queue = queues.entry(request.model).or_insert_with(|| ModelQueue {
            waiters: AdmissionQueue::new(self.waiting_max),
            notifiers: HashMap::new(),
        });
        let id = request.place.unwrap_or_else(|| WaiterId(self.next_id.fetch_add(1, Ordering::Relaxed)));
        let Ok(displaced) = queue.waiters.enter(id, request.waiter) else {
            if queue.notifiers.is_empty() {
                queues.remove(&request.model);
            }
            self.metrics.queue_outcomes.with_label_values(&["rejected"]).inc();
            return Err(QueueRefusal::Full);
        };
        displaced.iter().for_each(|id| queue.notify(*id));
        let notifier = Arc::new(Notify::new());
        queue.notifiers.insert(id, Arc::clone(&notifier));
        self.count(&queues);
        Ok(QueuedRequest {
            queue: self,
            model: request.model,
            id,
            deadline: request.waiter.deadline,
            notifier,
            since: Instant::now(),
            outcome: "client_gone",
        })
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<Fingerprint, ModelQueue>> {
        self.queues.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn count(&self, queues: &HashMap<Fingerprint, ModelQueue>) {
        let n = queues.values().map(|queue| queue.notifiers.len()).sum();
        self.n_waiting.store(n, Ordering::Relaxed);
        self.metrics.queue_requests.set(i64::try_from(n).unwrap_or(i64::MAX));
    }
}

/// Returns the credential that a request presents: a bearer token or Anthropic's header.
fn credential(headers: &HeaderMap) -> Option<&[u8]> {
    headers.get(header::AUTHORIZATION).or_else(|| headers.get(bearer::API_KEY)).map(HeaderValue::as_bytes)
}

/// Returns whether a worker may have capacity before the deadline.
fn is_worth_waiting(refusal: &NoWorker, deadline: Instant) -> bool {
    let time_left = deadline.saturating_duration_since(Instant::now());
    refusal.is_overload() && refusal.may_end_within(time_left)
}

impl ModelQueue {
    fn notify(&self, id: WaiterId) {
        if let Some(notifier) = self.notifiers.get(&id) {
            notifier.notify_one();
        }
    }

    /// Notifies the requests whose turn it is, except one.
    fn notify_others(&self, than: WaiterId) {
        self.waiters.trying().into_iter().filter(|id| *id != than).for_each(|id| self.notify(id));
    }
}

/// Next step of a waiting request.
enum NextStep<T> {
    Admitted(T),
    Refused(QueueRefusal),
    /// Waits to be notified, or until this time has passed.
    Wait(Option<Duration>),
}

/// A waiting request; dropping this gives up its place.
struct QueuedRequest<'a> {
    queue: &'a RequestQueue,
    model: Fingerprint,
    id: WaiterId,
    deadline: Instant,
    notifier: Arc<Notify>,
    since: Instant,
    outcome: &'static str,
}

impl QueuedRequest<'_> {
    fn advance<T>(&mut self, start: &mut impl FnMut(&[WorkerIdx]) -> Result<Admitted<T>, NoWorker>) -> NextStep<T> {
        let mut queues = self.queue.lock();
        let now = Instant::now();
        let queue = queues.get_mut(&self.model).expect("a queue exists as long as a request waits in it");
        queue.waiters.expire(now).into_iter().for_each(|id| queue.notify(id));
        if !queue.waiters.contains(self.id) {
            let is_late = now >= self.deadline;
            self.outcome = if is_late { "timed_out" } else { "evicted" };
            return NextStep::Refused(if is_late { QueueRefusal::Late } else { QueueRefusal::Full });
        }
        let Some(awaited) = queue.waiters.turn(self.id) else { return NextStep::Wait(None) };
        match start(&awaited) {
            Ok(started) => {
                queue.waiters.start(self.id, (started.service_ms * 1e3) as u64);
                self.outcome = "admitted";
                NextStep::Admitted(started.value)
            }
            Err(refusal) if is_worth_waiting(&refusal, self.deadline) => {
                if queue.waiters.refused(self.id, &refusal.busy) {
                    queue.notify_others(self.id);
                }
                NextStep::Wait(Some(refusal.rest().map_or(QUEUE_POLL, |pause| pause.min(QUEUE_REST))))
            }
            Err(refusal) => {
                self.outcome = "no_worker";
                NextStep::Refused(QueueRefusal::NoWorker(refusal))
            }
        }
    }
}

impl Drop for QueuedRequest<'_> {
    fn drop(&mut self) {
        let mut queues = self.queue.lock();
        if let Some(queue) = queues.get_mut(&self.model) {
            queue.waiters.leave(self.id);
            queue.notifiers.remove(&self.id);
            queue.notify_others(self.id);
            if queue.notifiers.is_empty() {
                queues.remove(&self.model);
            }
        }
        self.queue.count(&queues);
        drop(queues);
        let metrics = &self.queue.metrics;
        metrics.queue_outcomes.with_label_values(&[self.outcome]).inc();
        metrics.queue_wait.observe(self.since.elapsed().as_secs_f64());
    }
}

#[cfg(test)]
mod tests;
