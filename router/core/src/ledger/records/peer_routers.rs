//! Whether other routers send requests to the same workers.
//!
//! Workers report every request that they get; a request that this router has not sent came from another router. The
//! router remembers the hashes of its own latest requests, because a worker reports a request milliseconds after it was
//! sent. Not here: what follows from it (`backoff`).

use std::collections::{HashSet, VecDeque};
use std::hash::{BuildHasher, RandomState};
use std::time::{Duration, Instant};

use warmpath_common::ids::RequestId;

/// Number of its own requests that a router knows.
///
/// Source: own choice: the requests of some seconds at a thousand a second; a forgotten one counts as another router's,
/// which costs a backoff.
const OWN_MAX: usize = 4096;

/// Time for which other routers are assumed to exist after one of their requests.
///
/// Source: own choice: routers come and go with deployments and autoscaling, over minutes.
const ASSUMED_FOR: Duration = Duration::from_secs(600);

/// Detector of other routers, by the requests that workers report.
#[derive(Debug, Default)]
pub(crate) struct PeerRouters {
    hasher: RandomState,
    own: HashSet<u64>,
    /// Its own requests, the oldest first.
    order: VecDeque<u64>,
    evidence: PeerEvidence,
}

/// Routers whose requests workers have reported.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
enum PeerEvidence {
    /// No request was reported, so there may be other routers.
    #[default]
    Nobody,
    /// Only this router's own requests.
    Own,
    /// Another router's request, last at this time.
    PeerRouters(Instant),
}

impl PeerRouters {
    /// Records that this router sends a request.
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

    /// Records that a worker has reported a request.
    pub(crate) fn named(&mut self, request: &RequestId, now: Instant) {
        if !self.own.contains(&self.hasher.hash_one(request)) {
            self.evidence = PeerEvidence::PeerRouters(now);
        } else if self.evidence == PeerEvidence::Nobody {
            self.evidence = PeerEvidence::Own;
        }
    }

    /// Returns whether there may be other routers: a worker has recently reported another router's request, or no
    /// worker has reported any request.
    pub(crate) fn may_be_there(&self, now: Instant) -> bool {
        match self.evidence {
            PeerEvidence::Nobody => true,
            PeerEvidence::Own => false,
            PeerEvidence::PeerRouters(at) => now.saturating_duration_since(at) < ASSUMED_FOR,
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
    fn other_routers_are_assumed_for_a_while_after_a_foreign_request() {
        let (mut peer_routers, now) = (PeerRouters::default(), Instant::now());
        assert!(peer_routers.may_be_there(now), "nothing is known yet");
        peer_routers.sent(&id(0));
        peer_routers.named(&id(0), now);
        peer_routers.named(&id(0), now);
        assert!(!peer_routers.may_be_there(now), "both reports name the router's own request");
        peer_routers.named(&id(1), now);
        assert!(peer_routers.may_be_there(now));
        assert!(peer_routers.may_be_there(now + ASSUMED_FOR - Duration::from_millis(1)));
        assert!(!peer_routers.may_be_there(now + ASSUMED_FOR));
    }

    #[test]
    fn only_the_latest_own_requests_are_known() {
        let (mut peer_routers, now) = (PeerRouters::default(), Instant::now());
        (0..=OWN_MAX).for_each(|n| peer_routers.sent(&id(n)));
        (1..=OWN_MAX).for_each(|n| peer_routers.named(&id(n), now));
        assert!(!peer_routers.may_be_there(now));
        assert_eq!((peer_routers.own.len(), peer_routers.order.len()), (OWN_MAX, OWN_MAX));
        peer_routers.named(&id(0), now);
        assert!(peer_routers.may_be_there(now), "the oldest is forgotten");
    }
}
