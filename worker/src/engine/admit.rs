//! Admission of requests to slots, with the part of their prompts that can be reused.
//!
//! The queue is scanned in order whenever a slot is idle. A request that waits for another's prefix or for the disk
//! keeps its place but blocks no other. A plan is executed step by step and checked at the end: if a slot's state does
//! not end where the plan says, the slot is cleared and the whole prompt computed.
//!
//! Not here: the decision (`warmpath_worker_core::slot_plan`), the store (`kv::store`), computing the rest (`step`).

use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use tracing::warn;
use warmpath_common::ids::SlotId;
use warmpath_common::model::MemoryKind;
use warmpath_worker_core::chunk_index::{ChunkId, Found};
use warmpath_worker_core::slot_plan::{self, Decision, Reuse, Save, SlotPlan, Start, Wish};
use warmpath_worker_core::slot_table::{Acquire, AfterUse};

use super::api::{CachedTokens, EngineError, FinishReason, PromptFault, Started};
use super::config::PrefixCache;
use super::handle::Admission;
use super::kv::receiving::{Fetched, TransferId};
use super::kv::store::Cache;
use super::sequence::{Chosen, Sequence};
use super::step::{Owner, Scheduler};

/// Longest wait of a submission for the request that computes the blocks which its sender counts on. Two requests that
/// a router sends one after the other may arrive in the other order.
///
/// Source: own choice: requests are sent milliseconds apart, tens on a busy machine; computing the missing blocks costs
/// more.
const SIBLING_WAIT_MAX: Duration = Duration::from_millis(25);

/// Time after the start of its last request from which an idle slot is reserved for no tenant.
///
/// Source: like a tenant's share of the store in RAM (`warmpath_worker_core::chunk_index`).
const QUIET_AFTER: Duration = Duration::from_hours(1);

/// A submission that waits for a slot.
pub(crate) struct Waiting {
    pub(super) admission: Admission,
    /// Prompt tokens to compute, as estimated at its arrival.
    pub(super) n_uncached: u32,
    /// Chunks that are being read from disk for it; they stay in place until it has started.
    pub(super) fetching: Vec<ChunkId>,
    /// Time until which it waits for the request that computes the blocks its sender counts on; `None` if none are
    /// missing.
    pub(super) held_until: Option<Instant>,
    /// Start of its wait for another's prefix; `None` if it never waited.
    pub(super) shares_since: Option<Instant>,
    /// Start of its wait for the disk; `None` if it never waited.
    pub(super) reads_since: Option<Instant>,
    /// Transfer from another worker that it waits for.
    pub(super) transfer: Option<TransferId>,
    /// Chunks that a transfer has brought, and those before them; they stay in place until it has started.
    pub(super) received: Vec<ChunkId>,
    /// Report of a transfer that has ended.
    pub(super) fetched: Option<Fetched>,
}

impl Waiting {
    /// Lets the chunks go that stay in place for it.
    pub(super) fn let_go(&self, cache: &mut Cache) {
        cache.let_go(&self.fetching);
        cache.let_go(&self.received);
    }
}

impl Scheduler<'_> {
    /// Puts a submission at the end of the queue.
    pub(super) fn enqueue(&mut self, mut admission: Admission) {
        self.report.count(admission.promise.as_ref());
        let n_prompt = u32::try_from(admission.submission.prompt.len()).unwrap_or(u32::MAX);
        let n_usable = slot_plan::best_usable(&self.outlook(), &self.wish(&admission));
        let n_expected = match self.reusable(&admission) {
            Reuse::Allowed => admission.submission.expected_tokens,
            Reuse::Forbidden => 0,
        };
        let held_until = (n_usable < n_expected).then(|| Instant::now() + SIBLING_WAIT_MAX);
        let (transfer, n_reached) = self.await_transfer(&mut admission, n_usable).unzip();
        self.waiting.push_back(Waiting {
            admission,
            n_uncached: n_prompt - n_reached.unwrap_or(n_usable),
            fetching: Vec::new(),
            held_until,
            shares_since: None,
            reads_since: None,
            transfer,
            received: Vec::new(),
            fetched: None,
        });
    }

    /// Returns whether a submission waits for another that has yet to arrive.
    fn is_held(&mut self, idx: usize) -> bool {
        let waiting = &self.waiting[idx];
        let Some(until) = waiting.held_until else { return false };
        let n_usable = slot_plan::best_usable(&self.outlook(), &self.wish(&waiting.admission));
        let is_held = n_usable < waiting.admission.submission.expected_tokens && Instant::now() < until;
        if !is_held {
            self.waiting[idx].held_until = None;
        }
        is_held
    }

    /// Starts every waiting submission that can start now, in the order of arrival.
    pub(super) fn admit(&mut self) {
        let prefill_rate = self.averages.rates().prefill_tokens_per_s;
        self.cache.learn(|costs| costs.learn_prefill(prefill_rate));
        let mut idx = 0;
        while idx < self.waiting.len() {
            if self.waiting[idx].transfer.is_some() || self.cache.is_reading(&self.waiting[idx].fetching) {
                idx += 1;
                continue;
            }
            self.look_at_windows();
            self.end_shares();
            if self.is_held(idx) {
                idx += 1;
                continue;
            }
            let wish = self.wish(&self.waiting[idx].admission);
            match slot_plan::plan(&self.outlook(), &wish) {
                Decision::NoSlot => return,
                Decision::WaitFor { slot, n_tokens } => {
                    self.wait_for(idx, (slot, n_tokens));
                    idx += 1;
                }
                Decision::Fetch(chunks) => {
                    self.cache.fetch(&chunks);
                    self.waiting[idx].fetching.extend(chunks);
                    self.waiting[idx].reads_since.get_or_insert_with(Instant::now);
                    idx += 1;
                }
                Decision::Start(plan) => {
                    if let Some(waiting) = self.waiting.remove(idx) {
                        self.start(waiting, plan);
                    }
                }
            }
        }
    }

    /// Makes a submission wait for a running one's prefix. If a sequence cannot be rewound, the running one makes a
    /// checkpoint.
    fn wait_for(&mut self, idx: usize, (slot, n_tokens): (SlotId, u32)) {
        if self.waiting[idx].shares_since.is_none() {
            self.waiting[idx].shares_since = Some(Instant::now());
            self.view.counters.prefix_waits.fetch_add(1, Relaxed);
        }
        if !self.table.memory().rewinds_anywhere()
            && let Some(leader) = &mut self.running[usize::from(slot.0)]
        {
            leader.want_checkpoint(n_tokens);
        }
    }

    pub(super) fn outlook(&self) -> slot_plan::PlanInputs<'_> {
        slot_plan::PlanInputs {
            table: &self.table,
            index: self.cache.index(),
            at_hand: self.cache.passing(),
            costs: self.cache.costs(),
        }
    }

    fn wish<'a>(&self, admission: &'a Admission) -> Wish<'a> {
        let submission = &admission.submission;
        Wish {
            prompt: &submission.prompt,
            chain: &admission.chain,
            root: &submission.chain_root,
            tenant: admission.tenant.with_share(),
            reuse: self.reusable(admission),
            wanted: submission.wanted_slot,
        }
    }

    /// Returns whether cached state can be reused: it has no logits for a prompt whose log probabilities are wanted.
    pub(super) fn reusable(&self, admission: &Admission) -> Reuse {
        let needs_logits = admission.submission.prompt_probabilities().is_some();
        if needs_logits || self.leaves_nothing(admission) { Reuse::Forbidden } else { Reuse::Allowed }
    }

    fn leaves_nothing(&self, admission: &Admission) -> bool {
        !admission.submission.cache_prompt || self.prefix_cache == PrefixCache::Disabled
    }

    fn start(&mut self, waiting: Waiting, plan: SlotPlan) {
        let began = Instant::now();
        self.view.counters.waited(&waiting, began);
        let Waiting { mut admission, fetching, received, fetched, .. } = waiting;
        let promise = admission.promise.take();
        let wish = self.wish(&admission);
        let left_answer_at = self.table.left_answer_at(wish.prompt, wish.root);
        let (slot, cached) = match self.reuse(&self.wish(&admission), &plan, admission.submission.shifts) {
            Some(reused) => (reused.slot, self.prepare_moved(&reused)),
            None => (plan.slot, self.prepare((&admission, &fetching), &plan)),
        };
        let restored = began.elapsed();
        let rewinds_to_tokens = if cached.total() > 0 { plan.rewinds_to(&self.table) } else { 0 };
        self.cache.let_go(&fetching);
        self.cache.let_go(&received);
        let submission = &admission.submission;
        self.table.acquire(Acquire {
            slot,
            prompt: &submission.prompt,
            n_start_tokens: cached.exact(),
            rewinds_to_tokens,
            root: submission.chain_root,
            prompt_chain: &admission.chain,
            after_use: if self.leaves_nothing(&admission) { AfterUse::Forget } else { AfterUse::Keep },
        });
        if cached.shifted > 0 {
            self.table.extend_moved(slot, &submission.prompt[cached.exact() as usize..cached.total() as usize]);
        }
        self.report.settle(promise);
        self.unsaved.remove(&slot);
        let n_prompt = u32::try_from(submission.prompt.len()).unwrap_or(u32::MAX);
        self.view.counters.admit(u64::from(n_prompt), cached);
        self.averages.prompt(n_prompt.saturating_sub(cached.total()));
        self.n_started += 1;
        let started = Started { slot, cached, left_answer_at, restored, fetched };
        let tenant = admission.tenant;
        self.table.set_tenant(slot, tenant.with_share());
        self.owners[usize::from(slot.0)] = Owner { tenant, priority: submission.priority, since: Instant::now() };
        let stops = self.checkpoint_stops(&admission, cached.total());
        let past = std::mem::take(&mut admission.past);
        let mut sequence = Sequence::start(admission, started, self.n_started).with_checkpoints(stops);
        let ended = self.replay(&mut sequence, past);
        self.running[usize::from(slot.0)] = Some(sequence);
        if let Some(reason) = ended {
            self.finish(slot, reason);
        } else if n_prompt > self.context_tokens {
            let (n_tokens, context_tokens) = (n_prompt as usize, self.context_tokens);
            self.fail(slot, &EngineError::InvalidPrompt(PromptFault::TooLong { n_tokens, context_tokens }));
        }
    }

    /// Sends what a response so far gave; returns the reason if it ends there.
    fn replay(&self, sequence: &mut Sequence, past: Vec<Chosen>) -> Option<FinishReason> {
        let n_prompt = sequence.submission.prompt.len() - past.len();
        (n_prompt..).zip(past).find_map(|(n_held, sampled)| {
            let room_tokens = self.room_of(sequence, u32::try_from(n_held).unwrap_or(u32::MAX));
            sequence.replay(sampled, room_tokens)
        })
    }

    /// Records how far slots can be cut back: llama.cpp reuses cells that a sliding window has left behind.
    pub(super) fn look_at_windows(&mut self) {
        if self.table.memory() == MemoryKind::Sliding {
            for slot in (0..self.table.iter().count()).map(|idx| SlotId(idx as u16)) {
                self.table.set_rewinds_to(slot, self.llama.rewinds_to(slot));
            }
        }
    }

    /// Lets the slots of tenants without recent requests be taken first.
    fn end_shares(&mut self) {
        let quiet: Vec<SlotId> = self
            .table
            .iter()
            .filter(|(slot, held)| !held.is_busy() && self.owners[usize::from(slot.0)].since.elapsed() > QUIET_AFTER)
            .map(|(slot, _)| slot)
            .collect();
        quiet.into_iter().for_each(|slot| self.table.set_tenant(slot, None));
    }

    /// Returns where a prompt's partial state is kept: nowhere if the request leaves nothing in the cache.
    fn checkpoint_stops(&self, admission: &Admission, n_held: u32) -> Vec<u32> {
        if self.leaves_nothing(admission) {
            return Vec::new();
        }
        let submission = &admission.submission;
        let n_prompt = u32::try_from(submission.prompt.len()).unwrap_or(u32::MAX);
        self.checkpoints.stops(n_held..n_prompt, submission.last_message_token)
    }

    /// Brings the slot's KV state to the start of the plan and returns what was reached.
    ///
    /// Takes the request with the chunks that were read from disk for it.
    fn prepare(&mut self, (admission, fetched): (&Admission, &[ChunkId]), plan: &SlotPlan) -> CachedTokens {
        let found = self.cache.index().find(&self.wish(admission).prefix());
        let held = self.cache.hold(&found, plan);
        if plan.save == Save::First {
            self.save(plan.slot);
        }
        let n_tokens = plan.start.n_tokens();
        let began = Instant::now();
        let brought = n_tokens > 0 && self.bring(plan, &found);
        self.cache.let_go(&held);
        if !brought || self.llama.last_position(plan.slot) != n_tokens.checked_sub(1) {
            if n_tokens > 0 {
                warn!(slot = %plan.slot, start = ?plan.start, "the KV state cannot be brought there; computing the prompt");
                self.view.counters.failed_starts.fetch_add(1, Relaxed);
            }
            self.llama.clear(plan.slot);
            return CachedTokens::default();
        }
        self.learn(plan, (&found, began.elapsed()));
        if let Some(checkpoint) = plan.checkpoint {
            self.view.counters.checkpoint_uses.fetch_add(1, Relaxed);
            self.cache.touch_checkpoint(checkpoint, admission.tenant);
        }
        self.cache.touch(&found, n_tokens, admission.tenant);
        if found.n_tokens < n_tokens as usize {
            self.lend(plan);
        }
        match plan.start {
            Start::Import { .. } => self.cache.origin(&found, (n_tokens, plan.checkpoint), fetched),
            Start::Cold | Start::Keep { .. } | Start::Copy { .. } => {
                CachedTokens { resident: n_tokens, ..CachedTokens::default() }
            }
        }
    }

    /// Records that a plan starts from the state of a slot.
    fn lend(&mut self, plan: &SlotPlan) {
        match plan.start {
            Start::Keep { n_tokens } => self.table.lend(plan.slot, n_tokens),
            Start::Copy { from, n_tokens } => self.table.lend(from, n_tokens),
            Start::Cold | Start::Import { .. } => {}
        }
    }

    /// Moves the state that a plan starts from; returns whether that succeeded.
    fn bring(&mut self, plan: &SlotPlan, found: &Found) -> bool {
        let slot = plan.slot;
        let n_tokens = plan.start.n_tokens();
        match plan.start {
            Start::Cold => false,
            Start::Keep { .. } => match plan.checkpoint.map(|checkpoint| self.cache.payload(checkpoint)) {
                None => self.rewind(slot, n_tokens),
                Some(partial) => partial.is_some_and(|p| self.llama.restore_partial(slot, &p, n_tokens).is_ok()),
            },
            Start::Copy { from, .. } => match plan.checkpoint {
                None => self.llama.copy_prefix(from, slot, n_tokens).is_ok(),
                Some(checkpoint) => {
                    let exported = self.llama.export(from).ok();
                    let state = exported.and_then(|state| self.cache.cut_back(state, (n_tokens, checkpoint)));
                    state.is_some_and(|state| self.llama.import(slot, &state, n_tokens).is_ok())
                }
            },
            Start::Import { .. } => {
                let stored = self.cache.state(found, (n_tokens, plan.checkpoint));
                stored.is_some_and(|(state, n_whole)| self.llama.import(slot, &state, n_whole).is_ok())
                    && self.rewind(slot, n_tokens)
            }
        }
    }

    /// Updates the measured cost of restoring state into a slot.
    fn learn(&mut self, plan: &SlotPlan, (found, took): (&Found, Duration)) {
        let ms = took.as_secs_f64() * 1e3;
        match plan.start {
            Start::Cold | Start::Keep { .. } => return,
            Start::Copy { from, .. } => {
                let n_held = self.n_held(from);
                self.cache.learn(|costs| costs.learn_copy(n_held, ms));
            }
            Start::Import { n_tokens } => {
                let n_bytes = self.cache.payload_bytes(found, (n_tokens, plan.checkpoint));
                self.cache.learn(|costs| costs.learn_import(n_bytes, ms));
            }
        }
        self.view.counters.restored(took);
    }

    /// Cuts a slot's state back; returns whether the state to keep is complete.
    fn rewind(&mut self, slot: SlotId, n_tokens: u32) -> bool {
        self.llama.last_position(slot) == n_tokens.checked_sub(1) || self.llama.rewind(slot, n_tokens)
    }
}
