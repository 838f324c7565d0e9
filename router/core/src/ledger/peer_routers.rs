//! Whether other routers send requests to the same workers.
//!
//! Not here: what follows from it (`backoff`). The idea: workers name every request that comes to them; one that
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
/// Source: own choice: routers come and go with deployments and autoscaling, over minutes.
const HEARD_FOR: Duration = Duration::from_secs(600);

/// Remembers whose requests workers have named.
#[derive(Debug, Default)]
pub(crate) struct PeerRouters {
    hasher: RandomState,
    own: HashSet<u64>,
    /// Lists the own ones, the oldest first.
    order: VecDeque<u64>,
    heard: Heard,
}

/// Says whose requests workers have named.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
enum Heard {
    /// None at all, so that nothing is known of others.
    #[default]
    Nobody,
    /// Only this router's own.
    Own,
    /// Somebody else's, last at this time.
    PeerRouters(Instant),
}

impl PeerRouters {
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
            self.heard = Heard::PeerRouters(now);
        } else if self.heard == Heard::Nobody {
            self.heard = Heard::Own;
        }
    }

    /// Returns whether others may be there: a worker has lately named a request of somebody else, or none at all.
    pub(crate) fn may_be_there(&self, now: Instant) -> bool {
        match self.heard {
            Heard::Nobody => true,
            Heard::Own => false,
            Heard::PeerRouters(heard) => now.saturating_duration_since(heard) < HEARD_FOR,
        }
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
        let (mut peer_routers, now) = (PeerRouters::default(), Instant::now());
        assert!(peer_routers.may_be_there(now), "nothing is known yet");
        peer_routers.sent(&id(0));
        peer_routers.named(&id(0), now);
        peer_routers.named(&id(0), now);
        assert!(!peer_routers.may_be_there(now), "a request has a name for each of its choices");
        peer_routers.named(&id(1), now);
        assert!(peer_routers.may_be_there(now));
        assert!(peer_routers.may_be_there(now + HEARD_FOR - Duration::from_millis(1)));
        assert!(!peer_routers.may_be_there(now + HEARD_FOR));
    }

    #[test]
    fn only_the_latest_of_ones_own_are_known() {
        let (mut peer_routers, now) = (PeerRouters::default(), Instant::now());
        (0..=OWN_MAX).for_each(|n| peer_routers.sent(&id(n)));
        (1..=OWN_MAX).for_each(|n| peer_routers.named(&id(n), now));
        assert!(!peer_routers.may_be_there(now));
        assert_eq!((peer_routers.own.len(), peer_routers.order.len()), (OWN_MAX, OWN_MAX));
        peer_routers.named(&id(0), now);
        assert!(peer_routers.may_be_there(now), "the oldest is forgotten");
    }
}
