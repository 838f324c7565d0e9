//! Cuts a text at its special tokens, exactly as llama.cpp does before it tokenizes the text between them.
//!
//! llama.cpp searches the whole text for one special token after another, the longest first. This code does the same,
//! but only for tokens that one pass has found in the text. If the special tokens begin with few different bytes, as
//! most do with `<`, that pass searches only for those bytes. Not here: tokenizing.

use std::ops::Range;

use aho_corasick::automaton::OverlappingState;
use aho_corasick::{AhoCorasick, AhoCorasickKind, Anchored, Input, MatchKind, StartKind};
use memchr::memmem::Finder;
use warmpath_common::ids::Token;

/// A special token of a vocabulary: a text that llama.cpp converts to one token before it tokenizes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Special {
    pub token: Token,
    pub text: Vec<u8>,
    /// True for control and unknown tokens, which only the template may write; false for user-defined ones.
    pub control: bool,
    pub lstrip: bool,
    pub rstrip: bool,
}

/// A piece of a partitioned text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Piece {
    /// A special token.
    Special { token: Token, control: bool },
    /// Text between special tokens, never empty.
    Text(Range<usize>),
    /// Medium of this number, which `media::cut` finds in texts.
    Media(usize),
}

/// Finder of a vocabulary's special tokens in texts.
#[derive(Debug)]
pub(crate) struct Partitioner {
    /// Special tokens in the order of llama.cpp's search, each with its searcher.
    specials: Vec<(Special, Finder<'static>)>,
    pass: Pass,
}

/// The pass that finds which special tokens are in a text.
#[derive(Debug)]
enum Pass {
    /// The vocabulary has none.
    Nothing,
    /// The special tokens begin with these bytes; the automaton runs only where one of the bytes occurs.
    Starts { bytes: [u8; 3], automaton: AhoCorasick },
    /// The special tokens begin with many different bytes, so the automaton reads every byte.
    Whole(AhoCorasick),
}

impl Pass {
    fn new(texts: &[&[u8]]) -> Self {
        let mut starts: Vec<u8> = texts.iter().filter_map(|text| text.first().copied()).collect();
        starts.sort_unstable();
        starts.dedup();
        if let (Some(bytes), Some(automaton)) = (up_to_three(&starts), anchored(texts)) {
            return Self::Starts { bytes, automaton };
        }
        searcher(texts, MatchKind::Standard).map_or(Self::Nothing, Self::Whole)
    }

    /// Calls `seen` for each special token that occurs in `text`, at least once.
    fn each(&self, text: &[u8], mut seen: impl FnMut(usize)) {
        match self {
            Self::Nothing => {}
            Self::Starts { bytes: [a, b, c], automaton } => {
                for at in memchr::memchr3_iter(*a, *b, *c, text) {
                    let here = Input::new(text).range(at..).anchored(Anchored::Yes);
                    let mut state = OverlappingState::start();
                    let mut next = || {
                        let searched = automaton.try_find_overlapping(here.clone(), &mut state);
                        searched.expect("the automaton was built for anchored searches that overlap");
                        state.get_match()
                    };
                    while let Some(found) = next() {
                        seen(found.pattern().as_usize());
                    }
                }
            }
            Self::Whole(automaton) => {
                automaton.find_overlapping_iter(text).for_each(|found| seen(found.pattern().as_usize()));
            }
        }
    }
}

/// Returns one to three different bytes, the last repeated; `None` if there are none or more than three.
fn up_to_three(bytes: &[u8]) -> Option<[u8; 3]> {
    let last = *bytes.last()?;
    let at = |n: usize| bytes.get(n).copied().unwrap_or(last);
    (bytes.len() <= 3).then(|| [at(0), at(1), at(2)])
}

impl Partitioner {
    /// Returns the finder of these special tokens, given in the order of their ids.
    pub fn new(mut specials: Vec<Special>) -> Self {
        specials.retain(|special| !special.text.is_empty());
        specials.sort_by_key(|special| std::cmp::Reverse(special.text.len()));
        let texts: Vec<&[u8]> = specials.iter().map(|special| special.text.as_slice()).collect();
        let pass = Pass::new(&texts);
        let with_finder = |special: Special| {
            let finder = Finder::new(&special.text).into_owned();
            (special, finder)
        };
        Self { specials: specials.into_iter().map(with_finder).collect(), pass }
    }

    /// Returns the special tokens that only a template may write.
    pub fn controls(&self) -> impl Iterator<Item = &Special> {
        self.specials.iter().map(|(special, _)| special).filter(|special| special.control)
    }

    /// Cuts `text` at every special token, control tokens included.
    pub fn partition(&self, text: &[u8]) -> Vec<Piece> {
        let mut pieces = Vec::new();
        if !text.is_empty() {
            pieces.push(Piece::Text(0..text.len()));
        }
        for special_idx in self.present(text) {
            let (special, finder) = &self.specials[special_idx];
            let mut next = Vec::with_capacity(pieces.len() + 2);
            for piece in pieces {
                match piece {
                    Piece::Text(range) => cut((text, range), (special, finder), &mut next),
                    special => next.push(special),
                }
            }
            pieces = next;
        }
        pieces
    }

    /// Returns the special tokens that occur in `text`, in llama.cpp's order.
    fn present(&self, text: &[u8]) -> Vec<usize> {
        let mut seen = vec![false; self.specials.len()];
        self.pass.each(text, |special_idx| seen[special_idx] = true);
        (0..seen.len()).filter(|&special_idx| seen[special_idx]).collect()
    }
}

/// Longest patterns, all together, for which the faster automaton is built. Units: bytes. Source: own choice: it takes
/// up to a kilobyte per byte, 64 MiB.
const DFA_PATTERN_BYTES_MAX: usize = 1 << 16;

/// Returns a searcher for any of `texts`; `None` if there are none.
pub(crate) fn searcher(texts: &[impl AsRef<[u8]>], kind: MatchKind) -> Option<AhoCorasick> {
    let n_bytes: usize = texts.iter().map(|text| text.as_ref().len()).sum();
    let automaton = (n_bytes <= DFA_PATTERN_BYTES_MAX).then_some(AhoCorasickKind::DFA);
    // The prefilter stops at every `<`, which is frequent in markup and code; the automaton itself is faster there.
    let prefilter = automaton.is_none();
    let built = AhoCorasick::builder().match_kind(kind).kind(automaton).prefilter(prefilter).build(texts).ok();
    built.filter(|_| !texts.is_empty())
}

/// Returns an automaton that finds which of `texts` begin at a position.
fn anchored(texts: &[&[u8]]) -> Option<AhoCorasick> {
    let builder = &mut AhoCorasick::builder();
    builder.match_kind(MatchKind::Standard).start_kind(StartKind::Anchored).prefilter(false);
    builder.build(texts).ok()
}

/// Cuts a stretch of text at every occurrence of one special token, from the left.
fn cut((text, mut range): (&[u8], Range<usize>), (special, finder): (&Special, &Finder<'_>), pieces: &mut Vec<Piece>) {
    while let Some(start) = finder.find(&text[range.clone()]).map(|at| range.start + at) {
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

/// Returns C's `isspace` in the C locale.
fn is_space(byte: u8) -> bool {
    matches!(byte, b' ' | b'\t' | b'\n' | 0x0b | 0x0c | b'\r')
}

#[cfg(test)]
mod tests;
