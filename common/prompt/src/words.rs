//! The cache of words and their tokens, which makes new text cheap to tokenize.
//!
//! Byte-pair encoding only produces tokens of its vocabulary. If no token contains a word's end followed by a space,
//! none reaches across such a place, so a text can be cut there and its words can be tokenized one by one. Prose
//! repeats its words: a look-up takes a fiftieth of the time of llama.cpp's encoding.
//!
//! Not here: tokenizing (`vocabulary`), fragments that repeat as a whole (`fragments`).

use std::mem;
use std::sync::{PoisonError, RwLock};

use hashbrown::HashMap;
use warmpath_common::ids::Token;

/// Most words of a generation; two generations are kept, 10 MB at most.
///
/// Source: own choice; an English text of a million words has some 30,000 different ones, most of them rare.
const WORDS_MAX: usize = 1 << 15;
/// Longest word that is cached. Units: bytes.
///
/// Source: own choice; a longer one is a number, a link or not a word, and seldom repeats.
const WORD_BYTES_MAX: usize = 48;

/// Tokens of the most recently used words. The lock is held for look-ups and insertions, never while a word is
/// tokenized.
#[derive(Debug, Default)]
pub(crate) struct Words(RwLock<Generations>);

/// Words in use; when the young generation is full, it becomes the old one, and the old one is dropped.
#[derive(Debug, Default)]
struct Generations {
    young: HashMap<Box<str>, Box<[Token]>>,
    old: HashMap<Box<str>, Box<[Token]>>,
}

/// A word that is not cached, and the position of its tokens.
struct Gap<'t> {
    n_tokens_before: usize,
    word: &'t str,
}

impl Words {
    /// Returns the tokens of a text; `tokenize` is called for words that are not cached.
    ///
    /// Cost: a look-up for each word.
    pub fn tokens(&self, text: &str, tokenize: impl Fn(&str) -> Vec<Token>) -> Vec<Token> {
        let mut known = Vec::with_capacity(text.len() / 4 + 1);
        let mut gaps = Vec::new();
        {
            let generations = self.0.read().unwrap_or_else(PoisonError::into_inner);
            for word in words(text) {
                match generations.find(word) {
                    Some(tokens) => known.extend_from_slice(tokens),
                    None => gaps.push(Gap { n_tokens_before: known.len(), word }),
                }
            }
        }
        if gaps.is_empty() {
            return known;
        }
        // New words are tokenized without the lock, each once.
        let mut fresh: HashMap<&str, Vec<Token>> = HashMap::new();
        for gap in &gaps {
            fresh.entry(gap.word).or_insert_with(|| tokenize(gap.word));
        }
        // The tokens of known and new words are joined in the order of the text.
        let mut tokens = Vec::with_capacity(known.len() + gaps.len() * 2);
        let mut n_taken = 0;
        for gap in &gaps {
            tokens.extend_from_slice(&known[n_taken..gap.n_tokens_before]);
            tokens.extend_from_slice(&fresh[gap.word]);
            n_taken = gap.n_tokens_before;
        }
        tokens.extend_from_slice(&known[n_taken..]);
        let mut generations = self.0.write().unwrap_or_else(PoisonError::into_inner);
        for (word, tokens) in fresh.into_iter().filter(|(word, _)| word.len() <= WORD_BYTES_MAX) {
            generations.add(word, tokens);
        }
        tokens
    }
}

impl Generations {
    fn find(&self, word: &str) -> Option<&[Token]> {
        self.young.get(word).or_else(|| self.old.get(word)).map(|tokens| &**tokens)
    }

    fn add(&mut self, word: &str, tokens: Vec<Token>) {
        if self.young.len() >= WORDS_MAX {
            self.old = mem::take(&mut self.young);
        }
        self.young.insert(word.into(), tokens.into());
    }
}

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

/// Cuts a text before each space that follows a word's end and precedes an ASCII letter.
fn words(text: &str) -> impl Iterator<Item = &str> {
    let bytes = text.as_bytes();
    let mut start = 0;
    std::iter::from_fn(move || {
        if start == bytes.len() {
            return None;
        }
        let end = (start + 1..bytes.len()).find(|at| is_cut(bytes, *at)).unwrap_or(bytes.len());
        let word = &text[start..end];
        start = end;
        Some(word)
    })
}

/// Returns whether a text is cut before the byte at `at`, which is not its first.
fn is_cut(bytes: &[u8], at: usize) -> bool {
    bytes[at] == b' ' && ends_word(bytes[at - 1]) && bytes.get(at + 1).is_some_and(u8::is_ascii_alphabetic)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn cuts_before_single_spaces_between_a_word_s_end_and_a_letter_only() {
        let cut = |text| words(text).collect::<Vec<_>>();
        assert_eq!(cut("a bc  d e. f 1 g\n h ä i j"), ["a", " bc  d", " e.", " f 1", " g\n h ä i", " j"]);
        assert_eq!(cut("(it's, \"so\") = x -> y; z"), ["(it's, \"so\") = x -> y;", " z"]);
        assert_eq!(cut(" x"), [" x"]);
        assert!(cut("").is_empty());
    }

    #[test]
    fn a_beginning_ends_where_texts_are_cut() {
        let text = "ab cd  ef gh";
        assert_eq!(beginning(text, 0), Some("ab"));
        assert_eq!(beginning(text, 3), Some("ab cd  ef"));
        assert_eq!(beginning(text, 10), None, "the whole text does not count");
        assert_eq!(beginning("", 0), None);
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

    #[test]
    fn old_words_are_evicted_and_words_in_use_are_not() {
        let cache = Words::default();
        let length = |word: &str| vec![word.len() as Token];
        for n in 0..3 * WORDS_MAX {
            assert_eq!(cache.tokens(&format!("x{n}"), length), [1 + n.to_string().len() as Token]);
            cache.tokens("always", length);
        }
        let generations = cache.0.read().expect("no test panics while it holds the lock");
        assert!(generations.young.len() <= WORDS_MAX && generations.old.len() <= WORDS_MAX);
        assert!(generations.find("always").is_some() && generations.find("x1").is_none());
    }

    proptest! {
        #[test]
        fn a_text_is_its_words_and_gives_their_tokens_in_order(texts in prop::collection::vec("[a-d .]{0,40}", 1..10)) {
            let cache = Words::default();
            let bytes = |word: &str| word.bytes().map(Token::from).collect::<Vec<_>>();
            for text in texts {
                prop_assert_eq!(words(&text).collect::<String>(), text.clone());
                prop_assert_eq!(cache.tokens(&text, bytes), bytes(&text));
            }
        }
    }
}
