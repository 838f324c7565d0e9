//! Places in the engine: a limit of what waits or runs there, freed by guards.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Number of submissions or queries in the engine, and its limit.
pub(crate) struct Places {
    n_taken: AtomicUsize,
    n_max: usize,
}

impl Places {
    pub(crate) fn new(n_max: usize) -> Self {
        Self { n_taken: AtomicUsize::new(0), n_max }
    }

    pub(crate) fn n_taken(&self) -> usize {
        self.n_taken.load(Ordering::Acquire)
    }

    pub(crate) fn take(self: &Arc<Self>) -> Option<HeldPlace> {
        let one_more = |n| (n < self.n_max).then_some(n + 1);
        self.n_taken.fetch_update(Ordering::AcqRel, Ordering::Acquire, one_more).ok()?;
        Some(HeldPlace(Arc::clone(self)))
    }
}

/// Place of one submission or query in the engine, freed when it is dropped.
pub(crate) struct HeldPlace(Arc<Places>);

impl Drop for HeldPlace {
    fn drop(&mut self) {
        self.0.n_taken.fetch_sub(1, Ordering::AcqRel);
    }
}
