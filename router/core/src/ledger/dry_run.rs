//! A choice without consequences: who would get a request, what it would cost everywhere, and why some are out of it.
//!
//! Not here: how it is shown (the router's `http`). The idea: the same books, the same candidates, the same choice as for
//! a request; nothing is booked, nobody's turn passes.

use std::time::Duration;

use rand::Rng;

use super::health::Trust;
use super::{Ledger, NoWorker, RouteRequest, serving};
use crate::WorkerIdx;
use crate::fleet::{FleetView, Unavailable};
use crate::overload::admission::Capacity;
use crate::routing::choose::{Candidate, Reason, choose, reason};
use crate::routing::cost::Speeds;

/// Is a worker that serves the model, weighed whether or not it can be chosen.
#[derive(Debug, Clone, Copy)]
pub struct Scored<'a> {
    /// Is what the request would cost there; of matches that are doubted, what is believed.
    pub candidate: Candidate<'a>,
    /// Says why it cannot be chosen; absent where it can.
    pub unavailable: Option<Unavailable>,
    /// Says whether it can start the request soon; if nobody has room, requests wait.
    pub has_capacity: bool,
}

/// Is a choice and what it rests on.
#[derive(Debug)]
pub struct DryRun<'a> {
    /// Lists the workers that serve the model, in the order of configuration.
    pub workers: Vec<Scored<'a>>,
    /// Names the worker that would be chosen and says why, or why none would.
    pub choice: Result<(WorkerIdx, Reason), NoWorker>,
    /// Is how long the request would be held back before its choice, at most.
    pub backoff_max: Duration,
}

impl Ledger {
    /// Returns the choice that a request would get now.
    pub fn dry_run<'a>(&self, fleet: &'a FleetView, request: &RouteRequest<'_>, rng: &mut impl Rng) -> DryRun<'a> {
        let backoff_max = self.backoff_max(fleet, request);
        let corrected_matches = self.corrected_matches(request.prompt);
        let request = &RouteRequest { prompt: request.prompt.with_matches(corrected_matches.as_deref()), ..*request };
        let serving = serving(fleet, request);
        let assumed = Speeds::assumed(serving.iter().map(|worker| &worker.load.rates));
        let score = |worker| {
            let (candidate, capacity) = self.score(worker, request, assumed);
            let is_failing = self.account(worker.idx).health.trust(request.now) == Trust::Failing;
            let failing = is_failing.then_some(Unavailable::BreakerOpen);
            let unavailable = self.unavailable(worker, request).or(failing);
            Scored { candidate, unavailable, has_capacity: capacity == Capacity::Yes }
        };
        let mut workers: Vec<Scored<'_>> = serving.into_iter().map(score).collect();
        let choice = self.candidates(fleet, request).and_then(|candidates| {
            // What a request takes from others depends on all candidates.
            for candidate in &candidates {
                let same = workers.iter_mut().find(|scored| scored.candidate.worker.idx == candidate.worker.idx);
                same.expect("a candidate serves the model").candidate = *candidate;
            }
            let chosen =
                choose(self.options.policy, &candidates, self.turn(request), rng).ok_or_else(NoWorker::unserved)?;
            Ok((chosen.worker.idx, reason(self.options.policy, &candidates, chosen, request.prompt)))
        });
        DryRun { workers, choice, backoff_max }
    }
}
