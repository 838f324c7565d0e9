//! Promises what requests will fill, from their arrival until their start or their end without one.
//!
//! Not here: what follows from promises (`warmpath_worker_core::promises`), saying it (`crate::summary`).
//! The idea: the engine thread looks at its commands between steps, so who hands it a request tells the publisher in its
//! place. A promise is a guard, so that none outlives its request, however that ends.

use std::sync::atomic::{AtomicU64, Ordering};

use tokio::sync::mpsc::{UnboundedSender, WeakUnboundedSender};
use warmpath_common::block_hash::BlockHash;
use warmpath_worker_core::promises::PromiseId;

use super::messages::EngineUpdate;

/// Makes promises.
pub(super) struct Promiser {
    /// Is weak, because the publisher's task ends when the engine thread's own end is dropped.
    updates: WeakUnboundedSender<EngineUpdate>,
    n_made: AtomicU64,
}

/// Is one promise, settled once it is dropped.
pub(super) struct Promise {
    updates: WeakUnboundedSender<EngineUpdate>,
    id: PromiseId,
}

impl Promiser {
    /// Returns what makes promises to the reader of these updates.
    pub(super) fn new(updates: &UnboundedSender<EngineUpdate>) -> Self {
        Self { updates: updates.downgrade(), n_made: AtomicU64::new(0) }
    }

    /// Promises a chain's blocks; `None` where there are none.
    pub(super) fn promise(&self, chain: &[BlockHash]) -> Option<Promise> {
        if chain.is_empty() {
            return None;
        }
        let id = PromiseId(self.n_made.fetch_add(1, Ordering::Relaxed));
        let keys = chain.iter().map(BlockHash::key).collect();
        // Without the engine thread there is no publisher to be told.
        let _ = self.updates.upgrade()?.send(EngineUpdate::Promised { id, keys });
        Some(Promise { updates: self.updates.clone(), id })
    }
}

impl Drop for Promise {
    fn drop(&mut self) {
        if let Some(updates) = self.updates.upgrade() {
            let _ = updates.send(EngineUpdate::Settled(self.id));
        }
    }
}
