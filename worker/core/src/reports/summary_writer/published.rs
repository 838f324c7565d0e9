//! The published view: the blocks of a receiver that has applied every update so far.
//!
//! It keeps the runs as they were announced, with gaps for blocks that were replaced by a later run or removed. A
//! snapshot consists of the parts between the gaps. Not here: sending it.

use std::collections::{BTreeMap, HashMap};

use warmpath_common::block_hash::BlockKey;
use warmpath_common::summary::{Change, Digest, Resume, Run};

/// Every block that the worker has announced and not removed.
#[derive(Debug, Default)]
pub struct Published {
    /// Announced runs in order of their announcement.
    runs: BTreeMap<u64, AnnouncedRun>,
    /// Run and index of each block.
    places: HashMap<BlockKey, (u64, usize)>,
    n_announced: u64,
    digest: Digest,
}

/// A run as it was announced, without the blocks that were replaced or removed since.
#[derive(Debug)]
struct AnnouncedRun {
    /// The run without its keys.
    form: Run,
    keys: Vec<Option<BlockKey>>,
    n_left: usize,
}

impl Published {
    /// Applies one change.
    pub fn apply(&mut self, change: &Change) {
        match change {
            Change::Stored(run) => self.store(run),
            Change::Removed(keys) => keys.iter().for_each(|key| self.remove(key)),
            Change::Accepted(_) => {}
        }
    }

    /// Returns whether a block is in the view.
    pub fn has(&self, key: &BlockKey) -> bool {
        self.places.contains_key(key)
    }

    /// Returns the digest of all blocks.
    pub fn digest(&self) -> Digest {
        self.digest
    }

    /// Returns runs that, applied to an empty view, give this view.
    pub fn runs(&self) -> Vec<Run> {
        let mut runs = Vec::with_capacity(self.runs.len());
        for announced_run in self.runs.values() {
            let stretches = announced_run.keys.split(Option::is_none).filter(|stretch| !stretch.is_empty());
            let n_runs_before = runs.len();
            runs.extend(stretches.map(|stretch| Run {
                keys: stretch.iter().copied().flatten().collect(),
                ..announced_run.form.clone()
            }));
            // A checkpoint's run can be resumed only at its last block, so the part before a gap has no resume point.
            if announced_run.form.resume == Resume::LastBlock {
                let has_end = announced_run.keys.last().is_some_and(Option::is_some);
                let n_whole = runs.len() - usize::from(has_end);
                runs[n_runs_before..n_whole].iter_mut().for_each(|run| run.resume = Resume::Nowhere);
            }
        }
        runs
    }

    fn store(&mut self, run: &Run) {
        if run.keys.is_empty() {
            return;
        }
        let id = self.n_announced;
        self.n_announced += 1;
        // If a run has a block twice, the later position counts.
        let mut keys: Vec<Option<BlockKey>> = Vec::with_capacity(run.keys.len());
        let mut n_left = 0;
        for (idx, key) in run.keys.iter().enumerate() {
            self.remove(key);
            if let Some((_, earlier_idx)) = self.places.insert(*key, (id, idx)) {
                keys[earlier_idx] = None;
                n_left -= 1;
                self.digest.remove(*key);
            }
            self.digest.add(*key);
            keys.push(Some(*key));
            n_left += 1;
        }
        let form = Run { keys: Vec::new(), ..run.clone() };
        self.runs.insert(id, AnnouncedRun { form, keys, n_left });
    }

    fn remove(&mut self, key: &BlockKey) {
        let Some(&(id, idx)) = self.places.get(key) else { return };
        let Some(run) = self.runs.get_mut(&id) else { return };
        self.places.remove(key);
        self.digest.remove(*key);
        run.keys[idx] = None;
        run.n_left -= 1;
        if run.n_left == 0 {
            self.runs.remove(&id);
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use warmpath_common::ids::SlotId;
    use warmpath_common::summary::{RunState, Tier};

    use super::*;

    /// A receiver's state of each block: its run, and whether a request may start after it.
    type View = HashMap<BlockKey, (Run, bool)>;

    /// Applies a change block by block, like a receiver.
    fn receive(view: &mut View, change: &Change) {
        match change {
            Change::Stored(run) => {
                let form = Run { keys: Vec::new(), resume: Resume::EveryBlock, ..run.clone() };
                for (idx, key) in run.keys.iter().enumerate() {
                    view.insert(*key, (form.clone(), run.resume.is_behind(idx, run.keys.len())));
                }
            }
            Change::Removed(keys) => keys.iter().for_each(|key| drop(view.remove(key))),
            Change::Accepted(_) => {}
        }
    }

    fn resumable(view: &View) -> HashMap<BlockKey, Run> {
        view.iter().filter(|(_, (_, resumable))| *resumable).map(|(key, (run, _))| (*key, run.clone())).collect()
    }

    fn any_change() -> impl Strategy<Value = Change> {
        let keys =
            || prop::collection::btree_set(0_u64..12, 0..6).prop_map(|keys| keys.into_iter().map(BlockKey).collect());
        let resume = prop_oneof![Just(Resume::EveryBlock), Just(Resume::LastBlock), Just(Resume::Nowhere)];
        let stored = (keys(), resume, any::<bool>(), 0_u16..3).prop_map(|(keys, resume, ready, slot)| {
            Change::Stored(Run {
                keys,
                tier: Tier::Resident,
                state: if ready { RunState::Ready } else { RunState::Filling },
                resume,
                slot: Some(SlotId(slot)),
            })
        });
        prop_oneof![2 => stored, 1 => keys().prop_map(Change::Removed)]
    }

    proptest! {
        #[test]
        fn a_snapshot_equals_the_sum_of_the_updates_before_it(changes in prop::collection::vec(any_change(), 0..40)) {
            let mut published = Published::default();
            let mut from_updates = View::new();
            for change in &changes {
                published.apply(change);
                receive(&mut from_updates, change);
                let mut from_snapshot = View::new();
                published.runs().into_iter().for_each(|run| receive(&mut from_snapshot, &Change::Stored(run)));
                prop_assert_eq!(resumable(&from_snapshot), resumable(&from_updates));
                prop_assert_eq!(published.digest(), Digest::of(from_updates.keys()));
                prop_assert_eq!(published.digest(), Digest::of(from_snapshot.keys()));
            }
        }
    }

    #[test]
    fn forgets_a_run_that_has_lost_every_block() {
        let mut published = Published::default();
        let run = Run {
            keys: vec![BlockKey(1), BlockKey(2)],
            tier: Tier::Resident,
            state: RunState::Ready,
            resume: Resume::EveryBlock,
            slot: Some(SlotId(0)),
        };
        published.apply(&Change::Stored(run));
        published.apply(&Change::Removed(vec![BlockKey(2), BlockKey(1), BlockKey(7)]));
        assert!(published.runs().is_empty() && published.runs.is_empty() && published.places.is_empty());
    }
}
