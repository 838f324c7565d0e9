//! Limit on the work of writing the grammar of one tool's arguments.
//!
//! A grammar repeats a definition at each reference to it, so a short schema can have an endless grammar. Every visited
//! schema and every written text is charged. Not here: the size of the schema itself (`schema`), compiling (`engine`).

use std::cell::Cell;

use super::SchemaError;

/// Maximum size of the written texts, including those that become parts of others. Units: bytes.
///
/// Source: thirty times the texts of the largest schema (`TEXT_BYTES_MAX`); a worker writes this in some 20 ms.
pub(super) const GRAMMAR_BYTES_MAX: usize = 8 << 20;

/// Charge for visiting a schema. Units: bytes. Source: the time of writing as many.
const VISIT_BYTES: usize = 64;

/// Remaining budget of one tool's grammar.
#[derive(Debug)]
pub struct GrammarBudget {
    bytes_left: Cell<usize>,
}

impl Default for GrammarBudget {
    fn default() -> Self {
        Self { bytes_left: Cell::new(GRAMMAR_BYTES_MAX) }
    }
}

impl GrammarBudget {
    /// Returns whether a grammar was too large.
    pub(super) fn is_spent(&self) -> bool {
        self.bytes_left.get() == 0
    }

    /// Charges for the visit of a schema.
    ///
    /// Errors: like [`Self::take`].
    pub(super) fn visit(&self) -> Result<(), SchemaError> {
        self.take(VISIT_BYTES)
    }

    /// Charges for a text.
    ///
    /// Errors: the grammar is too large; so is then every later text.
    pub(super) fn take(&self, n_bytes: usize) -> Result<(), SchemaError> {
        let left = self.bytes_left.get().checked_sub(n_bytes);
        self.bytes_left.set(left.unwrap_or_default());
        let reason = "its grammar is too large, because the schema refers to its parts too often";
        left.map(|_| ()).ok_or_else(|| SchemaError { path: String::new(), reason: reason.to_owned() })
    }
}
