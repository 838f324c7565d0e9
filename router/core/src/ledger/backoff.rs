//! Backoff before a choice if other routers send requests to the same workers.
//!
//! Routers that choose at the same instant see the same fleet and choose the same worker, and no report of a worker is
//! fast enough to prevent it. So each waits for a random time, as stations on a shared medium do, and sees the requests
//! of the routers that went first. The random number depends on the prompt's first uncached block, so that requests
//! with the same new prefix wait equally long. The time is a small part of the prompt's prefill, which is what a
//! collision costs.
//!
//! Not here: whether there are other routers (`records::peer_routers`), the waiting itself (the router's `lifecycle`).

use std::time::Duration;

use rand::{Rng, RngExt};
use warmpath_common::mix::mix;

use super::candidates::serving;
use super::route_request::RouteRequest;
use super::state::Ledger;
use crate::fleet::FleetView;
use crate::routing::choose::{Policy, of_least_cost};
use crate::routing::cost::Speeds;

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
        let prefixes = self.cached_prefixes(fleet, request.prompt);
        let request = &RouteRequest { prompt: request.prompt.with_matches(prefixes.matches.as_deref()), ..*request };
        let candidates = self.candidates(fleet, request, &prefixes.peers).unwrap_or_default();
        of_least_cost(&candidates).map_or(Duration::ZERO, |cheapest| backoff_of(cheapest.cost.prefill_ms))
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
