//! The next computation: a batch is planned, and its micro-batches are computed one by one.
//!
//! A step computes one micro-batch, so a new request waits for at most one. A batch continues over several steps as
//! long as no sequence has joined those it was planned for; then the rest of it is planned again. Prompts that end
//! within a batch begin their responses at its end, as planned: otherwise their streams would take turns from prompts
//! that end later.
//!
//! Not here: the plan (`warmpath_worker_core::batch_plan`) and its cuts (`micro_batches`), computing them (`step`).

use std::collections::BTreeSet;

use warmpath_common::ids::SlotId;
use warmpath_worker_core::adapter_schedule;
use warmpath_worker_core::batch_plan::{self, Pending, Room, Share, Work};
use warmpath_worker_core::micro_batches;

use crate::engine::llama::Logits;
use crate::engine::sequence::{Purpose, Sequence};
use crate::engine::step::Scheduler;

/// A batch in progress.
#[derive(Default)]
pub(crate) struct Planned {
    /// Shares not yet computed, in their order.
    rest: Vec<Share>,
    /// Sequences that could have a share, by the order of their starts.
    for_whom: BTreeSet<u64>,
}

impl Planned {
    /// Drops the rest of a slot whose sequence leaves.
    pub(crate) fn leave(&mut self, slot: SlotId) {
        self.rest.retain(|share| share.slot != slot);
    }

    /// Drops the rest of the batch.
    pub(crate) fn give_up(&mut self) {
        self.rest.clear();
    }

    /// Returns whether the batch is computed or dropped.
    pub(crate) fn is_over(&self) -> bool {
        self.rest.is_empty()
    }
}

/// A micro-batch: its shares, and the index of each slot's logits.
pub(crate) struct Batch {
    pub(crate) shares: Vec<Share>,
    pub(crate) outputs: Vec<(SlotId, Purpose, i32)>,
    pub(crate) n_prefill: u32,
    /// Tokens of streams, drafted ones included.
    pub(crate) n_decode: u32,
}

impl Scheduler<'_> {
    /// Assembles the next micro-batch, of the batch in progress or of a new one.
    pub(crate) fn fill_batch(&mut self) -> Batch {
        if !self.goes_on() {
            self.planned.give_up();
            self.tell_chosen();
            self.planned = self.plan_batch();
        }
        let shares = micro_batches::take(&mut self.planned.rest, self.room);
        let mut batch = Batch { shares, outputs: Vec::new(), n_prefill: 0, n_decode: 0 };
        self.llama.reset_batch();
        for share in &batch.shares {
            let n_held = self.n_held(share.slot);
            let Some(sequence) = &self.running[usize::from(share.slot.0)] else { continue };
            match sequence.work(n_held) {
                Work::Decode => batch.n_decode += share.n_tokens,
                Work::Prefill { .. } => batch.n_prefill += share.n_tokens,
            }
            let n_after = n_held + share.n_tokens;
            for (position, token) in (n_held..).zip(sequence.upcoming(n_held, share.n_tokens)) {
                let purpose = sequence.purpose(position, n_after);
                let logits = if purpose.is_some() { Logits::Wanted } else { Logits::Unwanted };
                let idx = self.llama.push(share.slot, (position, *token), logits);
                batch.outputs.extend(purpose.map(|purpose| (share.slot, purpose, idx)));
            }
        }
        batch
    }

    /// Returns whether the batch in progress is still the right one: no sequence has joined, and no share goes too far.
    fn goes_on(&self) -> bool {
        let has_come = |(_, sequence): (SlotId, &Sequence)| !self.planned.for_whom.contains(&sequence.order);
        // A checkpoint that another request now waits for ends a share.
        let is_cut = |share: &Share| match self.sequence(share.slot).work(self.n_held(share.slot)) {
            Work::Decode => true,
            Work::Prefill { n_tokens, .. } => n_tokens < share.n_tokens,
        };
        !self.planned.is_over() && !self.able().any(has_come) && !self.planned.rest.iter().any(is_cut)
    }

    /// Returns the sequences that have something to compute.
    fn able(&self) -> impl Iterator<Item = (SlotId, &Sequence)> {
        self.running().filter(|(_, sequence)| !sequence.is_unread())
    }

    /// Plans the next batch, all of sequences with one adapter, the next in turn.
    ///
    /// It is a micro-batch if other adapters have their turn after it, or if a prompt is in progress beside others: it
    /// was there before them, so none of them should wait until it ends.
    fn plan_batch(&mut self) -> Planned {
        let adapter_of = |sequence: &Sequence| sequence.submission.adapter;
        // Readers read meanwhile, so the plan uses one look at them.
        let able: Vec<SlotId> = self.able().map(|(slot, _)| slot).collect();
        let present = able.iter().map(|slot| adapter_of(self.sequence(*slot)));
        let Some(adapter) = adapter_schedule::next(present, self.last_adapter) else { return Planned::default() };
        self.last_adapter = Some(adapter);
        let list_max = self.list_max();
        let able = || able.iter().map(|slot| (*slot, self.sequence(*slot)));
        let is_next = |(slot, sequence): (SlotId, &Sequence)| {
            (adapter_of(sequence) == adapter).then(|| self.pending((slot, sequence), list_max))
        };
        let pending: Vec<Pending> = able().filter_map(is_next).collect();
        let is_short = able().any(|(_, sequence)| adapter_of(sequence) != adapter) || self.is_joined(able());
        let batch_tokens = if is_short { self.room.ubatch_tokens } else { self.room.batch_tokens };
        let room = Room { batch_tokens, ..self.room };
        let shares = batch_plan::plan(&pending, room, self.averages.pace(), self.waiting.len());
        let for_whom = able().map(|(_, sequence)| sequence.order).collect();
        let shares =
            if pending.iter().all(|pending| pending.work == Work::Decode) { self.draft(shares) } else { shares };
        let rest = match &self.runs {
            Some(runs) => runs.arrange(&shares),
            None => shares,
        };
        Planned { rest, for_whom }
    }

    /// Returns whether one of these sequences' prompts has begun and there are others.
    fn is_joined<'a>(&'a self, able: impl Iterator<Item = (SlotId, &'a Sequence)>) -> bool {
        let begun: Vec<bool> = able
            .map(|(slot, sequence)| (sequence, self.n_held(slot)))
            .filter(|(sequence, n_held)| sequence.work(*n_held) != Work::Decode)
            .map(|(sequence, n_held)| n_held > sequence.n_cached)
            .collect();
        begun.len() > 1 && begun.contains(&true)
    }

    /// Returns the most tokens of one prompt in a batch whose logits are all wanted.
    fn list_max(&self) -> u32 {
        let n_listing = self.running().filter(|(_, sequence)| sequence.lists_prompt()).count();
        let logits_per_token = self.model.n_vocab().unsigned_abs() as usize * n_listing.max(1);
        u32::try_from(self.listed_logits_max / logits_per_token.max(1)).unwrap_or(u32::MAX).max(1)
    }

    /// Returns the work of a sequence.
    fn pending(&self, (slot, sequence): (SlotId, &Sequence), list_max: u32) -> Pending {
        let work = match sequence.work(self.n_held(slot)) {
            // Each step of such a prompt is a turn, the last one too: its tokens take longer than others'.
            Work::Prefill { n_tokens, .. } if sequence.lists_prompt() => {
                Work::Prefill { n_tokens: n_tokens.min(list_max), ends: false }
            }
            work => work,
        };
        Pending { slot, work, waited: sequence.waited(), passed_tokens: sequence.passed_tokens }
    }
}
