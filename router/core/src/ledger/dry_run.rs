//! A dry run of the choice: the worker that would get a request, its cost at every worker, and why some are
//! unavailable.
//!
//! State, candidates and choice are those of a request, but nothing is recorded. Not here: the output (the router's
//! `http`).

use std::time::Duration;

use super::candidates::serving;
use super::health::Trust;
use super::no_worker::NoWorker;
use super::route_request::RouteRequest;
use super::state::Ledger;
use crate::WorkerIdx;
use crate::fleet::{FleetView, Unavailable};
use crate::overload::admission::Capacity;
use crate::routing::choose::{Candidate, ChoiceReason, choose, reason};
use crate::routing::cost::Speeds;

/// A worker that serves the model, with its cost, whether or not it can be chosen.
#[derive(Debug, Clone, Copy)]
pub struct Scored<'a> {
    /// The request's cost there; stale blocks do not count as cached.
    pub candidate: Candidate<'a>,
    /// Cause why it cannot be chosen; `None` if it can.
    pub unavailable: Option<Unavailable>,
    /// Whether it can start the request soon; if no worker has capacity, requests wait.
    pub has_capacity: bool,
}

/// A choice and its inputs.
#[derive(Debug)]
pub struct DryRun<'a> {
    /// Workers that serve the model, in the order of configuration.
    pub workers: Vec<Scored<'a>>,
    /// The worker that would be chosen and the reason, or why none would.
    pub choice: Result<(WorkerIdx, ChoiceReason), NoWorker>,
    /// Longest backoff before the request's choice.
    pub backoff_max: Duration,
}

impl Ledger {
    /// Returns the choice that a request would get now.
    pub fn dry_run<'a>(&self, fleet: &'a FleetView, request: &RouteRequest<'_>) -> DryRun<'a> {
        let backoff_max = self.backoff_max(fleet, request);
        let prefixes = self.cached_prefixes(fleet, request.prompt);
        let request = &RouteRequest { prompt: request.prompt.with_matches(prefixes.matches.as_deref()), ..*request };
        let serving = serving(fleet, request);
        let assumed_speeds = Speeds::assumed(serving.iter().map(|worker| &worker.load.rates));
        let score = |worker| {
            let (candidate, capacity) = self.score(worker, request, assumed_speeds, &prefixes.peers);
            let is_failing = self.health.trust(worker.idx, request.now) == Trust::Failing;
            let failing = is_failing.then_some(Unavailable::BreakerOpen);
            let unavailable = self.unavailable(worker, request).or(failing);
            Scored { candidate, unavailable, has_capacity: capacity == Capacity::Yes }
        };
        let mut workers: Vec<Scored<'_>> = serving.into_iter().map(score).collect();
        let choice = self.candidates(fleet, request, &prefixes.peers).and_then(|candidates| {
            // The delay of other requests depends on all candidates.
            for candidate in &candidates {
                let same = workers.iter_mut().find(|worker| worker.candidate.worker.idx == candidate.worker.idx);
                same.expect("a candidate serves the model").candidate = *candidate;
            }
            let winner = choose(self.options.policy, &candidates, self.ties(request)).ok_or_else(NoWorker::unserved)?;
            Ok((winner.worker.idx, reason(self.options.policy, &candidates, winner, request.prompt)))
        });
        DryRun { workers, choice, backoff_max }
    }
}
