//! Schedule of LoRA adapters: llama.cpp applies one adapter to a whole batch, so adapters take turns.
//!
//! The contents of the batch are in `batch_plan`; the shell applies the adapter.
//!
//! Adapters are served in a fixed order. With n adapters a stream is in every n-th batch, and no sequence waits longer
//! than one round.

/// Returns the adapter of `present` that follows `last` in ascending order; the smallest one follows the largest.
///
/// `None` if `present` is empty. Cost: O(n).
pub fn next<K: Ord + Copy>(present: impl Iterator<Item = K>, last: Option<K>) -> Option<K> {
    let mut smallest = None;
    let mut next = None;
    for key in present {
        smallest = Some(smallest.map_or(key, |smallest: K| smallest.min(key)));
        if last.is_some_and(|last| key > last) {
            next = Some(next.map_or(key, |next: K| next.min(key)));
        }
    }
    next.or(smallest)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_adapter_gets_its_turn_while_others_are_added_or_removed() {
        let check = |present: &[u32], last, expected| assert_eq!(next(present.iter().copied(), last), expected);
        check(&[], None, None);
        check(&[], Some(1), None);
        check(&[3, 1, 2, 1], None, Some(1));
        check(&[3, 1, 2], Some(1), Some(2));
        check(&[3, 1], Some(1), Some(3));
        check(&[3, 1], Some(3), Some(1));
        check(&[2], Some(2), Some(2));
        check(&[1, 5], Some(3), Some(5));
    }
}
