//! Early announcements: blocks of requests that have arrived but not started, announced to routers in advance.
//!
//! `prefix_tree` has the blocks in slots and chunks, and those that running sequences compute; the shell decides which
//! blocks a request announces.
//!
//! A request starts after the current step at the earliest, and often waits in a queue. If routers learned of it only
//! at its start, they would send requests with the same prefix to other workers. So its blocks are announced when it
//! arrives. The announcement ends when the request starts, because the prefix tree then announces the blocks, or when
//! the request ends without a start. The tree takes precedence: an early announcement is only published for blocks that
//! the tree does not announce.

use std::collections::BTreeMap;

use hashbrown::hash_map::Entry;
use hashbrown::{HashMap, HashSet};
use warmpath_common::block_hash::BlockKey;
use warmpath_common::summary::{Change, Resume, Run, RunState, Tier};

/// Unique identifier of an early announcement.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct AnnouncementId(pub u64);

/// All current early announcements.
#[derive(Debug, Clone, Default)]
pub struct PendingPrefills {
    /// Blocks of each announcement in the order of their chain.
    chains: BTreeMap<AnnouncementId, Vec<BlockKey>>,
    /// Every block that is announced early.
    blocks: HashMap<BlockKey, PendingBlock>,
}

#[derive(Debug, Clone, Copy)]
struct PendingBlock {
    /// Number of announcements that include the block.
    n: u32,
    /// Whether the block is only announced early, and not by the prefix tree.
    is_alone: bool,
}

impl PendingPrefills {
    /// Adds an announcement of a chain's blocks; returns the changes to publish.
    ///
    /// `is_announced` returns whether the prefix tree announces a block, given with its index. Cost: O(keys).
    pub fn make(
        &mut self,
        id: AnnouncementId,
        keys: Vec<BlockKey>,
        is_announced: impl Fn(usize, &BlockKey) -> bool,
    ) -> Vec<Change> {
        let mut is_new = vec![false; keys.len()];
        for (idx, key) in keys.iter().enumerate() {
            match self.blocks.entry(*key) {
                Entry::Occupied(mut entry) => entry.get_mut().n += 1,
                Entry::Vacant(entry) => {
                    is_new[idx] = !is_announced(idx, key);
                    entry.insert(PendingBlock { n: 1, is_alone: is_new[idx] });
                }
            }
        }
        let changes = filling(&keys, |idx| is_new[idx]);
        self.chains.insert(id, keys);
        changes
    }

    /// Removes an announcement; returns the change to publish, which withdraws the blocks that are not announced
    /// otherwise.
    ///
    /// Cost: O(the announcement's blocks).
    pub fn resolve(&mut self, id: AnnouncementId) -> Option<Change> {
        let keys = self.chains.remove(&id)?;
        let mut removed_keys = Vec::new();
        for key in keys {
            let Entry::Occupied(mut entry) = self.blocks.entry(key) else { continue };
            entry.get_mut().n -= 1;
            if entry.get().n == 0 && entry.remove().is_alone {
                removed_keys.push(key);
            }
        }
        (!removed_keys.is_empty()).then_some(Change::Removed(removed_keys))
    }

    /// Applies a change of the prefix tree. Returns the changes to publish: that change, and an announcement as filling
    /// of the pending blocks that it withdraws.
    ///
    /// Cost: O(the change's blocks), and O(all pending blocks) if it withdraws one of them.
    pub fn pass(&mut self, change: Change) -> Vec<Change> {
        // The tree takes over the blocks that it announces, and gives back those that it withdraws.
        let mut orphans: HashSet<BlockKey> = HashSet::new();
        match &change {
            Change::Stored(run) => {
                for key in &run.keys {
                    if let Some(pending_block) = self.blocks.get_mut(key) {
                        pending_block.is_alone = false;
                    }
                }
            }
            Change::Removed(keys) => {
                for key in keys {
                    if let Some(pending_block) = self.blocks.get_mut(key) {
                        pending_block.is_alone = true;
                        orphans.insert(*key);
                    }
                }
            }
            Change::Accepted(_) => {}
        }
        // An orphan is announced once, with the first chain that has it.
        let mut changes = vec![change];
        for keys in self.chains.values() {
            if orphans.is_empty() {
                break;
            }
            let is_orphan: Vec<bool> = keys.iter().map(|key| orphans.remove(key)).collect();
            changes.extend(filling(keys, |idx| is_orphan[idx]));
        }
        changes
    }
}

/// Returns changes that announce blocks of a chain as filling: those whose index `is` accepts, as one run for each
/// consecutive part.
fn filling(keys: &[BlockKey], is: impl Fn(usize) -> bool) -> Vec<Change> {
    let indices: Vec<usize> = (0..keys.len()).filter(|idx| is(*idx)).collect();
    let stretches = indices.chunk_by(|one, next| one + 1 == *next);
    let run = |stretch: &[usize]| Run {
        keys: stretch.iter().map(|idx| keys[*idx]).collect(),
        tier: Tier::Resident,
        state: RunState::Filling,
        resume: Resume::EveryBlock,
        slot: None,
    };
    stretches.map(|stretch| Change::Stored(run(stretch))).collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn stored(keys: Vec<BlockKey>) -> Change {
        let (tier, state, resume) = (Tier::Ram, RunState::Ready, Resume::EveryBlock);
        Change::Stored(Run { keys, tier, state, resume, slot: None })
    }

    /// State that a router derives from the changes.
    #[derive(Default, PartialEq, Debug)]
    struct View(BTreeMap<BlockKey, RunState>);

    impl View {
        fn apply(&mut self, changes: Vec<Change>) {
            for change in changes {
                match change {
                    Change::Stored(run) => self.0.extend(run.keys.iter().map(|key| (*key, run.state))),
                    Change::Removed(keys) => self.0.retain(|key, _| !keys.contains(key)),
                    Change::Accepted(_) => {}
                }
            }
        }
    }

    #[derive(Debug, Clone)]
    enum Step {
        Make(Vec<BlockKey>),
        Settle(usize),
        Hold(Vec<BlockKey>),
        Release(Vec<BlockKey>),
    }

    /// Returns blocks of one of two chains that share their first three.
    fn any_keys() -> impl Strategy<Value = Vec<BlockKey>> {
        (0..2_u64, 0..8_u64, 0..8_u64).prop_map(|(chain, from, to)| {
            let key = |depth| BlockKey(if depth < 3 { depth } else { depth + 10 * chain });
            (from.min(to)..from.max(to)).map(key).collect()
        })
    }

    fn any_step() -> impl Strategy<Value = Step> {
        prop_oneof![
            3 => any_keys().prop_map(Step::Make),
            2 => any::<usize>().prop_map(Step::Settle),
            2 => any_keys().prop_map(Step::Hold),
            2 => any_keys().prop_map(Step::Release),
        ]
    }

    proptest! {
        #[test]
        fn held_blocks_take_precedence_over_pending_ones(steps in prop::collection::vec(any_step(), 0..60)) {
            let mut pending_prefills = PendingPrefills::default();
            let mut view = View::default();
            let mut held: Vec<BlockKey> = Vec::new();
            let mut open: Vec<(AnnouncementId, Vec<BlockKey>)> = Vec::new();
            for (number, step) in steps.into_iter().enumerate() {
                match step {
                    Step::Make(keys) => {
                        let id = AnnouncementId(number as u64);
                        open.push((id, keys.clone()));
                        let changes = pending_prefills.make(id, keys, |_, key| view.0.contains_key(key));
                        view.apply(changes);
                    }
                    Step::Settle(any) if !open.is_empty() => {
                        let (id, _) = open.remove(any % open.len());
                        view.apply(pending_prefills.resolve(id).into_iter().collect());
                    }
                    Step::Settle(_) => {}
                    Step::Hold(keys) => {
                        held.extend(keys.iter().copied());
                        view.apply(pending_prefills.pass(stored(keys)));
                    }
                    Step::Release(keys) => {
                        let gone: Vec<BlockKey> = keys.into_iter().filter(|key| held.contains(key)).collect();
                        held.retain(|key| !gone.contains(key));
                        view.apply(pending_prefills.pass(Change::Removed(gone)));
                    }
                }
                let mut expected = View::default();
                let pending_block = open.iter().flat_map(|(_, keys)| keys);
                expected.0.extend(pending_block.map(|key| (*key, RunState::Filling)));
                expected.0.extend(held.iter().map(|key| (*key, RunState::Ready)));
                prop_assert_eq!(&view, &expected);
            }
            for (id, _) in open {
                pending_prefills.resolve(id);
            }
            prop_assert!(pending_prefills.blocks.is_empty() && pending_prefills.chains.is_empty());
        }
    }

    #[test]
    fn a_run_has_consecutive_blocks_of_one_chain() {
        let keys: Vec<BlockKey> = (0..6).map(BlockKey).collect();
        let mut pending_prefills = PendingPrefills::default();
        let changes = pending_prefills.make(AnnouncementId(0), keys.clone(), |idx, _| idx == 2);
        assert_eq!(changes, [filling(&keys[..2], |_| true), filling(&keys[3..], |_| true)].concat());
        assert_eq!(pending_prefills.make(AnnouncementId(1), keys, |_, _| true), []);
    }
}
