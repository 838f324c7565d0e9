//! Announced state, compared with the state of the naive worker in `world`.

use std::cmp::Reverse;
use std::collections::HashMap;

use warmpath_common::block_hash::{BlockHash, BlockKey, block_chain};
use warmpath_common::ids::SlotId;
use warmpath_common::model::MemoryKind;
use warmpath_common::summary::{Change, RunState, Tier};
use warmpath_worker_core::store::chunk_index::StateKind;

use crate::Keeps;
use crate::world::{BLOCK, Truth, World, root};

/// Announced state of one block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Known {
    state: RunState,
    resumes: bool,
    tier: Tier,
    slot: Option<SlotId>,
}

impl Known {
    fn quality(self) -> (bool, bool, Reverse<Tier>) {
        (self.resumes, self.state == RunState::Ready, Reverse(self.tier))
    }
}

/// All blocks that were announced and not withdrawn.
#[derive(Default)]
pub struct Announced(HashMap<BlockKey, Known>);

impl Announced {
    /// Applies the announcements and compares them with the truth, unless hashes collide.
    pub fn check(&mut self, world: &World, changes: Vec<Change>) {
        if world.collides() {
            return;
        }
        for change in changes {
            self.apply(change);
        }
        let truth = truth(world);
        assert_eq!(self.0.len(), truth.len(), "the announced blocks differ from the held ones");
        for (key, holders) in truth {
            let known = self.0[&key];
            let best = holders.iter().max_by_key(|holder| holder.quality()).unwrap();
            let has = |holder: &Known| (holder.slot, holder.tier) == (known.slot, known.tier);
            assert!(holders.iter().any(has), "{key} is announced as {known:?}, but held as {holders:?}");
            assert_eq!((known.state, known.resumes), (best.state, best.resumes), "{key} is announced as {known:?}");
            assert!(!known.resumes || known.tier == best.tier, "{key} is announced in another tier than it is");
        }
    }

    /// Returns how many of a chain's first blocks a router expects to be reused.
    pub fn n_expected(&self, chain: &[BlockHash]) -> usize {
        let known = chain.iter().map_while(|hash| self.0.get(&hash.key()));
        (1..).zip(known).filter(|(_, known)| known.resumes).map(|(n, _)| n).last().unwrap_or(0)
    }

    fn apply(&mut self, change: Change) {
        match change {
            Change::Stored(run) => {
                let n = run.keys.len();
                for (idx, key) in run.keys.iter().enumerate() {
                    let resumes = run.resume.is_behind(idx, n);
                    self.0.insert(*key, Known { state: run.state, resumes, tier: run.tier, slot: run.slot });
                }
            }
            Change::Removed(keys) => {
                for key in keys {
                    assert!(self.0.remove(&key).is_some(), "a block was withdrawn that was not announced");
                }
            }
            Change::Accepted(_) => panic!("the table accepts no requests"),
        }
    }
}

/// Returns the holders of each block's state.
fn truth(world: &World) -> HashMap<BlockKey, Vec<Known>> {
    let mut truth: HashMap<BlockKey, Vec<Known>> = HashMap::new();
    let memory = world.setting.memory;
    for (idx, kv) in world.kv.iter().enumerate() {
        let running = world.running[idx].as_ref().map(|running| &running.request);
        if running.is_some_and(|request| request.keeps == Keeps::Nothing || memory == MemoryKind::Recurrent) {
            continue;
        }
        let slot = SlotId(idx as u16);
        let ready = block_chain(&root(kv.salt), &kv.tokens, BLOCK);
        let filling = running.map(|request| block_chain(&root(kv.salt), &request.prompt, BLOCK)).unwrap_or_default();
        let n_ready = ready.len();
        for (depth, hash) in ready.into_iter().chain(filling.into_iter().skip(n_ready)).enumerate() {
            let (n, is_ready) = (depth + 1, depth < n_ready);
            let alone = match memory {
                MemoryKind::Full => true,
                MemoryKind::Sliding => n * BLOCK as usize >= world.table.slot(slot).rewinds_to(),
                MemoryKind::Recurrent | MemoryKind::Hybrid => n == n_ready && running.is_none(),
            };
            let takes_checkpoint = running.is_none() || (memory == MemoryKind::Hybrid && is_ready);
            let laid = checkpoint(world, &hash.key()).filter(|_| !alone && takes_checkpoint);
            let state = if is_ready { RunState::Ready } else { RunState::Filling };
            let known = Known {
                state,
                resumes: alone || laid.is_some(),
                tier: laid.unwrap_or(Tier::Resident),
                slot: Some(slot),
            };
            truth.entry(hash.key()).or_default().push(known);
        }
    }
    add_stored(world, &mut truth);
    truth
}

/// Returns the stored state, with its tiers.
fn stored(world: &World) -> impl Iterator<Item = (&Truth, Tier)> {
    let in_ram =
        world.payloads.iter().filter(|(id, _)| !world.passing.contains(id)).map(|(_, found)| (found, Tier::Ram));
    let on_disk = world.files.iter().filter(|(id, _)| world.passing.contains(id) || !world.payloads.contains_key(id));
    in_ram.chain(on_disk.map(|(_, found)| (found, Tier::Disk)))
}

/// Returns the tier of the checkpoint at the end of a block.
fn checkpoint(world: &World, key: &BlockKey) -> Option<Tier> {
    let mut checkpoints = stored(world).filter(|(stored, _)| stored.kind == StateKind::Checkpoint);
    let is_here = |stored: &Truth| {
        block_chain(&root(stored.salt), &stored.tokens, BLOCK).last().is_some_and(|last| last.key() == *key)
    };
    checkpoints.find(|(stored, _)| is_here(stored)).map(|(_, tier)| tier)
}

fn add_stored(world: &World, truth: &mut HashMap<BlockKey, Vec<Known>>) {
    let memory = world.setting.memory;
    for (stored, tier) in stored(world) {
        if stored.kind == StateKind::Checkpoint && memory != MemoryKind::Recurrent {
            continue;
        }
        let chain = block_chain(&root(stored.salt), &stored.tokens, BLOCK);
        for (depth, hash) in chain.iter().enumerate().skip(stored.first_block) {
            let alone = match stored.kind {
                StateKind::Chunk => memory == MemoryKind::Full,
                StateKind::Checkpoint => depth + 1 == chain.len(),
            };
            let laid = checkpoint(world, &hash.key()).filter(|_| !alone && stored.kind == StateKind::Chunk);
            let (resumes, tier) = (alone || laid.is_some(), tier.max(laid.unwrap_or(Tier::Resident)));
            truth.entry(hash.key()).or_default().push(Known { state: RunState::Ready, resumes, tier, slot: None });
        }
    }
}
