//! Whether other routers send requests to the same workers.
//!
//! Not here: what follows from it (`dispatch::listen`). The idea: workers name every request that comes to them; one that
//! this router has not sent is another's. It knows its own by their hashes, the latest of them, for a worker names a request
//! milliseconds after it was sent.

use std::collections::{HashSet, VecDeque};
use std::hash::{BuildHasher, RandomState};
use std::time::{Duration, Instant};

use warmpath_common::ids::RequestId;

/// Is how many requests of its own a router knows.
///
/// Source: own choice: the requests of some seconds at a thousand a second; one that was forgotten is taken for another's,
/// which costs what listening costs.
const OWN_MAX: usize = 4096;

/// Is how long others are taken to be there after one of their requests.
///
/// Source: own choice: who sends less than that seldom sends in the same milliseconds.
const HEARD_FOR: Duration = Duration::from_secs(10);

/// Remembers whose requests workers have named.
#[derive(Debug, Default)]
pub(crate) struct Others {
    hasher: RandomState,
    own: HashSet<u64>,
    /// Lists the own ones, the oldest first.
    order: VecDeque<u64>,
    heard: Option<Instant>,
}

impl Others {
    /// Takes note that this router sends a request.
    pub(crate) fn sent(&mut self, request: &RequestId) {
        let hash = self.hasher.hash_one(request);
        if !self.own.insert(hash) {
            return;
        }
        self.order.push_back(hash);
        if self.order.len() > OWN_MAX {
            self.order.pop_front().map(|oldest| self.own.remove(&oldest));
        }
    }

    /// Takes note that a worker has named a request.
    pub(crate) fn named(&mut self, request: &RequestId, now: Instant) {
        if !self.own.contains(&self.hasher.hash_one(request)) {
            self.heard = Some(now);
        }
    }

    /// Returns whether a worker has lately named a request of somebody else.
    pub(crate) fn are_there(&self, now: Instant) -> bool {
        self.heard.is_some_and(|heard| now.saturating_duration_since(heard) < HEARD_FOR)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(n: usize) -> RequestId {
        RequestId::new(&format!("r{n}")).expect("a request id")
    }

    #[test]
    fn others_are_there_for_a_while_after_a_request_that_is_not_ones_own() {
        let (mut others, now) = (Others::default(), Instant::now());
        others.sent(&id(0));
        others.named(&id(0), now);
        others.named(&id(0), now);
        assert!(!others.are_there(now), "a request has a name for each of its choices");
        others.named(&id(1), now);
        assert!(others.are_there(now));
        assert!(others.are_there(now + HEARD_FOR - Duration::from_millis(1)));
        assert!(!others.are_there(now + HEARD_FOR));
    }

    #[test]
    fn only_the_latest_of_ones_own_are_known() {
        let (mut others, now) = (Others::default(), Instant::now());
        (0..=OWN_MAX).for_each(|n| others.sent(&id(n)));
        (1..=OWN_MAX).for_each(|n| others.named(&id(n), now));
        assert!(!others.are_there(now));
        assert_eq!((others.own.len(), others.order.len()), (OWN_MAX, OWN_MAX));
        others.named(&id(0), now);
        assert!(others.are_there(now), "the oldest is forgotten");
    }
}
