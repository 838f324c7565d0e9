//! Merging: from a piece's bytes to symbols, which become tokens.
//!
//! Symbols are numbers for texts that merges can produce. As in llama.cpp, of all neighbours the pair with the lowest
//! rank is merged first, of equal pairs the leftmost.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use hashbrown::HashMap;

/// Number of a text that merging can produce; a byte's is the byte.
pub(crate) type Symbol = u32;

/// Number of a merge in the order of the vocabulary's list: lower ranks are merged first.
pub(crate) type Rank = u32;

/// In place of the rank of a pair that is not merged.
const NONE: Rank = Rank::MAX;

/// A merge of a vocabulary's list, at its rank.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Merge {
    pub left: Symbol,
    pub right: Symbol,
    pub merged: Symbol,
}

/// Longest piece whose lowest rank is searched for among all. Units: bytes.
///
/// Source: own choice: up to here a scan takes less time than a heap.
const SCANNED_BYTES_MAX: usize = 96;

/// The merges of a vocabulary.
#[derive(Debug)]
pub(crate) struct Merges {
    /// Ranks of pairs of bytes.
    of_bytes: Box<[Rank]>,
    /// Ranks of all pairs, by [`key`].
    of_symbols: HashMap<u64, Rank>,
    /// Result of each merge, by its rank.
    merged: Vec<Symbol>,
}

/// Memory of the merging of one piece, used again for the next.
#[derive(Debug, Default)]
pub(crate) struct Scratch {
    /// One symbol for each byte; those that were merged into one on their left are not in the chain any more.
    symbols: Vec<Symbol>,
    /// For each symbol, the rank of its merge with the next one in the chain.
    ranks: Vec<Rank>,
    /// For each symbol, the next and the previous one in the chain; the first is its own previous one.
    next: Vec<u32>,
    previous: Vec<u32>,
    /// Merges of a long piece that may be next, with the places of their left symbols.
    queue: BinaryHeap<Reverse<(Rank, u32)>>,
}

fn key(left: Symbol, right: Symbol) -> u64 {
    u64::from(left) << 32 | u64::from(right)
}

impl Merges {
    /// Returns the merges of a list; of equal pairs the first counts.
    pub fn new(list: &[Merge]) -> Self {
        let mut of_bytes = vec![NONE; 1 << 16].into_boxed_slice();
        let mut of_symbols = HashMap::with_capacity(list.len());
        for (rank, merge) in (0..).zip(list) {
            let first = *of_symbols.entry(key(merge.left, merge.right)).or_insert(rank);
            if let (Ok(left), Ok(right)) = (u8::try_from(merge.left), u8::try_from(merge.right)) {
                of_bytes[usize::from(left) << 8 | usize::from(right)] = first;
            }
        }
        Self { of_bytes, of_symbols, merged: list.iter().map(|merge| merge.merged).collect() }
    }

    #[inline]
    fn rank(&self, left: Symbol, right: Symbol) -> Rank {
        self.of_symbols.get(&key(left, right)).copied().unwrap_or(NONE)
    }

    /// Returns the symbols of a piece after all merges.
    ///
    /// Cost: O(n²) with a small factor up to `SCANNED_BYTES_MAX`, else O(n log n).
    pub fn symbols<'s>(&self, piece: &[u8], scratch: &'s mut Scratch) -> &'s [Symbol] {
        let n = u32::try_from(piece.len()).expect("texts of gigabytes are refused");
        scratch.symbols.clear();
        scratch.symbols.extend(piece.iter().map(|byte| Symbol::from(*byte)));
        scratch.ranks.clear();
        let rank = |pair: &[u8]| self.of_bytes[usize::from(pair[0]) << 8 | usize::from(pair[1])];
        scratch.ranks.extend(piece.windows(2).map(rank).chain([NONE]));
        scratch.next.clear();
        scratch.next.extend(1..=n);
        scratch.previous.clear();
        scratch.previous.extend((0..n).map(|at| at.saturating_sub(1)));
        if piece.len() <= SCANNED_BYTES_MAX {
            self.merge_scanning(scratch)
        } else {
            self.merge_queued(scratch)
        }
        scratch.gather()
    }

    fn merge_scanning(&self, scratch: &mut Scratch) {
        while let Some(lowest) = scratch.ranks.iter().copied().min().filter(|rank| *rank != NONE) {
            let at = scratch.ranks.iter().position(|rank| *rank == lowest).expect("the lowest rank is one of them");
            self.merge(scratch, at);
        }
    }

    fn merge_queued(&self, scratch: &mut Scratch) {
        scratch.queue.clear();
        let ranks = (0..).zip(&scratch.ranks).filter(|(_, rank)| **rank != NONE);
        scratch.queue.extend(ranks.map(|(at, rank)| Reverse((*rank, at))));
        while let Some(Reverse((rank, at))) = scratch.queue.pop() {
            // Otherwise a neighbour was merged since.
            if scratch.ranks[at as usize] == rank {
                for (rank, at) in self.merge(scratch, at as usize) {
                    if rank != NONE {
                        scratch.queue.push(Reverse((rank, at)));
                    }
                }
            }
        }
    }

    /// Merges the symbol at a place with the next one; returns the new ranks of its pairs, with their places.
    #[inline]
    fn merge(&self, scratch: &mut Scratch, at: usize) -> [(Rank, u32); 2] {
        let Scratch { symbols, ranks, next, previous, .. } = scratch;
        symbols[at] = self.merged[ranks[at] as usize];
        // The right symbol leaves the chain.
        let right = next[at] as usize;
        ranks[right] = NONE;
        next[at] = next[right];
        let place = |at: usize| u32::try_from(at).expect("it is below n");
        if let Some(previous) = previous.get_mut(next[at] as usize) {
            *previous = place(at);
        }
        // The pairs with both neighbours.
        let right = symbols.get(next[at] as usize);
        ranks[at] = right.map_or(NONE, |right| self.rank(symbols[at], *right));
        let left = previous[at] as usize;
        if left < at {
            ranks[left] = self.rank(symbols[left], symbols[at]);
        }
        [(ranks[left], place(left)), (ranks[at], place(at))]
    }
}

impl Scratch {
    /// Returns the symbols in the chain, moved together.
    fn gather(&mut self) -> &[Symbol] {
        let (mut at, mut n_left) = (0, 0);
        while at < self.symbols.len() {
            self.symbols[n_left] = self.symbols[at];
            n_left += 1;
            at = self.next[at] as usize;
        }
        &self.symbols[..n_left]
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Merges of the letters a to d and of texts of them, at random.
    fn merges() -> impl Strategy<Value = Vec<(usize, usize)>> {
        prop::collection::vec((0..1000_usize, 0..1000_usize), 0..40)
    }

    /// The merges that random numbers choose among the texts so far, and the text of each symbol beyond bytes.
    fn list(numbers: &[(usize, usize)]) -> (Vec<Vec<u8>>, Vec<Merge>) {
        let mut texts: Vec<Vec<u8>> = b"abcd".iter().map(|letter| vec![*letter]).collect();
        let symbol = |texts: &[Vec<u8>], at: usize| match texts[at][..] {
            [letter] => Symbol::from(letter),
            _ => Symbol::try_from(at).unwrap() + 256,
        };
        let mut list = Vec::new();
        for (left, right) in numbers {
            let (left, right) = (left % texts.len(), right % texts.len());
            let text = [&texts[left][..], &texts[right][..]].concat();
            let known = texts.iter().position(|known| *known == text);
            let merged = known.unwrap_or(texts.len());
            if known.is_none() {
                texts.push(text);
            }
            let [left, right, merged] = [left, right, merged].map(|at| symbol(&texts, at));
            list.push(Merge { left, right, merged });
        }
        (texts, list)
    }

    fn text(symbol: Symbol, texts: &[Vec<u8>]) -> Vec<u8> {
        u8::try_from(symbol).map_or_else(|_| texts[symbol as usize - 256].clone(), |letter| vec![letter])
    }

    /// The definition: the leftmost pair of the lowest rank is merged, until there is none.
    fn naive(piece: &[u8], texts: &[Vec<u8>], list: &[Merge]) -> Vec<Vec<u8>> {
        let mut parts: Vec<Vec<u8>> = piece.iter().map(|letter| vec![*letter]).collect();
        loop {
            let is_pair = |merge: &Merge, pair: &[Vec<u8>]| {
                pair[0] == text(merge.left, texts) && pair[1] == text(merge.right, texts)
            };
            let next = list.iter().find_map(|merge| parts.windows(2).position(|pair| is_pair(merge, pair)));
            let Some(at) = next else { return parts };
            let right = parts.remove(at + 1);
            parts[at].extend(right);
        }
    }

    proptest! {
        #[test]
        fn pieces_are_merged_as_defined_by_a_scan_and_by_a_heap(numbers in merges(), piece in "[a-d]{0,150}") {
            let (texts, list) = list(&numbers);
            let merges = Merges::new(&list);
            let mut scratch = Scratch::default();
            // A piece that is short enough for a scan, and one that is not.
            let long = piece.repeat(SCANNED_BYTES_MAX / piece.len().max(1) + 1);
            for piece in [&piece, &long] {
                let symbols = merges.symbols(piece.as_bytes(), &mut scratch);
                let made: Vec<Vec<u8>> = symbols.iter().map(|symbol| text(*symbol, &texts)).collect();
                prop_assert_eq!(made, naive(piece.as_bytes(), &texts, &list));
            }
        }
    }
}
