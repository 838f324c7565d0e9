//! The start of a request: its slot, and the source of its prompt's first tokens.
//!
//! The shell executes the plan. The batch that computes the remaining tokens is in `batch_plan`.
//!
//! A cached prefix may be in the slot itself, in another busy or idle slot, or in the store. Two idle slots are
//! considered. The *affine* slot has the longest prefix of the prompt. The *victim* has the least valuable state: it is
//! empty or the least recently used; a slot within its tenant's share is spared if possible (`slot_shares`). Each
//! option of starting in one of them has a cost in milliseconds, from this worker's measurements: moving the state,
//! computing the remaining tokens, and computing destroyed state again. The cheapest option wins; among options of
//! nearly equal cost, the one that reuses the most whole blocks. State that is worth more than its export is saved
//! before it is overwritten. If a running sequence is about to compute a request's prefix, the request waits for it,
//! and the slots stay free for others.
//!
//! If sequences cannot be rewound, a prefix can be used up to a stored checkpoint, or completely if a slot's state ends
//! exactly there. While the disk is late (`disk_reads`), state that would have to be read counts as not stored.

mod decision;
mod inputs;

use warmpath_common::ids::SlotId;
use warmpath_common::model::MemoryKind;
use warmpath_common::summary::Tier;

use crate::slots::slot_shares::SlotShares;
use crate::slots::slot_table::{Slot, SlotTable};
use crate::store::chunk_index::{ChunkId, Prefix, StoredCheckpoint, StoredPrefix};

pub use decision::{PrefixSource, Save, SlotDecision, SlotPlan};
pub use inputs::{PlanInputs, Reuse, SlotRequest};

/// Probability that state which one request has used so far will be needed again.
///
/// Source: Mooncake's trace of conversations, without its last quarter: 26 % of such blocks are used again.
const NEEDED_AGAIN: f64 = 0.26;

/// Probability that state which several requests have used will be needed again.
///
/// Source: the same trace: 45 % of the blocks that two requests have used are used again, and more of the blocks with
/// more uses.
const NEEDED_AGAIN_IF_REUSED: f64 = 0.45;

/// Largest difference at which the costs of two options count as equal. Units: milliseconds.
///
/// Source: users do not notice 5 ms, and in return the worker reuses the whole blocks that it announced to routers.
const NEARLY_EQUAL_MS: f64 = 5.0;

/// Returns the decision on a request.
///
/// Cost: O(slots + prompt). Deterministic.
pub fn plan(inputs: &PlanInputs<'_>, request: &SlotRequest<'_>) -> SlotDecision {
    let planner = Planner::new(inputs, request);
    let Some((affine, victim)) = planner.candidates() else { return SlotDecision::NoSlot };
    if let Some(wait) = planner.prefix_in_flight() {
        return wait;
    }
    let Some(best) = planner.best(planner.options(affine, victim)) else { return SlotDecision::NoSlot };
    let missing = planner.needs(&best.plan).into_iter().filter(|(chunk, tier, _)| inputs.must_read(*chunk, *tier));
    let missing: Vec<ChunkId> = missing.map(|(chunk, ..)| chunk).collect();
    if missing.is_empty() { SlotDecision::Start(planner.rounded(best.plan)) } else { SlotDecision::Fetch(missing) }
}

/// Returns the idle slot with the least valuable state; `None` if no slot is idle.
pub fn least_valuable(inputs: &PlanInputs<'_>, request: &SlotRequest<'_>) -> Option<SlotId> {
    let (_, victim) = Planner::new(inputs, request).candidates()?;
    Some(victim.slot)
}

/// Returns an upper bound of the prompt tokens that will be cached when the request starts.
pub fn best_usable(inputs: &PlanInputs<'_>, request: &SlotRequest<'_>) -> u32 {
    let planner = Planner::new(inputs, request);
    to_u32(planner.coming().map_or(0, |(_, n_tokens)| n_tokens).max(planner.reach_now()))
}

/// Prefix of the prompt in one slot.
#[derive(Debug, Clone, Copy)]
struct Resident {
    slot: SlotId,
    n_common: usize,
    n_held: usize,
    /// Smallest number of tokens to which the slot can be cut back.
    rewinds_to: usize,
}

/// An idle slot, rated for one prompt.
#[derive(Debug, Clone, Copy)]
struct SlotCandidate {
    slot: SlotId,
    /// Number of its tokens that the prompt can reuse.
    n_usable: usize,
    /// Number of its tokens that are lost if the request takes the slot.
    n_lost: usize,
    /// Whether the slot's tenant has no more slots than its share.
    is_kept: bool,
    last_used: u64,
    is_wanted: bool,
}

/// An option of starting the request.
struct StartOption {
    plan: SlotPlan,
    cost_ms: f64,
}

/// A request and all state that it can reuse.
struct Planner<'a> {
    inputs: &'a PlanInputs<'a>,
    request: &'a SlotRequest<'a>,
    memory: MemoryKind,
    resident: Vec<Resident>,
    stored_prefix: StoredPrefix,
    /// Checkpoints from which the prompt can resume, the shortest first.
    checkpoints: Vec<StoredCheckpoint>,
}

impl<'a> Planner<'a> {
    fn new(inputs: &'a PlanInputs<'a>, request: &'a SlotRequest<'a>) -> Self {
        let memory = inputs.table.memory();
        let may_reuse = request.reuse == Reuse::Allowed;
        let (mut found, mut checkpoints) = (StoredPrefix::default(), Vec::new());
        if may_reuse {
            found = inputs.index.find(&request.prefix());
            if !memory.stored_state_rewinds() {
                checkpoints = inputs.index.checkpoints(&request.prefix());
                let place =
                    |checkpoint: &StoredCheckpoint| checkpoint.n_blocks * inputs.table.block_size_tokens() as usize;
                checkpoints.retain(|checkpoint| request.resumable(place(checkpoint)) == place(checkpoint));
            }
            if inputs.is_disk_late {
                let block_size = inputs.table.block_size_tokens() as usize;
                found.cut_before(|piece| inputs.must_read(piece.chunk, piece.tier), block_size);
                checkpoints.retain(|checkpoint| !inputs.must_read(checkpoint.chunk, checkpoint.tier));
            }
        }
        let resident = if may_reuse { resident(inputs.table, request) } else { Vec::new() };
        Self { inputs, request, memory, resident, stored_prefix: found, checkpoints }
    }

    /// Returns the affine slot and the victim.
    fn candidates(&self) -> Option<(SlotCandidate, SlotCandidate)> {
        let shares = self.shares();
        let idle = self.inputs.table.iter().filter(|(_, slot)| !slot.is_busy());
        let offers: Vec<SlotCandidate> = idle.map(|(id, slot)| self.offer(id, slot, &shares)).collect();
        let affine = offers.iter().copied().min_by_key(|offer| {
            let of_equals = (offer.is_kept, !offer.is_wanted, offer.last_used, offer.slot);
            (usize::MAX - offer.n_usable, offer.n_lost > 0, of_equals)
        })?;
        let victim = offers.iter().copied().min_by_key(|offer| {
            let is_empty = offer.n_usable + offer.n_lost == 0;
            ((!is_empty).then_some((offer.is_kept, offer.last_used)), !offer.is_wanted, offer.slot)
        })?;
        Some((affine, victim))
    }

    /// Returns the tenants' shares of the slots, including the slot that the request will take.
    fn shares(&self) -> SlotShares {
        let table = self.inputs.table;
        let slots_taken = table.iter().filter(|(_, slot)| slot.is_busy() || !slot.tokens().is_empty());
        let tenants = slots_taken.map(|(_, slot)| slot.tenant()).chain([self.request.tenant]);
        let mut shares = SlotShares::new(table.iter().count() as u64);
        tenants.for_each(|tenant| shares.add(tenant, 1));
        shares
    }

    fn offer(&self, id: SlotId, slot: &Slot, shares: &SlotShares) -> SlotCandidate {
        let resident = self.resident.iter().find(|resident| resident.slot == id);
        let n_usable = resident.map_or(0, |resident| self.reach_in_slot(resident));
        SlotCandidate {
            slot: id,
            n_usable,
            n_lost: slot.exact_tokens().len().saturating_sub(n_usable),
            is_kept: shares.keeps(slot.tenant()),
            last_used: slot.last_used(),
            is_wanted: self.request.wanted == Some(id),
        }
    }

    /// Returns the number of a slot's tokens that can be reused in the same slot.
    fn reach_in_slot(&self, resident: &Resident) -> usize {
        let n_most = self.request.resumable(resident.n_common);
        let ends_there = n_most == resident.n_held;
        let rewinds = self.memory.rewinds_anywhere() && n_most >= resident.rewinds_to;
        if ends_there || rewinds { n_most } else { self.checkpointed(n_most) }
    }

    /// Returns the number of a slot's tokens that can be copied to another slot.
    fn reach_elsewhere(&self, resident: &Resident) -> usize {
        let n_most = self.request.resumable(resident.n_common);
        match self.memory.rewinds_anywhere() {
            true if n_most >= resident.rewinds_to => n_most,
            true => 0,
            false => self.checkpointed(n_most),
        }
    }

    /// Returns the number of tokens that can be restored from the store.
    fn reach_in_store(&self) -> usize {
        let n_most = match self.memory {
            // Recurrent state needs no tokens before it.
            MemoryKind::Recurrent => usize::MAX,
            MemoryKind::Full => self.stored_prefix.n_tokens,
            MemoryKind::Sliding | MemoryKind::Hybrid => self.stored_prefix.n_blocks * self.block_size(),
        };
        let n_most = self.request.resumable(n_most);
        if self.memory.stored_state_rewinds() { n_most } else { self.checkpointed(n_most) }
    }

    /// Returns the number of tokens that can be reused without waiting for a running sequence.
    fn reach_now(&self) -> usize {
        let reach = |resident: &Resident| match self.inputs.table.slot(resident.slot).is_busy() {
            true => self.reach_elsewhere(resident),
            false => self.reach_in_slot(resident),
        };
        let resident = self.resident.iter().map(reach).max();
        resident.unwrap_or(0).max(self.reach_in_store())
    }

    fn checkpointed(&self, n_tokens: usize) -> usize {
        self.checkpoint_within(n_tokens).map_or(0, |checkpoint| checkpoint.n_blocks * self.block_size())
    }

    /// Returns the largest position up to `n_tokens` at which a checkpoint can be resumed: at the end of a block, and
    /// not within a medium.
    fn checkpoint_place(&self, n_tokens: usize) -> usize {
        let whole_blocks = n_tokens / self.block_size() * self.block_size();
        match self.request.resumable(whole_blocks) {
            n_tokens if n_tokens < whole_blocks => self.checkpoint_place(n_tokens),
            _ => whole_blocks,
        }
    }

    /// Returns the last checkpoint that needs at most `n_tokens` of the prompt.
    fn checkpoint_within(&self, n_tokens: usize) -> Option<&StoredCheckpoint> {
        self.checkpoints.iter().rev().find(|checkpoint| checkpoint.n_blocks * self.block_size() <= n_tokens)
    }

    /// Returns the running sequence whose prompt has the longest common prefix with this one, and the number of its
    /// tokens that other slots will be able to reuse.
    fn coming(&self) -> Option<(SlotId, usize)> {
        if self.request.reuse == Reuse::Forbidden || !self.inputs.costs.shares() {
            return None;
        }
        let running = self.inputs.table.iter().filter(|(_, slot)| slot.is_busy());
        let shared_prefixes = running.filter_map(|(id, slot)| {
            let n_coming = self.request.resumable(slot.n_coming(self.request.prompt, self.request.root));
            // If memory cannot be rewound, the running sequence makes a checkpoint there unless it is already past it.
            let n_coming = if self.memory.rewinds_anywhere() { n_coming } else { self.checkpoint_place(n_coming) };
            (n_coming > slot.tokens().len()).then_some((id, n_coming))
        });
        shared_prefixes.max_by_key(|(id, n_coming)| (*n_coming, std::cmp::Reverse(*id)))
    }

    /// Returns the decision to wait for a prefix that a running sequence is about to compute; `None` if waiting does
    /// not pay. The prefix must be at least a block longer than the available one, and save more time than copying it
    /// takes.
    fn prefix_in_flight(&self) -> Option<SlotDecision> {
        let (slot, n_coming) = self.coming()?;
        let n_gained = n_coming.saturating_sub(self.reach_now());
        let costs = self.inputs.costs;
        let share_ms = costs.copy_ms(n_coming).unwrap_or_default();
        let is_worth_it = n_gained >= self.block_size() && costs.prefill_ms(n_gained) + NEARLY_EQUAL_MS > share_ms;
        is_worth_it.then(|| SlotDecision::WaitFor { slot, n_tokens: to_u32(n_coming) })
    }

    fn options(&self, affine: SlotCandidate, victim: SlotCandidate) -> Vec<StartOption> {
        let mut options = vec![self.keep(affine)];
        let targets = if affine.slot == victim.slot { vec![victim] } else { vec![victim, affine] };
        for target in targets {
            if target.n_usable > 0 {
                options.push(self.keep(target));
            }
            options.extend(self.copy(target));
            options.extend(self.import(target));
            options.push(self.option(target, PrefixSource::Cold, 0.0));
        }
        // Lost state of the victim costs at most its export, because it is the least valuable. Lost state of another
        // slot may be needed again, which costs the time of computing it.
        let saved_tokens = [affine.slot, victim.slot].map(|slot| (slot, self.n_saved(slot)));
        for option in &mut options {
            let n_saved = saved_tokens.iter().find(|(slot, _)| *slot == option.plan.slot).map_or(0, |(_, n)| *n);
            self.charge_loss(option, n_saved, victim.slot);
        }
        options
    }

    /// Returns the cheapest option, or one of nearly equal cost that reuses more whole blocks.
    fn best(&self, options: Vec<StartOption>) -> Option<StartOption> {
        let least_ms = options.iter().map(|option| option.cost_ms).min_by(f64::total_cmp)?;
        let n_blocks = |option: &StartOption| option.plan.start.n_tokens() as usize / self.block_size();
        let good_options = options.into_iter().filter(|option| option.cost_ms <= least_ms + NEARLY_EQUAL_MS);
        good_options.min_by(|a, b| n_blocks(b).cmp(&n_blocks(a)).then(a.cost_ms.total_cmp(&b.cost_ms)))
    }

    fn option(&self, target: SlotCandidate, start: PrefixSource, bring_ms: f64) -> StartOption {
        let n_tokens = start.n_tokens() as usize;
        let rewinds = match start {
            PrefixSource::Cold => true,
            PrefixSource::Keep { .. } => target.n_lost == 0 || self.rewinds(target.slot, n_tokens),
            PrefixSource::Copy { .. } => self.memory.rewinds_anywhere(),
            PrefixSource::Import { .. } => self.memory.stored_state_rewinds(),
        };
        let checkpoint_needed = if rewinds { None } else { self.checkpoint_within(n_tokens) };
        let checkpoint = checkpoint_needed.map(|checkpoint_stored| checkpoint_stored.chunk);
        let rest_ms = self.inputs.costs.prefill_ms(self.request.prompt.len() - n_tokens);
        let plan = SlotPlan { slot: target.slot, save: Save::No, start, checkpoint };
        StartOption { plan, cost_ms: bring_ms + rest_ms }
    }

    fn rewinds(&self, slot: SlotId, n_tokens: usize) -> bool {
        self.memory.rewinds_anywhere() && n_tokens >= self.inputs.table.slot(slot).rewinds_to()
    }

    /// Returns a plan with fewer cached tokens if computing the longer rest is faster and state can be cut anywhere.
    fn rounded(&self, plan: SlotPlan) -> SlotPlan {
        if self.memory != MemoryKind::Full {
            return plan;
        }
        let n_tokens = self.inputs.costs.best_start(to_u32(self.request.prompt.len()), plan.start.n_tokens());
        let n_tokens = self.request.resumable(n_tokens as usize);
        SlotPlan { start: plan.start.shortened(to_u32(n_tokens)), ..plan }
    }

    fn keep(&self, offer: SlotCandidate) -> StartOption {
        let start = match offer.n_usable {
            0 => PrefixSource::Cold,
            n_tokens => PrefixSource::Keep { n_tokens: to_u32(n_tokens) },
        };
        self.option(offer, start, 0.0)
    }

    /// Returns the option of copying from the slot with the most usable tokens.
    fn copy(&self, target: SlotCandidate) -> Option<StartOption> {
        let others = self.resident.iter().filter(|resident| resident.slot != target.slot);
        let sources = others.map(|resident| (self.reach_elsewhere(resident), resident));
        let (n_tokens, resident) = sources.max_by_key(|(n, resident)| (*n, std::cmp::Reverse(resident.slot)))?;
        let ms = self.inputs.costs.copy_ms(resident.n_held)?;
        let start = PrefixSource::Copy { from: resident.slot, n_tokens: to_u32(n_tokens) };
        (n_tokens > 0).then(|| self.option(target, start, ms))
    }

    fn import(&self, target: SlotCandidate) -> Option<StartOption> {
        let n_tokens = self.reach_in_store();
        let mut option = self.option(target, PrefixSource::Import { n_tokens: to_u32(n_tokens) }, 0.0);
        let costs = self.inputs.costs;
        for (chunk, tier, n_bytes) in self.needs(&option.plan) {
            let read_ms = if self.inputs.must_read(chunk, tier) { costs.read_ms(n_bytes) } else { 0.0 };
            option.cost_ms += costs.import_ms(n_bytes) + read_ms;
        }
        (n_tokens > 0).then_some(option)
    }

    /// Returns the chunks that a plan needs from the store, with tier and bytes.
    fn needs(&self, plan: &SlotPlan) -> Vec<(ChunkId, Tier, u64)> {
        let n_blocks = match plan.start {
            PrefixSource::Import { n_tokens } => (n_tokens as usize).div_ceil(self.block_size()),
            PrefixSource::Cold | PrefixSource::Keep { .. } | PrefixSource::Copy { .. } => 0,
        };
        let mut n_before = 0;
        let mut needs = Vec::new();
        for piece in &self.stored_prefix.pieces {
            if n_before < n_blocks {
                needs.push((piece.chunk, piece.tier, piece.n_bytes));
            }
            n_before += piece.n_blocks;
        }
        let plan_checkpoints = self.checkpoints.iter().filter(|checkpoint| Some(checkpoint.chunk) == plan.checkpoint);
        needs.extend(plan_checkpoints.map(|checkpoint| (checkpoint.chunk, checkpoint.tier, checkpoint.n_bytes)));
        needs
    }

    /// Adds the cost of destroyed state to an option, and decides whether that state is exported first.
    fn charge_loss(&self, option: &mut StartOption, n_saved: usize, victim: SlotId) {
        let slot = self.inputs.table.slot(option.plan.slot);
        let tokens = slot.exact_tokens();
        let n_staying = match option.plan.start {
            PrefixSource::Keep { n_tokens } => n_tokens as usize,
            PrefixSource::Cold | PrefixSource::Copy { .. } | PrefixSource::Import { .. } => 0,
        };
        // A client that sends a prompt again, or a longer one, does not need the state of the earlier response.
        if matches!(option.plan.start, PrefixSource::Keep { .. }) && n_staying + 1 >= slot.n_last_prompt() {
            return;
        }
        // What the lost tokens would cost again, weighed by how likely they are needed.
        let n_kept = n_staying.max(n_saved);
        let n_reused = slot.n_reused().saturating_sub(n_kept);
        let n_new = tokens.len().saturating_sub(n_kept) - n_reused;
        let costs = self.inputs.costs;
        let loss_ms = NEEDED_AGAIN_IF_REUSED * costs.prefill_ms(n_reused) + NEEDED_AGAIN * costs.prefill_ms(n_new);
        // Only whole blocks can be saved.
        let n_savable = tokens.len() / self.block_size() * self.block_size();
        let save_ms = costs.export_ms(tokens.len()).filter(|_| n_savable > n_kept);
        match save_ms {
            Some(save_ms) if loss_ms > save_ms => {
                option.plan.save = Save::First;
                option.cost_ms += save_ms;
            }
            _ if option.plan.slot == victim => {}
            _ => option.cost_ms += loss_ms,
        }
    }

    /// Returns how many of an idle slot's first tokens need not be saved, because they are stored or cannot be stored.
    fn n_saved(&self, slot: SlotId) -> usize {
        let contents = self.inputs.table.slot(slot);
        let (Some(root), tokens) = (contents.root(), contents.exact_tokens()) else { return 0 };
        if self.memory == MemoryKind::Recurrent {
            return tokens.len();
        }
        let prefix = Prefix { root: *root, chain: self.inputs.table.tree().chain(slot), tokens };
        let n_stored = self.inputs.index.find(&prefix).n_blocks;
        match self.memory.stored_state_rewinds() {
            false if n_stored >= self.inputs.index.n_resumable(&prefix) => tokens.len(),
            _ => n_stored * self.block_size(),
        }
    }

    fn block_size(&self) -> usize {
        self.inputs.table.block_size_tokens() as usize
    }
}

/// Returns the prompt's prefix in each slot, without slots that have none.
///
/// The tree finds the slots with common blocks. Comparing tokens extends the prefix within a block, and detects hash
/// collisions.
fn resident(table: &SlotTable, request: &SlotRequest<'_>) -> Vec<Resident> {
    let with_blocks = table.tree().slots_with(request.chain);
    let n_most = with_blocks.iter().map(|(_, n_blocks)| *n_blocks).max().unwrap_or(0);
    // With a sliding window, the slot with the most blocks may no longer be able to resume where the prompt diverges.
    let any_counts = n_most == 0 || table.memory() == MemoryKind::Sliding;
    let counts = |id: SlotId| any_counts || with_blocks.iter().any(|(slot, n)| *slot == id && *n + 1 >= n_most);
    let slots = table.iter().filter(|(id, slot)| slot.lends() && counts(*id));
    let residents = slots.map(|(slot, contents)| Resident {
        slot,
        n_common: contents.n_common(request.prompt, request.root),
        n_held: contents.tokens().len(),
        rewinds_to: contents.rewinds_to(),
    });
    residents.filter(|resident| resident.n_common > 0).collect()
}

fn to_u32(n_tokens: usize) -> u32 {
    u32::try_from(n_tokens).expect("a prompt is shorter than a context, a u32")
}

#[cfg(test)]
mod tests;
