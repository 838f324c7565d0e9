//! One tier's bytes: who is in it, how many bytes that is, and who leaves it next.
//!
//! Not here: what may leave without making something else unreachable (`tiers`, which says so by a [`Standing`]).
//! The idea: a segmented LRU. A chunk that was used since it was stored is protected and leaves after all that never
//! were, so a flood of prompts that come once pushes out only itself; how much room that gets is learnt (`balance`).
//! Ordered sets hold those that may leave.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

use hashbrown::HashMap;
use warmpath_common::block_hash::BlockHash;

use super::balance::{Balance, Use, percent};
use super::{ChunkId, Totals};

/// Is the share of a tier that pins keep from being evicted at most, in percent: the rest must suffice to work with.
///
/// Source: a choice; the issue asks for a limit, and at one half a worker with only pins still caches as much again.
const PINNED_PERCENT: u64 = 50;

/// Says whether a chunk may leave its tier.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Standing {
    /// It may.
    Free,
    /// It may if nothing that is free can: it is being written, so that shortly it could leave at no cost.
    Writing,
    /// It may not: somebody uses it, or something else would become unreachable.
    Fixed,
}

/// Says by whom a chunk is pinned; the first kind goes before the second where not all of them can be guarded.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Pinned {
    /// By name.
    Named,
    /// Because it is used much.
    Automatic,
    /// By nobody.
    Not,
}

/// Is what a chunk is to a tier that it enters.
#[derive(Debug, Clone, Copy)]
pub(super) struct Facts {
    /// Names the chunk as it will be named when it comes back.
    pub name: BlockHash,
    pub n_bytes: u64,
    pub n_tokens: u64,
    pub priority: i32,
    pub first_block: usize,
    pub last_used_ms: u64,
    pub segment: Segment,
    pub pinned: Pinned,
}

/// Says whether a chunk was used since it was stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Segment {
    /// It was not, or long ago.
    Probation,
    /// It was.
    Protected,
}

/// Orders chunks of a group: the least recently used first; of equals the deepest, then the oldest.
type Age = (u64, Reverse<usize>, ChunkId);
/// Orders the groups of those that may leave.
type Group = (Standing, i32, Segment);

/// Is one tier.
#[derive(Debug, Clone)]
pub(super) struct TierQueue {
    limit_bytes: u64,
    totals: Totals,
    members: HashMap<ChunkId, Member>,
    leaving: BTreeMap<Group, BTreeSet<Age>>,
    protected: BTreeSet<Age>,
    protected_bytes: u64,
    balance: Balance,
    /// Holds the pinned chunks that are guarded: the pins' share of the tier has room for them.
    guarded: BTreeSet<(Pinned, usize, ChunkId)>,
    guarded_bytes: u64,
    /// Holds the pinned chunks that the pins' share has no room for.
    unguarded: BTreeSet<(Pinned, usize, ChunkId)>,
}

/// Is one chunk in the tier.
#[derive(Debug, Clone)]
struct Member {
    facts: Facts,
    standing: Standing,
    used: Use,
    is_guarded: bool,
    /// Is the group in which the chunk is listed as leaving.
    listed: Option<Group>,
}

impl Member {
    fn age(&self, id: ChunkId) -> Age {
        (self.facts.last_used_ms, Reverse(self.facts.first_block), id)
    }

    fn pin(&self, id: ChunkId) -> (Pinned, usize, ChunkId) {
        (self.facts.pinned, self.facts.first_block, id)
    }
}

impl TierQueue {
    pub(super) fn new(limit_bytes: u64) -> Self {
        Self {
            limit_bytes,
            totals: Totals::default(),
            members: HashMap::new(),
            leaving: BTreeMap::new(),
            protected: BTreeSet::new(),
            protected_bytes: 0,
            balance: Balance::new(limit_bytes),
            guarded: BTreeSet::new(),
            guarded_bytes: 0,
            unguarded: BTreeSet::new(),
        }
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

    /// Takes a chunk in; it stays until `set_standing` says that it may leave.
    pub(super) fn enter(&mut self, id: ChunkId, facts: Facts) {
        let member = Member { facts, standing: Standing::Fixed, used: Use::Never, is_guarded: false, listed: None };
        self.totals.add(facts.n_tokens, facts.n_bytes);
        let is_new = self.members.insert(id, member).is_none();
        assert!(is_new, "chunk {} enters a tier twice", id.0);
        let comes_back = self.balance.comes(&facts.name, facts.n_bytes);
        self.set_segment(id, if comes_back { Segment::Protected } else { facts.segment });
        self.guard(id);
    }

    /// Lets a chunk go and returns what it was.
    pub(super) fn leave(&mut self, id: ChunkId) -> Facts {
        self.set_segment(id, Segment::Probation);
        self.unguard(id);
        self.set_standing(id, Standing::Fixed);
        let member = self.members.remove(&id).expect("a chunk leaves only a tier that it is in");
        self.totals.subtract(member.facts.n_tokens, member.facts.n_bytes);
        self.guard_next();
        member.facts
    }

    /// Remembers that a chunk is about to leave because something else needs its room.
    pub(super) fn note_evicted(&mut self, id: ChunkId) {
        let Some(member) = self.members.get(&id) else { return };
        self.balance.left(member.facts.name, member.facts.n_bytes, member.used);
    }

    /// Notes a use of a chunk, if it is in the tier.
    pub(super) fn touch(&mut self, id: ChunkId, now_ms: u64) {
        if !self.members.contains_key(&id) {
            return;
        }
        self.set_segment(id, Segment::Probation);
        let member = self.member(id);
        let standing = std::mem::replace(&mut member.standing, Standing::Fixed);
        self.relist(id);
        let member = self.member(id);
        member.facts.last_used_ms = now_ms;
        member.standing = standing;
        self.set_segment(id, Segment::Protected);
    }

    /// Says whether a chunk may leave, if it is in the tier.
    pub(super) fn set_standing(&mut self, id: ChunkId, standing: Standing) {
        let Some(member) = self.members.get_mut(&id) else { return };
        member.standing = standing;
        self.relist(id);
    }

    /// Says by whom a chunk is pinned, if it is in the tier.
    pub(super) fn set_pinned(&mut self, id: ChunkId, pinned: Pinned) {
        if self.members.get(&id).is_none_or(|member| member.facts.pinned == pinned) {
            return;
        }
        self.unguard(id);
        self.member(id).facts.pinned = pinned;
        self.guard(id);
        self.guard_next();
    }

    /// Returns the chunk that leaves next, or nothing where none may.
    ///
    /// Those that may leave at no wait go first; then lower priority, then those not used since they were stored, then
    /// the least recently used. A protected chunk used less than `min_hold_ms` ago stays. Cost: O(log n) for each
    /// priority in use.
    pub(super) fn next_to_leave(&self, now_ms: u64, min_hold_ms: u64) -> Option<ChunkId> {
        let oldest_of = |((_, _, segment), ages): (&Group, &BTreeSet<Age>)| {
            let stays = |age: &Age| *segment == Segment::Protected && now_ms.saturating_sub(age.0) < min_hold_ms;
            ages.first().filter(|age| !stays(age)).map(|age| age.2)
        };
        [Standing::Free, Standing::Writing].into_iter().find_map(|standing| {
            let (first, last) = ((standing, i32::MIN, Segment::Probation), (standing, i32::MAX, Segment::Protected));
            self.leaving.range(first..=last).find_map(oldest_of)
        })
    }

    fn member(&mut self, id: ChunkId) -> &mut Member {
        self.members.get_mut(&id).expect("the caller has seen that the chunk is in the tier")
    }

    /// Moves a chunk to where it belongs among those that may leave.
    fn relist(&mut self, id: ChunkId) {
        let member = self.members.get_mut(&id).expect("the caller has seen that the chunk is in the tier");
        let stays = member.is_guarded || member.standing == Standing::Fixed;
        let group = (!stays).then_some((member.standing, member.facts.priority, member.facts.segment));
        let age = member.age(id);
        let was = std::mem::replace(&mut member.listed, group);
        if let Some(ages) = was.and_then(|was| self.leaving.get_mut(&was)) {
            ages.remove(&age);
        }
        if let Some(group) = group {
            self.leaving.entry(group).or_default().insert(age);
        }
        if let Some(was) = was
            && self.leaving.get(&was).is_some_and(BTreeSet::is_empty)
        {
            self.leaving.remove(&was);
        }
    }

    /// Moves a chunk to a segment and, while the protected are too many, the least recently used of them to probation.
    fn set_segment(&mut self, id: ChunkId, segment: Segment) {
        self.change_segment(id, segment);
        while self.protected_bytes > self.balance.protected_bytes_max()
            && let Some((_, _, oldest)) = self.protected.first().copied()
        {
            self.change_segment(oldest, Segment::Probation);
        }
    }

    fn change_segment(&mut self, id: ChunkId, segment: Segment) {
        let member = self.member(id);
        member.facts.segment = segment;
        if segment == Segment::Protected {
            member.used = Use::Once;
        }
        let (age, n_bytes) = (member.age(id), member.facts.n_bytes);
        self.relist(id);
        match segment {
            Segment::Protected if self.protected.insert(age) => self.protected_bytes += n_bytes,
            Segment::Probation if self.protected.remove(&age) => self.protected_bytes -= n_bytes,
            _ => {}
        }
    }

    /// Guards a chunk if it is pinned and there is room; a named pin takes the room of automatic ones.
    fn guard(&mut self, id: ChunkId) {
        let share = percent(self.limit_bytes, PINNED_PERCENT);
        let member = self.member(id);
        let (pin, n_bytes) = (member.pin(id), member.facts.n_bytes);
        if pin.0 == Pinned::Not {
            return;
        }
        while pin.0 == Pinned::Named && n_bytes <= share && self.guarded_bytes + n_bytes > share {
            let Some(last) = self.guarded.last().copied().filter(|last| last.0 == Pinned::Automatic) else { break };
            self.unguard(last.2);
            self.unguarded.insert(last);
        }
        if self.guarded_bytes.saturating_add(n_bytes) > share {
            self.unguarded.insert(pin);
            return;
        }
        self.guarded.insert(pin);
        self.guarded_bytes += n_bytes;
        self.member(id).is_guarded = true;
        self.relist(id);
    }

    fn unguard(&mut self, id: ChunkId) {
        let member = self.member(id);
        let (pin, n_bytes) = (member.pin(id), member.facts.n_bytes);
        member.is_guarded = false;
        self.unguarded.remove(&pin);
        if self.guarded.remove(&pin) {
            self.guarded_bytes -= n_bytes;
            self.relist(id);
        }
    }

    /// Guards those that room has been made for.
    fn guard_next(&mut self) {
        while let Some(pin) = self.unguarded.pop_first() {
            self.guard(pin.2);
            if self.unguarded.contains(&pin) {
                return;
            }
        }
    }

    /// Checks that everything agrees with everything; for tests. Panics: when something does not.
    pub(super) fn check_invariants(&self) {
        let sum = |keep: &dyn Fn(&Member) -> bool| -> u64 {
            self.members.values().filter(|member| keep(member)).map(|member| member.facts.n_bytes).sum()
        };
        assert_eq!(sum(&|_| true), self.totals.n_bytes, "a tier's bytes are counted wrong");
        assert!(self.totals.n_bytes <= self.limit_bytes, "a tier holds more than its limit");
        assert_eq!(sum(&|member| member.facts.segment == Segment::Protected), self.protected_bytes);
        assert!(self.protected_bytes <= self.balance.protected_bytes_max(), "too much is protected");
        assert_eq!(sum(&|member| member.is_guarded), self.guarded_bytes);
        assert!(self.guarded_bytes <= percent(self.limit_bytes, PINNED_PERCENT), "pins keep more than their share");
        let n_listed: usize = self.leaving.values().map(BTreeSet::len).sum();
        assert_eq!(n_listed, self.members.values().filter(|member| member.listed.is_some()).count());
        assert!(self.leaving.values().all(|ages| !ages.is_empty()), "an empty group is kept");
        for (id, member) in &self.members {
            let is_listed = member.listed.is_some_and(|group| self.leaving[&group].contains(&member.age(*id)));
            assert_eq!(is_listed, member.standing != Standing::Fixed && !member.is_guarded);
            assert_eq!(self.guarded.contains(&member.pin(*id)), member.is_guarded);
            let is_unguarded = member.facts.pinned != Pinned::Not && !member.is_guarded;
            assert_eq!(self.unguarded.contains(&member.pin(*id)), is_unguarded);
        }
    }
}
