//! Places where a text may be cut: between a word's end and the space behind it.
//!
//! Byte-pair encoding only produces tokens of its vocabulary. If no token contains a word's end followed by a space,
//! none reaches across such a place, so a text can be cut there and its portions can be tokenized one by one.

/// Returns whether a token's spelling, as the vocabulary writes it, allows cuts between a word's end and a space.
///
/// Shape: `spelling` has spaces as they are, or the character that byte-level and SentencePiece vocabularies write for
/// a space.
pub(crate) fn allows_cuts(spelling: &[u8]) -> bool {
    let is_space = |bytes: &[u8]| [" ".as_bytes(), "Ġ".as_bytes(), "▁".as_bytes()].iter().any(|s| bytes.starts_with(s));
    !spelling.iter().enumerate().any(|(at, byte)| ends_word(*byte) && is_space(&spelling[at + 1..]))
}

/// Returns whether a token with this spelling may end or begin where a text is cut, the space of the cut included.
pub(crate) fn may_adjoin_cut(spelling: &[u8]) -> bool {
    let begins_there = |byte: &u8| *byte == b' ' || byte.is_ascii_alphabetic();
    let is_escaped_space = spelling.starts_with("▁".as_bytes());
    is_escaped_space
        || spelling.first().is_some_and(begins_there)
        || spelling.last().is_some_and(|byte| ends_word(*byte))
}

/// Returns whether a word may end with this byte; a text is cut after it if a space and a letter follow.
fn ends_word(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b".,;:!?)\"'".contains(&byte)
}

/// Returns the shortest prefix of a text, of at least this many bytes, after which a text may be cut, if there is one.
pub(crate) fn beginning(text: &str, bytes_min: usize) -> Option<&str> {
    (bytes_min.max(1)..text.len()).find(|at| is_cut(text.as_bytes(), *at)).map(|end| &text[..end])
}

/// Returns the shortest prefix of a text, of at least this many bytes, that a space follows, if there is one.
pub(crate) fn beginning_before_space(text: &str, bytes_min: usize) -> Option<&str> {
    let bytes_min = bytes_min.max(1).min(text.len());
    memchr::memchr(b' ', &text.as_bytes()[bytes_min..]).map(|at| &text[..bytes_min + at])
}

/// Returns whether a text is cut before the byte at `at`, which is not its first.
fn is_cut(bytes: &[u8], at: usize) -> bool {
    bytes[at] == b' ' && ends_word(bytes[at - 1]) && bytes.get(at + 1).is_some_and(u8::is_ascii_alphabetic)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_beginning_ends_where_texts_are_cut() {
        let text = "ab cd  ef gh";
        assert_eq!(beginning(text, 0), Some("ab"));
        assert_eq!(beginning(text, 3), Some("ab cd  ef"));
        assert_eq!(beginning(text, 10), None, "the whole text does not count");
        assert_eq!(beginning("", 0), None);
        let cuts_of = |text: &str| (1..text.len()).filter(|at| is_cut(text.as_bytes(), *at)).collect::<Vec<_>>();
        assert_eq!(cuts_of("a bc  d e. f 1 g\n h i"), [1, 7, 10, 14, 19], "before single spaces and letters only");
        assert_eq!(cuts_of("(it's, \"so\") = x -> y; z"), [22]);
        assert_eq!(beginning_before_space(text, 6), Some("ab cd "));
        assert_eq!(beginning_before_space("é é", 1), Some("é"));
        assert_eq!(beginning_before_space("ab", 1), None);
        assert_eq!(beginning_before_space("", 0), None);
    }

    #[test]
    fn spellings_with_a_space_behind_a_word_s_end_allow_no_cuts() {
        for spelling in ["a b", "xĠ", "of▁the", "1 2", ".Ġa", ")▁"] {
            assert!(!allows_cuts(spelling.as_bytes()), "{spelling}");
        }
        for spelling in ["Ġa", "▁of", "ĠĠ", "Ġ=Ġ", ">▁</", ".a", "é", ""] {
            assert!(allows_cuts(spelling.as_bytes()), "{spelling}");
        }
    }
}
