//! Lengths of a step's drafts: as long as their expected tokens repay the time that they add to the step.
//!
//! A step without drafts gives each stream a token. A draft adds the tokens that are expected to be accepted, and the
//! time of its rows for all streams. It gets the length that maximises the step's tokens per second within its
//! sequence's budget, and is left out if no length raises them.
//! Source: SmartSpec (arXiv 2406.14066), which maximises the same *goodput*.

use std::cmp::Reverse;

use super::step_costs::StepCosts;

/// Smallest gain of a draft, as a share of its expected tokens. Source: own choice: the noise of the chances, and the
/// time to find drafts.
const GAIN_MIN: f64 = 0.1;

/// A sequence's possible draft.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Possible<'a> {
    /// Chance of each token to be the one that is proposed, if those before it are.
    pub chances: &'a [f64],
    /// Fewest tokens of a draft.
    pub n_min: usize,
    /// Most tokens that the draft may cost ([`Length::cost`]).
    pub cost_max: f64,
}

/// Length of a draft and what it costs.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Length {
    /// Number of drafted tokens, 0 for no draft.
    pub n_tokens: usize,
    /// Tokens that the step would give in the time that the draft adds to it.
    pub cost: f64,
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
    /// Mean number of tokens that these sequences hold.
    pub held_tokens: u32,
}

/// Returns the length of each draft.
///
/// Cost: O(n log n) in the number of drafts, and O(n) in the tokens of all of them.
pub fn lengths(possible: &[Possible<'_>], room: StepRoom, costs: &StepCosts) -> Vec<Length> {
    let mut lengths = vec![Length::default(); possible.len()];
    let mut order: Vec<usize> = (0..possible.len()).collect();
    // The most promising draft comes first. Floats have no total order, so millionths are compared.
    let of_chances = |idx: &usize| (expected(possible[*idx].chances) * 1e6) as u64;
    order.sort_by_key(|idx| Reverse(of_chances(idx)));
    // Each draft is added only if it raises the rate of the step with the drafts before it.
    let mut step = Step::of(room, costs);
    for idx in order {
        if step.drafted.len() >= room.drafts_max as usize {
            break;
        }
        let left = room.tokens_max.saturating_sub(step.n_tokens());
        let longer = step.with(possible[idx], left, costs);
        if let Some((length, longer)) = longer {
            lengths[idx] = length;
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
    held_tokens: u32,
    /// Tokens of the sequences with drafts.
    drafted: Vec<u32>,
    /// Expected tokens of all streams.
    gained: f64,
    time: f64,
}

impl Step {
    fn of(StepRoom { n_streams, held_tokens, .. }: StepRoom, costs: &StepCosts) -> Self {
        let time = costs.step((n_streams, held_tokens), std::iter::empty());
        Self { n_single: n_streams, held_tokens, drafted: Vec::new(), gained: f64::from(n_streams), time }
    }

    fn n_tokens(&self) -> u32 {
        self.n_single + self.drafted.iter().sum::<u32>()
    }

    /// Returns the best length of another draft of at most `left` tokens, with the step that has it; `None` if it does
    /// not pay.
    fn with(&self, possible: Possible<'_>, left: u32, costs: &StepCosts) -> Option<(Length, Self)> {
        let n_single = self.n_single.checked_sub(1)?;
        let mut best: Option<(Length, f64, f64)> = None;
        let (mut chance, mut expected) = (1.0, 0.0);
        let rate = |expected: f64, time: f64| (self.gained + expected) / time;
        for (n, of_token) in (1..=left as usize).zip(possible.chances) {
            chance *= of_token;
            expected += chance;
            let drafted = self.drafted.iter().copied().chain([1 + n as u32]);
            let time = costs.step((n_single, self.held_tokens), drafted);
            let cost = (time - self.time) * self.gained / self.time;
            let pays = expected * (1.0 - GAIN_MIN) > cost && cost <= possible.cost_max;
            let is_best = best.is_none_or(|(_, of_best, time_best)| rate(expected, time) > rate(of_best, time_best));
            if n >= possible.n_min && pays && is_best {
                best = Some((Length { n_tokens: n, cost }, expected, time));
            }
        }
        let (length, expected, time) = best?;
        let drafted = self.drafted.iter().copied().chain([1 + length.n_tokens as u32]).collect();
        Some((length, Self { n_single, drafted, gained: self.gained + expected, time, ..*self }))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::batch_plan::Passes;
    use crate::drafting::step_costs::{Curve, Depth};

    /// SmolLM2 Q8_0 on one thread. Source: docs/decisions/0052-drafting.md.
    const CPU: [(u32, f64); 6] = [(1, 10.8), (2, 29.0), (4, 39.0), (8, 54.0), (16, 83.0), (32, 140.0)];
    /// Weights are read once for all tokens.
    const GPU: [(u32, f64); 3] = [(1, 10.0), (8, 11.0), (32, 14.0)];

    fn costs(points: &[(u32, f64)], passes: Passes) -> StepCosts {
        let tokens = Curve::new(points.iter().copied());
        StepCosts { streams: tokens.clone(), tokens, passes, depth: Depth::default() }
    }

    fn room(n_streams: u32) -> StepRoom {
        StepRoom { n_streams, tokens_max: 512, drafts_max: 16, held_tokens: 0 }
    }

    fn possible(chances: &[f64]) -> Possible<'_> {
        Possible { chances, n_min: 0, cost_max: f64::MAX }
    }

    fn n_tokens(possible: &[Possible<'_>], room: StepRoom, costs: &StepCosts) -> Vec<usize> {
        lengths(possible, room, costs).iter().map(|length| length.n_tokens).collect()
    }

    fn check(points: &[(u32, f64)], chance: f64, expected: usize) {
        let chances = [chance; 31];
        for passes in [Passes::Together, Passes::Apart] {
            let n_tokens = n_tokens(&[possible(&chances)], room(1), &costs(points, passes));
            assert_eq!(n_tokens, [expected], "{chance} {passes:?}");
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
        let possible = [possible(&chances)];
        let lengths_of = |n_streams, passes| n_tokens(&possible, room(n_streams), &costs(&CPU, passes))[0];
        assert_eq!(lengths_of(4, Passes::Together), 11, "its rows cost less beside others");
        assert_eq!(lengths_of(64, Passes::Together), 0, "there are enough tokens for a step");
        assert_eq!(lengths_of(4, Passes::Apart), 15, "a pass of its own takes longer");
    }

    #[test]
    fn limits_of_the_step_and_of_the_draft_are_kept() {
        let chances = [1.0; 31];
        let both = [possible(&chances), possible(&chances[..9])];
        let gpu = costs(&GPU, Passes::Together);
        let with = |tokens_max, drafts_max| n_tokens(&both, StepRoom { tokens_max, drafts_max, ..room(3) }, &gpu);
        assert_eq!(with(512, 16), [31, 9]);
        assert_eq!(with(512, 1), [31, 0]);
        assert_eq!(with(20, 16), [17, 0]);
        assert_eq!(with(3, 16), [0, 0]);
        let long = |chances: &[f64]| n_tokens(&[Possible { n_min: 10, ..possible(chances) }], room(1), &gpu);
        assert_eq!(long(&[0.5; 31]), [10], "it is no shorter than asked for, as long as it pays");
        assert_eq!(long(&[0.5; 5]), [0]);
    }

    #[test]
    fn a_draft_costs_no_more_than_its_sequence_may_spend() {
        let chances = [0.999; 31];
        let cpu = costs(&CPU, Passes::Together);
        let with = |cost_max| lengths(&[Possible { cost_max, ..possible(&chances) }], room(1), &cpu)[0];
        for (cost_max, n_tokens) in [(0.5, 0), (4.1, 7), (7.0, 15), (100.0, 31)] {
            let length = with(cost_max);
            assert_eq!(length.n_tokens, n_tokens, "{cost_max}: {length:?}");
            assert!(length.cost <= cost_max, "{cost_max}: {length:?}");
        }
        assert_eq!(with(100.0).cost, (140.0 - 10.8) / 10.8);
    }

    #[test]
    fn nothing_is_drafted_where_nothing_was_measured() {
        let nothing = costs(&[], Passes::Together);
        assert_eq!(n_tokens(&[possible(&[1.0; 9])], room(1), &nothing), [0]);
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
            let possible: Vec<_> = drafts.iter().map(|chances| possible(chances)).collect();
            let room = StepRoom { tokens_max, drafts_max: 9, ..room(n_streams) };
            let lengths = n_tokens(&possible, room, &costs);
            let rows = lengths.iter().filter(|n| **n > 0).map(|n| 1 + *n as u32);
            let gained: f64 = lengths.iter().zip(&drafts).map(|(n, chances)| expected(&chances[..*n])).sum();
            let n_single = n_streams - rows.clone().count() as u32;
            prop_assert!(rows.clone().count() == 0 || n_single + rows.clone().sum::<u32>() <= tokens_max);
            let (time, plain) = (costs.step((n_single, 0), rows), costs.step((n_streams, 0), std::iter::empty()));
            prop_assert!((f64::from(n_streams) + gained) * plain >= f64::from(n_streams) * time * (1.0 - 1e-9));
        }
    }
}
