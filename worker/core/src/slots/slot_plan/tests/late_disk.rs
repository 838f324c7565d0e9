//! Plans while the disk is late, compared with those of the same state while it is not.

use std::collections::HashSet;

use warmpath_common::block_hash::{BlockHash, block_chain, block_hash};
use warmpath_common::ids::Token;
use warmpath_common::model::MemoryKind;

use crate::slots::slot_plan::{PlanInputs, PrefixSource, Reuse, SlotDecision, SlotRequest, best_usable, plan};
use crate::slots::slot_table::{SlotSizes, SlotTable};
use crate::store::chunk_index::{AdoptedFile, ChunkId, ChunkIndex, ChunkRecord, StateKind, StoreLimits};
use crate::store::disk_reads::tests::COSTS;

const ROOT: BlockHash = BlockHash([7; 32]);
const BLOCK: u32 = 2;
const PROMPT: [Token; 10] = [1, 2, 3, 4, 5, 6, 7, 8, 9, 10];

/// Returns the record of the blocks of `tokens` from `first_block` to before `end`.
fn record(kind: StateKind, tokens: &[Token], (first_block, end): (usize, usize)) -> ChunkRecord {
    let chain = block_chain(&ROOT, tokens, BLOCK);
    let n = BLOCK as usize;
    ChunkRecord {
        kind,
        root: ROOT,
        first_block,
        parent: first_block.checked_sub(1).map(|before| chain[before]),
        blocks: chain[first_block..end].into(),
        tokens: tokens[first_block * n..end * n].into(),
        n_bytes: 8,
        priority: 0,
        tenant: None,
    }
}

/// Compares the decision on the prompt with and without the disk; all records are on disk, the first `n_in_ram` of them
/// also in RAM, and those of `at_hand` only in memory.
fn check(
    (memory, records): (MemoryKind, &[ChunkRecord]),
    (n_in_ram, at_hand): (usize, &[usize]),
    (missing, start): (&[usize], PrefixSource),
) {
    let limits = StoreLimits {
        ram_bytes: 1000,
        disk_bytes: 1000,
        min_hold_ms: 0,
        chunk_blocks_max: 8,
        block_size_tokens: BLOCK,
    };
    let sizes = SlotSizes { n_slots: 1, context_tokens: 100, block_size_tokens: BLOCK, memory, hasher: block_hash };
    let (table, mut index) = (SlotTable::new(sizes), ChunkIndex::new(limits));
    let file = |record: &ChunkRecord| AdoptedFile { record: record.clone(), last_used_ms: 1 };
    let files: Vec<AdoptedFile> = records.iter().map(file).collect();
    let ids: Vec<ChunkId> = index.adopt(&files).into_iter().map(|adopted| adopted.unwrap()).collect();
    ids[..n_in_ram].iter().for_each(|id| assert!(index.read_back(*id, 2)));
    let at_hand: HashSet<ChunkId> = at_hand.iter().map(|idx| ids[*idx]).collect();
    let inputs = PlanInputs { table: &table, index: &index, at_hand: &at_hand, costs: &COSTS, is_disk_late: false };
    let chain = block_chain(&ROOT, &PROMPT, BLOCK);
    let (reuse, tenant) = (Reuse::Allowed, None);
    let request = SlotRequest { prompt: &PROMPT, chain: &chain, root: &ROOT, tenant, reuse, wanted: None, media: &[] };
    let expected: Vec<ChunkId> = missing.iter().map(|idx| ids[*idx]).collect();
    assert_eq!(plan(&inputs, &request), SlotDecision::Fetch(expected));
    let late = PlanInputs { is_disk_late: true, ..inputs };
    let SlotDecision::Start(plan) = plan(&late, &request) else { panic!("a slot is idle") };
    assert_eq!(plan.start, start, "{memory:?} {n_in_ram} {at_hand:?}");
    assert_eq!(best_usable(&late, &request), start.n_tokens(), "{memory:?} {n_in_ram} {at_hand:?}");
}

fn import(n_tokens: u32) -> PrefixSource {
    PrefixSource::Import { n_tokens }
}

#[test]
fn without_reads_a_request_starts_from_the_chunks_in_memory_before_the_first_one_on_disk() {
    let chunks = [(0, 1), (1, 3), (3, 4)].map(|blocks| record(StateKind::Chunk, &PROMPT, blocks));
    let whole = (MemoryKind::Full, &chunks[..]);
    check(whole, (0, &[]), (&[0, 1, 2], PrefixSource::Cold));
    check(whole, (1, &[]), (&[1, 2], import(2)));
    check(whole, (2, &[]), (&[2], import(6)));
    check(whole, (1, &[2]), (&[1], import(2)));
    check(whole, (1, &[1]), (&[2], import(6)));
}

#[test]
fn without_reads_a_request_starts_from_the_whole_blocks_before_a_branch_on_disk() {
    // The chunk in memory goes on with the prompt's next token, but the block belongs to another sequence.
    let other = [1, 2, 3, 4, 5, 60, 70, 80];
    let chunks = [record(StateKind::Chunk, &other, (0, 4)), record(StateKind::Chunk, &PROMPT, (2, 4))];
    check((MemoryKind::Full, &chunks), (1, &[]), (&[1], import(4)));
}

#[test]
fn without_reads_a_request_resumes_at_a_checkpoint_in_memory() {
    let checkpoints = [1, 2, 4].map(|end| record(StateKind::Checkpoint, &PROMPT, (0, end)));
    let recurrent = (MemoryKind::Recurrent, &checkpoints[..]);
    check(recurrent, (0, &[]), (&[2], PrefixSource::Cold));
    check(recurrent, (1, &[]), (&[2], import(2)));
    check(recurrent, (2, &[]), (&[2], import(4)));
    check(recurrent, (1, &[1]), (&[2], import(4)));
}
