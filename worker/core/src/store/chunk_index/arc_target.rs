//! Maximum size of the protected segment of a tier, learnt from chunks that are stored again after their eviction.
//!
//! The order of eviction is in `tier_queue`.
//!
//! The names of recently evicted chunks are kept. If a chunk that was never used is stored again, the probation segment
//! was too small; if it was used, the protected segment was too small. Each return changes the maximum by a multiple of
//! the chunk's size, and by more for the rarer kind of return. Without a protected segment the tier is a plain LRU,
//! which is best for conversations. With the largest one it keeps used chunks through any flood.

use std::collections::VecDeque;

use hashbrown::HashMap;
use warmpath_common::block_hash::BlockHash;

/// Largest share of a tier that protected chunks may take, in percent.
///
/// Source: Karedla, Love, Wherry, "Caching strategies to improve disk system performance" (1994), section on SLRU,
/// which found 60 to 80 % best; the higher end, because a lost prefix costs far more than a lost disk block.
const PROTECTED_PERCENT_MAX: u64 = 80;
/// Initial maximum share of a tier for protected chunks, in percent.
///
/// Source: docs/decisions/0042-simulation.md: if routers send repeated prompts to other workers, there are few returns
/// to learn from; conversations then lose a tenth of their hits at 80 %, and a fiftieth at 40 %.
const PROTECTED_PERCENT_FIRST: u64 = 40;
/// Factor between the size of a returned chunk and the change of the limit.
///
/// Source: docs/decisions/0042-simulation.md: returns of an eighth of the tier's size must suffice to learn the
/// maximum.
const STRIDE: u64 = 8;
/// Maximum number of names of each kind.
///
/// Source: enough for 64 GB in chunks of a megabyte; a name takes about 100 bytes.
const N_NAMES_MAX: usize = 1 << 16;

/// Limit of the protected segment, and the names from which it is learnt.
///
/// Source: Megiddo and Modha, "ARC: a self-tuning, low overhead replacement cache" (2003).
#[derive(Debug, Clone)]
pub(super) struct ArcTarget {
    limit_bytes: u64,
    /// Largest share of the tier that protected chunks may take, in percent.
    percent_max: u64,
    protected_bytes_max: u64,
    unused: EvictedChunks,
    used: EvictedChunks,
}

/// Whether a chunk was used after it was stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Use {
    /// The chunk was never used.
    Never,
    /// The chunk was used at least once.
    Once,
}

/// Evicted chunks of one kind, by name; their bytes are at most the size of the tier.
#[derive(Debug, Clone, Default)]
struct EvictedChunks {
    n_bytes: u64,
    next: u64,
    by_name: HashMap<BlockHash, (u64, u64)>,
    /// Order of eviction; names of chunks that were stored again are still included.
    by_age: VecDeque<(u64, BlockHash)>,
}

impl ArcTarget {
    pub(super) fn new(limit_bytes: u64) -> Self {
        Self::bounded(limit_bytes, PROTECTED_PERCENT_MAX)
    }

    /// Returns a limit of 0 for good, which makes the tier a plain LRU.
    pub(super) fn zero(limit_bytes: u64) -> Self {
        Self::bounded(limit_bytes, 0)
    }

    fn bounded(limit_bytes: u64, percent_max: u64) -> Self {
        let protected_bytes_max = percent(limit_bytes, PROTECTED_PERCENT_FIRST.min(percent_max));
        let (unused, used) = (EvictedChunks::default(), EvictedChunks::default());
        Self { limit_bytes, percent_max, protected_bytes_max, unused, used }
    }

    /// Returns the maximum number of bytes of protected chunks.
    pub(super) fn protected_bytes_max(&self) -> u64 {
        self.protected_bytes_max
    }

    /// Records that a chunk was evicted to free space.
    pub(super) fn left(&mut self, name: BlockHash, n_bytes: u64, used: Use) {
        let names = match used {
            Use::Never => &mut self.unused,
            Use::Once => &mut self.used,
        };
        names.add(name, n_bytes, self.limit_bytes);
    }

    /// Records that a chunk is stored, and returns whether it was evicted recently.
    pub(super) fn comes(&mut self, name: &BlockHash, n_bytes: u64) -> bool {
        let (n_unused, n_used) = (self.unused.n_bytes, self.used.n_bytes);
        let step =
            |rarer: u64, other: u64| n_bytes.saturating_mul(STRIDE).saturating_mul((other / rarer.max(1)).max(1));
        if self.unused.take(name) {
            self.protected_bytes_max = self.protected_bytes_max.saturating_sub(step(n_unused, n_used));
            return true;
        }
        if self.used.take(name) {
            let bytes_max = percent(self.limit_bytes, self.percent_max);
            self.protected_bytes_max = self.protected_bytes_max.saturating_add(step(n_used, n_unused)).min(bytes_max);
            return true;
        }
        false
    }
}

impl EvictedChunks {
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
    fn returns_of_evicted_chunks_enlarge_the_segment_of_their_kind() {
        let mut arc_target = ArcTarget::new(1000);
        assert_eq!(arc_target.protected_bytes_max(), 400);
        arc_target.left(name(1), 10, Use::Never);
        assert!(arc_target.comes(&name(1), 10));
        assert_eq!(arc_target.protected_bytes_max(), 320);
        arc_target.left(name(2), 5, Use::Once);
        assert!(arc_target.comes(&name(2), 5));
        assert_eq!(arc_target.protected_bytes_max(), 360);
        assert!(!arc_target.comes(&name(2), 5), "each eviction counts once");
        assert!(!arc_target.comes(&name(3), 5), "this chunk was not evicted");
        assert_eq!(arc_target.protected_bytes_max(), 360);
    }

    #[test]
    fn a_return_of_the_rarer_kind_counts_more_and_the_maximum_stays_within_its_limit() {
        let mut arc_target = ArcTarget::new(1000);
        (0..10).for_each(|n| arc_target.left(name(n), 10, Use::Once));
        arc_target.left(name(20), 10, Use::Never);
        assert!(arc_target.comes(&name(20), 10));
        assert_eq!(arc_target.protected_bytes_max(), 0);
        (0..10).for_each(|n| assert!(arc_target.comes(&name(n), 10)));
        assert_eq!(arc_target.protected_bytes_max(), 800);
    }

    #[test]
    fn names_are_kept_for_the_bytes_of_the_tier_and_up_to_the_limit() {
        let mut arc_target = ArcTarget::new(1000);
        (0..11).for_each(|n| arc_target.left(name(n), 100, Use::Never));
        assert!(!arc_target.comes(&name(0), 100) && arc_target.comes(&name(1), 100));
        let mut large = ArcTarget::new(u64::MAX);
        (0..=N_NAMES_MAX as u32).for_each(|n| large.left(name(n), 1, Use::Never));
        assert!(!large.comes(&name(0), 1) && large.comes(&name(1), 1));
    }
}
