//! The micro-batches of a batch, which are passed to llama.cpp one by one.
//!
//! The shares of a batch are in `batch_plan`, their order in `decode_groups`.
//!
//! llama.cpp can split a batch into micro-batches itself, but then the shell cannot act before the last one ends. Split
//! here at the same positions, the batch takes the same time, and its rest can be dropped when a request arrives.

use crate::batches::batch_plan::{BatchLimits, Passes, Share};

/// Takes the next micro-batch from `shares`, the remaining shares of a batch in their order.
///
/// If the rest fits into one micro-batch, all of it is taken.
///
/// Shape: empty only if `shares` is. Source: llama.cpp's `llama_batch_allocr::split_simple` if slots share their cells,
/// otherwise `split_equal`, sequential.
pub fn take(shares: &mut Vec<Share>, room: BatchLimits) -> Vec<Share> {
    let n_left: u64 = shares.iter().map(|share| u64::from(share.n_tokens)).sum();
    if n_left <= u64::from(room.ubatch_tokens) {
        return std::mem::take(shares);
    }
    let (n_shares, n_each) = match room.passes {
        Passes::Together => (shares.len(), u32::MAX),
        Passes::Apart => first_pass(shares, room.ubatch_tokens),
    };
    let mut tokens_max = room.ubatch_tokens;
    let mut micro_batch = Vec::new();
    for share in &mut shares[..n_shares] {
        let n_tokens = share.n_tokens.min(n_each).min(tokens_max);
        tokens_max -= n_tokens;
        share.n_tokens -= n_tokens;
        micro_batch.push(Share { slot: share.slot, n_tokens });
    }
    micro_batch.retain(|share| share.n_tokens > 0);
    shares.retain(|share| share.n_tokens > 0);
    micro_batch
}

/// Returns the number of the first shares that go through the model together, and the number of tokens of each.
fn first_pass(shares: &[Share], ubatch_tokens: u32) -> (usize, u32) {
    let n_shares =
        1 + shares.windows(2).take_while(|pair| u32::from(pair[1].slot.0) == u32::from(pair[0].slot.0) + 1).count();
    let shortest = shares[..n_shares].iter().map(|share| share.n_tokens).min().unwrap_or(0);
    (n_shares, shortest.min(ubatch_tokens / n_shares as u32).max(1))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use warmpath_common::ids::SlotId;

    use super::*;

    fn shares(of: &[(u16, u32)]) -> Vec<Share> {
        of.iter().map(|&(slot, n_tokens)| Share { slot: SlotId(slot), n_tokens }).collect()
    }

    fn room(passes: Passes) -> BatchLimits {
        BatchLimits { batch_tokens: 100, ubatch_tokens: 20, passes }
    }

    fn all(mut rest: Vec<Share>, room: BatchLimits) -> Vec<Vec<(u16, u32)>> {
        let mut micro_batches = Vec::new();
        while !rest.is_empty() {
            let taken = take(&mut rest, room);
            micro_batches.push(taken.iter().map(|share| (share.slot.0, share.n_tokens)).collect());
        }
        micro_batches
    }

    #[track_caller]
    fn check(passes: Passes, of: &[(u16, u32)], expected: &[&[(u16, u32)]]) {
        assert_eq!(all(shares(of), room(passes)), expected);
    }

    #[test]
    fn a_batch_that_fits_into_a_micro_batch_is_not_cut() {
        for passes in [Passes::Together, Passes::Apart] {
            check(passes, &[], &[]);
            check(passes, &[(0, 20)], &[&[(0, 20)]]);
            check(passes, &[(3, 4), (0, 15), (1, 1)], &[&[(3, 4), (0, 15), (1, 1)]]);
        }
    }

    #[test]
    fn a_long_prompt_is_cut_into_micro_batches() {
        for passes in [Passes::Together, Passes::Apart] {
            check(passes, &[(0, 41)], &[&[(0, 20)], &[(0, 20)], &[(0, 1)]]);
        }
    }

    #[test]
    fn in_a_shared_pass_a_micro_batch_is_filled_in_order() {
        check(Passes::Together, &[(0, 30), (5, 4), (6, 9)], &[&[(0, 20)], &[(0, 10), (5, 4), (6, 6)], &[(6, 3)]]);
    }

    #[test]
    fn in_separate_passes_neighbours_share_a_pass_up_to_the_shortest_length() {
        check(
            Passes::Apart,
            &[(4, 30), (0, 12), (1, 4), (3, 9)],
            &[&[(4, 20)], &[(4, 10)], &[(0, 4), (1, 4)], &[(0, 8), (3, 9)]],
        );
        check(Passes::Apart, &[(0, 9), (1, 9), (2, 9)], &[&[(0, 6), (1, 6), (2, 6)], &[(0, 3), (1, 3), (2, 3)]]);
        check(Passes::Apart, &[(65_535, 30), (0, 5)], &[&[(65_535, 20)], &[(65_535, 10), (0, 5)]]);
    }

    proptest! {
        #[test]
        fn every_token_is_taken_once_and_no_micro_batch_is_too_large(
            works in prop::collection::vec(1_u32..70, 0..12),
            skips in prop::collection::vec(1_u16..3, 12),
            passes in prop_oneof![Just(Passes::Together), Just(Passes::Apart)],
        ) {
            let slots = skips.iter().scan(0, |slot, skip| { *slot += skip; Some(*slot) });
            let shares: Vec<Share> =
                slots.zip(&works).map(|(slot, n_tokens)| Share { slot: SlotId(slot), n_tokens: *n_tokens }).collect();
            let micro_batches = all(shares.clone(), room(passes));
            for micro_batch in &micro_batches {
                let n_tokens: u32 = micro_batch.iter().map(|(_, n_tokens)| n_tokens).sum();
                prop_assert!((1..=20).contains(&n_tokens), "{micro_batches:?}");
                prop_assert!(micro_batch.iter().all(|(_, n_tokens)| *n_tokens > 0));
            }
            for share in &shares {
                let taken = micro_batches.iter().flatten().filter(|(slot, _)| *slot == share.slot.0);
                prop_assert_eq!(taken.map(|(_, n_tokens)| n_tokens).sum::<u32>(), share.n_tokens);
            }
        }
    }
}
