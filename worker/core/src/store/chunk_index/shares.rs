//! Fair shares of one tier: the bytes of each tenant, and the tenant whose chunk is evicted when space is needed.
//!
//! The total size and the pinned part are in `tier_queue`, the identity of tenants in `crate::tenants`.
//!
//! Shares are max-min fair. A tenant can use space that others leave unused. When the tier is full, the tenant that is
//! furthest above an equal share loses a chunk, so a tenant within its share loses nothing to another tenant's flood.
//! Tenants without recent requests, or with only one request, have no share. Among their chunks and those of the
//! largest tenant, the least recently used one is evicted.
//!
//! Source: max-min fairness by eviction from the largest, as in Ghodsi et al., "Dominant resource fairness" (NSDI
//! 2011), for one resource.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;

use hashbrown::HashMap;

use super::ChunkId;
use super::entry::{Evictability, LruSegment};
use super::views::Reason;
use crate::tenants::{ShareStatus, Tenant, TenantId};

/// Order of the chunks of a group: the least recently used first; ties: the deepest first, then the oldest.
pub(super) type Age = (u64, Reverse<usize>, ChunkId);
/// Order of the groups of evictable chunks.
pub(super) type Group = (Evictability, i32, LruSegment);

/// Sort key of tenants by their bytes; ties: the least recently active tenant last.
type Size = (u64, Reverse<u64>, TenantId);

/// Chunk that may be evicted, and its tenant.
#[derive(Debug, Clone, Copy)]
struct Giver {
    tenant: TenantId,
    age: Age,
}

/// Request for space in a tier.
#[derive(Debug, Clone, Copy)]
pub(super) struct Need {
    /// Tenant that needs the space.
    pub tenant: Tenant,
    /// Bytes that will be added.
    pub n_bytes: u64,
    /// Current time.
    pub now_ms: u64,
    /// Time for which a chunk stays after its last use.
    pub min_hold_ms: u64,
}

/// Bytes and evictable chunks of each tenant in one tier.
#[derive(Debug, Clone)]
pub(super) struct Shares {
    /// Time after its last use at which a tenant loses its share.
    quiet_after_ms: u64,
    accounts: HashMap<TenantId, TenantAccount>,
    /// Tenants with a share, by their bytes, without tenants that have 0 bytes.
    by_bytes: BTreeSet<Size>,
    /// Tenants with a share, the least recently active one first.
    by_use: BTreeSet<(u64, TenantId)>,
    /// Tenants without a share, the least recently active one first.
    without: BTreeSet<(u64, TenantId)>,
}

/// Bytes and evictable chunks of one tenant in the tier.
#[derive(Debug, Clone)]
struct TenantAccount {
    share_status: ShareStatus,
    used_ms: u64,
    n_chunks: usize,
    /// Bytes, without guarded ones.
    n_bytes: u64,
    leaving: BTreeMap<Group, BTreeSet<Age>>,
}

impl TenantAccount {
    fn size(&self, id: TenantId) -> Size {
        (self.n_bytes, Reverse(self.used_ms), id)
    }

    /// Returns the chunk that is evicted next; `None` if no chunk may be evicted.
    ///
    /// Chunks are ordered by evictability, then by ascending priority, then spare before unused before used ones, then
    /// least recently used first. A protected chunk that was used less than `min_hold_ms` ago is not evicted.
    /// Cost: O(log n) for each priority in use.
    fn next_to_leave(&self, now_ms: u64, min_hold_ms: u64) -> Option<Age> {
        let oldest_of = |((_, _, segment), ages): (&Group, &BTreeSet<Age>)| {
            let stays = |age: &Age| *segment == LruSegment::Protected && now_ms.saturating_sub(age.0) < min_hold_ms;
            ages.first().copied().filter(|age| !stays(age))
        };
        [Evictability::Free, Evictability::Writing].into_iter().find_map(|evictability| {
            let (first, last) =
                ((evictability, i32::MIN, LruSegment::Spare), (evictability, i32::MAX, LruSegment::Protected));
            self.leaving.range(first..=last).find_map(oldest_of)
        })
    }
}

impl Shares {
    pub(super) fn new(quiet_after_ms: u64) -> Self {
        Self {
            quiet_after_ms,
            accounts: HashMap::new(),
            by_bytes: BTreeSet::new(),
            by_use: BTreeSet::new(),
            without: BTreeSet::new(),
        }
    }

    /// Adds a chunk of a tenant.
    pub(super) fn enter(&mut self, tenant: Tenant, n_bytes: u64) {
        self.change(tenant.id, |account| {
            account.n_chunks += 1;
            account.n_bytes += n_bytes;
        });
    }

    /// Subtracts a chunk, which must not be listed for eviction. Panics: if the tenant has none.
    pub(super) fn leave(&mut self, tenant: TenantId, n_bytes: u64) {
        self.change(tenant, |account| {
            account.n_chunks -= 1;
            account.n_bytes -= n_bytes;
        });
    }

    /// Subtracts the bytes of a chunk that is guarded from now on.
    pub(super) fn set_aside(&mut self, tenant: TenantId, n_bytes: u64) {
        self.change(tenant, |account| account.n_bytes -= n_bytes);
    }

    /// Adds the bytes of a chunk that is no longer guarded.
    pub(super) fn take_back(&mut self, tenant: TenantId, n_bytes: u64) {
        self.change(tenant, |account| account.n_bytes += n_bytes);
    }

    /// Records that a tenant has used one of its chunks.
    pub(super) fn note_use(&mut self, tenant: Tenant, used_ms: u64) {
        self.change(tenant.id, |account| {
            account.used_ms = account.used_ms.max(used_ms);
            if tenant.share_status == ShareStatus::Has {
                account.share_status = ShareStatus::Has;
            }
        });
    }

    /// Adds a tenant's chunk to those that may be evicted.
    pub(super) fn list(&mut self, tenant: TenantId, group: Group, age: Age) {
        if let Some(account) = self.accounts.get_mut(&tenant) {
            account.leaving.entry(group).or_default().insert(age);
        }
    }

    /// Removes a tenant's chunk from those that may be evicted.
    pub(super) fn unlist(&mut self, tenant: TenantId, group: Group, age: Age) {
        let Some(account) = self.accounts.get_mut(&tenant) else { return };
        let Some(ages) = account.leaving.get_mut(&group) else { return };
        ages.remove(&age);
        if ages.is_empty() {
            account.leaving.remove(&group);
        }
    }

    /// Returns the chunk that is evicted next, and the reason; `None` if no chunk may be evicted. `limit_bytes` is the
    /// size of the tier without guarded bytes.
    ///
    /// The first rule that finds a chunk decides:
    ///
    /// 1. The largest tenant above an equal share loses a chunk, counting the bytes to be added; or a tenant without a
    ///    share, if its chunk is older.
    /// 2. Tenants that are above an equal share and larger than the requesting one lose chunks that the minimum hold
    ///    time protects.
    /// 3. The requesting tenant loses a chunk of its own.
    /// 4. The least recently active tenant loses a chunk although it is within its share, but only if the requesting
    ///    tenant has no bytes and a share is smaller than the bytes to be added.
    ///
    /// Cost: O(log n) for each tenant that is skipped.
    pub(super) fn next_to_leave(&mut self, limit_bytes: u64, need: &Need) -> Option<(ChunkId, Reason)> {
        self.end_shares(need.now_ms);
        let n_shares = self.n_shares(need) as u128;
        let is_above = |n_bytes: u64| u128::from(n_bytes) * n_shares > u128::from(limit_bytes);
        // 1. The largest tenant above an equal share, or an older chunk of a tenant without a share.
        let above_share = || {
            let above = self.by_size(need).take_while(|(n_bytes, _)| is_above(*n_bytes));
            let largest = self.first(above.map(|(_, id)| id), need, need.min_hold_ms);
            let without = self.first(self.without.iter().map(|(_, id)| *id), need, need.min_hold_ms);
            let is_older = |giver: &Giver| largest.as_ref().is_none_or(|other| giver.age.0 <= other.age.0);
            without.filter(is_older).or(largest)
        };
        // 2. Larger tenants above an equal share, now also chunks within the minimum hold time.
        let within_hold_time = || {
            let larger = self.larger(need).take_while(|(n_bytes, _)| is_above(*n_bytes));
            self.first(larger.map(|(_, id)| id), need, 0)
        };
        // 3. The requesting tenant itself.
        let requesting = || self.first([need.tenant.id], need, need.min_hold_ms);
        // 4. The least recently active tenant, for a tenant without any bytes.
        let quiet_longest = || {
            let lacks_any = self.bytes_of(need.tenant.id) == 0 && is_above(need.n_bytes);
            let others = self.by_use.iter().map(|(_, id)| *id).filter(|_| lacks_any);
            self.first(others, need, need.min_hold_ms)
        };
        let giver = above_share().or_else(within_hold_time).or_else(requesting).or_else(quiet_longest)?;
        let is_over_share = giver.tenant != need.tenant.id && is_above(self.bytes_of(giver.tenant));
        Some((giver.age.2, if is_over_share { Reason::OverShare } else { Reason::Capacity }))
    }

    /// Returns the next chunk of the first of these tenants that has one to evict.
    fn first(&self, tenants: impl IntoIterator<Item = TenantId>, need: &Need, hold_ms: u64) -> Option<Giver> {
        tenants.into_iter().find_map(|tenant| {
            let age = self.accounts.get(&tenant)?.next_to_leave(need.now_ms, hold_ms)?;
            Some(Giver { tenant, age })
        })
    }

    /// Returns the number of tenants that have a share and any bytes, and the bytes of the largest one, without guarded
    /// bytes.
    pub(super) fn totals(&self) -> (usize, u64) {
        (self.by_bytes.len(), self.by_bytes.last().map_or(0, |(n_bytes, ..)| *n_bytes))
    }

    /// Returns every tenant with its bytes, without guarded ones.
    pub(super) fn iter(&self) -> impl Iterator<Item = (TenantId, u64)> {
        self.accounts.iter().map(|(id, account)| (*id, account.n_bytes))
    }

    /// Returns the tenants with a share and their bytes, the largest first. The requesting tenant's bytes include those
    /// to be added.
    fn by_size(&self, need: &Need) -> impl Iterator<Item = (u64, TenantId)> {
        let (taker, n_taken) = (need.tenant.id, self.taken(need));
        let itself = need.tenant.share_id().map(|id| (n_taken, id));
        let others = self.by_bytes.range(..=last_of(n_taken)).rev().map(|(n_bytes, _, id)| (*n_bytes, *id));
        self.larger(need).chain(itself).chain(others.filter(move |(_, id)| *id != taker))
    }

    /// Returns the tenants that have a share and more bytes than the requesting tenant will have, the largest first.
    fn larger(&self, need: &Need) -> impl Iterator<Item = (u64, TenantId)> {
        let taker = need.tenant.id;
        let above = self.by_bytes.range((Bound::Excluded(last_of(self.taken(need))), Bound::Unbounded));
        above.rev().map(|(n_bytes, _, id)| (*n_bytes, *id)).filter(move |(_, id)| *id != taker)
    }

    /// Returns the bytes that the requesting tenant will have.
    fn taken(&self, need: &Need) -> u64 {
        self.bytes_of(need.tenant.id).saturating_add(need.n_bytes)
    }

    fn bytes_of(&self, tenant: TenantId) -> u64 {
        self.accounts.get(&tenant).map_or(0, |account| account.n_bytes)
    }

    /// Returns the number of equal shares: one for each tenant with a share, and one for all other tenants together.
    fn n_shares(&self, need: &Need) -> usize {
        let size = self.accounts.get(&need.tenant.id).map(|account| account.size(need.tenant.id));
        let is_counted = size.is_some_and(|size| self.by_bytes.contains(&size));
        let is_another = need.tenant.share_id().is_some() && !is_counted;
        let has_others = !self.without.is_empty() || need.tenant.share_id().is_none();
        self.by_bytes.len() + usize::from(is_another) + usize::from(has_others)
    }

    /// Ends the shares of tenants without recent requests.
    fn end_shares(&mut self, now_ms: u64) {
        while let Some((used_ms, id)) = self.by_use.first().copied()
            && now_ms.saturating_sub(used_ms) > self.quiet_after_ms
        {
            self.change(id, |account| account.share_status = ShareStatus::Lacks);
        }
    }

    /// Changes an account. A missing account is created, and an account without chunks is removed.
    fn change(&mut self, id: TenantId, change: impl FnOnce(&mut TenantAccount)) {
        let mut account = self.accounts.remove(&id).unwrap_or_else(|| TenantAccount {
            share_status: ShareStatus::Lacks,
            used_ms: 0,
            n_chunks: 0,
            n_bytes: 0,
            leaving: BTreeMap::new(),
        });
        // Every list has an account by what it said before, and then by what it says now.
        self.by_bytes.remove(&account.size(id));
        self.by_use.remove(&(account.used_ms, id));
        self.without.remove(&(account.used_ms, id));
        change(&mut account);
        if account.n_chunks == 0 {
            return;
        }
        match account.share_status {
            ShareStatus::Has => {
                self.by_use.insert((account.used_ms, id));
                if account.n_bytes > 0 {
                    self.by_bytes.insert(account.size(id));
                }
            }
            ShareStatus::Lacks => drop(self.without.insert((account.used_ms, id))),
        }
        self.accounts.insert(id, account);
    }

    /// Checks that all parts are consistent, for tests. Panics: if they are not.
    pub(super) fn check_invariants(&self) {
        let accounts: Vec<_> =
            self.accounts.iter().filter(|(_, account)| account.share_status == ShareStatus::Has).collect();
        assert_eq!(accounts.len(), self.by_use.len());
        assert_eq!(accounts.len() + self.without.len(), self.accounts.len());
        assert_eq!(accounts.iter().filter(|(_, account)| account.n_bytes > 0).count(), self.by_bytes.len());
        for (id, account) in &self.accounts {
            let set = if account.share_status == ShareStatus::Has { &self.by_use } else { &self.without };
            assert!(set.contains(&(account.used_ms, *id)) && account.n_chunks > 0);
            assert!(account.leaving.values().all(|ages| !ages.is_empty()), "a group without chunks is kept");
        }
    }

    /// Returns whether a tenant's chunk is listed for eviction; for tests.
    pub(super) fn lists(&self, tenant: TenantId, group: Group, age: Age) -> bool {
        let ages = self.accounts.get(&tenant).and_then(|account| account.leaving.get(&group));
        ages.is_some_and(|ages| ages.contains(&age))
    }

    /// Returns the chunks and bytes of every tenant, and the number of listed chunks; for tests.
    pub(super) fn count(&self) -> (usize, u64, usize) {
        let n_listed = |account: &TenantAccount| account.leaving.values().map(BTreeSet::len).sum::<usize>();
        self.accounts.values().fold((0, 0, 0), |(chunks, bytes, n), account| {
            (chunks + account.n_chunks, bytes + account.n_bytes, n + n_listed(account))
        })
    }
}

/// Returns the largest possible key of a tenant with this many bytes.
fn last_of(n_bytes: u64) -> Size {
    (n_bytes, Reverse(0), TenantId(u128::MAX))
}
