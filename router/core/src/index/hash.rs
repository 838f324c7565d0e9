//! The hash of a block key in the index's tables.
//!
//! The block hash itself is `warmpath-common`'s. Keys are hashes already, but workers choose them; a multiplication by
//! a secret odd number keeps workers from choosing keys that collide.

use warmpath_common::block_hash::BlockKey;

/// Hash function of keys, with one secret.
#[derive(Debug, Clone, Copy)]
pub(super) struct Hasher {
    multiplier: u64,
}

impl Hasher {
    /// Odd number without a pattern, which spreads bits over the upper half of a product.
    ///
    /// Source: splitmix64 (Steele, Lea, Flood 2014), first multiplier.
    pub(super) const SPREAD: u64 = 0xbf58_476d_1ce4_e5b9;

    /// Returns the hash function of a secret.
    pub(super) fn new(seed: u64) -> Self {
        // The bits of the golden ratio keep a seed of 0 from becoming a multiplier of 1.
        let spread = (seed ^ 0x9e37_79b9_7f4a_7c15).wrapping_mul(Self::SPREAD);
        Self { multiplier: (spread ^ spread >> 29) | 1 }
    }

    /// Returns the hash of a key, which is never 0.
    pub(super) fn hash(self, BlockKey(key): BlockKey) -> u64 {
        let product = u128::from(key ^ self.multiplier) * u128::from(self.multiplier);
        ((product >> 64) as u64 ^ product as u64).max(1)
    }
}
