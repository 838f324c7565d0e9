//! Policies that the router does not offer: published rules of others.
//!
//! The router's own policies are in `warmpath-router-core`, ours without a term in `ablation`. Every rival sees what
//! our router sees (the same matches, the same reported loads, its own requests recorded immediately), so that only
//! the rule differs.

use std::collections::HashMap;
use std::time::Instant;

use warmpath_common::ids::RequestId;
use warmpath_router_core::WorkerIdx;
use warmpath_router_core::fleet::{FleetView, WorkerView};
use warmpath_router_core::ledger::pending_prefixes::{PendingBlocks, PendingPrefixes};
use warmpath_router_core::ledger::recent_work::ReuseRatio;
use warmpath_router_core::ledger::recent_work::{RecentWork, WorkSenders};
use warmpath_router_core::routing::choose::{Candidate, PromptView, add_pressure};
use warmpath_router_core::routing::cost::{Speeds, Unreported, WorkerLoad};

use super::trace::Request;

/// Kind of rule.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Kind {
    /// The worker that got the conversation before; a new conversation goes to the least loaded worker.
    Sticky,
    /// The fewest uncached tokens plus a tenth of the waiting ones.
    #[value(name = "uncached+0.1queue")]
    TenthQueue,
    /// SGLang's: the longest prefix while the fleet is balanced, the shortest queue otherwise.
    #[value(name = "sglang")]
    SglangSwitch,
    /// Dynamo's: blocks to prefill plus different blocks in use, each with those of the request.
    ///
    /// Source: `worker_logit` and `potential_blocks_and_tokens` of Dynamo's kv-router, at its default weights, without
    /// output blocks.
    #[value(name = "dynamo")]
    DynamoCost,
    /// llm-d's: weighted scores of prefix, queue and cache use.
    #[value(name = "llm-d")]
    LlmdScorers,
}

/// Thresholds of [`Kind::SglangSwitch`]: matched share of the prompt, difference and ratio of the numbers of requests.
///
/// Source: the defaults that SGLang documents for its router.
const SGLANG: (f64, f64, f64) = (0.5, 32.0, 1.0001);
/// Weights of [`Kind::LlmdScorers`]: prefix, queue, cache use.
///
/// Source: the `prefix-cache-scorer`, `queue-scorer` and `kv-cache-utilization-scorer` of llm-d's inference scheduling
/// guide.
const LLMD: (f64, f64, f64) = (3.0, 2.0, 2.0);
/// Weight of the waiting tokens in [`Kind::TenthQueue`].
///
/// Source: docs/decisions/0000-measured-before.md.
const QUEUE_WEIGHT: f64 = 0.1;
/// Number of leading blocks that do not identify a conversation.
///
/// Source: in Mooncake's conversation trace every request starts with the same block.
const COMMON_BLOCKS: usize = 1;

/// Input of a rule.
pub struct Seen<'a> {
    /// State of the workers.
    pub fleet: &'a FleetView,
    /// The request.
    pub request: &'a Request,
    /// Id of the request.
    pub id: &'a RequestId,
    /// Its prompt, with what the workers hold of it.
    pub prompt: PromptView<'a>,
    /// Workers at which the request has failed.
    pub tried: &'a [WorkerIdx],
    /// Current time.
    pub now: Instant,
}

/// One router's rule with the state of its requests.
pub struct Rival {
    kind: Kind,
    n_slots: u16,
    block_tokens: u32,
    accounts: Vec<Account>,
    /// Worker that each block was last sent to, for [`Kind::Sticky`].
    homes: HashMap<u32, WorkerIdx>,
    pending: PendingPrefixes,
    reuse: ReuseRatio,
    recent_work: RecentWork,
}

/// One router's requests at a worker.
#[derive(Debug, Default)]
struct Account {
    sent: HashMap<RequestId, Booked>,
    unreported: Unreported,
    prefill_tokens: u64,
    active: ActiveBlocks,
}

/// Whole blocks of the prompts in flight, each with the number of its prompts, for [`Kind::DynamoCost`].
#[derive(Debug, Default)]
struct ActiveBlocks(HashMap<u32, u32>);

impl ActiveBlocks {
    fn add(&mut self, ids: &[u32]) {
        ids.iter().for_each(|id| *self.0.entry(*id).or_default() += 1);
    }

    fn remove(&mut self, ids: &[u32]) {
        for id in ids {
            let Some(n_prompts) = self.0.get_mut(id) else { continue };
            *n_prompts -= 1;
            if *n_prompts == 0 {
                self.0.remove(id);
            }
        }
    }

    /// Returns the number of different blocks with those of another prompt.
    fn n_with(&self, ids: &[u32]) -> usize {
        self.0.len() + ids.iter().filter(|id| !self.0.contains_key(id)).count()
    }
}

#[derive(Debug)]
struct Booked {
    filling: PendingBlocks,
    prefill_tokens: u64,
    /// Blocks in [`Account::active`].
    active_ids: Vec<u32>,
    is_unreported: bool,
    is_prefilling: bool,
}

impl Rival {
    /// Returns a rule without any requests.
    pub fn new(kind: Kind, n_workers: u32, n_slots: u16, block_tokens: u32) -> Self {
        let accounts = (0..n_workers).map(|_| Account::default()).collect();
        let (pending, reuse, recent_work) = (PendingPrefixes::default(), ReuseRatio::default(), RecentWork::default());
        Self { kind, n_slots, block_tokens, accounts, homes: HashMap::new(), pending, reuse, recent_work }
    }

    /// Chooses a worker; returns it with the number of tokens that are expected to be reused.
    pub fn choose(&mut self, view: &Seen<'_>) -> Option<(WorkerIdx, u32)> {
        let there = |worker: &&WorkerView| worker.unavailable(view.now).is_none() && !view.tried.contains(&worker.idx);
        let workers: Vec<&WorkerView> = view.fleet.workers.iter().map(|worker| &**worker).filter(there).collect();
        let assumed_speeds = Speeds::assumed(workers.iter().map(|worker| &worker.load.rates));
        let longer_matches = match view.prompt {
            PromptView::Known { keys, matches, .. } => self.pending.extend(keys, matches),
            PromptView::Estimated { .. } => None,
        };
        let prompt = view.prompt.with_matches(longer_matches.as_deref());
        let scores = workers.iter().map(|worker| {
            let block_size_tokens = worker.model.as_ref().map_or(1, |model| model.block_size_tokens);
            let worker_load = self.worker_load(worker, assumed_speeds);
            let mut candidate = Candidate::score(worker, prompt, block_size_tokens, worker_load);
            candidate.recent_tokens = self.recent_work.of(worker.idx, WorkSenders::Own);
            candidate
        });
        let mut candidates: Vec<Candidate<'_>> = scores.collect();
        add_pressure(&mut candidates, self.reuse.ratio());
        let best = *self.pick(view, &candidates)?;
        let n_held = best.found.map_or(0, |prefix_match| prefix_match.blocks);
        let filling = self.pending.add(best.worker.idx, prompt.keys(), n_held);
        self.book(&best, view, filling);
        Some((best.worker.idx, best.work.cached_tokens))
    }

    /// Records that a worker now counts a request in its load.
    pub fn accepted(&mut self, worker: WorkerIdx, id: &RequestId) {
        let account = &mut self.accounts[worker.0 as usize];
        let Some(booking) = account.sent.get_mut(id).filter(|booking| booking.is_unreported) else { return };
        booking.is_unreported = false;
        account.unreported.n_requests -= 1;
        account.unreported.prefill_tokens -= booking.prefill_tokens;
    }

    /// Records that the prompt of a request has been computed.
    pub fn first_token(&mut self, worker: WorkerIdx, id: &RequestId) {
        let account = &mut self.accounts[worker.0 as usize];
        let Some(booking) = account.sent.get_mut(id).filter(|booking| booking.is_prefilling) else { return };
        booking.is_prefilling = false;
        account.prefill_tokens -= booking.prefill_tokens;
    }

    /// Records that a request has left its worker.
    pub fn ended(&mut self, worker: WorkerIdx, id: &RequestId) {
        self.accepted(worker, id);
        self.first_token(worker, id);
        let account = &mut self.accounts[worker.0 as usize];
        if let Some(booking) = account.sent.remove(id) {
            account.active.remove(&booking.active_ids);
            self.pending.remove(booking.filling);
        }
    }

    fn worker_load<'a>(&self, worker: &'a WorkerView, assumed_speeds: Speeds) -> WorkerLoad<'a> {
        WorkerLoad {
            load: &worker.load,
            unreported: self.accounts[worker.idx.0 as usize].unreported,
            n_slots: self.n_slots,
            speeds: Speeds::measured_or(&worker.load.rates, assumed_speeds),
        }
    }

    fn book(&mut self, candidate: &Candidate<'_>, view: &Seen<'_>, filling: PendingBlocks) {
        let worker = candidate.worker.idx;
        let prefill_tokens = u64::from(view.request.prompt_tokens) - u64::from(candidate.work.cached_tokens);
        self.reuse.count(u64::from(candidate.work.cached_tokens), prefill_tokens);
        self.recent_work.give(worker, prefill_tokens);
        let active_ids =
            if self.kind == Kind::DynamoCost { self.whole_blocks(view.request).to_vec() } else { Vec::new() };
        let account = &mut self.accounts[worker.0 as usize];
        account.active.add(&active_ids);
        let booking = Booked { filling, prefill_tokens, active_ids, is_unreported: true, is_prefilling: true };
        account.sent.insert(view.id.clone(), booking);
        account.unreported.n_requests += 1;
        account.unreported.prefill_tokens += prefill_tokens;
        account.prefill_tokens += prefill_tokens;
        if self.kind == Kind::Sticky {
            self.homes.extend(view.request.ids().iter().map(|id| (*id, worker)));
        }
    }

    fn whole_blocks<'r>(&self, request: &'r Request) -> &'r [u32] {
        &request.ids()[..(request.prompt_tokens / self.block_tokens) as usize]
    }

    fn n_requests(&self, candidate: &Candidate<'_>) -> u64 {
        let load = &candidate.worker.load;
        let n_unreported = self.accounts[candidate.worker.idx.0 as usize].unreported;
        load.busy_slots.len() as u64 + u64::from(load.n_queued) + u64::from(n_unreported.n_requests)
    }

    fn tokens_ahead(&self, candidate: &Candidate<'_>) -> f64 {
        let load = &candidate.worker.load;
        let n_unreported = self.accounts[candidate.worker.idx.0 as usize].unreported;
        (load.queued_prefill_tokens + load.running_prefill_tokens + n_unreported.prefill_tokens) as f64
    }

    fn pick<'c, 'a>(&self, view: &Seen<'_>, candidates: &'c [Candidate<'a>]) -> Option<&'c Candidate<'a>> {
        let uncached_tokens = |c: &Candidate<'_>| c.work.uncached_tokens();
        match self.kind {
            Kind::Sticky => {
                let mut known_ids = view.request.ids().iter().skip(COMMON_BLOCKS).rev();
                let home = known_ids.find_map(|id| self.homes.get(id));
                let at_home = candidates.iter().find(|c| Some(&c.worker.idx) == home);
                at_home.or_else(|| least(candidates, |c| self.tokens_ahead(c)))
            }
            Kind::TenthQueue => least(candidates, |c| uncached_tokens(c) + QUEUE_WEIGHT * self.tokens_ahead(c)),
            Kind::SglangSwitch => self.sglang(candidates),
            Kind::DynamoCost => least(candidates, |c| {
                let account = &self.accounts[c.worker.idx.0 as usize];
                let n_blocks = account.active.n_with(self.whole_blocks(view.request));
                let prefill = account.prefill_tokens as f64 + uncached_tokens(c);
                prefill / f64::from(self.block_tokens) + n_blocks as f64
            }),
            Kind::LlmdScorers => self.llmd(candidates),
        }
    }

    fn sglang<'c, 'a>(&self, candidates: &'c [Candidate<'a>]) -> Option<&'c Candidate<'a>> {
        let (threshold, difference, ratio) = SGLANG;
        let requests = |c: &Candidate<'_>| self.n_requests(c) as f64;
        let maximum = candidates.iter().map(requests).fold(0.0, f64::max);
        let fewest = candidates.iter().map(requests).fold(f64::INFINITY, f64::min);
        if maximum - fewest > difference && maximum > fewest * ratio {
            return least(candidates, requests);
        }
        let longest = least(candidates, |c| -f64::from(c.work.cached_tokens))?;
        let share = f64::from(longest.work.cached_tokens) / f64::from(longest.work.prompt_tokens);
        if share > threshold { Some(longest) } else { least(candidates, |c| c.worker.blocks.n_blocks as f64) }
    }

    fn llmd<'c, 'a>(&self, candidates: &'c [Candidate<'a>]) -> Option<&'c Candidate<'a>> {
        let queue_length = |c: &Candidate<'_>| self.n_requests(c) as f64;
        let maximum = candidates.iter().map(queue_length).fold(0.0, f64::max);
        let fewest = candidates.iter().map(queue_length).fold(f64::INFINITY, f64::min);
        let tokens_max = |c: &Candidate<'_>| {
            let blocks = c.worker.blocks.n_blocks as f64;
            blocks * f64::from(self.block_tokens) + c.worker.load.free_cells as f64
        };
        least(candidates, |c| {
            let prefix = f64::from(c.work.cached_tokens) / f64::from(c.work.prompt_tokens);
            let queue = if maximum > fewest { (maximum - queue_length(c)) / (maximum - fewest) } else { 1.0 };
            let free_share = c.worker.load.free_cells as f64 / tokens_max(c).max(1.0);
            -(LLMD.0 * prefix + LLMD.1 * queue + LLMD.2 * free_share)
        })
    }
}

/// Returns the first candidate with the smallest `value`.
fn least<'c, 'a>(candidates: &'c [Candidate<'a>], value: impl Fn(&Candidate<'a>) -> f64) -> Option<&'c Candidate<'a>> {
    candidates.iter().min_by(|a, b| value(a).total_cmp(&value(b)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_that_several_prompts_share_are_active_once() {
        let mut active = ActiveBlocks::default();
        active.add(&[1, 2, 3]);
        active.add(&[1, 2, 4]);
        assert_eq!(active.n_with(&[]), 4);
        assert_eq!(active.n_with(&[1, 2, 3, 5]), 5);
        active.remove(&[1, 2, 3]);
        assert_eq!(active.n_with(&[1, 2, 3]), 4);
        active.remove(&[1, 2, 4]);
        assert_eq!(active.n_with(&[1]), 1);
    }
}
