//! Acceptance rate of the drafted tokens of one sequence, by the length of the match before them.
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

/// Tokens of one sequence that were proposed, and how many of them were right.
#[derive(Debug, Clone, Default)]
pub struct Acceptance {
    seen: [ProposedTokens; CLASSES.len()],
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
        let ProposedTokens { n, n_right } = self.seen[class];
        (PRIOR_TOKENS * CLASSES[class].1 + n_right) / (PRIOR_TOKENS + n)
    }

    /// Records the token after a match of `n_matched` tokens.
    pub fn record(&mut self, n_matched: usize, outcome: ProposalOutcome) {
        let seen = &mut self.seen[class(n_matched)];
        if seen.n >= SEEN_MAX {
            *seen = ProposedTokens { n: seen.n / 2.0, n_right: seen.n_right / 2.0 };
        }
        seen.n += 1.0;
        seen.n_right += if outcome == ProposalOutcome::Right { 1.0 } else { 0.0 };
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
    fn what_was_long_ago_counts_little() {
        let mut acceptance = Acceptance::default();
        (0..10_000).for_each(|_| acceptance.record(4, ProposalOutcome::Wrong));
        assert!(acceptance.chance(4) < 0.05);
        (0..100).for_each(|_| acceptance.record(4, ProposalOutcome::Right));
        assert!(acceptance.chance(4) > 0.75, "{acceptance:?}");
    }
}
