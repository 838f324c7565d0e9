//! Pins of one tier: the pinned chunks that are protected from eviction.
//!
//! Which chunks are pinned is in `pins`.
//!
//! Pins guard a limited share of the tier. If they need more, a chain's first chunks take precedence over later ones,
//! and the tenant with the most guarded bytes loses guards to tenants with fewer.

use std::collections::{BTreeMap, BTreeSet};

use super::ChunkId;
use super::arc_target::percent;
use crate::tenants::TenantId;

/// Maximum share of a tier that pins guard, in percent.
///
/// Source: at one half, as much room remains for other prefixes.
const PINNED_PERCENT: u64 = 50;

/// Whether a pin covers a chunk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Pinned {
    Yes,
    No,
}

/// Sort key of pinned chunks, in the order in which they are guarded: first block, chunk.
pub(super) type Pin = (usize, ChunkId);

/// Size and tenant of a pinned chunk.
#[derive(Debug, Clone, Copy)]
pub(super) struct Pinning {
    pub n_bytes: u64,
    pub tenant: TenantId,
}

/// Pinned chunks of one tier.
#[derive(Debug, Clone)]
pub(super) struct Guards {
    limit_bytes: u64,
    guarded: BTreeMap<Pin, Pinning>,
    guarded_bytes: u64,
    /// Pinned chunks that do not fit into the pins' share of the tier.
    unguarded: BTreeSet<Pin>,
}

impl Guards {
    pub(super) fn new(tier_bytes: u64) -> Self {
        let limit_bytes = percent(tier_bytes, PINNED_PERCENT);
        Self { limit_bytes, guarded: BTreeMap::new(), guarded_bytes: 0, unguarded: BTreeSet::new() }
    }

    /// Returns the bytes of the guarded chunks.
    pub(super) fn guarded_bytes(&self) -> u64 {
        self.guarded_bytes
    }

    /// Returns the guarded chunks that lose their guard to a pinned one; empty if there is space, `None` if the pinned
    /// one cannot be guarded.
    ///
    /// Cost: O(guarded chunks) if there is no space.
    pub(super) fn giving_way(&self, pinning: Pinning) -> Option<Vec<Pin>> {
        let mut n_lacking = self.guarded_bytes.saturating_add(pinning.n_bytes).saturating_sub(self.limit_bytes);
        let mut giving = Vec::new();
        if n_lacking == 0 {
            return Some(giving);
        }
        let kept_bytes = self.kept();
        let (largest, mut n_left) = kept_bytes.iter().map(|(id, n)| (*id, *n)).max_by_key(|(_, n_bytes)| *n_bytes)?;
        let n_own = kept_bytes.get(&pinning.tenant).map_or(0, |n| *n).saturating_add(pinning.n_bytes);
        for (pin, its) in self.guarded.iter().rev().filter(|(_, its)| its.tenant == largest) {
            if n_lacking == 0 || n_left <= n_own {
                break;
            }
            n_left -= its.n_bytes;
            n_lacking = n_lacking.saturating_sub(its.n_bytes);
            giving.push(*pin);
        }
        (n_lacking == 0).then_some(giving)
    }

    pub(super) fn guard(&mut self, pin: Pin, pinning: Pinning) {
        self.unguarded.remove(&pin);
        self.guarded_bytes += pinning.n_bytes;
        self.guarded.insert(pin, pinning);
    }

    /// Records a pinned chunk for which there is no space.
    pub(super) fn leave_unguarded(&mut self, pin: Pin) {
        self.unguarded.insert(pin);
    }

    /// Removes a pinned chunk and returns whether it was guarded.
    pub(super) fn forget(&mut self, pin: Pin) -> bool {
        self.unguarded.remove(&pin);
        let pinning = self.guarded.remove(&pin);
        self.guarded_bytes -= pinning.map_or(0, |pinning| pinning.n_bytes);
        pinning.is_some()
    }

    /// Returns the first of the pinned chunks that are not guarded.
    pub(super) fn first_unguarded(&self) -> Option<Pin> {
        self.unguarded.first().copied()
    }

    /// Returns the bytes of the guarded chunks for each tenant.
    fn kept(&self) -> BTreeMap<TenantId, u64> {
        let mut kept_bytes = BTreeMap::new();
        for pinning in self.guarded.values() {
            *kept_bytes.entry(pinning.tenant).or_default() += pinning.n_bytes;
        }
        kept_bytes
    }

    /// Checks that all parts are consistent, for tests. Panics: if they are not.
    pub(super) fn check_invariants(&self) {
        assert_eq!(self.guarded.values().map(|pinning| pinning.n_bytes).sum::<u64>(), self.guarded_bytes);
        assert!(self.guarded_bytes <= self.limit_bytes, "pins guard more than their share");
        assert!(
            self.unguarded.iter().all(|pin| !self.guarded.contains_key(pin)),
            "a chunk is both guarded and unguarded"
        );
    }

    /// Returns whether a chunk is guarded, `None` if it is not pinned; for tests.
    pub(super) fn is_guarded(&self, pin: Pin) -> Option<bool> {
        if self.guarded.contains_key(&pin) {
            return Some(true);
        }
        self.unguarded.contains(&pin).then_some(false)
    }
}
