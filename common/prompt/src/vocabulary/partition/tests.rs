//! Tests of cutting texts at special tokens.

use std::cell::Cell;
use std::rc::Rc;

use proptest::prelude::*;

use super::*;
use crate::cancel::unless_cancelled;

fn special(token: Token, text: &str) -> Special {
    Special { token, text: text.as_bytes().to_vec(), control: true, lstrip: false, rstrip: false }
}

/// Formats pieces as `<id>` and text.
fn shown(specials: Vec<Special>, text: &str) -> Vec<String> {
    let pieces = Partitioner::new(specials).partition(text.as_bytes());
    let show = |piece: &Piece| match piece {
        Piece::Special { token, .. } => format!("<{token}>"),
        Piece::Text(range) => text[range.clone()].to_owned(),
        Piece::Media(_) => unreachable!("a text alone has none"),
    };
    pieces.iter().map(show).collect()
}

#[test]
fn the_longest_token_is_cut_first_wherever_it_is() {
    let specials = vec![special(1, "abc"), special(2, "cdefg"), special(3, "b")];
    assert_eq!(shown(specials, "abcdefg abc"), ["a", "<3>", "<2>", " ", "<1>"]);
}

#[test]
fn tokens_at_both_ends_leave_no_empty_text() {
    assert_eq!(shown(vec![special(1, "<s>")], "<s><s>x<s>"), ["<1>", "<1>", "x", "<1>"]);
    assert_eq!(shown(vec![special(1, "<s>")], ""), [""; 0]);
    assert_eq!(shown(vec![], "text"), ["text"]);
}

#[test]
fn tokens_with_a_strip_flag_absorb_the_space_beside_them() {
    let strip = Special { lstrip: true, rstrip: true, ..special(1, "<m>") };
    assert_eq!(shown(vec![strip.clone(), special(2, "<s>")], "a \n<m>\t <s> b"), ["a", "<1>", "<2>", " b"]);
    assert_eq!(shown(vec![strip], "  <m>  "), ["<1>"]);
}

#[test]
fn overlapping_occurrences_of_one_token_are_cut_from_the_left_of_each_range() {
    assert_eq!(shown(vec![special(1, "aa")], "aaa"), ["<1>", "a"]);
    assert_eq!(shown(vec![special(1, "baa"), special(2, "aa")], "baaaa"), ["<1>", "<2>"]);
    assert_eq!(shown(vec![special(1, "xbaa"), special(2, "aa")], "aaxbaaaaa"), ["<2>", "<1>", "<2>", "a"]);
    let strip = Special { rstrip: true, ..special(1, "x") };
    assert_eq!(shown(vec![strip, special(2, " ")], "x  a "), ["<1>", "a", "<2>"]);
}

#[test]
fn a_token_that_does_not_fit_between_longer_ones_leaves_its_place_to_a_shorter_one() {
    let specials = vec![special(1, "xyz12"), special(2, "abxy"), special(3, "abx"), special(4, "ab")];
    assert_eq!(shown(specials, "abxyz12abxy"), ["<4>", "<1>", "<2>"]);
    let strip = Special { lstrip: true, ..special(1, "<m>") };
    assert_eq!(shown(vec![strip, special(2, "a "), special(3, "a")], "a <m>a "), ["<3>", "<1>", "<2>"]);
}

#[test]
fn of_equal_tokens_the_first_is_cut() {
    assert_eq!(shown(vec![special(1, "ab"), special(2, "ab"), special(3, "abc")], "ababc"), ["<1>", "<3>"]);
    let specials = vec![special(1, "ab"), special(2, "ab"), special(3, "abc"), special(4, "cd!x")];
    assert_eq!(shown(specials, "abcd!xababc"), ["<1>", "<4>", "<1>", "<3>"]);
}

#[test]
fn a_long_text_of_many_tokens_is_cut_in_one_pass() {
    // As in Gemma 3. A pass over all pieces for each token would move a piece 600 million times.
    const N_SPECIALS: Token = 6_000;
    const N_OCCURRENCES: Token = 100_000;
    let unused = |token: Token| format!("<unused{token}>");
    let specials = (0..N_SPECIALS).map(|token| special(token, &unused(token))).collect();
    let occurrences = || (0..N_OCCURRENCES).map(|idx| idx % N_SPECIALS);
    let text: String = occurrences().map(|token| format!("{}some text", unused(token))).collect();
    let pieces = Partitioner::new(specials).partition(text.as_bytes());
    assert_eq!(pieces.len(), 2 * N_OCCURRENCES as usize);
    let tokens = pieces.iter().filter_map(|piece| match piece {
        Piece::Special { token, .. } => Some(*token),
        Piece::Text(_) | Piece::Media(_) => None,
    });
    assert!(tokens.eq(occurrences()));
}

/// Returns tokens for 1 to 31 line ends, like Gemma 3's.
fn line_ends() -> impl Iterator<Item = Special> {
    (1..=31).map(|n| special(n, &"\n".repeat(n as usize)))
}

/// Returns tokens that begin with four different bytes, so that the pass reads every byte.
fn four_starts() -> impl Iterator<Item = Special> {
    ["\u{1}", "\u{2}", "\u{3}", "\u{4}"].into_iter().zip(100..).map(|(text, token)| special(token, text))
}

#[test]
fn a_long_run_is_cut_into_its_longest_tokens_by_both_passes() {
    const N_LONGEST: usize = 3_000;
    let text = "\n".repeat(31 * N_LONGEST + 7);
    for specials in [line_ends().collect(), line_ends().chain(four_starts()).collect::<Vec<_>>()] {
        let pieces = Partitioner::new(specials).partition(text.as_bytes());
        let (last, others) = pieces.split_last().unwrap();
        assert_eq!((others.len(), last), (N_LONGEST, &Piece::Special { token: 7, control: true }));
        assert!(others.iter().all(|piece| *piece == Piece::Special { token: 31, control: true }));
    }
}

#[test]
fn a_cancelled_text_is_not_cut_to_its_end() {
    // Two checks while its places are found, then two while they are cut.
    let text = "a".repeat(2 * PLACES_PER_CHECK);
    for specials in [vec![special(1, "a")], four_starts().chain([special(1, "a")]).collect()] {
        let partitioner = Partitioner::new(specials);
        for cancelled_at in 1..=4 {
            let n_checks = Rc::new(Cell::new(0));
            let counted = Rc::clone(&n_checks);
            let is_cancelled = move || {
                counted.set(counted.get() + 1);
                counted.get() == cancelled_at
            };
            assert_eq!(unless_cancelled(is_cancelled, || partitioner.partition(text.as_bytes())), None);
            assert_eq!(n_checks.get(), cancelled_at);
        }
    }
}

/// Partitions like llama.cpp, in a list of which one piece after another is replaced.
fn naive(specials: &[Special], text: &[u8]) -> Vec<Piece> {
    let mut ordered: Vec<&Special> = specials.iter().collect();
    ordered.sort_by_key(|special| std::cmp::Reverse(special.text.len()));
    let mut pieces = vec![Piece::Text(0..text.len())];
    for special in ordered {
        let mut idx = 0;
        while idx < pieces.len() {
            let Piece::Text(range) = pieces[idx].clone() else {
                idx += 1;
                continue;
            };
            let found = text[range.clone()].windows(special.text.len()).position(|window| window == special.text);
            let Some(at) = found.map(|at| at + range.start) else {
                idx += 1;
                continue;
            };
            let mut replaced = vec![Piece::Special { token: special.token, control: special.control }];
            let (mut left, mut right) = (range.start..at, at + special.text.len()..range.end);
            while special.lstrip && !left.is_empty() && is_space(text[left.end - 1]) {
                left.end -= 1;
            }
            while special.rstrip && !right.is_empty() && is_space(text[right.start]) {
                right.start += 1;
            }
            if !left.is_empty() {
                replaced.insert(0, Piece::Text(left));
            }
            if !right.is_empty() {
                replaced.push(Piece::Text(right));
            }
            idx += replaced.iter().position(|piece| matches!(piece, Piece::Special { .. })).unwrap_or(0) + 1;
            let at = pieces.iter().position(|piece| *piece == Piece::Text(range.clone())).unwrap();
            pieces.splice(at..=at, replaced);
        }
    }
    pieces.retain(|piece| !matches!(piece, Piece::Text(range) if range.is_empty()));
    pieces
}

/// Partitions by going through all pieces for each token.
fn token_by_token(specials: &[Special], text: &[u8]) -> Vec<Piece> {
    let mut ordered: Vec<&Special> = specials.iter().collect();
    ordered.sort_by_key(|special| std::cmp::Reverse(special.text.len()));
    let mut pieces = Vec::new();
    if !text.is_empty() {
        pieces.push(Piece::Text(0..text.len()));
    }
    for special in ordered {
        let mut next = Vec::new();
        for piece in pieces {
            match piece {
                Piece::Text(range) => cut_range((text, range), special, &mut next),
                special => next.push(special),
            }
        }
        pieces = next;
    }
    pieces
}

/// Cuts a range of a text at every occurrence of one special token, from the left.
fn cut_range((text, mut range): (&[u8], Range<usize>), special: &Special, pieces: &mut Vec<Piece>) {
    while let Some(at) = memchr::memmem::find(&text[range.clone()], &special.text) {
        let start = range.start + at;
        let mut left = range.start..start;
        if special.lstrip {
            left.end -= text[left.clone()].iter().rev().take_while(|byte| is_space(**byte)).count();
        }
        if !left.is_empty() {
            pieces.push(Piece::Text(left));
        }
        pieces.push(Piece::Special { token: special.token, control: special.control });
        range.start = start + special.text.len();
        if special.rstrip {
            range.start += text[range.clone()].iter().take_while(|byte| is_space(**byte)).count();
        }
    }
    if !range.is_empty() {
        pieces.push(Piece::Text(range));
    }
}

/// Returns texts of special tokens: with many first bytes, runs of one byte, and with one first byte.
fn special_texts() -> impl Strategy<Value = Vec<String>> {
    prop_oneof![
        prop::collection::vec("[abcd <]{1,4}", 0..12),
        prop::collection::vec("[ab]{1,6}", 0..12),
        prop::collection::vec("<[ab <]{0,3}", 0..12),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2_000))]

    #[test]
    fn partitions_are_those_of_the_naive_searches(
        texts in special_texts(),
        strips in prop::collection::vec(any::<(bool, bool)>(), 12),
        text in prop_oneof!["[abcd <\\n]{0,60}", "[ab <]{0,60}", "[ab]{0,40}"],
    ) {
        let with = |(idx, text): (usize, &String)| {
            let (lstrip, rstrip) = strips[idx];
            Special { lstrip, rstrip, ..special(idx as Token, text) }
        };
        let specials: Vec<Special> = texts.iter().enumerate().map(with).collect();
        let expected = naive(&specials, text.as_bytes());
        prop_assert_eq!(&token_by_token(&specials, text.as_bytes()), &expected);
        let cut = |specials: Vec<Special>| Partitioner::new(specials).partition(text.as_bytes());
        prop_assert_eq!(&cut(specials.clone()), &expected);
        prop_assert_eq!(&cut(specials.into_iter().chain(four_starts()).collect()), &expected);
    }
}
