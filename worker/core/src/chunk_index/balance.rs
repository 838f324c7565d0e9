//! How much of a tier is for chunks that were used since they were stored, learnt from what comes back too late.
//!
//! Not here: who leaves (`tier_queue`).
//! The idea: of chunks that were evicted the names are kept for a while. If one comes back that was never used, those that
//! wait for their first use had too little room; if one comes back that was used, the used ones had. Each return moves the
//! border by a multiple of its own size, more where such returns are the rarer kind. With no room for the used ones alone the tier is a
//! plain LRU, which is best for conversations; with the most room it keeps what is used through any flood.

use std::collections::VecDeque;

use hashbrown::HashMap;
use warmpath_common::block_hash::BlockHash;

/// Is the share of a tier that protected chunks take at most, in percent.
///
/// Source: Karedla, Love, Wherry, "Caching strategies to improve disk system performance" (1994), section on SLRU, which
/// found 60 to 80 % best; the higher end, because a lost prefix costs far more than a lost disk block.
const PROTECTED_PERCENT_MAX: u64 = 80;
/// Is the share of a tier that protected chunks take at most before anything came back, in percent.
///
/// Source: docs/decisions/0014-placement-charge.md: where a fleet's router sends what comes back elsewhere, little is learnt, and
/// conversations lose a tenth of their hits at 80 %, a fiftieth at 40 %.
const PROTECTED_PERCENT_FIRST: u64 = 40;
/// Is how much further than its own size a return moves the border.
///
/// Source: docs/decisions/0014-placement-charge.md: an eighth of a tier's size in returns must suffice to learn.
const STRIDE: u64 = 8;
/// Is the most names that are kept of each kind.
///
/// Source: a choice: with chunks of a megabyte, those of 64 GB; a name takes about 100 bytes.
const N_NAMES_MAX: usize = 1 << 16;

/// Is the border between the two kinds, and what it is learnt from.
///
/// Source: Megiddo and Modha, "ARC: a self-tuning, low overhead replacement cache" (2003).
#[derive(Debug, Clone)]
pub(super) struct Balance {
    limit_bytes: u64,
    protected_bytes_max: u64,
    unused: Names,
    used: Names,
}

/// Says whether a chunk was used since it was stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Use {
    /// It was not.
    Never,
    /// It was.
    Once,
}

/// Is the names of chunks of one kind that were evicted, at most as much as the tier holds.
#[derive(Debug, Clone, Default)]
struct Names {
    n_bytes: u64,
    next: u64,
    by_name: HashMap<BlockHash, (u64, u64)>,
    /// Lists names by age; those that came back are in here still.
    by_age: VecDeque<(u64, BlockHash)>,
}

impl Balance {
    pub(super) fn new(limit_bytes: u64) -> Self {
        let protected_bytes_max = percent(limit_bytes, PROTECTED_PERCENT_FIRST);
        Self { limit_bytes, protected_bytes_max, unused: Names::default(), used: Names::default() }
    }

    /// Returns the most bytes that protected chunks may take.
    pub(super) fn protected_bytes_max(&self) -> u64 {
        self.protected_bytes_max
    }

    /// Takes note that a chunk was evicted to make room.
    pub(super) fn left(&mut self, name: BlockHash, n_bytes: u64, used: Use) {
        let names = match used {
            Use::Never => &mut self.unused,
            Use::Once => &mut self.used,
        };
        names.add(name, n_bytes, self.limit_bytes);
    }

    /// Takes note that a chunk is stored, and returns whether it was evicted a while ago.
    pub(super) fn comes(&mut self, name: &BlockHash, n_bytes: u64) -> bool {
        let (n_unused, n_used) = (self.unused.n_bytes, self.used.n_bytes);
        let step =
            |rarer: u64, other: u64| n_bytes.saturating_mul(STRIDE).saturating_mul((other / rarer.max(1)).max(1));
        if self.unused.take(name) {
            self.protected_bytes_max = self.protected_bytes_max.saturating_sub(step(n_unused, n_used));
            return true;
        }
        if self.used.take(name) {
            let most = percent(self.limit_bytes, PROTECTED_PERCENT_MAX);
            self.protected_bytes_max = self.protected_bytes_max.saturating_add(step(n_used, n_unused)).min(most);
            return true;
        }
        false
    }
}

impl Names {
    fn add(&mut self, name: BlockHash, n_bytes: u64, n_bytes_max: u64) {
        self.take(&name);
        self.by_name.insert(name, (self.next, n_bytes));
        self.by_age.push_back((self.next, name));
        self.next += 1;
        self.n_bytes += n_bytes;
        while self.n_bytes > n_bytes_max || self.by_age.len() > N_NAMES_MAX {
            let Some((number, name)) = self.by_age.pop_front() else { return };
            if self.by_name.get(&name).is_some_and(|(named, _)| *named == number) {
                self.take(&name);
            }
        }
    }

    fn take(&mut self, name: &BlockHash) -> bool {
        let Some((_, n_bytes)) = self.by_name.remove(name) else { return false };
        self.n_bytes -= n_bytes;
        true
    }
}

/// Returns `percent` of `bytes`.
pub(super) fn percent(bytes: u64, percent: u64) -> u64 {
    u64::try_from(u128::from(bytes) * u128::from(percent) / 100).expect("a share of at most the whole")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(n: u32) -> BlockHash {
        let mut bytes = [0; 32];
        bytes[..4].copy_from_slice(&n.to_le_bytes());
        BlockHash(bytes)
    }

    #[test]
    fn what_comes_back_moves_the_border_towards_its_kind() {
        let mut balance = Balance::new(1000);
        assert_eq!(balance.protected_bytes_max(), 400);
        balance.left(name(1), 10, Use::Never);
        assert!(balance.comes(&name(1), 10));
        assert_eq!(balance.protected_bytes_max(), 320);
        balance.left(name(2), 5, Use::Once);
        assert!(balance.comes(&name(2), 5));
        assert_eq!(balance.protected_bytes_max(), 360);
        assert!(!balance.comes(&name(2), 5), "a name is taken once");
        assert!(!balance.comes(&name(3), 5), "this one never left");
        assert_eq!(balance.protected_bytes_max(), 360);
    }

    #[test]
    fn a_return_of_the_rarer_kind_counts_more_and_the_border_stays_within_the_tier() {
        let mut balance = Balance::new(1000);
        (0..10).for_each(|n| balance.left(name(n), 10, Use::Once));
        balance.left(name(20), 10, Use::Never);
        assert!(balance.comes(&name(20), 10));
        assert_eq!(balance.protected_bytes_max(), 0);
        (0..10).for_each(|n| assert!(balance.comes(&name(n), 10)));
        assert_eq!(balance.protected_bytes_max(), 800);
    }

    #[test]
    fn names_are_kept_for_as_much_as_the_tier_holds_and_no_more_than_the_limit() {
        let mut balance = Balance::new(1000);
        (0..11).for_each(|n| balance.left(name(n), 100, Use::Never));
        assert!(!balance.comes(&name(0), 100) && balance.comes(&name(1), 100));
        let mut large = Balance::new(u64::MAX);
        (0..=N_NAMES_MAX as u32).for_each(|n| large.left(name(n), 1, Use::Never));
        assert!(!large.comes(&name(0), 1) && large.comes(&name(1), 1));
    }
}
