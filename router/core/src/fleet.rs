//! The fleet as the router sees it at one moment: an immutable value that many requests read at once.
//!
//! Not here: how it is kept up to date (the router's tracker), who holds which prefix (`index`), what this router has sent
//! and the workers have not yet reported (`dispatch`).

use std::sync::Arc;
use std::time::{Duration, Instant};

use warmpath_common::ids::WorkerUid;
use warmpath_common::model::{Capability, ModelInfo};
use warmpath_common::summary::Load;

use crate::WorkerIdx;
use crate::agreement::Disagreement;
use crate::stock::Footing;

/// Is how long a view may be stale before its worker gets no more requests.
///
/// Source: docs/decisions/0000-measured-before.md: load views that are 5 s old triple the p99; a resync takes well below a second.
pub const STALE_AGE_MAX: Duration = Duration::from_secs(3);

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
}

impl Link {
    /// Returns whether the worker is there as far as is known: it may not have been heard yet.
    pub fn is_there(self) -> bool {
        !matches!(self, Self::Down { .. } | Self::Refused { .. })
    }
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
    /// Declares the model; absent until it has been heard.
    pub model: Option<Arc<ModelInfo>>,
    /// Is the last load that it reported; as old as the link says, at most a second while it is live.
    pub load: Load,
    /// Says how the router is connected to it.
    pub link: Link,
    /// Says why it cannot be followed, as of the last try; absent where it is.
    pub trouble: Option<Arc<str>>,
    /// Says why it is kept out of the fleet; absent where it is not.
    pub excluded: Option<Disagreement>,
    /// Is the number of blocks that it holds, as far as the index knows; may be an update behind the index.
    pub n_blocks: usize,
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
            Link::Stale { since } if now.saturating_duration_since(since) > STALE_AGE_MAX => Some(Unavailable::Stale),
            Link::Stale { .. } | Link::Live => self.load.draining.then_some(Unavailable::Draining),
        }
    }

    /// Returns whether the worker is in the fleet and answers to `name`.
    pub fn serves(&self, name: &str) -> bool {
        self.excluded.is_none() && self.model.as_ref().is_some_and(|model| model.answers_to(name))
    }

    /// Returns whether the worker can be asked for `wanted`; one that has not been heard may be able to.
    pub fn can(&self, wanted: Option<Capability>) -> bool {
        self.model.as_ref().is_none_or(|model| model.can(wanted))
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
    },
    /// No worker serves the name.
    #[error("the model `{name}` does not exist; there is {}", list(.known))]
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

fn subject(name: Option<&str>) -> String {
    name.map_or_else(|| "no model here serves".to_owned(), |name| format!("the model `{name}` does not serve"))
}

fn others(names: &[String]) -> String {
    if names.is_empty() { "nor does any other".to_owned() } else { format!("those that do: {}", list(names)) }
}

fn list(names: &[String]) -> String {
    names.iter().map(|name| format!("`{name}`")).collect::<Vec<_>>().join(", ")
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
    pub fn lookup(&self, name: Option<&str>, wanted: Option<Capability>) -> Result<Arc<ModelInfo>, LookupError> {
        if self.models().next().is_none() {
            let n_connected = self.workers.iter().filter(|worker| worker.link == Link::Live).count();
            return Err(LookupError::NoWorkers { n_known: self.workers.len(), n_connected });
        }
        let mut named = self.models().filter(|model| name.is_none_or(|name| model.answers_to(name)));
        let is_named = named.clone().next().is_some();
        let first = named.find(|model| model.can(wanted));
        match (first, name, wanted) {
            (Some(first), Some(_), _) => Ok(Arc::clone(first)),
            (Some(first), None, _) => {
                let others = |model: &&Arc<ModelInfo>| model.can(wanted) && model.fingerprint != first.fingerprint;
                match named.find(others) {
                    Some(_) => Err(LookupError::Ambiguous { known: self.names_for(wanted) }),
                    None => Ok(Arc::clone(first)),
                }
            }
            (None, name, Some(wanted)) if is_named => {
                let name = name.map(str::to_owned);
                Err(LookupError::Incapable { name, wanted, able: self.names_for(Some(wanted)) })
            }
            (None, name, _) => {
                Err(LookupError::Unknown { name: name.unwrap_or_default().to_owned(), known: self.names() })
            }
        }
    }

    fn models(&self) -> impl Iterator<Item = &Arc<ModelInfo>> + Clone {
        self.workers.iter().filter(|worker| worker.excluded.is_none()).filter_map(|worker| worker.model.as_ref())
    }

    /// Returns every name that is served, each once, in the order of the workers.
    pub fn names(&self) -> Vec<String> {
        self.names_for(None)
    }

    fn names_for(&self, wanted: Option<Capability>) -> Vec<String> {
        let mut names: Vec<String> = Vec::new();
        for model in self.models().filter(|model| model.can(wanted)) {
            for name in model.all_names() {
                if !names.contains(&name) {
                    names.push(name);
                }
            }
        }
        names
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{model, worker};

    fn fleet(workers: Vec<WorkerView>) -> FleetView {
        FleetView { workers: workers.into_iter().map(Arc::new).collect() }
    }

    fn named(idx: u32, name: &str, fingerprint: u8) -> WorkerView {
        let fingerprint = warmpath_common::model::Fingerprint([fingerprint; 32]);
        let model = ModelInfo { names: vec![name.into(), "shared".into()], fingerprint, ..model() };
        WorkerView { model: Some(Arc::new(model)), ..worker(idx) }
    }

    #[test]
    fn a_name_finds_its_model() {
        let fleet = fleet(vec![named(0, "a", 1), named(1, "b", 2)]);
        assert_eq!(fleet.lookup(Some("b"), None).expect("b is served").names[0], "b");
        let known = vec!["a".to_owned(), "shared".to_owned(), "b".to_owned()];
        let unknown = LookupError::Unknown { name: "c".into(), known: known.clone() };
        assert_eq!(unknown.to_string(), "the model `c` does not exist; there is `a`, `shared`, `b`");
        assert_eq!(fleet.lookup(Some("c"), Some(Capability::Completion)), Err(unknown));
        assert_eq!(fleet.lookup(None, None), Err(LookupError::Ambiguous { known }));
    }

    #[test]
    fn workers_are_found_by_place_also_where_some_have_left() {
        let fleet = fleet(vec![worker(1), worker(4)]);
        assert_eq!(fleet.worker(WorkerIdx(4)).map(|worker| worker.idx), Some(WorkerIdx(4)));
        assert!([0, 2, 5].iter().all(|&idx| fleet.worker(WorkerIdx(idx)).is_none()));
        assert_eq!((fleet.n_places(), FleetView::default().n_places()), (5, 0));
    }

    #[test]
    fn no_name_means_the_only_model() {
        assert_eq!(fleet(vec![worker(0), worker(1)]).lookup(None, None), Ok(Arc::new(model())));
        let silent = WorkerView { model: None, link: Link::Connecting, ..worker(0) };
        assert_eq!(fleet(vec![silent]).lookup(None, None), Err(LookupError::NoWorkers { n_known: 1, n_connected: 0 }));
    }

    #[test]
    fn what_is_wanted_decides_which_model_is_meant() {
        let mut embedder = named(1, "e", 2);
        let declared = embedder.model.take().expect("it has a model");
        let capabilities = vec![Capability::Embedding];
        embedder.model = Some(Arc::new(ModelInfo { capabilities, ..ModelInfo::clone(&declared) }));
        let fleet = fleet(vec![named(0, "a", 1), embedder]);
        let first_name = |name, wanted| fleet.lookup(name, Some(wanted)).map(|model| model.names[0].clone());
        // One name may stand for a model of each kind, and no name for the only one of its kind.
        for name in [None, Some("shared")] {
            assert_eq!(first_name(name, Capability::Completion).as_deref(), Ok("a"));
            assert_eq!(first_name(name, Capability::Embedding).as_deref(), Ok("e"));
        }
        let refused = first_name(Some("a"), Capability::Embedding).expect_err("it only generates");
        assert_eq!(refused.to_string(), "the model `a` does not serve embedding; those that do: `e`, `shared`");
        let refused = first_name(None, Capability::Rerank).expect_err("nobody does");
        assert_eq!(refused.to_string(), "no model here serves rerank; nor does any other");
        let unknown = first_name(Some("c"), Capability::Rerank).expect_err("there is no such model");
        assert!(matches!(unknown, LookupError::Unknown { .. }), "{unknown:?}");
    }

    #[test]
    fn a_worker_is_unavailable_for_the_first_reason_that_holds() {
        let now = Instant::now() + Duration::from_secs(60);
        let since = |age| now.checked_sub(age).expect("the clock is old enough");
        let check = |change: &dyn Fn(&mut WorkerView), expected| {
            let mut worker = worker(0);
            change(&mut worker);
            assert_eq!(worker.unavailable(now), expected);
        };
        check(&|_| {}, None);
        check(&|worker| worker.link = Link::Connecting, Some(Unavailable::Connecting));
        check(&|worker| worker.link = Link::Down { since: now }, Some(Unavailable::Down));
        check(&|worker| worker.link = Link::Refused { since: now }, Some(Unavailable::Refused));
        check(&|worker| worker.link = Link::Stale { since: now }, None);
        check(&|worker| worker.link = Link::Stale { since: since(STALE_AGE_MAX) }, None);
        let older = STALE_AGE_MAX + Duration::from_millis(1);
        check(&|worker| worker.link = Link::Stale { since: since(older) }, Some(Unavailable::Stale));
        check(&|worker| worker.load.draining = true, Some(Unavailable::Draining));
        check(&|worker| worker.is_leaving = true, Some(Unavailable::Leaving));
        let out = Disagreement::HashVersion { worker: 9 };
        check(&|worker| worker.excluded = Some(out.clone()), Some(Unavailable::Excluded));
    }
}
