//! Acceptance rate of the drafted tokens of one sequence: of those that were found, by the length of the match before
//! them, and of a draft model's.
//!
//! Tokens that were chosen without a draft count as well: a proposal that is not computed shows at no cost whether it
//! was right. So the drafter notices when drafting begins to pay. Nothing is learnt from other sequences: their texts
//! may be another tenant's.

use super::ngram_index::GRAM_TOKENS;

/// Classes of matches: the shortest match of each, and the chance of the next token before anything is known.
///
/// Source: docs/decisions/0052-drafting.md.
const CLASSES: [(usize, f64); 4] = [(GRAM_TOKENS, 0.5), (8, 0.75), (16, 0.9), (32, 0.95)];

/// Weight of these chances against observed tokens. Units: tokens. Source: as above.
const PRIOR_TOKENS: f64 = 2.0;

/// Number of tokens of a class at which the counts are halved, so that later tokens weigh more. Source: own choice: a
/// text that changes its kind is noticed within a paragraph.
const SEEN_MAX: f64 = 64.0;

/// Chance of a draft model's token before anything is known.
///
/// Source: rates of 0.5 to 0.9 in "Fast Inference from Transformers via Speculative Decoding" (arXiv 2211.17192).
const MODEL_CHANCE: f64 = 0.7;

/// Share of what was seen of a draft model that a token without its draft leaves. Source: own choice: a model that was
/// wrong is tried again within a hundred tokens.
const FADED: f64 = 0.98;

/// Tokens of one sequence that were proposed, and how many of them were right.
#[derive(Debug, Clone, Default)]
pub struct Acceptance {
    seen: [ProposedTokens; CLASSES.len()],
}

/// Tokens of one sequence that a draft model made, and how many of them were right.
///
/// A draft that is not made shows nothing, so what was seen fades, and the model is tried again.
#[derive(Debug, Clone, Default)]
pub struct ModelAcceptance {
    seen: ProposedTokens,
}

/// Outcome of a proposed token.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ProposalOutcome {
    /// The sequence has it.
    Right,
    /// The sequence has another one.
    Wrong,
}

#[derive(Debug, Clone, Copy, Default)]
struct ProposedTokens {
    n: f64,
    n_right: f64,
}

impl Acceptance {
    /// Returns the chance that the token after a match of `n_matched` tokens is the proposed one.
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
    /// Returns the chance that the model's next token is right.
    pub fn chance(&self) -> f64 {
        self.seen.chance(MODEL_CHANCE)
    }

    /// Records a token that the model made.
    pub fn record(&mut self, outcome: ProposalOutcome) {
        self.seen.record(outcome);
    }

    /// Records a token without a draft of the model.
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
    fn chances_start_with_the_matchs_length_and_follow_what_is_seen() {
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
    fn what_was_long_ago_counts_little() {
        let mut acceptance = Acceptance::default();
        (0..10_000).for_each(|_| acceptance.record(4, ProposalOutcome::Wrong));
        assert!(acceptance.chance(4) < 0.05);
        (0..100).for_each(|_| acceptance.record(4, ProposalOutcome::Right));
        assert!(acceptance.chance(4) > 0.75, "{acceptance:?}");
    }
}
