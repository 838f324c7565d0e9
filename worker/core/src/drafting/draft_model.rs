//! A draft model: what its drafts cost, and which sequences it follows.
//!
//! A draft model has a context of its own. Before it drafts for a sequence it computes the tokens of the sequence that
//! it lacks. A few of them are a part of the draft's cost. A whole prompt is only computed if the rest of the response
//! can repay it.
//!
//! Not here: how long its drafts are (`lengths`), their acceptance (`acceptance`).
//! Source: "Fast Inference from Transformers via Speculative Decoding" (arXiv 2211.17192).

use warmpath_common::block_hash::BlockHash;
use warmpath_common::ids::Token;

use super::lengths::MakingTimes;
use super::step_costs::StepCosts;

/// Most missing tokens that are computed as a part of a draft.
///
/// Source: own choice: as many as the longest draft that was accepted without the draft model, which computes them in
/// one pass.
const NEAR_TOKENS_MAX: u32 = 32;

/// Missing tokens of a sequence that the draft model follows: the last accepted one and the next one.
const FOLLOWED_TOKENS: u32 = 2;

/// Most time to compute a sequence's missing tokens, as a share of the rest of its response.
///
/// Source: own choice: an answer takes at most so much longer if no draft is accepted, and gains several times as much
/// if half of the tokens are.
const FOLLOWING_SHARE_MAX: f64 = 0.05;

/// Longest rest of a response that is counted on. Units: tokens. Source: own choice: a usual answer of a chat.
const REST_TOKENS_MAX: u32 = 256;

/// Time of a draft model's passes.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct DraftModelCosts {
    /// Time of a pass, as a share of the served model's with as many tokens.
    pub share: f64,
}

/// Distance of a draft model from a sequence.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Distance {
    /// It can draft in this step.
    Near,
    /// It lacks many tokens, and computing them is worth their time.
    Far,
    /// It lacks more tokens than the rest of the response can repay.
    TooFar,
}

impl DraftModelCosts {
    /// Returns the time to make a draft for a sequence of `n_tokens`, of which the draft model lacks `n_missing`.
    ///
    /// For a sequence that it has yet to catch up with, it is the time once it has.
    pub fn times(self, costs: &StepCosts, n_tokens: u32, n_missing: u32) -> MakingTimes {
        let n_first = if n_missing > NEAR_TOKENS_MAX { FOLLOWED_TOKENS } else { n_missing };
        let pass = |n: u32| self.share * costs.tokens_at(n_tokens, n);
        MakingTimes { first: pass(n_first), further: pass(1) }
    }

    /// Returns how far the draft model is from a sequence of `n_tokens`, of which it lacks `n_missing`; `rest_tokens`
    /// is the longest rest of the response.
    pub fn distance(self, costs: &StepCosts, (n_tokens, n_missing): (u32, u32), rest_tokens: usize) -> Distance {
        if n_missing <= NEAR_TOKENS_MAX {
            return Distance::Near;
        }
        let rest = u32::try_from(rest_tokens).unwrap_or(u32::MAX).min(REST_TOKENS_MAX);
        // On average a missing token sees half of the sequence.
        let missing = self.share * costs.tokens_at(n_tokens / 2, n_missing);
        let is_worth_it = missing <= FOLLOWING_SHARE_MAX * f64::from(rest) * costs.tokens_at(n_tokens, 1);
        if is_worth_it { Distance::Far } else { Distance::TooFar }
    }
}

/// Owner of a draft model's state: the sequences that may come sooner because of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Owner {
    /// Every sequence with this root.
    Root(BlockHash),
    /// This sequence alone, by its order.
    Sequence(u64),
}

/// A sequence that a draft model is to follow: the tokens whose state the served model has, and the next one.
#[derive(Debug, Clone, Copy)]
pub struct Target<'a> {
    /// Owner of its state.
    pub owner: Owner,
    /// Tokens that are computed.
    pub held: &'a [Token],
    /// Token that is chosen and not computed.
    pub next: Token,
}

impl Target<'_> {
    /// Returns the number of its tokens.
    pub fn n_tokens(&self) -> usize {
        self.held.len() + 1
    }

    /// Returns its tokens from a place on.
    pub fn tokens_from(&self, place: usize) -> impl Iterator<Item = Token> {
        self.held
            .get(place..)
            .unwrap_or_default()
            .iter()
            .copied()
            .chain((place <= self.held.len()).then_some(self.next))
    }
}

/// Tokens whose state a draft model has in one of its sequences.
#[derive(Debug, Clone, Default)]
pub struct Followed {
    owner: Option<Owner>,
    tokens: Vec<Token>,
}

impl Followed {
    /// Returns the number of tokens.
    pub fn len(&self) -> usize {
        self.tokens.len()
    }

    /// Returns whether there are none.
    pub fn is_empty(&self) -> bool {
        self.tokens.is_empty()
    }

    /// Returns how many of the first tokens serve a target. The last token of the target is computed in any case, for
    /// what follows it.
    ///
    /// Cost: O(n) in the tokens, some microseconds for a long context.
    pub fn n_common(&self, target: &Target<'_>) -> usize {
        if self.owner != Some(target.owner) {
            return 0;
        }
        let n_common = self.tokens.iter().zip(target.held).take_while(|(own, held)| own == held).count();
        n_common.min(target.held.len())
    }

    /// Leaves the first `n_kept` tokens, for this owner.
    pub fn keep(&mut self, owner: Owner, n_kept: usize) {
        self.tokens.truncate(n_kept);
        self.owner = Some(owner);
    }

    /// Adds a token whose state is being computed.
    pub fn push(&mut self, token: Token) {
        self.tokens.push(token);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::batch_plan::Passes;
    use crate::drafting::step_costs::{Curve, Depth};

    fn costs() -> StepCosts {
        let tokens = Curve::new([(1, 10.0), (8, 11.0), (32, 14.0)]);
        StepCosts { streams: tokens.clone(), tokens, passes: Passes::Together, depth: Depth::default() }
    }

    #[test]
    fn a_draft_costs_its_passes_and_the_tokens_that_are_missing() {
        let model = DraftModelCosts { share: 0.1 };
        let times = |n_missing| model.times(&costs(), 500, n_missing);
        assert_eq!(times(1), MakingTimes { first: 1.0, further: 1.0 });
        assert_eq!(times(32), MakingTimes { first: 1.4000000000000001, further: 1.0 });
        assert_eq!(times(500), times(2), "a prompt is computed before");
    }

    #[test]
    fn a_prompt_is_computed_only_if_the_rest_of_the_response_can_repay_it() {
        let distance = |share, n_missing, rest_tokens| {
            DraftModelCosts { share }.distance(&costs(), (n_missing + 10, n_missing), rest_tokens)
        };
        assert_eq!(distance(1.0, 32, 0), Distance::Near);
        // 512 tokens take as long as 7.4 steps of the served model.
        for (share, n_missing, rest_tokens, expected) in [
            (0.1, 512, usize::MAX, Distance::Far),
            (0.1, 512, 20, Distance::Far),
            (0.1, 512, 10, Distance::TooFar),
            (0.1, 100_000, usize::MAX, Distance::TooFar),
            (1.0, 512, usize::MAX, Distance::Far),
            (2.0, 512, usize::MAX, Distance::TooFar),
        ] {
            assert_eq!(distance(share, n_missing, rest_tokens), expected, "{share} {n_missing} {rest_tokens}");
        }
    }

    #[test]
    fn the_common_tokens_of_the_same_owner_are_kept_but_the_last() {
        let (root, other) = (Owner::Root(BlockHash([1; 32])), Owner::Sequence(7));
        let mut followed = Followed::default();
        let target = |owner, held| Target { owner, held, next: 9 };
        assert_eq!(followed.n_common(&target(root, &[1, 2, 3])), 0);
        followed.keep(root, 0);
        target(root, &[1, 2, 3]).tokens_from(0).for_each(|token| followed.push(token));
        assert_eq!(followed.tokens, [1, 2, 3, 9]);
        for (owner, held, n_common) in [
            (root, &[1, 2, 3, 9, 5][..], 4),
            (root, &[1, 2, 3], 3),
            (root, &[1, 2], 2),
            (root, &[1, 5, 3], 1),
            (root, &[], 0),
            (other, &[1, 2, 3], 0),
        ] {
            assert_eq!(followed.n_common(&target(owner, held)), n_common, "{owner:?} {held:?}");
        }
        followed.keep(other, 2);
        assert_eq!(followed.n_common(&target(root, &[1, 2, 3])), 0, "it has another owner now");
        assert_eq!((followed.n_common(&target(other, &[1, 2, 3])), followed.len()), (2, 2));
        assert_eq!(target(root, &[1, 2, 3]).tokens_from(2).collect::<Vec<_>>(), [3, 9]);
        assert_eq!(target(root, &[1, 2, 3]).tokens_from(3).collect::<Vec<_>>(), [9]);
        assert_eq!(target(root, &[1, 2, 3]).tokens_from(4).count(), 0);
    }
}
