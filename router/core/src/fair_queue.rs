//! The queue of requests that no worker can start yet: who is next, who must leave.
//!
//! Not here: whether a worker has room (`dispatch`), waking whoever waits (the router's `lifecycle::turn`).
//!
//! The idea: tenants take turns by the time that they take from workers, not by how many requests they send. Each has a
//! *tag*, the worker time that it had been given when its next request may start; the smallest tag is next, and a tenant
//! that starts to wait begins at the tag of the one that was served last, so nobody saves up turns. A full queue gives
//! the place of the longest line's newest request to whoever has fewer waiting: a flood displaces itself.
//!
//! Source: Goyal, Vin and Cheng, "Start-time fair queuing" (1996), by tenant; "longest queue drop" for the full queue
//! (Suter et al., 1998).

use std::collections::{BTreeSet, HashMap};
use std::time::Instant;

/// Names whoever shares a turn: the hash of a client's key, or one number for all who give none.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct TenantKey(pub u64);

/// Names one waiting request; smaller ones came first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct WaiterId(u64);

/// Is a request that is to wait.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Entrant {
    /// Is whose it is.
    pub tenant: TenantKey,
    /// Is until when it may wait.
    pub deadline: Instant,
}

/// Is a request's place in the queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Entered {
    /// Names the request in the queue.
    pub id: WaiterId,
    /// Names the request that lost its place to it.
    pub displaced: Option<WaiterId>,
}

/// Says that every place is taken, and that nobody else has more of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("{waiting_max} requests wait already")]
pub struct QueueFull {
    /// Is the number of places.
    pub waiting_max: usize,
}

/// Keeps the requests that wait.
#[derive(Debug, Clone)]
pub struct FairQueue {
    waiting_max: usize,
    next_id: u64,
    /// Is the tag of the request that was started last. Units: microseconds of a worker's time.
    served_us: u64,
    tenants: HashMap<TenantKey, Tenant>,
    waiting: HashMap<WaiterId, Entrant>,
    deadlines: BTreeSet<(Instant, WaiterId)>,
    /// Lists the tenants that wait, each by its tag and its oldest request.
    order: BTreeSet<(u64, WaiterId, TenantKey)>,
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

impl FairQueue {
    /// Returns an empty queue of `waiting_max` places.
    pub fn new(waiting_max: usize) -> Self {
        Self {
            waiting_max,
            next_id: 0,
            served_us: 0,
            tenants: HashMap::new(),
            waiting: HashMap::new(),
            deadlines: BTreeSet::new(),
            order: BTreeSet::new(),
        }
    }

    /// Returns the number of requests that wait.
    pub fn len(&self) -> usize {
        self.waiting.len()
    }

    /// Returns whether nobody waits.
    pub fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// Returns whether a request still waits.
    pub fn contains(&self, id: WaiterId) -> bool {
        self.waiting.contains_key(&id)
    }

    /// Returns the request that is to start next.
    pub fn head(&self) -> Option<WaiterId> {
        self.order.first().map(|&(_, id, _)| id)
    }

    /// Lets a request wait.
    ///
    /// Errors: [`QueueFull`] where every place is taken and no tenant has at least two more of them than this one.
    pub fn enter(&mut self, entrant: Entrant) -> Result<Entered, QueueFull> {
        let id = WaiterId(self.next_id);
        self.re_enter(id, entrant)
    }

    /// Lets a request that had started in vain wait again, in the place that it had; if that is taken, in a new one.
    ///
    /// Errors: [`QueueFull`], as [`FairQueue::enter`].
    pub fn re_enter(&mut self, id: WaiterId, entrant: Entrant) -> Result<Entered, QueueFull> {
        let id = if self.contains(id) { WaiterId(self.next_id) } else { id };
        let displaced = if self.waiting.len() < self.waiting_max { None } else { Some(self.displace(entrant.tenant)?) };
        let served_us = self.served_us;
        self.next_id = self.next_id.max(id.0 + 1);
        self.waiting.insert(id, entrant);
        self.deadlines.insert((entrant.deadline, id));
        self.change(entrant.tenant, |tenant| {
            if tenant.waiting.is_empty() {
                tenant.tag_us = tenant.tag_us.max(served_us);
            }
            tenant.waiting.insert(id);
        });
        Ok(Entered { id, displaced })
    }

    /// Records that the request at the head starts, and what it takes of a worker's time.
    ///
    /// Returns whether it was the head; nothing changes otherwise. Units: microseconds.
    pub fn start(&mut self, id: WaiterId, service_us: u64) -> bool {
        if self.head() != Some(id) {
            return false;
        }
        let Some(entrant) = self.remove(id) else { return false };
        if let Some(tenant) = self.tenants.get(&entrant.tenant) {
            self.served_us = tenant.tag_us;
        }
        self.change(entrant.tenant, |tenant| tenant.tag_us = tenant.tag_us.saturating_add(service_us));
        self.forget();
        true
    }

    /// Records that a request no longer waits; returns whether it did.
    pub fn leave(&mut self, id: WaiterId) -> bool {
        let left = self.remove(id).is_some();
        self.forget();
        left
    }

    /// Removes the requests whose deadline has come, and returns them.
    pub fn expire(&mut self, now: Instant) -> Vec<WaiterId> {
        let mut expired = Vec::new();
        while let Some(&(deadline, id)) = self.deadlines.first()
            && deadline <= now
        {
            self.leave(id);
            expired.push(id);
        }
        expired
    }

    /// Frees a place for `newcomer`: that of the newest request of the tenant with the most.
    fn displace(&mut self, newcomer: TenantKey) -> Result<WaiterId, QueueFull> {
        let n_own = self.tenants.get(&newcomer).map_or(0, |tenant| tenant.waiting.len());
        let longest = self.tenants.values().max_by_key(|tenant| (tenant.waiting.len(), tenant.waiting.last().copied()));
        let newest = longest.filter(|tenant| tenant.waiting.len() > n_own + 1).and_then(|tenant| tenant.waiting.last());
        let id = *newest.ok_or(QueueFull { waiting_max: self.waiting_max })?;
        self.leave(id);
        Ok(id)
    }

    fn remove(&mut self, id: WaiterId) -> Option<Entrant> {
        let entrant = self.waiting.remove(&id)?;
        self.deadlines.remove(&(entrant.deadline, id));
        self.change(entrant.tenant, |tenant| {
            tenant.waiting.remove(&id);
        });
        Some(entrant)
    }

    /// Changes a tenant and lists it anew.
    fn change(&mut self, key: TenantKey, change: impl FnOnce(&mut Tenant)) {
        let tenant = self.tenants.entry(key).or_default();
        tenant.key(key).map(|listed| self.order.remove(&listed));
        change(tenant);
        tenant.key(key).map(|listed| self.order.insert(listed));
    }

    /// Forgets tenants that do not wait: those that owe nothing, and all of them where there are too many.
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
