//! The fleet as the router sees it at one moment: an immutable value that many requests read at once.
//!
//! Not here: how it is kept up to date (the router's tracker), who holds which prefix (`index`), what this router has sent
//! and the workers have not yet reported (`dispatch`).

use std::sync::Arc;
use std::time::{Duration, Instant};

use warmpath_common::ids::WorkerUid;
use warmpath_common::model::ModelInfo;
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
    /// Says why it is kept out of the fleet; absent where it is not.
    pub excluded: Option<Disagreement>,
    /// Is the number of blocks that it holds, as far as the index knows; may be an update behind the index.
    pub n_blocks: usize,
    /// Says on what footing a stock server stands; absent for a Warmpath worker.
    pub stock: Option<Footing>,
}

/// Says why a worker cannot be given a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Unavailable {
    /// Nothing has been heard of it yet.
    Connecting,
    /// It cannot be reached.
    Down,
    /// Its view is too old.
    Stale,
    /// It disagrees with the fleet.
    Excluded,
    /// It is shutting down.
    Draining,
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
            Self::Stale => "stale",
            Self::Excluded => "excluded",
            Self::Draining => "draining",
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
        match self.link {
            Link::Connecting => Some(Unavailable::Connecting),
            Link::Down { .. } => Some(Unavailable::Down),
            Link::Stale { since } if now.saturating_duration_since(since) > STALE_AGE_MAX => Some(Unavailable::Stale),
            Link::Stale { .. } | Link::Live => self.load.draining.then_some(Unavailable::Draining),
        }
    }

    /// Returns whether the worker is in the fleet and answers to `name`.
    pub fn serves(&self, name: &str) -> bool {
        self.excluded.is_none() && self.model.as_ref().is_some_and(|model| model.names.iter().any(|own| own == name))
    }
}

/// Is all workers, in the order of configuration: worker `i` stands at place `i`.
#[derive(Debug, Clone, Default)]
pub struct FleetView {
    /// Lists the workers.
    pub workers: Vec<Arc<WorkerView>>,
}

/// Says why no model can be found for a request.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum LookupError {
    /// No worker has been heard yet, or none that agrees.
    #[error("no worker is connected")]
    NoWorkers,
    /// No worker serves the name.
    #[error("the model `{name}` does not exist; there is {}", list(.known))]
    Unknown {
        /// Is the name that was asked for.
        name: String,
        /// Lists the names that are served.
        known: Vec<String>,
    },
    /// The request names no model, and there are several.
    #[error("`model` is missing, and there are several: {}", list(.known))]
    Ambiguous {
        /// Lists the names that are served.
        known: Vec<String>,
    },
}

fn list(names: &[String]) -> String {
    names.iter().map(|name| format!("`{name}`")).collect::<Vec<_>>().join(", ")
}

impl FleetView {
    /// Returns the model that a request means; a missing name means the only one.
    ///
    /// Errors: every [`LookupError`]. Workers that are down count: their model exists.
    pub fn lookup(&self, name: Option<&str>) -> Result<Arc<ModelInfo>, LookupError> {
        let mut models =
            self.workers.iter().filter(|worker| worker.excluded.is_none()).filter_map(|w| w.model.as_ref());
        let Some(first) = models.next() else { return Err(LookupError::NoWorkers) };
        let Some(name) = name else {
            return match models.find(|model| model.fingerprint != first.fingerprint) {
                Some(_) => Err(LookupError::Ambiguous { known: self.names() }),
                None => Ok(Arc::clone(first)),
            };
        };
        let serving = self.workers.iter().find(|worker| worker.serves(name));
        serving
            .and_then(|worker| worker.model.clone())
            .ok_or_else(|| LookupError::Unknown { name: name.to_owned(), known: self.names() })
    }

    /// Returns every name that is served, each once, in the order of the workers.
    pub fn names(&self) -> Vec<String> {
        let mut names: Vec<String> = Vec::new();
        for worker in self.workers.iter().filter(|worker| worker.excluded.is_none()) {
            for name in worker.model.iter().flat_map(|model| &model.names) {
                if !names.contains(name) {
                    names.push(name.clone());
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
        assert_eq!(fleet.lookup(Some("b")).expect("b is served").names[0], "b");
        let known = vec!["a".to_owned(), "shared".to_owned(), "b".to_owned()];
        let unknown = LookupError::Unknown { name: "c".into(), known: known.clone() };
        assert_eq!(unknown.to_string(), "the model `c` does not exist; there is `a`, `shared`, `b`");
        assert_eq!(fleet.lookup(Some("c")), Err(unknown));
        assert_eq!(fleet.lookup(None), Err(LookupError::Ambiguous { known }));
    }

    #[test]
    fn no_name_means_the_only_model() {
        assert_eq!(fleet(vec![worker(0), worker(1)]).lookup(None), Ok(Arc::new(model())));
        let silent = WorkerView { model: None, link: Link::Connecting, ..worker(0) };
        assert_eq!(fleet(vec![silent]).lookup(None), Err(LookupError::NoWorkers));
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
        check(&|worker| worker.link = Link::Stale { since: now }, None);
        check(&|worker| worker.link = Link::Stale { since: since(STALE_AGE_MAX) }, None);
        let older = STALE_AGE_MAX + Duration::from_millis(1);
        check(&|worker| worker.link = Link::Stale { since: since(older) }, Some(Unavailable::Stale));
        check(&|worker| worker.load.draining = true, Some(Unavailable::Draining));
        let out = Disagreement::HashVersion { worker: 9 };
        check(&|worker| worker.excluded = Some(out.clone()), Some(Unavailable::Excluded));
    }
}
