//! Budget of a sequence's drafts: accepted tokens, tokens that drafts would have predicted, and a small share of the
//! response.
//!
//! Acceptance rates are estimates, and on a CPU a wrong draft costs the time of many tokens. So a draft is computed
//! only if the budget covers its whole cost. Accepted tokens add to the budget. So do consecutive right proposals that
//! were not drafted, because they show that drafts would pay; a wrong proposal removes these. So after losses the next
//! draft needs more right proposals in a row, and a sequence with wrong proposals loses only its share of the response.
//! Source: docs/decisions/0052-drafting.md.

/// Initial budget. Source: docs/decisions/0052-drafting.md.
const AT_FIRST: f64 = 0.5;

/// Share of a response's tokens that is added to the budget. Source: as above.
const SHARE: f64 = 0.01;

/// Maximum of the kept budget, about the cost of two long drafts on a CPU. Source: as above.
const KEPT_MAX: f64 = 24.0;

/// Remaining budget for the drafts of one sequence. Units: tokens that steps without drafts would generate.
#[derive(Debug, Clone, PartialEq)]
pub struct DraftBudget {
    /// Accepted tokens plus the share of the response, minus the cost of drafts.
    kept: f64,
    /// Consecutive right proposals that were not drafted.
    foreseen: f64,
}

/// Relation of the sequence's next token to the proposal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NextTokenFrom {
    /// The token was drafted and accepted.
    Accepted,
    /// The token was proposed and not drafted.
    Foreseen,
    /// Another token was proposed.
    Unforeseen,
    /// No token was proposed.
    Unproposed,
}

impl Default for DraftBudget {
    fn default() -> Self {
        Self { kept: AT_FIRST, foreseen: 0.0 }
    }
}

impl DraftBudget {
    /// Returns the maximum cost of a draft.
    pub fn cost_max(&self) -> f64 {
        self.kept + self.foreseen
    }

    /// Charges the cost of a draft.
    pub fn spend(&mut self, cost: f64) {
        self.kept -= cost;
    }

    /// Records the sequence's next token.
    pub fn take(&mut self, came: NextTokenFrom) {
        self.kept += SHARE;
        match came {
            NextTokenFrom::Accepted => self.kept += 1.0,
            NextTokenFrom::Foreseen => self.foreseen += 1.0,
            NextTokenFrom::Unforeseen => self.foreseen = 0.0,
            NextTokenFrom::Unproposed => {}
        }
        self.kept = self.kept.min(KEPT_MAX);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn after(came: &[(NextTokenFrom, usize)]) -> DraftBudget {
        let mut budget = DraftBudget::default();
        came.iter().for_each(|(came, n)| (0..*n).for_each(|_| budget.take(*came)));
        budget
    }

    #[test]
    fn right_proposals_in_a_row_cover_a_draft_and_a_wrong_one_ends_the_row() {
        assert!(after(&[(NextTokenFrom::Foreseen, 7)]).cost_max() > 7.0);
        assert!(after(&[(NextTokenFrom::Foreseen, 7), (NextTokenFrom::Unforeseen, 1)]).cost_max() < 1.0);
        assert!(after(&[(NextTokenFrom::Foreseen, 7), (NextTokenFrom::Unproposed, 9)]).cost_max() > 7.0);
    }

    #[test]
    fn a_lost_draft_makes_the_next_one_wait_for_a_longer_row() {
        let mut budget = after(&[(NextTokenFrom::Foreseen, 8)]);
        budget.spend(8.0);
        budget.take(NextTokenFrom::Unforeseen);
        (0..8).for_each(|_| budget.take(NextTokenFrom::Foreseen));
        assert!(budget.cost_max() < 1.0, "{budget:?}");
        (0..8).for_each(|_| budget.take(NextTokenFrom::Foreseen));
        assert!(budget.cost_max() > 8.0, "{budget:?}");
    }

    #[test]
    fn a_saved_up_budget_covers_few_drafts() {
        assert_eq!(after(&[(NextTokenFrom::Accepted, 500)]).cost_max(), KEPT_MAX);
    }

    proptest! {
        #[test]
        fn the_cost_of_drafts_is_covered_by_accepted_and_foreseen_tokens_and_the_share(
            steps in prop::collection::vec((0.0..1.0_f64, 0_usize..4, 0_usize..20), 1..200),
        ) {
            let (mut budget, mut spent, mut accepted, mut n, mut row) = (DraftBudget::default(), 0.0, 0.0, 0.0, 0.0);
            for (share, came, n_tokens) in steps {
                let cost = share * budget.cost_max().max(0.0);
                budget.spend(cost);
                spent += cost;
                prop_assert!(spent <= AT_FIRST + SHARE * n + accepted + row + 1e-9);
                let came = match came {
                    0 => NextTokenFrom::Accepted,
                    1 => NextTokenFrom::Foreseen,
                    2 => NextTokenFrom::Unforeseen,
                    _ => NextTokenFrom::Unproposed,
                };
                for _ in 0..n_tokens {
                    budget.take(came);
                    n += 1.0;
                    accepted += if came == NextTokenFrom::Accepted { 1.0 } else { 0.0 };
                    row += if came == NextTokenFrom::Foreseen { 1.0 } else { 0.0 };
                }
            }
        }
    }
}
