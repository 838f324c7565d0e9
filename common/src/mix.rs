//! A mixture of a number's bits, for sums and lots that must not follow the numbers they are made of.
//!
//! Not here: hashes that somebody could attack (`block_hash`; the prefix index has a secret of its own).
//! The idea: part of the protocol, since digests are sums of it, so it never changes.

/// Returns a number that tells nothing of the one it is made of; different numbers give different ones.
///
/// Source: the finalizer of splitmix64 (Steele, Lea, Flood 2014).
#[inline]
pub fn mix(number: u64) -> u64 {
    let mixed = (number ^ number >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ mixed >> 31
}
