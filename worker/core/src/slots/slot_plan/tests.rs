//! Examples of slot plans: the slot, the source of the prompt's tokens, and the spared slots.

mod late_disk;

use std::collections::HashSet;
use std::ops::Range;

use warmpath_common::block_hash::{BlockHash, ChainRoot, block_chain, block_hash};
use warmpath_common::ids::Token;
use warmpath_common::model::MemoryKind;

use super::*;
use crate::slots::slot_table::{Acquire, AfterUse, SlotSizes};
use crate::store::chunk_index::{CheckpointPlace, ChunkIndex, NewChunk, StoreLimits};
use crate::store::restore_costs::Costs;
use crate::tenants::{Tenant, TenantId};

const BUSY: bool = true;
const IDLE: bool = false;
const BLOCK: u32 = 4;

fn root(salt: u8) -> BlockHash {
    ChainRoot { model_fingerprint: &[0; 32], lora: &[], cache_salt: &[salt] }.hash()
}

fn tenant() -> Tenant {
    Tenant::with_share(TenantId::of_root(&root(0)))
}

/// A worker on which moving a token costs a hundredth of computing it.
struct World {
    table: SlotTable,
    index: ChunkIndex,
    at_hand: HashSet<ChunkId>,
    costs: Costs,
    /// Media in the prompts.
    media: Vec<Range<u32>>,
}

/// Returns a worker whose slots were used in this order; `used` has the slot, its tokens, and whether it is busy.
fn world(memory: MemoryKind, used: &[(u16, Vec<Token>, bool)]) -> World {
    let shape = SlotSizes { n_slots: 4, context_tokens: 1000, block_size_tokens: BLOCK, memory, hasher: block_hash };
    let limits = StoreLimits {
        ram_bytes: 1 << 20,
        disk_bytes: 1 << 22,
        min_hold_ms: 0,
        chunk_blocks_max: 8,
        block_size_tokens: BLOCK,
    };
    let costs = Costs {
        prefill_ms_per_token: 1.0,
        copy_ms_per_token: Some(0.01),
        export_ms_per_token: Some(0.01),
        import_ms_per_byte: 0.01,
        read_ms_per_byte: 0.01,
        suffix_rounding: None,
    };
    let index = ChunkIndex::new(limits);
    let mut world = World { table: SlotTable::new(shape), index, at_hand: HashSet::new(), costs, media: Vec::new() };
    for (slot, tokens, busy) in used {
        if *busy == IDLE {
            world.run(*slot, tokens, tokens.len());
            let _ = world.table.release(SlotId(*slot));
        } else {
            world.run(*slot, &[tokens.as_slice(), &[9999]].concat(), tokens.len());
        }
    }
    world
}

impl World {
    /// Starts a prompt in a slot and computes its first tokens.
    fn run(&mut self, slot: u16, prompt: &[Token], n_computed: usize) {
        let slot = SlotId(slot);
        self.table.acquire(Acquire {
            slot,
            prompt,
            n_start_tokens: 0,
            rewinds_to_tokens: 0,
            root: root(0),
            prompt_chain: &block_chain(&root(0), prompt, BLOCK),
            after_use: AfterUse::Keep,
        });
        self.table.extend(slot, &prompt[..n_computed]);
    }

    /// Stores a sequence's whole blocks, one byte a token.
    fn store(&mut self, tokens: &[Token]) {
        let chain = block_chain(&root(0), tokens, BLOCK);
        let prefix = Prefix { root: root(0), chain: &chain, tokens };
        for blocks in self.index.missing(&prefix) {
            let n_bytes = (blocks.len() as u64) * u64::from(BLOCK);
            self.index.insert(&NewChunk { prefix, blocks, n_bytes, priority: 0, tenant: tenant(), now_ms: 1 }).unwrap();
        }
    }

    fn store_checkpoint(&mut self, tokens: &[Token]) -> ChunkId {
        let chain = block_chain(&root(0), tokens, BLOCK);
        let prefix = Prefix { root: root(0), chain: &chain, tokens };
        let new = NewChunk { prefix, blocks: 0..chain.len(), n_bytes: 1, priority: 0, tenant: tenant(), now_ms: 1 };
        self.index.insert_checkpoint(&new, CheckpointPlace::End).unwrap()
    }

    fn inputs(&self) -> PlanInputs<'_> {
        let World { table, index, at_hand, costs, .. } = self;
        PlanInputs { table, index, at_hand, costs, is_disk_late: false }
    }

    fn decide(&self, prompt: &[Token]) -> SlotDecision {
        self.decide_with(prompt, (Reuse::Allowed, None, 0))
    }

    fn decide_with(&self, prompt: &[Token], (reuse, wanted, salt): (Reuse, Option<u16>, u8)) -> SlotDecision {
        let root = root(salt);
        let chain = block_chain(&root, prompt, BLOCK);
        let (tenant, wanted) = (Some(TenantId::of_root(&root)), wanted.map(SlotId));
        let request = SlotRequest { prompt, chain: &chain, root: &root, tenant, reuse, wanted, media: &self.media };
        plan(&self.inputs(), &request)
    }

    fn best_usable(&self, prompt: &[Token], salt: u8) -> u32 {
        let root = root(salt);
        let chain = block_chain(&root, prompt, BLOCK);
        let reuse = Reuse::Allowed;
        let request =
            SlotRequest { prompt, chain: &chain, root: &root, tenant: None, reuse, wanted: None, media: &self.media };
        best_usable(&self.inputs(), &request)
    }
}

/// Returns `shared` tokens that are the same for every seed, followed by `own` tokens that depend on `seed`.
fn tokens(shared: u32, own: u32, seed: u32) -> Vec<Token> {
    (0..shared).chain((0..own).map(|n| 1000 * seed + n)).collect()
}

fn keep(n_tokens: u32) -> PrefixSource {
    PrefixSource::Keep { n_tokens }
}

fn copy(from: u16, n_tokens: u32) -> PrefixSource {
    PrefixSource::Copy { from: SlotId(from), n_tokens }
}

/// Checks the slot and the source of a prompt's start.
fn check(world: &World, prompt: &[Token], (slot, start): (u16, PrefixSource)) {
    match world.decide(prompt) {
        SlotDecision::Start(plan) => assert_eq!((plan.slot.0, plan.start), (slot, start)),
        other => panic!("{other:?}"),
    }
}

#[test]
fn continues_in_the_slot_of_the_conversation() {
    let world = world(MemoryKind::Full, &[(2, tokens(10, 50, 1), IDLE), (1, tokens(10, 50, 2), IDLE)]);
    check(&world, &tokens(10, 80, 1), (2, keep(60)));
    check(&world, &tokens(10, 80, 2), (1, keep(60)));
}

#[test]
fn drops_the_short_end_of_a_conversation_and_saves_a_long_one_first() {
    let world = world(MemoryKind::Full, &[(2, tokens(60, 2, 1), IDLE)]);
    let SlotDecision::Start(plan) = world.decide(&tokens(60, 9, 2)) else { panic!() };
    assert_eq!((plan.slot, plan.start, plan.save), (SlotId(2), keep(60), Save::No));
    let world = self::world(MemoryKind::Full, &[(2, tokens(30, 50, 1), IDLE)]);
    let SlotDecision::Start(plan) = world.decide(&tokens(30, 9, 2)) else { panic!() };
    assert_eq!((plan.slot, plan.start, plan.save), (SlotId(2), keep(30), Save::First));
}

#[test]
fn a_response_is_dropped_when_its_prompt_is_sent_again() {
    let mut world = world(MemoryKind::Full, &[]);
    world.run(1, &tokens(50, 0, 1), 50);
    world.table.extend(SlotId(1), &tokens(0, 40, 7));
    let _ = world.table.release(SlotId(1));
    for prompt in [tokens(50, 0, 1), tokens(50, 3, 8)] {
        let SlotDecision::Start(plan) = world.decide(&prompt) else { panic!() };
        assert_eq!((plan.slot, plan.save), (SlotId(1), Save::No), "the response is not worth an export");
    }
}

#[test]
fn always_computes_one_token() {
    let world = world(MemoryKind::Full, &[(2, tokens(10, 0, 1), IDLE)]);
    check(&world, &tokens(10, 0, 1), (2, keep(9)));
    check(&world, &tokens(6, 0, 1), (2, keep(5)));
    check(&world, &[0], (0, PrefixSource::Cold));
}

#[test]
fn no_prompt_resumes_within_an_image() {
    let prompt = tokens(60, 5, 1);
    let with_media = |mut world: World| {
        world.media = vec![10..20, 24..44];
        world
    };
    for (n_held, n_usable) in [(10, 10), (11, 10), (19, 10), (20, 20), (24, 24), (43, 24), (44, 44), (50, 50)] {
        let held = tokens(n_held, 30, 2);
        check(&with_media(world(MemoryKind::Full, &[(2, held.clone(), IDLE)])), &prompt, (2, keep(n_usable)));
        check(&with_media(world(MemoryKind::Full, &[(2, held, BUSY)])), &prompt, (0, copy(2, n_usable)));
        let mut stored = with_media(world(MemoryKind::Full, &[]));
        stored.store(&tokens(n_held, 0, 1));
        let n_stored = n_held / BLOCK * BLOCK;
        let n_usable = if (11..20).contains(&n_stored) { 10 } else { n_stored };
        let n_usable = if (25..44).contains(&n_stored) { 24 } else { n_usable };
        check(&stored, &prompt, (0, PrefixSource::Import { n_tokens: n_usable }));
    }
    let mut ends_with_one = world(MemoryKind::Full, &[(2, prompt.clone(), IDLE)]);
    ends_with_one.media.push(50..65);
    check(&ends_with_one, &prompt, (2, keep(50)));
    let mut coming = with_media(world(MemoryKind::Full, &[]));
    coming.run(1, &tokens(30, 9, 2), 4);
    assert_eq!(coming.decide(&prompt), SlotDecision::WaitFor { slot: SlotId(1), n_tokens: 24 });
}

#[test]
fn no_prompt_resumes_at_a_checkpoint_within_a_medium() {
    let prompt = tokens(60, 5, 1);
    for memory in [MemoryKind::Sliding, MemoryKind::Hybrid, MemoryKind::Recurrent] {
        let mut stored = world(memory, &[]);
        stored.media = vec![BLOCK + 1..2 * BLOCK + 1, 3 * BLOCK - 1..3 * BLOCK + 1];
        stored.store(&tokens(3 * BLOCK, 0, 1));
        let checkpoints = [1, 2, 3].map(|n_blocks| stored.store_checkpoint(&tokens(n_blocks * BLOCK, 0, 1)));
        let SlotDecision::Start(plan) = stored.decide(&prompt) else { panic!("{memory:?}") };
        assert_eq!((plan.start, plan.checkpoint), (PrefixSource::Import { n_tokens: BLOCK }, Some(checkpoints[0])));
    }
    // A sequence that was abandoned within a medium is no beginning of the prompt, although it ends there.
    let mut abandoned = world(MemoryKind::Hybrid, &[(2, tokens(2 * BLOCK, 0, 1), IDLE)]);
    abandoned.media.push(BLOCK + 1..2 * BLOCK + 1);
    let SlotDecision::Start(plan) = abandoned.decide(&prompt) else { panic!("there are slots") };
    assert_eq!(plan.start, PrefixSource::Cold);
    // The running sequence makes its checkpoint where one can be resumed.
    let mut coming = world(MemoryKind::Hybrid, &[]);
    coming.media.push(BLOCK + 1..3 * BLOCK - 1);
    coming.run(1, &tokens(3 * BLOCK - 1, 9, 2), 1);
    assert_eq!(coming.decide(&prompt), SlotDecision::WaitFor { slot: SlotId(1), n_tokens: BLOCK });
}

#[test]
fn copies_from_a_busy_slot() {
    let world = world(MemoryKind::Full, &[(1, tokens(40, 20, 1), BUSY)]);
    check(&world, &tokens(40, 20, 2), (0, copy(1, 40)));
}

#[test]
fn takes_the_least_recently_used_slot_if_all_have_other_state() {
    let used = [2, 0, 3, 1].map(|slot| (slot, tokens(0, 50, u32::from(slot) + 1), IDLE));
    let world = world(MemoryKind::Full, &used);
    check(&world, &tokens(0, 20, 9), (2, PrefixSource::Cold));
    let SlotDecision::Start(plan) = world.decide(&tokens(0, 20, 9)) else { panic!() };
    assert_eq!(plan.save, Save::First, "state that is worth more than its export is saved");
}

#[test]
fn reused_state_is_saved_if_an_export_takes_a_third_of_computing() {
    let used = [2, 0, 3, 1].map(|slot| (slot, tokens(0, 50, u32::from(slot) + 1), IDLE));
    let mut world = world(MemoryKind::Full, &used);
    // As on a GPU: 0.02 to 0.03 ms to export a token, 0.1 ms to compute it.
    world.costs.export_ms_per_token = Some(0.3);
    for (n_reused, save) in [(0, Save::No), (10, Save::No), (48, Save::First)] {
        world.table.lend(SlotId(2), n_reused);
        let SlotDecision::Start(plan) = world.decide(&tokens(0, 20, 9)) else { panic!() };
        assert_eq!((plan.slot, plan.save), (SlotId(2), save), "{n_reused} tokens were reused");
    }
}

#[test]
fn does_not_save_state_that_is_already_stored() {
    let used = [2, 0, 3, 1].map(|slot| (slot, tokens(0, 48, u32::from(slot) + 1), IDLE));
    let mut world = world(MemoryKind::Full, &used);
    world.store(&tokens(0, 48, 3));
    let SlotDecision::Start(plan) = world.decide(&tokens(0, 20, 9)) else { panic!() };
    assert_eq!((plan.slot, plan.save), (SlotId(2), Save::No));
}

#[test]
fn a_slot_is_in_use_until_its_sequence_ends() {
    let used = [0, 1, 2, 3].map(|slot| (slot, tokens(0, 50, u32::from(slot) + 1), BUSY));
    let mut world = world(MemoryKind::Full, &used);
    assert_eq!(world.decide(&tokens(0, 20, 9)), SlotDecision::NoSlot);
    for slot in [3, 0, 2, 1] {
        let _ = world.table.release(SlotId(slot));
    }
    check(&world, &tokens(0, 20, 9), (3, PrefixSource::Cold));
}

#[test]
fn prefers_a_slot_that_loses_nothing() {
    let world = world(MemoryKind::Full, &[(2, tokens(30, 50, 1), IDLE), (3, tokens(30, 0, 1), IDLE)]);
    check(&world, &tokens(30, 20, 9), (3, keep(30)));
}

#[test]
fn starts_from_the_store_if_it_has_more() {
    let mut world = world(MemoryKind::Full, &[(1, tokens(10, 50, 2), IDLE)]);
    world.store(&tokens(10, 50, 1));
    check(&world, &tokens(10, 80, 1), (0, PrefixSource::Import { n_tokens: 60 }));
    check(&world, &tokens(10, 50, 1), (0, PrefixSource::Import { n_tokens: 59 }));
}

#[test]
fn among_equal_starts_the_one_with_more_whole_blocks_wins() {
    let mut world = world(MemoryKind::Full, &[(0, tokens(15, 0, 1), IDLE)]);
    world.store(&tokens(16, 0, 1));
    world.costs.import_ms_per_byte = 5.0 / 16.0;
    check(&world, &tokens(30, 0, 1), (1, PrefixSource::Import { n_tokens: 16 }));
    world.costs.import_ms_per_byte = 7.0 / 16.0;
    check(&world, &tokens(30, 0, 1), (0, keep(15)));
}

#[test]
fn starts_from_the_store_inside_a_block_too() {
    let mut world = world(MemoryKind::Full, &[]);
    world.store(&tokens(40, 0, 1));
    check(&world, &tokens(22, 20, 2), (0, PrefixSource::Import { n_tokens: 22 }));
}

#[test]
fn waits_for_the_disk_unless_the_bytes_are_at_hand() {
    let mut world = world(MemoryKind::Full, &[]);
    world.store(&tokens(0, 64, 1));
    let pieces = world.index.find(&Prefix { root: root(0), chain: &[], tokens: &[] }).pieces;
    assert!(pieces.is_empty());
    for order in world.index.take_orders() {
        if let crate::store::chunk_index::StoreOrder::Write(id) = order {
            world.index.written(id, 2);
        }
    }
    // A larger sequence evicts the first one from memory.
    let other = tokens(0, 60, 2);
    let chain = block_chain(&root(0), &other, BLOCK);
    let prefix = Prefix { root: root(0), chain: &chain, tokens: &other };
    let new = NewChunk { prefix, blocks: 0..8, n_bytes: (1 << 20) - 8, priority: 0, tenant: tenant(), now_ms: 3 };
    world.index.insert(&new).unwrap();
    let prompt = tokens(0, 80, 1);
    let SlotDecision::Fetch(chunks) = world.decide(&prompt) else { panic!("{:?}", world.decide(&prompt)) };
    assert!(!chunks.is_empty());
    world.at_hand.extend(chunks);
    // No read is charged a second time.
    world.costs.read_ms_per_byte = 2.0;
    check(&world, &prompt, (0, PrefixSource::Import { n_tokens: 64 }));
}

#[test]
fn computes_state_if_that_is_faster_than_restoring() {
    let mut world = world(MemoryKind::Full, &[]);
    world.store(&tokens(0, 64, 1));
    world.costs.import_ms_per_byte = 2.0;
    check(&world, &tokens(0, 80, 1), (0, PrefixSource::Cold));
}

#[test]
fn waits_for_a_prefix_that_another_request_computes() {
    let mut world = world(MemoryKind::Full, &[]);
    world.run(1, &tokens(80, 10, 1), 20);
    let waits = SlotDecision::WaitFor { slot: SlotId(1), n_tokens: 80 };
    assert_eq!(world.decide(&tokens(80, 10, 2)), waits);
    assert_eq!(world.best_usable(&tokens(80, 10, 2), 0), 80);
    world.table.extend(SlotId(1), &tokens(80, 10, 1)[20..78]);
    check(&world, &tokens(80, 10, 2), (0, copy(1, 78)));
    let _ = world.table.release(SlotId(1));
    check(&world, &tokens(80, 10, 2), (1, keep(78)));
}

#[test]
fn a_follower_computes_the_prefix_itself_when_its_leader_is_gone() {
    let mut world = world(MemoryKind::Full, &[]);
    world.run(1, &tokens(80, 10, 1), 20);
    world.table.forget(SlotId(1));
    let _ = world.table.release(SlotId(1));
    check(&world, &tokens(80, 10, 2), (0, PrefixSource::Cold));
}

#[test]
fn never_reuses_under_another_root() {
    let mut world = world(MemoryKind::Full, &[(1, tokens(50, 0, 1), IDLE)]);
    world.store(&tokens(50, 0, 1));
    let SlotDecision::Start(plan) = world.decide_with(&tokens(60, 0, 1), (Reuse::Allowed, None, 1)) else { panic!() };
    assert_eq!((plan.slot, plan.start), (SlotId(0), PrefixSource::Cold));
    assert_eq!(world.best_usable(&tokens(60, 0, 1), 1), 0);
}

#[test]
fn a_request_without_reuse_takes_the_least_valuable_slot() {
    let mut world = world(MemoryKind::Full, &[(0, tokens(50, 0, 1), IDLE)]);
    world.store(&tokens(50, 0, 1));
    let decision = world.decide_with(&tokens(60, 0, 1), (Reuse::Forbidden, Some(2), 0));
    let SlotDecision::Start(plan) = decision else { panic!("{decision:?}") };
    assert_eq!((plan.slot, plan.start), (SlotId(2), PrefixSource::Cold));
}

#[test]
fn a_requested_slot_decides_between_equal_slots_and_never_lowers_reuse() {
    let used = [(1, tokens(50, 0, 1), IDLE), (2, tokens(50, 0, 1), IDLE), (3, tokens(9, 9, 4), IDLE)];
    let world = world(MemoryKind::Full, &used);
    let prompt = tokens(60, 0, 1);
    for (wanted, expected) in [(1, 1), (2, 2), (3, 1), (0, 1), (99, 1)] {
        let SlotDecision::Start(plan) = world.decide_with(&prompt, (Reuse::Allowed, Some(wanted), 0)) else { panic!() };
        assert_eq!((plan.slot.0, plan.start), (expected, keep(50)));
    }
}

#[test]
fn state_that_cannot_be_rewound_is_extended_or_resumed_from_a_checkpoint() {
    for memory in [MemoryKind::Recurrent, MemoryKind::Hybrid] {
        let mut world = world(memory, &[(1, tokens(50, 0, 1), IDLE)]);
        world.costs.copy_ms_per_token = if memory == MemoryKind::Hybrid { Some(0.01) } else { None };
        check(&world, &tokens(51, 0, 1), (1, keep(50)));
        check(&world, &tokens(50, 0, 1), (0, PrefixSource::Cold));
        check(&world, &tokens(49, 9, 1), (0, PrefixSource::Cold));
        let checkpoint = world.store_checkpoint(&tokens(48, 0, 1));
        let SlotDecision::Start(plan) = world.decide(&tokens(49, 9, 1)) else { panic!() };
        assert_eq!((plan.start.n_tokens(), plan.checkpoint), (48, Some(checkpoint)), "{memory:?}");
        let SlotDecision::Start(plan) = world.decide(&tokens(51, 0, 1)) else { panic!() };
        assert_eq!((plan.start, plan.checkpoint), (keep(50), None), "the exact end needs no checkpoint");
    }
}

#[test]
fn estimates_the_tokens_that_a_busy_slot_will_leave() {
    let world = world(MemoryKind::Full, &[(1, tokens(50, 0, 1), BUSY)]);
    assert_eq!(world.best_usable(&tokens(60, 0, 1), 0), 50);
}
