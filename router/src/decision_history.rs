//! Recent activity for the fleet page: the last decisions, and samples of the counters over the last hour.
//!
//! A request writes one entry and later completes it, and holds a lock for one copy each time. A task of its own
//! samples the history from the metrics, so requests spend no time on it.
//!
//! Not here: the page (`http::decisions_api`, `http::pages`), the metrics (`metrics`), traces of single requests.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use tokio::time::MissedTickBehavior;
use warmpath_router_core::diagnostics::decision_log::{
    DecisionEntry, DecisionLog, DecisionOutcome, EntryNumber, LoggedChoice,
};
use warmpath_router_core::diagnostics::history::{History, HistoryTotals, PeriodCounts};

use crate::config::{DECISIONS_KEPT, HISTORY_NOTES, HISTORY_PAUSE};
use crate::metrics::Metrics;

/// Recent decisions and counters.
pub struct DecisionHistory {
    started: Instant,
    started_at: SystemTime,
    /// Last decisions. The lock is held for one entry or one copy, never across `.await`.
    decisions: Mutex<DecisionLog>,
    /// Samples. The lock is held for one sample or one copy, never across `.await`.
    history: Mutex<History>,
}

impl Default for DecisionHistory {
    fn default() -> Self {
        Self {
            started: Instant::now(),
            started_at: SystemTime::now(),
            decisions: Mutex::new(DecisionLog::new(DECISIONS_KEPT)),
            history: Mutex::new(History::new(HISTORY_NOTES)),
        }
    }
}

impl DecisionHistory {
    /// Samples the counters as long as the router runs.
    pub async fn keep(self: Arc<Self>, metrics: Arc<Metrics>) {
        let mut pauses = tokio::time::interval(HISTORY_PAUSE);
        pauses.set_missed_tick_behavior(MissedTickBehavior::Delay);
        // The first tick comes at once, when nothing has been counted.
        pauses.tick().await;
        loop {
            pauses.tick().await;
            let totals = metrics.totals(self.started.elapsed());
            self.history.lock().unwrap_or_else(PoisonError::into_inner).note(totals);
        }
    }

    /// Returns the counts of the last `window`: between samples, and in total.
    pub fn within(&self, window: Duration, metrics: &Metrics) -> (Vec<PeriodCounts>, HistoryTotals) {
        let now = metrics.totals(self.started.elapsed());
        self.history.lock().unwrap_or_else(PoisonError::into_inner).within(window, &now)
    }

    /// Returns the wall-clock time at this time after the router's start. Units: milliseconds since 1970.
    pub fn time_ms(&self, after_start: Duration) -> u64 {
        let since = self.started_at.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default() + after_start;
        u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
    }

    /// Returns the current time. Units: milliseconds since 1970.
    pub fn now_ms(&self) -> u64 {
        self.time_ms(self.started.elapsed())
    }

    /// Returns the last decisions, the latest first.
    pub fn decisions(&self) -> Vec<DecisionEntry> {
        self.log().latest().cloned().collect()
    }

    /// Adds a decision.
    pub fn write(self: &Arc<Self>, choice: LoggedChoice) -> DecisionHandle {
        let number = self.log().write(choice);
        DecisionHandle { recent: Arc::clone(self), number, outcome: DecisionOutcome::Left }
    }

    fn log(&self) -> MutexGuard<'_, DecisionLog> {
        self.decisions.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The entry of a decision in progress; it is completed when this is dropped.
pub struct DecisionHandle {
    recent: Arc<DecisionHistory>,
    number: EntryNumber,
    /// Result of the decision; if the worker sent nothing, the client has disconnected.
    outcome: DecisionOutcome,
}

impl DecisionHandle {
    /// Sets the result of the decision.
    pub fn set_outcome(&mut self, outcome: DecisionOutcome) {
        self.outcome = outcome;
    }
}

impl Drop for DecisionHandle {
    fn drop(&mut self) {
        self.recent.log().close(self.number, self.outcome);
    }
}
