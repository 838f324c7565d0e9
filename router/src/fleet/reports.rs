//! Reports to the tracker: from the tasks that follow workers, from `members`, and from the vocabulary task.
//!
//! Not here: their effect (`tracker`).

use std::sync::Arc;

use warmpath_common::model::Fingerprint;
use warmpath_common::summary::{Change, Digest, Load, Run};
use warmpath_router_core::WorkerIdx;
use warmpath_router_core::fleet::summary_reader::NewWorker;
use warmpath_router_core::hosts::HostView;
use warmpath_router_core::stock::ServerInfo;

use super::vocabulary::VocabularyKey;

/// Reason why a worker cannot be followed.
#[derive(Debug, Clone)]
pub struct FollowError {
    /// Kind of the reason.
    pub kind: FollowErrorKind,
    /// Text for operators.
    pub reason: Arc<str>,
}

/// Kind of reason why a worker cannot be followed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FollowErrorKind {
    /// The worker responds but does not accept this router.
    Refusal,
    /// The worker does not respond, so its open responses will not arrive.
    Loss,
    /// The worker responds, and its model is loading.
    Loading {
        /// Names under which it will serve.
        names: Vec<String>,
    },
    /// The worker cannot be followed, but may be serving other clients.
    Other,
}

/// A message to the tracker from the tasks that follow workers, and from the vocabulary task.
pub enum TrackerMessage {
    /// All workers of the first discovery have joined.
    Surveyed,
    /// A worker has joined; its member is in place.
    Joined {
        /// The worker.
        worker: WorkerIdx,
    },
    /// A worker is no longer found, or is shutting down.
    Leaving {
        /// The worker.
        worker: WorkerIdx,
    },
    /// A worker that was leaving stays.
    Stayed {
        /// The worker.
        worker: WorkerIdx,
    },
    /// A worker has left; it sends no further report.
    Left {
        /// The worker.
        worker: WorkerIdx,
    },
    /// A worker has begun a snapshot: its model and load have arrived.
    Opened {
        /// The worker.
        worker: WorkerIdx,
        /// The model and load.
        new: Box<NewWorker>,
    },
    /// A stock server was found, or lists other models than before.
    Found {
        /// The worker.
        worker: WorkerIdx,
        /// The server's models and limits.
        declared: ServerInfo,
    },
    /// A stock server counts tokens differently from the vocabulary assumed for it.
    Differs {
        /// The worker.
        worker: WorkerIdx,
        /// The model whose tokens it counts differently.
        model: Fingerprint,
    },
    /// A worker's stream has resumed where it was lost.
    Resumed {
        /// The worker.
        worker: WorkerIdx,
    },
    /// A worker's complete list of blocks.
    Replaced {
        /// The worker.
        worker: WorkerIdx,
        /// Its blocks.
        runs: Vec<Run>,
    },
    /// A change of a worker's blocks or load.
    Update {
        /// The worker.
        worker: WorkerIdx,
        /// The changes in order.
        changes: Vec<Change>,
        /// The load after the changes, if it changed.
        load: Option<Load>,
        /// Digest of the worker's blocks after the changes, if the worker sent one.
        digest: Option<Digest>,
    },
    /// A worker's stream has ended; the worker may be healthy.
    Lost {
        /// The worker.
        worker: WorkerIdx,
        /// Reason, for operators.
        reason: Arc<str>,
    },
    /// A worker cannot be reached, is not ready, or does not accept this router.
    Unreachable {
        /// The worker.
        worker: WorkerIdx,
        /// Reason.
        trouble: FollowError,
    },
    /// The view of a host.
    Host {
        /// Index of the host, in the order of configuration.
        host_idx: usize,
        /// The view.
        view: Box<HostView>,
    },
    /// A vocabulary was fetched and compared with what the workers declare.
    Vocabulary,
    /// A worker's vocabulary would harm this router.
    Refused {
        /// The worker.
        worker: WorkerIdx,
        /// Key of the vocabulary.
        key: VocabularyKey,
        /// Reason, for operators.
        reason: String,
    },
}

impl TrackerMessage {
    /// Returns the worker that the report is about, if there is one.
    pub(super) fn worker(&self) -> Option<WorkerIdx> {
        match self {
            Self::Surveyed | Self::Vocabulary | Self::Host { .. } => None,
            Self::Joined { worker }
            | Self::Leaving { worker }
            | Self::Stayed { worker }
            | Self::Left { worker }
            | Self::Opened { worker, .. }
            | Self::Found { worker, .. }
            | Self::Differs { worker, .. }
            | Self::Resumed { worker }
            | Self::Replaced { worker, .. }
            | Self::Update { worker, .. }
            | Self::Lost { worker, .. }
            | Self::Unreachable { worker, .. }
            | Self::Refused { worker, .. } => Some(*worker),
        }
    }
}
