//! Types of decisions on waiting requests: the slot, the source of the first tokens, and whether state is saved first.
//!
//! `slot_plan` makes the decisions.

use warmpath_common::ids::SlotId;
use warmpath_common::model::MemoryKind;

use crate::slots::slot_table::SlotTable;
use crate::store::chunk_index::ChunkId;

use super::to_u32;

/// Source of a prompt's first tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PrefixSource {
    /// No source: the slot is cleared and the whole prompt computed.
    Cold,
    /// The slot's own first tokens stay.
    Keep {
        /// Number of tokens, at least 1 and less than the prompt's.
        n_tokens: u32,
    },
    /// Another slot's first tokens are copied; that slot keeps them.
    Copy {
        /// Other slot.
        from: SlotId,
        /// Number of tokens, at least 1 and less than the prompt's.
        n_tokens: u32,
    },
    /// The tokens come from the store.
    Import {
        /// Number of tokens, at least 1 and less than the prompt's.
        n_tokens: u32,
    },
}

impl PrefixSource {
    /// Returns the same source, limited to `n_tokens`.
    pub(super) fn shortened(self, n_tokens: u32) -> Self {
        match self {
            _ if n_tokens == 0 => Self::Cold,
            Self::Cold => Self::Cold,
            Self::Keep { .. } => Self::Keep { n_tokens },
            Self::Copy { from, .. } => Self::Copy { from, n_tokens },
            Self::Import { .. } => Self::Import { n_tokens },
        }
    }

    /// Returns the number of the prompt's tokens that need not be computed.
    pub fn n_tokens(self) -> u32 {
        match self {
            Self::Cold => 0,
            Self::Keep { n_tokens } | Self::Copy { n_tokens, .. } | Self::Import { n_tokens } => n_tokens,
        }
    }
}

/// Start of a request.
#[derive(Debug, Clone, PartialEq)]
pub struct SlotPlan {
    /// Slot to use.
    pub slot: SlotId,
    /// Whether the slot's state is exported to the store before it is overwritten.
    pub save: Save,
    /// Source of the prompt's first tokens.
    pub start: PrefixSource,
    /// Partial state that is imported in addition, if the model's memory cannot be rewound.
    pub checkpoint: Option<ChunkId>,
}

impl SlotPlan {
    /// Returns the smallest number of tokens to which the slot can be cut back after the start. It may be more than 0,
    /// because cells that a sliding window has passed are not stored.
    pub fn rewinds_to(&self, table: &SlotTable) -> u32 {
        match (table.memory(), self.start) {
            (MemoryKind::Sliding, PrefixSource::Keep { n_tokens }) if self.checkpoint.is_some() => n_tokens,
            (MemoryKind::Sliding, PrefixSource::Keep { .. }) => to_u32(table.slot(self.slot).rewinds_to()),
            (MemoryKind::Sliding, PrefixSource::Copy { from, .. }) => to_u32(table.slot(from).rewinds_to()),
            (MemoryKind::Sliding, PrefixSource::Import { n_tokens }) => n_tokens,
            (_, PrefixSource::Cold) | (MemoryKind::Full | MemoryKind::Recurrent | MemoryKind::Hybrid, _) => 0,
        }
    }
}

/// Whether state is exported before it is destroyed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Save {
    /// The state is exported first.
    First,
    /// The state is not exported, because it is stored already, not worth the export, or not destroyed.
    No,
}

/// Decision on a waiting request.
#[derive(Debug, Clone, PartialEq)]
pub enum SlotDecision {
    /// The request starts.
    Start(SlotPlan),
    /// The request waits until a running sequence has computed `n_tokens` of their common prefix.
    WaitFor {
        /// Slot of the running sequence.
        slot: SlotId,
        /// Length of the common prefix.
        n_tokens: u32,
    },
    /// The request waits until these chunks have been read from disk.
    Fetch(Vec<ChunkId>),
    /// The request waits until a slot is idle.
    NoSlot,
}
