//! Look-ups of block runs by their last block, compared with the stored chain.

use proptest::prelude::*;

use super::*;

/// Stores a sequence in chunks that end at `cuts`.
fn stored(index: &mut ChunkIndex, sequence: &Sequence, cuts: &[usize]) {
    let starts = std::iter::once(0).chain(cuts.iter().copied());
    for (start, end) in starts.zip(cuts) {
        index.insert(&sequence.new_chunk(start..*end, 0)).expect("there is room");
    }
}

#[test]
fn a_run_ends_with_its_block_and_has_the_blocks_before_it() {
    let sequence = Sequence::new(0..18);
    let mut index = ChunkIndex::new(limits(20, 0));
    stored(&mut index, &sequence, &[3, 7, 9]);
    let check = |last: usize, n_blocks: usize, expected: &[(u64, Range<usize>)]| {
        let run = index.run_to(&sequence.chain[last], n_blocks);
        let found: Vec<(u64, Range<usize>)> = run.into_iter().map(|part| (part.chunk.0, part.blocks)).collect();
        assert_eq!(found, expected, "{n_blocks} blocks to block {last}");
    };
    check(0, 1, &[(0, 0..1)]);
    check(2, 3, &[(0, 0..3)]);
    check(4, 4, &[(0, 1..3), (1, 0..2)]);
    check(8, 9, &[(0, 0..3), (1, 0..4), (2, 0..2)]);
    check(8, 100, &[(0, 0..3), (1, 0..4), (2, 0..2)]);
    check(8, 1, &[(2, 1..2)]);
    check(8, 0, &[]);
    assert_eq!(index.run_to(&Sequence::new(50..60).chain[0], 3), []);
}

proptest! {
    #[test]
    fn the_parts_of_a_run_have_its_blocks_and_tokens_in_order(
        lengths in prop::collection::vec(1..=4_usize, 1..6),
        (last, n_blocks) in (0..20_usize, 1..24_usize),
    ) {
        let cuts: Vec<usize> = lengths.iter().scan(0, |end, n| { *end += n; Some(*end) }).collect();
        let n_stored = cuts[cuts.len() - 1];
        let sequence = Sequence::new(0..n_stored as u32 * BLOCK);
        let mut index = ChunkIndex::new(limits(100, 0));
        stored(&mut index, &sequence, &cuts);
        let last = last.min(n_stored - 1);
        let mut next = (last + 1).saturating_sub(n_blocks);
        for part in index.run_to(&sequence.chain[last], n_blocks) {
            let record = index.record(part.chunk).expect("it is stored").part(part.blocks.clone());
            prop_assert!(record.is_well_formed(BLOCK as usize));
            prop_assert_eq!(record.first_block, next);
            prop_assert_eq!(record.parent, next.checked_sub(1).map(|before| sequence.chain[before]));
            let end = next + part.blocks.len();
            prop_assert_eq!(&record.blocks[..], &sequence.chain[next..end]);
            prop_assert_eq!(&record.tokens[..], &sequence.tokens[next * BLOCK as usize..end * BLOCK as usize]);
            prop_assert_eq!(record.n_bytes, part.blocks.len() as u64 * BLOCK_BYTES);
            next = end;
        }
        prop_assert_eq!(next, last + 1);
    }
}
