//! Early announcements of requests, from their arrival until they start, or end without a start.
//!
//! The engine thread reads its commands only between steps, so the submitting thread notifies the publisher itself. An
//! announcement is a guard, so it is always withdrawn when its request ends.
//!
//! Not here: the published state (`warmpath_worker_core::reports::pending_prefills`), its stream (`crate::summary`).

use std::sync::atomic::{AtomicU64, Ordering};

use tokio::sync::mpsc::{UnboundedSender, WeakUnboundedSender};
use warmpath_common::block_hash::{BlockHash, BlockKey};
use warmpath_common::ids::RequestId;
use warmpath_worker_core::reports::pending_prefills::AnnouncementId;
use warmpath_worker_core::reports::summary_writer::EngineUpdate;

/// Source of early announcements.
pub(crate) struct ArrivalAnnouncer {
    /// A weak sender, because the publisher's task ends when the thread's own sender is dropped.
    updates: WeakUnboundedSender<EngineUpdate>,
    n_made: AtomicU64,
    is_filling: bool,
}

/// An early announcement, withdrawn once it is dropped.
pub(crate) struct EarlyAnnouncement {
    updates: WeakUnboundedSender<EngineUpdate>,
    id: AnnouncementId,
}

impl ArrivalAnnouncer {
    /// Returns an announcer that sends to the reader of these updates.
    pub(crate) fn new(updates: &UnboundedSender<EngineUpdate>) -> Self {
        Self { updates: updates.downgrade(), n_made: AtomicU64::new(0), is_filling: false }
    }

    /// Returns an announcer that also announces blocks, for models whose running sequences are announced.
    pub(crate) fn filling(self) -> Self {
        Self { is_filling: true, ..self }
    }

    /// Announces a request with `n_tokens` of prompts. `chain` has the blocks of the prompt; it is empty if the request
    /// may not reuse state.
    pub(crate) fn announce(&self, request: &RequestId, n_tokens: u32, chain: &[BlockHash]) -> EarlyAnnouncement {
        let id = AnnouncementId(self.n_made.fetch_add(1, Ordering::Relaxed));
        let keys: Vec<BlockKey> = chain.iter().map(BlockHash::key).collect();
        let is_filling = self.is_filling;
        let update = EngineUpdate::Arrived { id, request: request.clone(), n_tokens, keys, is_filling };
        // Without the thread there is no publisher to notify.
        if let Some(updates) = self.updates.upgrade() {
            let _ = updates.send(update);
        }
        EarlyAnnouncement { updates: self.updates.clone(), id }
    }
}

impl EarlyAnnouncement {
    /// Returns the identifier.
    pub(crate) fn id(&self) -> AnnouncementId {
        self.id
    }
}

impl Drop for EarlyAnnouncement {
    fn drop(&mut self) {
        if let Some(updates) = self.updates.upgrade() {
            let _ = updates.send(EngineUpdate::Resolved(self.id));
        }
    }
}
