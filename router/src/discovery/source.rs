//! The lists of workers that the sources keep.

use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::Notify;
use warmpath_router_core::fleet::membership::DiscoveredWorker;

use crate::config::WorkerAddress;

/// The workers found by all sources.
#[derive(Debug, Default)]
pub struct Discovered {
    /// List of each source, `None` until its first result. The lock is held for one copy, never across `.await`.
    lists: Mutex<Vec<Option<Vec<DiscoveredWorker<WorkerAddress>>>>>,
    changed: Notify,
}

impl Discovered {
    /// Returns every worker of every source; a worker of several sources appears several times.
    pub fn all(&self) -> Vec<DiscoveredWorker<WorkerAddress>> {
        self.lists.lock().unwrap_or_else(PoisonError::into_inner).iter().flatten().flatten().cloned().collect()
    }

    /// Returns whether every source has had a first result, even an empty one.
    pub fn is_complete(&self) -> bool {
        self.lists.lock().unwrap_or_else(PoisonError::into_inner).iter().all(Option::is_some)
    }

    /// Waits until a source's list differs from the one at the last call.
    pub async fn changed(&self) {
        self.changed.notified().await;
    }
}

/// One source's access to its list.
pub struct Source {
    found: Arc<Discovered>,
    nth: usize,
}

impl Source {
    /// Returns the access to a new list.
    pub fn of(discovered: &Arc<Discovered>) -> Self {
        let mut lists = discovered.lists.lock().unwrap_or_else(PoisonError::into_inner);
        lists.push(None);
        Self { found: Arc::clone(discovered), nth: lists.len() - 1 }
    }

    /// Replaces this source's list.
    pub fn set(&self, list: Vec<DiscoveredWorker<WorkerAddress>>) {
        self.found.lists.lock().unwrap_or_else(PoisonError::into_inner)[self.nth] = Some(list);
        self.found.changed.notify_one();
    }
}

/// Returns a worker that stays.
pub(super) fn staying(address: WorkerAddress) -> DiscoveredWorker<WorkerAddress> {
    DiscoveredWorker { address, is_ending: false }
}
