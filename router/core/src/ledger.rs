//! The requests in flight of one router: where each was sent, whether its worker has reported it, which workers have
//! failed.
//!
//! Reports are some milliseconds old, and within that time a burst would all go to one worker. So a request's work is
//! added to its worker at once. It is removed when the worker reports the request, when the response ends, or after a
//! timeout.
//!
//! Not here: the workers' own reports (`fleet`), the comparison of candidates (`choose`).

mod backoff;
mod candidates;
mod dry_run;
mod health;
mod pause;
pub mod pending_prefixes;
pub mod recent_work;
pub mod stale_blocks;
mod transfer_rates;

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::time::{Duration, Instant};

pub use backoff::BACKOFF_POLL;
pub use dry_run::{DryRun, Scored};
use health::Health;
use pause::Quota;
use warmpath_common::block_hash::BlockKey;
use warmpath_common::ids::{RequestId, SlotId};
use warmpath_common::model::{Capability, ModelInfo};
use warmpath_common::summary::Change;

use crate::WorkerIdx;
use crate::fleet::{FleetView, Unavailable};
use crate::ledger::backoff::PeerRouters;
use crate::ledger::pending_prefixes::{PendingBlocks, PendingPrefixes};
use crate::ledger::recent_work::{RecentWork, ReuseRatio};
use crate::ledger::stale_blocks::StaleBlocks;
use crate::ledger::transfer_rates::TransferRates;
use crate::overload::admission_queue::TenantKey;
use crate::routing::choose::{Candidate, ChoiceReason, Policy, PromptView, TieBreak, choose, reason};
use crate::routing::cost::{Cost, Unreported, WorkerLoad};
use crate::routing::transfer::Transfer;

/// Weight of the newest request in the average service time.
///
/// Source: own choice: the last ten or so count.
const SERVICE_WEIGHT: f64 = 0.1;

/// Longest time for which a request's work counts although its worker has not reported the request.
///
/// Source: own choice: a live worker reports its load at least every second.
const UNREPORTED_AGE_MAX: Duration = Duration::from_secs(5);

/// Settings of a router's choices.
#[derive(Debug, Clone, Copy, Default)]
pub struct LedgerOptions {
    /// Routing policy.
    pub policy: Policy,
    /// Predicted wait up to which a worker without a free slot takes requests; `None` for any wait.
    pub worker_wait_max: Option<Duration>,
    /// Assumed bandwidth of KV transfers between two workers until it is measured; `None` for no transfers. Units:
    /// bytes per millisecond.
    pub kv_bytes_per_ms: Option<f64>,
}

/// Most responses of one request that count. Source: own choice: a worker has fewer places, and refuses more.
const SEQUENCES_MAX: u32 = 1024;

/// A request's input to the choice.
#[derive(Debug, Clone, Copy)]
pub struct RouteRequest<'a> {
    /// Id of the request.
    pub request_id: &'a RequestId,
    /// Name of the requested model; the worker must know it, because it gets the same body.
    pub model_name: Option<&'a str>,
    /// Account for which a server may have a quota; `None` if the client sends no key of its own.
    pub account: Option<TenantKey>,
    /// The model of that name.
    pub model: &'a ModelInfo,
    /// Capability that the worker needs; `None` if any worker will do.
    pub wanted: Option<Capability>,
    /// The prompt.
    pub prompt: PromptView<'a>,
    /// Workers at which this request has failed.
    pub tried: &'a [WorkerIdx],
    /// Workers that the request may not use now, because earlier requests wait for them.
    pub awaited: &'a [WorkerIdx],
    /// Number of responses that the request asks for, such as `n` of each prompt.
    pub n_sequences: u32,
    /// The current time.
    pub now: Instant,
}

impl RouteRequest<'_> {
    fn quota(&self) -> Quota<'_> {
        Quota { account: self.account, model_name: self.model_name }
    }
}

/// A request's worker, and the predictions for it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Decision {
    /// The worker.
    pub worker: WorkerIdx,
    /// Slot with the matched prefix; a hint.
    pub slot: Option<SlotId>,
    /// Last block whose reuse is expected.
    pub expected_block: Option<BlockKey>,
    /// Expected reuse, in whole blocks, of the worker's own and of fetched state. Units: tokens.
    pub cached_tokens: u32,
    /// State that the worker is to fetch from another one.
    pub transfer: Option<Transfer>,
    /// Part of the expected reuse that it is to fetch. Units: tokens.
    pub fetched_tokens: u32,
    /// Reason of the choice.
    pub reason: ChoiceReason,
    /// Cost of the request at the worker.
    pub cost: Cost,
    /// Time that the request takes of the worker: its prefill, and its response's share of the slots. Units:
    /// milliseconds.
    pub service_ms: f64,
}

/// Receipt for a request that was sent; it must be given back to [`Ledger::ended`] once.
#[derive(Debug, PartialEq, Eq)]
pub struct Ticket {
    number: u64,
    worker: WorkerIdx,
    filling: PendingBlocks,
}

/// Reason why no worker gets the request: the number of unavailable workers by cause.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NoWorker {
    /// Number of workers by cause.
    pub reasons: BTreeMap<Unavailable, usize>,
    /// Workers whose only cause is that they have no capacity.
    pub busy: Vec<WorkerIdx>,
    /// Time until the first of the workers that have refused requests takes some again; `None` if none has.
    pub pause: Option<Duration>,
}

impl NoWorker {
    fn unserved() -> Self {
        Self { reasons: BTreeMap::new(), busy: Vec::new(), pause: None }
    }

    /// Returns the refusal for workers that are unavailable for these causes.
    pub fn counting(reasons: impl IntoIterator<Item = Unavailable>) -> Self {
        let mut counted = BTreeMap::new();
        reasons.into_iter().for_each(|why| *counted.entry(why).or_insert(0) += 1);
        Self { reasons: counted, busy: Vec::new(), pause: None }
    }

    /// Returns the causes as a text, such as `2 down, 1 draining`.
    pub fn listed(&self) -> String {
        let reasons: Vec<_> = self.reasons.iter().map(|(why, n)| format!("{n} {}", why.label())).collect();
        reasons.join(", ")
    }

    /// Returns whether only the load is the cause: a worker serves and has no capacity.
    pub fn is_overload(&self) -> bool {
        [Unavailable::Full, Unavailable::Busy].iter().any(|why| self.reasons.contains_key(why))
    }

    /// Returns whether a worker may have capacity within `patience`: one is busy, or takes requests again by then.
    pub fn may_end_within(&self, patience: Duration) -> bool {
        self.rest().is_none_or(|pause| pause <= patience)
    }

    /// Returns the time until the first of the workers that have refused such requests takes one again; `None` if a
    /// worker is only busy.
    pub fn rest(&self) -> Option<Duration> {
        self.pause.filter(|_| !self.reasons.contains_key(&Unavailable::Busy))
    }
}

impl fmt::Display for NoWorker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.reasons.is_empty() {
            return f.write_str("no worker serves the model");
        }
        write!(f, "no worker can take the request: {}", self.listed())
    }
}

impl std::error::Error for NoWorker {}

#[derive(Default)]
struct WorkerLedger {
    unreported: Unreported,
    n_in_flight: u32,
    health: Health,
    /// Average of [`Decision::service_ms`]; `None` until a request was sent. Units: milliseconds.
    service_ms: Option<f64>,
}

struct Sent {
    worker: WorkerIdx,
    request_id: RequestId,
    n_sequences: u32,
    prefill_tokens: u64,
    at: Instant,
}

/// The requests in flight.
pub struct Ledger {
    options: LedgerOptions,
    worker_ledgers: Vec<WorkerLedger>,
    /// State of a worker that was never sent anything.
    empty_ledger: WorkerLedger,
    /// Unreported requests by ticket, and so by age.
    sent: BTreeMap<u64, Sent>,
    /// Tickets by the id that the worker will report.
    by_request: HashMap<(WorkerIdx, RequestId), u64>,
    next_ticket: u64,
    last: Option<WorkerIdx>,
    stale_blocks: StaleBlocks,
    pending: PendingPrefixes,
    reuse: ReuseRatio,
    recent_work: RecentWork,
    peer_routers: PeerRouters,
    transfer_rates: TransferRates,
}

impl Ledger {
    /// Returns a state without requests.
    pub fn new(options: LedgerOptions) -> Self {
        Self {
            options,
            worker_ledgers: Vec::new(),
            empty_ledger: WorkerLedger::default(),
            sent: BTreeMap::new(),
            by_request: HashMap::new(),
            next_ticket: 0,
            last: None,
            stale_blocks: StaleBlocks::default(),
            pending: PendingPrefixes::default(),
            reuse: ReuseRatio::default(),
            recent_work: RecentWork::default(),
            peer_routers: PeerRouters::default(),
            transfer_rates: TransferRates::default(),
        }
    }

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
        let held = self.holdings(fleet, request.prompt);
        let request = &RouteRequest { prompt: request.prompt.with_matches(held.matches.as_deref()), ..*request };
        self.expire(request.now);
        self.worker_ledgers.resize_with(fleet.n_places().max(self.worker_ledgers.len()), WorkerLedger::default);
        let candidates = self.candidates(fleet, (request, &held.peers))?;
        let chosen = pick(&candidates, self.ties(request)).ok_or_else(NoWorker::unserved)?;
        let n_sequences = request.n_sequences.clamp(1, SEQUENCES_MAX);
        let why = reason(self.options.policy, &candidates, chosen, request.prompt);
        let decision = Decision {
            worker: chosen.worker.idx,
            slot: chosen.found.filter(|_| chosen.cached_blocks > 0).and_then(|found| found.slot),
            expected_block: expected_block(request.prompt, chosen.cached_blocks),
            cached_tokens: chosen.work.reused_tokens(),
            transfer: chosen.transfer,
            fetched_tokens: chosen.work.fetched_tokens,
            reason: if request.tried.is_empty() { why } else { ChoiceReason::Retry },
            cost: chosen.cost,
            service_ms: chosen.cost.prefill_ms + f64::from(n_sequences) * answer_share_ms(&chosen.load),
        };
        let service_ms = &mut self.worker_ledgers[decision.worker.0 as usize].service_ms;
        *service_ms =
            Some(service_ms.map_or(decision.service_ms, |ms| ms + SERVICE_WEIGHT * (decision.service_ms - ms)));
        let prefill_tokens = u64::from(chosen.work.computed_tokens());
        // Fetched state is stored like computed state.
        self.reuse.count(u64::from(chosen.work.cached_tokens), chosen.work.uncached_tokens() as u64);
        self.recent_work.give(decision.worker, prefill_tokens);
        // A stock server computes a prefix for each of several requests that arrive while it is being computed.
        let is_lent = chosen.worker.stock.is_none();
        let chain = if is_lent { request.prompt.keys() } else { &[] };
        let filling = self.pending.add(decision.worker, (chain, chosen.found.map_or(0, |found| found.blocks)));
        let (worker, request_id) = (decision.worker, request.request_id.clone());
        let sent = Sent { worker, request_id, n_sequences, prefill_tokens, at: request.now };
        Ok((decision, self.book((sent, request.quota()), filling)))
    }

    /// Returns the inputs that break ties of cost and load.
    fn ties(&self, request: &RouteRequest<'_>) -> TieBreak {
        TieBreak { last: self.last, first_new_block: request.prompt.first_new_block() }
    }

    /// Returns the stale blocks.
    pub fn stale_blocks(&mut self) -> &mut StaleBlocks {
        &mut self.stale_blocks
    }

    fn worker_ledger(&self, worker: WorkerIdx) -> &WorkerLedger {
        self.worker_ledgers.get(worker.0 as usize).unwrap_or(&self.empty_ledger)
    }

    fn book(&mut self, (sent, quota): (Sent, Quota<'_>), filling: PendingBlocks) -> Ticket {
        let worker = sent.worker;
        let number = self.next_ticket;
        self.next_ticket += 1;
        self.last = Some(worker);
        let worker_ledger = &mut self.worker_ledgers[worker.0 as usize];
        worker_ledger.health.sent(quota, sent.at);
        worker_ledger.n_in_flight += 1;
        worker_ledger.unreported.n_requests += sent.n_sequences;
        worker_ledger.unreported.prefill_tokens += sent.prefill_tokens;
        self.peer_routers.sent(&sent.request_id);
        self.by_request.insert((worker, sent.request_id.clone()), number);
        self.sent.insert(number, sent);
        Ticket { number, worker, filling }
    }

    /// Records that a worker's reported load contains a request, of this router or another.
    pub fn accepted(&mut self, worker: WorkerIdx, request_id: &RequestId, now: Instant) {
        self.peer_routers.named(request_id, now);
        if let Some(number) = self.by_request.remove(&(worker, request_id.clone())) {
            self.withdraw(number);
        }
    }

    /// Records a worker's changes of blocks and the requests that its load contains.
    pub fn record_changes(&mut self, worker: WorkerIdx, changes: &[Change], now: Instant) {
        for change in changes {
            match change {
                Change::Stored(run) => self.stale_blocks.announced(worker, &run.keys),
                Change::Accepted(request_id) => self.accepted(worker, request_id, now),
                Change::Removed(_) => {}
            }
        }
    }

    /// Records that a worker has announced the prefill of this many tokens, for requests of this router or another.
    pub fn filling(&mut self, worker: WorkerIdx, tokens: u64) {
        self.recent_work.fill(worker, tokens);
    }

    /// Records the result of a requested transfer: bytes and milliseconds, or `None` if the worker fetched nothing.
    pub fn fetched(&mut self, pair: (WorkerIdx, WorkerIdx), measured: Option<(u64, f64)>, now: Instant) {
        match measured {
            Some(measured) => self.transfer_rates.fetched(pair, measured, now),
            None => self.transfer_rates.failed(pair, now),
        }
    }

    /// Records that a request has left its worker, however it ended.
    pub fn ended(&mut self, ticket: Ticket) {
        self.withdraw(ticket.number);
        self.pending.remove(ticket.filling);
        self.worker_ledgers[ticket.worker.0 as usize].n_in_flight -= 1;
    }

    /// Removes a worker that has left; another may get its index soon. It has no request of this router any more.
    pub fn left(&mut self, worker: WorkerIdx) {
        debug_assert_eq!(self.n_in_flight(worker), 0, "a worker with requests does not leave");
        if let Some(worker_ledger) = self.worker_ledgers.get_mut(worker.0 as usize) {
            *worker_ledger = WorkerLedger::default();
        }
        self.stale_blocks.forget(worker);
        self.recent_work.left(worker);
        self.transfer_rates.left(worker);
    }

    /// Returns the number of this router's requests at a worker.
    pub fn n_in_flight(&self, worker: WorkerIdx) -> u32 {
        self.worker_ledger(worker).n_in_flight
    }

    /// Returns the requests sent to a worker that its reported load does not contain yet.
    pub fn unreported(&self, worker: WorkerIdx) -> Unreported {
        self.worker_ledger(worker).unreported
    }

    fn expire(&mut self, now: Instant) {
        while let Some((&number, sent)) = self.sent.first_key_value() {
            if now.saturating_duration_since(sent.at) < UNREPORTED_AGE_MAX {
                return;
            }
            self.withdraw(number);
        }
    }

    fn withdraw(&mut self, number: u64) {
        let Some(sent) = self.sent.remove(&number) else { return };
        let unreported = &mut self.worker_ledgers[sent.worker.0 as usize].unreported;
        unreported.n_requests -= sent.n_sequences;
        unreported.prefill_tokens -= sent.prefill_tokens;
        // A later request with the same id keeps its own entry.
        let key = (sent.worker, sent.request_id);
        if self.by_request.get(&key) == Some(&number) {
            self.by_request.remove(&key);
        }
    }
}

/// Returns a response's share of a worker's time. Units: milliseconds.
fn answer_share_ms(worker_load: &WorkerLoad<'_>) -> f64 {
    worker_load.speeds.answer_tokens * worker_load.speeds.decode_step_ms / f64::from(worker_load.n_slots.max(1))
}

fn expected_block(prompt: PromptView<'_>, cached_blocks: u32) -> Option<BlockKey> {
    match prompt {
        PromptView::Known { keys, .. } => keys.get((cached_blocks as usize).checked_sub(1)?).copied(),
        PromptView::Estimated { .. } => None,
    }
}

#[cfg(test)]
mod tests;
