//! The digest of a worker's blocks: worker and router each keep one, and a difference shows that the router's view is
//! wrong.
//!
//! The digest is the number of blocks and the sum of their mixed keys. A sum does not depend on the order, so each side
//! updates its digest by adding and subtracting. Keys are parts of hashes, so mixing matters only for the consecutive
//! keys of tests, whose sums would often be equal.

use serde::{Deserialize, Serialize};

use crate::hash::block_hash::BlockKey;
use crate::hash::mix::mix;

/// Digest of a set of blocks.
///
/// It covers which blocks are held, not how: tier, state and slot of a block are only hints.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Digest {
    /// Number of blocks.
    pub n_blocks: u64,
    /// Sum of their mixed keys, modulo 2^64.
    pub sum: u64,
}

impl Digest {
    /// Returns the digest of `keys`; duplicates count each time.
    pub fn of<'a>(keys: impl IntoIterator<Item = &'a BlockKey>) -> Self {
        let mut digest = Self::default();
        keys.into_iter().for_each(|key| digest.add(*key));
        digest
    }

    /// Returns the sum in the form in which people compare it: 16 hexadecimal digits.
    pub fn hex(&self) -> String {
        format!("{:016x}", self.sum)
    }

    /// Adds a block that was not held before.
    #[inline]
    pub fn add(&mut self, key: BlockKey) {
        self.n_blocks = self.n_blocks.wrapping_add(1);
        self.sum = self.sum.wrapping_add(mix(key.0));
    }

    /// Returns the digest without the blocks of `other`, all of which it covers.
    #[must_use]
    pub fn without(self, other: Self) -> Self {
        let n_blocks = self.n_blocks.wrapping_sub(other.n_blocks);
        Self { n_blocks, sum: self.sum.wrapping_sub(other.sum) }
    }

    /// Removes a block that was held.
    pub fn remove(&mut self, key: BlockKey) {
        self.n_blocks = self.n_blocks.wrapping_sub(1);
        self.sum = self.sum.wrapping_sub(mix(key.0));
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn equal_sets_have_equal_digests_and_others_do_not(
            steps in prop::collection::vec((0_u64..16, any::<bool>()), 0..60), other in prop::collection::hash_set(0_u64..16, 0..16)
        ) {
            let mut held = HashSet::new();
            let mut digest = Digest::default();
            for (key, is_added) in steps {
                let key = BlockKey(key);
                match is_added {
                    true if held.insert(key) => digest.add(key),
                    false if held.remove(&key) => digest.remove(key),
                    _ => {}
                }
            }
            prop_assert_eq!(digest, Digest::of(&held));
            let other: HashSet<_> = other.into_iter().map(BlockKey).collect();
            prop_assert_eq!(digest == Digest::of(&other), held == other);
        }
    }
}
