//! Splitters: they cut a text into the pieces within which tokens are merged.
//!
//! Each follows one list of regular expressions of llama.cpp, as llama.cpp executes it: by code of its own for the best
//! known ones, otherwise by `std::regex` on a text in which each character is replaced by its class. Where the two
//! differ from the published expression, they count: contractions and letters' cases are known of ASCII only.

mod rules;

use crate::classes::{Character, Class, Classes, KANA_OR_HAN, NUMBER, PUNCTUATION};
use crate::splitter::Splitter;

/// A text, or a part of one that is split as if it were a whole one.
#[derive(Debug, Clone, Copy)]
struct Text<'t> {
    bytes: &'t [u8],
    classes: &'t Classes,
}

impl Splitter {
    /// Calls `piece` with each piece of a text, in order. Shape: the pieces concatenated are the text.
    pub fn split(self, text: &str, classes: &Classes, piece: &mut impl FnMut(&[u8])) {
        let text = Text { bytes: text.as_bytes(), classes };
        match self {
            Self::Gpt2 => text.pieces(Text::gpt2, piece),
            Self::DigitsThenGpt2 => text.parts(NUMBER, |part, _| part.pieces(Text::gpt2_or_digit, piece)),
            Self::Llama3 => text.pieces(Text::llama3::<3>, piece),
            Self::Qwen2 => text.pieces(Text::llama3::<1>, piece),
            Self::Qwen35 => text.pieces(Text::qwen35, piece),
            Self::Gpt4o => text.pieces(Text::gpt4o, piece),
            Self::Tekken => text.pieces(Text::tekken, piece),
            Self::DeepSeek3 => text.parts(NUMBER, |part, are_numbers| match are_numbers {
                true => part.pieces(Text::up_to_three, piece),
                false => part.parts(KANA_OR_HAN, |part, _| part.pieces(Text::deepseek3, piece)),
            }),
            Self::KimiK2 => text.pieces(Text::kimi_k2, piece),
            Self::Default => text.default_parts(|part| {
                part.pieces(Text::gpt2, &mut |of_gpt2| {
                    part.of(of_gpt2).parts(NUMBER, |part, _| part.pieces(Text::three_ascii_digits, piece));
                });
            }),
        }
    }
}

impl<'t> Text<'t> {
    fn of(self, bytes: &'t [u8]) -> Self {
        Self { bytes, ..self }
    }

    #[inline]
    fn at(self, at: usize) -> Character {
        self.classes.at(self.bytes, at)
    }

    #[inline]
    fn byte(self, at: usize) -> Option<u8> {
        self.bytes.get(at).copied()
    }

    /// Cuts the text into pieces: `end` returns the end of the piece that begins at a position.
    #[inline]
    fn pieces(self, end: impl Fn(Self, usize) -> usize, piece: &mut impl FnMut(&'t [u8])) {
        let mut start = 0;
        while start < self.bytes.len() {
            let next = end(self, start);
            piece(&self.bytes[start..next]);
            start = next;
        }
    }

    /// Cuts the text into runs of characters whose class has the bit `class`, and runs of the others.
    #[inline]
    fn parts(self, class: Class, mut part: impl FnMut(Self, bool)) {
        let mut start = 0;
        while start < self.bytes.len() {
            let has_class = self.at(start).class & class != 0;
            let end = match has_class {
                true => self.run(start, class),
                false => self.run_without(start, class),
            };
            part(self.of(&self.bytes[start..end]), has_class);
            start = end;
        }
    }

    /// Cuts the text into runs of punctuation and of other characters, as the first expression of the default does.
    fn default_parts(self, mut part: impl FnMut(Self)) {
        let is_cut = |at: usize| {
            let is_symbol = self.byte(at).is_some_and(|byte| b"$+<=>^~|".contains(&byte));
            is_symbol || self.at(at).class & PUNCTUATION != 0
        };
        let (mut start, mut at) = (0, 0);
        while start < self.bytes.len() {
            at += self.at(at).n_bytes;
            if at >= self.bytes.len() || is_cut(at) != is_cut(start) {
                part(self.of(&self.bytes[start..at]));
                start = at;
            }
        }
    }

    /// Returns the end of the run of characters with one of these bits that begins at a position.
    #[inline]
    fn run(self, start: usize, bits: Class) -> usize {
        let mut at = start;
        loop {
            let Character { class, n_bytes } = self.at(at);
            if class & bits == 0 {
                return at;
            }
            at += n_bytes;
        }
    }

    /// Returns the end of the run of characters with none of these bits that begins at a position.
    #[inline]
    fn run_without(self, start: usize, bits: Class) -> usize {
        let mut at = start;
        loop {
            let Character { class, n_bytes } = self.at(at);
            if class & bits != 0 || n_bytes == 0 {
                return at;
            }
            at += n_bytes;
        }
    }

    /// Returns the end of the run of these ASCII characters that begins at a position.
    #[inline]
    fn run_of(self, start: usize, characters: &[u8]) -> usize {
        start + self.bytes[start..].iter().take_while(|byte| characters.contains(byte)).count()
    }
}

#[cfg(test)]
mod tests;
