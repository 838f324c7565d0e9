//! The next computation: a batch is planned, and its micro-batches are computed one by one.
//!
//! A step computes one micro-batch, so a new request waits for at most one. A batch is computed over several steps.
//! When another sequence becomes ready, the rest of the batch is dropped and a new batch is planned. A prompt that ends
//! within a batch starts its response after the batch; otherwise its decode steps would delay the batch's other
//! prompts.
//!
//! Not here: the plan (`warmpath_worker_core::batches::batch_plan`) and its cuts (`micro_batches`), computing them
//! (`step`).

use std::collections::BTreeSet;
use std::sync::atomic::Ordering::Relaxed;

use warmpath_common::ids::SlotId;
use warmpath_common::lora::Applied;
use warmpath_worker_core::batches::adapter_schedule::AdapterTurns;
use warmpath_worker_core::batches::batch_plan::{self, BatchLimits, Passes, RunningSequence, Share, Work};
use warmpath_worker_core::batches::micro_batches;
use warmpath_worker_core::slots::slot_table::SlotTable;

use super::Scheduler;
use crate::engine::kv::KvState;
use crate::engine::llama::Logits;
use crate::engine::output::Generator;
use crate::engine::sequence::{LogitsUse, Sequence};

/// A batch in progress.
#[derive(Default)]
pub(super) struct PlannedBatch {
    /// Shares not yet computed, in their order.
    rest: Vec<Share>,
    /// Shares with a draft that are computed after these, each in a micro-batch of its own.
    alone: Vec<Share>,
    /// Sequences that were ready when the batch was planned, by the order of their starts.
    ready: BTreeSet<u64>,
}

/// Logits of a micro-batch's token.
#[derive(Debug, Clone, Copy)]
pub(crate) struct BatchOutput {
    pub(crate) slot: SlotId,
    pub(crate) purpose: LogitsUse,
    /// Index of the token in llama.cpp's batch.
    pub(crate) row: i32,
}

/// A micro-batch: its shares, and the tokens whose logits are computed.
pub(crate) struct Batch {
    pub(crate) shares: Vec<Share>,
    pub(crate) outputs: Vec<BatchOutput>,
    pub(crate) n_prefill: u32,
    /// Decode tokens, including drafted ones.
    pub(crate) n_decode: u32,
}

impl Scheduler {
    /// Returns whether the batch in progress is still valid: no other sequence is ready, and no share is too long.
    pub(crate) fn continues(&self, table: &SlotTable) -> bool {
        let has_come = |(_, sequence): (SlotId, &Sequence)| !self.planned.ready.contains(&sequence.order);
        // A share must not go past a position that another request has started to wait for.
        let is_cut = |share: &Share| match self.running.in_slot(share.slot).work(table.n_held(share.slot)) {
            Work::Decode => true,
            Work::Prefill { n_tokens, .. } => n_tokens < share.n_tokens,
        };
        !self.is_over() && !self.ready(table).any(has_come) && !self.planned.rest.iter().any(is_cut)
    }

    /// Returns whether the batch has been computed completely, or dropped.
    pub(crate) fn is_over(&self) -> bool {
        self.planned.rest.is_empty() && self.planned.alone.is_empty()
    }

    /// Drops the rest of the batch in progress.
    pub(crate) fn give_up(&mut self) {
        self.planned.rest.clear();
        self.planned.alone.clear();
    }

    /// Ends the sequence in a busy slot, and drops its shares of the batch in progress.
    pub(crate) fn end(&mut self, slot: SlotId) -> Sequence {
        self.planned.rest.retain(|share| share.slot != slot);
        self.planned.alone.retain(|share| share.slot != slot);
        self.running.take(slot)
    }

    /// Takes the next micro-batch from the batch in progress and puts its tokens into llama.cpp's batch.
    pub(crate) fn fill_batch(&mut self, kv: &mut KvState<'_>) -> Batch {
        let shares = match self.planned.rest.is_empty() {
            true => self.planned.alone.pop().into_iter().collect(),
            false => micro_batches::take(&mut self.planned.rest, self.limits.room),
        };
        let mut batch = Batch { shares, outputs: Vec::new(), n_prefill: 0, n_decode: 0 };
        kv.llama.reset_batch();
        for share in &batch.shares {
            let n_held = kv.n_held(share.slot);
            let Some(sequence) = self.running.get(share.slot) else { continue };
            match sequence.work(n_held) {
                Work::Decode => batch.n_decode += share.n_tokens,
                Work::Prefill { .. } => batch.n_prefill += share.n_tokens,
            }
            let n_after = n_held + share.n_tokens;
            if let Some((floats, attention)) = sequence.embeddings(n_held, share.n_tokens) {
                let purpose = sequence.purpose(n_after - 1, n_after);
                let logits = if purpose.is_some() { Logits::Wanted } else { Logits::Unwanted };
                let row = kv.llama.push_embeddings(share.slot, n_held..n_after, floats, attention, logits);
                batch.outputs.extend(purpose.map(|purpose| BatchOutput { slot: share.slot, purpose, row }));
                continue;
            }
            for (position, token) in (n_held..).zip(sequence.upcoming(n_held, share.n_tokens)) {
                let purpose = sequence.purpose(position, n_after);
                let logits = if purpose.is_some() { Logits::Wanted } else { Logits::Unwanted };
                let row = kv.llama.push(share.slot, position, *token, logits);
                batch.outputs.extend(purpose.map(|purpose| BatchOutput { slot: share.slot, purpose, row }));
            }
        }
        batch
    }

    /// Returns the adapter of the planned batch's sequences; `None` if they have none.
    pub(crate) fn adapter(&self) -> Option<Applied> {
        self.adapter
    }

    /// Adds the prefill tokens for which streams wait to the counter of each stream, which starts anew with each of its
    /// tokens.
    pub(crate) fn count_passed_tokens(&mut self, batch: &Batch) {
        let n_passed = batch_plan::passed_tokens(self.limits.room.passes, batch.n_prefill, batch.n_decode);
        let is_held_up = |sequence: &&mut Sequence| sequence.is_stream() && !sequence.is_unread();
        for sequence in self.running.iter_mut().map(|(_, sequence)| sequence).filter(is_held_up) {
            sequence.passed_tokens += n_passed;
            self.counters.passed_tokens_max.fetch_max(u64::from(sequence.passed_tokens), Relaxed);
        }
    }

    /// Returns the sequences whose next tokens can be computed now.
    fn ready(&self, table: &SlotTable) -> impl Iterator<Item = (SlotId, &Sequence)> {
        let waits = |slot: SlotId, sequence: &Sequence| sequence.awaits_encoder(table.n_held(slot));
        self.running.iter().filter(move |(slot, sequence)| !sequence.is_unread() && !waits(*slot, sequence))
    }

    /// Returns whether tokens of a sequence can be computed now.
    pub(crate) fn has_ready(&self, table: &SlotTable) -> bool {
        self.ready(table).next().is_some()
    }

    /// Plans the next batch. All its sequences have the same adapter; adapters take turns.
    ///
    /// The batch is a single micro-batch if sequences with other adapters are ready. It is also one if several prompts
    /// are ready and one of them has already started, so that the new ones need not wait for a long batch.
    pub(crate) fn plan_batch(&mut self, table: &SlotTable, generator: &mut Generator<'_>) {
        // Clients read their streams at the same time, which changes this set, so it is determined once.
        let ready: Vec<SlotId> = self.ready(table).map(|(slot, _)| slot).collect();
        self.planned = PlannedBatch::default();
        self.planned.ready = ready.iter().map(|slot| self.running.in_slot(*slot).order).collect();
        let is_at_media = |slot: &SlotId| self.running.in_slot(*slot).is_at_media(table.n_held(*slot));
        let (media, ready): (Vec<SlotId>, Vec<SlotId>) = ready.into_iter().partition(is_at_media);
        let pending = self.with_adapters(&ready, table);
        let (room, pace) = (self.limits.room, self.averages.pace());
        let (passes, usual_prompt) = (room.passes, pace.usual_prompt);
        let turns = AdapterTurns { ready: &pending, round: &self.round, passes, usual_prompt };
        // A medium comes after a stream's token, not after a prompt for which the stream has waited already.
        let is_within_round = turns.is_within_round();
        let is_turn = !(is_within_round || (self.last_was_media && turns.follows_medium()));
        if is_turn && !media.is_empty() {
            self.last_was_media = true;
            return self.plan_media(&media, table);
        }
        let Some(adapter) = turns.next_adapter() else { return };
        let next = turns.sequences(adapter);
        self.round = turns.round_after(adapter);
        self.adapter = adapter;
        let is_short = pending.iter().any(|(other, _)| *other != adapter) || self.has_new_prompt(&ready, table);
        let batch_tokens = if is_short { room.ubatch_tokens } else { room.batch_tokens };
        let shares = batch_plan::plan(&next, BatchLimits { batch_tokens, ..room }, pace, self.queue.len());
        let has_stream = shares.iter().any(|share| self.running.in_slot(share.slot).is_stream());
        // The batches of a round do not take the turn of a prompt, which comes before the next medium.
        self.last_was_media &= passes == Passes::Apart && (is_within_round || has_stream);
        let mut with_adapter = pending.iter().filter(|(other, _)| *other == adapter);
        let shares = match with_adapter.all(|(_, sequence)| sequence.work == Work::Decode) {
            true => generator.draft(shares, &mut self.running, table, room.ubatch_tokens),
            false => shares,
        };
        let is_alone = |share: &Share| {
            let is_draft = share.n_tokens > 1 && self.running.in_slot(share.slot).is_stream();
            self.limits.drafts_alone && is_draft
        };
        let (alone, shares) = shares.into_iter().partition::<Vec<_>, _>(is_alone);
        self.planned.alone = alone;
        self.planned.rest = match &self.limits.decode_groups {
            Some(decode_groups) => decode_groups.arrange(&shares),
            None => shares,
        };
    }

    /// Returns the sequences in `slots` with their adapters.
    fn with_adapters(&self, slots: &[SlotId], table: &SlotTable) -> Vec<(Option<Applied>, RunningSequence)> {
        let list_max = self.list_max();
        let with_adapter = |slot: &SlotId| {
            let sequence = self.running.in_slot(*slot);
            (sequence.submission.adapter, pending(sequence, *slot, table.n_held(*slot), list_max))
        };
        slots.iter().map(with_adapter).collect()
    }

    /// Plans a batch with the next tokens of one medium; of several sequences, the one that started first is chosen.
    ///
    /// The batch is a single micro-batch and alternates with batches of tokens, so that no stream waits for a whole
    /// medium.
    fn plan_media(&mut self, slots: &[SlotId], table: &SlotTable) {
        let Some(slot) = slots.iter().copied().min_by_key(|slot| self.running.in_slot(*slot).order) else { return };
        let sequence = self.running.in_slot(slot);
        if let Work::Prefill { n_tokens, .. } = sequence.work(table.n_held(slot)) {
            self.adapter = sequence.submission.adapter;
            self.planned.rest = vec![Share { slot, n_tokens: n_tokens.min(self.limits.room.ubatch_tokens) }];
        }
    }

    /// Returns whether the sequences in `slots` have several prompts to compute, of which at least one has started.
    fn has_new_prompt(&self, slots: &[SlotId], table: &SlotTable) -> bool {
        let sequences = slots.iter().map(|slot| (self.running.in_slot(*slot), table.n_held(*slot)));
        let has_begun_each: Vec<bool> = sequences
            .filter(|(sequence, n_held)| sequence.work(*n_held) != Work::Decode)
            .map(|(sequence, n_held)| sequence.has_begun(n_held))
            .collect();
        has_begun_each.len() > 1 && has_begun_each.contains(&true)
    }

    /// Returns the maximum number of tokens per batch of one prompt whose log probabilities are wanted.
    fn list_max(&self) -> u32 {
        let n_listing = self.running.iter().filter(|(_, sequence)| sequence.lists_prompt()).count();
        u32::try_from(self.limits.listed_tokens_max / n_listing.max(1)).unwrap_or(u32::MAX).max(1)
    }
}

/// Returns the work of a sequence.
fn pending(sequence: &Sequence, slot: SlotId, n_held: u32, list_max: u32) -> RunningSequence {
    let work = match sequence.work(n_held) {
        // Its tokens take longer than others', so the prompt takes turns even for its last part.
        Work::Prefill { n_tokens, .. } if sequence.lists_prompt() => {
            Work::Prefill { n_tokens: n_tokens.min(list_max), ends: false }
        }
        work => work,
    };
    RunningSequence { slot, work, waited: sequence.waited(), passed_tokens: sequence.passed_tokens }
}
