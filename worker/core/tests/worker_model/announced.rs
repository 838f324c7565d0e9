//! Announced state, compared with that of the naive worker.
//!
//! The truth comes from `world`.

use std::cmp::Reverse;
use std::collections::HashMap;

use warmpath_common::block_hash::{BlockKey, block_chain};
use warmpath_common::ids::SlotId;
use warmpath_common::model::MemoryKind;
use warmpath_common::summary::{Change, Resume, RunState, Tier};
use warmpath_worker_core::chunk_index::Kind;

use crate::Keeps;
use crate::world::{BLOCK, World, root};

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
        (self.state == RunState::Ready, self.resumes, Reverse(self.tier))
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
        assert_eq!(self.0.len(), truth.len(), "routers know of other blocks than there are");
        for (key, holders) in truth {
            let known = self.0[&key];
            let best = holders.iter().max_by_key(|holder| holder.quality()).unwrap();
            let has = |holder: &Known| (holder.slot, holder.tier) == (known.slot, known.tier);
            assert!(holders.iter().any(has), "{key} is announced as {known:?}, but there is {holders:?}");
            assert_eq!((known.state, known.resumes), (best.state, best.resumes), "{key} is announced as {known:?}");
            let tier_counts = world.setting.memory.rewinds_anywhere() || known.resumes;
            assert!(!tier_counts || known.tier == best.tier, "{key} is announced slower or faster than it is");
        }
    }

    fn apply(&mut self, change: Change) {
        match change {
            Change::Stored(run) => {
                let last = run.keys.len() - 1;
                for (idx, key) in run.keys.iter().enumerate() {
                    let resumes = run.resume == Resume::EveryBlock || idx == last;
                    self.0.insert(*key, Known { state: run.state, resumes, tier: run.tier, slot: run.slot });
                }
            }
            Change::Removed(keys) => {
                for key in keys {
                    assert!(self.0.remove(&key).is_some(), "withdrew what was never announced");
                }
            }
            Change::Accepted(_) => panic!("the table accepts no requests"),
        }
    }
}

/// Returns the holders of each block.
fn truth(world: &World) -> HashMap<BlockKey, Vec<Known>> {
    let mut truth: HashMap<BlockKey, Vec<Known>> = HashMap::new();
    let rewinds = world.setting.memory.rewinds_anywhere();
    for (idx, kv) in world.kv.iter().enumerate() {
        let running = world.running[idx].as_ref().map(|running| &running.request);
        if running.is_some_and(|request| request.keeps == Keeps::Nothing || !rewinds) {
            continue;
        }
        let ready = block_chain(&root(kv.salt), &kv.tokens, BLOCK);
        let filling = running.map(|request| block_chain(&root(kv.salt), &request.prompt, BLOCK)).unwrap_or_default();
        let n_ready = ready.len();
        for (depth, hash) in ready.into_iter().chain(filling.into_iter().skip(n_ready)).enumerate() {
            let state = if depth < n_ready { RunState::Ready } else { RunState::Filling };
            let resumes = rewinds || depth + 1 == n_ready;
            let known = Known { state, resumes, tier: Tier::Resident, slot: Some(SlotId(idx as u16)) };
            truth.entry(hash.key()).or_default().push(known);
        }
    }
    add_stored(world, &mut truth);
    truth
}

fn add_stored(world: &World, truth: &mut HashMap<BlockKey, Vec<Known>>) {
    let wanted = match world.setting.memory {
        MemoryKind::Full => Kind::Chunk,
        // Slots can be rewound to any token and stored state cannot: one chain has one kind of resume points.
        MemoryKind::Sliding => return,
        MemoryKind::Recurrent | MemoryKind::Hybrid => Kind::Checkpoint,
    };
    let in_ram = world.payloads.iter().filter(|(id, _)| !world.passing.contains(id)).map(|found| (found, Tier::Ram));
    let on_disk = world.files.iter().filter(|(id, _)| world.passing.contains(id) || !world.payloads.contains_key(id));
    for ((_, stored), tier) in in_ram.chain(on_disk.map(|found| (found, Tier::Disk))) {
        if stored.kind != wanted {
            continue;
        }
        let chain = block_chain(&root(stored.salt), &stored.tokens, BLOCK);
        for (depth, hash) in chain.iter().enumerate().skip(stored.first_block) {
            let resumes = wanted == Kind::Chunk || depth + 1 == chain.len();
            truth.entry(hash.key()).or_default().push(Known { state: RunState::Ready, resumes, tier, slot: None });
        }
    }
}
