//! Lengths of a step's drafts: as long as their expected tokens repay the time that they add to the step.
//!
//! A step without drafts gives each stream a token. A draft adds the tokens that are expected to be accepted, and the
//! time of its rows for all streams. It gets the length that maximises the step's tokens per second within its
//! sequence's budget, and is left out if no length raises them. A draft that was found costs nothing to make, so it
//! goes first; a draft model makes drafts for the other sequences, as far as they repay the time of making them too.
//! Source: SmartSpec (arXiv 2406.14066), which maximises the same *goodput*.

use std::cmp::Reverse;

use super::step_costs::StepCosts;

/// Smallest gain of a draft, as a share of its expected tokens. Source: own choice: the noise of the chances, and the
/// time to find drafts.
const GAIN_MIN: f64 = 0.1;

/// A sequence's possible drafts.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Possible<'a> {
    /// Chance of each token that was found to be the right one, if those before it are.
    pub chances: &'a [f64],
    /// Draft that a draft model would make; `None` if it makes none.
    pub made: Option<MadeDraft>,
    /// Fewest tokens of a draft.
    pub n_min: usize,
    /// Most tokens that the draft may cost ([`Length::cost`]).
    pub cost_max: f64,
}

/// A draft that a draft model would make.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct MadeDraft {
    /// Chance of each token to be the right one, if those before it are.
    pub chance: f64,
    /// Most tokens.
    pub n_max: usize,
    /// Time to make it.
    pub times: MakingTimes,
}

/// Time to make a draft. Units: those of the step's costs.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct MakingTimes {
    /// Time of the first token.
    pub first: f64,
    /// Time of each further token.
    pub further: f64,
}

/// Length of a draft and what it costs.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Length {
    /// Number of drafted tokens, 0 for no draft.
    pub n_tokens: usize,
    /// Tokens that the step would give in the time that the draft adds to it.
    pub cost: f64,
    /// Source of the tokens.
    pub source: DraftSource,
}

/// Source of a draft's tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum DraftSource {
    /// The texts in which they were found.
    #[default]
    Found,
    /// The draft model, which has yet to make them.
    Made,
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
        let found = (DraftSource::Found, MakingTimes::default());
        lengths[idx] = step.add((possible[idx], found), possible[idx].chances.iter().copied(), costs);
    }
    for (length, possible) in lengths.iter_mut().zip(possible) {
        let Some(made) = possible.made.filter(|_| length.n_tokens == 0) else { continue };
        let chances = std::iter::repeat_n(made.chance, made.n_max);
        *length = step.add((*possible, (DraftSource::Made, made.times)), chances, costs);
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
    room: StepRoom,
    n_single: u32,
    /// Tokens of the sequences with drafts.
    drafted: Vec<u32>,
    /// Expected tokens of all streams.
    gained: f64,
    /// Time to make the drafts.
    making: f64,
    /// Time of the step, with that of making its drafts.
    time: f64,
}

impl Step {
    fn of(room: StepRoom, costs: &StepCosts) -> Self {
        let n_single = room.n_streams;
        let time = costs.step((n_single, room.held_tokens), std::iter::empty());
        Self { room, n_single, drafted: Vec::new(), gained: f64::from(n_single), making: 0.0, time }
    }

    fn n_tokens(&self) -> u32 {
        self.n_single + self.drafted.iter().sum::<u32>()
    }

    /// Adds a draft of the best length, if it pays and there is room for it, and returns the length.
    fn add(
        &mut self,
        draft: (Possible<'_>, (DraftSource, MakingTimes)),
        chances: impl Iterator<Item = f64>,
        costs: &StepCosts,
    ) -> Length {
        let left = self.room.tokens_max.saturating_sub(self.n_tokens());
        if left == 0 || self.drafted.len() >= self.room.drafts_max as usize {
            return Length::default();
        }
        match self.with(draft, chances.take(left as usize), costs) {
            Some((length, longer)) => {
                *self = longer;
                length
            }
            None => Length::default(),
        }
    }

    /// Returns the best length of another draft, with the step that has it; `None` if it does not pay.
    fn with(
        &self,
        (possible, (source, times)): (Possible<'_>, (DraftSource, MakingTimes)),
        chances: impl Iterator<Item = f64>,
        costs: &StepCosts,
    ) -> Option<(Length, Self)> {
        let n_single = self.n_single.checked_sub(1)?;
        let mut best: Option<(Length, f64, f64)> = None;
        let (mut chance, mut expected, mut making) = (1.0, 0.0, times.first - times.further);
        let rate = |expected: f64, time: f64| (self.gained + expected) / time;
        let drafted = |n: usize| self.drafted.iter().copied().chain([1 + n as u32]);
        for (n_tokens, of_token) in (1..).zip(chances) {
            chance *= of_token;
            expected += chance;
            making += times.further;
            let time = costs.step((n_single, self.room.held_tokens), drafted(n_tokens)) + self.making + making;
            let cost = (time - self.time) * self.gained / self.time;
            let pays = expected * (1.0 - GAIN_MIN) > cost && cost <= possible.cost_max;
            let is_best = best.is_none_or(|(_, of_best, time_best)| rate(expected, time) > rate(of_best, time_best));
            if n_tokens >= possible.n_min && pays && is_best {
                best = Some((Length { n_tokens, cost, source }, expected, time));
            }
        }
        let (length, expected, time) = best?;
        let drafted = drafted(length.n_tokens).collect();
        let making = self.making + times.first + times.further * (length.n_tokens - 1) as f64;
        Some((length, Self { n_single, drafted, gained: self.gained + expected, making, time, ..*self }))
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
        Possible { chances, made: None, n_min: 0, cost_max: f64::MAX }
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

    fn made(chance: f64, token_time: f64) -> Option<MadeDraft> {
        let times = MakingTimes { first: token_time, further: token_time };
        Some(MadeDraft { chance, n_max: 31, times })
    }

    #[test]
    fn a_draft_is_made_if_it_repays_its_making() {
        let length = |points: &[(u32, f64)], chance, token_time| {
            let possible = Possible { made: made(chance, token_time), ..possible(&[]) };
            lengths(&[possible], room(1), &costs(points, Passes::Together))[0]
        };
        assert_eq!(length(&GPU, 0.7, 1.0).source, DraftSource::Made);
        for (points, chance, token_time, n_tokens) in [
            (&GPU[..], 0.7, 1.0, 4),
            (&GPU, 0.9, 1.0, 9),
            (&GPU, 0.9, 0.2, 16),
            (&GPU, 0.7, 10.0, 0),
            (&CPU, 0.7, 1.0, 0),
            (&CPU, 0.9, 5.0, 0),
        ] {
            let length = length(points, chance, token_time);
            assert_eq!(length.n_tokens, n_tokens, "{chance} {token_time}: {length:?}");
        }
        let catching_up = MakingTimes { first: 50.0, further: 1.0 };
        let late = made(0.7, 1.0).map(|made| MadeDraft { times: catching_up, ..made });
        let late = lengths(&[Possible { made: late, ..possible(&[]) }], room(1), &costs(&GPU, Passes::Together));
        assert_eq!(late, [Length::default()], "what it has to compute first costs more than the draft brings");
    }

    #[test]
    fn what_was_found_goes_first_and_what_is_made_adds_to_its_step() {
        let chances = [0.9; 31];
        let found = Possible { made: made(0.9, 0.1), ..possible(&chances) };
        let not_found = Possible { chances: &[], ..found };
        let gpu = costs(&GPU, Passes::Together);
        let both = lengths(&[not_found, found], room(2), &gpu);
        assert_eq!(
            both.iter().map(|length| length.source).collect::<Vec<_>>(),
            [DraftSource::Made, DraftSource::Found]
        );
        assert!(both.iter().all(|length| length.n_tokens > 3), "{both:?}");
        let one = lengths(&[not_found, found], StepRoom { drafts_max: 1, ..room(2) }, &gpu);
        assert_eq!(one[0], Length::default(), "{one:?}");
        let slow = Possible { made: made(0.9, 1.0), ..not_found };
        assert_eq!(lengths(&[slow, found], room(2), &gpu)[0], Length::default(), "it holds up what was found");
        let three = lengths(&[not_found; 3], room(3), &gpu);
        let alone = lengths(&[not_found], room(3), &gpu)[0];
        assert!(three.iter().all(|length| (1..=alone.n_tokens).contains(&length.n_tokens)), "{three:?} {alone:?}");
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
