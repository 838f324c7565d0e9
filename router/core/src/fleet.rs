//! The fleet as the router sees it at one moment: an immutable value that many requests read at once.
//!
//! Not here: how it is kept up to date (the router's tracker), who holds which prefix (`index`), what this router has sent
//! and the workers have not yet reported (`dispatch`).

use std::collections::HashSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use warmpath_common::ids::WorkerUid;
use warmpath_common::model::{Capability, ModelInfo};
use warmpath_common::summary::{Digest, Load};

use crate::WorkerIdx;
use crate::agreement::Disagreement;
use crate::stock::Footing;

/// Is how long a view may be stale before its worker gets no more requests.
///
/// Source: docs/decisions/0000-measured-before.md: load views that are 5 s old triple the p99; a resync takes well below a second.
pub const STALE_AGE_MAX: Duration = Duration::from_secs(3);

/// How long after a worker has joined a request may still be for a model that it has not named yet.
///
/// Source: own choice: a worker says its model's names as soon as it listens, some seconds after its machine has it.
pub const UNHEARD_GRACE: Duration = Duration::from_secs(60);

/// Says how the router is connected to a worker.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Link {
    /// Nothing has been heard of the worker yet.
    Connecting,
    /// The summary stream is being followed.
    Live,
    /// The stream was lost; the view is the last one that it gave.
    Stale {
        /// Is when it was lost.
        since: Instant,
    },
    /// The worker cannot be reached.
    Down {
        /// Is when that was found.
        since: Instant,
    },
    /// The worker answers, and does not let this router in.
    Refused {
        /// Is when that was found.
        since: Instant,
    },
    /// The worker answers, and its model is being loaded.
    Loading {
        /// When that was found.
        since: Instant,
    },
}

impl Link {
    /// Returns whether the worker is there as far as is known: it may not have been heard yet.
    pub fn is_there(self) -> bool {
        !matches!(self, Self::Down { .. } | Self::Refused { .. } | Self::Loading { .. })
    }
}

/// Blocks that the index has of a worker.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct KnownBlocks {
    /// Their number.
    pub n_blocks: usize,
    /// Their digest; absent where some are missing for the index's memory limit, or nothing has been heard of the worker.
    pub digest: Option<Digest>,
    /// Whether that is what the worker says; otherwise it is what it said before its stream was lost.
    pub is_current: bool,
}

/// Is what the router knows of one worker.
#[derive(Debug, Clone)]
pub struct WorkerView {
    /// Names the worker in this router.
    pub idx: WorkerIdx,
    /// Names the worker for people: its URL.
    pub name: String,
    /// Names the worker for itself; absent until it has been heard.
    pub uid: Option<WorkerUid>,
    /// Declares the model; absent until it has been heard. Of a stock server with several it is the first.
    pub model: Option<Arc<ModelInfo>>,
    /// Further models of a stock server; a Warmpath worker has none.
    pub further: Vec<Arc<ModelInfo>>,
    /// Names under which the worker said it will serve when it has loaded; none once it serves.
    pub awaited: Vec<String>,
    /// When the worker joined the fleet.
    pub joined_at: Instant,
    /// Is the last load that it reported; as old as the link says, at most a second while it is live.
    pub load: Load,
    /// Says how the router is connected to it.
    pub link: Link,
    /// Says why it cannot be followed, as of the last try; absent where it is.
    pub trouble: Option<Arc<str>>,
    /// Says why it is kept out of the fleet; absent where it is not.
    pub excluded: Option<Disagreement>,
    /// What the index has of its blocks.
    pub blocks: KnownBlocks,
    /// Says on what footing a stock server stands; absent for a Warmpath worker.
    pub stock: Option<Footing>,
    /// Says that it is found no longer, or was told to end.
    pub is_leaving: bool,
}

/// Says why a worker cannot be given a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Unavailable {
    /// Nothing has been heard of it yet.
    Connecting,
    /// It cannot be reached.
    Down,
    /// It does not let this router in.
    Refused,
    /// Its model is being loaded.
    Loading,
    /// Its view is too old.
    Stale,
    /// It disagrees with the fleet.
    Excluded,
    /// It is shutting down.
    Draining,
    /// It is found no longer, or was told to end.
    Leaving,
    /// It has refused a request a moment ago because its queue was full.
    Full,
    /// It cannot start a request soon.
    Busy,
    /// It has said a moment ago that it does not serve.
    Unready,
    /// It has failed too often.
    BreakerOpen,
    /// This very request has failed there.
    Tried,
}

impl Unavailable {
    /// Returns a short name for metrics and messages.
    pub fn label(self) -> &'static str {
        match self {
            Self::Connecting => "connecting",
            Self::Down => "down",
            Self::Refused => "refused",
            Self::Loading => "loading",
            Self::Stale => "stale",
            Self::Excluded => "excluded",
            Self::Draining => "draining",
            Self::Leaving => "leaving",
            Self::Full => "full",
            Self::Busy => "busy",
            Self::Unready => "unready",
            Self::BreakerOpen => "failing",
            Self::Tried => "tried",
        }
    }
}

impl WorkerView {
    /// Returns why the worker cannot be used by what it says itself, or `None` where it can.
    pub fn unavailable(&self, now: Instant) -> Option<Unavailable> {
        if self.excluded.is_some() {
            return Some(Unavailable::Excluded);
        }
        if self.is_leaving {
            return Some(Unavailable::Leaving);
        }
        match self.link {
            Link::Connecting => Some(Unavailable::Connecting),
            Link::Down { .. } => Some(Unavailable::Down),
            Link::Refused { .. } => Some(Unavailable::Refused),
            Link::Loading { .. } => Some(Unavailable::Loading),
            Link::Stale { since } if now.saturating_duration_since(since) > STALE_AGE_MAX => Some(Unavailable::Stale),
            Link::Stale { .. } | Link::Live => self.load.draining.then_some(Unavailable::Draining),
        }
    }

    /// Returns every model that the worker declares.
    pub fn models(&self) -> impl Iterator<Item = &Arc<ModelInfo>> + Clone {
        self.model.iter().chain(&self.further)
    }

    /// Returns the model that the worker has under a name, if it is in the fleet.
    pub fn model_named(&self, name: &str) -> Option<&Arc<ModelInfo>> {
        self.models().filter(|_| self.excluded.is_none()).find(|model| model.answers_to(name))
    }

    /// Returns whether the worker is in the fleet and answers to `name`.
    pub fn serves(&self, name: &str) -> bool {
        self.model_named(name).is_some()
    }

    /// Returns whether the worker is loading the model `name`; no name means any model.
    fn is_loading(&self, name: Option<&str>) -> bool {
        name.map_or(!self.awaited.is_empty(), |name| self.awaited.iter().any(|awaited| awaited == name))
    }

    /// Returns whether the worker will serve `name`, or does and is kept out of the fleet; no name means anything.
    fn is_awaited_for(&self, name: Option<&str>) -> bool {
        let is_kept_out = |name| self.excluded.is_some() && self.models().any(|model| model.answers_to(name));
        self.is_loading(name) || name.is_some_and(is_kept_out)
    }

    /// Returns whether the worker has joined of late and has not named any model.
    fn is_unheard(&self, now: Instant) -> bool {
        let is_silent = self.model.is_none() && self.awaited.is_empty() && !self.is_leaving;
        is_silent && now.saturating_duration_since(self.joined_at) <= UNHEARD_GRACE
    }

    /// Returns whether the worker can be asked for `wanted`; one that has not been heard may be able to.
    pub fn can(&self, wanted: Option<Capability>) -> bool {
        self.model.is_none() || self.models().any(|model| model.can(wanted))
    }
}

/// Is all workers, in the order of their places, in which they joined.
#[derive(Debug, Clone, Default)]
pub struct FleetView {
    /// Lists the workers.
    pub workers: Vec<Arc<WorkerView>>,
}

/// Says why no model can be found for a request.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum LookupError {
    /// No worker has been heard yet, or none that agrees.
    #[error("no worker is ready: {n_known} known, {n_connected} connected; a worker connects once its model is loaded")]
    NoWorkers {
        /// Workers that are configured or found.
        n_known: usize,
        /// Those of them whose summaries are followed.
        n_connected: usize,
        /// Name that was asked for, if one was.
        name: Option<String>,
    },
    /// A worker will serve the name and does not yet, or is kept out of the fleet.
    #[error("{} not ready yet: a worker is loading it", awaited(.name.as_deref()))]
    Loading {
        /// Name that was asked for, if one was.
        name: Option<String>,
    },
    /// No worker that has been heard serves the name, and some have not been heard yet.
    #[error("{} not known yet: {n_unheard} of the workers have not said what they serve", awaited(.name.as_deref()))]
    Unheard {
        /// Name that was asked for, if one was.
        name: Option<String>,
        /// Workers that have not been heard.
        n_unheard: usize,
    },
    /// No worker serves the name.
    #[error("the model `{name}` does not exist; there is {}", some(.known))]
    Unknown {
        /// Is the name that was asked for.
        name: String,
        /// Lists the names that are served.
        known: Vec<String>,
    },
    /// The request names no model, and there are several that could answer it.
    #[error("`model` is missing, and there are several: {}", list(.known))]
    Ambiguous {
        /// Lists their names.
        known: Vec<String>,
    },
    /// Workers serve the name, or some name, but none of them does what is wanted.
    #[error("{} {wanted}; {}", subject(.name.as_deref()), others(.able))]
    Incapable {
        /// Is the name that was asked for, if one was.
        name: Option<String>,
        /// Is what is wanted.
        wanted: Capability,
        /// Lists the names of models that do it.
        able: Vec<String>,
    },
}

impl LookupError {
    /// Returns the name that was asked for, if one was.
    pub fn name(&self) -> Option<&str> {
        match self {
            Self::NoWorkers { name, .. }
            | Self::Loading { name }
            | Self::Unheard { name, .. }
            | Self::Incapable { name, .. } => name.as_deref(),
            Self::Unknown { name, .. } => Some(name),
            Self::Ambiguous { .. } => None,
        }
    }
}

fn some(names: &[String]) -> String {
    if names.is_empty() { "none yet".to_owned() } else { list(names) }
}

fn awaited(name: Option<&str>) -> String {
    name.map_or_else(|| "a model is".to_owned(), |name| format!("the model `{name}` is"))
}

fn subject(name: Option<&str>) -> String {
    name.map_or_else(|| "no model here serves".to_owned(), |name| format!("the model `{name}` does not serve"))
}

fn others(names: &[String]) -> String {
    if names.is_empty() { "nor does any other".to_owned() } else { format!("those that do: {}", list(names)) }
}

/// Most names that a message lists.
///
/// Source: own choice: more is read by nobody; `/v1/models` has them all.
const LISTED_MAX: usize = 64;

fn list(names: &[String]) -> String {
    let listed: Vec<_> = names.iter().take(LISTED_MAX).map(|name| format!("`{name}`")).collect();
    let listed = listed.join(", ");
    match names.len().checked_sub(LISTED_MAX) {
        Some(n_more) if n_more > 0 => format!("{listed} and {n_more} more"),
        _ => listed,
    }
}

impl FleetView {
    /// Returns the worker of a place, if there is one. Cost: O(log workers).
    pub fn worker(&self, idx: WorkerIdx) -> Option<&Arc<WorkerView>> {
        self.workers.binary_search_by_key(&idx, |worker| worker.idx).ok().map(|place| &self.workers[place])
    }

    /// Returns one more than the last worker's index.
    pub fn n_places(&self) -> usize {
        self.workers.last().map_or(0, |worker| worker.idx.0 as usize + 1)
    }

    /// Returns the model that a request for `wanted` means; a missing name means the only one that does it.
    ///
    /// Errors: every [`LookupError`]. Workers that are down count: their model exists.
    pub fn lookup(
        &self,
        name: Option<&str>,
        wanted: Option<Capability>,
        now: Instant,
    ) -> Result<Arc<ModelInfo>, LookupError> {
        let mut named = self.models().filter(|model| name.is_none_or(|name| model.answers_to(name)));
        let is_named = named.clone().next().is_some();
        let Some(first) = named.find(|model| model.can(wanted)) else {
            return Err(self.refusal(name, wanted.filter(|_| is_named), now));
        };
        let others = |model: &Arc<ModelInfo>| model.can(wanted) && model.fingerprint != first.fingerprint;
        if name.is_none() && named.any(others) {
            return Err(LookupError::Ambiguous { known: self.names_for(wanted) });
        }
        Ok(Arc::clone(first))
    }

    /// Returns why nobody serves a name, or what is `wanted` under it.
    fn refusal(&self, name: Option<&str>, wanted: Option<Capability>, now: Instant) -> LookupError {
        let owned = name.map(str::to_owned);
        if self.workers.iter().any(|worker| worker.is_awaited_for(name)) {
            return LookupError::Loading { name: owned };
        }
        let has_models = self.models().next().is_some();
        let n_unheard = self.workers.iter().filter(|worker| worker.is_unheard(now)).count();
        if n_unheard > 0 && has_models {
            return LookupError::Unheard { name: owned, n_unheard };
        }
        let is_awaiting = self.workers.iter().any(|worker| !worker.awaited.is_empty());
        match (owned, wanted) {
            (name, Some(wanted)) => LookupError::Incapable { name, wanted, able: self.names_for(Some(wanted)) },
            (Some(name), None) if has_models || (is_awaiting && n_unheard == 0) => {
                LookupError::Unknown { name, known: self.names() }
            }
            (name, None) => {
                let n_connected = self.workers.iter().filter(|worker| worker.link == Link::Live).count();
                LookupError::NoWorkers { n_known: self.workers.len(), n_connected, name }
            }
        }
    }

    /// Returns whether a request for `wanted` is worth holding: no worker that is ready serves it, and one is loading the model
    /// or has joined of late and not said what it serves.
    pub fn is_awaited(&self, name: Option<&str>, wanted: Option<Capability>, now: Instant) -> bool {
        let suits = |model: &Arc<ModelInfo>| name.is_none_or(|name| model.answers_to(name)) && model.can(wanted);
        let is_ready = |worker: &WorkerView| worker.unavailable(now).is_none() && worker.models().any(suits);
        let may_come = |worker: &WorkerView| match worker.link {
            Link::Refused { .. } => false,
            _ => worker.is_loading(name) || worker.is_unheard(now),
        };
        let mut workers = self.workers.iter().map(Arc::as_ref).filter(|worker| !worker.is_leaving);
        workers.clone().any(may_come) && !workers.any(is_ready)
    }

    fn models(&self) -> impl Iterator<Item = &Arc<ModelInfo>> + Clone {
        self.workers.iter().filter(|worker| worker.excluded.is_none()).flat_map(|worker| worker.models())
    }

    /// Returns every name that is served, each once, in the order of the workers.
    pub fn names(&self) -> Vec<String> {
        self.names_for(None)
    }

    fn names_for(&self, wanted: Option<Capability>) -> Vec<String> {
        let mut seen = HashSet::new();
        let names = self.models().filter(|model| model.can(wanted)).flat_map(|model| model.all_names());
        names.filter(|name| seen.insert(name.clone())).collect()
    }
}

#[cfg(test)]
mod tests;
