//! Rules of the splitters: the end of the piece that begins at a position.
//!
//! Each tries the alternatives of its regular expression in their order; the names of the steps are those parts of it.

use super::Text;
use crate::classes::{Class, HAN, LETTER, MARK, NUMBER, PUNCTUATION, SPACE, SYMBOL};

/// Classes of the characters of which `[^\s\p{L}\p{N}]` takes none.
const WORDS_AND_SPACES: Class = SPACE | LETTER | NUMBER;

impl Text<'_> {
    /// `'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+`
    #[inline]
    pub(super) fn gpt2(self, start: usize) -> usize {
        let first = self.byte(start);
        if let Some(end) = (first == Some(b'\'')).then(|| self.contraction(start, |byte| byte)).flatten() {
            return end;
        }
        let body = start + usize::from(first == Some(b' '));
        let character = self.at(body);
        match character.class & WORDS_AND_SPACES {
            class @ (LETTER | NUMBER) => self.run(body, class),
            0 if character.n_bytes > 0 => self.run_without(body, WORDS_AND_SPACES),
            _ => self.spaces(start),
        }
    }

    /// `\p{N}`, or as GPT-2's: the text has only numbers or none.
    #[inline]
    pub(super) fn gpt2_or_digit(self, start: usize) -> usize {
        let first = self.at(start);
        if first.class & NUMBER != 0 { start + first.n_bytes } else { self.gpt2(start) }
    }

    /// `(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,MAX}| ?[^\s\p{L}\p{N}]+[\r\n]*`, then
    /// `\s*[\r\n]+|\s+(?!\S)|\s+`
    #[inline]
    pub(super) fn llama3<const DIGITS_MAX: usize>(self, start: usize) -> usize {
        if let Some(end) = self.folded_contraction(start) {
            return end;
        }
        if let Some(word) = self.word_start(start, LETTER) {
            return self.run(word, LETTER);
        }
        self.no_word::<DIGITS_MAX>(start, WORDS_AND_SPACES, b"\r\n")
    }

    /// As [`Self::llama3`] with single digits, and with `[\p{L}\p{M}]` in place of `\p{L}`.
    #[inline]
    pub(super) fn qwen35(self, start: usize) -> usize {
        if let Some(end) = self.folded_contraction(start) {
            return end;
        }
        if let Some(word) = self.word_start(start, LETTER | MARK) {
            return self.run(word, LETTER | MARK);
        }
        self.no_word::<1>(start, WORDS_AND_SPACES | MARK, b"\r\n")
    }

    /// Words by case, with a contraction behind them; otherwise as [`Self::llama3`], with `/` like a line break.
    #[inline]
    pub(super) fn gpt4o(self, start: usize) -> usize {
        if let Some(word) = self.cased_word_start(start) {
            let end = self.cased_word(word);
            return self.folded_contraction(end).unwrap_or(end);
        }
        self.no_word::<3>(start, WORDS_AND_SPACES, b"\r\n/")
    }

    /// As [`Self::gpt4o`] without contractions, with single digits.
    #[inline]
    pub(super) fn tekken(self, start: usize) -> usize {
        if let Some(word) = self.cased_word_start(start) {
            return self.cased_word(word);
        }
        self.no_word::<1>(start, WORDS_AND_SPACES, b"\r\n/")
    }

    /// The third of DeepSeek's expressions; what it does not match is one piece.
    #[inline]
    pub(super) fn deepseek3(self, start: usize) -> usize {
        if let Some(end) = self.deepseek3_match(start) {
            return end;
        }
        let mut end = start;
        loop {
            end += self.at(end).n_bytes;
            if end >= self.bytes.len() || self.deepseek3_match(end).is_some() {
                return end;
            }
        }
    }

    /// `[!-/:-~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+`
    fn deepseek3_match(self, start: usize) -> Option<usize> {
        let is_letter = |at: usize| self.byte(at).is_some_and(|byte| byte.is_ascii_alphabetic());
        let first = self.byte(start)?;
        if first.is_ascii_punctuation() && is_letter(start + 1) {
            return Some(start + 1 + self.bytes[start + 1..].iter().take_while(|b| b.is_ascii_alphabetic()).count());
        }
        let character = self.at(start);
        let behind = start + character.n_bytes;
        let may_precede = !matches!(first, b'\r' | b'\n') && character.class & (LETTER | PUNCTUATION | SYMBOL) == 0;
        if character.class & (LETTER | MARK) != 0 || (may_precede && self.at(behind).class & (LETTER | MARK) != 0) {
            return Some(self.run(behind, LETTER | MARK));
        }
        let body = start + usize::from(first == b' ');
        if self.at(body).class & (PUNCTUATION | SYMBOL) != 0 {
            return Some(self.run_of(self.run(body, PUNCTUATION | SYMBOL), b"\r\n"));
        }
        (character.class & SPACE != 0).then(|| self.lines_or_spaces(start))
    }

    /// `\p{N}{1,3}` in a text of numbers.
    #[inline]
    pub(super) fn up_to_three(self, start: usize) -> usize {
        self.number::<3>(start).unwrap_or(self.bytes.len())
    }

    /// Chinese, words without Chinese and with a contraction behind them; otherwise as [`Self::llama3`].
    #[inline]
    pub(super) fn kimi_k2(self, start: usize) -> usize {
        if self.at(start).class & HAN != 0 {
            return self.run(start, HAN);
        }
        let is_letter = |at: usize| self.at(at).class & (LETTER | HAN) == LETTER;
        if let Some(word) = self.cased_word_start(start).filter(|word| is_letter(*word)) {
            let mut end = word;
            while is_letter(end) {
                end += self.at(end).n_bytes;
            }
            return self.folded_contraction(end).unwrap_or(end);
        }
        self.no_word::<3>(start, WORDS_AND_SPACES, b"\r\n")
    }

    /// `[0-9][0-9][0-9]`, and what is between.
    #[inline]
    pub(super) fn three_ascii_digits(self, start: usize) -> usize {
        let is_match =
            |at: usize| self.bytes.get(at..at + 3).is_some_and(|digits| digits.iter().all(u8::is_ascii_digit));
        if is_match(start) {
            return start + 3;
        }
        (start + 1..self.bytes.len()).find(|at| is_match(*at)).unwrap_or(self.bytes.len())
    }

    /// Returns the end of a contraction (`'s`, `'re`) that begins at a position; `fold` is applied to its letters.
    #[inline]
    fn contraction(self, start: usize, fold: impl Fn(u8) -> u8) -> Option<usize> {
        match (fold(self.byte(start + 1)?), self.byte(start + 2).map(fold)) {
            (b's' | b't' | b'm' | b'd', _) => Some(start + 2),
            (b'r' | b'v', Some(b'e')) | (b'l', Some(b'l')) => Some(start + 3),
            _ => None,
        }
    }

    /// Returns the end of a contraction in upper or lower case that begins at a position.
    #[inline]
    fn folded_contraction(self, start: usize) -> Option<usize> {
        let is_quote = self.byte(start) == Some(b'\'');
        is_quote.then(|| self.contraction(start, |byte| byte.to_ascii_lowercase())).flatten()
    }

    /// `[^\r\n\p{L}\p{N}]?` before a character with one of the bits: returns a position from which only such follow.
    #[inline]
    fn word_start(self, start: usize, bits: Class) -> Option<usize> {
        let first = self.at(start);
        let behind = start + first.n_bytes;
        let may_precede = !matches!(self.byte(start), Some(b'\r' | b'\n')) && first.class & NUMBER == 0;
        let is_word = first.class & bits != 0 || (may_precede && self.at(behind).class & bits != 0);
        is_word.then_some(behind)
    }

    /// `[^\r\n\p{L}\p{N}]?` before a letter: returns the first letter's position.
    #[inline]
    fn cased_word_start(self, start: usize) -> Option<usize> {
        let first = self.at(start);
        if first.class & LETTER != 0 {
            return Some(start);
        }
        self.word_start(start, LETTER)
    }

    /// Returns the end of the word that begins at a letter: upper-case letters, then lower-case ones; letters beyond
    /// ASCII are both.
    #[inline]
    fn cased_word(self, start: usize) -> usize {
        // As many upper-case letters as there are; a word may end with the last one that is lower-case, too.
        let (mut at, mut end_of_both) = (start, None);
        loop {
            let letter = self.at(at);
            if letter.class & LETTER == 0 {
                return end_of_both.unwrap_or(at);
            }
            if self.byte(at).is_some_and(|byte| byte.is_ascii_lowercase()) {
                break;
            }
            at += letter.n_bytes;
            if letter.n_bytes > 1 {
                end_of_both = Some(at);
            }
        }
        // Lower-case letters.
        loop {
            let letter = self.at(at);
            if letter.class & LETTER == 0 || self.byte(at).is_some_and(|byte| byte.is_ascii_uppercase()) {
                return at;
            }
            at += letter.n_bytes;
        }
    }

    /// What is behind the alternatives for words: a number, a run of others with some of `tail` behind it, white space.
    #[inline]
    fn no_word<const DIGITS_MAX: usize>(self, start: usize, words_and_spaces: Class, tail: &[u8]) -> usize {
        self.number::<DIGITS_MAX>(start)
            .or_else(|| self.other_run(start, words_and_spaces, tail))
            .unwrap_or_else(|| self.lines_or_spaces(start))
    }

    /// `\p{N}{1,MAX}`
    #[inline]
    fn number<const DIGITS_MAX: usize>(self, start: usize) -> Option<usize> {
        let mut end = start;
        for _ in 0..DIGITS_MAX {
            let digit = self.at(end);
            if digit.class & NUMBER == 0 {
                break;
            }
            end += digit.n_bytes;
        }
        (end > start).then_some(end)
    }

    /// ` ?[^...]+[...]*`: a run of characters without the bits, with a space before and some of `tail` behind it.
    #[inline]
    fn other_run(self, start: usize, bits: Class, tail: &[u8]) -> Option<usize> {
        let body = start + usize::from(self.byte(start) == Some(b' '));
        let end = self.run_without(body, bits);
        (end > body).then(|| self.run_of(end, tail))
    }

    /// `\s*[\r\n]+|\s+(?!\S)|\s+`
    #[inline]
    fn lines_or_spaces(self, start: usize) -> usize {
        let end = self.run(start, SPACE);
        let last_break = self.bytes[start..end].iter().rposition(|byte| matches!(byte, b'\r' | b'\n'));
        last_break.map_or_else(|| self.spaces(start), |at| start + at + 1)
    }

    /// `\s+(?!\S)|\s+`: white space, but for the last of several characters if others follow. Any other character that
    /// begins here is a piece.
    #[inline]
    fn spaces(self, start: usize) -> usize {
        let (mut end, mut last) = (start, start);
        loop {
            let space = self.at(end);
            if space.class & SPACE == 0 {
                break;
            }
            last = end;
            end += space.n_bytes;
        }
        match end {
            _ if end == start => start + self.at(start).n_bytes.max(1),
            _ if last > start && end < self.bytes.len() => last,
            end => end,
        }
    }
}
