//! Reports of the engine thread: updates for routers, and the view of its slots.
//!
//! Not here: the cached blocks (`warmpath_worker_core::slots::prefix_tree`), the stream to routers (`crate::summary`).

use std::time::{Duration, Instant};

use tokio::sync::mpsc::UnboundedSender;
use warmpath_common::summary::{Change, Load};
use warmpath_worker_core::reports::pending_prefills::AnnouncementId;
use warmpath_worker_core::reports::summary_writer::EngineUpdate;

use super::arrival_announcer::EarlyAnnouncement;

/// Shortest time between two updates with only the load.
///
/// Source: a load that is seconds old costs p99 (docs/decisions/0000-measured-before.md); a push costs nothing.
const LOAD_INTERVAL: Duration = Duration::from_millis(10);

/// Sender of updates, with a rate limit on updates with only the load.
pub(crate) struct UpdateSender {
    updates: UnboundedSender<EngineUpdate>,
    /// Requests that the load has included since the last update.
    counted: Vec<AnnouncementId>,
    /// Early announcements of submissions that have started since the last update.
    resolved: Vec<EarlyAnnouncement>,
    sent: Option<(Instant, Load)>,
    /// Whether a step was taken since the last update.
    is_stale: bool,
}

impl UpdateSender {
    pub(crate) fn new(updates: UnboundedSender<EngineUpdate>) -> Self {
        Self { updates, counted: Vec::new(), resolved: Vec::new(), sent: None, is_stale: true }
    }

    /// Records that the load includes a request from now on.
    pub(crate) fn count(&mut self, announcement: Option<&EarlyAnnouncement>) {
        self.counted.extend(announcement.map(EarlyAnnouncement::id));
        self.is_stale = true;
    }

    /// Records that a submission has started, so that the changes include its blocks from now on.
    pub(crate) fn resolve(&mut self, announcement: Option<EarlyAnnouncement>) {
        self.resolved.extend(announcement);
    }

    /// Records that a step was taken.
    pub(crate) fn touch(&mut self) {
        self.is_stale = true;
    }

    /// Returns the time until the pending changes must be sent; `None` if there are none.
    pub(crate) fn due_in(&self, now: Instant) -> Option<Duration> {
        let since = |sent_at: Instant| LOAD_INTERVAL.saturating_sub(now.saturating_duration_since(sent_at));
        self.is_stale.then(|| self.sent.as_ref().map_or(Duration::ZERO, |(sent_at, _)| since(*sent_at)))
    }

    /// Returns whether an update must be sent immediately.
    pub(crate) fn is_urgent(&self) -> bool {
        !self.counted.is_empty() || !self.resolved.is_empty()
    }

    /// Sends the changes and the load.
    pub(crate) fn send(&mut self, changes: Vec<Change>, load: Load, now: Instant) {
        let counted_requests = std::mem::take(&mut self.counted);
        self.is_stale = false;
        let is_news = !changes.is_empty()
            || !counted_requests.is_empty()
            || self.sent.as_ref().is_none_or(|(_, said)| *said != load);
        if is_news {
            self.sent = Some((now, load.clone()));
            let _ = self.updates.send(EngineUpdate::Step { changes, load, counted: counted_requests });
        }
        // The announced blocks are in the changes, so the announcements are withdrawn after them.
        self.resolved.clear();
    }
}
