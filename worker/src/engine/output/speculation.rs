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

use warmpath_common::ids::SlotId;
use warmpath_common::model::MemoryKind;
use warmpath_worker_core::batch_plan::Share;
use warmpath_worker_core::drafting::lengths::{self, Length, Possible, StepRoom};
use warmpath_worker_core::drafting::step_costs::StepCosts;
use warmpath_worker_core::drafting::suffix_memory::SuffixMemory;
use warmpath_worker_core::drafting::{DraftLimits, Drafter, ForcedDrafts};
use warmpath_worker_core::slot_table::{Slot, SlotTable};
use warmpath_worker_core::tenants::TenantId;

use super::Generator;
use crate::engine::api::{EngineError, FinishReason, Submission};
use crate::engine::facts::EngineFacts;
use crate::engine::kv::KvState;
use crate::engine::schedule::running::Running;
use crate::engine::sequence::Sequence;

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

/// Outcome of a draft.
pub(crate) struct Verified {
    /// Number of tokens that were chosen.
    pub(crate) n_chosen: u32,
    pub(crate) end: DraftEnd,
}

/// Reason why no more tokens of a draft are chosen.
pub(crate) enum DraftEnd {
    /// The last token differs from the draft, or none was drafted there.
    Rejected,
    /// The response is complete.
    Finished(FinishReason),
    /// No token could be chosen.
    Failed(EngineError),
}

/// Returns the lengths of whole drafts, as far as a step has room for them.
fn all_of(possible: &[Possible<'_>], room: StepRoom) -> Vec<Length> {
    let mut left = room.tokens_max.saturating_sub(room.n_streams) as usize;
    let whole = |possible: &Possible<'_>| {
        let n_tokens = possible.chances.len().min(left);
        left -= n_tokens;
        Length { n_tokens, cost: 0.0 }
    };
    possible.iter().take(room.drafts_max as usize).map(whole).collect()
}

impl Generator<'_> {
    /// Adds drafts to the shares of a batch in which all sequences decode; a step computes at most `tokens_max` tokens.
    pub(crate) fn draft(
        &mut self,
        mut shares: Vec<Share>,
        running: &mut Running,
        (table, tokens_max): (&SlotTable, u32),
    ) -> Vec<Share> {
        let Some(speculation) = &mut self.speculation else { return shares };
        let n_streams = u32::try_from(shares.len()).unwrap_or(u32::MAX);
        let held_tokens = shares.iter().map(|share| table.n_held(share.slot)).sum::<u32>() / n_streams.max(1);
        let room = StepRoom { n_streams, tokens_max, drafts_max: speculation.drafts_max, held_tokens };
        // Every sequence proposes what its text or earlier answers suggest, within its limits and its context.
        let mut possible = Vec::new();
        let mut is_forced = false;
        for (slot, sequence) in running.iter_mut() {
            let Some(share) = shares.iter().position(|share| share.slot == slot) else { continue };
            let held = table.slot(slot);
            let n_context = (self.context.context_tokens as usize).saturating_sub(held.tokens().len() + 1);
            let n_max = sequence.n_drafted_max().min(n_context);
            let root = held.root().copied().filter(|_| held.lends());
            let Some(drafter) = &mut sequence.drafter else { continue };
            let memory = root.and_then(|root| speculation.memory.of(&root));
            is_forced |= drafter.is_forced();
            possible.push((share, drafter.propose(memory, n_max)));
        }
        // The lengths are chosen together, because each draft adds time to the step of all.
        let (of_shares, possible): (Vec<usize>, Vec<Possible<'_>>) = possible.into_iter().unzip();
        let lengths = match is_forced {
            true => all_of(&possible, room),
            false => lengths::lengths(&possible, room, &speculation.costs),
        };
        for (share, length) in of_shares.into_iter().zip(lengths) {
            if let Some(sequence) = running.get_mut(shares[share].slot) {
                shares[share].n_tokens += sequence.draft(length);
            }
        }
        shares
    }

    /// Chooses and sends the next tokens of a stream with a draft; `rows` are the places of their logits.
    ///
    /// It goes row by row, up to the first token that differs from the draft. The tokens are sent at once: a batch with
    /// a draft is computed in one step.
    pub(crate) fn verify(
        &self,
        (slot, sequence): (SlotId, &mut Sequence),
        rows: &[i32],
        kv: &mut KvState<'_>,
    ) -> Verified {
        // The first row's token was chosen before, and its state is held.
        let n_drafted = rows.len() as u32 - 1;
        let mut draft = sequence.take_draft();
        draft.truncate(n_drafted as usize);
        sequence.drafted.n += n_drafted;
        self.counters.drafts.fetch_add(1, Relaxed);
        self.counters.drafted_tokens.fetch_add(n_drafted.into(), Relaxed);
        for (n_chosen, idx) in (1..).zip(rows) {
            let end = |end: DraftEnd| Verified { n_chosen, end };
            if let Err(error) = self.choose(sequence, kv.llama.logits(*idx)) {
                return end(DraftEnd::Failed(error));
            }
            let chosen = sequence.untold.as_ref().map(|chosen| chosen.token);
            let accepted = draft.get(n_chosen as usize - 1).filter(|drafted| Some(**drafted) == chosen);
            sequence.drafted.n_accepted += u32::from(accepted.is_some());
            self.counters.accepted_tokens.fetch_add(accepted.is_some().into(), Relaxed);
            if let Some(reason) = self.send_chosen(sequence, kv.n_held(slot)) {
                return end(DraftEnd::Finished(reason));
            }
            let Some(accepted) = accepted else { return end(DraftEnd::Rejected) };
            kv.extend(slot, &[*accepted]);
        }
        Verified { n_chosen: rows.len() as u32, end: DraftEnd::Rejected }
    }

    /// Returns whether slots may hold the state of drafted tokens that were not chosen.
    pub(crate) fn drafts(&self) -> bool {
        self.speculation.is_some()
    }

    /// Adds a response to the answers from which later ones are drafted, unless its slot may not be lent.
    pub(crate) fn remember(&mut self, sequence: &Sequence, (held, tenant): (&Slot, TenantId)) {
        let Some(speculation) = &mut self.speculation else { return };
        let Some(root) = held.root().filter(|_| held.lends()) else { return };
        let Some(drafter) = &sequence.drafter else { return };
        let (before, answer) = drafter.answer(sequence.n_generated as usize);
        speculation.memory.learn((root, tenant), before, answer);
    }

    /// Forgets the answers from which later ones would be drafted.
    pub(crate) fn forget_answers(&mut self) {
        if let Some(speculation) = &mut self.speculation {
            speculation.memory.clear();
        }
    }
}
