//! Limit on the work of writing the grammars of one request's tools.
//!
//! A grammar repeats a definition at each reference to it, so a short schema can have an endless grammar. Every visited
//! schema, written text and copied definition is charged. A grammar gets half of what is left, so one that is too large
//! leaves something to the next one. Not here: the size of the schema itself (`schema`), compiling (`compiler`).

use std::cell::Cell;

use super::SchemaError;

/// Maximum size of the texts of a request's grammars, including those that become parts of others. Units: bytes.
///
/// Source: the first grammar gets half of it, thirty times the texts of the largest schema (`TEXT_BYTES_MAX`); a worker
/// writes this in some 20 ms.
const GRAMMAR_BYTES_MAX: usize = 16 << 20;

/// Charge for visiting a schema. Units: bytes. Source: the time of writing as many.
const VISIT_BYTES: usize = 64;

/// Charge for each byte of a definition's copy, which the compiler reads again. Units: bytes.
///
/// Source: own choice: all copies together are at most 2 MB, four times the largest tools (`TOOLS_BYTES_MAX`);
/// compiling a megabyte of numbers takes seconds and some 140 MB (docs/decisions/0023).
const BYTES_PER_COPIED_BYTE: usize = 8;

/// Remaining budget of a request's grammars.
#[derive(Debug)]
pub struct GrammarBudget {
    bytes_left: Cell<usize>,
    /// Part of `bytes_left` that is kept for later grammars.
    reserved_bytes: Cell<usize>,
    /// Whether this grammar was too large.
    is_spent: Cell<bool>,
}

impl Default for GrammarBudget {
    /// Returns the whole budget, for a single grammar unless [`Self::begin`] is called.
    fn default() -> Self {
        Self { bytes_left: Cell::new(GRAMMAR_BYTES_MAX), reserved_bytes: Cell::new(0), is_spent: Cell::new(false) }
    }
}

impl GrammarBudget {
    /// Begins the next grammar, which gets half of what is left.
    pub fn begin(&self) {
        self.reserved_bytes.set(self.bytes_left.get() / 2);
        self.is_spent.set(false);
    }

    /// Charges for the visit of a schema.
    ///
    /// Errors: like [`Self::take`].
    pub(super) fn visit(&self) -> Result<(), SchemaError> {
        self.take(VISIT_BYTES)
    }

    /// Charges for a copy of a definition of this size.
    ///
    /// Errors: like [`Self::take`].
    pub(super) fn copy(&self, n_bytes: usize) -> Result<(), SchemaError> {
        self.take(n_bytes.saturating_mul(BYTES_PER_COPIED_BYTE))
    }

    /// Charges for a text.
    ///
    /// Errors: the grammar is too large; so is then every later text of it.
    pub(super) fn take(&self, n_bytes: usize) -> Result<(), SchemaError> {
        let n_left = self.bytes_left.get().checked_sub(n_bytes).filter(|n_left| *n_left >= self.reserved_bytes.get());
        if let Some(n_left) = n_left
            && !self.is_spent.get()
        {
            self.bytes_left.set(n_left);
            return Ok(());
        }
        self.is_spent.set(true);
        let reason = "its grammar is too large, because the schema refers to its parts too often";
        Err(SchemaError { path: String::new(), reason: reason.to_owned() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_budget_that_is_used_up_exactly_is_not_spent() {
        let budget = GrammarBudget::default();
        assert!(budget.take(GRAMMAR_BYTES_MAX).is_ok() && !budget.is_spent.get());
        assert!(budget.take(1).is_err() && budget.is_spent.get());
    }

    #[test]
    fn a_grammar_that_is_too_large_leaves_half_of_the_budget_to_the_next_one() {
        let budget = GrammarBudget::default();
        for share in 1..=3 {
            budget.begin();
            let half = GRAMMAR_BYTES_MAX >> share;
            assert!(budget.take(half).is_ok(), "{share}");
            assert!(budget.take(1).is_err() && budget.take(0).is_err(), "{share}");
        }
        budget.begin();
        assert!(budget.take(1).is_ok());
    }
}
