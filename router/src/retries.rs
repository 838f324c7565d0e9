//! The retries of all requests together: every request adds a share to a budget, and every retry takes one out of it.
//!
//! A fleet in which everything fails gets few more requests than its clients send. Not here: the retries of one request
//! (`lifecycle`), the budget's arithmetic (the core's `retry`).

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use warmpath_router_core::overload::retry::{BudgetOptions, RetryBudget};

use crate::metrics::Metrics;

/// Budget of the router's retries.
pub struct Retries {
    /// The lock is held for one deposit or one withdrawal, never across `.await`.
    budget: Mutex<RetryBudget>,
    metrics: Arc<Metrics>,
}

impl Retries {
    /// Returns a full budget.
    pub fn new(options: BudgetOptions, metrics: Arc<Metrics>) -> Self {
        Self { budget: Mutex::new(RetryBudget::new(options, Instant::now())), metrics }
    }

    /// Adds the share of a new request.
    pub fn deposit(&self) {
        self.budget().deposit();
    }

    /// Takes one retry out of the budget; returns whether there was one.
    pub fn withdraw(&self) -> bool {
        let is_granted = self.budget().withdraw(Instant::now());
        if !is_granted {
            self.metrics.retry_budget_exhausted.inc();
        }
        is_granted
    }

    fn budget(&self) -> MutexGuard<'_, RetryBudget> {
        self.budget.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
