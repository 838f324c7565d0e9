//! The index of the chunk store: look-ups, refusals, writes, evictions, pins and changes.

use warmpath_common::block_hash::block_chain;

use super::*;
use crate::tenants::TenantId;

mod eviction;
mod happening;
mod hot;
mod model;
mod runs;
mod shares;
mod tiers;

const BLOCK: u32 = 2;
/// Size of the payload of one block, in bytes.
const BLOCK_BYTES: u64 = 10;

fn root(n: u8) -> BlockHash {
    BlockHash([n; 32])
}

/// Returns limits for this many blocks, with chunks of at most 4 blocks.
fn limits(ram_blocks: u64, disk_blocks: u64) -> StoreLimits {
    StoreLimits {
        ram_bytes: ram_blocks * BLOCK_BYTES,
        disk_bytes: disk_blocks * BLOCK_BYTES,
        min_hold_ms: 0,
        chunk_blocks_max: 4,
        block_size_tokens: BLOCK,
    }
}

/// Sequence with its chain.
struct Sequence {
    root: BlockHash,
    chain: Vec<BlockHash>,
    tokens: Vec<Token>,
}

impl Sequence {
    fn new(tokens: impl IntoIterator<Item = Token>) -> Self {
        let tokens: Vec<Token> = tokens.into_iter().collect();
        Self { root: root(0), chain: block_chain(&root(0), &tokens, BLOCK), tokens }
    }

    fn prefix(&self) -> Prefix<'_> {
        Prefix { root: self.root, chain: &self.chain, tokens: &self.tokens }
    }

    /// Returns the tenant of the chain, with a share.
    fn tenant(&self) -> Tenant {
        Tenant::with_share(TenantId::of_root(&self.root))
    }

    fn new_chunk(&self, blocks: Range<usize>, now_ms: u64) -> NewChunk<'_> {
        let n_bytes = blocks.len() as u64 * BLOCK_BYTES;
        NewChunk { prefix: self.prefix(), blocks, n_bytes, priority: 0, tenant: self.tenant(), now_ms }
    }

    /// Returns a checkpoint after this many blocks.
    fn new_checkpoint(&self, n_blocks: usize, now_ms: u64) -> NewChunk<'_> {
        let tokens = &self.tokens[..n_blocks * BLOCK as usize];
        let prefix = Prefix { chain: &self.chain[..n_blocks], tokens, ..self.prefix() };
        NewChunk { prefix, ..self.new_chunk(0..n_blocks, now_ms) }
    }

    /// Stores all missing blocks and returns the new chunks.
    fn store(&self, index: &mut ChunkIndex, now_ms: u64) -> Vec<ChunkId> {
        let missing = index.missing(&self.prefix());
        missing
            .into_iter()
            .map(|blocks| index.insert(&self.new_chunk(blocks, now_ms)).expect("there is room"))
            .collect()
    }

    /// Returns how many blocks of the sequence are stored.
    fn n_stored(&self, index: &ChunkIndex) -> usize {
        index.find(&self.prefix()).n_blocks
    }

    fn touch(&self, index: &mut ChunkIndex, now_ms: u64) {
        let used: Vec<_> = index.find(&self.prefix()).first(usize::MAX).collect();
        index.touch(&used, self.tenant(), now_ms);
    }
}

fn missing(index: &ChunkIndex, sequence: &Sequence) -> Vec<(usize, usize)> {
    index.missing(&sequence.prefix()).into_iter().map(|blocks| (blocks.start, blocks.end)).collect()
}

#[test]
fn finds_the_longest_stored_prefix_even_if_it_ends_within_a_chunk() {
    let mut index = ChunkIndex::new(limits(100, 0));
    let first = Sequence::new(0..17);
    let ids = first.store(&mut index, 1);
    assert_eq!(ids.len(), 2);
    let parts = Sequence::new((0..6).chain(100..106));
    assert_eq!(parts.n_stored(&index), 3);
    let behind = parts.store(&mut index, 2);
    let piece =
        |chunk: ChunkId, n_blocks: usize, n_bytes: u64| ChunkPiece { chunk, n_blocks, tier: Tier::Ram, n_bytes };
    assert_eq!(index.find(&first.prefix()).pieces, [piece(ids[0], 4, 40), piece(ids[1], 4, 40)]);
    assert_eq!(
        index.find(&parts.prefix()).pieces,
        [piece(ids[0], 3, 40), piece(behind[0], 1, 10), piece(behind[1], 2, 20)]
    );
    index.check_invariants();
}

#[test]
fn compares_the_tokens_of_every_block_when_hashes_collide() {
    let mut index = ChunkIndex::new(limits(100, 0));
    let stored = Sequence::new(0..16);
    stored.store(&mut index, 1);
    for depth in 0..8 {
        let mut other = Sequence::new(0..16);
        other.tokens[depth * 2 + 1] += 1000;
        assert_eq!(other.n_stored(&index), depth, "block {depth} differs from the stored one with the same hash");
        assert!(index.missing(&other.prefix()).is_empty(), "no block can be stored after a colliding one");
    }
}

#[test]
fn a_collision_after_another_prefix_finds_no_block() {
    let mut index = ChunkIndex::new(limits(100, 0));
    let stored = Sequence::new(0..16);
    stored.store(&mut index, 1);
    // The first chunk differs in hashes and tokens; from block 4 on, both are those of the stored sequence.
    let mut other = Sequence::new((100..108).chain(8..16));
    other.chain[4..].copy_from_slice(&stored.chain[4..]);
    assert_eq!(other.n_stored(&index), 0);
    assert_eq!(missing(&index, &other), [(0, 4)]);
    other.store(&mut index, 2);
    assert_eq!(other.n_stored(&index), 4);
    assert_eq!(index.insert(&other.new_chunk(4..8, 3)), Err(NotStored::Taken));
    // The same chain and tokens under another root.
    let other = Sequence { root: root(1), ..Sequence::new(0..16) };
    assert_eq!(other.n_stored(&index), 0);
    index.check_invariants();
}

#[test]
fn finds_checkpoints_of_the_same_tokens_only_and_without_chunks() {
    let mut index = ChunkIndex::new(limits(100, 0));
    let sequence = Sequence::new(0..17);
    let late = index.insert_checkpoint(&sequence.new_checkpoint(6, 1), CheckpointPlace::End).unwrap();
    let early = index.insert_checkpoint(&sequence.new_checkpoint(2, 2), CheckpointPlace::End).unwrap();
    assert_eq!(index.insert_checkpoint(&sequence.new_checkpoint(2, 3), CheckpointPlace::End), Err(NotStored::Taken));
    let point = |chunk, n_blocks, n_bytes| StoredCheckpoint { chunk, n_blocks, tier: Tier::Ram, n_bytes };
    assert_eq!(index.checkpoints(&sequence.prefix()), [point(early, 2, 20), point(late, 6, 60)]);
    assert_eq!(sequence.n_stored(&index), 0);
    let shorter = Sequence::new(0..11);
    assert_eq!(index.checkpoints(&shorter.prefix()), [point(early, 2, 20)]);
    let mut colliding = Sequence::new(0..17);
    colliding.tokens[6] += 1000;
    assert_eq!(index.checkpoints(&colliding.prefix()), [point(early, 2, 20)]);
    assert_eq!(index.checkpoints(&Sequence { root: root(1), ..Sequence::new(0..17) }.prefix()), []);
    index.check_invariants();
}

#[test]
fn finds_where_a_sequence_diverges_from_those_that_have_a_checkpoint_behind() {
    let mut index = ChunkIndex::new(limits(100, 0));
    let sequence = Sequence::new(0..24);
    assert_eq!(index.n_shared_with_checkpoints(&sequence.prefix()), 0);
    for (sequence, n_blocks) in [(&sequence, 2), (&sequence, 9), (&Sequence::new((0..6).chain(100..120)), 11)] {
        index.insert_checkpoint(&sequence.new_checkpoint(n_blocks, 1), CheckpointPlace::End).unwrap();
    }
    let n_shared =
        |tokens: &mut dyn Iterator<Item = Token>| index.n_shared_with_checkpoints(&Sequence::new(tokens).prefix());
    assert_eq!(n_shared(&mut (0..24)), 9, "nothing is known behind the checkpoint");
    assert_eq!(n_shared(&mut (0..13).chain(200..210)), 6);
    assert_eq!(n_shared(&mut (0..6).chain(100..103).chain(200..210)), 4);
    assert_eq!(n_shared(&mut (1..24)), 0);
}

#[test]
fn missing_blocks_are_split_at_multiples_of_a_chunk() {
    let check = |n_stored: usize, n_tokens: u32, expected: &[(usize, usize)]| {
        let mut index = ChunkIndex::new(limits(100, 0));
        Sequence::new(0..n_stored as u32 * BLOCK).store(&mut index, 1);
        assert_eq!(missing(&index, &Sequence::new(0..n_tokens)), expected);
    };
    check(0, 0, &[]);
    check(0, 1, &[]);
    check(0, 2, &[(0, 1)]);
    check(0, 8, &[(0, 4)]);
    check(0, 19, &[(0, 4), (4, 8), (8, 9)]);
    check(3, 19, &[(3, 4), (4, 8), (8, 9)]);
    check(4, 19, &[(4, 8), (8, 9)]);
    check(5, 15, &[(5, 7)]);
    check(5, 10, &[]);
}

#[test]
fn refuses_malformed_duplicate_too_large_and_orphaned_chunks() {
    let mut index = ChunkIndex::new(limits(8, 0));
    let sequence = Sequence::new(0..17);
    let mut check = |blocks: Range<usize>, n_bytes: u64, expected: NotStored| {
        let new = NewChunk { n_bytes, ..sequence.new_chunk(blocks, 1) };
        assert_eq!(index.insert(&new), Err(expected));
    };
    check(0..0, 10, NotStored::Malformed);
    check(0..5, 50, NotStored::Malformed);
    check(7..9, 20, NotStored::Malformed);
    check(0..1, 0, NotStored::Malformed);
    check(0..4, 81, NotStored::TooLarge);
    check(1..2, 10, NotStored::NoParent);
    index.insert(&sequence.new_chunk(0..4, 1)).unwrap();
    assert_eq!(index.insert(&sequence.new_chunk(3..5, 1)), Err(NotStored::Taken));
    assert_eq!(index.insert(&sequence.new_chunk(5..6, 1)), Err(NotStored::NoParent));
    let late_start = NewChunk { blocks: 1..2, ..sequence.new_checkpoint(2, 1) };
    let cut_back = NewChunk { blocks: 0..1, ..sequence.new_checkpoint(2, 1) };
    let five = Sequence::new(0..5);
    let within_a_block = NewChunk { prefix: five.prefix(), ..sequence.new_checkpoint(2, 1) };
    for checkpoint in [late_start, cut_back, within_a_block] {
        assert_eq!(index.insert_checkpoint(&checkpoint, CheckpointPlace::End), Err(NotStored::Malformed));
    }
    let nothing = ChunkIndex::new(limits(0, 0)).insert(&sequence.new_chunk(0..1, 1));
    assert_eq!(nothing, Err(NotStored::TooLarge));
    index.check_invariants();
}

#[test]
fn shows_entries_and_totals_by_tier() {
    let mut index = ChunkIndex::new(limits(100, 100));
    let sequence = Sequence::new(0..12);
    let ids = sequence.store(&mut index, 5);
    index.written(ids[0], 6);
    sequence.touch(&mut index, 7);
    let expected = EntryView {
        chunk: ids[1],
        kind: StateKind::Chunk,
        tier: Tier::Ram,
        is_on_disk: false,
        first_token: 8,
        n_tokens: 4,
        n_bytes: 20,
        n_hits: 1,
        created_ms: 5,
        last_used_ms: 7,
        is_pinned: false,
    };
    assert_eq!(index.entries()[1], expected);
    assert!(index.entries()[0].is_on_disk);
    let all = Totals { n_chunks: 2, n_tokens: 12, n_bytes: 60 };
    assert_eq!((index.totals(Tier::Ram), index.totals(Tier::Disk)), (all, all));
    index.clear();
    assert_eq!((index.totals(Tier::Ram), index.totals(Tier::Disk)), (Totals::default(), Totals::default()));
    let cleared = |tier| Evicted { tier, reason: Reason::Cleared, totals: all };
    assert_eq!(index.evicted(), [cleared(Tier::Ram), cleared(Tier::Disk)]);
    assert_eq!(index.entries(), []);
    index.check_invariants();
}

#[test]
fn reports_the_changes_of_each_chunk_once_and_in_order() {
    let mut index = ChunkIndex::new(limits(4, 100));
    let (first, second) = (Sequence::new(0..8), Sequence::new(100..108));
    let told = |index: &mut ChunkIndex| -> Vec<(BlockHash, Option<Tier>)> {
        index.take_changes().iter().map(|news| (news.blocks[0], news.tier)).collect()
    };
    let ids = first.store(&mut index, 1);
    index.written(ids[0], 1);
    assert_eq!(told(&mut index), [(first.chain[0], Some(Tier::Ram))]);
    let second_id = second.store(&mut index, 2)[0];
    assert_eq!(told(&mut index), [(first.chain[0], Some(Tier::Disk)), (second.chain[0], Some(Tier::Ram))]);
    // A chunk that moves away and back between two calls gives no change; neither does one that comes and goes.
    index.written(second_id, 2);
    assert!(index.read_back(ids[0], 2) && index.read_back(second_id, 2));
    assert_eq!(told(&mut index), []);
    let third = Sequence::new(200..208);
    index.clear();
    first.store(&mut index, 3);
    third.store(&mut index, 4);
    let gone = [(second.chain[0], None), (first.chain[0], None)];
    assert_eq!(told(&mut index), [gone[0], gone[1], (third.chain[0], Some(Tier::Ram))]);
    assert_eq!(told(&mut index), []);
}

#[test]
fn a_chunk_is_stored_behind_the_one_before_it_only() {
    let mut index = ChunkIndex::new(limits(100, 0));
    let (long, other) = (Sequence::new(0..24), Sequence::new(100..124));
    let first = index.insert(&long.new_chunk(0..4, 1)).unwrap();
    let other_first = index.insert(&other.new_chunk(0..4, 1)).unwrap();
    assert_eq!(index.insert_after(other_first, &long.new_chunk(4..8, 1)), Err(NotStored::NoParent));
    assert_eq!(index.insert_after(first, &long.new_chunk(8..12, 1)), Err(NotStored::NoParent));
    assert_eq!(index.insert_after(ChunkId(9), &long.new_chunk(4..8, 1)), Err(NotStored::NoParent));
    assert_eq!(index.insert_after(first, &long.new_chunk(4..9, 1)), Err(NotStored::Malformed));
    let second = index.insert_after(first, &long.new_chunk(4..8, 1)).unwrap();
    index.insert_after(second, &long.new_chunk(8..12, 1)).unwrap();
    assert_eq!(index.insert_after(first, &long.new_chunk(4..8, 1)), Err(NotStored::Taken));
    assert_eq!((long.n_stored(&index), other.n_stored(&index)), (12, 4));
    index.check_invariants();
}
