//! The queue of requests that no worker can start yet: which request is next, and which must leave.
//!
//! Whether a worker has capacity is decided in `ledger`; the router's `lifecycle::queue` wakes waiting requests.
//!
//! Tenants share the workers' time equally, however many requests each of them sends. Each tenant has a *tag*: the
//! worker time at which its next request may start. The smallest tag is next. A tenant that starts to wait begins at
//! the largest tag of a request that was started, so an idle tenant gains no advantage. When the queue is full, a
//! request of a tenant with fewer waiting requests takes the place of the newest request of the tenant with the most,
//! so that a flood evicts its own requests.
//!
//! Requests that only some workers can serve do not hold up the others: of the requests with the same *needs* the first
//! tries to start, and it must leave the workers that earlier requests wait for to them.
//!
//! The rest of a stream whose worker has failed is served before every new request, because its client is already
//! reading. It takes no place in the queue, since there are no more of these than running streams, and its tenant has
//! been charged for it.
//!
//! Source: Goyal, Vin and Cheng, "Start-time fair queuing" (1996), by tenant; "longest queue drop" for the full queue
//! (Suter et al., 1998).

use std::collections::{BTreeSet, HashMap, HashSet};
use std::time::Instant;

use crate::WorkerIdx;

/// Most requests that try to start at the same time, besides those whose workers are all paused. Source: own choice: it
/// bounds the work for clients that ask for many models; few requests differ in their needs.
const TRYING_MAX: usize = 16;

/// Tenant key: the hash of a client's key, or one number for all clients without a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct TenantKey(pub u64);

/// Needs of a request: a hash of all that decides which workers can serve it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct NeedsKey(pub u64);

/// Id of a request that waits or has waited; smaller ids came first. No two requests have the same.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct WaiterId(pub u64);

/// A request that is about to wait.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Waiter {
    /// Tenant of the request.
    pub tenant: TenantKey,
    /// Needs of the request.
    pub needs: NeedsKey,
    /// Time until which it may wait.
    pub deadline: Instant,
    /// Whether it is the rest of a stream that has begun elsewhere.
    pub is_continuation: bool,
}

/// Error: the queue is full, and no other tenant has enough waiting requests to give up one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("{waiting_max} requests are already waiting")]
pub struct QueueFull {
    /// Maximum number of waiting requests.
    pub waiting_max: usize,
}

/// Queue of waiting requests.
///
/// `waiting_max` limits new requests only.
#[derive(Debug, Clone)]
pub struct AdmissionQueue {
    waiting_max: usize,
    /// Largest tag of a request that was started. Units: microseconds of a worker's time.
    served_us: u64,
    tenants: HashMap<TenantKey, Tenant>,
    waiting: HashMap<WaiterId, Waiter>,
    deadlines: BTreeSet<(Instant, WaiterId)>,
    /// Waiting rests of streams, which belong to no tenant here.
    continuations: BTreeSet<WaiterId>,
    /// Waiting tenants, ordered by tag and then by oldest request.
    order: BTreeSet<(u64, WaiterId, TenantKey)>,
    demands: HashMap<NeedsKey, Demand>,
}

/// State of the waiting requests with the same needs.
#[derive(Debug, Clone, Default)]
struct Demand {
    n_waiting: usize,
    /// Workers that had no capacity when one of the requests last tried to start; `None` if none has tried. Empty if
    /// all workers are paused.
    awaited: Option<Vec<WorkerIdx>>,
}

impl Demand {
    fn is_paused(&self) -> bool {
        self.awaited.as_ref().is_some_and(Vec::is_empty)
    }
}

#[derive(Debug, Clone, Default)]
struct Tenant {
    tag_us: u64,
    waiting: BTreeSet<WaiterId>,
}

impl Tenant {
    fn key(&self, tenant: TenantKey) -> Option<(u64, WaiterId, TenantKey)> {
        Some((self.tag_us, *self.waiting.first()?, tenant))
    }
}

impl AdmissionQueue {
    /// Returns an empty queue of at most `waiting_max` requests.
    pub fn new(waiting_max: usize) -> Self {
        Self {
            waiting_max,
            served_us: 0,
            tenants: HashMap::new(),
            waiting: HashMap::new(),
            deadlines: BTreeSet::new(),
            continuations: BTreeSet::new(),
            order: BTreeSet::new(),
            demands: HashMap::new(),
        }
    }

    /// Returns the number of requests that wait.
    pub fn len(&self) -> usize {
        self.waiting.len()
    }

    /// Returns whether no request waits.
    pub fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// Returns whether a request still waits.
    pub fn contains(&self, id: WaiterId) -> bool {
        self.waiting.contains_key(&id)
    }

    /// Returns the requests that may try to start, in their order: the first one with each needs.
    pub fn trying(&self) -> Vec<WaiterId> {
        let (mut trying, mut seen, mut n_active) = (Vec::new(), HashSet::new(), 0);
        for id in self.in_order() {
            if seen.len() == self.demands.len() || n_active == TRYING_MAX {
                break;
            }
            let needs = self.waiting[&id].needs;
            if seen.insert(needs) {
                trying.push(id);
                n_active += usize::from(!self.demands[&needs].is_paused());
            }
        }
        trying
    }

    /// Returns the workers that a request must leave to earlier ones if it tries to start now; `None` if it may not
    /// try: another one with its needs is earlier, or one whose workers are not known yet.
    pub fn turn(&self, id: WaiterId) -> Option<Vec<WorkerIdx>> {
        let mut awaited_workers = Vec::new();
        for other in self.trying() {
            if other == id {
                return Some(awaited_workers);
            }
            awaited_workers.extend(self.demands[&self.waiting[&other].needs].awaited.as_ref()?);
        }
        None
    }

    /// Records that a request could not start, and the workers that had no capacity for it; none if all are paused.
    ///
    /// Returns whether other requests may try because of it.
    pub fn refused(&mut self, id: WaiterId, awaited_workers: &[WorkerIdx]) -> bool {
        let Some(waiter) = self.waiting.get(&id) else { return false };
        let demand = self.demands.entry(waiter.needs).or_default();
        let was_paused = demand.is_paused();
        let before = demand.awaited.replace(awaited_workers.to_vec());
        before.is_none() || demand.is_paused() && !was_paused
    }

    /// Returns all requests: first the rests of streams, then those of each tenant.
    fn in_order(&self) -> impl Iterator<Item = WaiterId> {
        let of_tenant = |(_, _, tenant): &(u64, WaiterId, TenantKey)| self.tenants[tenant].waiting.iter().copied();
        self.continuations.iter().copied().chain(self.order.iter().flat_map(of_tenant))
    }

    /// Adds a request to the queue, and returns the request that was evicted to make room for it.
    ///
    /// A request that was started without success enters again with its old id, and so has its old place.
    /// Errors: [`QueueFull`] if the queue is full and no tenant has at least two more requests in it than this one.
    /// Panics: if a request with this id waits already.
    pub fn enter(&mut self, id: WaiterId, waiter: Waiter) -> Result<Option<WaiterId>, QueueFull> {
        assert!(!self.contains(id), "no two requests have the same id");
        let has_place = waiter.is_continuation || self.waiting.len() - self.continuations.len() < self.waiting_max;
        let displaced_id = if has_place { None } else { Some(self.displace(waiter.tenant)?) };
        let served_us = self.served_us;
        self.waiting.insert(id, waiter);
        self.demands.entry(waiter.needs).or_default().n_waiting += 1;
        self.deadlines.insert((waiter.deadline, id));
        if waiter.is_continuation {
            self.continuations.insert(id);
            return Ok(displaced_id);
        }
        self.change(waiter.tenant, |tenant| {
            if tenant.waiting.is_empty() {
                tenant.tag_us = tenant.tag_us.max(served_us);
            }
            tenant.waiting.insert(id);
        });
        Ok(displaced_id)
    }

    /// Records that a waiting request starts, and how much worker time it takes. Units: microseconds.
    pub fn start(&mut self, id: WaiterId, service_us: u64) {
        let Some(waiter) = self.remove(id).filter(|waiter| !waiter.is_continuation) else { return };
        if let Some(tenant) = self.tenants.get(&waiter.tenant) {
            self.served_us = self.served_us.max(tenant.tag_us);
        }
        self.change(waiter.tenant, |tenant| tenant.tag_us = tenant.tag_us.saturating_add(service_us));
        self.forget();
    }

    /// Removes a request from the queue; returns whether it was there.
    pub fn leave(&mut self, id: WaiterId) -> bool {
        let was_queued = self.remove(id).is_some();
        self.forget();
        was_queued
    }

    /// Removes and returns the requests whose deadline has passed.
    pub fn expire(&mut self, now: Instant) -> Vec<WaiterId> {
        let mut expired_ids = Vec::new();
        while let Some(&(deadline, id)) = self.deadlines.first()
            && deadline <= now
        {
            self.leave(id);
            expired_ids.push(id);
        }
        expired_ids
    }

    /// Makes room for a request of `newcomer` by evicting the newest request of the tenant with the most.
    fn displace(&mut self, newcomer: TenantKey) -> Result<WaiterId, QueueFull> {
        let n_own = self.tenants.get(&newcomer).map_or(0, |tenant| tenant.waiting.len());
        let longest = self.tenants.values().max_by_key(|tenant| (tenant.waiting.len(), tenant.waiting.last().copied()));
        let newest = longest.filter(|tenant| tenant.waiting.len() > n_own + 1).and_then(|tenant| tenant.waiting.last());
        let id = *newest.ok_or(QueueFull { waiting_max: self.waiting_max })?;
        self.leave(id);
        Ok(id)
    }

    fn remove(&mut self, id: WaiterId) -> Option<Waiter> {
        let waiter = self.waiting.remove(&id)?;
        self.deadlines.remove(&(waiter.deadline, id));
        if let Some(demand) = self.demands.get_mut(&waiter.needs) {
            demand.n_waiting -= 1;
            if demand.n_waiting == 0 {
                self.demands.remove(&waiter.needs);
            }
        }
        if self.continuations.remove(&id) {
            return Some(waiter);
        }
        self.change(waiter.tenant, |tenant| {
            tenant.waiting.remove(&id);
        });
        Some(waiter)
    }

    /// Changes a tenant and updates its position in the order.
    fn change(&mut self, key: TenantKey, change: impl FnOnce(&mut Tenant)) {
        let tenant = self.tenants.entry(key).or_default();
        tenant.key(key).map(|old_key| self.order.remove(&old_key));
        change(tenant);
        tenant.key(key).map(|old_key| self.order.insert(old_key));
    }

    /// Drops tenants without waiting requests: first those whose tag is not ahead, then all of them if there are still
    /// too many.
    fn forget(&mut self) {
        let n_idle = self.tenants.len() - self.order.len();
        if n_idle <= self.waiting_max {
            return;
        }
        let served_us = self.served_us;
        self.tenants.retain(|_, tenant| !tenant.waiting.is_empty() || tenant.tag_us > served_us);
        if self.tenants.len() - self.order.len() > self.waiting_max {
            self.tenants.retain(|_, tenant| !tenant.waiting.is_empty());
        }
    }
}

#[cfg(test)]
mod tests;
