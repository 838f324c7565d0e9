//! Cuts a text at its special tokens, exactly as llama.cpp does before it tokenizes what lies between.
//!
//! Not here: tokenizing. The idea: llama.cpp searches the whole text for one special token after another, the longest
//! first; so do we, but only for those that one Aho-Corasick pass has found in the text at all.

use std::ops::Range;

use aho_corasick::{AhoCorasick, AhoCorasickKind, MatchKind};
use warmpath_common::ids::Token;

/// Is one special token of a vocabulary: a text that llama.cpp turns into one token before it tokenizes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Special {
    pub token: Token,
    pub text: Vec<u8>,
    /// Is true for control and unknown tokens, which only the template may write; false for user-defined ones.
    pub control: bool,
    pub lstrip: bool,
    pub rstrip: bool,
}

/// Is one piece of a partitioned text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Piece {
    /// A special token.
    Special { token: Token, control: bool },
    /// Text between special tokens, never empty.
    Text(Range<usize>),
}

/// Finds a vocabulary's special tokens in texts.
#[derive(Debug)]
pub(crate) struct Partitioner {
    /// Lists the special tokens in the order in which llama.cpp looks for them.
    specials: Vec<Special>,
    searcher: Option<AhoCorasick>,
}

impl Partitioner {
    /// Takes the special tokens in the order of their ids.
    pub fn new(mut specials: Vec<Special>) -> Self {
        specials.retain(|special| !special.text.is_empty());
        specials.sort_by_key(|special| std::cmp::Reverse(special.text.len()));
        let texts: Vec<&[u8]> = specials.iter().map(|special| special.text.as_slice()).collect();
        let searcher = searcher(&texts, MatchKind::Standard);
        Self { specials, searcher }
    }

    /// Lists the special tokens that only a template may write.
    pub fn controls(&self) -> impl Iterator<Item = &Special> {
        self.specials.iter().filter(|special| special.control)
    }

    /// Cuts `text` at every special token, control tokens included.
    pub fn partition(&self, text: &[u8]) -> Vec<Piece> {
        let mut pieces = Vec::new();
        if !text.is_empty() {
            pieces.push(Piece::Text(0..text.len()));
        }
        for special_idx in self.present(text) {
            let special = &self.specials[special_idx];
            let mut next = Vec::with_capacity(pieces.len() + 2);
            for piece in pieces {
                match piece {
                    Piece::Text(range) => cut(text, range, special, &mut next),
                    special => next.push(special),
                }
            }
            pieces = next;
        }
        pieces
    }

    /// Returns the special tokens that occur in `text`, in llama.cpp's order.
    fn present(&self, text: &[u8]) -> Vec<usize> {
        let Some(searcher) = &self.searcher else { return Vec::new() };
        let mut seen = vec![false; self.specials.len()];
        for found in searcher.find_overlapping_iter(text) {
            seen[found.pattern().as_usize()] = true;
        }
        (0..seen.len()).filter(|&special_idx| seen[special_idx]).collect()
    }
}

/// Is the most bytes of patterns for which the faster automaton is built: it takes up to a kilobyte a byte.
const DFA_PATTERN_BYTES_MAX: usize = 1 << 16;

/// Returns a searcher for any of `texts`; `None` where there are none.
pub(crate) fn searcher(texts: &[impl AsRef<[u8]>], kind: MatchKind) -> Option<AhoCorasick> {
    let n_bytes: usize = texts.iter().map(|text| text.as_ref().len()).sum();
    let automaton = (n_bytes <= DFA_PATTERN_BYTES_MAX).then_some(AhoCorasickKind::DFA);
    // The prefilter stops at every `<`, of which markup and code have many; the automaton itself is faster there.
    let prefilter = automaton.is_none();
    let built = AhoCorasick::builder().match_kind(kind).kind(automaton).prefilter(prefilter).build(texts).ok();
    built.filter(|_| !texts.is_empty())
}

/// Cuts one stretch of text at every occurrence of one special token, from the left.
fn cut(text: &[u8], mut range: Range<usize>, special: &Special, pieces: &mut Vec<Piece>) {
    let finder = aho_corasick::packed::Searcher::new([&special.text]);
    while let Some(start) = find(finder.as_ref(), &text[range.clone()], &special.text).map(|at| range.start + at) {
        let mut left = range.start..start;
        if special.lstrip {
            left.end -= text[left.clone()].iter().rev().take_while(|byte| is_space(**byte)).count();
        }
        if !left.is_empty() {
            pieces.push(Piece::Text(left));
        }
        let end = start + special.text.len();
        pieces.push(Piece::Special { token: special.token, control: special.control });
        range.start = end;
        if special.rstrip {
            range.start += text[range.clone()].iter().take_while(|byte| is_space(**byte)).count();
        }
    }
    if !range.is_empty() {
        pieces.push(Piece::Text(range));
    }
}

fn find(searcher: Option<&aho_corasick::packed::Searcher>, text: &[u8], needle: &[u8]) -> Option<usize> {
    match searcher {
        Some(searcher) => searcher.find(text).map(|found| found.start()),
        None => text.windows(needle.len()).position(|window| window == needle),
    }
}

/// Is C's `isspace` in the C locale.
fn is_space(byte: u8) -> bool {
    matches!(byte, b' ' | b'\t' | b'\n' | 0x0b | 0x0c | b'\r')
}

#[cfg(test)]
mod tests;
