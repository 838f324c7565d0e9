//! How long a router listens before it chooses, where other routers send to the same workers.
//!
//! Not here: who the others are (`peer_routers`), the waiting itself (the router's `lifecycle`).
//! The idea: routers that choose at one instant see the same fleet and choose the same worker, and nothing that workers say
//! can tell them of each other in no time. So each waits for a while by lot, as a radio station does before it sends, and hears
//! of those who went first. The lot is drawn by what is new of the prompt, so that siblings, which belong together, wait alike. The
//! while is a small part of what the prompt takes to compute, which is what a collision costs.

use std::time::Duration;

use rand::{Rng, RngExt};
use warmpath_common::mix::mix;

use super::{Ledger, RouteRequest, serving};
use crate::fleet::FleetView;
use crate::routing::choose::{Policy, of_least_cost};
use crate::routing::cost::Speeds;

/// Is the longest that is listened, as a part of the time that the prompt takes to compute where that is cheapest.
///
/// Source: docs/decisions/0040-listening.md, by simulation and with real processes, where a quarter of it left the p99 19 to 81 % above one
/// router's.
const BACKOFF_SHARE: f64 = 0.04;

/// Is the shortest such while that is of use: what a worker says of a request is heard up to so much later. Routers that listen
/// for less hear of some requests and not of others, and no longer decide alike.
///
/// Source: docs/decisions/0040-listening.md, with real processes.
const BACKOFF_MIN: Duration = Duration::from_millis(20);

/// Is the longest such while, however long the prompt.
///
/// Source: own choice: by then whatever could be heard has been.
const BACKOFF_MAX: Duration = Duration::from_millis(100);

/// Is the pause between two looks of who listens whether there is anybody to listen to.
///
/// Source: own choice: what a worker says is heard some milliseconds later.
pub const BACKOFF_POLL: Duration = Duration::from_millis(5);

impl Ledger {
    /// Returns whether a request may have to be held back, whatever the workers hold of its prompt, which need not be known yet.
    pub fn may_back_off(&self, fleet: &FleetView, request: &RouteRequest<'_>) -> bool {
        let is_by_cost = self.options.policy == Policy::PredictedTtft;
        if !is_by_cost || !request.tried.is_empty() || !self.peer_routers.may_be_there(request.now) {
            return false;
        }
        let mut serving = serving(fleet, request);
        // A stock server names nobody.
        serving.retain(|worker| worker.stock.is_none());
        let fastest = Speeds::assumed(serving.iter().map(|worker| &worker.load.rates)).prefill_tokens_per_ms;
        serving.len() > 1 && !backoff_of(f64::from(request.prompt.n_tokens()) / fastest).is_zero()
    }

    /// Returns how long a request should be held back before its choice: zero where nobody else sends or it does not pay.
    pub fn backoff(&self, fleet: &FleetView, request: &RouteRequest<'_>, rng: &mut impl Rng) -> Duration {
        // What begins alike is held back alike, and so still decides alike.
        let jitter = match request.prompt.first_new_block() {
            0 => rng.random(),
            first_new_block => mix(first_new_block),
        };
        self.backoff_max(fleet, request).mul_f64(jitter as f64 / u64::MAX as f64)
    }

    /// Returns the longest that [`Ledger::backoff`] may say.
    pub fn backoff_max(&self, fleet: &FleetView, request: &RouteRequest<'_>) -> Duration {
        if !self.may_back_off(fleet, request) {
            return Duration::ZERO;
        }
        let corrected_matches = self.corrected_matches(request.prompt);
        let request = &RouteRequest { prompt: request.prompt.with_matches(corrected_matches.as_deref()), ..*request };
        let field = self.candidates(fleet, request).unwrap_or_default();
        of_least_cost(&field).map_or(Duration::ZERO, |cheapest| backoff_of(cheapest.cost.prefill_ms))
    }
}

/// Returns the longest that is listened before a prompt that takes so long to compute.
fn backoff_of(prefill_ms: f64) -> Duration {
    let ms = (BACKOFF_SHARE * prefill_ms).min(BACKOFF_MAX.as_secs_f64() * 1e3);
    let backoff_of = Duration::from_secs_f64(ms / 1e3);
    if backoff_of < BACKOFF_MIN { Duration::ZERO } else { backoff_of }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_listened_is_a_part_of_the_prompts_time_between_its_bounds() {
        assert_eq!(backoff_of(499.0), Duration::ZERO);
        assert_eq!(backoff_of(500.0), Duration::from_millis(20));
        assert_eq!(backoff_of(750.0), Duration::from_millis(30));
        assert_eq!(backoff_of(60_000.0), BACKOFF_MAX);
        assert_eq!(backoff_of(f64::INFINITY), BACKOFF_MAX);
        assert_eq!(backoff_of(0.0), Duration::ZERO);
    }
}
