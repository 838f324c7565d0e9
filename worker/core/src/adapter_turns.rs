//! Whose turn it is where sequences run with different adapters: llama.cpp applies one to a whole batch.
//!
//! Not here: what goes into the batch (`batch_plan`), applying it (the shell). The idea: adapters take turns in a fixed order, so with n of
//! them a stream has every n-th step, and nobody waits longer than a round.

/// Returns who is next among `present`, behind `last`; the order is that of the values, and behind the largest comes the smallest.
///
/// `None` where nobody is there. Cost: O(n).
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
    fn turns_go_round_whoever_comes_and_goes() {
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
