//! Sets of callers: the items at which a rule's callers continue, each set stored once, and the work that is left.

use std::sync::Arc;

use hashbrown::HashMap;

use super::lower::{Dot, Grammar};

/// Work of an item during the completion of a row, and of storing a set of callers.
///
/// Source: docs/decisions/0032.
pub(super) const ITEM_COST: u64 = 10;
pub(super) const CALLERS_COST: u64 = 50;

/// Error: a step would take more work or more memory than allowed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the answer cannot continue: the grammar can be followed in too many ways, or is nested too deep")]
pub struct Exhausted;

pub(super) type CallersId = u32;

/// Position in an alternative, and the callers at which it continues.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct EarleyItem {
    pub(super) dot: Dot,
    pub(super) callers: CallersId,
}

/// Callers of the grammar's root: the end of the text.
pub(super) const ROOT_CALLERS: CallersId = 0;

/// Sets of callers of one response.
#[derive(Debug, Clone)]
pub(super) struct Callers {
    pub(super) grammar: Arc<Grammar>,
    sets: Vec<Arc<[EarleyItem]>>,
    ids: HashMap<Arc<[EarleyItem]>, CallersId>,
    /// Memory of the response's rows and sets.
    pub(super) n_bytes: usize,
    /// Work that is left. Units: characters of cached rows, some 5 ns each.
    pub(super) fuel: u64,
}

impl Callers {
    /// Returns no sets.
    pub(super) fn new(grammar: Arc<Grammar>, fuel: u64) -> Self {
        Self { grammar, sets: Vec::new(), ids: HashMap::new(), n_bytes: 0, fuel }
    }

    /// Pays for work.
    ///
    /// Errors: too little is left.
    pub(super) fn pay(&mut self, cost: u64) -> Result<(), Exhausted> {
        self.fuel = self.fuel.checked_sub(cost).ok_or(Exhausted)?;
        Ok(())
    }

    /// Returns the id of a set of callers.
    pub(super) fn intern(&mut self, mut callers: Vec<EarleyItem>) -> CallersId {
        callers.sort_unstable();
        callers.dedup();
        if let Some(id) = self.ids.get(callers.as_slice()) {
            return *id;
        }
        let callers: Arc<[EarleyItem]> = callers.into();
        let id = CallersId::try_from(self.sets.len()).expect("the rows' bytes are limited");
        self.n_bytes += 64 + size_of::<EarleyItem>() * callers.len();
        self.ids.insert(Arc::clone(&callers), id);
        self.sets.push(callers);
        id
    }

    /// Returns a set.
    pub(super) fn set(&self, id: CallersId) -> &Arc<[EarleyItem]> {
        &self.sets[id as usize]
    }

    /// Returns the sets in the order in which they were stored.
    pub(super) fn sets(&self) -> &[Arc<[EarleyItem]>] {
        &self.sets
    }
}
