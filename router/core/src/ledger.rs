//! A router's choices and their records: a request gets a worker, and counts there at once.
//!
//! [`Ledger::choose`] is the decision, in one pass: the cached prefixes, the candidates with their costs
//! (`candidates`), the choice between them (`routing::choose`), the records (`records`, `health`). One lock guards it.

mod backoff;
mod candidates;
mod dry_run;
mod forecast;
pub mod health;
mod no_worker;
pub mod records;
mod route_request;
mod state;

pub use backoff::BACKOFF_POLL;
pub use dry_run::{DryRun, Scored};
pub use no_worker::NoWorker;
pub use records::{pending_prefixes, recent_work, stale_blocks};
pub use route_request::{Decision, RouteRequest};
pub use state::{Ledger, LedgerOptions, Ticket};

use candidates::answer_share_ms;
use warmpath_common::block_hash::BlockKey;

use crate::fleet::FleetView;
use crate::routing::choose::{Candidate, ChoiceReason, PromptView, TieBreak, choose, reason};

/// Most responses of one request that count. Source: own choice: a worker has fewer places, and refuses more.
const SEQUENCES_MAX: u32 = 1024;

impl Ledger {
    /// Chooses a worker and records the request as in flight there.
    ///
    /// Errors: [`NoWorker`], with the causes, if no worker can take it.
    pub fn choose(&mut self, fleet: &FleetView, request: &RouteRequest<'_>) -> Result<(Decision, Ticket), NoWorker> {
        let policy = self.options.policy;
        self.choose_by(fleet, request, |candidates, ties| choose(policy, candidates, ties))
    }

    /// Chooses as [`Ledger::choose`] does, with `pick` in place of the policy.
    ///
    /// Errors: [`NoWorker`], with the causes, if no worker can take it.
    pub fn choose_by(
        &mut self,
        fleet: &FleetView,
        request: &RouteRequest<'_>,
        pick: impl for<'c, 'a> FnOnce(&'c [Candidate<'a>], TieBreak) -> Option<&'c Candidate<'a>>,
    ) -> Result<(Decision, Ticket), NoWorker> {
        // What the workers hold of the prompt, which of them can take it, and what it costs there.
        self.sent.expire(request.now);
        let prefixes = self.cached_prefixes(fleet, request.prompt);
        let request = &RouteRequest { prompt: request.prompt.with_matches(prefixes.matches.as_deref()), ..*request };
        let candidates = self.candidates(fleet, request, &prefixes.peers)?;

        // The choice, and the predictions for it.
        let candidate = pick(&candidates, self.ties(request)).ok_or_else(NoWorker::unserved)?;
        let n_sequences = request.n_sequences.clamp(1, SEQUENCES_MAX);
        let why = reason(self.options.policy, &candidates, candidate, request.prompt);
        let decision = Decision {
            worker: candidate.worker.idx,
            slot: candidate.found.filter(|_| candidate.cached_blocks > 0).and_then(|prefix_match| prefix_match.slot),
            expected_block: expected_block(request.prompt, candidate.cached_blocks),
            cached_tokens: candidate.work.reused_tokens(),
            transfer: candidate.transfer,
            fetched_tokens: candidate.work.fetched_tokens,
            reason: if request.tried.is_empty() { why } else { ChoiceReason::Retry },
            cost: candidate.cost,
            service_ms: candidate.cost.prefill_ms + f64::from(n_sequences) * answer_share_ms(&candidate.load),
        };

        // The records, which the next choice reads.
        let worker = decision.worker;
        let prefill_tokens = u64::from(candidate.work.computed_tokens());
        // Fetched state is stored like computed state.
        self.reuse_ratio.count(u64::from(candidate.work.cached_tokens), candidate.work.uncached_tokens() as u64);
        self.recent_work.give(worker, prefill_tokens);
        // A stock server computes a prefix for each of several requests that arrive while it is being computed.
        let shared_keys = if candidate.worker.stock.is_none() { request.prompt.keys() } else { &[] };
        let n_cached_blocks = candidate.found.map_or(0, |prefix_match| prefix_match.blocks);
        let pending_blocks = self.pending_prefixes.add(worker, shared_keys, n_cached_blocks);
        self.health.sent(worker, request.quota(), request.now);
        self.peer_routers.sent(request.request_id);
        let service_ms = decision.service_ms;
        let number = self.sent.add(worker, request.request_id, n_sequences, prefill_tokens, service_ms, request.now);
        Ok((decision, Ticket { number, worker, pending_blocks }))
    }
}

fn expected_block(prompt: PromptView<'_>, cached_blocks: u32) -> Option<BlockKey> {
    match prompt {
        PromptView::Known { keys, .. } => keys.get((cached_blocks as usize).checked_sub(1)?).copied(),
        PromptView::Estimated { .. } => None,
    }
}

#[cfg(test)]
mod tests;
