//! What a simulated worker announces: the changes of its blocks and its load, as values.
//!
//! The production writer of summaries encodes the same as frames and sends them at its own times (`summary_writer`).
//! Here the world chooses the times at which routers learn of blocks and of load.

use std::collections::HashSet;

use warmpath_common::block_hash::BlockKey;
use warmpath_common::ids::RequestId;
use warmpath_common::summary::{Change, Load};
use warmpath_worker_core::reports::pending_prefills::{AnnouncementId, PendingPrefills};
use warmpath_worker_core::reports::summary_writer::EngineUpdate;
use warmpath_worker_core::reports::unadmitted_requests::Arrivals;

use super::super::trace::Request;

/// Announced state of one worker, and the changes that routers have not received.
#[derive(Debug, Default)]
pub(super) struct Announcements {
    arrivals: Arrivals,
    pending_prefills: PendingPrefills,
    /// Blocks that were announced as ready or filling.
    blocks: HashSet<BlockKey>,
    changes: Vec<Change>,
    accepted: Vec<Change>,
    /// Load as the engine last reported it.
    load: Load,
}

impl Announcements {
    /// Announces the blocks that a new request will compute or fetch; it fetches the first `n_fetched`.
    pub(super) fn arrive(&mut self, request: &Request, idx: usize, id: RequestId, n_fetched: usize, block_tokens: u32) {
        let announcement = AnnouncementId(idx as u64);
        let n_announced = request.keys.iter().take_while(|key| self.blocks.contains(*key)).count();
        let n_cached = n_announced.max(n_fetched).min(request.reusable_blocks(block_tokens)) as u32;
        self.arrivals.come(announcement, request.prompt_tokens - n_cached * block_tokens);
        let changes =
            self.pending_prefills.make(announcement, request.keys.clone(), |_, key| self.blocks.contains(key));
        self.add(changes);
        self.accepted.push(Change::Accepted(id));
    }

    /// Applies a report of the engine.
    pub(super) fn apply(&mut self, update: EngineUpdate) {
        match update {
            EngineUpdate::Step { changes, load, counted } => {
                counted.into_iter().for_each(|id| self.arrivals.leave(id));
                self.load = load;
                for change in changes {
                    let changes = self.pending_prefills.pass(change);
                    self.add(changes);
                }
            }
            EngineUpdate::Resolved(id) => {
                let changes = self.pending_prefills.resolve(id);
                self.add(changes);
            }
            EngineUpdate::Arrived { .. } => unreachable!("an engine does not report arrivals"),
        }
    }

    /// Returns whether there are changes that have not been taken yet.
    pub(super) fn has_changes(&self) -> bool {
        !self.changes.is_empty() || !self.accepted.is_empty()
    }

    /// Takes the changes since the last call.
    pub(super) fn take_changes(&mut self) -> Vec<Change> {
        self.changes.append(&mut self.accepted);
        std::mem::take(&mut self.changes)
    }

    /// Returns the engine's load plus the requests that it does not count yet.
    pub(super) fn load(&self) -> Load {
        self.arrivals.beside(&self.load)
    }

    fn add(&mut self, changes: impl IntoIterator<Item = Change>) {
        for change in changes {
            match &change {
                Change::Stored(run) => self.blocks.extend(&run.keys),
                Change::Removed(keys) => keys.iter().for_each(|key| _ = self.blocks.remove(key)),
                Change::Accepted(_) => {}
            }
            self.changes.push(change);
        }
    }
}
