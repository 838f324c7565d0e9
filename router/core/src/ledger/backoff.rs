//! Backoff before a choice if other routers send requests to the same workers.
//!
//! Routers that choose at the same instant see the same fleet and choose the same worker, and no report of a worker is
//! fast enough to prevent it. So each waits for a random time, as stations on a shared medium do, and sees the requests
//! of the routers that went first. The random number depends on the prompt's first uncached block, so that requests
//! with the same new prefix wait equally long. The time is a small part of the prompt's prefill, which is what a
//! collision costs.
//!
//! Workers report every request that they get; a request that this router has not sent came from another router. The
//! router remembers the hashes of its own latest requests, because a worker reports a request milliseconds after it was
//! sent. Not here: the waiting itself (the router's `lifecycle`).

use std::collections::{HashSet, VecDeque};
use std::hash::{BuildHasher, RandomState};
use std::time::{Duration, Instant};

use rand::{Rng, RngExt};
use warmpath_common::ids::RequestId;
use warmpath_common::mix::mix;

use super::candidates::serving;
use super::{Ledger, RouteRequest};
use crate::fleet::FleetView;
use crate::routing::choose::{Policy, of_least_cost};
use crate::routing::cost::Speeds;

/// Number of its own requests that a router knows.
///
/// Source: own choice: the requests of some seconds at a thousand a second; a forgotten one counts as another router's,
/// which costs a backoff.
const OWN_MAX: usize = 4096;

/// Time for which other routers are assumed to exist after one of their requests.
///
/// Source: own choice: routers come and go with deployments and autoscaling, over minutes.
const ASSUMED_FOR: Duration = Duration::from_secs(600);

/// Longest backoff, as a share of the prompt's prefill time at the cheapest worker.
///
/// Source: docs/decisions/0040-backoff.md, by simulation and with real processes: with a quarter of this share the p99
/// of several routers was 19 to 81 % above that of one router.
const BACKOFF_SHARE: f64 = 0.04;

/// Shortest useful backoff: reports of a request arrive up to this late. With a shorter one, a router sees only some of
/// the others' requests, and routers no longer choose alike.
///
/// Source: docs/decisions/0040-backoff.md, with real processes.
const BACKOFF_MIN: Duration = Duration::from_millis(20);

/// Longest backoff, however long the prompt.
///
/// Source: own choice: by then every report has arrived.
const BACKOFF_MAX: Duration = Duration::from_millis(100);

/// Interval at which a backing-off request checks again for other routers.
///
/// Source: own choice: a worker's report arrives some milliseconds later.
pub const BACKOFF_POLL: Duration = Duration::from_millis(5);

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

impl Ledger {
    /// Returns whether a request may need a backoff, also before its prompt is tokenized.
    pub fn may_back_off(&self, fleet: &FleetView, request: &RouteRequest<'_>) -> bool {
        let is_by_cost = self.options.policy == Policy::PredictedTtft;
        if !is_by_cost || !request.tried.is_empty() || !self.peer_routers.may_be_there(request.now) {
            return false;
        }
        let mut serving = serving(fleet, request);
        // A stock server reports no requests.
        serving.retain(|worker| worker.stock.is_none());
        let fastest = Speeds::assumed(serving.iter().map(|worker| &worker.load.rates)).prefill_tokens_per_ms;
        serving.len() > 1 && !backoff_of(f64::from(request.prompt.n_tokens()) / fastest).is_zero()
    }

    /// Returns the backoff before a request's choice: zero if there are no other routers, or it is not worthwhile.
    pub fn backoff(&self, fleet: &FleetView, request: &RouteRequest<'_>, rng: &mut impl Rng) -> Duration {
        // Prompts with the same start wait equally long, and so still choose alike.
        let jitter = match request.prompt.first_new_block() {
            0 => rng.random(),
            first_new_block => mix(first_new_block),
        };
        self.backoff_max(fleet, request).mul_f64(jitter as f64 / u64::MAX as f64)
    }

    /// Returns the longest backoff that [`Ledger::backoff`] may return.
    pub fn backoff_max(&self, fleet: &FleetView, request: &RouteRequest<'_>) -> Duration {
        if !self.may_back_off(fleet, request) {
            return Duration::ZERO;
        }
        let held = self.holdings(fleet, request.prompt);
        let request = &RouteRequest { prompt: request.prompt.with_matches(held.matches.as_deref()), ..*request };
        let field = self.candidates(fleet, (request, &held.peers)).unwrap_or_default();
        of_least_cost(&field).map_or(Duration::ZERO, |cheapest| backoff_of(cheapest.cost.prefill_ms))
    }
}

/// Returns the longest backoff for a prompt with this prefill time.
fn backoff_of(prefill_ms: f64) -> Duration {
    let ms = (BACKOFF_SHARE * prefill_ms).min(BACKOFF_MAX.as_secs_f64() * 1e3);
    let backoff_of = Duration::from_secs_f64(ms / 1e3);
    if backoff_of < BACKOFF_MIN { Duration::ZERO } else { backoff_of }
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

    #[test]
    fn the_backoff_is_a_share_of_the_prompts_time_within_its_bounds() {
        assert_eq!(backoff_of(499.0), Duration::ZERO);
        assert_eq!(backoff_of(500.0), Duration::from_millis(20));
        assert_eq!(backoff_of(750.0), Duration::from_millis(30));
        assert_eq!(backoff_of(60_000.0), BACKOFF_MAX);
        assert_eq!(backoff_of(f64::INFINITY), BACKOFF_MAX);
        assert_eq!(backoff_of(0.0), Duration::ZERO);
    }
}
