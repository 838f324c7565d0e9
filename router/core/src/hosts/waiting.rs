//! The requests of this router that wait for models, and the demand that follows from them.
//!
//! All requests for a model have one demand, which is repeated while any of them waits; the host forgets it otherwise.
//! If the client of the last one leaves, the demand is withdrawn, so that no model leaves its place for nobody.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::time::Instant;

use warmpath_common::host::Demand;

/// A waiting request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct WaitId {
    arrived_at: Instant,
    nth: u64,
}

/// Whether others already wait for the model.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Entered {
    /// The request is the first, so its demand has to be posted from now on.
    First(WaitId),
    /// The demand of others counts it.
    Further(WaitId),
}

/// Requests that wait, by model.
#[derive(Debug, Default)]
pub struct WaitingRequests {
    models: HashMap<String, BTreeSet<WaitId>>,
    /// Models whose last request was withdrawn, and whose host has not been told.
    withdrawn: HashSet<String>,
    n_entered: u64,
}

impl WaitingRequests {
    /// Adds a request that arrived at this time.
    pub fn enter(&mut self, model: &str, arrived_at: Instant) -> Entered {
        let id = WaitId { arrived_at, nth: self.n_entered };
        self.n_entered += 1;
        self.withdrawn.remove(model);
        if let Some(waiting) = self.models.get_mut(model) {
            waiting.insert(id);
            return Entered::Further(id);
        }
        self.models.insert(model.to_owned(), BTreeSet::from([id]));
        Entered::First(id)
    }

    /// Removes a request whose wait is over; its client may try again.
    pub fn leave(&mut self, model: &str, id: WaitId) {
        if let Some(waiting) = self.models.get_mut(model) {
            waiting.remove(&id);
        }
    }

    /// Removes a request whose client has left; returns whether it was the last one for the model.
    pub fn withdraw(&mut self, model: &str, id: WaitId) -> bool {
        self.leave(model, id);
        let is_last = self.models.get(model).is_some_and(BTreeSet::is_empty);
        if is_last {
            self.withdrawn.insert(model.to_owned());
        }
        is_last
    }

    /// Returns the demand of all requests for a model. After the last one has left, it is `None` once, and the next
    /// request is the first again; if it was withdrawn, a demand of no requests comes before that.
    pub fn demand(&mut self, model: &str, router: &str, now: Instant) -> Option<Demand> {
        let waiting = self.models.get(model)?;
        if waiting.is_empty() && !self.withdrawn.remove(model) {
            self.models.remove(model);
            return None;
        }
        let oldest_arrival = waiting.first().map_or(now, |oldest| oldest.arrived_at);
        let oldest_wait_ms = now.saturating_duration_since(oldest_arrival).as_millis();
        Some(Demand {
            model: model.to_owned(),
            router: router.to_owned(),
            n_waiting: u32::try_from(waiting.len()).unwrap_or(u32::MAX),
            oldest_wait_ms: u64::try_from(oldest_wait_ms).unwrap_or(u64::MAX),
        })
    }

    /// Returns the number of waiting requests.
    pub fn n_waiting(&self) -> usize {
        self.models.values().map(BTreeSet::len).sum()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn id(entered: Entered) -> WaitId {
        match entered {
            Entered::First(id) | Entered::Further(id) => id,
        }
    }

    #[test]
    fn all_requests_for_a_model_have_one_demand_with_the_oldest_wait() {
        let (start, mut waiting) = (Instant::now(), WaitingRequests::default());
        let at = |ms| start + Duration::from_millis(ms);
        let first = waiting.enter("a", at(500));
        assert!(matches!(first, Entered::First(_)));
        let older = waiting.enter("a", at(100));
        assert!(matches!(older, Entered::Further(_)));
        assert!(matches!(waiting.enter("b", at(0)), Entered::First(_)), "another model has its own demand");
        let demand = |n_waiting, oldest_wait_ms| {
            Some(Demand { model: "a".into(), router: "r".into(), n_waiting, oldest_wait_ms })
        };
        assert_eq!(waiting.demand("a", "r", at(1_100)), demand(2, 1_000));
        waiting.leave("a", id(older));
        assert_eq!(waiting.demand("a", "r", at(1_100)), demand(1, 600));
        assert_eq!(waiting.n_waiting(), 2);
    }

    #[test]
    fn a_demand_is_withdrawn_once_the_client_of_its_last_request_has_left() {
        let (now, mut waiting) = (Instant::now(), WaitingRequests::default());
        let (first, second) = (waiting.enter("a", now), waiting.enter("a", now));
        assert!(!waiting.withdraw("a", id(first)));
        assert!(waiting.withdraw("a", id(second)));
        assert_eq!(waiting.demand("a", "r", now).map(|demand| demand.n_waiting), Some(0));
        assert_eq!(waiting.demand("a", "r", now), None, "once");
        // Another request in time needs the model.
        let first = waiting.enter("a", now);
        assert!(waiting.withdraw("a", id(first)));
        let second = waiting.enter("a", now);
        assert_eq!(waiting.demand("a", "r", now).map(|demand| demand.n_waiting), Some(1));
        waiting.leave("a", id(second));
        assert_eq!(waiting.demand("a", "r", now), None, "its client may try again");
    }

    #[test]
    fn the_demand_ends_after_the_last_request_and_begins_again_with_the_next() {
        let (now, mut waiting) = (Instant::now(), WaitingRequests::default());
        let first = waiting.enter("a", now);
        waiting.leave("a", id(first));
        assert!(matches!(waiting.enter("a", now), Entered::Further(_)), "the task that posts has not noticed yet");
        assert!(waiting.demand("a", "r", now).is_some());
        let ids: Vec<WaitId> = waiting.models["a"].iter().copied().collect();
        ids.into_iter().for_each(|id| waiting.leave("a", id));
        assert_eq!(waiting.demand("a", "r", now), None);
        assert!(matches!(waiting.enter("a", now), Entered::First(_)));
    }
}
