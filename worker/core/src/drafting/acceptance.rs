//! Acceptance rates of proposed tokens in one sequence: of found tokens, by the length of the match before them, and of
//! the draft model's tokens.
//!
//! Proposals that were not drafted count, too: they show at no cost whether their tokens were right. So the drafter
//! notices when drafts begin to pay. Other sequences have no influence, because they may belong to another tenant.

use super::ngram_index::GRAM_TOKENS;

/// Classes of matches: the minimum length of a match, and the initial acceptance rate of the next token.
///
/// Source: docs/decisions/0052-drafting.md.
const CLASSES: [(usize, f64); 4] = [(GRAM_TOKENS, 0.5), (8, 0.75), (16, 0.9), (32, 0.95)];

/// Weight of the initial rates relative to observed tokens. Units: tokens. Source: as above.
const PRIOR_TOKENS: f64 = 2.0;

/// Number of tokens of a class at which the counts are halved, so that later tokens weigh more. Source: a paragraph has
/// about as many tokens, so a change of the text's style is noticed within one.
const SEEN_MAX: f64 = 64.0;

/// Initial acceptance rate of a draft model's tokens.
///
/// Source: rates of 0.5 to 0.9 in "Fast Inference from Transformers via Speculative Decoding" (arXiv 2211.17192).
const MODEL_CHANCE: f64 = 0.7;

/// Factor of the draft model's counts for each token without its draft. Source: the counts halve every 34 tokens, so a
/// draft model that was wrong is tried again within a hundred tokens.
const FADED: f64 = 0.98;

/// Numbers of found tokens in one sequence and of right ones among them, by class.
#[derive(Debug, Clone, Default)]
pub struct Acceptance {
    seen: [ProposedTokens; CLASSES.len()],
}

/// Numbers of the draft model's tokens in one sequence and of right ones among them.
///
/// Without a draft there are no observations, so the counts decay and the model is tried again.
#[derive(Debug, Clone, Default)]
pub struct ModelAcceptance {
    seen: ProposedTokens,
}

/// Outcome of a proposed token.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ProposalOutcome {
    /// The sequence has the token.
    Right,
    /// The sequence has another token.
    Wrong,
}

#[derive(Debug, Clone, Copy, Default)]
struct ProposedTokens {
    n: f64,
    n_right: f64,
}

impl Acceptance {
    /// Returns the probability that the proposed token after a match of `n_matched` tokens is right.
    pub fn chance(&self, n_matched: usize) -> f64 {
        let class = class(n_matched);
        self.seen[class].chance(CLASSES[class].1)
    }

    /// Records the token after a match of `n_matched` tokens.
    pub fn record(&mut self, n_matched: usize, outcome: ProposalOutcome) {
        self.seen[class(n_matched)].record(outcome);
    }
}

impl ModelAcceptance {
    /// Returns the probability that the draft model's next token is right.
    pub fn chance(&self) -> f64 {
        self.seen.chance(MODEL_CHANCE)
    }

    /// Records a token of the draft model.
    pub fn record(&mut self, outcome: ProposalOutcome) {
        self.seen.record(outcome);
    }

    /// Records a token without a draft of the draft model.
    pub fn fade(&mut self) {
        self.seen.n *= FADED;
        self.seen.n_right *= FADED;
    }
}

impl ProposedTokens {
    fn chance(self, at_first: f64) -> f64 {
        (PRIOR_TOKENS * at_first + self.n_right) / (PRIOR_TOKENS + self.n)
    }

    fn record(&mut self, outcome: ProposalOutcome) {
        if self.n >= SEEN_MAX {
            *self = Self { n: self.n / 2.0, n_right: self.n_right / 2.0 };
        }
        self.n += 1.0;
        self.n_right += if outcome == ProposalOutcome::Right { 1.0 } else { 0.0 };
    }
}

fn class(n_matched: usize) -> usize {
    CLASSES.iter().rposition(|(least, _)| n_matched >= *least).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chances_start_with_the_matchs_length_and_follow_observations() {
        let mut acceptance = Acceptance::default();
        let at_first: Vec<f64> = [0, 4, 7, 8, 16, 31, 32, 99].map(|n| acceptance.chance(n)).to_vec();
        assert_eq!(at_first, [0.5, 0.5, 0.5, 0.75, 0.9, 0.9, 0.95, 0.95]);
        (0..10).for_each(|_| acceptance.record(5, ProposalOutcome::Right));
        assert!(acceptance.chance(4) > 0.9 && acceptance.chance(8) == 0.75, "{acceptance:?}");
        (0..10).for_each(|_| acceptance.record(5, ProposalOutcome::Wrong));
        assert!((0.4..0.6).contains(&acceptance.chance(4)), "{acceptance:?}");
    }

    #[test]
    fn a_draft_model_that_was_wrong_is_tried_again_after_a_while() {
        let mut acceptance = ModelAcceptance::default();
        assert_eq!(acceptance.chance(), MODEL_CHANCE);
        (0..20).for_each(|_| acceptance.record(ProposalOutcome::Wrong));
        assert!(acceptance.chance() < 0.1, "{acceptance:?}");
        (0..150).for_each(|_| acceptance.fade());
        assert!(acceptance.chance() > 0.4, "{acceptance:?}");
        (0..20).for_each(|_| acceptance.record(ProposalOutcome::Right));
        assert!(acceptance.chance() > 0.9, "{acceptance:?}");
    }

    #[test]
    fn old_observations_weigh_little() {
        let mut acceptance = Acceptance::default();
        (0..10_000).for_each(|_| acceptance.record(4, ProposalOutcome::Wrong));
        assert!(acceptance.chance(4) < 0.05);
        (0..100).for_each(|_| acceptance.record(4, ProposalOutcome::Right));
        assert!(acceptance.chance(4) > 0.75, "{acceptance:?}");
    }
}
