//! One word that says who holds a block and how: worker, slot, tier, state, resume point.
//!
//! Not here: the age of an entry, which shares the word's upper bits in the table (`shard`).
//! The idea: 48 bits are enough, so a block with one holder costs 16 bytes and its share of the table.

use warmpath_common::ids::SlotId;
use warmpath_common::summary::{Run, RunState, Tier};

use crate::WorkerIdx;

const SLOT_SHIFT: u32 = 24;
const TIER_SHIFT: u32 = 40;
const FILLING: u64 = 1 << 42;
const RESUMABLE: u64 = 1 << 43;
const HAS_SLOT: u64 = 1 << 44;
const WORKER_MASK: u64 = (1 << SLOT_SHIFT) - 1;

/// Is one worker's claim to one block, in the lower 45 bits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Holder(pub(super) u64);

impl Holder {
    /// Is the mask of the bits that a holder may use.
    pub(super) const MASK: u64 = (1 << 45) - 1;

    /// Returns the claim of `worker` to one block of `run`.
    pub(super) fn new(worker: WorkerIdx, run: &Run, resumable: Resumable) -> Self {
        debug_assert!(worker.0 < WorkerIdx::COUNT_MAX);
        let tier = match run.tier {
            Tier::Resident => 0u64,
            Tier::Ram => 1,
            Tier::Disk => 2,
        };
        let mut word = u64::from(worker.0) & WORKER_MASK | tier << TIER_SHIFT;
        if let Some(SlotId(slot)) = run.slot {
            word |= u64::from(slot) << SLOT_SHIFT | HAS_SLOT;
        }
        if run.state == RunState::Filling {
            word |= FILLING;
        }
        if resumable == Resumable::Yes {
            word |= RESUMABLE;
        }
        Self(word)
    }

    /// Returns the worker.
    pub(super) fn worker(self) -> WorkerIdx {
        WorkerIdx((self.0 & WORKER_MASK) as u32)
    }

    /// Returns the slot that holds the block.
    pub(super) fn slot(self) -> Option<SlotId> {
        (self.0 & HAS_SLOT != 0).then_some(SlotId((self.0 >> SLOT_SHIFT) as u16))
    }

    /// Returns where the block lies.
    pub(super) fn tier(self) -> Tier {
        match self.0 >> TIER_SHIFT & 3 {
            0 => Tier::Resident,
            1 => Tier::Ram,
            _ => Tier::Disk,
        }
    }

    /// Returns whether the block is computed.
    pub(super) fn state(self) -> RunState {
        if self.0 & FILLING == 0 { RunState::Ready } else { RunState::Filling }
    }

    /// Returns whether a request may start behind the block.
    pub(super) fn is_resumable(self) -> bool {
        self.0 & RESUMABLE != 0
    }
}

/// Says whether a request may start behind a block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Resumable {
    /// It may.
    Yes,
    /// It may only behind a deeper block.
    No,
}
