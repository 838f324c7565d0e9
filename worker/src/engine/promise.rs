//! Tells of requests from their arrival: what they will compute and fill, until they start or end without one.
//!
//! Not here: what follows from promises (`warmpath_worker_core::promises`), saying it (`crate::summary`).
//! The idea: the engine thread looks at its commands between steps, so who hands it a request tells the publisher in its
//! place. A promise is a guard, so that none outlives its request, however that ends.

use std::sync::atomic::{AtomicU64, Ordering};

use tokio::sync::mpsc::{UnboundedSender, WeakUnboundedSender};
use warmpath_common::block_hash::{BlockHash, BlockKey};
use warmpath_common::ids::RequestId;
use warmpath_worker_core::promises::PromiseId;

use super::messages::EngineUpdate;

/// Makes promises.
pub(crate) struct Promiser {
    /// Is weak, because the publisher's task ends when the thread's own end is dropped.
    updates: WeakUnboundedSender<EngineUpdate>,
    n_made: AtomicU64,
    is_filling: bool,
}

/// Is one promise, settled once it is dropped.
pub(crate) struct Promise {
    updates: WeakUnboundedSender<EngineUpdate>,
    id: PromiseId,
}

impl Promiser {
    /// Returns what tells the reader of these updates who has come.
    pub(crate) fn new(updates: &UnboundedSender<EngineUpdate>) -> Self {
        Self { updates: updates.downgrade(), n_made: AtomicU64::new(0), is_filling: false }
    }

    /// Returns what promises blocks, too, because running sequences are announced.
    pub(crate) fn filling(self) -> Self {
        Self { is_filling: true, ..self }
    }

    /// Tells of a request whose prompts have `n_tokens`, those of `chain` first, as far as it may start from them.
    pub(crate) fn promise(&self, request: &RequestId, n_tokens: u32, chain: &[BlockHash]) -> Promise {
        let id = PromiseId(self.n_made.fetch_add(1, Ordering::Relaxed));
        let keys: Vec<BlockKey> = chain.iter().map(BlockHash::key).collect();
        let is_filling = self.is_filling;
        let promised = EngineUpdate::Promised { id, request: request.clone(), n_tokens, keys, is_filling };
        // Without the thread there is no publisher to be told.
        if let Some(updates) = self.updates.upgrade() {
            let _ = updates.send(promised);
        }
        Promise { updates: self.updates.clone(), id }
    }
}

impl Promise {
    /// Names it.
    pub(crate) fn id(&self) -> PromiseId {
        self.id
    }
}

impl Drop for Promise {
    fn drop(&mut self) {
        if let Some(updates) = self.updates.upgrade() {
            let _ = updates.send(EngineUpdate::Settled(self.id));
        }
    }
}
