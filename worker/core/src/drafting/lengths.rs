//! Lengths of a step's drafts, chosen by their expected tokens and the time that they add to the step.
//!
//! A step without drafts generates one token for each stream. A draft adds the tokens that are expected to be accepted,
//! and delays all streams by the time of its rows. It gets the length that maximizes the step's tokens per second
//! within the sequence's budget, and is omitted if no length increases them. Found drafts take no time to make, so
//! their lengths are chosen first. For the other sequences the draft model makes drafts if these also repay the time of
//! making them.
//! Source: SmartSpec (arXiv 2406.14066), which maximises the same *goodput*.

use std::cmp::Reverse;

use super::step_costs::StepCosts;

/// Minimum gain of a draft, as a share of its expected tokens. Source: acceptance rates of some ten tokens are known to
/// about a tenth.
const GAIN_MIN: f64 = 0.1;

/// A sequence's possible drafts.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Possible<'a> {
    /// Probability of each found token to be right if those before it are.
    pub chances: &'a [f64],
    /// Draft that the draft model can make; `None` if it cannot.
    pub made: Option<MadeDraft>,
    /// Minimum length of a draft.
    pub n_min: usize,
    /// Maximum cost of the draft ([`Length::cost`]).
    pub cost_max: f64,
}

/// A draft that the draft model can make.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct MadeDraft {
    /// Probability of each token to be right if those before it are.
    pub chance: f64,
    /// Maximum length.
    pub n_max: usize,
    /// Time of making the draft.
    pub times: MakingTimes,
}

/// Time of making a draft. Units: those of the step's costs.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct MakingTimes {
    /// Time of the first token.
    pub first: f64,
    /// Time of each further token.
    pub further: f64,
}

/// Length and cost of a draft.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Length {
    /// Number of drafted tokens, 0 for no draft.
    pub n_tokens: usize,
    /// Time that the draft adds to the step. Units: tokens that steps without drafts generate in this time.
    pub cost: f64,
    /// Source of the tokens.
    pub source: DraftSource,
}

/// Source of a draft's tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum DraftSource {
    /// Text in which the tokens were found.
    #[default]
    Found,
    /// Draft model, which makes the tokens before the step.
    Made,
}

/// Limits of a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StepRoom {
    /// Number of sequences that decode in the step, with and without drafts.
    pub n_streams: u32,
    /// Maximum number of tokens of the step.
    pub tokens_max: u32,
    /// Maximum number of drafts of the step.
    pub drafts_max: u32,
    /// Mean number of computed tokens of these sequences.
    pub held_tokens: u32,
}

/// Returns the length of each draft.
///
/// Cost: O(n log n) in the number of drafts, and O(n) in the tokens of all of them.
pub fn lengths(possible: &[Possible<'_>], room: StepRoom, costs: &StepCosts) -> Vec<Length> {
    let mut lengths = vec![Length::default(); possible.len()];
    let mut order: Vec<usize> = (0..possible.len()).collect();
    // The draft with the most expected tokens comes first. Floats have no total order, so millionths are compared.
    let of_chances = |idx: &usize| (expected(possible[*idx].chances) * 1e6) as u64;
    order.sort_by_key(|idx| Reverse(of_chances(idx)));
    // Each draft is added only if it increases the tokens per second of the step with the drafts before it.
    let mut step = DraftedStep::of(room, costs);
    for idx in order {
        let (draft, times) = (possible[idx], MakingTimes::default());
        lengths[idx] = step.add(draft, DraftSource::Found, times, draft.chances.iter().copied(), costs);
    }
    for (length, possible) in lengths.iter_mut().zip(possible) {
        let Some(made_draft) = possible.made.filter(|_| length.n_tokens == 0) else { continue };
        let chances = std::iter::repeat_n(made_draft.chance, made_draft.n_max);
        *length = step.add(*possible, DraftSource::Made, made_draft.times, chances, costs);
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
struct DraftedStep {
    room: StepRoom,
    n_single: u32,
    /// Number of tokens of each sequence with a draft.
    draft_lengths: Vec<u32>,
    /// Expected tokens of all streams.
    gained: f64,
    /// Time of making the drafts.
    making: f64,
    /// Time of the step, including that of making its drafts.
    time: f64,
}

impl DraftedStep {
    fn of(room: StepRoom, costs: &StepCosts) -> Self {
        let n_single = room.n_streams;
        let time = costs.step(n_single, room.held_tokens, std::iter::empty());
        Self { room, n_single, draft_lengths: Vec::new(), gained: f64::from(n_single), making: 0.0, time }
    }

    fn n_tokens(&self) -> u32 {
        self.n_single + self.draft_lengths.iter().sum::<u32>()
    }

    /// Adds a draft of the best length if it pays and fits; returns its length.
    fn add(
        &mut self,
        possible: Possible<'_>,
        source: DraftSource,
        times: MakingTimes,
        chances: impl Iterator<Item = f64>,
        costs: &StepCosts,
    ) -> Length {
        let tokens_left = self.room.tokens_max.saturating_sub(self.n_tokens());
        if tokens_left == 0 || self.draft_lengths.len() >= self.room.drafts_max as usize {
            return Length::default();
        }
        match self.with(possible, source, times, chances.take(tokens_left as usize), costs) {
            Some((length, longer)) => {
                *self = longer;
                length
            }
            None => Length::default(),
        }
    }

    /// Returns the best length of another draft, and the step with it; `None` if no length pays.
    fn with(
        &self,
        possible: Possible<'_>,
        source: DraftSource,
        times: MakingTimes,
        chances: impl Iterator<Item = f64>,
        costs: &StepCosts,
    ) -> Option<(Length, Self)> {
        let n_single = self.n_single.checked_sub(1)?;
        let mut best: Option<(Length, f64, f64)> = None;
        let (mut chance, mut expected, mut making) = (1.0, 0.0, times.first - times.further);
        let rate = |expected: f64, time: f64| (self.gained + expected) / time;
        let drafted_lengths = |n: usize| self.draft_lengths.iter().copied().chain([1 + n as u32]);
        for (n_tokens, of_token) in (1..).zip(chances) {
            chance *= of_token;
            expected += chance;
            making += times.further;
            let time = costs.step(n_single, self.room.held_tokens, drafted_lengths(n_tokens)) + self.making + making;
            let cost = (time - self.time) * self.gained / self.time;
            let pays = expected * (1.0 - GAIN_MIN) > cost && cost <= possible.cost_max;
            let is_best = best.is_none_or(|(_, of_best, time_best)| rate(expected, time) > rate(of_best, time_best));
            if n_tokens >= possible.n_min && pays && is_best {
                best = Some((Length { n_tokens, cost, source }, expected, time));
            }
        }
        let (length, expected, time) = best?;
        let drafted_lengths = drafted_lengths(length.n_tokens).collect();
        let making = self.making + times.first + times.further * (length.n_tokens - 1) as f64;
        Some((
            length,
            Self { n_single, draft_lengths: drafted_lengths, gained: self.gained + expected, making, time, ..*self },
        ))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::batches::batch_plan::Passes;
    use crate::curve::Curve;
    use crate::drafting::step_costs::DepthCost;

    /// SmolLM2 Q8_0 on one thread. Source: docs/decisions/0052-drafting.md.
    const CPU: [(u32, f64); 6] = [(1, 10.8), (2, 29.0), (4, 39.0), (8, 54.0), (16, 83.0), (32, 140.0)];
    /// A GPU: the weights are read once for all tokens.
    const GPU: [(u32, f64); 3] = [(1, 10.0), (8, 11.0), (32, 14.0)];

    fn costs(points: &[(u32, f64)], passes: Passes) -> StepCosts {
        let tokens = Curve::new(points.iter().copied());
        StepCosts { streams: tokens.clone(), tokens, passes, depth: DepthCost::default() }
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
    fn the_length_of_a_draft_maximizes_the_tokens_per_second() {
        check(&CPU, 0.5, 0);
        check(&CPU, 0.85, 0);
        check(&CPU, 0.95, 13);
        check(&CPU, 0.999, 31);
        check(&GPU, 0.0, 0);
        check(&GPU, 0.5, 5);
        check(&GPU, 0.95, 31);
    }

    #[test]
    fn a_draft_must_also_repay_the_time_of_other_streams() {
        let chances = [0.95; 15];
        let possible = [possible(&chances)];
        let lengths_of = |n_streams, passes| n_tokens(&possible, room(n_streams), &costs(&CPU, passes))[0];
        assert_eq!(lengths_of(4, Passes::Together), 11, "additional rows cost less in a larger step");
        assert_eq!(lengths_of(64, Passes::Together), 0, "the step is already efficient");
        assert_eq!(lengths_of(4, Passes::Apart), 15, "a separate pass takes longer");
    }

    #[test]
    fn keeps_the_limits_of_the_step_and_of_the_draft() {
        let chances = [1.0; 31];
        let both = [possible(&chances), possible(&chances[..9])];
        let gpu = costs(&GPU, Passes::Together);
        let with = |tokens_max, drafts_max| n_tokens(&both, StepRoom { tokens_max, drafts_max, ..room(3) }, &gpu);
        assert_eq!(with(512, 16), [31, 9]);
        assert_eq!(with(512, 1), [31, 0]);
        assert_eq!(with(20, 16), [17, 0]);
        assert_eq!(with(3, 16), [0, 0]);
        let long = |chances: &[f64]| n_tokens(&[Possible { n_min: 10, ..possible(chances) }], room(1), &gpu);
        assert_eq!(long(&[0.5; 31]), [10], "the draft has the minimum length because that still pays");
        assert_eq!(long(&[0.5; 5]), [0]);
    }

    #[test]
    fn the_cost_of_a_draft_is_within_the_budget() {
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
    fn the_draft_model_makes_a_draft_only_if_it_repays_the_time() {
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
        assert_eq!(late, [Length::default()], "the missing tokens cost more than the draft gains");
    }

    #[test]
    fn found_drafts_come_first_and_made_ones_are_added() {
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
        assert_eq!(
            lengths(&[slow, found], room(2), &gpu)[0],
            Length::default(),
            "making it would delay the found draft"
        );
        let three = lengths(&[not_found; 3], room(3), &gpu);
        let alone = lengths(&[not_found], room(3), &gpu)[0];
        assert!(three.iter().all(|length| (1..=alone.n_tokens).contains(&length.n_tokens)), "{three:?} {alone:?}");
    }

    #[test]
    fn drafts_nothing_without_measurements() {
        let nothing = costs(&[], Passes::Together);
        assert_eq!(n_tokens(&[possible(&[1.0; 9])], room(1), &nothing), [0]);
    }

    proptest! {
        #[test]
        fn drafts_never_lower_the_expected_rate(
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
            let (time, plain) = (costs.step(n_single, 0, rows), costs.step(n_streams, 0, std::iter::empty()));
            prop_assert!((f64::from(n_streams) + gained) * plain >= f64::from(n_streams) * time * (1.0 - 1e-9));
        }
    }
}
