//! Tests of faults: requests that fail everywhere harm no worker, failing workers are detected and avoided.

use std::sync::Arc;

use proptest::prelude::*;
use warmpath_common::ids::RequestId;

use super::*;
use crate::fleet::FleetView;
use crate::ledger::{Ledger, LedgerOptions, NoWorker, RouteRequest};
use crate::routing::choose::PromptView;
use crate::testing::{model, worker};

/// A fleet in which some workers fail every request.
struct World {
    ledger: Ledger,
    fleet: FleetView,
    sick: Vec<bool>,
    now: Instant,
    n_requests: u32,
}

/// Result of a request.
#[derive(Debug, PartialEq, Eq)]
enum Came {
    Answered { n_attempts: usize },
    GivenUp,
}

impl World {
    fn new(sick: &[bool]) -> Self {
        let workers = (0..sick.len() as u32).map(|idx| Arc::new(worker(idx))).collect();
        let ledger = Ledger::new(LedgerOptions::default());
        Self {
            ledger,
            fleet: FleetView { workers, ..FleetView::default() },
            sick: sick.to_vec(),
            now: Instant::now(),
            n_requests: 0,
        }
    }

    fn choose(&mut self, tried: &[WorkerIdx]) -> Result<WorkerIdx, NoWorker> {
        self.n_requests += 1;
        let request_id = RequestId::new(&format!("r{}", self.n_requests)).expect("a request id");
        let model = model();
        let request = RouteRequest {
            request_id: &request_id,
            model_name: Some("m"),
            account: None,
            model: &model,
            wanted: None,
            prompt: PromptView::Estimated { n_tokens: 100 },
            tried,
            awaited: &[],
            n_sequences: 1,
            now: self.now,
        };
        let (decision, ticket) = self.ledger.choose(&self.fleet, &request)?;
        self.ledger.ended(ticket);
        Ok(decision.worker)
    }

    /// Sends a request as the router does; a `killer` fails at every worker.
    fn send(&mut self, killer: Option<WorkerFailure>, attempts_max: usize) -> Came {
        let mut failures: Vec<FailedAttempt> = Vec::new();
        while failures.len() < attempts_max {
            let tried: Vec<_> = failures.iter().map(|failed| failed.worker).collect();
            let Ok(chosen) = self.choose(&tried) else {
                assert_eq!(tried.len(), self.sick.len(), "every worker was tried");
                return Came::GivenUp;
            };
            let sick = self.sick[chosen.0 as usize].then_some(WorkerFailure::Error);
            let Some(failure) = killer.or(sick) else {
                self.ledger.health.answered(chosen, &failures, self.now);
                return Came::Answered { n_attempts: failures.len() + 1 };
            };
            self.ledger.health.failed(chosen, failure, self.now);
            failures.push(FailedAttempt { worker: chosen, failure });
        }
        Came::GivenUp
    }

    fn breakers(&self) -> Vec<BreakerState> {
        (0..self.sick.len() as u32).map(|idx| self.ledger.health.breaker(WorkerIdx(idx), self.now)).collect()
    }
}

#[test]
fn a_request_that_fails_everywhere_opens_no_breaker_however_often_it_is_sent() {
    for n_workers in [1, 2, 3, 8] {
        let mut world = World::new(&vec![false; n_workers]);
        for _ in 0..40 {
            assert_eq!(world.send(Some(WorkerFailure::Broken), 3), Came::GivenUp);
            assert_eq!(world.send(None, 3), Came::Answered { n_attempts: 1 });
        }
        assert!(world.breakers().iter().all(|state| *state == BreakerState::Closed));
    }
}

#[test]
fn a_worker_whose_failed_requests_succeed_elsewhere_is_suspected_and_opens_its_breaker() {
    let mut world = World::new(&[true, false]);
    assert_eq!(world.send(None, 3), Came::Answered { n_attempts: 2 });
    assert_eq!(world.send(None, 3), Came::Answered { n_attempts: 1 }, "later requests go to another worker");
    for _ in 0..20 {
        world.now += Duration::from_millis(1001);
        world.send(None, 3);
    }
    assert_eq!(world.breakers(), [BreakerState::Open, BreakerState::Closed]);
    world.sick[0] = false;
    world.now += Duration::from_secs(8);
    // With a half-open breaker it gets one request, and from then on counts as healthy.
    (0..2).for_each(|_| assert_eq!(world.send(None, 3), Came::Answered { n_attempts: 1 }));
    assert_eq!(world.breakers(), [BreakerState::Closed; 2]);
}

#[test]
fn a_worker_that_fails_is_the_last_resort() {
    let mut world = World::new(&[false, false]);
    world.choose(&[]).expect("both are healthy");
    for _ in 0..3 {
        world.ledger.health.failed(WorkerIdx(0), WorkerFailure::Connect, world.now);
    }
    assert_eq!(world.breakers()[0], BreakerState::Open);
    (0..4).for_each(|_| assert_eq!(world.choose(&[]), Ok(WorkerIdx(1))));
    assert_eq!(world.choose(&[WorkerIdx(1)]), Ok(WorkerIdx(0)), "there is no other worker");
    world.ledger.health.failed(WorkerIdx(1), WorkerFailure::Full, world.now);
    let refused = world.choose(&[]).expect_err("the other has capacity soon");
    assert_eq!(refused.to_string(), "no worker can take the request: 1 full, 1 failing");
    assert!(refused.is_overload());
}

#[test]
fn failures_without_a_known_cause_change_no_breaker() {
    let mut world = World::new(&[false]);
    world.choose(&[]).expect("it is healthy");
    for failure in [
        WorkerFailure::Shortage,
        WorkerFailure::Timeout,
        WorkerFailure::Lost,
        WorkerFailure::Full,
        WorkerFailure::Unready,
    ] {
        (0..10).for_each(|_| world.ledger.health.failed(WorkerIdx(0), failure, world.now));
    }
    assert_eq!(world.ledger.health.trust(WorkerIdx(0), world.now), Trust::Sound);
}

proptest! {
    #[test]
    fn only_failing_workers_are_avoided_whatever_requests_arrive(
        sick in prop::collection::vec(any::<bool>(), 1..6),
        requests in prop::collection::vec((prop::option::weighted(0.5, any::<bool>()), 0_u64..1500), 1..120),
        attempts_max in 1_usize..5,
    ) {
        let mut world = World::new(&sick);
        for (killer, pause_ms) in requests {
            world.now += Duration::from_millis(pause_ms);
            let killer = killer.map(|closes| if closes { WorkerFailure::Broken } else { WorkerFailure::Error });
            let came = world.send(killer, attempts_max);
            if killer.is_none() && !sick.contains(&true) {
                prop_assert_eq!(came, Came::Answered { n_attempts: 1 });
            }
            for (state, is_sick) in world.breakers().into_iter().zip(&sick) {
                prop_assert!(*is_sick || state == BreakerState::Closed);
            }
            let are_all_sick = !sick.contains(&false);
            prop_assert!(!are_all_sick || world.breakers().iter().all(|state| *state == BreakerState::Closed));
        }
        // With one attempt each, requests reach healthy workers once the others are suspected.
        let n_sick = sick.iter().filter(|is_sick| **is_sick).count();
        let n_failed = (0..20).filter(|_| world.send(None, 1) == Came::GivenUp).count();
        prop_assert!(n_sick == sick.len() || n_failed <= n_sick, "{} of 20 failed", n_failed);
    }
}
