//! Lower bound on the number of a text's tokens, without tokenizing it.
//!
//! The tokens of a lossless vocabulary cover all of a text's bytes. So there are at least as many tokens as steps,
//! where each step is as long as the longest token that starts with the same two bytes, or with the same run of one
//! byte. Counting steps takes a nanosecond per byte, tokenizing takes a thousand.

use std::collections::HashSet;

use warmpath_tokenizer::alphabet::{byte_of, spelled};

/// Kinds of vocabularies whose tokens cover every byte of a text, by their names in model files.
///
/// Source: llama.cpp's tokenizers. The tokenizers of other kinds drop white space or accents (bert, t5) or have one
/// token for anything unknown.
const LOSSLESS_KINDS: [&str; 3] = ["gpt2", "llama", "gemma4"];

/// Pre-tokenizers of these kinds that add or drop characters. Source: llama.cpp, `llm_tokenizer_bpe_session::tokenize`.
const LOSSY_PRETOKENIZERS: [&str; 2] = ["mmbert", "whitespace"];

/// Pre-tokenizers of `gpt2` vocabularies that are not byte-level. Source: as above, `byte_encode`.
const RAW_PRETOKENIZERS: [&str; 3] = ["gemma4", "granite-embed-multi-311m", "sarvam-moe"];

/// Assumed bytes of text per token, white space aside, for a vocabulary of any other kind.
///
/// Source: own choice, twice the longest token of RWKV's vocabulary and ten times that of others. In such a vocabulary
/// an unknown word is one token, and no language has words of that length.
const ASSUMED_TOKEN_BYTES: usize = 256;

/// Character for a space in vocabularies that escape it.
const ESCAPED_SPACE: char = '\u{2581}';

/// Lower bound on the number of a text's tokens.
#[derive(Debug)]
pub(crate) struct TokenBound {
    /// Longest token by its first two bytes; runs of one byte are in `by_run`. Units: bytes.
    by_pair: Box<[u16]>,
    /// Longest token that is a run of this byte. Units: bytes.
    by_run: [u16; 256],
    /// Longest token. Units: bytes.
    longest: usize,
}

/// Returns an assumed lower bound of tokens for a vocabulary that may drop characters.
pub(crate) fn assumed(text: &[u8]) -> usize {
    text.iter().filter(|byte| !byte.is_ascii_whitespace()).count() / ASSUMED_TOKEN_BYTES
}

/// Properties of a vocabulary's tokenizer.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Tokenizer<'a> {
    /// Kind, as the file names it.
    pub kind: &'a str,
    /// Pre-tokenizer, as the file names it.
    pub pre: &'a str,
}

impl TokenBound {
    /// Returns the lower bound for a vocabulary with these spellings; `None` if tokens may stand for texts of any
    /// length.
    pub fn of(tokenizer: Tokenizer<'_>, spellings: &[&str]) -> Option<Self> {
        if !LOSSLESS_KINDS.contains(&tokenizer.kind) || LOSSY_PRETOKENIZERS.contains(&tokenizer.pre) {
            return None;
        }
        let spelling_set: HashSet<&str> = spellings.iter().copied().collect();
        // llama.cpp drops bytes that have no token.
        let is_byte_level = tokenizer.kind == "gpt2" && !RAW_PRETOKENIZERS.contains(&tokenizer.pre);
        let has_all_bytes = (0..=u8::MAX).all(|byte| match is_byte_level {
            true => spelling_set.contains(&*spelled(byte).to_string()),
            false => spelling_set.contains(&*format!("<0x{byte:02X}>")),
        });
        if !has_all_bytes {
            return None;
        }
        let mut bound = Self { by_pair: vec![1; 1 << 16].into(), by_run: [1; 256], longest: 1 };
        for spelling in spellings {
            bound.add(spelling);
        }
        Some(bound)
    }

    /// Adds a token, in every form in which a text may have it: as it is spelled, with spaces for escaped ones, or with
    /// each character as a byte.
    fn add(&mut self, spelling: &str) {
        let bytes: Option<Vec<u8>> = spelling.chars().map(byte_of).collect();
        if let Some(bytes) = bytes {
            self.add_form(&bytes, bytes.len());
        }
        self.add_form(spelling.as_bytes(), spelling.len());
        if spelling.contains(ESCAPED_SPACE) {
            // Each escaped space may stand for a space or for itself; the longest form counts for all.
            let spaces = spelling.replace(ESCAPED_SPACE, " ");
            self.add_form(spaces.as_bytes(), spelling.len());
            self.add_form(spelling.replacen(ESCAPED_SPACE, " ", 1).as_bytes(), spelling.len());
            if let Some(behind) = spelling.strip_prefix(ESCAPED_SPACE) {
                let first = ESCAPED_SPACE.to_string();
                self.add_form((first + &behind.replace(ESCAPED_SPACE, " ")).as_bytes(), spelling.len());
            }
        }
    }

    fn add_form(&mut self, form: &[u8], length: usize) {
        let length = u16::try_from(length).unwrap_or(u16::MAX);
        self.longest = self.longest.max(usize::from(length));
        match form {
            [] | [_] => {}
            [first, rest @ ..] if rest.iter().all(|byte| byte == first) && form.len() == usize::from(length) => {
                let longest = &mut self.by_run[usize::from(*first)];
                *longest = length.max(*longest);
            }
            [first, second, ..] => {
                let longest = &mut self.by_pair[pair(*first, *second)];
                *longest = length.max(*longest);
            }
        }
    }

    /// Returns a lower bound of the tokens of `text`; counting stops at `enough`.
    ///
    /// Cost: a nanosecond for each byte until then. The first token may begin before the text, with a space that the
    /// vocabulary adds.
    pub fn count(&self, text: &[u8], enough: usize) -> usize {
        if text.is_empty() || self.longest >= usize::from(u16::MAX) {
            return 0;
        }
        let (mut n_tokens, mut end, mut furthest) = (1, self.longest, self.longest);
        let mut run_end = 0;
        for at in 0..text.len() {
            if at >= run_end {
                run_end = at + text[at..].iter().take_while(|byte| **byte == text[at]).count();
            }
            let by_run = usize::from(self.by_run[usize::from(text[at])]).min(run_end - at);
            let by_pair = text.get(at + 1).map_or(1, |next| usize::from(self.by_pair[pair(text[at], *next)]));
            furthest = furthest.max(at + by_run.max(by_pair));
            if at == end {
                n_tokens += 1;
                end = furthest;
                if n_tokens >= enough {
                    break;
                }
            }
        }
        n_tokens
    }
}

fn pair(first: u8, second: u8) -> usize {
    usize::from(first) << 8 | usize::from(second)
}

#[cfg(test)]
mod tests {
    use super::*;

    const BYTE_LEVEL: Tokenizer<'_> = Tokenizer { kind: "gpt2", pre: "qwen2" };

    fn all_bytes() -> Vec<String> {
        (0..=u8::MAX).map(|byte| spelled(byte).to_string()).collect()
    }

    fn bound(words: &[&str]) -> TokenBound {
        let bytes = all_bytes();
        let spellings: Vec<&str> = bytes.iter().map(String::as_str).chain(words.iter().copied()).collect();
        TokenBound::of(BYTE_LEVEL, &spellings).expect("every byte has a token")
    }

    #[test]
    fn steps_are_as_long_as_the_longest_token_with_the_same_beginning() {
        let least = bound(&["....", "abc", "Ġx"]);
        assert_eq!(least.count(&[b'.'; 401], usize::MAX), 101);
        assert_eq!(least.count(b"abcabcabcabc", usize::MAX), 4);
        // The first token may begin before the text.
        assert_eq!(least.count(b"zzzzzzzz", usize::MAX), 5);
        assert_eq!(least.count(b"", usize::MAX), 0);
        assert_eq!(least.count(&[b'.'; 1 << 20], 1000), 1000, "counting stops at the limit");
    }

    #[test]
    fn white_space_may_be_dropped_and_is_not_counted_where_characters_may_be() {
        assert_eq!(assumed(&[b' '; 1 << 20]), 0);
        assert_eq!(assumed("a\n".repeat(4 * ASSUMED_TOKEN_BYTES).as_bytes()), 4);
    }

    #[test]
    fn vocabularies_whose_tokens_may_stand_for_anything_have_no_bound() {
        let bytes = all_bytes();
        let spellings: Vec<&str> = bytes.iter().map(String::as_str).collect();
        assert!(TokenBound::of(BYTE_LEVEL, &spellings[1..]).is_none(), "a byte is dropped");
        for (kind, pre) in [("bert", ""), ("t5", ""), ("rwkv", ""), ("gpt2", "mmbert"), ("gpt2", "whitespace")] {
            assert!(TokenBound::of(Tokenizer { kind, pre }, &spellings).is_none(), "{kind} {pre}");
        }
    }
}
