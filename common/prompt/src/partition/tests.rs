//! Tests of cutting texts at special tokens.

use proptest::prelude::*;

use super::*;

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

/// Partitions like llama.cpp, without the pass that skips absent tokens.
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

proptest! {
    #[test]
    fn partitions_are_those_of_the_naive_search(
        texts in prop_oneof![
            prop::collection::btree_set("[ab <]{1,4}", 0..6),
            // For these tokens only first bytes are searched.
            prop::collection::btree_set("<[ab <]{0,3}", 0..6),
        ],
        strips in prop::collection::vec(any::<(bool, bool)>(), 6),
        text in "[ab <\\n]{0,30}",
    ) {
        let with = |(idx, text): (usize, &String)| {
            let (lstrip, rstrip) = strips[idx];
            Special { lstrip, rstrip, ..special(idx as Token, text) }
        };
        let specials: Vec<Special> = texts.iter().enumerate().map(with).collect();
        let cut = Partitioner::new(specials.clone()).partition(text.as_bytes());
        prop_assert_eq!(cut, naive(&specials, text.as_bytes()));
    }
}
