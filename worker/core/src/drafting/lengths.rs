//! Lengths of a step's drafts: as long as their expected tokens repay the time that they add to the step.
//!
//! A step without drafts gives each stream a token. A draft adds the tokens that are expected to be accepted, and the
//! time of its rows for all streams. A draft is as long as the step's tokens per second are highest, and is left out if
//! they do not rise.
//! Source: SmartSpec (arXiv 2406.14066), which maximises the same *goodput*.

use std::cmp::Reverse;

use super::step_costs::StepCosts;

/// Share of a draft's expected tokens beyond which it must gain. Source: own choice: the noise of the chances, and the
/// time for the drafts themselves.
const GAIN_MIN: f64 = 0.1;

/// A sequence's possible draft.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Possible<'a> {
    /// Chance of each token to be the one that is proposed, if those before it are.
    pub chances: &'a [f64],
    /// Fewest tokens of a draft.
    pub n_min: usize,
}

/// Limits of a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StepRoom {
    /// Number of sequences that decode in the step, with and without drafts.
    pub n_streams: u32,
    /// Most tokens of the step.
    pub tokens_max: u32,
    /// Most drafts of the step.
    pub drafts_max: u32,
}

/// Returns the length of each draft, 0 for none.
///
/// Cost: O(n log n) in the number of drafts, and O(n) in the tokens of all of them.
pub fn lengths(possible: &[Possible<'_>], room: StepRoom, costs: &StepCosts) -> Vec<usize> {
    let mut lengths = vec![0; possible.len()];
    let mut order: Vec<usize> = (0..possible.len()).collect();
    // Whole numbers can be ordered.
    let of_chances = |idx: &usize| (expected(possible[*idx].chances) * 1e6) as u64;
    order.sort_by_key(|idx| Reverse(of_chances(idx)));
    let mut step = Step::of(room.n_streams, costs);
    for idx in order {
        if step.drafted.len() >= room.drafts_max as usize {
            break;
        }
        let left = room.tokens_max.saturating_sub(step.n_tokens());
        let longer = step.with(possible[idx], left, costs);
        if let Some((n, longer)) = longer {
            lengths[idx] = n;
            step = longer;
        }
    }
    lengths
}

/// Returns the number of tokens of a draft that are expected to be accepted.
pub(super) fn expected(chances: &[f64]) -> f64 {
    chances
        .iter()
        .scan(1.0, |all, chance| {
            *all *= chance;
            Some(*all)
        })
        .sum()
}

/// A step with some drafts.
#[derive(Debug, Clone)]
struct Step {
    n_single: u32,
    /// Tokens of the sequences with drafts.
    drafted: Vec<u32>,
    /// Expected tokens of all streams.
    gained: f64,
    time: f64,
}

impl Step {
    fn of(n_streams: u32, costs: &StepCosts) -> Self {
        let time = costs.step(n_streams, std::iter::empty());
        Self { n_single: n_streams, drafted: Vec::new(), gained: f64::from(n_streams), time }
    }

    fn n_tokens(&self) -> u32 {
        self.n_single + self.drafted.iter().sum::<u32>()
    }

    /// Returns the best length of another draft of at most `left` tokens, with the step that has it; `None` if it does
    /// not pay.
    fn with(&self, possible: Possible<'_>, left: u32, costs: &StepCosts) -> Option<(usize, Self)> {
        let n_single = self.n_single.checked_sub(1)?;
        let mut best: Option<(usize, f64, f64)> = None;
        let (mut chance, mut expected) = (1.0, 0.0);
        let rate = |expected: f64, time: f64| (self.gained + expected) / time;
        for (n, of_token) in (1..=left as usize).zip(possible.chances) {
            chance *= of_token;
            expected += chance;
            let drafted = self.drafted.iter().copied().chain([1 + n as u32]);
            let time = costs.step(n_single, drafted);
            let pays = expected * (1.0 - GAIN_MIN) * self.time > (time - self.time) * self.gained;
            let is_best = best.is_none_or(|(_, of_best, time_best)| rate(expected, time) > rate(of_best, time_best));
            if n >= possible.n_min && pays && is_best {
                best = Some((n, expected, time));
            }
        }
        let (n, expected, time) = best?;
        let drafted = self.drafted.iter().copied().chain([1 + n as u32]).collect();
        Some((n, Self { n_single, drafted, gained: self.gained + expected, time }))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::batch_plan::Passes;
    use crate::drafting::step_costs::Curve;

    /// SmolLM2 Q8_0 on one thread. Source: docs/decisions/0052-drafting.md.
    const CPU: [(u32, f64); 6] = [(1, 10.8), (2, 29.0), (4, 39.0), (8, 54.0), (16, 83.0), (32, 140.0)];
    /// Weights are read once for all tokens.
    const GPU: [(u32, f64); 3] = [(1, 10.0), (8, 11.0), (32, 14.0)];

    fn costs(points: &[(u32, f64)], passes: Passes) -> StepCosts {
        let tokens = Curve::new(points.iter().copied());
        StepCosts { streams: tokens.clone(), tokens, passes }
    }

    fn room(n_streams: u32) -> StepRoom {
        StepRoom { n_streams, tokens_max: 512, drafts_max: 16 }
    }

    fn check(points: &[(u32, f64)], chance: f64, expected: usize) {
        let chances = [chance; 31];
        for passes in [Passes::Together, Passes::Apart] {
            let possible = [Possible { chances: &chances, n_min: 0 }];
            assert_eq!(lengths(&possible, room(1), &costs(points, passes)), [expected], "{chance} {passes:?}");
        }
    }

    #[test]
    fn a_draft_is_as_long_as_it_pays() {
        check(&CPU, 0.5, 0);
        check(&CPU, 0.85, 0);
        check(&CPU, 0.95, 13);
        check(&CPU, 0.999, 31);
        check(&GPU, 0.0, 0);
        check(&GPU, 0.5, 5);
        check(&GPU, 0.95, 31);
    }

    #[test]
    fn a_draft_beside_other_streams_pays_for_their_time_too() {
        let chances = [0.95; 15];
        let possible = [Possible { chances: &chances, n_min: 0 }];
        let lengths_of = |n_streams, passes| lengths(&possible, room(n_streams), &costs(&CPU, passes))[0];
        assert_eq!(lengths_of(4, Passes::Together), 11, "its rows cost less beside others");
        assert_eq!(lengths_of(64, Passes::Together), 0, "there are enough tokens for a step");
        assert_eq!(lengths_of(4, Passes::Apart), 15, "a pass of its own takes longer");
    }

    #[test]
    fn limits_of_the_step_and_of_the_draft_are_kept() {
        let chances = [1.0; 31];
        let possible = [Possible { chances: &chances, n_min: 0 }, Possible { chances: &chances[..9], n_min: 0 }];
        let gpu = costs(&GPU, Passes::Together);
        let with = |tokens_max, drafts_max| lengths(&possible, StepRoom { n_streams: 3, tokens_max, drafts_max }, &gpu);
        assert_eq!(with(512, 16), [31, 9]);
        assert_eq!(with(512, 1), [31, 0]);
        assert_eq!(with(20, 16), [17, 0]);
        assert_eq!(with(3, 16), [0, 0]);
        let long = [Possible { chances: &[0.5; 31], n_min: 10 }];
        assert_eq!(lengths(&long, room(1), &gpu), [10], "it is no shorter than asked for, as long as it pays");
        let too_long = [Possible { chances: &[0.5; 5], n_min: 10 }];
        assert_eq!(lengths(&too_long, room(1), &gpu), [0]);
    }

    #[test]
    fn nothing_is_drafted_where_nothing_was_measured() {
        let nothing = costs(&[], Passes::Together);
        assert_eq!(lengths(&[Possible { chances: &[1.0; 9], n_min: 0 }], room(1), &nothing), [0]);
    }

    proptest! {
        #[test]
        fn the_expected_rate_is_never_below_that_without_drafts(
            points in prop::collection::vec(1.0..100.0_f64, 6),
            drafts in prop::collection::vec(prop::collection::vec(0.0..1.0_f64, 0..20), 0..6),
            n_others in 0_u32..5,
            passes in prop_oneof![Just(Passes::Together), Just(Passes::Apart)],
            tokens_max in 8_u32..64,
        ) {
            let costs = costs(&[1, 2, 4, 8, 16, 32].into_iter().zip(points).collect::<Vec<_>>(), passes);
            let n_streams = n_others + drafts.len() as u32;
            let possible: Vec<_> = drafts.iter().map(|chances| Possible { chances, n_min: 0 }).collect();
            let lengths = lengths(&possible, StepRoom { n_streams, tokens_max, drafts_max: 9 }, &costs);
            let rows = lengths.iter().filter(|n| **n > 0).map(|n| 1 + *n as u32);
            let gained: f64 = lengths.iter().zip(&drafts).map(|(n, chances)| expected(&chances[..*n])).sum();
            let n_single = n_streams - rows.clone().count() as u32;
            prop_assert!(rows.clone().count() == 0 || n_single + rows.clone().sum::<u32>() <= tokens_max);
            let (time, plain) = (costs.step(n_single, rows), costs.step(n_streams, std::iter::empty()));
            prop_assert!((f64::from(n_streams) + gained) * plain >= f64::from(n_streams) * time * (1.0 - 1e-9));
        }
    }
}
