//! What the engine thread shows to others: updates for routers, the view of its slots.
//!
//! Not here: what is held (`warmpath_worker_core::prefix_tree`), the stream to routers (`crate::summary`).

use std::time::{Duration, Instant};

use tokio::sync::mpsc::UnboundedSender;
use warmpath_common::summary::{Change, Load};
use warmpath_worker_core::promises::PromiseId;

use super::messages::EngineUpdate;
use super::promise::Promise;

/// Is the shortest time between two updates that carry nothing but the load.
///
/// Source: a load view that is seconds old costs p99 (docs/decisions/0000-measured-before.md); a push costs nothing.
const LOAD_INTERVAL: Duration = Duration::from_millis(10);

/// Sends updates, those without changes not too often.
pub(crate) struct Report {
    updates: UnboundedSender<EngineUpdate>,
    /// Lists the requests that the load counts since the last update.
    counted: Vec<PromiseId>,
    /// Lists the promises of submissions that have started since the last update.
    settled: Vec<Promise>,
    sent: Option<(Instant, Load)>,
    /// Says that something happened since the last update.
    is_stale: bool,
}

impl Report {
    pub(crate) fn new(updates: UnboundedSender<EngineUpdate>) -> Self {
        Self { updates, counted: Vec::new(), settled: Vec::new(), sent: None, is_stale: true }
    }

    /// Notes that the load counts a request from here on.
    pub(crate) fn count(&mut self, promise: Option<&Promise>) {
        self.counted.extend(promise.map(Promise::id));
        self.is_stale = true;
    }

    /// Notes that a submission has started, so that what it fills is told from here on.
    pub(super) fn settle(&mut self, promise: Option<Promise>) {
        self.settled.extend(promise);
    }

    /// Notes that a step was taken.
    pub(crate) fn touch(&mut self) {
        self.is_stale = true;
    }

    /// Returns how long what has happened may wait until it is told; `None` where nothing has.
    pub(crate) fn due_in(&self, now: Instant) -> Option<Duration> {
        let since = |sent: Instant| LOAD_INTERVAL.saturating_sub(now.saturating_duration_since(sent));
        self.is_stale.then(|| self.sent.as_ref().map_or(Duration::ZERO, |(sent, _)| since(*sent)))
    }

    /// Returns whether something must be told at once.
    pub(crate) fn is_urgent(&self) -> bool {
        !self.counted.is_empty() || !self.settled.is_empty()
    }

    /// Tells the changes and the load.
    pub(crate) fn send(&mut self, changes: Vec<Change>, load: Load, now: Instant) {
        let counted = std::mem::take(&mut self.counted);
        self.is_stale = false;
        let is_news =
            !changes.is_empty() || !counted.is_empty() || self.sent.as_ref().is_none_or(|(_, said)| *said != load);
        if is_news {
            self.sent = Some((now, load.clone()));
            let _ = self.updates.send(EngineUpdate::Step { changes, load, counted });
        }
        // What they promised is in the changes, so they are settled behind them.
        self.settled.clear();
    }
}
