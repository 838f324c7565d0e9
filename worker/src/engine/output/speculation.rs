//! Speculative decoding: drafted tokens are computed in one step and kept as far as the sampler chooses them.
//!
//! Every row of a draft is sampled with the sequence's own sampler, in order, as if it had been computed alone. The
//! first choice that differs from the draft is the next token, and the state of the tokens after it is removed before
//! anything is lent, stored or announced. So the sampler draws what it would draw without drafts, and the distribution
//! of responses is the same.
//!
//! Not here: what is proposed, and how much of it pays (`warmpath_worker_core::drafting`).
//! Source: sample-and-match, as `common_sampler_sample_and_accept_n` of llama.cpp.

use std::sync::atomic::Ordering::Relaxed;

use tracing::warn;
use warmpath_common::ids::{SlotId, Token};
use warmpath_common::model::MemoryKind;
use warmpath_worker_core::batch_plan::Share;
use warmpath_worker_core::drafting::lengths::{self, Possible, StepRoom};
use warmpath_worker_core::drafting::step_costs::StepCosts;
use warmpath_worker_core::drafting::suffix_memory::SuffixMemory;
use warmpath_worker_core::drafting::{DraftLimits, Drafter, ForcedDrafts};

use crate::engine::api::Submission;
use crate::engine::facts::EngineFacts;
use crate::engine::sequence::Purpose;
use crate::engine::step::Scheduler;

/// Most tokens of earlier answers that are searched. Source: own choice: some 15 MB.
const MEMORY_TOKENS_MAX: usize = 1 << 18;

/// How responses are drafted.
#[derive(Debug, Clone, Copy)]
pub struct SpeculationConfig {
    /// Limits of a draft.
    pub limits: DraftLimits,
    /// Drafts for tests in place of all others; `None` unless a test sets them.
    pub forced: Option<ForcedDrafts>,
}

impl Default for SpeculationConfig {
    fn default() -> Self {
        // With the token before it, the longest draft has the longest step that the self-test measures.
        Self { limits: DraftLimits { n_max: 31, n_min: 0 }, forced: None }
    }
}

impl SpeculationConfig {
    /// Returns the drafter of a submission's response; `None` if it asks for no drafts.
    pub(crate) fn drafter(self, submission: &Submission) -> Option<Drafter> {
        let wish = &submission.generation.drafts;
        let n_max = wish.n_max.map_or(self.limits.n_max, |n_max| self.limits.n_max.min(n_max as usize));
        let n_min = wish.n_min.map_or(self.limits.n_min, |n_min| n_min as usize);
        let drafter = Drafter::new(&submission.prompt, &wish.predicted, DraftLimits { n_max, n_min });
        let drafter = match self.forced {
            Some(forced) => drafter.forced(forced, &submission.prompt),
            None => drafter,
        };
        (n_max > 0).then_some(drafter)
    }
}

/// State of speculative decoding.
pub(crate) struct Speculation {
    memory: SuffixMemory,
    costs: StepCosts,
    /// Most drafts of one step.
    drafts_max: u32,
}

impl Speculation {
    pub(crate) fn new(costs: StepCosts, facts: &EngineFacts) -> Self {
        // llama.cpp may cut drafts of several sequences into several passes. A later pass reuses cells that a sliding
        // window has left behind, and a rejected token moves the window back.
        let drafts_max = if facts.memory == MemoryKind::Sliding { 1 } else { u32::from(facts.n_slots) };
        Self { memory: SuffixMemory::new(MEMORY_TOKENS_MAX), costs, drafts_max }
    }
}

/// Returns the lengths of whole drafts, as far as a step has room for them.
fn all_of(possible: &[Possible<'_>], room: StepRoom) -> Vec<usize> {
    let mut left = room.tokens_max.saturating_sub(room.n_streams) as usize;
    let whole = |possible: &Possible<'_>| {
        let n = possible.chances.len().min(left);
        left -= n;
        n
    };
    possible.iter().take(room.drafts_max as usize).map(whole).collect()
}

impl Scheduler<'_> {
    /// Adds drafts to the shares of a batch in which all sequences decode.
    pub(crate) fn draft(&mut self, mut shares: Vec<Share>) -> Vec<Share> {
        let Some(speculation) = &mut self.speculation else { return shares };
        let room = StepRoom {
            n_streams: u32::try_from(shares.len()).unwrap_or(u32::MAX),
            tokens_max: self.room.ubatch_tokens,
            drafts_max: speculation.drafts_max,
        };
        let mut possible = Vec::new();
        let mut is_forced = false;
        for (slot, sequence) in (0..).map(SlotId).zip(&mut self.running) {
            let Some(share) = shares.iter().position(|share| share.slot == slot) else { continue };
            let Some(sequence) = sequence else { continue };
            let held = self.table.slot(slot);
            let n_context = (self.context_tokens as usize).saturating_sub(held.tokens().len() + 1);
            let n_max = sequence.n_drafted_max().min(n_context);
            let root = held.root().copied().filter(|_| held.lends());
            let Some(drafter) = &mut sequence.drafter else { continue };
            let memory = root.and_then(|root| speculation.memory.of(&root));
            is_forced |= drafter.is_forced();
            possible.push((share, drafter.propose(memory, n_max)));
        }
        let (of_shares, possible): (Vec<usize>, Vec<Possible<'_>>) = possible.into_iter().unzip();
        let lengths = match is_forced {
            true => all_of(&possible, room),
            false => lengths::lengths(&possible, room, &speculation.costs),
        };
        for (share, n) in of_shares.into_iter().zip(lengths) {
            let slot = shares[share].slot;
            if let Some(sequence) = &mut self.running[usize::from(slot.0)] {
                shares[share].n_tokens += sequence.draft(n);
            }
        }
        shares
    }

    /// Chooses the next tokens of a stream with a draft and returns their number.
    ///
    /// It goes row by row, up to the first token that differs from the draft. The tokens are sent at once: a batch with
    /// a draft is computed in one step.
    pub(crate) fn verify(&mut self, slot: SlotId, rows: &[(SlotId, Purpose, i32)]) -> u32 {
        // The first row's token was chosen before, and its state is held.
        let Some(sequence) = &mut self.running[usize::from(slot.0)] else { return 0 };
        let n_drafted = rows.len() as u32 - 1;
        let mut draft: Vec<Token> = sequence.take_draft();
        draft.truncate(n_drafted as usize);
        sequence.drafted.n += n_drafted;
        let counters = &self.view.counters;
        counters.drafts.fetch_add(1, Relaxed);
        counters.drafted_tokens.fetch_add(n_drafted.into(), Relaxed);
        for (n_chosen, (_, _, idx)) in (1..).zip(rows) {
            self.choose(slot, *idx);
            let drafted = draft.get(n_chosen as usize - 1).copied();
            let room_tokens = self.room_tokens(slot);
            let Some(sequence) = &mut self.running[usize::from(slot.0)] else { return n_chosen };
            let Some(chosen) = sequence.untold.take() else { return n_chosen };
            let accepted = drafted.filter(|drafted| *drafted == chosen.token);
            sequence.drafted.n_accepted += u32::from(accepted.is_some());
            self.view.counters.generated_tokens.fetch_add(1, Relaxed);
            self.view.counters.accepted_tokens.fetch_add(accepted.is_some().into(), Relaxed);
            if let Some(reason) = sequence.take(chosen, room_tokens) {
                self.finish(slot, reason);
                return n_chosen;
            }
            match accepted {
                Some(token) => self.table.extend(slot, &[token]),
                None => {
                    self.end_draft(slot);
                    return n_chosen;
                }
            }
        }
        0
    }

    fn end_draft(&mut self, slot: SlotId) {
        if !self.drop_rejected(slot) {
            self.abort(slot, "the state of rejected tokens cannot be removed");
        }
    }

    /// Removes the state of drafted tokens that were not chosen; returns whether the rest is complete.
    pub(crate) fn drop_rejected(&mut self, slot: SlotId) -> bool {
        let n_held = self.n_held(slot);
        if self.speculation.is_none() || self.llama.last_position(slot) == n_held.checked_sub(1) {
            return true;
        }
        let is_cut = self.llama.rewind(slot, n_held);
        if !is_cut {
            warn!(%slot, "the state of rejected tokens cannot be removed");
        }
        is_cut
    }

    /// Adds the response in a slot to the answers from which later ones are drafted, unless it leaves nothing behind.
    pub(crate) fn remember(&mut self, slot: SlotId) {
        let Some(speculation) = &mut self.speculation else { return };
        let held = self.table.slot(slot);
        let Some(root) = held.root().filter(|_| held.lends()) else { return };
        let Some(sequence) = &self.running[usize::from(slot.0)] else { return };
        let Some(drafter) = &sequence.drafter else { return };
        let (before, answer) = drafter.answer(sequence.n_generated as usize);
        speculation.memory.learn((root, self.owners[usize::from(slot.0)].tenant.id), before, answer);
    }

    /// Forgets the answers from which later ones would be drafted.
    pub(crate) fn forget_answers(&mut self) {
        if let Some(speculation) = &mut self.speculation {
            speculation.memory.clear();
        }
    }
}
