//! The draft model: the cost of its drafts, and the sequences that it drafts for.
//!
//! The draft model has its own context. Before it drafts for a sequence, it computes the sequence's tokens that its
//! context lacks. The time of a few missing tokens is part of the draft's cost. A whole prompt is computed only if the
//! rest of the response can repay its time.
//!
//! Not here: the length of its drafts (`lengths`), their acceptance (`acceptance`).
//! Source: "Fast Inference from Transformers via Speculative Decoding" (arXiv 2211.17192).

use warmpath_common::block_hash::BlockHash;
use warmpath_common::ids::Token;

use super::lengths::MakingTimes;
use super::step_costs::StepCosts;

/// Maximum number of missing tokens that are computed as part of a draft.
///
/// Source: the length of the longest found draft, after which the draft model lacks that many tokens.
const NEAR_TOKENS_MAX: u32 = 32;

/// Number of missing tokens after the draft model's own draft: the last accepted token and the next one.
const FOLLOWED_TOKENS: u32 = 2;

/// Maximum time for computing a sequence's missing tokens, as a share of the time of the remaining response.
///
/// Source: the response takes at most 5 % longer if no draft is accepted, and gains several times as much if half of
/// the drafted tokens are accepted.
const FOLLOWING_SHARE_MAX: f64 = 0.05;

/// Maximum assumed length of the remaining response. Units: tokens. Source: the usual length of a chat's response.
const REST_TOKENS_MAX: u32 = 256;

/// Time of a draft model's passes.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct DraftModelCosts {
    /// Time of a pass, as a share of the served model's time for the same number of tokens.
    pub share: f64,
}

/// Number of a sequence's tokens that the draft model lacks, rated.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Distance {
    /// Few tokens: the draft model can draft in this step.
    Near,
    /// Many tokens, and computing them pays.
    Far,
    /// More tokens than the rest of the response can repay.
    TooFar,
}

impl DraftModelCosts {
    /// Returns the time of making a draft for a sequence of `n_tokens`, of which the draft model lacks `n_missing`.
    ///
    /// If it lacks more than it computes as part of a draft, this is the time after they have been computed.
    pub fn times(self, costs: &StepCosts, n_tokens: u32, n_missing: u32) -> MakingTimes {
        let n_first = if n_missing > NEAR_TOKENS_MAX { FOLLOWED_TOKENS } else { n_missing };
        let pass = |n: u32| self.share * costs.tokens_at(n_tokens, n);
        MakingTimes { first: pass(n_first), further: pass(1) }
    }

    /// Rates the `n_missing` tokens that the draft model lacks of a sequence of `n_tokens`; `rest_tokens` is the
    /// maximum length of the remaining response.
    pub fn distance(self, costs: &StepCosts, n_tokens: u32, n_missing: u32, rest_tokens: usize) -> Distance {
        if n_missing <= NEAR_TOKENS_MAX {
            return Distance::Near;
        }
        let n_remaining = u32::try_from(rest_tokens).unwrap_or(u32::MAX).min(REST_TOKENS_MAX);
        // On average a missing token attends to half of the sequence.
        let missing = self.share * costs.tokens_at(n_tokens / 2, n_missing);
        let is_worth_it = missing <= FOLLOWING_SHARE_MAX * f64::from(n_remaining) * costs.tokens_at(n_tokens, 1);
        if is_worth_it { Distance::Far } else { Distance::TooFar }
    }
}

/// Owner of a draft model's state: the sequences that may use it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DraftStateOwner {
    /// Every sequence with this root.
    Root(BlockHash),
    /// Only this sequence, named by its order.
    Sequence(u64),
}

/// Tokens that a draft model needs to draft for a sequence: the computed ones and the next one.
#[derive(Debug, Clone, Copy)]
pub struct DraftTarget<'a> {
    /// Owner of the draft model's state.
    pub owner: DraftStateOwner,
    /// Tokens whose state the served model has computed.
    pub tokens: &'a [Token],
    /// Token that was chosen and is not computed yet.
    pub next: Token,
}

impl DraftTarget<'_> {
    /// Returns the number of tokens.
    pub fn n_tokens(&self) -> usize {
        self.tokens.len() + 1
    }

    /// Returns the tokens from an index on.
    pub fn tokens_from(&self, place: usize) -> impl Iterator<Item = Token> {
        self.tokens
            .get(place..)
            .unwrap_or_default()
            .iter()
            .copied()
            .chain((place <= self.tokens.len()).then_some(self.next))
    }
}

/// Tokens whose state a draft model has in one of its sequences.
#[derive(Debug, Clone, Default)]
pub struct DraftStateTokens {
    owner: Option<DraftStateOwner>,
    tokens: Vec<Token>,
}

impl DraftStateTokens {
    /// Returns the number of tokens.
    pub fn len(&self) -> usize {
        self.tokens.len()
    }

    /// Returns whether there are no tokens.
    pub fn is_empty(&self) -> bool {
        self.tokens.is_empty()
    }

    /// Returns how many of the first tokens a target can reuse. The target's last token is always computed again, for
    /// its logits.
    ///
    /// Cost: O(n) in the tokens, some microseconds for a long context.
    pub fn n_common(&self, target: &DraftTarget<'_>) -> usize {
        if self.owner != Some(target.owner) {
            return 0;
        }
        let n_common = self.tokens.iter().zip(target.tokens).take_while(|(own, tokens)| own == tokens).count();
        n_common.min(target.tokens.len())
    }

    /// Keeps the first `n_kept` tokens, for this owner.
    pub fn keep(&mut self, owner: DraftStateOwner, n_kept: usize) {
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
    use crate::batches::batch_plan::Passes;
    use crate::curve::Curve;
    use crate::drafting::step_costs::DepthCost;

    fn costs() -> StepCosts {
        let tokens = Curve::new([(1, 10.0), (8, 11.0), (32, 14.0)]);
        StepCosts { streams: tokens.clone(), tokens, passes: Passes::Together, depth: DepthCost::default() }
    }

    #[test]
    fn the_cost_of_a_draft_includes_missing_tokens() {
        let model = DraftModelCosts { share: 0.1 };
        let times = |n_missing| model.times(&costs(), 500, n_missing);
        assert_eq!(times(1), MakingTimes { first: 1.0, further: 1.0 });
        assert_eq!(times(32), MakingTimes { first: 1.4000000000000001, further: 1.0 });
        assert_eq!(times(500), times(2), "a whole prompt is computed in advance");
    }

    #[test]
    fn a_prompt_is_computed_only_if_the_rest_of_the_response_can_repay_it() {
        let distance = |share, n_missing, rest_tokens| {
            DraftModelCosts { share }.distance(&costs(), n_missing + 10, n_missing, rest_tokens)
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
    fn reuses_the_common_tokens_of_the_same_owner_except_the_last() {
        let (root, other) = (DraftStateOwner::Root(BlockHash([1; 32])), DraftStateOwner::Sequence(7));
        let mut followed = DraftStateTokens::default();
        let target = |owner, tokens| DraftTarget { owner, tokens, next: 9 };
        assert_eq!(followed.n_common(&target(root, &[1, 2, 3])), 0);
        followed.keep(root, 0);
        target(root, &[1, 2, 3]).tokens_from(0).for_each(|token| followed.push(token));
        assert_eq!(followed.tokens, [1, 2, 3, 9]);
        for (owner, tokens, n_common) in [
            (root, &[1, 2, 3, 9, 5][..], 4),
            (root, &[1, 2, 3], 3),
            (root, &[1, 2], 2),
            (root, &[1, 5, 3], 1),
            (root, &[], 0),
            (other, &[1, 2, 3], 0),
        ] {
            assert_eq!(followed.n_common(&target(owner, tokens)), n_common, "{owner:?} {tokens:?}");
        }
        followed.keep(other, 2);
        assert_eq!(followed.n_common(&target(root, &[1, 2, 3])), 0, "the owner has changed");
        assert_eq!((followed.n_common(&target(other, &[1, 2, 3])), followed.len()), (2, 2));
        assert_eq!(target(root, &[1, 2, 3]).tokens_from(2).collect::<Vec<_>>(), [3, 9]);
        assert_eq!(target(root, &[1, 2, 3]).tokens_from(3).collect::<Vec<_>>(), [9]);
        assert_eq!(target(root, &[1, 2, 3]).tokens_from(4).count(), 0);
    }
}
