//! The list of the most valuable prefixes, compared with the stored chunks.

use std::collections::HashSet;

use proptest::prelude::*;

use super::*;

fn listed(index: &ChunkIndex, n_tokens_max: usize) -> Vec<Vec<Token>> {
    let prefixes = index.hot_prefixes(n_tokens_max, &mut HashSet::new());
    prefixes.into_iter().map(|(_, tokens)| tokens).collect()
}

#[test]
fn used_prefixes_come_first_and_then_the_latest_stored_ones() {
    let mut index = ChunkIndex::new(limits(100, 0));
    let [first, second, third] = [0, 100, 200].map(|start| Sequence::new(start..start + 8));
    first.store(&mut index, 1);
    second.store(&mut index, 2);
    third.store(&mut index, 3);
    assert_eq!(listed(&index, 100), [&third, &second, &first].map(|sequence| sequence.tokens.clone()));
    first.touch(&mut index, 4);
    assert_eq!(listed(&index, 100), [&first, &third, &second].map(|sequence| sequence.tokens.clone()));
    assert_eq!(listed(&index, 17), [&first, &third].map(|sequence| sequence.tokens.clone()));
    assert_eq!(listed(&index, 7), [[0; 0]; 0]);
}

#[test]
fn sequences_that_diverge_within_a_chunk_are_listed_completely_and_shared_blocks_count_once() {
    let mut index = ChunkIndex::new(limits(100, 0));
    let long = Sequence::new(0..20);
    let other = Sequence::new((0..12).chain(50..58));
    long.store(&mut index, 1);
    other.store(&mut index, 2);
    // The common prefix ends within a chunk of the first sequence.
    let expected = [other.tokens.clone(), long.tokens.clone()];
    assert_eq!(listed(&index, 28), expected);
    assert_eq!(listed(&index, 27), expected[..1]);
    let mut known: HashSet<BlockHash> = other.chain.iter().copied().collect();
    assert_eq!(index.hot_prefixes(8, &mut known), [(root(0), long.tokens.clone())]);
    assert!(index.hot_prefixes(8, &mut known).is_empty(), "all blocks are listed now");
}

proptest! {
    #[test]
    fn the_whole_list_has_all_stored_blocks(
        sequences in prop::collection::vec(prop::collection::vec(0u32..2, 2..24), 1..10),
        used in prop::collection::vec(0usize..10, 0..6),
    ) {
        let mut index = ChunkIndex::new(limits(1000, 0));
        let sequences: Vec<Sequence> = sequences.into_iter().map(Sequence::new).collect();
        for (at, sequence) in sequences.iter().enumerate() {
            sequence.store(&mut index, at as u64);
        }
        for (at, idx) in used.into_iter().enumerate().filter(|(_, idx)| *idx < sequences.len()) {
            sequences[idx].touch(&mut index, 100 + at as u64);
        }
        let mut found = HashSet::new();
        for tokens in listed(&index, usize::MAX) {
            let sequence = Sequence::new(tokens);
            prop_assert_eq!(sequence.n_stored(&index), sequence.chain.len());
            prop_assert!(!found.contains(&sequence.chain[sequence.chain.len() - 1]), "the prefix is the start of another one");
            found.extend(sequence.chain);
        }
        let stored: HashSet<BlockHash> =
            sequences.iter().flat_map(|s| s.chain[..s.n_stored(&index)].to_vec()).collect();
        prop_assert_eq!(found, stored);
    }
}
