//! The queue of requests: a request starts at once if a worker has capacity, else it waits in the queue of its model.
//!
//! Every request waits in its own task. Only the head of a queue asks for capacity, again and again. A request that
//! starts or leaves notifies the next head. When a client disconnects, its guard is dropped, and with it its place in
//! the queue.
//!
//! Not here: the order (the core's `admission_queue`), a worker's capacity (its `admission`), what starting means
//! (`lifecycle`).

use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use axum::http::{HeaderMap, header};
use tokio::sync::Notify;
use warmpath_common::model::Fingerprint;
use warmpath_router_core::ledger::NoWorker;
use warmpath_router_core::overload::admission_queue::{AdmissionQueue, TenantKey, Waiter, WaiterId};
use warmpath_shell::bearer;

use crate::config::{QUEUE_POLL, QUEUE_REST};
use crate::metrics::Metrics;

/// The queue of each model. Most of the time all of them are empty.
pub struct RequestQueue {
    waiting_max: usize,
    /// The queues. The lock is held for one entry, one departure or one start, never across `.await`.
    lines: Mutex<HashMap<Fingerprint, Line>>,
    /// Number of requests in all queues, so that a request that need not wait takes no lock.
    n_waiting: AtomicUsize,
    /// Keyed hash, so that clients cannot choose keys that collide.
    hasher: RandomState,
    metrics: Arc<Metrics>,
}

struct Line {
    queue: AdmissionQueue,
    bells: HashMap<WaiterId, Arc<Notify>>,
}

/// When a request may start.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) enum Begin {
    /// As soon as there is capacity, which may be now.
    #[default]
    AtOnce,
    /// After a pause: a worker that seemed to have capacity has refused it.
    AfterPause,
}

/// What a request needs in order to start.
pub(super) struct Wish<'a> {
    pub(super) model: &'a Fingerprint,
    pub(super) entrant: Waiter,
    pub(super) begin: Begin,
    /// Its former place in the queue, if an earlier start failed.
    pub(super) place: Option<WaiterId>,
}

/// Result of a start.
pub(super) struct Started<T> {
    pub(super) value: T,
    /// Time that it takes of a worker. Units: milliseconds.
    pub(super) service_ms: f64,
}

/// Reason why a request cannot start.
#[derive(Debug)]
pub(super) enum Refused {
    /// No worker can take it, and waiting would not help.
    NoWorker(NoWorker),
    /// Every place in the queue is taken.
    Full,
    /// Its deadline passed first.
    Late,
}

impl RequestQueue {
    /// Returns empty queues with `waiting_max` places each.
    pub fn new(waiting_max: usize, metrics: Arc<Metrics>) -> Self {
        Self {
            waiting_max,
            lines: Mutex::default(),
            n_waiting: AtomicUsize::new(0),
            hasher: RandomState::new(),
            metrics,
        }
    }

    /// Returns the tenant of a request: that of its key, or a hash of the credential that it presents (a bearer token
    /// or Anthropic's header), or the shared one.
    pub(super) fn tenant(&self, tenant: Option<&str>, headers: &HeaderMap) -> TenantKey {
        if let Some(tenant) = tenant {
            return TenantKey(self.hasher.hash_one(tenant));
        }
        let key = headers.get(header::AUTHORIZATION).or_else(|| headers.get(bearer::API_KEY));
        TenantKey(self.hasher.hash_one(key.map(|value| value.as_bytes())))
    }

    /// Returns the number of requests that wait for a model.
    pub fn n_waiting(&self, model: &Fingerprint) -> usize {
        self.lock().get(model).map_or(0, |line| line.queue.len())
    }

    /// Starts a request when its turn has come; returns the result of the start, and its place in the queue.
    ///
    /// Errors: every [`Refused`].
    pub(super) async fn take<T>(
        &self,
        wish: &Wish<'_>,
        mut start: impl FnMut() -> Result<Started<T>, NoWorker>,
    ) -> Result<(T, Option<WaiterId>), Refused> {
        // The usual case: nothing waits, and a worker has capacity. It takes no lock of the queue.
        if wish.begin == Begin::AtOnce && self.n_waiting.load(Ordering::Relaxed) == 0 {
            match start() {
                Ok(started) => return Ok((started.value, None)),
                Err(refusal) if is_worth_waiting(&refusal, wish.entrant.deadline) => {}
                Err(refusal) => return Err(Refused::NoWorker(refusal)),
            }
        }
        if Instant::now() >= wish.entrant.deadline {
            return Err(Refused::Late);
        }
        let mut waiting = self.enter(wish)?;
        let mut step = if wish.begin == Begin::AtOnce { waiting.advance(&mut start) } else { Step::Poll };
        loop {
            let is_head = match step {
                Step::Started(value) => return Ok((value, Some(waiting.id))),
                Step::Refused(refused) => return Err(refused),
                Step::Poll => true,
                Step::Listen => false,
                Step::Rest(pause) => {
                    waiting.stand_aside();
                    let until = (Instant::now() + pause.min(QUEUE_REST)).min(wish.entrant.deadline);
                    tokio::time::sleep_until(until.into()).await;
                    waiting.come_back(wish.entrant)?;
                    step = waiting.advance(&mut start);
                    continue;
                }
            };
            // The head polls, because capacity changes without a message. The others wait until they are notified.
            tokio::select! {
                () = waiting.bell.notified() => {}
                () = tokio::time::sleep_until(wish.entrant.deadline.into()) => {}
                () = tokio::time::sleep(QUEUE_POLL), if is_head => {}
            }
            step = waiting.advance(&mut start);
        }
    }

    fn enter(&self, wish: &Wish<'_>) -> Result<Waiting<'_>, Refused> {
        let mut lines = self.lock();
        let line = lines
            .entry(*wish.model)
            .or_insert_with(|| Line { queue: AdmissionQueue::new(self.waiting_max), bells: HashMap::new() });
        let entered = match wish.place {
            Some(id) => line.queue.re_enter(id, wish.entrant),
            None => line.queue.enter(wish.entrant),
        };
        let entered = entered.map_err(|_| {
            self.metrics.queue_outcomes.with_label_values(&["rejected"]).inc();
            Refused::Full
        })?;
        entered.displaced.iter().for_each(|id| line.ring(*id));
        let bell = Arc::new(Notify::new());
        line.bells.insert(entered.id, Arc::clone(&bell));
        self.count(&lines);
        Ok(Waiting {
            turns: self,
            model: *wish.model,
            id: entered.id,
            deadline: wish.entrant.deadline,
            bell,
            since: Instant::now(),
            outcome: "client_gone",
        })
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<Fingerprint, Line>> {
        self.lines.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn count(&self, lines: &HashMap<Fingerprint, Line>) {
        // Requests that stand aside wait, too.
        let n = lines.values().map(|line| line.bells.len()).sum();
        self.n_waiting.store(n, Ordering::Relaxed);
        self.metrics.queue_requests.set(i64::try_from(n).unwrap_or(i64::MAX));
    }
}

/// Returns whether a worker may have capacity before the deadline.
fn is_worth_waiting(refusal: &NoWorker, deadline: Instant) -> bool {
    let left = deadline.saturating_duration_since(Instant::now());
    refusal.is_overload() && refusal.may_end_within(left)
}

impl Line {
    fn ring(&self, id: WaiterId) {
        if let Some(bell) = self.bells.get(&id) {
            bell.notify_one();
        }
    }

    fn ring_head(&self) {
        if let Some(head) = self.queue.head() {
            self.ring(head);
        }
    }
}

/// What a waiting request does next.
enum Step<T> {
    Started(T),
    Refused(Refused),
    /// It is the head: it asks again soon.
    Poll,
    /// It is the head, and the workers have refused its model for this time: other requests may pass meanwhile.
    Rest(Duration),
    /// Another request is the head: it waits to be notified.
    Listen,
}

/// A waiting request; dropping this gives up its place.
struct Waiting<'a> {
    turns: &'a RequestQueue,
    model: Fingerprint,
    id: WaiterId,
    deadline: Instant,
    bell: Arc<Notify>,
    since: Instant,
    outcome: &'static str,
}

impl Waiting<'_> {
    fn advance<T>(&mut self, start: &mut impl FnMut() -> Result<Started<T>, NoWorker>) -> Step<T> {
        let mut lines = self.turns.lock();
        let now = Instant::now();
        let line = lines.get_mut(&self.model).expect("a line is there as long as somebody has a bell in it");
        line.queue.expire(now).into_iter().for_each(|id| line.ring(id));
        if !line.queue.contains(self.id) {
            let is_late = now >= self.deadline;
            self.outcome = if is_late { "timed_out" } else { "evicted" };
            return Step::Refused(if is_late { Refused::Late } else { Refused::Full });
        }
        if line.queue.head() != Some(self.id) {
            return Step::Listen;
        }
        match start() {
            Ok(started) => {
                line.queue.start(self.id, (started.service_ms * 1e3) as u64);
                self.outcome = "admitted";
                Step::Started(started.value)
            }
            Err(refusal) if is_worth_waiting(&refusal, self.deadline) => refusal.rest().map_or(Step::Poll, Step::Rest),
            Err(refusal) => {
                self.outcome = "no_worker";
                Step::Refused(Refused::NoWorker(refusal))
            }
        }
    }
}

impl Waiting<'_> {
    /// Leaves the queue for a while, because the requests behind it may be for another model of the same servers.
    fn stand_aside(&self) {
        let mut lines = self.turns.lock();
        if let Some(line) = lines.get_mut(&self.model) {
            line.queue.leave(self.id);
            line.ring_head();
        }
    }

    /// Takes its former place in the queue again.
    ///
    /// Errors: [`Refused::Full`] if other requests have taken every place meanwhile.
    fn come_back(&mut self, entrant: Waiter) -> Result<(), Refused> {
        let mut lines = self.turns.lock();
        let line = lines.get_mut(&self.model).expect("a line is there as long as somebody has a bell in it");
        let Ok(entered) = line.queue.re_enter(self.id, entrant) else {
            self.outcome = "evicted";
            return Err(Refused::Full);
        };
        debug_assert_eq!(entered.id, self.id, "nobody else is given a number twice");
        entered.displaced.iter().for_each(|id| line.ring(*id));
        Ok(())
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        let mut lines = self.turns.lock();
        if let Some(line) = lines.get_mut(&self.model) {
            line.queue.leave(self.id);
            line.bells.remove(&self.id);
            line.ring_head();
            if line.bells.is_empty() {
                lines.remove(&self.model);
            }
        }
        self.turns.count(&lines);
        drop(lines);
        let metrics = &self.turns.metrics;
        metrics.queue_outcomes.with_label_values(&[self.outcome]).inc();
        metrics.queue_wait.observe(self.since.elapsed().as_secs_f64());
    }
}
