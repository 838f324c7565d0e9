//! Hints from readers to the writer: pairs of segments that prompts pass one after the other and that could be joined.
//!
//! Joining is done in `writer`. A run does not name the block before it, so a conversation's turns arrive as separate
//! segments. A reader that walks along a prompt sees which segment follows which. The writer checks each hint, and a
//! missing hint costs a probe.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

use warmpath_common::block_hash::BlockKey;

use super::segment::Segment;
use super::span::SEGMENT_BLOCKS_MAX;

/// Maximum number of hints that wait for the writer.
///
/// Source: own choice: the next lookup gives a lost hint again.
pub(super) const HINTS_MAX: usize = 256;
/// Maximum number of spans of a joined segment: workers that share a segment soon differ in what they hold of it.
/// Source: own choice: with more spans the longer search takes as much time as the joined segment saves.
const SPANS_MAX: usize = 16;

/// Two segments: a prompt's chain continued from the end of the first into the second.
#[derive(Debug, Clone, Copy)]
pub(super) struct MergeHint {
    /// The writer's numbers of both segments, which save it a search.
    pub(super) numbers: [u32; 2],
    /// Last block of the first segment and first block of the second, to detect a reused number.
    pub(super) blocks: [BlockKey; 2],
}

/// Hints that wait for the writer.
#[derive(Default)]
pub(super) struct MergeHints {
    /// The lock guards the hints. It is held for one push or one swap; a reader takes it only if it is free.
    hints: Mutex<Vec<MergeHint>>,
    /// Number of hints, so that the writer needs no lock to see that there are none.
    n_hints: AtomicUsize,
}

impl MergeHints {
    /// Adds a hint for two segments, the second after the end of the first, if they could be joined.
    pub(super) fn note(&self, first: Segment<'_>, second: Segment<'_>) {
        if !can_join(first, second) || self.n_hints.load(Ordering::Relaxed) >= HINTS_MAX {
            return;
        }
        let Ok(mut hints) = self.hints.try_lock() else { return };
        hints.push(MergeHint { numbers: [first.number(), second.number()], blocks: [first.last(), second.first()] });
        self.n_hints.store(hints.len(), Ordering::Relaxed);
    }

    /// Returns and removes the hints.
    pub(super) fn take(&self) -> Vec<MergeHint> {
        if self.n_hints.load(Ordering::Relaxed) == 0 {
            return Vec::new();
        }
        let mut hints = self.hints.lock().unwrap_or_else(PoisonError::into_inner);
        self.n_hints.store(0, Ordering::Relaxed);
        std::mem::take(&mut hints)
    }
}

/// Returns whether a second segment may be appended to a first: together they are not too long, and exactly the workers
/// that hold the end of the first hold the second.
pub(super) fn can_join(first: Segment<'_>, second: Segment<'_>) -> bool {
    let n_spans = first.n_spans() + second.n_spans();
    if first.len() + second.len() > SEGMENT_BLOCKS_MAX || n_spans > SPANS_MAX {
        return false;
    }
    let at_end = first.spans().filter(|span| span.to() == first.len()).map(|span| span.worker());
    let mut at_start: Vec<_> = second.spans().map(|span| span.worker()).collect();
    at_start.dedup();
    at_end.eq(at_start)
}
