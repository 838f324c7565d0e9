//! Time of a step by the number of its tokens, as measured on this machine.
//!
//! The shell's self-test measures it, because machines differ: on a CPU two tokens may take twice as long as one, and
//! on a GPU sixteen may take no longer than one.

use crate::batches::batch_plan::Passes;
use crate::curve::Curve;

/// Tokens of a conversation that has just begun, with which steps are measured. Source: a short question with a chat
/// template.
pub const SHALLOW_TOKENS: u32 = 64;

/// Times of steps. Units: any, but the same for all times.
#[derive(Debug, Clone, PartialEq)]
pub struct StepCosts {
    /// Time of one pass with this many tokens.
    pub tokens: Curve,
    /// Time of a step with one token for each of this many sequences.
    pub streams: Curve,
    /// Passes of several sequences through the model.
    pub passes: Passes,
    /// Change of these times with the number of computed tokens of the sequences.
    pub depth: DepthCost,
}

/// Change of a step's time with the number of a sequence's computed tokens, to which each new token attends.
///
/// In a long context every token takes long, so a draft adds relatively little time. In a short context the same draft
/// takes many times as long as a token.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct DepthCost {
    /// Number of computed tokens of each sequence when the other times were measured.
    pub held_tokens: u32,
    /// Time that one computed token adds to a pass with this many tokens; empty if it was not measured.
    pub per_held_token: Curve,
}

impl StepCosts {
    /// Returns the time of a step in which `n_streams` sequences compute one token each, and further sequences compute
    /// the numbers of tokens in `others`. Every sequence has `held_tokens` computed tokens.
    pub fn step(&self, n_streams: u32, held_tokens: u32, others: impl Iterator<Item = u32> + Clone) -> f64 {
        let tokens = |n: u32| self.tokens_at(held_tokens, n);
        match self.passes {
            Passes::Together if others.clone().next().is_none() => self.streams_at(held_tokens, n_streams),
            Passes::Together => tokens(n_streams + others.sum::<u32>()),
            Passes::Apart => self.streams_at(held_tokens, n_streams) + others.map(tokens).sum::<f64>(),
        }
    }

    /// Returns the time of one pass with `n` tokens of a sequence with `held_tokens` computed tokens.
    pub(super) fn tokens_at(&self, held_tokens: u32, n: u32) -> f64 {
        // The estimate for many tokens is never less than the time of one.
        let of = |n: u32| (self.tokens.at(n) + self.depth.change(held_tokens, n)).max(0.0);
        if n == 0 { 0.0 } else { of(n).max(of(1)) }
    }

    fn streams_at(&self, held_tokens: u32, n: u32) -> f64 {
        (self.streams.at(n) + f64::from(n) * self.depth.change(held_tokens, 1)).max(0.0)
    }
}

impl DepthCost {
    /// Returns the change between steps of a sequence with `held_tokens` computed tokens and of one with
    /// [`SHALLOW_TOKENS`], for the numbers of tokens that were measured with both.
    pub fn between(held_tokens: u32, deep: &Curve, shallow: &Curve) -> Self {
        let n_deeper = held_tokens.saturating_sub(SHALLOW_TOKENS);
        let per_held_token = deep.points().filter_map(|(n, deep_time)| {
            let (_, shallow_time) = shallow.points().find(|(n_shallow, _)| *n_shallow == n)?;
            (n_deeper > 0).then(|| (n, (deep_time - shallow_time) / f64::from(n_deeper)))
        });
        Self { held_tokens, per_held_token: Curve::new(per_held_token) }
    }

    /// Returns the difference from the measured time of a pass with `n` tokens for a sequence with `held_tokens`
    /// computed tokens.
    fn change(&self, held_tokens: u32, n: u32) -> f64 {
        (f64::from(held_tokens) - f64::from(self.held_tokens)) * self.per_held_token.at(n)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn drafts_share_a_pass_or_have_separate_passes() {
        let curve = Curve::new([(1, 10.0), (2, 20.0), (10, 40.0)]);
        let streams = Curve::new([(1, 10.0), (4, 16.0)]);
        let depth = DepthCost::default();
        let costs =
            |passes| StepCosts { tokens: curve.clone(), streams: streams.clone(), passes, depth: depth.clone() };
        assert_eq!(costs(Passes::Together).step(4, 0, [].into_iter()), 16.0);
        assert_eq!(costs(Passes::Together).step(4, 0, [3, 3].into_iter()), 40.0);
        assert_eq!(costs(Passes::Apart).step(4, 0, [2, 10].into_iter()), 76.0);
        assert_eq!(costs(Passes::Apart).step(0, 0, [2].into_iter()), 20.0);
        assert_eq!(costs(Passes::Apart).step(0, 9000, [2].into_iter()), 20.0, "depth was not measured");
    }

    #[test]
    fn a_step_takes_longer_in_a_longer_context() {
        let depth = DepthCost { held_tokens: 2000, per_held_token: Curve::new([(1, 0.004), (16, 0.034)]) };
        let tokens = Curve::new([(1, 18.0), (2, 30.0), (16, 130.0)]);
        let streams = Curve::new([(1, 18.0), (2, 30.0)]);
        let costs = StepCosts { tokens, streams, passes: Passes::Apart, depth };
        let at = |n_streams, held_tokens, others: &[u32]| costs.step(n_streams, held_tokens, others.iter().copied());
        assert_eq!((at(1, 2000, &[]), at(0, 2000, &[16]), at(2, 2000, &[])), (18.0, 130.0, 30.0));
        assert_eq!((at(1, 0, &[]), at(0, 0, &[16]), at(2, 0, &[])), (10.0, 62.0, 14.0));
        assert_eq!((at(1, 4000, &[]), at(0, 4000, &[16]), at(2, 4000, &[])), (26.0, 198.0, 46.0));
    }

    #[test]
    fn a_held_token_costs_the_difference_between_a_deep_and_a_shallow_step() {
        let deep = Curve::new([(1, 18.0), (2, 30.0), (4, 42.0), (16, 130.0)]);
        let shallow = Curve::new([(1, 10.0), (4, 26.0), (16, 131.0)]);
        let per_held_token = |held_tokens, shallow| DepthCost::between(held_tokens, &deep, shallow).per_held_token;
        // A step that is faster in a longer context was measured wrong.
        assert_eq!(per_held_token(2064, &shallow), Curve::new([(1, 0.004), (4, 0.008)]));
        assert_eq!(per_held_token(64, &shallow), Curve::default());
        assert_eq!(per_held_token(2064, &Curve::default()), Curve::default());
    }

    #[test]
    fn no_step_is_shorter_than_one_with_one_token_despite_wrong_measurements() {
        let depth = DepthCost { held_tokens: 2000, per_held_token: Curve::new([(1, 0.004), (4, 0.1)]) };
        let tokens = Curve::new([(1, 18.0), (4, 30.0)]);
        let costs = StepCosts { streams: tokens.clone(), tokens, passes: Passes::Together, depth };
        assert_eq!(costs.step(0, 0, [4].into_iter()), 10.0);
        assert_eq!(costs.step(0, 0, [0].into_iter()), 0.0);
    }
}
