//! Inputs of a slot plan: the request, the slots, the store and the costs.
//!
//! `slot_plan` makes the plan.

use std::collections::HashSet;
use std::ops::Range;

use warmpath_common::block_hash::BlockHash;
use warmpath_common::ids::{SlotId, Token};
use warmpath_common::summary::Tier;

use crate::slots::slot_table::SlotTable;
use crate::store::chunk_index::{ChunkId, ChunkIndex, Prefix};
use crate::store::restore_costs::Costs;
use crate::tenants::TenantId;

/// A request, with the properties on which a plan depends.
#[derive(Debug, Clone, Copy)]
pub struct SlotRequest<'a> {
    /// Prompt, at least one token.
    pub prompt: &'a [Token],
    /// Hash chain of the prompt, whole blocks only.
    pub chain: &'a [BlockHash],
    /// Root of the chain.
    pub root: &'a BlockHash,
    /// Tenant of the request; `None` if it has no share of the slots.
    pub tenant: Option<TenantId>,
    /// Whether the request may start from existing KV state.
    pub reuse: Reuse,
    /// Slot that the client requested; decides only between equally good slots.
    pub wanted: Option<SlotId>,
    /// Positions of the prompt's media, ascending. No sequence can resume within a medium.
    pub media: &'a [Range<u32>],
}

impl<'a> SlotRequest<'a> {
    /// Returns the prompt as a key for the store.
    pub fn prefix(&self) -> Prefix<'a> {
        Prefix { root: *self.root, chain: self.chain, tokens: self.prompt }
    }

    /// Returns the largest position up to `n_tokens` at which the prompt can resume: before its last token and not
    /// within a medium.
    pub(super) fn resumable(&self, n_tokens: usize) -> usize {
        let n_tokens = n_tokens.min(self.prompt.len() - 1);
        let is_within = |medium: &&Range<u32>| (medium.start as usize) < n_tokens && n_tokens < medium.end as usize;
        self.media.iter().find(is_within).map_or(n_tokens, |medium| medium.start as usize)
    }
}

/// Whether a request may start from existing KV state.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reuse {
    /// The request may reuse state.
    Allowed,
    /// The request computes its whole prompt.
    Forbidden,
}

/// State, other than the request, on which a plan depends.
#[derive(Debug, Clone, Copy)]
pub struct PlanInputs<'a> {
    /// Slots.
    pub table: &'a SlotTable,
    /// Index of the store.
    pub index: &'a ChunkIndex,
    /// Chunks on disk whose bytes are in memory because they were read for a request that has not started yet.
    pub at_hand: &'a HashSet<ChunkId>,
    /// Costs of moving and computing.
    pub costs: &'a Costs,
    /// Whether a read from disk is late, so that requests do without state that would have to be read.
    pub is_disk_late: bool,
}

impl PlanInputs<'_> {
    /// Returns whether a chunk, whose fastest tier is `tier`, must be read from disk before it can be used.
    pub(super) fn must_read(&self, chunk: ChunkId, tier: Tier) -> bool {
        tier == Tier::Disk && !self.at_hand.contains(&chunk)
    }
}
