//! Text output, compared with the same rules applied to the whole response.

use proptest::prelude::*;

use super::*;

/// Returns the text of a response and the stop text that ends it, found in the whole response.
fn naive(bytes: &[u8], stops: &[String]) -> (String, Option<String>) {
    let text = String::from_utf8_lossy(bytes);
    let ends = text.char_indices().map(|(at, c)| at + c.len_utf8());
    for end in ends {
        let ending = stops.iter().filter(|stop| !stop.is_empty() && text[..end].ends_with(stop.as_str()));
        if let Some(stop) = ending.max_by_key(|stop| stop.len()) {
            return (text[..end - stop.len()].to_owned(), Some(stop.clone()));
        }
    }
    (text.into_owned(), None)
}

/// Returns the length of the text up to the first later line with fewer than `n_least` blanks, these included.
fn naive_indented(text: &str, n_least: usize) -> usize {
    let mut place = 0;
    for (idx, line) in text.split('\n').enumerate() {
        let n_blanks = line.len() - line.trim_start_matches([' ', '\t']).len();
        let is_open = place + n_blanks == text.len();
        if idx > 0 && n_blanks < n_least && !is_open {
            return place + n_blanks;
        }
        place += line.len() + 1;
    }
    text.len()
}

fn run(pieces: &[&[u8]], stops: &[&str]) -> (Vec<String>, String, Option<String>) {
    let mut output = Output::new(stops.iter().map(|stop| (*stop).to_owned()).collect());
    let texts = pieces.iter().map(|piece| output.push(piece)).collect();
    let rest = output.finish();
    (texts, rest, output.stop_text().map(str::to_owned))
}

#[test]
fn withholds_bytes_until_they_complete_a_character() {
    let (texts, rest, _) = run(&[b"a\xF0\x9F", b"\x98", b"\x80b"], &[]);
    assert_eq!((texts, rest), (vec!["a".to_owned(), String::new(), "😀b".to_owned()], String::new()));
}

#[test]
fn invalid_bytes_become_replacement_characters() {
    let (texts, rest, _) = run(&[b"a\xFF", b"b\xF0\x9F"], &[]);
    assert_eq!((texts, rest), (vec!["a\u{FFFD}".to_owned(), "b".to_owned()], "\u{FFFD}".to_owned()));
}

#[test]
fn a_stop_text_across_tokens_is_never_returned() {
    let (texts, rest, stop) = run(&[b"one ST", b"OP two"], &["STOP"]);
    assert_eq!((texts, rest), (vec!["one ".to_owned(), String::new()], String::new()));
    assert_eq!(stop.as_deref(), Some("STOP"));
}

#[test]
fn text_that_only_begins_like_a_stop_text_is_returned() {
    let (texts, rest, stop) = run(&[b"a STO", b"NE", b" ST"], &["STOP"]);
    assert_eq!((texts.concat(), rest.as_str(), stop), ("a STONE ".to_owned(), "ST", None));
}

#[test]
fn the_stop_text_that_ends_first_counts() {
    assert_eq!(run(&[b"abcde"], &["bcd", "c"]).2.as_deref(), Some("c"));
    assert_eq!(run(&[b"abcde"], &["c", "abc"]).2.as_deref(), Some("abc"));
}

#[test]
fn nothing_follows_a_stop_text() {
    let mut output = Output::new(vec!["x".to_owned()]);
    assert_eq!(output.push(b"axb"), "a");
    assert_eq!((output.push(b"c"), output.finish()), (String::new(), String::new()));
}

#[test]
fn a_line_that_is_indented_too_little_ends_the_text() {
    let check = |pieces: &[&str], n_least: u32, expected: &str| {
        let mut output = Output::new(vec!["}\n".to_owned()]).indented(n_least);
        let mut text: String = pieces.iter().map(|piece| output.push(piece.as_bytes())).collect();
        text.push_str(&output.finish());
        assert_eq!((text.as_str(), output.is_outdented()), (expected, expected != pieces.concat()), "{pieces:?}");
    };
    check(&["x\n", "  y", "\n z"], 2, "x\n  y\n ");
    check(&["x\n \t", "y\n", "  "], 2, "x\n \ty\n  ");
    check(&["x\n\n  y"], 1, "x\n");
    check(&["x\ny"], 0, "x\ny");
    let mut output = Output::new(vec!["\n\n".to_owned()]).indented(1);
    assert_eq!((output.push(b"x\n\ny"), output.stop_text()), ("x".to_owned(), Some("\n\n")));
}

#[test]
fn an_empty_stop_text_has_no_effect() {
    assert_eq!(run(&[b"abc"], &[""]), (vec!["abc".to_owned()], String::new(), None));
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 4096, ..ProptestConfig::default() })]

    #[test]
    fn gives_the_same_text_as_for_the_whole_response(
        parts in prop::collection::vec(prop::sample::select(vec![
            b"a".as_slice(), b"b", b"ab", b"\n", b" ", "é".as_bytes(), b"\xC3", b"\xA9", b"\xF0\x9F", "😀".as_bytes(), b"\xFF", b"",
        ]), 0..12),
        cuts in prop::collection::vec(0_usize..40, 0..8),
        stops in prop::collection::vec("[ab\n é\u{FFFD}]{0,3}", 0..4),
        n_least in 0_u32..3,
    ) {
        let bytes = parts.concat();
        let mut cuts: Vec<usize> = cuts.into_iter().map(|cut| cut.min(bytes.len())).chain([0, bytes.len()]).collect();
        cuts.sort_unstable();
        let mut output = Output::new(stops.clone()).indented(n_least);
        let mut text = String::new();
        for pair in cuts.windows(2) {
            text.push_str(&output.push(&bytes[pair[0]..pair[1]]));
            prop_assert!(output.n_out() == text.len() && output.n_out() <= output.n_taken());
        }
        text.push_str(&output.finish());
        prop_assert_eq!(output.n_out(), text.len());
        // The next character shows that a line has too little indentation, so the text up to it decides.
        let whole = String::from_utf8_lossy(&bytes).into_owned();
        let n_left = naive_indented(&whole, n_least as usize);
        let shown = whole.ceil_char_boundary(n_left + 1).min(whole.len());
        let (mut expected, stop) = naive(&whole.as_bytes()[..shown], &stops);
        if stop.is_none() {
            expected.truncate(n_left);
        }
        prop_assert_eq!(text, expected);
        prop_assert_eq!(output.is_outdented(), stop.is_none() && n_left < whole.len());
        prop_assert_eq!(output.stop_text().map(str::to_owned), stop);
    }
}
