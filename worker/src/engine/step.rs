//! One step of the engine: admit, decode, sample, emit.
//!
//! [`EngineState`] composes the owners of the engine's state. A sequence's slot is released exactly once, however
//! the sequence ends. KV state that cannot be trusted is cleared before the slot is used again.
//!
//! Not here: what a failure of llama.cpp ends (`failures`), when to step and when to stop (`thread`), llama.cpp's calls
//! (`llama`).

mod failures;
mod queries;

use std::collections::VecDeque;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use warmpath_common::ids::SlotId;
use warmpath_worker_core::reports::rates::StepCounts;
use warmpath_worker_core::slots::slot_plan::SlotPlan;

use super::api::{EngineError, EngineEvent, FinishReason, PromptFault};
use super::counters::Counters;
use super::kv::KvState;
use super::kv::contents::NamedPins;
use super::kv::receiving::{IncomingTransfers, PrefetchOrder};
use super::kv::saved_slot::SlotExports;
use super::kv::sending::OutgoingRuns;
use super::output::Generator;
use super::output::speculation::DraftEnd;
use super::publish::EnginePublisher;
use super::schedule::Scheduler;
use super::schedule::batch::{Batch, BatchOutput};
use super::schedule::queue::QueuedSubmission;
use super::sequence::admission::Admission;
use super::sequence::{LogitsUse, Sequence};

/// State owned by the engine thread.
pub(crate) struct EngineState<'m> {
    pub(super) schedule: Scheduler,
    pub(super) kv: KvState<'m>,
    /// State from other workers that requests wait for.
    pub(super) transfers: IncomingTransfers,
    /// Runs of blocks for other workers.
    pub(super) runs: OutgoingRuns,
    /// Exports of slots that wait for the disk.
    pub(super) exports: SlotExports,
    pub(super) pins: NamedPins,
    pub(super) generator: Generator<'m>,
    pub(super) publisher: EnginePublisher,
    /// Computations that have failed since the last successful one.
    pub(super) n_failed_decodes: u32,
    /// Whether the last step started, computed or ended something, so that the next one may have more to do.
    pub(super) has_changed: bool,
    /// Start of the last step.
    pub(super) stepped_at: Instant,
}

impl EngineState<'_> {
    /// Returns whether no sequence runs and no submission waits.
    pub(super) fn is_idle(&self) -> bool {
        let is_empty = self.schedule.queue.is_empty() && self.schedule.running.is_empty();
        is_empty && self.exports.is_empty() && self.runs.is_empty()
    }

    /// Returns whether another step would do nothing before a command arrives or something is [due](Self::due).
    ///
    /// Everything else that a step waits for wakes the thread with a command: the disk, readers, the encoder, other
    /// workers.
    pub(super) fn is_settled(&self) -> bool {
        !self.has_changed && !self.schedule.has_ready(&self.kv.table) && !self.runs.is_storing()
    }

    /// Returns the time at which the next step has work without a command: an update for routers is due, a wait of a
    /// request ends, or a read becomes late.
    pub(super) fn due(&self) -> Option<Instant> {
        let now = Instant::now();
        let update = self.publisher.report.due_in(now).map(|wait| now + wait);
        // Waits that had ended when the last step began were ended by it.
        let is_pending = |until: &Instant| *until > self.stepped_at;
        let held_until = self.schedule.queue.iter().filter_map(|waiting| waiting.held_until).filter(is_pending);
        let late_read = self.kv.cache.next_late_read(self.stepped_at);
        update.into_iter().chain(held_until).chain(self.transfers.deadlines()).chain(late_read).min()
    }

    /// Orders a prefix from another worker before a request needs it.
    pub(super) fn prefetch(&mut self, order: PrefetchOrder) {
        self.transfers.prefetch(order, &mut self.kv);
    }

    /// Puts a submission at the end of the queue.
    pub(super) fn enqueue(&mut self, admission: Admission) {
        self.publisher.report.count(admission.announcement.as_ref());
        self.schedule.enqueue(admission, &mut self.kv, &mut self.transfers);
    }

    /// Runs one step: frees slots, admits submissions, computes one micro-batch, reports.
    pub(super) fn step(&mut self) {
        self.has_changed = false;
        self.stepped_at = Instant::now();
        self.kv.cache.take_disk_events();
        self.exports.finish(&mut self.kv.cache);
        self.runs.advance(&mut self.kv);
        self.drop_abandoned();
        self.schedule.take_received(&mut self.transfers, &mut self.kv.cache);
        self.admit();
        self.fail_unencoded();
        self.shift_full();
        self.check_moves();
        self.count();
        let batch = self.fill_batch();
        if !batch.shares.is_empty() {
            self.has_changed = true;
            self.publisher.report.touch();
            // Routers send further requests with the same prefix to this worker once they have this report, so it is
            // sent before the step.
            if self.publisher.report.is_urgent() {
                self.publish();
            }
            self.compute(&batch);
            self.kv.move_out_costly();
        }
        self.count();
        self.publish();
    }

    /// Publishes changes if an update is due.
    pub(super) fn publish(&mut self) {
        self.publisher.publish(&self.schedule, &mut self.kv);
    }

    /// Fails every waiting submission.
    pub(super) fn refuse_waiting(&mut self, error: &EngineError) {
        for waiting in std::mem::take(&mut self.schedule.queue) {
            waiting.release_chunks(&mut self.kv.cache);
            waiting.admission.submission.events.send(EngineEvent::Failed(error.clone()));
            self.counters().failed.fetch_add(1, Relaxed);
        }
        self.publisher.report.touch();
    }

    /// Fails every running sequence.
    pub(super) fn fail_running(&mut self, error: &EngineError) {
        for slot in self.schedule.running.slots() {
            self.fail(slot, error);
        }
    }

    fn drop_abandoned(&mut self) {
        let (gone, waiting): (VecDeque<QueuedSubmission>, VecDeque<QueuedSubmission>) =
            std::mem::take(&mut self.schedule.queue)
                .into_iter()
                .partition(|waiting| waiting.admission.submission.events.is_closed());
        self.schedule.queue = waiting;
        for waiting in gone {
            waiting.release_chunks(&mut self.kv.cache);
            // The place is freed before the counters change.
            drop(waiting);
            self.counters().cancelled.fetch_add(1, Relaxed);
        }
        for slot in self.schedule.running.slots() {
            if self.schedule.running.in_slot(slot).is_abandoned() {
                drop(self.release(slot));
                self.counters().cancelled.fetch_add(1, Relaxed);
            }
        }
    }

    /// Starts every waiting submission that can start now, in the order of arrival.
    fn admit(&mut self) {
        let prefill_rate = self.schedule.averages.rates().prefill_tokens_per_s;
        self.kv.cache.learn(|costs| costs.learn_prefill(prefill_rate));
        let mut idx = 0;
        while let Some((waiting, plan)) = self.schedule.next_start(&mut idx, &mut self.kv) {
            self.start(waiting, &plan);
            self.has_changed = true;
        }
        self.has_changed |= self.schedule.take_fetched();
    }

    fn start(&mut self, waiting: QueuedSubmission, plan: &SlotPlan) {
        let wait_since = |since: Option<Instant>| since.map_or(Duration::ZERO, |since| since.elapsed());
        self.counters().waited(wait_since(waiting.shares_since), wait_since(waiting.reads_since));
        let mut start = self.kv.start(&waiting.admission, plan, &waiting.fetching);
        waiting.release_chunks(&mut self.kv.cache);
        let QueuedSubmission { mut admission, fetched, .. } = waiting;
        self.publisher.report.resolve(admission.announcement.take());
        let past_tokens = std::mem::take(&mut admission.past);
        start.started.fetched = fetched;
        let slot = start.started.slot;
        let sequence = self.schedule.start(admission, start);
        let n_tokens = sequence.submission.prompt.len();
        let context_tokens = self.kv.table.context_tokens();
        if let Some(reason) = self.generator.replay(sequence, past_tokens) {
            self.finish(slot, reason);
        } else if n_tokens > context_tokens as usize {
            self.fail(slot, &EngineError::InvalidPrompt(PromptFault::TooLong { n_tokens, context_tokens }));
        }
    }

    /// Fails the sequences whose media could not be encoded.
    fn fail_unencoded(&mut self) {
        for slot in self.schedule.running.slots() {
            let failure = self.schedule.running.in_slot(slot).encoder_failure().map(str::to_owned);
            if let Some(reason) = failure {
                self.fail(slot, &EngineError::Encode(reason));
            }
        }
    }

    /// Shifts the contexts that are full and whose sequences continue.
    fn shift_full(&mut self) {
        for slot in self.schedule.running.slots() {
            if !self.generator.shifts(self.kv.n_held(slot)) {
                continue;
            }
            let Some(sequence) = self.schedule.running.get_mut(slot) else { continue };
            match self.kv.shift_context(slot, sequence.submission.shifts) {
                Ok(is_shifted) => sequence.truncated |= is_shifted,
                Err(error) => self.abort(slot, &error.to_string()),
            }
        }
    }

    /// Assembles the next micro-batch of the batch in progress, or of a new one.
    fn fill_batch(&mut self) -> Batch {
        if !self.schedule.continues(&self.kv.table) {
            self.schedule.give_up();
            self.send_chosen();
            self.schedule.plan_batch(&self.kv.table, &mut self.generator);
        }
        self.schedule.fill_batch(&mut self.kv)
    }

    fn compute(&mut self, batch: &Batch) {
        let began = Instant::now();
        if let Err(reason) = self.kv.llama.apply(self.schedule.adapter()) {
            return self.fail_batch(batch, &format!("the adapter cannot be applied: {reason}"));
        }
        let hidden_states = self.generator.write_hidden(batch, &self.schedule.running, &mut self.kv);
        if !self.decode(batch) {
            return;
        }
        self.generator.record_hidden(batch, hidden_states, &self.schedule.running, &self.kv);
        if let Some(waits) = self.kv.llama.take_waits() {
            self.counters().threads_waited(waits);
            self.schedule.averages.waited(waits);
        }
        // The slot table records the computed tokens before logits are used, because a sampled token may end a sequence
        // and release its slot.
        self.publisher.count_batch(batch, self.schedule.running.iter().count());
        self.schedule.count_passed_tokens(batch);
        self.record(batch);
        self.append_parked();
        self.check_moves();
        let n_streams = batch.shares.iter().filter(|share| self.is_stream(share.slot)).count() as u32;
        let n_chosen = self.use_logits(batch);
        if self.schedule.is_over() {
            self.send_chosen();
        }
        // A request for only its prompt ends here.
        for share in &batch.shares {
            let n_held = self.kv.n_held(share.slot);
            let is_over = |sequence: &Sequence| sequence.is_prompt_only(n_held);
            if self.schedule.running.get(share.slot).is_some_and(is_over) {
                self.finish(share.slot, FinishReason::Length);
            }
        }
        let counts = StepCounts { n_prefill: batch.n_prefill, n_decode: batch.n_decode, n_streams, n_chosen };
        self.schedule.averages.step(counts, began.elapsed() + self.generator.take_making_time());
    }

    /// Records the tokens of a computed batch, and makes the checkpoints that sequences have reached.
    fn record(&mut self, batch: &Batch) {
        for share in &batch.shares {
            let n_held = self.kv.n_held(share.slot);
            if let Some(sequence) = self.schedule.running.get(share.slot) {
                // The tokens of a draft are recorded when they are accepted.
                let n_tokens = if sequence.is_stream() { 1 } else { share.n_tokens };
                self.kv.extend(share.slot, sequence.upcoming(n_held, n_tokens));
            }
        }
        for (slot, sequence) in self.schedule.running.iter_mut() {
            if let Some(place) = sequence.reaches_checkpoint(self.kv.n_held(slot)) {
                self.kv.keep_checkpoint(slot, place);
            }
        }
    }

    /// Continues the prompts that have been computed up to their parked state.
    fn append_parked(&mut self) {
        for slot in self.schedule.running.slots() {
            let n_held = self.kv.n_held(slot);
            let Some(sequence) = self.schedule.running.get_mut(slot) else { continue };
            let Some(run) = sequence.take_parked(n_held) else { continue };
            if let Err(error) = self.kv.append_parked(slot, &run, &sequence.submission.prompt) {
                self.abort(slot, &error.to_string());
            }
        }
    }

    /// Chooses tokens and records log probabilities of prompts; returns the number of tokens chosen for streams.
    fn use_logits(&mut self, batch: &Batch) -> u32 {
        let mut n_chosen = 0;
        for outputs in batch.outputs.chunk_by(|a, b| a.slot == b.slot) {
            let slot = outputs[0].slot;
            let is_stream = self.is_stream(slot);
            if is_stream && outputs.len() > 1 {
                n_chosen += self.verify(slot, outputs);
                continue;
            }
            n_chosen += u32::from(is_stream);
            for output in outputs {
                let Some(sequence) = self.schedule.running.get_mut(slot) else { break };
                let logits = self.kv.llama.logits(output.row);
                match output.purpose {
                    LogitsUse::Check => {}
                    LogitsUse::List => sequence.list(logits),
                    LogitsUse::Choose => {
                        if let Err(error) = self.generator.choose(sequence, logits) {
                            self.fail(slot, &error);
                        }
                    }
                }
            }
        }
        n_chosen
    }

    /// Verifies the draft of a stream and sends the chosen tokens; returns their number.
    fn verify(&mut self, slot: SlotId, outputs: &[BatchOutput]) -> u32 {
        let rows: Vec<i32> = outputs.iter().map(|output| output.row).collect();
        let Some(sequence) = self.schedule.running.get_mut(slot) else { return 0 };
        let verification = self.generator.verify(slot, sequence, &rows, &mut self.kv);
        match verification.end {
            DraftEnd::Finished(reason) => self.finish(slot, reason),
            DraftEnd::Failed(error) => self.fail(slot, &error),
            DraftEnd::Rejected => {
                if !self.kv.drop_rejected(slot) {
                    self.abort(slot, "the state of rejected tokens cannot be removed");
                }
            }
        }
        verification.n_chosen
    }

    fn is_stream(&self, slot: SlotId) -> bool {
        self.schedule.running.get(slot).is_some_and(Sequence::is_stream)
    }

    /// Sends the chosen token of each sequence that has one.
    fn send_chosen(&mut self) {
        for slot in self.schedule.running.slots() {
            let Some(sequence) = self.schedule.running.get_mut(slot) else { continue };
            if let Some(reason) = self.generator.send_chosen(sequence, self.kv.n_held(slot)) {
                self.finish(slot, reason);
            }
        }
    }

    fn finish(&mut self, slot: SlotId, reason: FinishReason) {
        let mut sequence = self.release(slot);
        sequence.tell_prompt();
        self.schedule.averages.answer_ended(sequence.n_generated);
        let response_end = sequence.finished(reason);
        self.counters().answered(&response_end);
        self.send_final_event(sequence, EngineEvent::Finished(response_end));
    }

    fn fail(&mut self, slot: SlotId, error: &EngineError) {
        let sequence = self.release(slot);
        self.counters().failed.fetch_add(1, Relaxed);
        self.send_final_event(sequence, EngineEvent::Failed(error.clone()));
    }

    /// Sends a sequence's last event. Its slot and its place are free at this point, so a client that then reads
    /// `/slots` sees them free.
    fn send_final_event(&self, sequence: Sequence, event: EngineEvent) {
        let events = sequence.into_events();
        self.count();
        self.publisher.show_slots(&self.schedule, &self.kv.table);
        events.send(event);
    }

    /// Ends a slot's sequence, and keeps or clears its KV state as its request demands.
    fn release(&mut self, slot: SlotId) -> Sequence {
        self.has_changed = true;
        self.publisher.report.touch();
        let sequence = self.schedule.end(slot);
        self.generator.remember(&sequence, self.kv.table.slot(slot), self.kv.tenant(slot));
        if self.generator.drafts() && !self.kv.drop_rejected(slot) {
            self.kv.clear_slot(slot);
        }
        self.kv.release(slot);
        sequence
    }

    fn count(&self) {
        self.publisher.count(&self.schedule, &self.kv);
    }

    fn counters(&self) -> &Counters {
        &self.publisher.view.counters
    }
}
