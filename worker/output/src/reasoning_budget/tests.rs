//! Tests of the bound of reasoning: which tokens it forces, and when.

use proptest::prelude::*;

use super::*;

const CLOSING: [Token; 3] = [900, 901, 902];

fn bound(tokens_max: u32, begun: Begun) -> ReasoningBound {
    let marks = ReasoningMarks { start: "<think>".to_owned(), ends: vec!["</think>".to_owned(), "<call>".to_owned()] };
    ReasoningBound { tokens_max, marks, opening: "<|im|>assistant".to_owned(), closing: CLOSING.into(), begun }
}

/// Returns the text of a token of [`CLOSING`].
fn closing_text(token: Token) -> &'static str {
    ["Enough.", "</thi", "nk>"][token as usize - 900]
}

/// Returns a response's text: the model writes `pieces` where it may, and nothing more.
fn answer(bound: ReasoningBound, pieces: &[&str]) -> String {
    let bytes: Vec<&[u8]> = pieces.iter().map(|piece| piece.as_bytes()).collect();
    String::from_utf8(answer_bytes(bound, &bytes)).expect("text")
}

fn answer_bytes(bound: ReasoningBound, pieces: &[&[u8]]) -> Vec<u8> {
    let mut budget = ReasoningBudget::new(bound);
    let (mut text, mut pieces) = (Vec::new(), pieces.iter());
    loop {
        let (token, piece) = match budget.forced() {
            Some(token) => (token, closing_text(token).as_bytes()),
            None => match pieces.next() {
                Some(piece) => (1, *piece),
                None => return text,
            },
        };
        budget.push(token, piece);
        text.extend_from_slice(piece);
    }
}

#[track_caller]
fn check((tokens_max, begun): (u32, Begun), pieces: &[&str], expected: &str) {
    assert_eq!(answer(bound(tokens_max, begun), pieces), expected, "{tokens_max} {begun:?} {pieces:?}");
}

#[test]
fn reasoning_is_closed_at_the_bound() {
    let begun = Begun::Reasoning;
    check((0, begun), &["a"], "Enough.</think>a");
    check((1, begun), &["a", "b"], "aEnough.</think>b");
    check((4, begun), &["a", "b", "c", "d", "e"], "abcdEnough.</think>e");
    check((4, begun), &["a", "b", "</think>", "c", "d", "e"], "ab</think>cde");
    check((4, begun), &["a", "b", "c", "d</think>", "e"], "abcd</think>e");
    check((2, begun), &["a", "<ca", "ll>", "d"], "a<caEnough.</think>ll>d");
    check((4, begun), &["a", "<ca", "ll>", "d", "e", "f"], "a<call>def");
}

#[test]
fn reasoning_begins_with_the_response_or_behind_reasoning_or_where_an_answer_opens() {
    let begun = Begun::Nothing;
    check((1, begun), &["\n", "<th", "ink>", "a", "b"], "\n<think>aEnough.</think>b");
    check((0, begun), &["<think>", "a"], "<think>Enough.</think>a");
    // The token that opens the reasoning is not counted.
    check((1, begun), &["<think>ab", "c", "d"], "<think>abcEnough.</think>d");
    check((0, begun), &["<think>a</think>", "b"], "<think>a</think>b");
    // All parts of the reasoning share the bound.
    check(
        (2, begun),
        &["<think>", "a", "</think>", "\n\n<think>", "b", "c"],
        "<think>a</think>\n\n<think>bEnough.</think>c",
    );
    let again = &["<think>", "a", "b", "<|im|>assis", "tant\n<think>", "c"];
    check((1, begun), again, "<think>aEnough.</think>b<|im|>assistant\n<think>Enough.</think>c");
    // In content, the mark is text.
    check((0, begun), &["Write ", "<think>", " first"], "Write <think> first");
    check((0, begun), &["<thing>", "<think>", "a"], "<thing><think>a");
    check((0, begun), &["<think>", "b", " <think>", "c"], "<think>Enough.</think>b <think>c");
    check((0, Begun::Content), &["<think>", "a"], "<think>a");
}

#[test]
fn a_message_that_closes_the_reasoning_ends_the_forced_tokens() {
    let mut bound = bound(0, Begun::Reasoning);
    bound.marks.ends.push("Enough.".to_owned());
    assert_eq!(answer(bound, &["a"]), "Enough.a");
}

#[test]
fn a_character_is_never_cut_and_bytes_that_complete_none_are_not_awaited() {
    let begun = Begun::Reasoning;
    let cut = |pieces: &[&[u8]]| {
        let text = answer_bytes(bound(1, begun), pieces);
        text.windows(7).position(|window| window == b"Enough.").expect("it is closed")
    };
    assert_eq!(cut(&["ä".as_bytes(), b"b"]), 2);
    assert_eq!(cut(&[b"\xE2", b"\x82", b"\xAC", b"b"]), 3);
    assert_eq!(cut(&[b"\xF0\x9F", b"\x98", b"\x80", b"b"]), 4);
    assert_eq!(cut(&[b"\xF0", b"\x9F", b"\x98", b"\x80", b"b"]), 4);
    assert_eq!(cut(&[b"\xE2", b"b", b"c"]), 2);
    assert_eq!(cut(&[b"\x82", b"b", b"c"]), 1);
    assert_eq!(cut(&[b"\xFF", b"b", b"c"]), 1);
    assert_eq!(cut(&[b"\xE2".as_slice(); 9]), 4);
}

#[test]
fn tokens_of_a_worker_with_another_bound_are_counted() {
    let mut budget = ReasoningBudget::new(bound(1, Begun::Reasoning));
    for (token, piece) in [(1, "a"), (1, "b"), (900, "Enough."), (1, "c")] {
        budget.push(token, piece.as_bytes());
        assert_eq!(budget.forced(), Some(if token == 900 { 901 } else { 900 }), "{piece}");
    }
    budget.push(1, b"</think>");
    assert_eq!(budget.forced(), None);
}

#[test]
fn the_end_of_a_prompt_tells_what_it_has_begun() {
    let ReasoningBound { marks, opening, .. } = bound(0, Begun::Nothing);
    for (text, expected) in [
        ("", Begun::Nothing),
        ("<|im|>assistant\n", Begun::Nothing),
        ("<|im|>assistant\n<think>\n", Begun::Reasoning),
        ("<|im|>assistant\n<think>\nI think", Begun::Reasoning),
        ("<|im|>assistant\n<think>\n\n</think>\n\n", Begun::Nothing),
        ("<|im|>assistant\n<think>\n\n</think>\n\nIt is", Begun::Content),
        ("<|im|>assistant\nIt is", Begun::Content),
        ("A <think> in a question<|im|>assistant\n", Begun::Nothing),
        ("A text without a turn", Begun::Nothing),
        ("A text <think>", Begun::Reasoning),
    ] {
        assert_eq!(Begun::of(text, &marks, &opening), expected, "{text}");
    }
}

proptest! {
    /// Wherever a response continues on another worker, the same tokens are forced.
    #[test]
    fn the_count_depends_on_the_tokens_only(
        tokens_max in 0_u32..6,
        pieces in proptest::collection::vec(
            proptest::sample::select(vec!["<think>", "</think>", "<th", "ink>", "a", " ", "é", "<|im|>assistant", "<call>"]),
            0..24,
        ),
    ) {
        let mut whole = ReasoningBudget::new(bound(tokens_max, Begun::Nothing));
        let (mut said, mut n_thought, mut longest) = (Vec::new(), 0, 0);
        for piece in pieces {
            let (token, piece) = whole.forced().map_or((1, piece), |token| (token, closing_text(token)));
            let is_thought = matches!(whole.state, State::Within { .. });
            whole.push(token, piece.as_bytes());
            n_thought += u32::from(is_thought);
            longest = longest.max(whole.text.len());
            said.push((token, piece));
            let mut again = ReasoningBudget::new(bound(tokens_max, Begun::Nothing));
            said.iter().for_each(|(token, piece)| again.push(*token, piece.as_bytes()));
            prop_assert_eq!(again.forced(), whole.forced());
        }
        // The token that closes the reasoning is not counted.
        let n_closed = said.iter().filter(|(_, piece)| ["</think>", "<call>", "ink>"].contains(piece)).count();
        prop_assert!(n_thought <= tokens_max + u32::try_from(n_closed).unwrap(), "{:?}", said);
        prop_assert!(longest <= 32, "the text is not kept");
    }
}
