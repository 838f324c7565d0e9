//! Random events of a worker's whole core, compared with naive KV state: slots, store, disk, waiting, checkpoints,
//! announcements.
//!
//! Unit tests cover each part alone, and the worker's tests llama.cpp.
//!
//! A payload of the model is the list of tokens from which it was computed. The state that a plan brings to a slot must
//! have been computed from the prompt's tokens, must be where the plan expects it, and must be of a kind that can be
//! cut there. At the end all running sequences are finished, and every request must have started.

#![allow(clippy::unwrap_used, missing_docs, reason = "helpers of tests are tests")]

mod announced;
mod starts;
mod world;

use proptest::prelude::*;
use warmpath_common::block_hash::{BlockHash, block_hash};
use warmpath_common::ids::Token;
use warmpath_common::model::MemoryKind;
use warmpath_worker_core::slots::prefix_tree::BlockHasher;

use world::{Request, Setting, World};

/// One random event.
#[derive(Debug, Clone)]
enum Happening {
    /// A request arrives whose prompt has the first tokens of a conversation and new ones.
    Come { from: usize, n_kept: usize, extra: Vec<Token>, other_salt: u8, keeps: Keeps },
    /// A running sequence computes some of its tokens.
    Compute { which: usize, n: usize },
    /// A running sequence ends, whether finished, cancelled or failed.
    End { which: usize },
    /// A running sequence loses its KV state and fails.
    Lose { which: usize },
    /// A waiting request's client leaves.
    Leave { which: usize },
    /// An idle slot's state is moved from the buffer to the store, as far as it has space.
    MoveOut { which: usize },
    /// A disk operation ends.
    Disk { which: usize, outcome: Outcome },
    /// The disk takes too long for the reads in progress.
    Stall,
    /// A conversation is pinned, or a pin is removed.
    Pin { which: usize, name: u64 },
    /// The store is cleared.
    Clear,
}

/// Whether a request leaves its state in the cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Keeps {
    State,
    Nothing,
}

/// Outcome of a disk operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    Good,
    Bad,
}

fn happening() -> impl Strategy<Value = Happening> {
    let extra = prop::collection::vec(0_u32..3, 1..9);
    let n_kept = prop_oneof![Just(world::CONTEXT as usize), 0_usize..34];
    let salt = prop_oneof![9 => Just(0_u8), 1 => Just(1_u8)];
    let keeps = prop::bool::weighted(0.9).prop_map(|keeps| if keeps { Keeps::State } else { Keeps::Nothing });
    let outcome = prop::bool::weighted(0.7).prop_map(|good| if good { Outcome::Good } else { Outcome::Bad });
    prop_oneof![
        24 => (0_usize..8, n_kept, extra, salt, keeps)
            .prop_map(|(from, n_kept, extra, other_salt, keeps)| {
                Happening::Come { from, n_kept, extra, other_salt, keeps }
            }),
        72 => (0_usize..4, 1_usize..16).prop_map(|(which, n)| Happening::Compute { which, n }),
        15 => (0_usize..4).prop_map(|which| Happening::End { which }),
        3 => (0_usize..4).prop_map(|which| Happening::Lose { which }),
        3 => (0_usize..4).prop_map(|which| Happening::Leave { which }),
        12 => (0_usize..4).prop_map(|which| Happening::MoveOut { which }),
        24 => (0_usize..4, outcome).prop_map(|(which, outcome)| Happening::Disk { which, outcome }),
        8 => Just(Happening::Stall),
        3 => (0_usize..8, 0_u64..3).prop_map(|(which, name)| Happening::Pin { which, name }),
        1 => Just(Happening::Clear),
    ]
}

fn setting() -> impl Strategy<Value = Setting> {
    let memory =
        prop::sample::select(vec![MemoryKind::Full, MemoryKind::Sliding, MemoryKind::Recurrent, MemoryKind::Hybrid]);
    let hasher = prop::sample::select(vec![block_hash as BlockHasher, block_hash, five_bits, two_bits]);
    let ram_blocks = prop::sample::select(vec![0_u64, 4, 9, 25, 1000]);
    let disk_blocks = prop::sample::select(vec![0_u64, 9, 40, 1000, 1000]);
    let copies = prop::sample::select(vec![0.001, 0.3]);
    let exports = prop::sample::select(vec![0.02, 0.02, 0.02, 10.0]);
    (memory, hasher, 1_u16..5, (ram_blocks, disk_blocks), (copies, exports)).prop_map(
        |(memory, hasher, n_slots, (ram_blocks, disk_blocks), (copy_ms, export_ms))| Setting {
            memory,
            hasher,
            n_slots,
            ram_blocks,
            disk_blocks,
            copy_ms,
            export_ms,
        },
    )
}

fn truncated(parent: &BlockHash, tokens: &[Token], mask: u8) -> BlockHash {
    let mut hash = [0; 32];
    hash[0] = block_hash(parent, tokens).0[0] & mask;
    BlockHash(hash)
}

fn five_bits(parent: &BlockHash, tokens: &[Token]) -> BlockHash {
    truncated(parent, tokens, 0x1F)
}

fn two_bits(parent: &BlockHash, tokens: &[Token]) -> BlockHash {
    truncated(parent, tokens, 0x03)
}

fn happen(world: &mut World, happening: Happening) {
    match happening {
        Happening::Come { from, n_kept, extra, other_salt, keeps } => {
            let (salt, mut prompt) = world.conversation(from);
            let salt = salt ^ other_salt;
            prompt.truncate(n_kept);
            prompt.extend(extra);
            prompt.truncate(world::CONTEXT as usize - 1);
            world.come(Request { prompt, salt, keeps });
        }
        Happening::Compute { which, n } => world.compute(which, n),
        Happening::End { which } => world.end(which),
        Happening::Lose { which } => world.lose(which),
        Happening::Leave { which } => world.leave(which),
        Happening::MoveOut { which } => world.move_out(which),
        Happening::Disk { which, outcome } => world.hear_from_disk(which, outcome),
        Happening::Stall => world.stall(),
        Happening::Pin { which, name } => world.pin(which, name),
        Happening::Clear => world.clear(),
    }
    world.admit();
    world.check();
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1500, ..ProptestConfig::default() })]

    #[test]
    fn reuses_only_the_prompts_own_state_and_starts_every_request(
        setting in setting(),
        happenings in prop::collection::vec(happening(), 1..120),
    ) {
        let mut world = World::new(setting);
        for happening in happenings {
            happen(&mut world, happening);
        }
        world.run_out();
    }
}

/// Checks that random traffic has every kind of start; otherwise the test above would prove nothing.
#[test]
fn random_operations_reach_every_case() {
    use proptest::strategy::ValueTree as _;
    use proptest::test_runner::{Config, RngAlgorithm, TestRng, TestRunner};

    let rng = TestRng::from_seed(RngAlgorithm::ChaCha, &[7; 32]);
    let mut runner = TestRunner::new_with_rng(Config::default(), rng);
    let mut ways = world::Ways::default();
    for _ in 0..800 {
        let setting = setting().new_tree(&mut runner).unwrap().current();
        let happenings = prop::collection::vec(happening(), 60..120).new_tree(&mut runner).unwrap().current();
        let mut world = World::new(setting);
        for happening in happenings {
            happen(&mut world, happening);
        }
        world.run_out();
        ways.add(world.ways());
    }
    assert!(ways.all().iter().all(|(_, n)| *n >= 5), "{:?}", ways.all());
}
