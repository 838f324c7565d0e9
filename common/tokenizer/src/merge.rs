//! Merging: from a piece's bytes to symbols, which become tokens.
//!
//! Symbols are numbers for texts that merges can produce. As in llama.cpp, of all neighbours the pair with the lowest
//! rank is merged first, of equal pairs the leftmost.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use hashbrown::HashMap;

/// Number of a text that merging can produce; a byte's is the byte.
pub(crate) type Symbol = u32;

/// What merging a pair gives.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Merge {
    /// Lower ranks are merged first.
    pub rank: u32,
    pub merged: Symbol,
}

impl Merge {
    /// A pair that is not merged.
    const NONE: Self = Self { rank: u32::MAX, merged: 0 };
}

/// Longest piece whose lowest rank is searched for among all. Units: bytes.
///
/// Source: own choice: up to here a scan takes less time than a heap.
const SCANNED_BYTES_MAX: usize = 96;

/// The merges of a vocabulary.
#[derive(Debug)]
pub(crate) struct Merges {
    /// Pairs of bytes.
    of_bytes: Box<[Merge]>,
    /// All pairs, by [`key`].
    of_symbols: HashMap<u64, Merge>,
}

/// Memory of the merging of one piece, used again for the next.
#[derive(Debug, Default)]
pub(crate) struct Scratch {
    symbols: Vec<Symbol>,
    /// For each symbol, the rank of its merge with the next one, and the result.
    ranks: Vec<u32>,
    merged: Vec<Symbol>,
    /// For each symbol of a long piece, the next and the previous one that are left.
    next: Vec<u32>,
    previous: Vec<u32>,
    /// Merges of a long piece that may be next, with the place of their left symbols.
    queue: BinaryHeap<Reverse<(u32, u32)>>,
}

fn key(left: Symbol, right: Symbol) -> u64 {
    u64::from(left) << 32 | u64::from(right)
}

impl Merges {
    /// Returns the merges of these pairs; of equal pairs the first counts.
    pub fn new(pairs: impl Iterator<Item = ((Symbol, Symbol), Merge)>) -> Self {
        let mut of_bytes = vec![Merge::NONE; 1 << 16].into_boxed_slice();
        let mut of_symbols = HashMap::with_capacity(pairs.size_hint().0);
        for ((left, right), merge) in pairs {
            let first = *of_symbols.entry(key(left, right)).or_insert(merge);
            if let (Ok(left), Ok(right)) = (u8::try_from(left), u8::try_from(right)) {
                of_bytes[usize::from(left) << 8 | usize::from(right)] = first;
            }
        }
        Self { of_bytes, of_symbols }
    }

    #[inline]
    fn of(&self, left: Symbol, right: Symbol) -> Merge {
        self.of_symbols.get(&key(left, right)).copied().unwrap_or(Merge::NONE)
    }

    /// Returns the symbols of a piece after all merges.
    ///
    /// Cost: O(n²) with a small factor up to `SCANNED_BYTES_MAX`, else O(n log n).
    pub fn symbols<'s>(&self, piece: &[u8], scratch: &'s mut Scratch) -> &'s [Symbol] {
        scratch.symbols.clear();
        scratch.symbols.extend(piece.iter().map(|byte| Symbol::from(*byte)));
        scratch.ranks.clear();
        scratch.merged.clear();
        for pair in piece.windows(2) {
            let merge = self.of_bytes[usize::from(pair[0]) << 8 | usize::from(pair[1])];
            scratch.ranks.push(merge.rank);
            scratch.merged.push(merge.merged);
        }
        if piece.len() <= SCANNED_BYTES_MAX {
            self.merge_scanning(scratch)
        } else {
            self.merge_queued(scratch)
        }
        &scratch.symbols
    }

    fn merge_scanning(&self, Scratch { symbols, ranks, merged, .. }: &mut Scratch) {
        while let Some(lowest) = ranks.iter().copied().min().filter(|rank| *rank != u32::MAX) {
            let at = ranks.iter().position(|rank| *rank == lowest).expect("the lowest rank is one of them");
            symbols[at] = merged[at];
            symbols.remove(at + 1);
            ranks.remove(at);
            merged.remove(at);
            // The neighbours of the new symbol.
            for left in [at.checked_sub(1), Some(at)].into_iter().flatten() {
                if left + 1 < symbols.len() {
                    let merge = self.of(symbols[left], symbols[left + 1]);
                    (ranks[left], merged[left]) = (merge.rank, merge.merged);
                }
            }
        }
    }

    fn merge_queued(&self, scratch: &mut Scratch) {
        let Scratch { symbols, ranks, merged, next, previous, queue } = scratch;
        let n = u32::try_from(symbols.len()).expect("texts of gigabytes are refused");
        next.clear();
        next.extend(1..=n);
        previous.clear();
        previous.extend((0..n).map(|at| at.saturating_sub(1)));
        // The last symbol has no neighbour.
        ranks.push(u32::MAX);
        merged.push(0);
        queue.clear();
        queue.extend((0..n).zip(&*ranks).filter(|(_, rank)| **rank != u32::MAX).map(|(at, rank)| Reverse((*rank, at))));
        while let Some(Reverse((rank, at))) = queue.pop() {
            let left = at as usize;
            // A neighbour was merged since.
            if ranks[left] != rank {
                continue;
            }
            let right = next[left] as usize;
            symbols[left] = merged[left];
            ranks[right] = u32::MAX;
            next[left] = next[right];
            if let Some(previous) = previous.get_mut(next[left] as usize) {
                *previous = at;
            }
            // The neighbours of the new symbol; the first symbol is its own previous one.
            for left in [previous[left] as usize, left] {
                let right = next[left] as usize;
                let is_pair = right < symbols.len();
                let merge = if is_pair { self.of(symbols[left], symbols[right]) } else { Merge::NONE };
                (ranks[left], merged[left]) = (merge.rank, merge.merged);
                if merge.rank != u32::MAX {
                    queue.push(Reverse((merge.rank, u32::try_from(left).expect("it is below n"))));
                }
            }
        }
        // The symbols that are left, moved together.
        let (mut at, mut n_left) = (0, 0);
        while at < symbols.len() {
            symbols[n_left] = symbols[at];
            n_left += 1;
            at = next[at] as usize;
        }
        symbols.truncate(n_left);
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

    type Pair = ((Symbol, Symbol), Merge);

    /// The pairs that random numbers choose among the texts so far.
    fn pairs(numbers: &[(usize, usize)]) -> (Vec<Vec<u8>>, Vec<Pair>) {
        let mut texts: Vec<Vec<u8>> = b"abcd".iter().map(|letter| vec![*letter]).collect();
        let symbol = |texts: &[Vec<u8>], at: usize| match texts[at][..] {
            [letter] => Symbol::from(letter),
            _ => Symbol::try_from(at).unwrap() + 256,
        };
        let mut pairs = Vec::new();
        for (rank, (left, right)) in (0..).zip(numbers) {
            let (left, right) = (left % texts.len(), right % texts.len());
            let text = [&texts[left][..], &texts[right][..]].concat();
            let known = texts.iter().position(|known| *known == text);
            let merged = known.unwrap_or(texts.len());
            if known.is_none() {
                texts.push(text);
            }
            pairs.push(((symbol(&texts, left), symbol(&texts, right)), Merge { rank, merged: symbol(&texts, merged) }));
        }
        (texts, pairs)
    }

    /// The definition: the leftmost pair of the lowest rank is merged, until there is none.
    fn naive(piece: &[u8], texts: &[Vec<u8>], pairs: &[Pair]) -> Vec<Vec<u8>> {
        let text = |symbol: Symbol| match u8::try_from(symbol) {
            Ok(letter) => vec![letter],
            Err(_) => texts[symbol as usize - 256].clone(),
        };
        let mut parts: Vec<Vec<u8>> = piece.iter().map(|letter| vec![*letter]).collect();
        loop {
            let merge = pairs.iter().find_map(|((left, right), _)| {
                parts.windows(2).position(|pair| pair[0] == text(*left) && pair[1] == text(*right))
            });
            let Some(at) = merge else { return parts };
            let right = parts.remove(at + 1);
            parts[at].extend(right);
        }
    }

    proptest! {
        #[test]
        fn both_ways_merge_as_defined(numbers in merges(), piece in "[a-d]{0,150}") {
            let (texts, pairs) = pairs(&numbers);
            let merges = Merges::new(pairs.iter().copied());
            let expected = naive(piece.as_bytes(), &texts, &pairs);
            let mut scratch = Scratch::default();
            for way in [Merges::merge_scanning, Merges::merge_queued] {
                // Prepared as `symbols` does, then merged the one way or the other, whatever the length.
                let short = &piece.as_bytes()[..piece.len().min(1)];
                merges.symbols(short, &mut scratch);
                scratch.symbols = piece.bytes().map(Symbol::from).collect();
                let of_pairs = scratch.symbols.windows(2).map(|pair| merges.of(pair[0], pair[1]));
                (scratch.ranks, scratch.merged) = of_pairs.map(|merge| (merge.rank, merge.merged)).unzip();
                if !piece.is_empty() {
                    way(&merges, &mut scratch);
                }
                let made: Vec<Vec<u8>> = scratch.symbols.iter().map(|symbol| match u8::try_from(*symbol) {
                    Ok(letter) => vec![letter],
                    Err(_) => texts[*symbol as usize - 256].clone(),
                }).collect();
                prop_assert_eq!(&made, &expected);
            }
            let n_symbols = merges.symbols(piece.as_bytes(), &mut scratch).len();
            prop_assert_eq!(n_symbols, expected.len());
        }
    }
}
