//! One word that records how a worker holds blocks of a segment: worker, slot, tier, state, resume point, first and
//! last block.
//!
//! The segment's keys and the order of its spans are in `segment`. 63 bits are enough, and blocks that are held in the
//! same way share one word.

use std::ops::Range;

use warmpath_common::ids::SlotId;
use warmpath_common::summary::{Run, RunState, Tier};

use crate::WorkerIdx;

/// Maximum number of blocks of a segment: a span has nine bits for its first and for its last.
pub(super) const SEGMENT_BLOCKS_MAX: usize = 1 << 9;

const SLOT_SHIFT: u32 = 24;
const TIER_SHIFT: u32 = 40;
const FILLING: u64 = 1 << 42;
const RESUMABLE: u64 = 1 << 43;
const HAS_SLOT: u64 = 1 << 44;
const FROM_SHIFT: u32 = 45;
const LAST_SHIFT: u32 = 54;
const WORKER_MASK: u64 = (1 << SLOT_SHIFT) - 1;
const FORM_MASK: u64 = (1 << FROM_SHIFT) - 1;
const OFFSET_MASK: u64 = SEGMENT_BLOCKS_MAX as u64 - 1;

/// State of blocks on one worker: a span without its range.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct SpanForm(u64);

impl SpanForm {
    /// Returns how `worker` holds the blocks of `run`, without resume points.
    pub(super) fn new(worker: WorkerIdx, run: &Run) -> Self {
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
        Self(word)
    }

    /// Returns the same form with a resume point after each block.
    pub(super) fn resumable(self) -> Self {
        Self(self.0 | RESUMABLE)
    }

    /// Returns the span of the blocks `range`, which is not empty and lies within a segment.
    pub(super) fn over(self, range: Range<usize>) -> BlockSpan {
        debug_assert!(range.start < range.end && range.end <= SEGMENT_BLOCKS_MAX);
        BlockSpan(self.0 | (range.start as u64) << FROM_SHIFT | (range.end as u64 - 1) << LAST_SHIFT)
    }
}

/// Consecutive blocks of a segment that one worker holds in the same state.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct BlockSpan(pub(super) u64);

impl BlockSpan {
    /// Returns the worker.
    pub(super) fn worker(self) -> WorkerIdx {
        WorkerIdx((self.0 & WORKER_MASK) as u32)
    }

    /// Returns the offset of the first block.
    pub(super) fn from(self) -> usize {
        (self.0 >> FROM_SHIFT & OFFSET_MASK) as usize
    }

    /// Returns one more than the offset of the last block.
    pub(super) fn to(self) -> usize {
        (self.0 >> LAST_SHIFT & OFFSET_MASK) as usize + 1
    }

    /// Returns the number of blocks.
    pub(super) fn len(self) -> usize {
        self.to() - self.from()
    }

    /// Returns how the blocks are held.
    pub(super) fn form(self) -> SpanForm {
        SpanForm(self.0 & FORM_MASK)
    }

    /// Returns the slot that holds the blocks.
    pub(super) fn slot(self) -> Option<SlotId> {
        (self.0 & HAS_SLOT != 0).then_some(SlotId((self.0 >> SLOT_SHIFT) as u16))
    }

    /// Returns the tier of the blocks.
    pub(super) fn tier(self) -> Tier {
        // Without a branch: lookups read thousands of spans.
        const TIERS: [Tier; 4] = [Tier::Resident, Tier::Ram, Tier::Disk, Tier::Disk];
        TIERS[(self.0 >> TIER_SHIFT & 3) as usize]
    }

    /// Returns whether the blocks are computed.
    pub(super) fn state(self) -> RunState {
        if self.0 & FILLING == 0 { RunState::Ready } else { RunState::Filling }
    }

    /// Returns whether a request may start after each of the blocks.
    pub(super) fn is_resumable(self) -> bool {
        self.0 & RESUMABLE != 0
    }
}
