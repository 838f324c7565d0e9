//! A bit mixer, for sums and tie-breaks that must not depend on patterns in their numbers.
//!
//! It does not protect against attacks: `block_hash` does, and the prefix index has a secret of its own. Digests in the
//! protocol are sums of its results, so it must never change.

/// Returns the number with its bits mixed; different numbers give different results.
///
/// Source: the finalizer of splitmix64 (Steele, Lea, Flood 2014).
#[inline]
pub fn mix(number: u64) -> u64 {
    let bits = (number ^ number >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let bits = (bits ^ bits >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    bits ^ bits >> 31
}
