//! Text output against the same rules applied to the whole answer at once.

use proptest::prelude::*;

use super::*;

/// Returns what an answer of these bytes says, and the stop text that ends it, by looking at the whole of it.
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

fn run(pieces: &[&[u8]], stops: &[&str]) -> (Vec<String>, String, Option<String>) {
    let mut output = Output::new(stops.iter().map(|stop| (*stop).to_owned()).collect());
    let texts = pieces.iter().map(|piece| output.push(piece)).collect();
    let rest = output.finish();
    (texts, rest, output.stop_text().map(str::to_owned))
}

#[test]
fn holds_bytes_back_until_they_make_a_character() {
    let (texts, rest, _) = run(&[b"a\xF0\x9F", b"\x98", b"\x80b"], &[]);
    assert_eq!((texts, rest), (vec!["a".to_owned(), String::new(), "😀b".to_owned()], String::new()));
}

#[test]
fn shows_what_never_becomes_a_character() {
    let (texts, rest, _) = run(&[b"a\xFF", b"b\xF0\x9F"], &[]);
    assert_eq!((texts, rest), (vec!["a\u{FFFD}".to_owned(), "b".to_owned()], "\u{FFFD}".to_owned()));
}

#[test]
fn a_stop_text_across_tokens_never_leaves() {
    let (texts, rest, stop) = run(&[b"one ST", b"OP two"], &["STOP"]);
    assert_eq!((texts, rest), (vec!["one ".to_owned(), String::new()], String::new()));
    assert_eq!(stop.as_deref(), Some("STOP"));
}

#[test]
fn text_that_only_began_like_a_stop_text_comes_out() {
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
fn an_empty_stop_text_stops_nothing() {
    assert_eq!(run(&[b"abc"], &[""]), (vec!["abc".to_owned()], String::new(), None));
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 4096, ..ProptestConfig::default() })]

    #[test]
    fn gives_what_a_look_at_the_whole_gives(
        parts in prop::collection::vec(prop::sample::select(vec![
            b"a".as_slice(), b"b", b"ab", "é".as_bytes(), b"\xC3", b"\xA9", b"\xF0\x9F", "😀".as_bytes(), b"\xFF", b"",
        ]), 0..12),
        cuts in prop::collection::vec(0_usize..40, 0..8),
        stops in prop::collection::vec("[abé\u{FFFD}]{0,3}", 0..4),
    ) {
        let bytes = parts.concat();
        let mut cuts: Vec<usize> = cuts.into_iter().map(|cut| cut.min(bytes.len())).chain([0, bytes.len()]).collect();
        cuts.sort_unstable();
        let mut output = Output::new(stops.clone());
        let mut text = String::new();
        for pair in cuts.windows(2) {
            text.push_str(&output.push(&bytes[pair[0]..pair[1]]));
            prop_assert!(output.n_out() == text.len() && output.n_out() <= output.n_taken());
        }
        text.push_str(&output.finish());
        prop_assert_eq!(output.n_out(), text.len());
        let (expected, stop) = naive(&bytes, &stops);
        prop_assert_eq!(text, expected);
        prop_assert_eq!(output.stop_text().map(str::to_owned), stop);
    }
}
