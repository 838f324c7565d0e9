//! Segments that prompts pass one behind the other and that could be one: what readers tell the writer.
//!
//! Not here: joining them (`writer`). The idea: a run does not name the block before it, so a conversation's turns arrive
//! as segments of their own; but whoever walks along a prompt sees which one follows which. Notes are hints: one too many
//! is checked by the writer, one too few costs a probe.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

use warmpath_common::block_hash::BlockKey;

use super::segment::Segment;
use super::span::SEGMENT_BLOCKS_MAX;

/// Is the most notes that wait for the writer.
pub(super) const NOTES_MAX: usize = 256;
/// Is the most spans of a segment that is joined: what many workers hold is left in different ways.
const SPANS_MAX: usize = 16;

/// Is two segments of which a prompt passed the second behind the end of the first.
#[derive(Debug, Clone, Copy)]
pub(super) struct Note {
    /// Are the writer's numbers of the two, so that it need not look for them.
    pub(super) numbers: [u32; 2],
    /// Are the last block of the first and the first of the second: numbers change hands.
    pub(super) blocks: [BlockKey; 2],
}

/// Is the notes that wait.
#[derive(Default)]
pub(super) struct Walked {
    /// Guards the notes; held for one push or one swap, by readers only where nobody waits for them.
    notes: Mutex<Vec<Note>>,
    /// Counts the notes, so that the writer needs no lock to see that there is none.
    n_notes: AtomicUsize,
}

impl Walked {
    /// Takes note of two segments, the second behind the end of the first, if they could be one.
    pub(super) fn note(&self, first: Segment<'_>, second: Segment<'_>) {
        if !can_join(first, second) || self.n_notes.load(Ordering::Relaxed) >= NOTES_MAX {
            return;
        }
        let Ok(mut notes) = self.notes.try_lock() else { return };
        notes.push(Note { numbers: [first.number(), second.number()], blocks: [first.last(), second.first()] });
        self.n_notes.store(notes.len(), Ordering::Relaxed);
    }

    /// Returns the notes so far and forgets them.
    pub(super) fn take(&self) -> Vec<Note> {
        if self.n_notes.load(Ordering::Relaxed) == 0 {
            return Vec::new();
        }
        let mut notes = self.notes.lock().unwrap_or_else(PoisonError::into_inner);
        self.n_notes.store(0, Ordering::Relaxed);
        std::mem::take(&mut notes)
    }
}

/// Returns whether a second segment may be put behind a first: together they are not too long, and who holds the
/// end of the first holds the second, and nobody else does.
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
