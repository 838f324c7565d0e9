//! Decode groups: which shares of a batch go through the model together.
//!
//! The shares are in `batch_plan`; the shell measures the times.
//!
//! If every slot has its own cells, llama.cpp computes sequences with consecutive ascending ids together: from each as
//! many tokens as the shortest share has (`llama_batch_allocr::split_equal`). So the order of the shares determines
//! which are computed together. Computing together is not always faster: several sequences with one token each may be
//! slower together than one after another, for example with 8-bit weights on one thread. And if a prompt is next to a
//! single token, all its tokens except the first need a second pass. So prompts and single tokens are kept apart, and
//! single tokens are computed in the groups that were measured to be fastest.

use std::ops::Range;

use crate::batches::batch_plan::Share;
use crate::curve::Curve;

/// Minimum gain at which several groups replace one. Source: measurements on a busy machine vary by as much.
const GAIN_MIN: f64 = 0.1;

/// Sizes of the groups in which single tokens are computed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DecodeGroups {
    /// Length of the first group of `index + 1` sequences.
    first: Vec<usize>,
}

impl DecodeGroups {
    /// Returns the fastest groups. `times` are measured times for numbers of sequences that decode together, in any
    /// unit.
    ///
    /// Times between two measured numbers are interpolated. More sequences than were measured are computed together.
    pub fn fastest(times: &Curve) -> Self {
        let together = |n: usize| times.within(u32::try_from(n).ok()?);
        let mut first = Vec::new();
        // The shortest time for each number of sequences.
        let mut shortest = vec![0.0];
        for n in 1.. {
            let Some(together_time) = together(n) else { break };
            let split = (1..n).filter_map(|k| Some((k, together(k)? + shortest[n - k])));
            let fastest =
                split.min_by(|a, b| a.1.total_cmp(&b.1)).filter(|(_, time)| *time < together_time * (1.0 - GAIN_MIN));
            let (k, time) = fastest.unwrap_or((n, together_time));
            first.push(k);
            shortest.push(time);
        }
        Self { first }
    }

    /// Returns the shares in the order in which llama.cpp computes them in these groups; they are given in the order of
    /// their slots.
    pub fn arrange(&self, shares: &[Share]) -> Vec<Share> {
        let mut groups: Vec<Range<usize>> = Vec::new();
        let mut start = 0;
        while start < shares.len() {
            let is_single = |share: &Share| share.n_tokens == 1;
            let goes_on =
                |pair: &[Share]| pair[1].slot.0 == pair[0].slot.0 + 1 && is_single(&pair[0]) == is_single(&pair[1]);
            let n = 1 + shares[start..].windows(2).take_while(|pair| goes_on(pair)).count();
            let n = if is_single(&shares[start]) { self.first.get(n - 1).copied().unwrap_or(n) } else { n };
            groups.push(start..start + n);
            start += n;
        }
        // The ids of each group are below those of the group before it, so that llama.cpp does not join the two.
        groups.into_iter().rev().flat_map(|group| shares[group].iter().copied()).collect()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use warmpath_common::ids::SlotId;

    use super::*;

    fn share((slot, n_tokens): (u16, u32)) -> Share {
        Share { slot: SlotId(slot), n_tokens }
    }

    /// Returns the passes of llama.cpp, in its order. Source: `llama_batch_allocr::split_equal`, sequential.
    fn passes(shares: &[Share]) -> Vec<Vec<(u16, u32)>> {
        let mut left: Vec<(u16, u32)> = shares.iter().map(|share| (share.slot.0, share.n_tokens)).collect();
        let mut passes = Vec::new();
        while let Some(idx) = left.iter().position(|(_, n_tokens)| *n_tokens > 0) {
            let mut taken = vec![idx];
            for next in idx + 1..left.len() {
                let last = left[*taken.last().unwrap()].0;
                // A share of several tokens is also in later passes. A share can only be in a pass with the share
                // before it.
                if left[next].1 > 0 && left[next].0 == last + 1 {
                    taken.push(next);
                }
            }
            let n_tokens = taken.iter().map(|idx| left[*idx].1).min().unwrap();
            passes.push(taken.iter().map(|idx| (left[*idx].0, n_tokens)).collect());
            taken.iter().for_each(|idx| left[*idx].1 -= n_tokens);
        }
        passes
    }

    fn groups(times: &[(u32, f64)]) -> DecodeGroups {
        DecodeGroups::fastest(&Curve::new(times.iter().copied()))
    }

    #[track_caller]
    fn check(times: &[(u32, f64)], shares: &[(u16, u32)], expected: &[&[(u16, u32)]]) {
        let shares: Vec<Share> = shares.iter().copied().map(share).collect();
        let arranged = groups(times).arrange(&shares);
        assert_eq!(passes(&arranged), expected.iter().map(|pass| pass.to_vec()).collect::<Vec<_>>());
    }

    /// Times of 8-bit weights on one thread: one sequence takes 2 ms, two together four times that.
    const SLOW_TOGETHER: [(u32, f64); 5] = [(1, 1.94), (2, 7.3), (4, 11.1), (8, 15.9), (16, 19.3)];

    #[test]
    fn single_tokens_share_a_pass_unless_separate_passes_are_faster() {
        let all = [(0, 1), (1, 1), (2, 1), (3, 1)];
        check(&[], &all, &[&all]);
        check(&[(1, 1.5), (4, 3.6)], &all, &[&all]);
        check(&[(1, 1.5), (4, 6.5)], &all, &[&all]);
        check(&SLOW_TOGETHER, &all, &[&[(3, 1)], &[(2, 1)], &[(1, 1)], &[(0, 1)]]);
        let sixteen: Vec<(u16, u32)> = (0..16).map(|slot| (slot, 1)).collect();
        check(&SLOW_TOGETHER, &sixteen, &[&sixteen]);
        check(&[(1, 10.0), (2, 11.0), (4, 40.0)], &all, &[&[(2, 1), (3, 1)], &[(0, 1), (1, 1)]]);
    }

    #[test]
    fn slots_that_are_not_consecutive_have_separate_passes() {
        check(&[], &[(0, 1), (2, 1), (3, 1)], &[&[(2, 1), (3, 1)], &[(0, 1)]]);
    }

    #[test]
    fn a_prompt_has_a_pass_separate_from_single_tokens() {
        check(&[], &[(0, 1), (1, 60), (2, 1), (3, 1)], &[&[(2, 1), (3, 1)], &[(1, 60)], &[(0, 1)]]);
        check(&[], &[(0, 60), (1, 1)], &[&[(1, 1)], &[(0, 60)]]);
        check(&[], &[(0, 1), (1, 60)], &[&[(1, 60)], &[(0, 1)]]);
    }

    #[test]
    fn prompts_share_passes_up_to_the_shortest_length() {
        check(&[], &[(0, 10), (1, 30), (2, 10)], &[&[(0, 10), (1, 10), (2, 10)], &[(1, 20)]]);
    }

    #[test]
    fn invalid_times_count_as_missing() {
        assert_eq!(groups(&[(0, 1.0), (1, f64::NAN), (2, 0.0), (3, -1.0), (4, f64::INFINITY)]), groups(&[]));
        assert_eq!(groups(&[(4, 1.0), (2, 1.0)]), groups(&[]), "one sequence was not measured");
    }

    proptest! {
        #[test]
        fn every_share_is_computed_once_in_as_few_passes_as_possible(
            times in prop::collection::vec(1.0..20.0_f64, 1..9),
            works in prop::collection::vec(prop_oneof![Just(0_u32), Just(1), 2_u32..50], 0..24),
        ) {
            let times: Vec<(u32, f64)> = (1..).zip(times).collect();
            let shares: Vec<Share> = (0..).zip(works).filter(|(_, n)| *n > 0).map(share).collect();
            let arranged = groups(&times).arrange(&shares);
            let mut sorted = arranged.clone();
            sorted.sort_unstable_by_key(|share| share.slot);
            prop_assert_eq!(&sorted, &shares);
            for pass in passes(&arranged) {
                let n_single = pass.iter().filter(|(slot, _)| shares.iter().any(|s| s.slot.0 == *slot && s.n_tokens == 1)).count();
                prop_assert!(n_single == 0 || n_single == pass.len(), "a prompt beside single tokens: {:?}", pass);
            }
        }

        #[test]
        fn groups_are_as_fast_as_the_fastest_split(times in prop::collection::vec(1.0..20.0_f64, 1..9)) {
            fn fastest(times: &[f64], n: usize) -> f64 {
                (1..=n).map(|k| times[k - 1] + if k < n { fastest(times, n - k) } else { 0.0 }).fold(f64::MAX, f64::min)
            }
            let n = times.len();
            let measured: Vec<(u32, f64)> = (1..).zip(times.iter().copied()).collect();
            let shares: Vec<Share> = (0..n as u16).map(|slot| share((slot, 1))).collect();
            let arranged = groups(&measured).arrange(&shares);
            let taken: f64 = passes(&arranged).iter().map(|pass| times[pass.len() - 1]).sum();
            // The time of each number of sequences may be a tenth above the best one, and so may those of its parts.
            let allowed = (1.0 - GAIN_MIN).powi(n as i32);
            prop_assert!(taken * allowed <= fastest(&times, n) + 1e-9, "{} for {}", taken, fastest(&times, n));
        }
    }
}
