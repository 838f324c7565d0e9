//! The running sequences, by their slots.

use warmpath_common::ids::SlotId;

use super::Sequence;

/// Sequence that runs in each slot, if any.
pub(crate) struct RunningSequences(Vec<Option<Sequence>>);

impl RunningSequences {
    pub(crate) fn new(n_slots: u16) -> Self {
        Self((0..n_slots).map(|_| None).collect())
    }

    /// Runs a sequence in a slot that is idle.
    pub(crate) fn put(&mut self, slot: SlotId, sequence: Sequence) -> &mut Sequence {
        self.0[usize::from(slot.0)].insert(sequence)
    }

    /// Ends the sequence in a busy slot.
    pub(crate) fn take(&mut self, slot: SlotId) -> Sequence {
        self.0[usize::from(slot.0)].take().expect("a busy slot runs a sequence")
    }

    /// Returns whether no sequence runs.
    pub(crate) fn is_empty(&self) -> bool {
        self.0.iter().all(Option::is_none)
    }

    /// Returns the sequence in a slot.
    pub(crate) fn get(&self, slot: SlotId) -> Option<&Sequence> {
        self.0[usize::from(slot.0)].as_ref()
    }

    /// Returns the sequence in a slot.
    pub(crate) fn get_mut(&mut self, slot: SlotId) -> Option<&mut Sequence> {
        self.0[usize::from(slot.0)].as_mut()
    }

    /// Returns the sequence in a busy slot.
    pub(crate) fn in_slot(&self, slot: SlotId) -> &Sequence {
        self.get(slot).expect("the slot is busy")
    }

    /// Returns the running sequences with their slots.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (SlotId, &Sequence)> {
        (0..).map(SlotId).zip(&self.0).filter_map(|(slot, sequence)| Some((slot, sequence.as_ref()?)))
    }

    /// Returns the running sequences with their slots.
    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = (SlotId, &mut Sequence)> {
        (0..).map(SlotId).zip(&mut self.0).filter_map(|(slot, sequence)| Some((slot, sequence.as_mut()?)))
    }

    /// Returns every slot with the sequence that runs there, if any.
    pub(crate) fn all(&self) -> impl Iterator<Item = (SlotId, Option<&Sequence>)> {
        (0..).map(SlotId).zip(self.0.iter().map(Option::as_ref))
    }

    /// Returns the busy slots.
    pub(crate) fn slots(&self) -> Vec<SlotId> {
        self.iter().map(|(slot, _)| slot).collect()
    }
}
