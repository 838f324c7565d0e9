//! What is computed next: a batch is planned, and its micro-batches are computed one by one.
//!
//! Not here: the plan (`warmpath_worker_core::batch_plan`) and its cuts (`micro_batches`), computing them (`step`).
//! The idea: a step computes one micro-batch, so whatever arrives waits for one at most. A batch goes on over several
//! steps as long as nobody has joined those for whom it was planned; else what is left of it is planned anew. Prompts
//! that end in a batch begin to answer with its end, as the plan has it: their streams would else take turns from those
//! that end later.

use std::collections::BTreeSet;

use warmpath_common::ids::SlotId;
use warmpath_worker_core::adapter_turns;
use warmpath_worker_core::batch_plan::{self, Pending, Room, Share, Work};
use warmpath_worker_core::micro_batches;

use super::llama::Logits;
use super::sequence::{Purpose, Sequence};
use super::step::Stepper;

/// A batch under way.
#[derive(Default)]
pub(super) struct Planned {
    /// Shares not yet computed, in their order.
    rest: Vec<Share>,
    /// Sequences that could have a share, by the order of their starts.
    for_whom: BTreeSet<u64>,
}

impl Planned {
    /// Forgets what is left for a slot, whose sequence goes.
    pub(super) fn leave(&mut self, slot: SlotId) {
        self.rest.retain(|share| share.slot != slot);
    }

    /// Forgets what is left.
    pub(super) fn give_up(&mut self) {
        self.rest.clear();
    }

    /// Returns whether all is computed or given up.
    pub(super) fn is_over(&self) -> bool {
        self.rest.is_empty()
    }
}

/// Is a micro-batch that was put together: the shares, and where the logits of which slot will be.
pub(super) struct Batch {
    pub(super) shares: Vec<Share>,
    pub(super) outputs: Vec<(SlotId, Purpose, i32)>,
    pub(super) n_prefill: u32,
    pub(super) n_decode: u32,
}

impl Stepper<'_> {
    /// Puts the next micro-batch together, of the batch under way or of a new one.
    pub(super) fn fill_batch(&mut self) -> Batch {
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
                Work::Decode => batch.n_decode += 1,
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

    /// Returns whether the batch under way is still what is to be computed: nobody has come, and no share goes too far.
    fn goes_on(&self) -> bool {
        let has_come = |(_, sequence): (SlotId, &Sequence)| !self.planned.for_whom.contains(&sequence.order);
        // A checkpoint that another has come to wait for ends a share.
        let is_cut = |share: &Share| match self.sequence(share.slot).work(self.n_held(share.slot)) {
            Work::Decode => true,
            Work::Prefill { n_tokens, .. } => n_tokens < share.n_tokens,
        };
        !self.planned.is_over() && !self.able().any(has_come) && !self.planned.rest.iter().any(is_cut)
    }

    /// Returns the sequences for whom something can be computed.
    fn able(&self) -> impl Iterator<Item = (SlotId, &Sequence)> {
        self.running().filter(|(_, sequence)| !sequence.is_unread())
    }

    /// Plans the next batch, all of sequences with one adapter, the next in turn.
    ///
    /// It is a micro-batch where others have their turn behind it, and where a prompt is under way beside others: it was
    /// there before them, so none of them is to wait until it ends.
    fn plan_batch(&mut self) -> Planned {
        let adapter_of = |sequence: &Sequence| sequence.submission.adapter;
        // Readers read meanwhile, so the plan goes by one look at them.
        let able: Vec<SlotId> = self.able().map(|(slot, _)| slot).collect();
        let present = able.iter().map(|slot| adapter_of(self.sequence(*slot)));
        let Some(adapter) = adapter_turns::next(present, self.last_adapter) else { return Planned::default() };
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

    /// Returns what a sequence has to compute.
    fn pending(&self, (slot, sequence): (SlotId, &Sequence), list_max: u32) -> Pending {
        let work = match sequence.work(self.n_held(slot)) {
            // Each step of a list is a turn, its last one too: its tokens take longer than others'.
            Work::Prefill { n_tokens, .. } if sequence.lists_prompt() => {
                Work::Prefill { n_tokens: n_tokens.min(list_max), ends: false }
            }
            work => work,
        };
        Pending { slot, work, waited: sequence.waited(), passed_tokens: sequence.passed_tokens }
    }
}
