//! Speculative decoding: drafted tokens are computed in one step, and accepted up to the first one that the sampler
//! does not choose.
//!
//! Every row of a draft is sampled by the sequence's own sampler, in order, as without a draft. The first choice that
//! differs from the draft becomes the next token. The state of the rejected tokens is removed before any state is
//! shared, stored or announced. So drafts do not change the distribution of responses.
//!
//! Not here: proposing drafts and choosing their lengths (`warmpath_worker_core::drafting`).
//! Source: sample-and-match, as `common_sampler_sample_and_accept_n` of llama.cpp.

use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use warmpath_common::ids::SlotId;
use warmpath_common::model::MemoryKind;
use warmpath_llama_chat::HiddenStates;
use warmpath_worker_core::batches::batch_plan::Share;
use warmpath_worker_core::drafting::draft_heads::HIDDEN_STATES_MAX;
use warmpath_worker_core::drafting::lengths::{self, DraftSource, Length, Possible, StepRoom};
use warmpath_worker_core::drafting::step_costs::StepCosts;
use warmpath_worker_core::drafting::suffix_memory::SuffixMemory;
use warmpath_worker_core::slots::slot_table::{Slot, SlotTable};
use warmpath_worker_core::tenants::TenantId;

use super::Generator;
use super::draft_model::{ComputedTokens, DraftModel, Following, WantedDraft};
use crate::engine::api::facts::EngineFacts;
use crate::engine::api::{EngineError, FinishReason};
use crate::engine::counters::{Counters, to_us};
use crate::engine::kv::KvState;
use crate::engine::schedule::batch::Batch;
use crate::engine::sequence::Sequence;
use crate::engine::sequence::running::RunningSequences;

/// Maximum number of tokens of earlier responses in the suffix memory. Source: some 15 MB, with 500 responses of 500
/// tokens each.
const MEMORY_TOKENS_MAX: usize = 1 << 18;

/// State of speculative decoding.
pub(crate) struct Speculation<'m> {
    memory: SuffixMemory,
    /// Draft model, for sequences whose text suggests no draft; `None` if none is configured, or after a failure.
    model: Option<DraftModel<'m>>,
    costs: StepCosts,
    /// Maximum number of drafts in one step.
    drafts_max: u32,
    /// Maximum length of a draft.
    drafted_max: usize,
    /// Time of the draft model that is not yet counted in a step.
    making_time: Duration,
}

/// A sequence that may have a draft.
struct DraftCandidate {
    slot: SlotId,
    /// Index of its share.
    share: usize,
    /// Sequence in the draft model; `None` if the draft model cannot draft for it.
    following: Option<Following>,
    /// Number of tokens that can still follow the next one.
    rest_tokens: usize,
}

impl<'m> Speculation<'m> {
    pub(crate) fn new(costs: StepCosts, model: Option<DraftModel<'m>>, facts: &EngineFacts) -> Self {
        // llama.cpp may split the drafts of several sequences into several passes. A later pass reuses cells that a
        // sliding window has passed, and rejected tokens move the window back to these cells.
        let drafts_max = if facts.memory == MemoryKind::Sliding { 1 } else { u32::from(facts.n_slots) };
        let memory = SuffixMemory::new(MEMORY_TOKENS_MAX);
        let drafted_max = facts.drafted_max as usize;
        Self { memory, model, costs, drafts_max, drafted_max, making_time: Duration::ZERO }
    }

    pub(crate) fn set_costs(&mut self, costs: StepCosts) {
        self.costs = costs;
    }

    /// Returns the sequences of a step that may have drafts, and the length of each draft.
    fn offers(
        &mut self,
        shares: &[Share],
        running: &mut RunningSequences,
        table: &SlotTable,
        room: StepRoom,
    ) -> (Vec<DraftCandidate>, Vec<Length>) {
        let (mut offers, mut possible) = (Vec::new(), Vec::new());
        let mut is_forced = false;
        // Every sequence proposes a draft from its own text or earlier responses, within its limits and its context.
        for (slot, sequence) in running.iter_mut() {
            let Some(share) = shares.iter().position(|share| share.slot == slot) else { continue };
            let contents = table.slot(slot);
            let n_context = (table.context_tokens() as usize).saturating_sub(contents.tokens().len() + 1);
            let rest_tokens = sequence.n_drafted_max();
            let following = self.model.as_ref().and_then(|model| model.following(sequence, slot, contents));
            let root = contents.root().copied().filter(|_| contents.lends());
            let Some(drafter) = &mut sequence.drafter else { continue };
            let n_max = rest_tokens.min(n_context).min(self.drafted_max);
            let made_draft = self.model.as_ref().zip(following).map(|(model, following)| {
                drafter.made_draft(n_max.min(following.n_max), model.times(&following, &self.costs))
            });
            let memory = root.and_then(|root| self.memory.of(&root));
            is_forced |= drafter.is_forced();
            possible.push(Possible { made: made_draft, ..drafter.propose(memory, n_max) });
            offers.push(DraftCandidate { slot, share, following, rest_tokens });
        }
        // The lengths are chosen together, because each draft delays the step of all sequences.
        let lengths = match is_forced {
            true => all_of(&possible, room),
            false => lengths::lengths(&possible, room, &self.costs),
        };
        (offers, lengths)
    }

    /// Makes the draft model's drafts, and sets their lengths.
    fn make(
        &mut self,
        offers: &[DraftCandidate],
        lengths: &mut [Length],
        running: &mut RunningSequences,
        table: &SlotTable,
        counters: &Counters,
    ) {
        let Some(model) = &mut self.model else { return };
        let (mut wanted, mut planned) = (Vec::new(), Vec::new());
        for (idx, (offer, length)) in offers.iter().zip(lengths.iter_mut()).enumerate() {
            let Some(following) = offer.following.filter(|_| length.source == DraftSource::Made) else { continue };
            let length = std::mem::take(length);
            let draft = model.wanted(offer.slot, following, length.n_tokens, offer.rest_tokens, &self.costs);
            planned.extend(draft.is_some_and(WantedDraft::is_made).then_some((idx, length)));
            wanted.extend(draft);
        }
        // Drafts that need no preparation come first.
        wanted.sort_by_key(|draft: &WantedDraft| !draft.is_made());
        let began = Instant::now();
        let made_drafts = model.make(&wanted, table);
        self.making_time += began.elapsed();
        counters.draft_model_us.fetch_add(to_us(began.elapsed()), Relaxed);
        let n_failed = made_drafts.iter().filter(|draft| draft.is_none()).count();
        counters.draft_model_failures.fetch_add(n_failed as u64, Relaxed);
        for ((idx, length), tokens) in planned.into_iter().zip(made_drafts) {
            let Some(tokens) = tokens else { continue };
            counters.made_tokens.fetch_add(tokens.len() as u64, Relaxed);
            let drafter = running.get_mut(offers[idx].slot).and_then(|sequence| sequence.drafter.as_mut());
            lengths[idx] = drafter.map_or(Length::default(), |drafter| drafter.take_made(tokens, length));
        }
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
    /// The last chosen token differs from the draft, or the draft has no more tokens.
    Rejected,
    /// The response is complete.
    Finished(FinishReason),
    /// No token could be chosen.
    Failed(EngineError),
}

/// Returns the full lengths of the drafts, as far as the step has room for them.
fn all_of(possible: &[Possible<'_>], room: StepRoom) -> Vec<Length> {
    let mut tokens_left = room.tokens_max.saturating_sub(room.n_streams) as usize;
    let whole_draft = |possible: &Possible<'_>| {
        let n_tokens = possible.chances.len().min(tokens_left);
        tokens_left -= n_tokens;
        Length { n_tokens, ..Length::default() }
    };
    possible.iter().take(room.drafts_max as usize).map(whole_draft).collect()
}

impl Generator<'_> {
    /// Adds drafts to the shares of a batch in which all sequences decode; a step computes at most `tokens_max` tokens.
    pub(crate) fn draft(
        &mut self,
        mut shares: Vec<Share>,
        running: &mut RunningSequences,
        table: &SlotTable,
        tokens_max: u32,
    ) -> Vec<Share> {
        let Some(speculation) = &mut self.speculation else { return shares };
        let n_streams = u32::try_from(shares.len()).unwrap_or(u32::MAX);
        let held_tokens = shares.iter().map(|share| table.n_held(share.slot)).sum::<u32>() / n_streams.max(1);
        let room = StepRoom { n_streams, tokens_max, drafts_max: speculation.drafts_max, held_tokens };
        let (offers, mut lengths) = speculation.offers(&shares, running, table, room);
        speculation.make(&offers, &mut lengths, running, table, &self.counters);
        for (offer, length) in offers.into_iter().zip(lengths) {
            if let Some(sequence) = running.get_mut(offer.slot) {
                shares[offer.share].n_tokens += sequence.draft(length);
            }
        }
        shares
    }

    /// Makes the computation of a batch write the hidden states that draft heads read; returns which.
    ///
    /// The hidden states of a prompt's last tokens cost more, because the last layer is otherwise computed only for
    /// tokens with logits.
    pub(crate) fn write_hidden(&self, batch: &Batch, running: &RunningSequences, kv: &mut KvState<'_>) -> HiddenStates {
        if !self.draft_model().is_some_and(DraftModel::reads_hidden) {
            return HiddenStates::None;
        }
        let is_prompt_end = |share: &Share| {
            let n_after = kv.n_held(share.slot) + share.n_tokens;
            let n_left = |sequence: &Sequence| sequence.n_prompt_left(n_after) < HIDDEN_STATES_MAX as u32;
            running.get(share.slot).is_some_and(|sequence| sequence.drafter.is_some() && n_left(sequence))
        };
        let hidden_states = match batch.n_prefill > 0 && batch.shares.iter().any(is_prompt_end) {
            true => HiddenStates::All,
            false => HiddenStates::WithLogits,
        };
        kv.llama.write_hidden(hidden_states);
        hidden_states
    }

    /// Records the hidden states of a computed batch, whose tokens are not recorded yet.
    pub(crate) fn record_hidden(
        &mut self,
        batch: &Batch,
        hidden_states: HiddenStates,
        running: &RunningSequences,
        kv: &KvState<'_>,
    ) {
        if hidden_states == HiddenStates::None {
            return;
        }
        let Some(model) = self.speculation.as_mut().and_then(|speculation| speculation.model.as_mut()) else { return };
        let mut first_row = 0;
        for share in &batch.shares {
            let row = first_row;
            first_row += share.n_tokens as i32;
            let (n_held, contents) = (kv.n_held(share.slot), kv.table.slot(share.slot));
            let Some(sequence) = running.get(share.slot).filter(|sequence| sequence.drafter.is_some()) else {
                continue;
            };
            if sequence.embeddings(n_held, share.n_tokens).is_none() {
                let tokens = sequence.upcoming(n_held, share.n_tokens);
                let has_all_logits = sequence.is_stream();
                let (slot, order) = (share.slot, sequence.order);
                let computed = ComputedTokens { slot, order, tokens, first_row: row, has_all_logits };
                model.record(&computed, contents, &kv.llama, hidden_states);
            }
        }
    }

    fn draft_model(&self) -> Option<&DraftModel<'_>> {
        self.speculation.as_ref()?.model.as_ref()
    }

    /// Chooses and sends the next tokens of a sequence with a draft; `rows` has the indexes of their logits.
    ///
    /// Rows are sampled in order, up to the first token that differs from the draft. The tokens are sent immediately,
    /// because a batch with a draft is computed in one step.
    pub(crate) fn verify(&self, slot: SlotId, sequence: &mut Sequence, rows: &[i32], kv: &mut KvState<'_>) -> Verified {
        // The first row's token was chosen before the draft and is always kept.
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
            let chosen_token = sequence.pending_token.as_ref().map(|chosen_token| chosen_token.token);
            let accepted_token =
                draft.get(n_chosen as usize - 1).filter(|draft_token| Some(**draft_token) == chosen_token);
            sequence.drafted.n_accepted += u32::from(accepted_token.is_some());
            self.counters.accepted_tokens.fetch_add(accepted_token.is_some().into(), Relaxed);
            if let Some(reason) = self.send_chosen(sequence, kv.n_held(slot)) {
                return end(DraftEnd::Finished(reason));
            }
            let Some(accepted_token) = accepted_token else { return end(DraftEnd::Rejected) };
            kv.extend(slot, &[*accepted_token]);
        }
        Verified { n_chosen: rows.len() as u32, end: DraftEnd::Rejected }
    }

    /// Returns the time that the draft model took since the last call.
    pub(crate) fn take_making_time(&mut self) -> Duration {
        self.speculation.as_mut().map_or(Duration::ZERO, |speculation| std::mem::take(&mut speculation.making_time))
    }

    /// Returns whether slots may have state of rejected draft tokens.
    pub(crate) fn drafts(&self) -> bool {
        self.speculation.is_some()
    }

    /// Adds a response to the suffix memory, unless its slot's state must not be shared.
    pub(crate) fn remember(&mut self, sequence: &Sequence, contents: &Slot, tenant: TenantId) {
        let Some(speculation) = &mut self.speculation else { return };
        let Some(root) = contents.root().filter(|_| contents.lends()) else { return };
        let Some(drafter) = &sequence.drafter else { return };
        let (before, answer) = drafter.answer(sequence.n_generated as usize);
        speculation.memory.learn(root, tenant, before, answer);
    }

    /// Clears the suffix memory and the draft model's state.
    pub(crate) fn forget_answers(&mut self) {
        if let Some(speculation) = &mut self.speculation {
            speculation.memory.clear();
            if let Some(model) = &mut speculation.model {
                model.clear();
            }
        }
    }
}
