//! Why no worker gets a request.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use crate::WorkerIdx;
use crate::fleet::Unavailable;

/// Reason why no worker gets the request: the number of unavailable workers by cause.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NoWorker {
    /// Number of workers by cause.
    pub reasons: BTreeMap<Unavailable, usize>,
    /// Workers whose only cause is that they have no capacity.
    pub busy: Vec<WorkerIdx>,
    /// Time until the first of the workers that have refused requests takes some again; `None` if none has.
    pub pause: Option<Duration>,
}

impl NoWorker {
    pub(super) fn unserved() -> Self {
        Self { reasons: BTreeMap::new(), busy: Vec::new(), pause: None }
    }

    /// Returns the refusal for workers that are unavailable for these causes.
    pub fn counting(reasons: impl IntoIterator<Item = Unavailable>) -> Self {
        let mut counts = BTreeMap::new();
        reasons.into_iter().for_each(|why| *counts.entry(why).or_insert(0) += 1);
        Self { reasons: counts, busy: Vec::new(), pause: None }
    }

    /// Returns the causes as a text, such as `2 down, 1 draining`.
    pub fn listed(&self) -> String {
        let reasons: Vec<_> = self.reasons.iter().map(|(why, n)| format!("{n} {}", why.label())).collect();
        reasons.join(", ")
    }

    /// Returns whether only the load is the cause: a worker serves and has no capacity.
    pub fn is_overload(&self) -> bool {
        [Unavailable::Full, Unavailable::Busy].iter().any(|why| self.reasons.contains_key(why))
    }

    /// Returns whether a worker may have capacity within `patience`: one is busy, or takes requests again by then.
    pub fn may_end_within(&self, patience: Duration) -> bool {
        self.rest().is_none_or(|pause| pause <= patience)
    }

    /// Returns the time until the first of the workers that have refused such requests takes one again; `None` if a
    /// worker is only busy.
    pub fn rest(&self) -> Option<Duration> {
        self.pause.filter(|_| !self.reasons.contains_key(&Unavailable::Busy))
    }
}

impl fmt::Display for NoWorker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.reasons.is_empty() {
            return f.write_str("no worker serves the model");
        }
        write!(f, "no worker can take the request: {}", self.listed())
    }
}

impl std::error::Error for NoWorker {}
