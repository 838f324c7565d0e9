//! What a plan says: where a request starts, from what, and what is saved before.
//!
//! Not here: how it is chosen (`slot_plan`).

use warmpath_common::ids::SlotId;
use warmpath_common::model::MemoryKind;

use crate::chunk_index::ChunkId;
use crate::slot_table::SlotTable;

use super::to_u32;

/// Says how the first tokens of a prompt get into its slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Start {
    /// None do: the slot is cleared and the whole prompt computed.
    Cold,
    /// The slot's own first tokens stay.
    Keep {
        /// Is their number, at least 1 and less than the prompt's.
        n_tokens: u32,
    },
    /// Another slot's first tokens are copied; that slot keeps them.
    Copy {
        /// Names the other slot.
        from: SlotId,
        /// Is their number, at least 1 and less than the prompt's.
        n_tokens: u32,
    },
    /// They come from the store.
    Import {
        /// Is their number, at least 1 and less than the prompt's.
        n_tokens: u32,
    },
}

impl Start {
    /// Returns the same start with so many of its tokens.
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

/// Is where a request starts.
#[derive(Debug, Clone, PartialEq)]
pub struct SlotPlan {
    /// Names the slot.
    pub slot: SlotId,
    /// Says whether what the slot holds is exported to the store before it is overwritten.
    pub save: Save,
    /// Says how its prompt's first tokens get there.
    pub start: Start,
    /// Is the partial state that is put over them, where the model's memory cannot be rewound to them.
    pub checkpoint: Option<ChunkId>,
}

impl SlotPlan {
    /// Returns the fewest tokens that the slot can be cut back to once this is done: a window's past is not stored.
    pub fn rewinds_to(&self, table: &SlotTable) -> u32 {
        match (table.memory(), self.start) {
            (MemoryKind::Sliding, Start::Keep { n_tokens }) if self.checkpoint.is_some() => n_tokens,
            (MemoryKind::Sliding, Start::Keep { .. }) => to_u32(table.slot(self.slot).rewinds_to()),
            (MemoryKind::Sliding, Start::Copy { from, .. }) => to_u32(table.slot(from).rewinds_to()),
            (MemoryKind::Sliding, Start::Import { n_tokens }) => n_tokens,
            (_, Start::Cold) | (MemoryKind::Full | MemoryKind::Recurrent | MemoryKind::Hybrid, _) => 0,
        }
    }
}

/// Says whether state is exported before it is destroyed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Save {
    /// It is.
    First,
    /// It is not: it is stored, or not worth it, or nothing is destroyed.
    No,
}

/// Says what becomes of a waiting request now.
#[derive(Debug, Clone, PartialEq)]
pub enum Decision {
    /// It starts.
    Start(SlotPlan),
    /// It waits until a running sequence has computed so much of what both share.
    WaitFor {
        /// Names the sequence's slot.
        slot: SlotId,
        /// Is the tokens of the prompt that will be shared.
        n_tokens: u32,
    },
    /// It waits until chunks have been read from disk.
    Fetch(Vec<ChunkId>),
    /// It waits until a slot is idle.
    NoSlot,
}
