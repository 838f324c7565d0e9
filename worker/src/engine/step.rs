//! One step of the engine: admit, decode, sample, emit.
//!
//! The slot table records which tokens' KV state is where; this module keeps it true. Whatever happens to a sequence,
//! its slot is released exactly once, and KV state that cannot be trusted is cleared before the slot is used again.
//!
//! Not here: when to step and when to stop (`thread`), the batch (`batch`), llama.cpp's calls (`llama`).

use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use llama_cpp_2::DecodeError;
use llama_cpp_2::model::LlamaModel;
use llama_cpp_2::token::LlamaToken;
use tracing::{error, warn};
use warmpath_common::ids::{SlotId, Token};
use warmpath_common::lora::Applied;
use warmpath_common::summary::Load;
use warmpath_worker_core::batch_plan::Room;
use warmpath_worker_core::checkpoints::CheckpointPolicy;
use warmpath_worker_core::decode_groups::Runs;
use warmpath_worker_core::rates::{Averages, StepCounts};
use warmpath_worker_core::slot_table::{AfterUse, SlotTable};
use warmpath_worker_core::tenants::{Tenant, TenantId};

use super::admin::PinNames;
use super::admit::Waiting;
use super::api::{EngineError, Event, FinishReason, SampledToken, SlotView};
use super::config::{PrefixCache, ShiftConfig};
use super::facts::Exchange;
use super::handle::View;
use super::kv::receiving::Receiving;
use super::kv::saved_slot::Export;
use super::kv::sending::Sending;
use super::kv::store::Cache;
use super::llama::Llama;
use super::llama::adapters::Adapters;
use super::output::speculation::Speculation;
use super::publish::summary_events::Report;
use super::schedule::batch::{Batch, Planned};
use super::sequence::{Chosen, Purpose, Sequence};

/// State owned by the engine thread.
pub(crate) struct Scheduler<'m> {
    pub(super) model: &'m LlamaModel,
    pub(super) llama: Llama<'m>,
    pub(super) table: SlotTable,
    pub(super) room: Room,
    /// Groups of a batch that are computed together; `None` if slots share their cells, because then all are.
    pub(super) runs: Option<Runs>,
    pub(super) context_tokens: u32,
    pub(super) prefix_cache: PrefixCache,
    pub(super) shifts: ShiftConfig,
    /// Longest response to a request that sets no limit, if a response may outgrow its context.
    pub(super) unasked_tokens_max: u32,
    pub(super) report: Report,
    pub(super) view: Arc<View>,
    pub(super) waiting: VecDeque<Waiting>,
    /// Sequence in each slot.
    pub(super) running: Vec<Option<Sequence>>,
    pub(super) averages: Averages,
    pub(super) n_started: u64,
    /// Longest wait of an idle engine for requests on their way.
    pub(super) gather_max: Duration,
    /// Most logits of prompts' tokens in one step.
    pub(super) listed_logits_max: usize,
    pub(super) cache: Cache,
    pub(super) checkpoints: CheckpointPolicy,
    /// Idle slots whose state may not be stored completely.
    pub(super) unsaved: BTreeSet<SlotId>,
    /// Owner of each slot's state.
    pub(super) owners: Vec<Owner>,
    /// Most tokens that idle slots keep in the buffer.
    pub(super) prefix_tokens_max: u64,
    /// Time that one idle cell adds to a step; 0 if slots do not share a buffer. Units: milliseconds.
    pub(super) idle_cell_ms: f64,
    /// Time that each idle slot's cells have cost running sequences since. Units: milliseconds.
    pub(super) idle_ms: Vec<f64>,
    pub(super) pins: PinNames,
    pub(super) adapters: Adapters,
    /// Adapter, or none, of the last batch's sequences; `None` before the first batch.
    pub(super) last_adapter: Option<Option<Applied>>,
    pub(super) planned: Planned,
    /// State of speculative decoding; `None` if nothing is drafted.
    pub(super) speculation: Option<Speculation>,
    /// States of slots that wait for the disk.
    pub(super) exports: Vec<Export>,
    /// Runs of blocks for other workers that are being looked up.
    pub(super) sends: Vec<Sending>,
    /// State that can be exchanged with other workers.
    pub(super) exchange: Option<Exchange>,
    /// Transfers that requests wait for.
    pub(super) receiving: Vec<Receiving>,
    pub(super) n_transfers: u64,
}

/// Owner of a slot's state, by the last request in it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Owner {
    pub(super) tenant: Tenant,
    pub(super) priority: i32,
    /// Start of that request.
    pub(super) since: Instant,
}

impl Owner {
    /// Returns the owner of a slot that no request has used.
    pub(super) fn nobody() -> Self {
        Self { tenant: Tenant::stranger(TenantId(0)), priority: 0, since: Instant::now() }
    }
}

impl Scheduler<'_> {
    /// Returns whether nothing runs or waits.
    pub(super) fn is_idle(&self) -> bool {
        let is_asked = !self.exports.is_empty() || !self.sends.is_empty();
        self.waiting.is_empty() && !is_asked && self.running.iter().all(Option::is_none)
    }

    /// Returns whether nothing runs, and all waiting submissions wait for the disk.
    pub(super) fn only_waits_for_disk(&self) -> bool {
        let is_reading = |waiting: &Waiting| self.cache.is_reading(&waiting.fetching);
        let is_awaited = self.waiting.iter().any(is_reading) || self.is_export_reading() || self.is_send_reading();
        self.running.iter().all(Option::is_none) && is_awaited
    }

    /// Returns whether all running sequences wait for their readers.
    pub(super) fn only_waits_for_readers(&self) -> bool {
        let mut running = self.running().map(|(_, sequence)| sequence.is_unread()).peekable();
        running.peek().is_some() && running.all(|is_unread| is_unread)
    }

    /// Returns for how long nothing will start unless a command arrives: all waiting submissions wait for another one,
    /// or for another worker.
    pub(super) fn only_held_for(&self) -> Option<Duration> {
        if self.running.iter().any(Option::is_some) || !self.sends.is_empty() || !self.exports.is_empty() {
            return None;
        }
        let until = |waiting: &Waiting| self.transfer_deadline(waiting.transfer).or(waiting.held_until);
        let until: Option<Vec<Instant>> = self.waiting.iter().map(until).collect();
        Some(until?.into_iter().min()?.saturating_duration_since(Instant::now()))
    }

    /// Returns how long to wait for requests on their way: no longer than the step that it saves them.
    pub(super) fn gather_max(&self) -> Duration {
        let step_ms = self.averages.rates().decode_step_ms.map(f64::from);
        step_ms.map_or(self.gather_max, |step_ms| self.gather_max.min(Duration::from_secs_f64(step_ms.max(0.0) / 1e3)))
    }

    /// Does everything that can be done at once: frees, admits, computes one micro-batch, reports.
    pub(super) fn step(&mut self) {
        self.cache.take_disk_events();
        self.finish_exports();
        self.advance_sends();
        self.drop_abandoned();
        self.take_received();
        self.admit();
        self.shift_full();
        self.count();
        let batch = self.fill_batch();
        if !batch.shares.is_empty() {
            self.report.touch();
            // Routers send further requests with the same prefix after this report, so they must not wait for the first
            // step.
            if self.report.is_urgent() {
                self.tell();
            }
            self.compute(&batch);
            self.make_way();
        }
        self.count();
        self.tell();
    }

    /// Fails every waiting submission.
    pub(super) fn refuse_waiting(&mut self, error: &EngineError) {
        for waiting in std::mem::take(&mut self.waiting) {
            waiting.let_go(&mut self.cache);
            waiting.admission.submission.events.send(Event::Failed(error.clone()));
            self.view.counters.failed.fetch_add(1, Relaxed);
        }
        self.report.touch();
    }

    /// Fails every running sequence.
    pub(super) fn fail_running(&mut self, error: &EngineError) {
        for slot in self.busy_slots() {
            self.fail(slot, error);
        }
    }

    /// Reports changes to routers and watchers, if it is time.
    pub(super) fn tell(&mut self) {
        let now = Instant::now();
        self.look_at_windows();
        for news in self.cache.take_news() {
            self.table.apply(news);
        }
        let changes = self.table.take_changes();
        let is_due = self.report.due_in(now).is_some_and(|wait| wait.is_zero());
        if is_due || self.report.is_urgent() || !changes.is_empty() {
            self.view.slots.store(Arc::new(self.slot_views()));
            let load = self.load();
            self.report.send(changes, load, now);
        }
        self.show_cache();
    }

    fn drop_abandoned(&mut self) {
        let (gone, waiting): (VecDeque<Waiting>, VecDeque<Waiting>) = std::mem::take(&mut self.waiting)
            .into_iter()
            .partition(|waiting| waiting.admission.submission.events.is_closed());
        self.waiting = waiting;
        for waiting in gone {
            waiting.let_go(&mut self.cache);
            // A client that sees it counted finds its place free.
            drop(waiting);
            self.view.counters.cancelled.fetch_add(1, Relaxed);
        }
        for slot in self.busy_slots() {
            if self.sequence(slot).is_abandoned() {
                drop(self.release(slot));
                self.view.counters.cancelled.fetch_add(1, Relaxed);
            }
        }
    }

    fn compute(&mut self, batch: &Batch) {
        let began = Instant::now();
        let adapter = self.last_adapter.flatten();
        if let Err(reason) = self.llama.apply(&mut self.adapters, adapter) {
            return self.fail_batch(batch, &format!("the adapter cannot be applied: {reason}"));
        }
        let decoded = self.llama.decode();
        match decoded {
            Ok(()) => {}
            Err(DecodeError::NoKvCacheSlot) => {
                self.planned.give_up();
                return self.make_room(batch);
            }
            Err(error) => return self.fail_batch(batch, &error.to_string()),
        }
        self.count_batch(batch);
        self.let_pass(batch);
        for share in &batch.shares {
            let n_held = self.n_held(share.slot);
            if let Some(sequence) = &self.running[usize::from(share.slot.0)] {
                // A draft's tokens are held once they are chosen.
                let n_tokens = if sequence.is_stream() { 1 } else { share.n_tokens };
                self.table.extend(share.slot, sequence.upcoming(n_held, n_tokens));
            }
        }
        self.keep_checkpoints();
        let n_streams = batch.shares.iter().filter(|share| self.is_stream(share.slot)).count() as u32;
        let n_chosen = self.use_logits(batch);
        if self.planned.is_over() {
            self.tell_chosen();
        }
        for share in &batch.shares {
            let n_held = self.n_held(share.slot);
            let is_over = |sequence: &Sequence| sequence.is_prompt_only(n_held);
            if self.running[usize::from(share.slot.0)].as_ref().is_some_and(is_over) {
                self.finish(share.slot, FinishReason::Length);
            }
        }
        let counts = StepCounts { n_prefill: batch.n_prefill, n_decode: batch.n_decode, n_streams, n_chosen };
        self.averages.step(counts, began.elapsed());
    }

    /// Chooses and lists tokens; returns how many were chosen for streams.
    fn use_logits(&mut self, batch: &Batch) -> u32 {
        let mut n_chosen = 0;
        for outputs in batch.outputs.chunk_by(|(a, ..), (b, ..)| a == b) {
            let is_stream = self.is_stream(outputs[0].0);
            if is_stream && outputs.len() > 1 {
                n_chosen += self.verify(outputs[0].0, outputs);
                continue;
            }
            n_chosen += u32::from(is_stream);
            for (slot, purpose, idx) in outputs {
                match purpose {
                    Purpose::Choose => self.choose(*slot, *idx),
                    Purpose::List => self.list(*slot, *idx),
                }
            }
        }
        n_chosen
    }

    fn is_stream(&self, slot: SlotId) -> bool {
        self.running[usize::from(slot.0)].as_ref().is_some_and(Sequence::is_stream)
    }

    /// Counts for each stream the prompt tokens computed since its last token.
    fn let_pass(&mut self, batch: &Batch) {
        let is_held_up = |sequence: &&mut Sequence| sequence.is_stream() && !sequence.is_unread();
        for sequence in self.running.iter_mut().flatten().filter(is_held_up) {
            sequence.passed_tokens += batch.n_prefill;
            self.view.counters.passed_tokens_max.fetch_max(u64::from(sequence.passed_tokens), Relaxed);
        }
    }

    /// Chooses the next token of a slot's sequence, which is sent at the end of the batch.
    pub(super) fn choose(&mut self, slot: SlotId, idx: i32) {
        let Some(sequence) = &mut self.running[usize::from(slot.0)] else { return };
        let logits = self.llama.logits(idx);
        let mut chosen = match sequence.sampler.choose(self.model, logits) {
            Ok(sampled) => look_up(self.model, sampled, &sequence.submission.generation.spelled),
            Err(error) => return self.fail(slot, &error),
        };
        let wish = sequence.submission.generation.probabilities.filter(|_| !chosen.ends_generation);
        chosen.probabilities = wish.map(|wish| sequence.sampler.probabilities(wish, logits, chosen.token));
        sequence.untold = Some(chosen);
    }

    /// Lets every sequence whose next token is chosen take and send it.
    pub(super) fn tell_chosen(&mut self) {
        for slot in self.busy_slots() {
            let room_tokens = self.room_tokens(slot);
            let Some(sequence) = &mut self.running[usize::from(slot.0)] else { continue };
            let Some(chosen) = sequence.untold.take() else { continue };
            self.view.counters.generated_tokens.fetch_add(1, Relaxed);
            if let Some(reason) = sequence.take(chosen, room_tokens) {
                self.finish(slot, reason);
            }
        }
    }

    fn list(&mut self, slot: SlotId, idx: i32) {
        if let Some(sequence) = &mut self.running[usize::from(slot.0)] {
            sequence.list(self.llama.logits(idx));
        }
    }

    pub(super) fn finish(&mut self, slot: SlotId, reason: FinishReason) {
        let mut sequence = self.release(slot);
        sequence.tell_prompt();
        self.averages.answer(sequence.n_generated);
        let finished = sequence.finished(reason);
        self.view.counters.answered(&finished);
        self.tell_end(sequence, Event::Finished(finished));
    }

    pub(super) fn fail(&mut self, slot: SlotId, error: &EngineError) {
        let sequence = self.release(slot);
        self.view.counters.failed.fetch_add(1, Relaxed);
        self.tell_end(sequence, Event::Failed(error.clone()));
    }

    /// Sends a sequence its last event, after its slot and its place in the queue are free, so that a client that then
    /// reads `/slots` sees them free.
    fn tell_end(&self, sequence: Sequence, event: Event) {
        let events = sequence.into_events();
        self.count();
        self.view.slots.store(Arc::new(self.slot_views()));
        events.send(event);
    }

    /// Frees a slot; its KV state is kept or cleared as its request wished.
    fn release(&mut self, slot: SlotId) -> Sequence {
        self.report.touch();
        self.planned.leave(slot);
        self.remember(slot);
        if !self.drop_rejected(slot) {
            self.llama.clear(slot);
            self.table.forget(slot);
        }
        match self.table.release(slot) {
            AfterUse::Keep => drop(self.unsaved.insert(slot)),
            AfterUse::Forget => self.llama.clear(slot),
        }
        self.idle_ms[usize::from(slot.0)] = 0.0;
        self.running[usize::from(slot.0)].take().expect("a busy slot runs a sequence")
    }

    /// Clears an idle slot if the buffer has no cells left, or ends the youngest sequence if there is none.
    ///
    /// Every slot keeps to its share of the cells, so this happens only if llama.cpp needs more than one per token.
    fn make_room(&mut self, batch: &Batch) {
        let idle = self.table.iter().filter(|(_, slot)| !slot.is_busy() && !slot.tokens().is_empty());
        let oldest = idle.min_by_key(|(_, slot)| slot.last_used()).map(|(id, _)| id);
        if let Some(slot) = oldest {
            warn!(%slot, "the KV buffer is full; an idle slot's state leaves it");
            self.move_out(slot);
            return;
        }
        let youngest = batch.shares.iter().map(|share| share.slot).max_by_key(|slot| self.sequence(*slot).order);
        if let Some(slot) = youngest {
            warn!(%slot, "the KV buffer is full; ended the youngest sequence");
            self.abort(slot, "the KV buffer is full");
        }
    }

    fn fail_batch(&mut self, batch: &Batch, cause: &str) {
        error!(error = cause, n_sequences = batch.shares.len(), "llama.cpp failed to decode a batch");
        self.view.counters.decode_failures.fetch_add(1, Relaxed);
        for share in &batch.shares {
            self.abort(share.slot, cause);
        }
    }

    /// Fails a sequence whose KV state cannot be trusted.
    pub(super) fn abort(&mut self, slot: SlotId, reason: &str) {
        self.llama.clear(slot);
        self.table.forget(slot);
        self.fail(slot, &EngineError::Decode { reason: reason.to_owned() });
    }

    pub(super) fn running(&self) -> impl Iterator<Item = (SlotId, &Sequence)> {
        let slots = (0..).map(SlotId).zip(&self.running);
        slots.filter_map(|(slot, sequence)| sequence.as_ref().map(|sequence| (slot, sequence)))
    }

    pub(super) fn busy_slots(&self) -> Vec<SlotId> {
        self.running().map(|(slot, _)| slot).collect()
    }

    pub(super) fn sequence(&self, slot: SlotId) -> &Sequence {
        self.running[usize::from(slot.0)].as_ref().expect("the slot is busy")
    }

    pub(super) fn n_held(&self, slot: SlotId) -> u32 {
        u32::try_from(self.table.slot(slot).tokens().len()).expect("a slot holds at most a context, a u32")
    }

    fn load(&self) -> Load {
        let left = |(slot, sequence): (SlotId, &Sequence)| u64::from(sequence.n_prompt_left(self.n_held(slot)));
        let n_running = self.running().count();
        let prefills: Vec<u64> = self.running().map(left).filter(|n_left| *n_left > 0).collect();
        Load {
            queued_prefill_tokens: self.waiting.iter().map(|waiting| u64::from(waiting.n_uncached)).sum(),
            running_prefill_tokens: prefills.iter().sum(),
            n_queued: u32::try_from(self.waiting.len()).unwrap_or(u32::MAX),
            n_decoding: u32::try_from(n_running - prefills.len()).unwrap_or(u32::MAX),
            busy_slots: self.busy_slots(),
            free_cells: self.table.free_cells(),
            draining: self.view.draining.load(Relaxed),
            rates: self.averages.rates(),
        }
    }

    fn slot_views(&self) -> Vec<SlotView> {
        let view = |(id, sequence): (SlotId, &Option<Sequence>)| SlotView {
            id,
            request_id: sequence.as_ref().map(|sequence| sequence.submission.request_id.clone()),
            held_tokens: self.n_held(id),
            exact_tokens: self.table.slot(id).exact_tokens().len() as u32,
            prompt_tokens: sequence.as_ref().map_or(0, |sequence| sequence.submission.prompt.len() as u32),
            cached_tokens: sequence.as_ref().map_or(0, |sequence| sequence.n_cached),
            decoded_tokens: sequence.as_ref().map_or(0, |sequence| sequence.n_generated),
            remaining_tokens: sequence.as_ref().and_then(|sequence| {
                let n_max = sequence.submission.generation.max_tokens?;
                Some(n_max.saturating_sub(sequence.n_generated))
            }),
        };
        (0..).map(SlotId).zip(&self.running).map(view).collect()
    }

    fn count(&self) {
        let counters = &self.view.counters;
        counters.busy_slots.store(self.running().count() as u64, Relaxed);
        counters.queued.store(self.waiting.len() as u64, Relaxed);
        counters.held_tokens.store(self.table.held_tokens(), Relaxed);
        let longest = self.table.iter().map(|(_, slot)| slot.tokens().len()).max().unwrap_or(0);
        counters.sequence_tokens_max.fetch_max(longest as u64, Relaxed);
    }

    fn count_batch(&self, batch: &Batch) {
        let counters = &self.view.counters;
        counters.steps.fetch_add(1, Relaxed);
        counters.busy_slot_steps.fetch_add(self.running().count() as u64, Relaxed);
        counters.prefill_tokens.fetch_add(u64::from(batch.n_prefill), Relaxed);
        counters.decode_tokens.fetch_add(u64::from(batch.n_decode), Relaxed);
    }
}

/// Returns a token with its properties; `spelled` has the control tokens that are text.
pub(super) fn look_up(model: &LlamaModel, sampled: SampledToken, spelled: &[Token]) -> Chosen {
    let SampledToken { token, n_draws } = sampled;
    let vocab = model.vocab();
    let llama_token = LlamaToken(i32::try_from(token).expect("llama.cpp's tokens are i32"));
    Chosen {
        token,
        piece: vocab.token_to_piece(llama_token, spelled.binary_search(&token).is_ok(), None),
        ends_generation: vocab.is_eog(llama_token),
        probabilities: None,
        n_draws,
    }
}
