//! Cuts a text at its special tokens, exactly as llama.cpp does before it tokenizes the text between them.
//!
//! llama.cpp searches the whole text for one special token after another, the longest first. This code finds in one
//! pass all places where special tokens begin, and then cuts the tokens in the same order out of the ranges that are
//! still free. If the special tokens begin with few different bytes, as most do with `<`, the pass searches only for
//! those bytes.

use std::collections::BTreeMap;
use std::ops::Range;

use aho_corasick::{AhoCorasick, AhoCorasickKind, Anchored, Input, MatchKind, StartKind};
use warmpath_common::ids::Token;

use crate::cancel::end_if_cancelled;

/// Places in a text between two checks whether the request was cancelled.
///
/// Units: places. Source: a search of the ordered ranges takes some 100 ns, so this many take the ten milliseconds of
/// `cancel::unless_cancelled`.
const PLACES_PER_CHECK: usize = 1 << 16;

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
    /// Special tokens in the order of llama.cpp's search: none is longer than those before it.
    specials: Vec<Special>,
    /// For each special token, the longest shorter one with which its text begins.
    shorter: Vec<Option<usize>>,
    pass: Pass,
}

/// The pass that finds the places where special tokens begin in a text.
#[derive(Debug)]
enum Pass {
    /// The vocabulary has none.
    Nothing,
    /// The special tokens begin with these bytes; the automaton runs only where one of the bytes occurs.
    Starts { bytes: [u8; 3], automaton: AhoCorasick },
    /// The special tokens begin with many different bytes, so the automaton reads every byte.
    Whole(AhoCorasick),
}

/// A text while special tokens are cut out of it.
struct Cutting<'t> {
    text: &'t [u8],
    /// Ranges between the special tokens that were cut out, by their starts: each range's end. None is empty.
    free: BTreeMap<usize, usize>,
    /// Special tokens that were cut out, each with its start.
    cut_out: Vec<(usize, Piece)>,
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

    /// Calls `report` with each place where special tokens begin in `text`, from the left, and the longest one there.
    ///
    /// Cost: O(n) and one step for each special token at each place; `Whole` takes four bytes per byte of `text`.
    fn each(&self, text: &[u8], mut report: impl FnMut(usize, usize)) {
        let mut check = checks();
        match self {
            Self::Nothing => {}
            Self::Starts { bytes: [a, b, c], automaton } => {
                for start in memchr::memchr3_iter(*a, *b, *c, text) {
                    check();
                    let here = Input::new(text).range(start..).anchored(Anchored::Yes);
                    if let Some(longest) = automaton.find(here) {
                        report(start, longest.pattern().as_usize());
                    }
                }
            }
            Self::Whole(automaton) => {
                // Occurrences come in the order of their ends, so the longest one at a place comes last. Of equal
                // special tokens llama.cpp finds the first, which has the lowest index.
                let mut longest = vec![u32::MAX; text.len()];
                for occurrence in automaton.find_overlapping_iter(text) {
                    check();
                    let longest = &mut longest[occurrence.start()];
                    *longest = occurrence.pattern().as_u32().min(*longest);
                }
                for (start, special_idx) in longest.into_iter().enumerate() {
                    if special_idx != u32::MAX {
                        report(start, special_idx as usize);
                    }
                }
            }
        }
    }
}

/// Returns a function to call at each place in a text; it ends the work of a cancelled request.
fn checks() -> impl FnMut() {
    let mut n_places = 0_usize;
    move || {
        if n_places.is_multiple_of(PLACES_PER_CHECK) {
            end_if_cancelled();
        }
        n_places += 1;
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
        let (shorter, pass) = (shorter(&texts), Pass::new(&texts));
        Self { specials, shorter, pass }
    }

    /// Returns the special tokens that only a template may write.
    pub fn controls(&self) -> impl Iterator<Item = &Special> {
        self.specials.iter().filter(|special| special.control)
    }

    /// Cuts `text` at every special token, control tokens included. The work of a cancelled request ends early.
    ///
    /// Cost: the pass, and O(m log m) for m places where special tokens begin.
    /// Source: llama.cpp's `tokenizer_st_partition`.
    pub fn partition(&self, text: &[u8]) -> Vec<Piece> {
        let mut places: BTreeMap<usize, Vec<usize>> = BTreeMap::new();
        self.pass.each(text, |start, special_idx| places.entry(special_idx).or_default().push(start));
        let mut cutting = Cutting::new(text);
        let mut check = checks();
        // A place waits for its longest special token. If that does not fit in what longer ones have left free, the
        // place waits for the next shorter one that fits, which is later in llama.cpp's order.
        while let Some((special_idx, mut starts)) = places.pop_first() {
            // The places that longer tokens have left are behind the token's own; this sort merges sorted runs.
            starts.sort();
            for start in starts {
                check();
                let Some(free_range) = cutting.free_around(start) else { continue };
                match self.longest_within(free_range.end - start, special_idx) {
                    Some(fitting) if fitting == special_idx => {
                        cutting.cut(free_range, start, &self.specials[special_idx])
                    }
                    Some(fitting) => places.entry(fitting).or_default().push(start),
                    None => {}
                }
            }
        }
        cutting.into_pieces()
    }

    /// Returns the longest special token of at most `bytes_max` bytes with which the text of another one begins; that
    /// one itself if it is short enough.
    fn longest_within(&self, bytes_max: usize, special_idx: usize) -> Option<usize> {
        let mut from_longest = std::iter::successors(Some(special_idx), |&special_idx| self.shorter[special_idx]);
        from_longest.find(|&special_idx| self.specials[special_idx].text.len() <= bytes_max)
    }
}

/// Returns for each of `texts` the longest shorter one with which it begins; of equal ones, the first.
fn shorter(texts: &[&[u8]]) -> Vec<Option<usize>> {
    let mut by_text: Vec<usize> = (0..texts.len()).collect();
    by_text.sort_by_key(|&idx| texts[idx]);
    let mut shorter = vec![None; texts.len()];
    // The last text and before it, the shortest first, those with which it begins: they are sorted before it.
    let mut beginnings: Vec<usize> = Vec::new();
    for idx in by_text {
        while beginnings.last().is_some_and(|&beginning| !texts[idx].starts_with(texts[beginning])) {
            beginnings.pop();
        }
        let beginning = beginnings.last().copied();
        if beginning.is_none_or(|beginning| texts[beginning] != texts[idx]) {
            shorter[idx] = beginning;
            beginnings.push(idx);
        }
    }
    shorter
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
    let searcher = AhoCorasick::builder().match_kind(kind).kind(automaton).prefilter(prefilter).build(texts).ok();
    searcher.filter(|_| !texts.is_empty())
}

/// Returns an automaton that finds the longest of `texts` that begins at a position.
fn anchored(texts: &[&[u8]]) -> Option<AhoCorasick> {
    let builder = &mut AhoCorasick::builder();
    builder.match_kind(MatchKind::LeftmostLongest).start_kind(StartKind::Anchored).prefilter(false);
    builder.build(texts).ok()
}

impl<'t> Cutting<'t> {
    fn new(text: &'t [u8]) -> Self {
        let range = (!text.is_empty()).then_some((0, text.len()));
        Self { text, free: range.into_iter().collect(), cut_out: Vec::new() }
    }

    /// Returns the free range that contains a position.
    fn free_around(&self, at: usize) -> Option<Range<usize>> {
        let (&start, &end) = self.free.range(..=at).next_back()?;
        (at < end).then_some(start..end)
    }

    /// Cuts a special token that begins at `start` out of a free range.
    fn cut(&mut self, free_range: Range<usize>, start: usize, special: &Special) {
        let (mut left, mut right) = (free_range.start..start, start + special.text.len()..free_range.end);
        if special.lstrip {
            left.end -= self.text[left.clone()].iter().rev().take_while(|byte| is_space(**byte)).count();
        }
        if special.rstrip {
            right.start += self.text[right.clone()].iter().take_while(|byte| is_space(**byte)).count();
        }
        self.free.remove(&free_range.start);
        for range in [left, right] {
            if !range.is_empty() {
                self.free.insert(range.start, range.end);
            }
        }
        self.cut_out.push((start, Piece::Special { token: special.token, control: special.control }));
    }

    /// Returns the special tokens and the text between them, in the order of the text.
    fn into_pieces(self) -> Vec<Piece> {
        let mut pieces = self.cut_out;
        pieces.extend(self.free.into_iter().map(|(start, end)| (start, Piece::Text(start..end))));
        pieces.sort_unstable_by_key(|(start, _)| *start);
        pieces.into_iter().map(|(_, piece)| piece).collect()
    }
}

/// Returns C's `isspace` in the C locale.
fn is_space(byte: u8) -> bool {
    matches!(byte, b' ' | b'\t' | b'\n' | 0x0b | 0x0c | b'\r')
}

#[cfg(test)]
mod tests;
