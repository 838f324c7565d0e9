//! One tier: its chunks, their bytes, and the order of eviction.
//!
//! `tiers` decides which chunks may be evicted without making another one unreachable, and passes it as an
//! [`Evictability`]; `shares` decides which tenant's chunk is evicted.
//!
//! The order is a segmented LRU. Chunks that are not needed any more go first. Chunks that were used after they were
//! stored are protected and are evicted last, so a flood of prompts that are sent once evicts only itself. The size of
//! the protected segment is learnt (`arc_target`).

use std::cmp::Reverse;
use std::collections::BTreeSet;

use hashbrown::HashMap;

use super::arc_target::{ArcTarget, Use};
use super::entry::{EntryStats, Evictability, LruSegment};
use super::guards::{Guards, Pin, Pinned, Pinning};
use super::shares::{Age, Group, Need, Shares};
use super::views::Reason;
use super::{ChunkId, Totals};
use crate::tenants::Tenant;

/// Chunks of one tier.
#[derive(Debug, Clone)]
pub(super) struct TierQueue {
    limit_bytes: u64,
    totals: Totals,
    members: HashMap<ChunkId, TierMember>,
    shares: Shares,
    protected: BTreeSet<Age>,
    protected_bytes: u64,
    arc_target: ArcTarget,
    guards: Guards,
}

/// One chunk in the tier.
#[derive(Debug, Clone)]
struct TierMember {
    stats: EntryStats,
    evictability: Evictability,
    used: Use,
    is_guarded: bool,
    /// Group in which the chunk is listed for eviction.
    listed: Option<Group>,
}

impl TierMember {
    fn age(&self, id: ChunkId) -> Age {
        (self.stats.last_used_ms, Reverse(self.stats.first_block), id)
    }

    fn pin(&self, id: ChunkId) -> Pin {
        (self.stats.first_block, id)
    }

    fn pinning(&self) -> Pinning {
        Pinning { n_bytes: self.stats.n_bytes, tenant: self.stats.tenant.id }
    }
}

impl TierQueue {
    /// Returns an empty tier. A tenant loses its share after `quiet_after_ms` without a request.
    pub(super) fn new(limit_bytes: u64, quiet_after_ms: u64) -> Self {
        Self {
            limit_bytes,
            totals: Totals::default(),
            members: HashMap::new(),
            shares: Shares::new(quiet_after_ms),
            protected: BTreeSet::new(),
            protected_bytes: 0,
            arc_target: ArcTarget::new(limit_bytes),
            guards: Guards::new(limit_bytes),
        }
    }

    /// Returns the tier, which must be empty, as a plain LRU.
    pub(super) fn plain_lru(self) -> Self {
        Self { arc_target: ArcTarget::zero(self.limit_bytes), ..self }
    }

    pub(super) fn limit_bytes(&self) -> u64 {
        self.limit_bytes
    }

    pub(super) fn totals(&self) -> Totals {
        self.totals
    }

    pub(super) fn has_room_for(&self, n_bytes: u64) -> bool {
        self.totals.n_bytes.checked_add(n_bytes).is_some_and(|sum| sum <= self.limit_bytes)
    }

    pub(super) fn is_guarded(&self, id: ChunkId) -> bool {
        self.members.get(&id).is_some_and(|member| member.is_guarded)
    }

    /// Adds a chunk; it cannot be evicted until `set_evictability` allows it.
    pub(super) fn enter(&mut self, id: ChunkId, stats: EntryStats) {
        let member =
            TierMember { stats, evictability: Evictability::Fixed, used: Use::Never, is_guarded: false, listed: None };
        self.totals.add(stats.n_tokens, stats.n_bytes);
        self.shares.enter(stats.tenant, stats.n_bytes);
        self.shares.note_use(stats.tenant, stats.last_used_ms);
        let is_new = self.members.insert(id, member).is_none();
        assert!(is_new, "chunk {} enters a tier twice", id.0);
        let comes_back = self.arc_target.comes(&stats.name, stats.n_bytes);
        self.set_segment(id, if comes_back { LruSegment::Protected } else { stats.segment });
        self.guard(id);
    }

    /// Removes a chunk and returns its properties.
    pub(super) fn leave(&mut self, id: ChunkId) -> EntryStats {
        self.set_segment(id, LruSegment::Probation);
        self.unguard(id);
        self.set_evictability(id, Evictability::Fixed);
        let member = self.members.remove(&id).expect("a chunk leaves only a tier that it is in");
        self.totals.subtract(member.stats.n_tokens, member.stats.n_bytes);
        self.shares.leave(member.stats.tenant.id, member.stats.n_bytes);
        self.guard_next();
        member.stats
    }

    /// Records the name of a chunk that is about to be evicted for another one.
    pub(super) fn note_evicted(&mut self, id: ChunkId) {
        let Some(member) = self.members.get(&id) else { return };
        self.arc_target.left(member.stats.name, member.stats.n_bytes, member.used);
    }

    /// Records a tenant's use of a chunk, if it is in the tier; from now on the chunk is charged to that tenant.
    pub(super) fn touch(&mut self, id: ChunkId, tenant: Tenant, now_ms: u64) {
        if !self.members.contains_key(&id) {
            return;
        }
        self.set_segment(id, LruSegment::Probation);
        let member = self.member(id);
        let evictability = std::mem::replace(&mut member.evictability, Evictability::Fixed);
        self.relist(id);
        self.change_tenant(id, tenant);
        self.shares.note_use(tenant, now_ms);
        let member = self.member(id);
        member.stats.last_used_ms = now_ms;
        member.evictability = evictability;
        self.set_segment(id, LruSegment::Protected);
    }

    /// Charges a chunk, which must not be listed for eviction, to a tenant.
    fn change_tenant(&mut self, id: ChunkId, tenant: Tenant) {
        let stats = self.member(id).stats;
        if stats.tenant.id != tenant.id {
            self.unguard(id);
            self.shares.enter(tenant, stats.n_bytes);
            self.shares.leave(stats.tenant.id, stats.n_bytes);
            self.member(id).stats.tenant = tenant;
            self.guard(id);
        }
    }

    /// Moves a chunk that has not been used to a segment, if it is in the tier.
    pub(super) fn reassign(&mut self, id: ChunkId, segment: LruSegment) {
        if self.members.contains_key(&id) {
            self.set_segment(id, segment);
        }
    }

    /// Sets whether a chunk may be evicted, if it is in the tier.
    pub(super) fn set_evictability(&mut self, id: ChunkId, evictability: Evictability) {
        let Some(member) = self.members.get_mut(&id) else { return };
        member.evictability = evictability;
        self.relist(id);
    }

    /// Sets whether a chunk is pinned, if it is in the tier.
    pub(super) fn set_pinned(&mut self, id: ChunkId, pin_state: Pinned) {
        if self.members.get(&id).is_none_or(|member| member.stats.pinned == pin_state) {
            return;
        }
        self.unguard(id);
        self.member(id).stats.pinned = pin_state;
        self.guard(id);
        self.guard_next();
    }

    /// Returns the chunk that is evicted next for this need, and the reason; `None` if no chunk may be evicted.
    pub(super) fn next_to_leave(&mut self, need: &Need) -> Option<(ChunkId, Reason)> {
        self.shares.next_to_leave(self.limit_bytes - self.guards.guarded_bytes(), need)
    }

    /// Returns the bytes of each tenant.
    pub(super) fn shares(&self) -> &Shares {
        &self.shares
    }

    fn member(&mut self, id: ChunkId) -> &mut TierMember {
        self.members.get_mut(&id).expect("the caller has checked that the chunk is in the tier")
    }

    /// Moves a chunk to its group and position in the order of eviction.
    fn relist(&mut self, id: ChunkId) {
        let member = self.members.get_mut(&id).expect("the caller has checked that the chunk is in the tier");
        let stays = member.is_guarded || member.evictability == Evictability::Fixed;
        let group = (!stays).then_some((member.evictability, member.stats.priority, member.stats.segment));
        let (tenant, age) = (member.stats.tenant.id, member.age(id));
        if let Some(was) = std::mem::replace(&mut member.listed, group) {
            self.shares.unlist(tenant, was, age);
        }
        if let Some(group) = group {
            self.shares.list(tenant, group, age);
        }
    }

    /// Moves a chunk to a segment. While the protected segment is too large, its least recently used chunk moves to
    /// probation.
    fn set_segment(&mut self, id: ChunkId, segment: LruSegment) {
        self.change_segment(id, segment);
        while self.protected_bytes > self.arc_target.protected_bytes_max()
            && let Some((_, _, oldest)) = self.protected.first().copied()
        {
            self.change_segment(oldest, LruSegment::Probation);
        }
    }

    fn change_segment(&mut self, id: ChunkId, segment: LruSegment) {
        let member = self.member(id);
        member.stats.segment = segment;
        if segment == LruSegment::Protected {
            member.used = Use::Once;
        }
        let (age, n_bytes) = (member.age(id), member.stats.n_bytes);
        self.relist(id);
        match segment {
            LruSegment::Protected if self.protected.insert(age) => self.protected_bytes += n_bytes,
            LruSegment::Spare | LruSegment::Probation if self.protected.remove(&age) => self.protected_bytes -= n_bytes,
            _ => {}
        }
    }

    /// Guards a chunk if it is pinned and there is space, or other pins lose their guards to it.
    fn guard(&mut self, id: ChunkId) {
        let member = self.member(id);
        let (pin, pinning) = (member.pin(id), member.pinning());
        if member.stats.pinned == Pinned::No {
            return;
        }
        let Some(giving) = self.guards.giving_way(pinning) else { return self.guards.leave_unguarded(pin) };
        for other in giving {
            self.unguard(other.1);
            self.guards.leave_unguarded(other);
        }
        self.guards.guard(pin, pinning);
        self.shares.set_aside(pinning.tenant, pinning.n_bytes);
        self.member(id).is_guarded = true;
        self.relist(id);
    }

    fn unguard(&mut self, id: ChunkId) {
        let member = self.member(id);
        let (pin, pinning) = (member.pin(id), member.pinning());
        member.is_guarded = false;
        if self.guards.forget(pin) {
            self.shares.take_back(pinning.tenant, pinning.n_bytes);
            self.relist(id);
        }
    }

    /// Guards further pinned chunks while there is space for them.
    fn guard_next(&mut self) {
        while let Some(pin) = self.guards.first_unguarded() {
            self.guard(pin.1);
            if self.members.get(&pin.1).is_none_or(|member| !member.is_guarded) {
                return;
            }
        }
    }

    /// Checks that all parts are consistent, for tests. Panics: if they are not.
    pub(super) fn check_invariants(&self) {
        let sum = |keep: &dyn Fn(&TierMember) -> bool| -> u64 {
            self.members.values().filter(|member| keep(member)).map(|member| member.stats.n_bytes).sum()
        };
        assert_eq!(sum(&|_| true), self.totals.n_bytes, "the sum of a tier's bytes is wrong");
        assert!(self.totals.n_bytes <= self.limit_bytes, "a tier exceeds its limit");
        assert_eq!(sum(&|member| member.stats.segment == LruSegment::Protected), self.protected_bytes);
        assert!(
            self.protected_bytes <= self.arc_target.protected_bytes_max(),
            "the protected segment exceeds its maximum"
        );
        assert_eq!(sum(&|member| member.is_guarded), self.guards.guarded_bytes());
        self.guards.check_invariants();
        self.shares.check_invariants();
        let n_listed = self.members.values().filter(|member| member.listed.is_some()).count();
        let n_bytes = sum(&|member| !member.is_guarded);
        assert_eq!(self.shares.count(), (self.members.len(), n_bytes, n_listed), "tenants' accounts are wrong");
        for (id, member) in &self.members {
            let is_listed =
                member.listed.is_some_and(|group| self.shares.lists(member.stats.tenant.id, group, member.age(*id)));
            assert_eq!(is_listed, member.evictability != Evictability::Fixed && !member.is_guarded);
            let is_guarded = (member.stats.pinned == Pinned::Yes).then_some(member.is_guarded);
            assert_eq!(self.guards.is_guarded(member.pin(*id)), is_guarded);
        }
    }
}
