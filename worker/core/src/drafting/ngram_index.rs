//! Index of a growing text's n-grams, which finds earlier occurrences of the last tokens and the tokens after them.
//!
//! The index has the last occurrence of every run of [`GRAM_TOKENS`] tokens, and each occurrence refers to the one
//! before it. So a token costs one insertion, and a search visits at most `OCCURRENCES_MAX` occurrences. When the text
//! reaches its limit, the index drops the older half.

use hashbrown::HashMap;
use warmpath_common::ids::Token;

/// Length of an indexed run, which is the minimum length of a match.
///
/// Source: docs/decisions/0052-drafting.md: shorter runs often match by chance.
pub const GRAM_TOKENS: usize = 4;

/// Maximum length of a match; longer ones are not distinguished. Source: after a match of 32 tokens, 95 % of the next
/// tokens are right (docs/decisions/0052-drafting.md).
pub const MATCH_MAX: usize = 32;

/// Maximum number of earlier occurrences that are compared. Source: at most 16 x 32 comparisons of tokens, which take a
/// microsecond.
const OCCURRENCES_MAX: usize = 16;

/// Mark of a text's end, which is not a token of any vocabulary.
const END: Token = Token::MAX;

/// Mark of an occurrence without an earlier one.
const NONE: u32 = u32::MAX;

/// Texts and the positions of their n-grams.
#[derive(Debug, Clone)]
pub struct NgramIndex {
    tokens: Vec<Token>,
    /// Position of the last token of each run's last occurrence.
    last: HashMap<[Token; GRAM_TOKENS], u32>,
    /// For each token, the position of the last token of the previous occurrence of the run that ends at the token.
    previous: Vec<u32>,
    tokens_max: usize,
}

/// An earlier occurrence of a text's last tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Occurrence {
    /// Position after it.
    next: usize,
    /// Number of matching tokens, at most [`MATCH_MAX`].
    pub n_matched: usize,
}

impl NgramIndex {
    /// Returns an empty index that keeps at most `tokens_max` tokens.
    pub fn new(tokens_max: usize) -> Self {
        let tokens_max = tokens_max.min(NONE as usize);
        Self { tokens: Vec::new(), last: HashMap::new(), previous: Vec::new(), tokens_max }
    }

    /// Returns the number of tokens in the index, including the marks of ends.
    pub fn len(&self) -> usize {
        self.tokens.len()
    }

    /// Returns whether the index is empty.
    pub fn is_empty(&self) -> bool {
        self.tokens.is_empty()
    }

    /// Returns the last tokens of the text, at most [`MATCH_MAX`].
    pub fn tail(&self) -> &[Token] {
        self.last(MATCH_MAX)
    }

    /// Returns the last `n` tokens, or all of them if there are fewer.
    pub fn last(&self, n: usize) -> &[Token] {
        &self.tokens[self.tokens.len().saturating_sub(n)..]
    }

    /// Adds tokens to the text. Cost: O(1) a token, amortized.
    pub fn extend(&mut self, tokens: &[Token]) {
        tokens.iter().for_each(|token| self.push(*token));
    }

    /// Ends the text; further tokens belong to another text.
    pub fn end_text(&mut self) {
        self.push(END);
    }

    /// Drops the older half of the tokens.
    pub fn halve(&mut self) {
        let newer = self.tokens.split_off(self.tokens.len().div_ceil(2));
        // A new index, because maps keep their memory when they are cleared.
        *self = Self::new(self.tokens_max);
        newer.into_iter().for_each(|token| self.push(token));
    }

    /// Returns the earlier occurrence with the longest match of the last tokens of `text`. Ties: the latest one.
    ///
    /// `text` is another text, or this index's [`Self::tail`].
    pub fn find(&self, text: &[Token]) -> Option<Occurrence> {
        let gram: &[Token; GRAM_TOKENS] = text.last_chunk()?;
        let mut best: Option<Occurrence> = None;
        let mut place = *self.last.get(gram)?;
        for _ in 0..=OCCURRENCES_MAX {
            let next = place as usize + 1;
            // No token follows the end of a text.
            if self.tokens.get(next).is_some_and(|token| *token != END) {
                let n_matched = n_common(&self.tokens[..next], text);
                if best.is_none_or(|best| n_matched > best.n_matched) {
                    best = Some(Occurrence { next, n_matched });
                }
                if n_matched == MATCH_MAX {
                    break;
                }
            }
            place = self.previous[place as usize];
            if place == NONE {
                break;
            }
        }
        best
    }

    /// Returns up to `n_max` tokens that followed an occurrence. Beyond the end of the index's own text, the tokens
    /// since the occurrence are repeated.
    pub fn continuation(&self, occurrence: Occurrence, n_max: usize) -> Vec<Token> {
        let after = &self.tokens[occurrence.next..];
        after.iter().cycle().take(n_max).copied().take_while(|token| *token != END).collect()
    }

    fn push(&mut self, token: Token) {
        if self.tokens.len() >= self.tokens_max {
            self.halve();
        }
        let place = self.tokens.len() as u32;
        self.tokens.push(token);
        let gram: Option<&[Token; GRAM_TOKENS]> = self.tokens.last_chunk().filter(|gram| !gram.contains(&END));
        let previous = gram.and_then(|gram| self.last.insert(*gram, place));
        self.previous.push(previous.unwrap_or(NONE));
    }
}

/// Returns the number of equal tokens at the ends of both texts, at most [`MATCH_MAX`].
fn n_common(a: &[Token], b: &[Token]) -> usize {
    let pairs = a.iter().rev().zip(b.iter().rev()).take(MATCH_MAX);
    pairs.take_while(|(a, b)| a == b && **a != END).count()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Returns the occurrence by comparing at every position.
    fn naive(tokens: &[Token], text: &[Token]) -> Option<Occurrence> {
        let gram: &[Token; GRAM_TOKENS] = text.last_chunk().filter(|gram| !gram.contains(&END))?;
        let ends_gram = |next: &usize| tokens[..*next].ends_with(gram);
        let latest = (GRAM_TOKENS..=tokens.len()).rev().filter(ends_gram).take(OCCURRENCES_MAX + 1);
        let goes_on = latest.filter(|next| tokens.get(*next).is_some_and(|token| *token != END));
        let occurrences = goes_on.map(|next| {
            let is_same = |n: &usize| {
                let wanted = &text[text.len().saturating_sub(*n)..];
                wanted.len() == *n && !wanted.contains(&END) && tokens[..next].ends_with(wanted)
            };
            let n_matched = (GRAM_TOKENS..=MATCH_MAX).rev().find(is_same).expect("the gram matches");
            Occurrence { next, n_matched }
        });
        occurrences.reduce(|best, other| if other.n_matched > best.n_matched { other } else { best })
    }

    fn index(tokens: &[Token], tokens_max: usize) -> NgramIndex {
        let mut index = NgramIndex::new(tokens_max);
        index.extend(tokens);
        index
    }

    #[track_caller]
    fn check(tokens: &[Token], expected: Option<(usize, &[Token])>) {
        let index = index(tokens, 100);
        let found = index.find(index.tail());
        let found = found.map(|found| (found.n_matched, index.continuation(found, 5)));
        assert_eq!(found, expected.map(|(n_matched, next)| (n_matched, next.to_vec())), "{tokens:?}");
    }

    #[test]
    fn finds_the_tokens_after_the_longest_and_latest_match() {
        check(&[], None);
        check(&[1, 2, 3, 4], None);
        check(&[1, 2, 3, 4, 5, 1, 2, 3], None);
        check(&[1, 2, 3, 4, 5, 6, 1, 2, 3, 4], Some((4, &[5, 6, 1, 2, 3])));
        check(&[9, 1, 2, 3, 4, 5, 8, 1, 2, 3, 4, 6, 9, 1, 2, 3, 4], Some((5, &[5, 8, 1, 2, 3])));
        check(&[1, 2, 3, 4, 5, 1, 2, 3, 4, 6, 1, 2, 3, 4], Some((4, &[6, 1, 2, 3, 4])));
    }

    #[test]
    fn a_repetition_is_continued() {
        check(&[7, 7, 7, 7, 7, 7], Some((5, &[7, 7, 7, 7, 7])));
        check(&[1, 2, 1, 2, 1, 2, 1], Some((5, &[2, 1, 2, 1, 2])));
    }

    #[test]
    fn neither_a_match_nor_its_continuation_extends_beyond_a_text() {
        let mut index = index(&[1, 2, 3, 4, 5, 6], 100);
        index.end_text();
        index.extend(&[3, 4, 5, 6]);
        index.end_text();
        assert_eq!(index.find(&[3, 4, 5, 6]), None, "nothing follows");
        let found = index.find(&[0, 1, 2, 3, 4]).expect("it is there");
        assert_eq!((found.n_matched, index.continuation(found, 9)), (4, vec![5, 6]));
        assert_eq!(index.find(&[5, 6, END, 3]), None);
    }

    proptest! {
        #[test]
        fn finds_the_same_as_a_search_of_every_position(
            tokens in prop::collection::vec(prop_oneof![9 => 0_u32..3, 1 => Just(END)], 0..120),
            other in prop::collection::vec(0_u32..3, 0..50),
        ) {
            let index = index(&tokens, 1000);
            prop_assert_eq!(index.find(&other), naive(&tokens, &other));
            if tokens.last() != Some(&END) {
                let tail = index.tail();
                prop_assert_eq!(index.find(tail), naive(&tokens, tail));
            }
        }

        #[test]
        fn within_its_limit_it_finds_the_same_as_a_new_index_of_the_newest_tokens(
            tokens in prop::collection::vec(0_u32..3, 0..200),
            tokens_max in 8_usize..40,
        ) {
            let small = index(&tokens, tokens_max);
            prop_assert!(small.len() <= tokens_max && small.len() >= tokens.len().min(tokens_max / 2));
            let newest = &tokens[tokens.len() - small.len()..];
            prop_assert_eq!(&small.tokens, newest);
            prop_assert_eq!(small.find(small.tail()), naive(newest, small.tail()));
            prop_assert_eq!(small.previous.len(), small.len());
        }
    }
}
